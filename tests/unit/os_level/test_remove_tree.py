"""Removal of what an agent may have made: every mode, depth, link and mount that it can make."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.engine import as_ordinary_user, in_child

from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.remove_tree import memory_directory, permit_owner, remove_tree, scratch_directory
from pytest_gittrix.testing.faults.small_disks import run_on_small_disk, supported

MODES = [0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600, 0o700]

needs_mounts = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def chain(root: Path, depth: int) -> None:
    """A directory in a directory in a directory."""
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def bind(source: Path, target: Path) -> None:
    linux.mount(str(source), str(target), None, linux.MS_BIND)


def contents(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def as_of(found: list[OSError], root: Path = Path()) -> list[tuple[str, int | None]]:
    return sorted((os.path.relpath(one.filename, root), one.errno) for one in found)


def test_a_tree_a_file_a_link_and_nothing_are_gone(tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside", "kept")
    tree(tmp_path / "tree", "a", "b/c/d", "b/e")
    (tmp_path / "tree" / "link").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "tree" / "fifo")

    for name in ("tree", "tree/", "link", "file", "never", "never/below", "outside/kept/below"):
        assert remove_tree(tmp_path / name if not name.endswith("/") else f"{tmp_path}/{name}") == []

    assert contents(tmp_path) == {"outside/kept": "kept"}
    assert os.listdir(tmp_path) == ["outside"]


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "here/a/b", "there/c")
    monkeypatch.chdir(tmp_path)

    assert remove_tree("here") == remove_tree("there/c") == []

    assert contents(tmp_path) == {}


def test_directories_of_any_mode_in_directories_of_any_mode_are_removed(tmp_path: Path) -> None:
    def remove() -> None:
        root = tree(Path("tree"), *(f"{outer:o}/{inner:o}/file" for outer, inner in itertools.product(MODES, MODES)))
        for outer in MODES:
            for inner in MODES:
                (root / f"{outer:o}" / f"{inner:o}").chmod(inner)
            (root / f"{outer:o}").chmod(outer)
        root.chmod(0)
        assert remove_tree(root) == []
        assert os.listdir() == []

    assert as_ordinary_user(remove, tmp_path) == 0


def test_no_mode_is_changed_through_a_link(tmp_path: Path) -> None:
    def remove() -> None:
        outside = Path("outside")
        outside.mkdir()
        (tree(Path("tree"), "file") / "link").symlink_to(outside)
        (Path("to-it")).symlink_to(outside)
        outside.chmod(0o500)
        (Path("tree")).chmod(0o500)
        assert remove_tree(Path("tree")) == []
        with pytest.raises(NotADirectoryError):
            permit_owner(Path("to-it"))
        assert stat.S_IMODE(outside.stat().st_mode) == 0o500

    assert as_ordinary_user(remove, tmp_path) == 0


def test_what_cannot_be_removed_is_told_once_and_the_rest_is_removed(tmp_path: Path) -> None:
    def remove() -> None:
        root = tree(Path("locked", "tree"), "a/b", "c")
        (Path("locked")).chmod(0o500)
        assert as_of(remove_tree(root)) == [("locked/tree", errno.EACCES)]
        assert contents(root) == {}
        (Path("locked")).chmod(0)
        assert as_of(remove_tree(root)) == [("locked/tree", errno.EACCES)]
        (Path("locked")).chmod(0o700)
        assert remove_tree(root) == []

    assert as_ordinary_user(remove, tmp_path) == 0


@pytest.mark.parametrize("depth", [1, 5000])
def test_no_depth_takes_more_descriptors(tmp_path: Path, depth: int) -> None:
    chain(tmp_path / "tree", depth)

    def remove() -> None:
        import resource

        most = len(os.listdir("/proc/self/fd")) + 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        assert remove_tree(tmp_path / "tree") == []

    assert in_child(remove) == 0
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_moved_away_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "tree/inner/file", "tree/other/file", "outside/kept/file")
    inside = (tmp_path / "tree" / "inner").stat().st_ino
    unlink = os.unlink

    def move_first(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        if os.fstat(dir_fd).st_ino == inside:
            os.rename(tmp_path / "tree" / "inner", tmp_path / "outside" / "inner")

    monkeypatch.setattr(os, "unlink", move_first)

    found = remove_tree(tmp_path / "tree")

    assert ("tree/inner", errno.ESTALE) in as_of(found, tmp_path)
    assert (tmp_path / "outside" / "kept" / "file").exists()
    monkeypatch.undo()
    assert remove_tree(tmp_path / "tree") == []


def test_two_at_once_remove_one_tree(tmp_path: Path) -> None:
    for turn in range(20):
        root = tree(tmp_path / str(turn), *(f"{outer}/{inner}/file" for outer in range(5) for inner in range(5)))
        both = [threading.Thread(target=remove_tree, args=(root,)) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert remove_tree(root) == []
        assert not root.exists()


def without_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, "openat2")

    monkeypatch.setattr(linux, "open_in_mount", refuse)


@needs_mounts
@pytest.mark.parametrize("prepare", [lambda _: None, without_openat2], ids=["openat2", "an older kernel"])
def test_what_is_mounted_in_a_tree_stays_as_it_is(prepare: Callable[[pytest.MonkeyPatch], object], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)

    def remove(disk: Path) -> None:
        # All of it is one file system, so that no device number tells them apart.
        data = tree(disk / "data", "work", "below/deep")
        data.chmod(0o500)
        root = tree(disk / "tree", "a/b", "c/mounted/d", "e/file", "e/other", "f/again/g")
        bind(data, root / "c" / "mounted")
        bind(data / "work", root / "e" / "file")
        linux.mount("none", str(root / "f" / "again"), "tmpfs", 0)
        (root / "f" / "again" / "in-memory").write_text("m")
        os.mkdir(root / "f" / "again" / "locked", 0)

        for _ in range(2):
            assert as_of(remove_tree(root), disk) == [
                ("tree/c/mounted", errno.EXDEV),
                ("tree/e/file", errno.EBUSY),
                ("tree/f/again", errno.EXDEV),
            ]
            assert contents(data) == {"work": "work", "below/deep": "below/deep"}
            assert stat.S_IMODE(data.stat().st_mode) == 0o500
            assert sorted(os.listdir(root / "f" / "again")) == ["in-memory", "locked"]
            assert sorted(os.listdir(root)) == ["c", "e", "f"]
            assert os.listdir(root / "e") == ["file"]

        for place in ("c/mounted", "e/file", "f/again"):
            linux.unmount(str(root / place))
        assert remove_tree(root) == []
        assert contents(disk) == {"data/work": "work", "data/below/deep": "below/deep"}

    run_on_small_disk(remove)


@needs_mounts
def test_a_mount_is_not_emptied_as_the_tree_itself(tmp_path: Path) -> None:
    def remove(disk: Path) -> None:
        data = tree(disk / "data", "work")
        data.chmod(0o500)
        root = disk / "tree"
        root.mkdir()
        bind(data, root)
        assert as_of(remove_tree(root), disk) == [("tree", errno.EXDEV)]
        with pytest.raises(OSError, match="mounted"):
            permit_owner(root)
        assert (contents(data), stat.S_IMODE(data.stat().st_mode)) == ({"work": "work"}, 0o500)
        assert remove_tree(root / "work") == []  # the way to what is removed may lead into a mount
        assert contents(data) == {}

    run_on_small_disk(remove)


def test_a_scratch_directory_is_removed_whatever_was_made_in_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_directory("scratch-", tmp_path) as made:
        assert [str(path) for path in tmp_path.glob("scratch-*")] == [made]
        tree(Path(made), "a/b/c")
        for name in ("a/b", "a"):
            Path(made, name).chmod(0)
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_directory_in_memory_is_taken_where_it_is_roomy_and_lets_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr("pytest_gittrix.os_level.remove_tree._MEMORY", str(tmp_path))
    free = 2 << 30

    def status(_path: str) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_flag=flags)

    monkeypatch.setattr(os, "statvfs", status)
    flags = 0
    assert memory_directory() == str(tmp_path)
    flags = os.ST_NOEXEC
    assert memory_directory() is None
    flags, free = 0, 1 << 20
    assert memory_directory() is None


def test_no_directory_in_memory_is_taken_where_a_person_named_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gittrix.os_level.remove_tree._MEMORY", str(tmp_path))
    monkeypatch.setattr("pytest_gittrix.os_level.remove_tree._LEAST_MEMORY", 0)

    monkeypatch.setenv("TMPDIR", str(tmp_path / "mine"))
    assert memory_directory() is None
    monkeypatch.delenv("TMPDIR")
    assert memory_directory() == str(tmp_path)
    monkeypatch.setattr("pytest_gittrix.os_level.remove_tree._MEMORY", str(tmp_path / "missing"))
    assert memory_directory() is None
