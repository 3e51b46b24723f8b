"""Writing, linking, deleting and chmod in a guarded directory: whole or not at all, nothing left behind, nothing outside touched."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.descriptors import open_descriptors

from pytest_gittrix.errors import PathNotFound, WriteRejected
from pytest_gittrix.os_level.files import is_temporary, temporary_name
from pytest_gittrix.os_level.open_below import Root
from pytest_gittrix.os_level.safe_dir import Found, SafeDir


def paths(found: Iterator[Found]) -> list[str]:
    return [each.path for each in found]


def test_write_makes_parents_and_returns_the_status_of_the_file(guarded: SafeDir, root: Path) -> None:
    status = guarded.write("a/b/c.txt", b"hello")
    on_disk = (root / "a" / "b" / "c.txt").lstat()
    assert (status.st_ino, status.st_size, status.st_ctime_ns) == (on_disk.st_ino, 5, on_disk.st_ctime_ns)
    assert guarded.read("a/b/c.txt")[0] == b"hello"


def test_an_empty_and_a_large_file_are_written_whole(guarded: SafeDir) -> None:
    large = os.urandom(1 << 20) * 5
    for data in (b"", large):
        guarded.write("f", data)
        assert guarded.read("f")[0] == data


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [(0o644, None, 0o644), (0o755, None, 0o755), (0o755, False, 0o644), (0o600, True, 0o700)],
)
def test_a_replaced_file_keeps_its_mode_unless_told(guarded: SafeDir, root: Path, before: int, wanted: bool | None, after: int) -> None:
    (root / "f").write_bytes(b"old")
    (root / "f").chmod(before)
    status = guarded.write("f", b"new", executable=wanted)
    assert stat.S_IMODE(status.st_mode) == stat.S_IMODE((root / "f").stat().st_mode) == after


def test_a_new_file_follows_the_umask() -> None:
    script = """
        import os, stat, sys, tempfile
        from pytest_gittrix.os_level.safe_dir import SafeDir
        os.umask(0o027)
        with tempfile.TemporaryDirectory() as root, SafeDir.open(root) as guarded:
            for name, wanted in (("plain", None), ("no", False), ("yes", True)):
                print(oct(stat.S_IMODE(guarded.write("d/" + name, b"", executable=wanted).st_mode)))
            print(oct(stat.S_IMODE(guarded.lstat("d").st_mode)))
    """
    assert run_python(script).split() == ["0o640", "0o640", "0o750", "0o750"]


def test_a_replaced_link_lends_the_file_no_mode(guarded: SafeDir, root: Path) -> None:
    guarded.make_link("f", b"x")
    reference = guarded.write("g", b"")
    assert guarded.write("f", b"").st_mode == reference.st_mode


def test_writing_a_hard_linked_name_leaves_the_other_name_alone(guarded: SafeDir, root: Path, outside: Path) -> None:
    os.link(outside / "secret", root / "f")
    guarded.write("f", b"mine")
    assert (outside / "secret").read_bytes() == b"outside"


@pytest.mark.parametrize("occupied", ["dir", "dir/full"])
def test_a_directory_in_the_way_is_refused(guarded: SafeDir, root: Path, occupied: str) -> None:
    (root / "dir" / "full").mkdir(parents=True)
    (root / "dir" / "full" / "file").write_bytes(b"1")
    for use in (lambda: guarded.write(occupied, b"x"), lambda: guarded.make_link(occupied, b"x"), lambda: guarded.delete(occupied)):
        with pytest.raises(WriteRejected, match=f"'{occupied}' is a directory"):
            use()
    assert paths(guarded.scan()) == ["dir", "dir/full", "dir/full/file"]


def test_a_file_in_a_parents_place_is_refused_and_kept(guarded: SafeDir) -> None:
    guarded.write("a/file", b"1")
    with pytest.raises(WriteRejected, match="'a/file' is a file, not a directory"):
        guarded.write("a/file/b/c", b"2")
    assert guarded.read("a/file")[0] == b"1"


def test_a_name_too_long_for_the_system_is_refused_and_its_new_parents_are_gone(guarded: SafeDir, root: Path) -> None:
    (root / "kept").mkdir()
    with pytest.raises(WriteRejected, match="too long"):
        guarded.write("kept/new/" + "n" * 256, b"")
    with pytest.raises(WriteRejected, match="too long"):
        guarded.write("kept/" + "n" * 256 + "/f", b"")
    assert paths(guarded.scan()) == ["kept"]


def test_a_reader_never_sees_half_a_file(guarded: SafeDir) -> None:
    contents = [bytes([letter]) * (1 << 18) for letter in b"ab"]
    guarded.write("f", contents[0])
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            guarded.write("f", contents[turn % 2])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = [guarded.read("f")[0] for _ in range(100)]
    finally:
        stop.set()
        thread.join()
    assert all(data in contents for data in seen)
    assert paths(guarded.scan()) == ["f"]


def test_a_full_disk_is_a_typed_error_and_the_old_file_stays(root: Path) -> None:
    script = """
        import subprocess, sys
        from pytest_gittrix.errors import WriteRejected
        from pytest_gittrix.os_level.safe_dir import SafeDir
        root = sys.argv[1]
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", root], capture_output=True).returncode:
            sys.exit("no tmpfs")
        with SafeDir.open(root) as guarded:
            guarded.write("old", b"old")
            for path in ("old", "new/file"):
                try:
                    guarded.write(path, b"x" * 1_000_000)
                except WriteRejected as error:
                    print(error.fact)
            print([found.path for found in guarded.scan()], guarded.read("old")[0])
    """
    probe = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(root)], capture_output=True)
    if probe.returncode:
        pytest.skip("needs user namespaces, to mount a small disk")
    assert run_python(script, str(root), before=("unshare", "-Urm")).splitlines() == [
        "'old' was not written: No space left on device",
        "'new/file' was not written: No space left on device",
        "['old'] b'old'",
    ]


def test_a_write_over_the_systems_limit_leaves_no_trace(root: Path) -> None:
    script = """
        import resource, sys
        from pytest_gittrix.errors import WriteRejected
        from pytest_gittrix.os_level.safe_dir import SafeDir
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with SafeDir.open(sys.argv[1]) as guarded:
            guarded.write("old", b"old")
            for path in ("old", "new/deep/file"):
                try:
                    guarded.write(path, b"x" * 10_000)
                except WriteRejected as error:
                    print(error.fact)
    """
    assert run_python(script, str(root)).splitlines() == [
        "'old' was not written: File too large",
        "'new/deep/file' was not written: File too large",
    ]
    assert os.listdir(root) == ["old"]
    assert (root / "old").read_bytes() == b"old"


def test_temporary_names_are_hidden_and_nobody_makes_one_by_chance() -> None:
    name = temporary_name()

    assert name.startswith(".gittrix-tmp-")
    assert is_temporary(name)
    assert name != temporary_name()
    others = (
        "f",
        ".gittrix-tmp-",
        ".gittrix-tmp-0123",
        f"x{name}",
        f"{name}0",
        name[:-1],
        name.swapcase(),
        f".gittrix-tmp-{'0' * 32}",
        "\udcff",
    )
    assert not any(map(is_temporary, others))


def test_a_planted_temporary_is_not_written_through(guarded: SafeDir, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: b"0" * size)
    for plant in (os.link, os.symlink):
        plant(outside / "secret", root / temporary_name())
        with pytest.raises(WriteRejected, match="File exists"):
            guarded.write("f", b"mine")
        assert (outside / "secret").read_bytes() == b"outside"
        assert not guarded.exists("f")


def test_a_writer_killed_half_way_leaves_only_a_recognisable_file(root: Path) -> None:
    script = """
        import os, signal, sys
        from pytest_gittrix.os_level.safe_dir import SafeDir
        os.rename = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
        with SafeDir.open(sys.argv[1]) as guarded:
            guarded.write("f", b"new")
    """
    (root / "f").write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(root)], timeout=60, capture_output=True)
    assert killed.returncode == -9
    assert (root / "f").read_bytes() == b"old"
    [left] = [name for name in os.listdir(root) if name != "f"]
    assert is_temporary(left)


# delete, exists, chmod


def test_delete_prunes_the_parents_it_empties_up_to_the_root(guarded: SafeDir, root: Path) -> None:
    guarded.write("a/b/c/f", b"")
    guarded.write("a/g", b"")
    assert guarded.delete("a/b/c/f") is True
    assert paths(guarded.scan()) == ["a", "a/g"]
    assert guarded.delete("a/g") is True
    assert guarded.delete("a/g") is False
    assert os.listdir(root) == []


def test_delete_removes_a_link_and_not_what_it_points_to(guarded: SafeDir, root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "secret")
    (root / "dir").symlink_to(outside)
    assert guarded.delete("file")
    assert guarded.delete("dir")
    assert os.listdir(root) == []
    assert (outside / "secret").read_bytes() == b"outside"


def test_only_files_and_links_exist(guarded: SafeDir, root: Path) -> None:
    guarded.write("d/f", b"")
    guarded.make_link("dangling", b"nowhere")
    os.mkfifo(root / "pipe")
    assert [path for path in ("d", "d/f", "dangling", "pipe", "gone") if guarded.exists(path)] == ["d/f", "dangling"]


@pytest.mark.parametrize(
    ("before", "executable", "after"),
    [(0o644, True, 0o755), (0o640, True, 0o750), (0o755, False, 0o644), (0o644, False, 0o644)],
)
def test_chmod_sets_execution_for_whoever_may_read(guarded: SafeDir, root: Path, before: int, executable: bool, after: int) -> None:
    (root / "f").write_bytes(b"1")
    (root / "f").chmod(before)
    guarded.chmod("f", executable)
    assert stat.S_IMODE((root / "f").stat().st_mode) == after


def test_chmod_of_a_hard_linked_name_leaves_the_other_name_alone(guarded: SafeDir, root: Path, outside: Path) -> None:
    os.link(outside / "secret", root / "f")
    guarded.chmod("f", True)
    assert (root / "f").stat().st_mode & 0o111
    assert not (outside / "secret").stat().st_mode & 0o111
    assert guarded.read("f")[0] == b"outside"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors through /proc")
def test_no_descriptor_outlives_its_operation_even_a_failed_one(root: Path, outside: Path) -> None:
    with SafeDir.open(root) as warm:
        warm.write("a/f", b"1")
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    before = open_descriptors()
    with SafeDir.open(root) as guarded:
        held = open_descriptors()
        for path in ("a/f", "a", "gone/x", "link/secret", "link", "pipe", "a/f/x", "../x", "n/" + "x" * 256):
            for use in (
                lambda path=path: guarded.read(path, max_bytes=0),
                lambda path=path: guarded.read_link(path),
                lambda path=path: guarded.lstat(path),
                lambda path=path: guarded.chmod(path, True),
                lambda path=path: next(guarded.scan(path), None),
                lambda path=path: guarded.make_link(path + "/l", b"t"),
                lambda path=path: guarded.write(path, b"1"),
                lambda path=path: guarded.delete(path),
            ):
                with suppress(PathNotFound, WriteRejected):
                    use()
                assert open_descriptors() == held, path
        walk = guarded.scan()
        next(walk)
        assert open_descriptors() == held
    assert held == before + 1
    assert open_descriptors() == before


def test_a_parent_that_is_pruned_under_a_writer_is_made_again(guarded: SafeDir, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descend = Root.descend
    pruned: list[Path] = []

    def pruned_once(self: Root, parents: Sequence[str], **how: Any) -> int:
        descriptor = descend(self, parents, **how)
        if not pruned:
            pruned.append(root / "a" / "b")
            pruned[0].rmdir()
        return descriptor

    monkeypatch.setattr(Root, "descend", pruned_once)
    guarded.write("a/b/f", b"1")
    assert pruned
    assert guarded.read("a/b/f")[0] == b"1"


def test_a_writer_whose_parent_never_stays_gives_up_with_a_typed_error(
    guarded: SafeDir, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descend = Root.descend

    def always_pruned(self: Root, parents: Sequence[str], **how: Any) -> int:
        descriptor = descend(self, parents, **how)
        if parents == ["a"]:
            (root / "a").rmdir()
        return descriptor

    monkeypatch.setattr(Root, "descend", always_pruned)
    with pytest.raises(WriteRejected, match="'a/f' was not written: No such file"):
        guarded.write("a/f", b"1")
    assert os.listdir(root) == []


def test_writers_and_deleters_of_one_directory_do_not_trip_over_each_other(guarded: SafeDir, root: Path) -> None:
    def work(number: int) -> list[tuple[bytes, bool]]:
        mine, outcomes = f"shared/deep/{number}", []
        for turn in range(200):
            guarded.write(mine, b"%d" % turn)
            outcomes.append((guarded.read(mine)[0], guarded.delete(mine)))
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        for outcomes in pool.map(work, range(4)):
            assert outcomes == [(b"%d" % turn, True) for turn in range(200)]
    assert os.listdir(root) == []


def run_python(script: str, *args: str, before: tuple[str, ...] = ()) -> str:
    command = [*before, sys.executable, "-c", textwrap.dedent(script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("refused", ["b", "a", "root"])
def test_a_sync_that_the_disk_refuses_is_no_sync(guarded: SafeDir, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.write("a/b/c.txt", b"hello")
    guarded.sync(["a/b/c.txt"])

    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == refused:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(WriteRejected, match="Input/output error"):
        guarded.sync(["a/b/c.txt"])


def test_a_sync_of_what_is_gone_writes_its_absence_through(guarded: SafeDir, root: Path) -> None:
    (root / "a").write_bytes(b"a file where a directory was")
    guarded.sync(["a/b/c.txt"])
    guarded.sync(["gone/b.txt"])


def test_directories_that_are_held_are_entered_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    real = os.open

    def opened(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if dir_fd is not None and flags & os.O_DIRECTORY:
            entered.append(path)
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)
    with SafeDir.open(root, hold=True) as held:
        for number in range(5):
            held.write(f"a/b/{number}", b"1")
            assert held.read(f"a/b/{number}")[0] == b"1"
        assert entered == ["a", "a", "b", "b"]  # each is missed, made, and entered
        held.write("a/c/1", b"1")
        assert entered[4:] == ["c", "c"]


def test_a_held_directory_that_was_replaced_is_not_written_into_before_the_next_look(root: Path) -> None:
    with SafeDir.open(root, hold=True) as held:
        held.write("a/b", b"mine")
        shutil.rmtree(root / "a")
        (root / "a").mkdir()
        (root / "a" / "b").write_bytes(b"theirs")

        with pytest.raises(WriteRejected, match="No such file"):
            held.write("a/b", b"over it")
        assert held.read("a/b")[0] == b"theirs"
        held.write("a/b", b"over it")
        assert (root / "a" / "b").read_bytes() == b"over it"


def test_what_was_held_is_let_go(root: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with SafeDir.open(root, hold=True) as held:
        for number in range(200):
            held.write(f"{number}/{number}/file", b"1")
        held.delete("7/7/file")
        assert not (root / "7").exists()
        assert len(os.listdir("/proc/self/fd")) < 150
    assert set(os.listdir("/proc/self/fd")) == before
