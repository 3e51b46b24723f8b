"""Ignored files of a workspace: what a promotion takes, what it leaves out, and where that is once the workspace is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import FILES, Site, archived, open_site, shell

from pytest_gittrix.engine.eviction import archive
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import PromoteFailed
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.workspaces.finder import ignored

KINDS = ("clone", "copy", "worktree")
HIDE = "printf 'node_modules/\\nhidden/\\n' >> .gitignore; mkdir -p node_modules/p new hidden; echo 1 > node_modules/p/1.js"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, FILES | {".gitignore": "lib/\n.env\n"}) as site:
        yield site


@pytest.mark.parametrize("kind", KINDS)
def test_work_in_a_directory_whose_rule_the_agent_took_away_is_promoted(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    shell(session, ": > .gitignore; mkdir lib; echo precious > lib/core.py")

    assert session.touched_files() == [".gitignore", "lib/core.py"]
    assert "+precious" in session.diff()
    assert [*site.durable.changed(session.promote().sha)] == [".gitignore", "lib/core.py"]


def test_a_promotion_of_everything_leaves_out_what_only_the_agents_rules_ignore_and_says_so(site: Site) -> None:
    session = site.start()
    shell(session, f"{HIDE}; echo x > hidden/a; echo y > new/b")

    assert session.touched_files() == [".gitignore", "hidden/a", "new/b", "node_modules/p/1.js"]
    assert session.diff().startswith("Not in this patch: 'hidden/' (1 file, 2 bytes): only the workspace's own ignore rules ignore it.\n")
    result = session.promote()

    assert [*site.durable.changed(result.sha)] == [".gitignore", "new/b"]
    (warning,) = result.warnings
    why, _, named = warning.partition(": ")
    assert why == "not promoted, since only the workspace's own ignore rules ignore it"
    assert named == "'hidden/' (1 file, 2 bytes), 'node_modules/' (1 file, 2 bytes)"


def test_a_selection_by_name_takes_it(site: Site) -> None:
    by_name, by_review = site.start(), site.start()
    for session, name in ((by_name, "a"), (by_review, "b")):
        shell(session, f"echo hidden/ > .gitignore; mkdir hidden; echo x > hidden/{name}")

    assert "+x" in by_name.diff(["hidden/a"])
    assert [*site.durable.changed(by_name.promote(files=["hidden/a"]).sha)] == ["hidden/a"]
    review = by_review.review(["hidden/b"])
    assert [*review.changes] == ["hidden/b"]
    assert [*site.durable.changed(by_review.promote(review).sha)] == ["hidden/b"]


def test_a_promotion_of_nothing_but_withheld_files_says_where_the_work_is(site: Site) -> None:
    session = site.start()
    shell(session, "mkdir -p .git/info; echo '*' > .git/info/exclude; echo x > new.py")

    with pytest.raises(PromoteFailed) as failure:
        session.promote()
    assert "'new.py' (2 bytes): only the workspace's own ignore rules ignore it" in str(failure.value)
    assert "files=[...]" in failure.value.fix
    assert "iscard" not in str(failure.value)


ENDS: dict[str, Callable[[Site, UserSession], object]] = {
    "discarded": lambda _site, session: session.discard(),
    "evicted": lambda site, session: site.engine.evict(session.id),
    "expired": lambda site, _session: (site.clock.advance(hours=5), site.engine.sweep()),
    "promoted whole": lambda _site, session: session.promote(),
    "promoted in part": lambda _site, session: session.promote(files=["app.py"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_ignored_and_withheld_files_are_archived_with_the_workspace(site: Site, end: str, kind: str) -> None:
    session = site.start(workspace=kind)
    shell(
        session,
        "echo hidden/ >> .gitignore; mkdir lib hidden; echo by both > lib/a; echo key > .env; echo by one > hidden/b; echo 2 > app.py",
    )
    ENDS[end](site, session)

    found = archived(site, session)
    assert found["lib/a"] == b"by both\n"
    assert found[".env"] == b"key\n"
    assert found["hidden/b"] == b"by one\n"


def test_what_can_be_made_again_is_not_archived(site: Site) -> None:
    session = site.start()
    shell(
        session, "mkdir -p lib/__pycache__ node_modules/p lib/cache lib/ve; echo node_modules/ >> .gitignore; echo x > node_modules/p/1.js"
    )
    shell(session, "echo x > lib/__pycache__/a.cpython-311.pyc; echo x > lib/cache/x; echo home > lib/ve/pyvenv.cfg; echo x > lib/ve/y")
    shell(session, "echo 'Signature: 8a477f597d28d172789f06886806bc55' > lib/cache/CACHEDIR.TAG; echo keep > lib/__pycache__/notes.txt")
    session.promote()

    assert archived(site, session) == {"lib/__pycache__/notes.txt": b"keep\n"}


def test_what_is_too_large_for_an_archive_is_named_with_its_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_MOST_BYTES", 10)
    session = site.start()
    shell(session, "mkdir lib; printf 12345678901 > lib/large; printf 123 > .env; echo 2 > app.py")
    result = session.promote()

    assert archived(site, session) == {".env": b"123"}
    assert result.warnings == ("neither promoted nor archived, since it is ignored and too large: 'lib/' (1 file, 11 bytes)",)
    (removed,) = [event for event in site.events(session.id) if event.type == "workspace.removed"]
    assert removed.data["left_out"] == ["'lib/' (1 file, 11 bytes)"]


def test_a_repository_among_ignored_files_keeps_the_workspace_whole(site: Site) -> None:
    session = site.start()
    shell(session, "mkdir lib; cd lib; git init -q; echo x > a; git add a; git -c user.name=a -c user.email=a@b commit -qm x")
    session.discard()

    assert (site.directory(session) / "archive.workspace" / "lib" / ".git" / "HEAD").exists()


@pytest.mark.parametrize("environment", ["lib", "lib/ve", "lib/.venv"])
def test_a_repository_that_pip_put_into_a_virtual_environment_keeps_the_workspace_whole(site: Site, environment: str) -> None:
    session, other = site.start(), site.start()
    for one in (session, other):
        shell(one, f"mkdir -p {environment}/src/plain; echo home > {environment}/pyvenv.cfg; echo x > {environment}/src/plain/a")
    shell(
        session, f"cd {environment}; git init -q src/edited; cd src/edited; git -c user.name=a -c user.email=a@b commit -qm x --allow-empty"
    )
    session.discard()
    other.discard()

    assert (site.directory(session) / "archive.workspace" / environment / "src/edited/.git/HEAD").exists()
    assert not (site.directory(other) / "archive.workspace").exists()


def test_nothing_is_archived_of_a_session_that_outlived_its_promotion_and_was_promoted_whole(site: Site) -> None:
    session = site.start(eviction=EvictionPolicy(ttl_idle="1h", until_promote=False))
    shell(session, "echo 2 > app.py; echo new > new.py; git add .; git commit -qm work")
    session.promote()
    site.clock.advance(hours=5)
    site.engine.sweep()

    assert not (site.directory(session) / "workspace").exists()
    assert session.archives == ()


def test_of_a_session_that_outlived_its_promotion_the_rest_is_archived(site: Site) -> None:
    session = site.start(eviction=EvictionPolicy(ttl_idle="1h", until_promote=False))
    shell(session, "echo 2 > app.py; echo new > new.py")
    session.promote(files=["app.py"])
    shell(session, "echo later > later.py") if session.workspace_path else None
    site.clock.advance(hours=5)
    site.engine.sweep()

    assert archived(site, session) == {"later.py": b"later\n", "new.py": b"new\n"}


def test_a_promotion_says_what_is_in_no_file(site: Site) -> None:
    ended, kept = site.start(), site.start()
    for session in (ended, kept):
        shell(session, "echo 2 > app.py; git stash -q; echo 3 > README.md; git checkout -qb fix; git commit -qam fix; git checkout -q main")
        shell(session, f"echo {session.id} > own-{session.id}")

    (ending,), going_on = ended.promote().warnings[:1], kept.promote(keep=True).warnings
    assert ending.startswith("not promoted, but archived: branch 'fix' is at ")
    assert [line.partition(" is ")[0] for line in going_on] == [
        "not promoted, and still in the workspace: branch 'fix'",
        "not promoted, and still in the workspace: stash 0",
    ]


def test_a_promotion_of_nothing_says_what_is_in_no_file(site: Site) -> None:
    session = site.start()
    shell(session, "echo 2 > app.py; git stash -q")

    with pytest.raises(PromoteFailed, match="There is work elsewhere: stash 0 is") as failure:
        session.promote()
    assert "git stash pop" in failure.value.fix


def test_the_patch_of_an_archive_names_what_only_its_commit_has(site: Site) -> None:
    session = site.start()
    shell(session, "echo key > .env")
    session.discard()

    patch = (site.directory(session) / archive._PATCH).read_text()
    assert patch == "Not in this patch: '.env', which is ignored. The commit has it.\n"
