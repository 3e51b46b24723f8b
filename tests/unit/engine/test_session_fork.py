"""Forks: another session that begins as one was after some event, with what was said, what was attached and the files."""

from __future__ import annotations

import os

import pytest
from support.engine import KINDS, Site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, SessionNotFound
from pytest_gittrix.views import pixir


@pytest.fixture
def session(site: Site) -> UserSession:
    """One that talked before it changed a file, and after."""
    started = site.start(agent="gastown/polecats/Toast", work_unit="gt-1")
    started.record("user_message", {"text": "first"})
    started.write("app.py", "v2\n")
    started.record("user_message", {"text": "second"})
    started.write("app.py", "v3\n")
    started.write("new.txt", "new\n")
    return started


def said(session: UserSession) -> list[str]:
    """What was said in a session."""
    return [event.data["text"] for event in session.history(["user_message", "assistant_message"])]


def seq_of(session: UserSession, text: str) -> int:
    """The event that says so."""
    return next(event.seq for event in session.history(["user_message"]) if event.data["text"] == text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_of_now_has_the_files_as_they_are(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "v2\n")
    session.delete("README.md")
    session.write("src/new.txt", b"\0\xff")
    before = [event.type for event in session.history()]

    child = session.fork()

    assert child.diff() == session.diff() != ""
    assert child.touched_files() == ["README.md", "app.py", "src/new.txt"]
    assert child.read("src/new.txt") == b"\0\xff"
    assert not child.exists("README.md")
    assert [event.type for event in session.history()][: len(before)] == before


def test_what_a_shell_did_comes_along_whatever_it_is(site: Site) -> None:
    session = site.start()
    shell(session, "rm -r src && echo file > src && chmod -x run.sh && ln -sf README.md link && mkdir -p run && touch run/x.sh")
    shell(session, "rm app.py && mkdir app.py && echo deep > app.py/deep && git add -A && git commit -qm mine")

    child = session.fork()

    assert child.diff() == session.diff()
    seen = shell(child, "cat src app.py/deep; readlink link; test -x run.sh || echo plain").split()
    assert seen == ["file", "deep", "README.md", "plain"]
    assert shell(child, "git status --porcelain") != ""


def test_a_fork_after_an_earlier_event_has_what_was_said_and_the_files_of_then(session: UserSession) -> None:
    child = session.fork(seq_of(session, "second"))

    assert said(child) == ["first", "second"]
    assert child.read("app.py") == b"v2\n"
    assert not child.exists("new.txt")
    first = session.fork(seq_of(session, "first"))
    assert (said(first), first.touched_files()) == (["first"], [])


def test_neither_changes_the_other(session: UserSession) -> None:
    log = (session._recorder.directory / "events.jsonl").read_bytes()
    child = session.fork()
    assert (session._recorder.directory / "events.jsonl").read_bytes() == log

    child.write("app.py", "child\n")
    child.record("user_message", {"text": "third"})
    session.write("new.txt", "parent\n")

    assert (session.read("app.py"), child.read("new.txt")) == (b"v3\n", b"new\n")
    assert said(session) == ["first", "second"]
    child.promote()
    assert session.info().state == "active"


def test_a_fork_says_where_it_comes_from_through_generations(site: Site, session: UserSession) -> None:
    child = session.fork(agent="other")
    grandchild = child.fork()
    lineages = [site.state(one.id).lineage for one in (child, grandchild)]

    assert [one and (one.parent, one.relation, one.root, one.chain) for one in lineages] == [
        (session.id, "fork", session.id, child.id),
        (child.id, "fork", session.id, grandchild.id),
    ]
    assert child.history()[0].type == "session.created"
    assert child.info().identity == {"agent": "other", "work_unit": "gt-1"}
    assert grandchild.info().fork_root == session.id


def test_pixir_reads_the_beginning_of_a_fork_as_its_first_event(session: UserSession) -> None:
    parent = pixir.history(session.history())
    child = session.fork()
    first, *rest = pixir.history(child.history())

    assert (first["seq"], first["type"]) == (0, "session_fork")
    assert first["data"]["parent_session_id"] == session.id
    assert first["data"]["forked_to_seq"] == parent[-1]["seq"]
    assert first["data"]["replay_event_count"] == len(parent)
    assert [(one["type"], one["data"]) for one in rest] == [(one["type"], one["data"]) for one in parent]
    again = pixir.history(child.fork().history())
    assert again[0]["data"]["forked_to_seq"] == rest[-1]["seq"]


def test_events_keep_their_times_and_get_new_numbers(site: Site, session: UserSession) -> None:
    site.clock.advance(minutes=5)
    child = session.fork()
    ours, theirs = (one.history(["user_message"]) for one in (child, session))

    assert [event.ts for event in ours] == [event.ts for event in theirs]
    assert [event.seq for event in child.history()] == list(range(len(child.history())))
    assert child.info().last_access_at == site.clock.now()


def test_a_summary_of_what_is_left_out_comes_last(session: UserSession) -> None:
    session.record("tool_call", {"call_id": "c1", "name": "shell", "args": {}})
    child = session.fork(seq_of(session, "first"), summary=True)
    other = session.fork(seq_of(session, "first"), summary="it went wrong")

    (counted,), (uncounted,) = (one.history(["branch_summary"]) for one in (child, other))
    assert counted.data["summary"] == "Left out: 1 tool call, 1 user message. Tools called: shell (1)."
    assert uncounted.data["summary"] == "it went wrong"
    assert uncounted.data["parent_session_id"] == session.id
    assert not child.fork().history(["branch_summary"])


def test_an_open_call_comes_along_and_is_answered_before_the_childs_first_turn(session: UserSession) -> None:
    session.record("tool_call", {"call_id": "c1", "name": "shell", "args": {}})
    child = session.fork()

    assert child.start_turn(lambda context: None, runs="thread").wait(60)
    (answer,) = child.history(["tool_result"])
    assert answer.data["error"]["kind"] == "orphan_tool_call"
    assert not session.history(["tool_result"])


def test_what_is_attached_is_attached_to_the_fork(session: UserSession) -> None:
    name = session.attach(b"a picture")
    session.record("user_message", {"text": "see", "resources": [name]})
    child = session.fork()

    assert child.attached(name) == b"a picture"
    session.discard()
    assert child.attached(name) == b"a picture"


def test_files_that_were_not_kept_are_refused_and_it_says_which_were(session: UserSession) -> None:
    session.record("assistant_message", {"text": "done"})
    seq = session.history()[-1].seq
    session.write("later.txt", "later\n")

    with pytest.raises(InvalidInput, match=r"after event \d+ were not saved") as refused:
        session.fork(seq)
    assert f"Fork after one of the events 2, {seq_of(session, 'second')};" in str(refused.value)
    assert said(session.fork(seq, files="baseline")) == ["first", "second", "done"]
    assert session.fork(seq, files="now").exists("later.txt")


def test_a_checkpoint_keeps_the_files_of_a_moment(session: UserSession) -> None:
    tree = session.checkpoint()
    seq = session.history()[-1].seq
    assert session.checkpoint() == tree
    assert session.history()[-1].seq == seq
    session.write("app.py", "v4\n")
    session.checkpoint()

    assert session.fork(seq).read("app.py") == b"v3\n"
    assert session.fork(session.history()[-1].seq).read("app.py") == b"v4\n"


def test_moments_before_and_after_turns_and_commits_are_kept(session: UserSession) -> None:
    session.start_turn(lambda context: context.session.write("app.py", "turn\n"), runs="thread").wait(60)
    ended = session.history(["turn.ended"])[-1].seq
    session.write("app.py", "later\n")
    session.commit("mine")
    committed = session.history()[-1].seq
    session.write("app.py", "last\n")

    assert session.fork(session.history(["turn.started"])[-1].seq).read("app.py") == b"v3\n"
    assert session.fork(ended).read("app.py") == b"turn\n"
    assert session.fork(committed).read("app.py") == b"later\n"


def test_a_discarded_session_is_forked_from_what_was_set_aside(site: Site, session: UserSession) -> None:
    session.discard()
    child = site.engine.fork(session.id)

    assert (child.read("app.py"), said(child)) == (b"v3\n", ["first", "second"])
    with pytest.raises(AdapterUnavailable, match="are gone: it is discarded"):
        site.engine.fork(session.id, next(event.seq for event in site.events(session.id) if event.type == "workspace.kept"))


def test_a_promoted_session_is_forked_without_its_files_or_not_at_all(site: Site, session: UserSession) -> None:
    session.promote()
    with pytest.raises(AdapterUnavailable, match="it is promoted"):
        site.engine.fork(session.id)
    assert said(site.engine.fork(session.id, files="baseline")) == ["first", "second"]


@pytest.mark.parametrize("seq", [-1, 10_000, True, "3"])
def test_an_event_that_there_is_not_is_refused(session: UserSession, seq: object) -> None:
    with pytest.raises(InvalidInput, match="has no event"):
        session.fork(seq)  # type: ignore[arg-type]


def test_an_unknown_way_to_begin_and_an_unknown_session_are_refused(site: Site, session: UserSession) -> None:
    with pytest.raises(InvalidInput, match="Use one of: then, now, baseline"):
        session.fork(files="yesterday")  # type: ignore[arg-type]
    with pytest.raises(SessionNotFound):
        site.engine.fork("sess_nobody")


def test_a_fork_that_fails_leaves_nothing(site: Site, session: UserSession) -> None:
    os.rename(session.workspace_path or "", f"{session.workspace_path}.away")
    before = sorted(os.listdir(site.root / "store")) if (site.root / "store").is_dir() else None

    with pytest.raises(AdapterUnavailable):
        session.fork()
    assert [one.id for one in site.engine.list_sessions()] == [session.id]
    assert before is None or [name for name in sorted(os.listdir(site.root / "store")) if not name.startswith(".")] == [
        name for name in before if not name.startswith(".")
    ]


def test_half_an_attachment_that_a_kill_left_stays_where_it_is(site: Site, session: UserSession) -> None:
    name = session.attach("whole")
    (site.directory(session) / "resources" / "tmp_half").write_text("ha")

    child = session.fork()

    assert os.listdir(site.directory(child) / "resources") == [name.removeprefix("sha256:")]


@pytest.mark.parametrize(("durability", "written_through"), [("full", True), ("fast", False)])
def test_attachments_of_a_fork_are_on_the_disk_where_that_was_asked_for(
    site: Site, durability: str, written_through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.another(durability=durability).start_session("look at this")
    name = session.attach(b"a picture").removeprefix("sha256:")
    synced: list[str] = []
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, sync, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    resources = site.directory(session.fork()) / "resources"

    assert ({str(resources), str(resources / name)} <= set(synced)) == written_through
