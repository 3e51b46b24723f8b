"""Files that a session is given at its start: it begins with them, and they are work only once they were changed."""

from __future__ import annotations

import pytest
from support.engine import KINDS, Site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, PathNotFound, PromoteFailed, SessionExpired, SessionNotFound, WriteRejected

NOTES = "begin here\n"
GIVEN = {"NOTES.md": NOTES, "./given/data.bin": b"\0\xff"}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_there_and_are_no_touched_files(site: Site, kind: str) -> None:
    session = site.start(workspace=kind, seed_files=GIVEN)

    assert session.read("NOTES.md") == NOTES.encode()
    assert session.read("given/data.bin") == b"\0\xff"
    assert session.touched_files() == []
    assert session.diff() == ""
    with pytest.raises(PromoteFailed, match="nothing to promote"):
        session.promote(strategy="commit")

    session.write("app.py", "v2\n")
    assert session.review().touched == ["app.py"]
    sha = session.promote(strategy="commit").sha
    assert site.durable.git("show", "--name-only", "--format=", sha).split() == ["app.py"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_changed_is_promoted_whole(site: Site, kind: str) -> None:
    session = site.start(workspace=kind, seed_files=GIVEN)
    session.write("NOTES.md", NOTES + "done\n")
    assert session.touched_files() == ["NOTES.md"]

    sha = session.promote(strategy="commit").sha

    assert site.durable.git("show", f"{sha}:NOTES.md") == f"{NOTES}done"
    assert site.durable.git("show", "--name-only", "--format=", sha).split() == ["NOTES.md"]


def test_one_that_is_as_it_was_again_is_untouched_again_and_a_deletion_leaves_nothing(site: Site) -> None:
    session = site.start(seed_files=GIVEN)
    session.write("NOTES.md", "other\n")
    session.write("NOTES.md", NOTES)
    session.delete("given/data.bin")
    assert session.touched_files() == []
    assert not session.exists("given/data.bin")


def test_a_program_that_changes_its_bytes_or_its_mode_is_seen_also_where_the_file_is_ignored(site: Site) -> None:
    site.durable.commit({".gitignore": "*.log\n"})
    session = site.start(workspace="clone", seed_files={"one.log": "1\n", "two.sh": "true\n"})
    shell(session, "git check-ignore -q one.log; echo 2 > one.log; chmod +x two.sh")
    assert session.touched_files() == ["one.log", "two.sh"]


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_staging_them_is_no_work_of_the_agent(site: Site, kind: str) -> None:
    session = site.start(workspace=kind, seed_files=GIVEN)
    shell(session, "git add -A")
    assert session.info().beside == ()
    session.discard()
    assert session.archives == ()


def test_a_fork_begins_with_them_as_they_were_given_and_with_what_was_changed(site: Site) -> None:
    session = site.start(seed_files=GIVEN)
    session.write("NOTES.md", "other\n")
    session.delete("given/data.bin")

    now, baseline = session.fork(), session.fork(files="baseline")
    assert (now.read("NOTES.md"), now.touched_files()) == (b"other\n", ["NOTES.md"])
    assert (baseline.read("NOTES.md"), baseline.touched_files()) == (NOTES.encode(), [])
    assert baseline.read("given/data.bin") == now.read("given/data.bin") == b"\0\xff"

    session.discard()
    later = site.engine.fork(session.id)
    assert later.read("NOTES.md") == b"other\n"
    assert later.touched_files() == ["NOTES.md"]


def test_a_handoff_takes_them_along_and_its_forks_too(site: Site) -> None:
    successor = site.start(seed_files=GIVEN).handoff()
    assert successor.touched_files() == []
    assert successor.fork().read("NOTES.md") == NOTES.encode()


def test_another_process_knows_them_too(site: Site) -> None:
    session = site.start(seed_files=GIVEN)
    assert site.engine.get_session(session.id).touched_files() == []
    assert site.engine.info(session.id).touched_files == ()


@pytest.mark.parametrize(
    ("files", "error", "fact"),
    [
        ({"app.py": "mine\n"}, InvalidInput, "already has something at the seed file's path 'app.py'"),
        ({"src": "mine\n"}, InvalidInput, "already has something at the seed file's path 'src'"),
        ({"app.py/below": "mine\n"}, InvalidInput, "already has something at the seed file's path 'app.py/below'"),
        ({"../out": "mine\n"}, WriteRejected, "out"),
        ({".git/config": "mine\n"}, WriteRejected, ".git"),
        ({"one": 1}, InvalidInput, "the data of 'one' is int"),
        (["one"], InvalidInput, "seed_files is list, not a mapping"),
    ],
)
def test_what_cannot_be_given_is_refused_and_leaves_nothing(site: Site, files: object, error: type[Exception], fact: str) -> None:
    with pytest.raises(error, match=fact):
        site.start(workspace="lazy", seed_files=files)
    assert site.engine.list_sessions() == []


@pytest.fixture
def ended(site: Site) -> tuple[UserSession, str]:
    session = site.start()
    name = session.attach(b"\0picture")
    session.record("user_message", {"text": "look", "resources": [name]})
    session.discard()
    return session, name


def test_an_ended_session_is_read_by_its_id_and_by_the_object_that_it_had(site: Site, ended: tuple[UserSession, str]) -> None:
    session, name = ended
    with pytest.raises(SessionExpired):
        site.engine.get_session(session.id)

    assert site.engine.history(session.id, ["user_message"])[0].data["resources"] == [name]
    assert site.engine.attached(session.id, name) == b"\0picture"
    assert session.attached(name) == b"\0picture"
    assert session.history() == site.engine.history(session.id)


def test_an_attachment_that_is_not_there_is_a_typed_error(site: Site, ended: tuple[UserSession, str]) -> None:
    with pytest.raises(PathNotFound):
        site.engine.attached(ended[0].id, "sha256:" + "0" * 64)
    with pytest.raises(InvalidInput):
        site.engine.attached(ended[0].id, "../events.jsonl")
    with pytest.raises(SessionNotFound):
        site.engine.attached("nobody", ended[1])
