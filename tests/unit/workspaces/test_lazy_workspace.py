"""A ``lazy`` workspace answers as one with every file on disk would, also where a file and a directory contend for a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.engine import SUBMODULE, SYMLINK, Content, Site

from pytest_gittrix.engine.user_session import ListEntry, UserSession
from pytest_gittrix.errors import PathIsDirectory, PathNotFound, WriteRejected

FILES: dict[str, Content] = {
    "a": "1\n",
    "d/x": "1\n",
    "d/deep/y": "2\n",
    "dd": "beside d\n",
    "ln": (SYMLINK, "a"),
    "sub": (SUBMODULE, "1" * 40),
}


@pytest.fixture(params=["lazy", "clone"])
def session(request: pytest.FixtureRequest, site: Site) -> UserSession:
    return site.start(workspace=request.param)


def listed(session: UserSession, path: str = ".") -> dict[str, str]:
    """Types of everything below a directory, but for the submodule, which is a directory on a disk."""
    return {entry.path: entry.type for entry in session.list(path) if entry.path != "sub"}


def require_agreement(session: UserSession) -> None:
    """Files that are listed can be read, exist, and are exactly the baseline as the touched paths change it."""
    snapshot = session.review().snapshot
    there = {path for path, entry in {**snapshot.seed.entries, **snapshot.changes}.items() if entry is not None and path != "sub"}
    files = {path for path, type_ in listed(session).items() if type_ != "dir"}
    assert files == there
    for path in {*FILES, *there}:
        assert session.exists(path) == (path in there), path
        if path in there:
            session.read(path, follow=False)
        elif path not in listed(session) and path != "sub":
            with pytest.raises((PathIsDirectory, PathNotFound)):
                session.read(path, follow=False)


@pytest.mark.parametrize("path", ["a/b", "a/b/c", "d/x/below", "ln/b", "sub/b", "d", "d/deep", "sub"])
def test_a_write_where_the_baseline_is_in_the_way_is_refused_and_changes_nothing(session: UserSession, path: str) -> None:
    with pytest.raises(WriteRejected):
        session.write(path, "z\n")
    assert session.touched_files() == []
    assert listed(session) == {"a": "file", "d": "dir", "d/deep": "dir", "d/deep/y": "file", "d/x": "file", "dd": "file", "ln": "symlink"}
    require_agreement(session)


def test_a_file_that_was_deleted_makes_room_for_a_directory(site: Site, session: UserSession) -> None:
    session.delete("a")
    session.write("a/b", "z\n")
    assert session.touched_files() == ["a", "a/b"]
    require_agreement(session)
    session.promote()
    assert site.durable.read("a/b") == b"z\n"


def test_a_directory_makes_room_for_a_file_once_all_below_it_is_deleted(site: Site, session: UserSession) -> None:
    session.delete("d/x")
    with pytest.raises(WriteRejected, match="directory"):
        session.write("d", "z\n")
    session.delete("d/deep/y")
    session.write("d", "z\n")
    assert session.touched_files() == ["d", "d/deep/y", "d/x"]
    require_agreement(session)
    with pytest.raises(WriteRejected):
        session.write("d/x", "again\n")
    session.promote()
    assert site.durable.read("d") == b"z\n"


@pytest.mark.parametrize("path", ["d", "d/deep", "sub"])
def test_a_directory_of_the_baseline_is_not_deleted_as_a_file(session: UserSession, path: str) -> None:
    with pytest.raises(WriteRejected, match="directory"):
        session.delete(path)
    assert session.touched_files() == []


def test_a_directory_whose_files_are_all_deleted_is_gone(session: UserSession) -> None:
    for path in ("d/x", "d/deep/y", "d", "d/deep"):
        session.delete(path)
    assert session.touched_files() == ["d/deep/y", "d/x"]
    with pytest.raises(PathNotFound):
        session.list("d")
    require_agreement(session)


def test_a_file_of_the_baseline_is_no_directory_to_list(session: UserSession) -> None:
    for path in ("a", "ln", "d/x"):
        with pytest.raises(WriteRejected, match="not a directory"):
            session.list(path)
    assert listed(session, "d") == {"d/deep": "dir", "d/deep/y": "file", "d/x": "file"}
    assert not session.exists("sub")


def test_a_write_beside_a_deletion_shows_both(session: UserSession) -> None:
    session.delete("d/x")
    session.write("d/new", "n\n")
    session.write("d/deep/y", "changed\n")
    assert listed(session, "d") == {"d/deep": "dir", "d/deep/y": "file", "d/new": "file"}
    require_agreement(session)


class TestWhatSomebodyPutOnItsDiskDirectly:
    """The session's own calls never make such a clash; a program that finds the directory can."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        return site.start(workspace="lazy")

    @pytest.fixture
    def disk(self, site: Site, session: UserSession) -> Path:
        return site.directory(session) / "workspace"

    def test_a_file_over_a_directory_hides_all_below_it(self, site: Site, session: UserSession, disk: Path) -> None:
        (disk / "d").write_text("file\n")
        assert session.touched_files() == ["d", "d/deep/y", "d/x"]
        require_agreement(session)
        session.promote()
        assert site.durable.read("d") == b"file\n"

    def test_a_directory_over_a_file_hides_it(self, session: UserSession, disk: Path) -> None:
        (disk / "a").mkdir()
        assert session.touched_files() == ["a"]
        (disk / "a" / "b").write_text("b\n")
        assert session.touched_files() == ["a", "a/b"]
        require_agreement(session)

    def test_a_pipe_over_a_file_hides_it_and_is_none(self, session: UserSession, disk: Path) -> None:
        os.mkfifo(disk / "a")
        assert session.touched_files() == ["a"]
        assert ListEntry("a", "file") not in session.list()
        assert not session.exists("a")
