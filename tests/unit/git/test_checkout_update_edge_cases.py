"""A human's checkout in unusual states: what is saved at the last moment, staged names that clash, submodules, busy locks, modes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SUBMODULE, Content, DurableGit, Site, at_point, kill_at, open_site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import UnsupportedRepository, WorktreeDirty

LIBRARY = "1" * 40


def stage(durable: DurableGit, path: str) -> None:
    """Stage a new file and take it off the disk again: only the index knows it."""
    at = durable.path / path
    at.parent.mkdir(exist_ok=True)
    at.write_text("mine\n")
    durable.git("add", path)
    at.unlink()
    if at.parent != durable.path:
        at.parent.rmdir()


def refused(site: Site, session: UserSession, match: str) -> None:
    """A promotion is refused, and durable is as it was."""
    before = site.durable.fingerprint()
    with pytest.raises(WorktreeDirty, match=match):
        session.promote()
    assert site.durable.fingerprint() == before
    assert site.state(session.id).state == "active"


class TestWhatAnEditorSavesWhileTheCommitLands:
    """An editor takes no lock. The commit is in by then, so the file stays as the human saved it and the result says so."""

    @pytest.mark.parametrize(
        ("saved", "content", "reason"),
        [
            ("app.py", "saved just now\n", "changes that are not committed"),
            ("README.md", "saved just now\n", "changes that are not committed"),
            ("new.txt", "saved just now\n", "untracked"),
        ],
        ids=["over an edit", "over a deletion", "over a new file"],
    )
    def test_stays(self, site: Site, saved: str, content: str, reason: str) -> None:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        session.write("new.txt", "agent\n")
        session.delete("README.md")

        with at_point("land:moved", lambda: (site.durable.path / saved).write_text(content)):
            result = session.promote()

        assert (site.durable.path / saved).read_text() == content
        assert site.durable.changed(result.sha).keys() == {"app.py", "new.txt", "README.md"}
        (warning,) = result.warnings
        assert repr(saved) in warning
        assert reason in warning
        assert "worktree.stale" in site.types(session.id)

    def test_costs_only_that_file(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        session.write("src/util.py", "agent\n")

        with at_point("land:moved", lambda: (site.durable.path / "app.py").write_text("mine\n")):
            session.promote()

        # Its entry is the promoted one, so git shows what was saved, and the next plain commit takes nothing back.
        assert site.durable.status() == [" M app.py"]
        assert (site.durable.path / "src/util.py").read_text() == "agent\n"

    def test_right_after_its_file_was_written_is_seen_by_git(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "print('v2')\n")

        with at_point("worktree:files-written", lambda: (site.durable.path / "app.py").write_text("print('v3')\n")):
            session.promote()

        assert site.durable.status() == [" M app.py"]

    def test_holds_back_what_would_take_its_place(self, site: Site) -> None:
        session = site.start()
        session.delete("app.py")
        session.write("app.py/inner.py", "agent\n")

        with at_point("land:moved", lambda: (site.durable.path / "app.py").write_text("mine\n")):
            (warning,) = session.promote().warnings

        assert "'app.py/inner.py'" in warning
        assert (site.durable.path / "app.py").read_text() == "mine\n"
        site.durable.git("write-tree")  # the index is one that git accepts


def test_a_deleted_file_that_the_human_made_again_before_the_recovery_is_left_to_them(site: Site) -> None:
    session = site.start()
    session.delete("README.md")
    kill_at("land:forwarded", session.promote)
    (site.durable.path / "README.md").write_text("mine\n")

    report = site.another().recover()

    assert report.rolled_forward == [session.id]
    assert report.problems == []
    assert "worktree.stale" in site.types(session.id)
    assert site.durable.status() == ["?? README.md"]


class TestAStagedNameThatIsNotOnTheDisk:
    """An index with a file and a directory of one name can never be committed, so it must not come to that."""

    def test_refuses_a_file_below_it(self, site: Site) -> None:
        stage(site.durable, "notes")
        session = site.start()
        session.write("notes/deep.txt", "agent\n")

        refused(site, session, "'notes/deep.txt' collides with 'notes', which is staged")

    def test_refuses_a_file_in_place_of_its_directory(self, site: Site) -> None:
        stage(site.durable, "notes/mine.txt")
        session = site.start()
        session.write("notes", "agent\n")

        refused(site, session, "'notes' collides with 'notes/mine.txt', which is staged")

    def test_is_no_obstacle_elsewhere(self, site: Site) -> None:
        stage(site.durable, "notes")
        session = site.start()
        session.write("notes.txt", "agent\n")

        session.promote()

        assert site.durable.status() == ["AD notes"]


class TestASubmoduleThatIsDeleted:
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        with open_site(tmp_path, {"app.py": "x\n", "vendor/lib": (SUBMODULE, LIBRARY)}) as opened:
            yield opened

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        """A session that deleted it."""
        session = site.start()
        (session.workspace_path / "vendor/lib").rmdir()
        assert session.touched_files() == ["vendor/lib"]
        return session

    def test_refuses_while_the_human_has_files_in_it(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "vendor/lib/wip.c").write_text("mine\n")

        refused(site, session, "'vendor/lib' is a submodule with files in it")

    def test_takes_its_empty_directory_along(self, site: Site, session: UserSession) -> None:
        session.promote()

        assert site.durable.status() == []
        assert not (site.durable.path / "vendor").exists()

    @pytest.mark.parametrize("successor", ["vendor/lib", "vendor"])
    def test_makes_room_for_what_takes_its_place(self, site: Site, session: UserSession, successor: str) -> None:
        shell(session, f"rm -rf vendor; mkdir -p $(dirname {successor}); echo agent >{successor}")

        result = session.promote()

        assert result.warnings == ()
        assert site.durable.status() == []
        assert (site.durable.path / successor).read_text() == "agent\n"


class TestABusyIndex:
    """Every ``git status`` of an editor holds ``index.lock`` for a moment."""

    def test_is_waited_for(self, site: Site) -> None:
        lock = site.durable.git_dir / "index.lock"
        lock.touch()
        session = site.start()
        session.write("app.py", "print('v2')\n")

        with at_point("index:busy", lock.unlink):
            session.promote()

        assert site.durable.status() == []

    def test_that_stays_busy_is_named(self, site: Site) -> None:
        (site.durable.git_dir / "index.lock").touch()
        session = site.start()
        session.write("app.py", "print('v2')\n")

        refused(site, session, r"another program holds .*index\.lock")


class TestACheckoutWhoseModesSayNothing:
    """``core.fileMode=false``: on such a file system every file may look executable."""

    def test_is_clean_whatever_they_are(self, site: Site) -> None:
        session = site.start()  # the engine has the repository open already
        site.durable.git("config", "core.fileMode", "false")
        (site.durable.path / "app.py").chmod(0o755)
        session.write("app.py", "print('v2')\n")

        session.promote()

        assert site.durable.status() == []
        assert site.durable.tree()["app.py"][0] == "100644"

    def test_is_dirty_all_the_same_when_bytes_differ(self, site: Site) -> None:
        site.durable.git("config", "core.fileMode", "false")
        (site.durable.path / "app.py").write_text("mine\n")
        session = site.start()
        session.write("app.py", "print('v2')\n")

        refused(site, session, "'app.py' has changes that are not committed")


def test_an_index_of_version_4_is_brought_forward_and_stays_one(tmp_path: Path) -> None:
    with open_site(tmp_path) as site:
        site.durable.git("update-index", "--index-version", "4")
        session = site.start()
        session.write("src/deep/new.txt", "n\n")
        session.delete("app.py")
        session.promote()

        assert site.durable.status() == []
        assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
        assert (site.durable.git_dir / "index").read_bytes()[7] == 4


@pytest.mark.parametrize(
    "make",
    [
        ("update-index", "--split-index"),
        ("sparse-checkout", "set", "--cone", "--sparse-index", "src/deep"),
    ],
    ids=["split", "sparse"],
)
def test_an_index_the_engine_cannot_write_is_refused_by_name_with_its_own_remedy(tmp_path: Path, make: tuple[str, ...]) -> None:
    files: dict[str, Content] = {"app.py": "x\n", "src/deep/er.txt": "d\n", "docs/a.md": "a\n"}
    with open_site(tmp_path, files) as site:
        site.durable.git(*make)
        session = site.start()
        session.write("app.py", "y\n")

        with pytest.raises(UnsupportedRepository, match="index uses") as caught:
            session.promote()

        assert "--no-split-index" in caught.value.fix
        assert site.state(session.id).intent is None
        session.promote(strategy="branch")
        assert (site.durable.path / "app.py").read_text() == "x\n"


def test_nothing_is_left_in_the_git_directory_of_a_refusing_checkout(site: Site) -> None:
    (site.durable.path / "app.py").write_text("mine\n")
    session = site.start()
    session.write("app.py", "print('v2')\n")

    refused(site, session, "app.py")

    assert site.durable.leftovers() == []
    assert os.path.exists(site.durable.git_dir / "index")
