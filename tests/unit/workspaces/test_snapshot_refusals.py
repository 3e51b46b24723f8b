"""What a snapshot refuses: hostile names, files over a limit, a workspace that is gone or does not stand still."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import pytest
from support.git import GitRepo, found, link, make_workspace, put

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, WriteRejected
from pytest_gittrix.git.tree import FILE
from pytest_gittrix.workspaces.snapshot import take_snapshot
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A small repository; no test changes it."""
    return GitRepo.make(tmp_path_factory.mktemp("refusals") / "durable", {"app.py": "value = 1\n", "src/util.py": "x = 1\n"})


@pytest.mark.parametrize("name", [".GIT/config", "git~1", ".git /x", ".g\u200cit/config", "sub/.Git"])
def test_names_that_could_be_a_git_directory_are_refused_with_the_reason(workspace: Workspace, name: str) -> None:
    put(Path(workspace.path), {name: "hostile\n"})

    taken = workspace.snapshot()

    assert taken.changes == {}
    assert [reason for path, reason in taken.refused.items() if name.startswith(path)] == ["its name could be taken for a git directory"]


def test_names_of_the_baseline_are_refused_only_where_they_changed(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"git~1": "1\n", "git~2/x": "2\n"}, bare=True)
    workspace = make_workspace(repo, tmp_path)
    suspicious = workspace.created._replace(boot=0)

    assert [
        take_snapshot(workspace.path, workspace.seed, origin, workspace.git()).refused for origin in (workspace.created, suspicious)
    ] == [{}, {}]
    assert take_snapshot(workspace.path, workspace.seed, suspicious, workspace.git()).changes == {}

    put(Path(workspace.path), {"git~1": "edited\n", "git~2/new": "n\n"})
    assert list(workspace.snapshot().refused) == ["git~1", "git~2/new"]
    assert workspace.snapshot().changes == {}


@pytest.mark.parametrize(
    "name", [".gitmodules", ".gitmodules ", ".GitModules.", "GITMOD~1", "gi7eba~1", ".gitmodules::$DATA", ".git\u200cmodules"]
)
def test_a_link_that_can_be_read_as_gitmodules_is_refused(workspace: Workspace, name: str) -> None:
    put(Path(workspace.path), {name: link("app.py")})

    assert list(workspace.snapshot().refused) == [name]


def test_a_file_over_the_limit_is_refused_and_named(workspace: Workspace) -> None:
    put(Path(workspace.path), {"large": b"x" * 101, "fits": b"x" * 100})

    taken = workspace.snapshot(limits=Limits(max_file=100))

    assert taken.refused == {"large": "it has 101 bytes; the limit is 100"}
    assert list(taken.changes) == ["fits"]


@pytest.mark.parametrize("limits", [Limits(max_total=150), Limits(max_files=1)])
def test_too_much_in_all_is_an_error_that_says_how_to_raise_the_limit(workspace: Workspace, limits: Limits) -> None:
    put(Path(workspace.path), {"one": b"x" * 100, "two": b"y" * 100})

    with pytest.raises(WriteRejected, match="limits=Limits"):
        workspace.snapshot(limits=limits)


def test_a_directory_deeper_than_any_repository_is_refused_and_keeps_no_other_file_from_being_seen(workspace: Workspace) -> None:
    put(Path(workspace.path), {"app.py": "value = 2\n"})
    descriptor = os.open(workspace.path, os.O_RDONLY)
    for _ in range(402):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)

    taken = workspace.snapshot()

    deep = "/".join("d" * 401) + "/"
    assert list(taken.changes) == ["app.py"]
    assert taken.refused == {deep: "it is more than 400 directories deep, where nothing is looked at"}
    assert taken.touched == ["app.py", deep]
    assert taken.left_out == (f"{deep!r}: it is more than 400 directories deep, where nothing is looked at",)


def test_what_the_baseline_has_so_deep_is_not_taken_for_deleted(tmp_path: Path) -> None:
    deep = "/".join("d" * 402)
    repo = GitRepo.make(tmp_path / "durable", {f"{deep}/file": "1\n", "a": "1\n"}, bare=True)
    workspace = make_workspace(repo, tmp_path)

    assert workspace.snapshot().changes == {}


def replaced_by_a_link(root: Path) -> None:
    root.rename(root.parent / "moved")
    root.symlink_to(root.parent / "moved")


def replaced_by_a_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("")


@pytest.mark.parametrize("vanish", [shutil.rmtree, replaced_by_a_link, replaced_by_a_file])
def test_a_vanished_workspace_is_an_error_and_no_deletion(workspace: Workspace, vanish: Callable[[Path], None]) -> None:
    vanish(Path(workspace.path))

    with pytest.raises(AdapterUnavailable, match="is gone"):
        workspace.snapshot()


class Restless:
    """Limits that take a file away each time they are asked, so that the walk does not find what it has listed."""

    max_total, max_files = 1000, 1000

    def __init__(self, file: Path, times: int) -> None:
        self.file, self.times = file, times

    @property
    def max_file(self) -> int:
        if self.times and self.file.exists():
            self.times -= 1
            self.file.unlink()
        return 1000


@pytest.mark.parametrize(("moves", "still"), [(1, True), (4, True), (5, False)])
def test_a_workspace_that_moves_is_read_again_but_not_for_ever(workspace: Workspace, moves: int, still: bool) -> None:
    moving = Path(workspace.path, "moving")
    moving.write_text("m\n")
    limits = Restless(moving, moves)

    def put_back(name: str) -> None:
        assert name == "snapshot:moved"
        moving.write_text("m\n")

    with points.listening(put_back):
        if still:
            assert found(workspace.snapshot(limits=limits)) == {"moving": (FILE, b"m\n")}
        else:
            with pytest.raises(AdapterUnavailable, match="did not stand still"):
                workspace.snapshot(limits=limits)


def test_what_the_system_will_not_open_is_named_and_taken_for_neither_unchanged_nor_deleted(workspace: Workspace) -> None:
    deep = "/".join(["deep"] * 60 + ["new.txt"])
    put(Path(workspace.path), {deep: "n\n"})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in count() if number not in taken)
    few = next(islice(free, 20, None))  # a limit is on numbers, and those in use need not be the lowest
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with pytest.raises(AdapterUnavailable, match=r"cannot be read: Too many open files"):
            workspace.snapshot()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert list(workspace.snapshot().changes) == [deep]
