"""Opening, reading and walking a guarded directory: what is given, what is refused, and that nothing leads outside.

Changes are in test_safe_dir_changes.py, races in tests/quality/test_symlink_race.py.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.descriptors import open_descriptors

from pytest_gittrix.errors import InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.os_level.safe_dir import Found, SafeDir


def paths(found: Iterator[Found]) -> list[str]:
    return [each.path for each in found]


# opening and closing


def test_a_missing_root_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PathNotFound, match="gone"):
        SafeDir.open(tmp_path / "gone")


def test_a_file_is_no_root(outside: Path) -> None:
    with pytest.raises(WriteRejected, match=r"is a file, not a directory"):
        SafeDir.open(outside / "secret")


def test_a_link_is_no_root(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(WriteRejected, match="is a symbolic link"):
        SafeDir.open(tmp_path / "link")


def test_links_on_the_way_to_the_root_are_the_callers(tmp_path: Path, root: Path) -> None:
    (tmp_path / "way").symlink_to(tmp_path)
    with SafeDir.open(str(tmp_path / "way" / "root")) as directory:
        directory.write("a", b"1")
    assert (root / "a").read_bytes() == b"1"


def test_a_root_that_is_renamed_stays_the_root(tmp_path: Path, root: Path, outside: Path, guarded: SafeDir) -> None:
    root.rename(tmp_path / "moved")
    root.symlink_to(outside)
    guarded.write("a", b"1")
    assert (tmp_path / "moved" / "a").read_bytes() == b"1"
    assert os.listdir(outside) == ["secret"]


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d.read("a"),
        lambda d: d.lstat("a"),
        lambda d: d.exists("a"),
        lambda d: d.write("a", b""),
        lambda d: d.delete("a"),
        lambda d: list(d.scan()),
    ],
)
def test_a_closed_directory_can_do_nothing(root: Path, use: Callable[[SafeDir], object]) -> None:
    directory = SafeDir.open(root)
    directory.close()
    directory.close()
    with pytest.raises(InvalidInput, match="closed"):
        use(directory)


# names


@pytest.mark.parametrize("path", ["", "/", "/etc/passwd", "..", "../outside/secret", "a/../b", "./a", "a//b", "a/", "a\0b", "x" * 5000])
@pytest.mark.parametrize("verb", ["read", "read_link", "lstat", "exists", "delete", "scan"])
def test_a_path_that_is_not_canonical_is_refused_by_every_verb(guarded: SafeDir, outside: Path, verb: str, path: str) -> None:
    with pytest.raises(WriteRejected, match="not a canonical path"):
        list([getattr(guarded, verb)(path)] if verb != "scan" else guarded.scan(path))


@pytest.mark.parametrize("path", ["../new", "a/../../new", "/new", ""])
def test_nothing_is_made_for_a_path_that_is_not_canonical(guarded: SafeDir, tmp_path: Path, path: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteRejected):
        guarded.write(path, b"x")
    with pytest.raises(WriteRejected):
        guarded.make_link(path, b"x")
    assert sorted(tmp_path.rglob("*")) == before


def test_names_are_bytes(guarded: SafeDir, root: Path) -> None:
    guarded.write("d\udcff/f\udcfe\n", b"odd")
    assert os.listdir(os.fsencode(root)) == [b"d\xff"]
    assert guarded.read("d\udcff/f\udcfe\n")[0] == b"odd"
    assert paths(guarded.scan()) == ["d\udcff", "d\udcff/f\udcfe\n"]


# read


def test_read_returns_contents_and_status(guarded: SafeDir, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "b").write_bytes(b"\0bytes\r\n")
    data, status = guarded.read("a/b")
    assert data == b"\0bytes\r\n"
    assert (status.st_size, status.st_ino) == (8, (root / "a" / "b").stat().st_ino)


@pytest.mark.parametrize("path", ["gone", "gone/a", "file/a", "file/a/b"])
def test_what_is_not_there_is_not_found(guarded: SafeDir, root: Path, path: str) -> None:
    (root / "file").write_bytes(b"")
    for verb in (guarded.read, guarded.read_link):
        with pytest.raises(PathNotFound, match=path):
            verb(path)
    assert guarded.lstat(path) is None
    assert not guarded.exists(path)
    assert guarded.delete(path) is False


def test_a_file_over_the_limit_is_refused_with_both_sizes(guarded: SafeDir) -> None:
    guarded.write("big", b"x" * 1001)
    with pytest.raises(WriteRejected, match="1001 bytes, over the limit of 1000"):
        guarded.read("big", max_bytes=1000)
    assert len(guarded.read("big", max_bytes=1001)[0]) == 1001


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file system that does not tell sizes")
def test_a_file_that_does_not_tell_its_size_is_read_whole_and_limited() -> None:
    with SafeDir.open(f"/proc/{os.getpid()}") as process:
        data, status = process.read("status")
        assert status.st_size == 0
        assert data.startswith(b"Name:")
        assert data.endswith(b"\n")
        with pytest.raises(WriteRejected, match="over the limit of 10"):
            process.read("status", max_bytes=10)


def test_a_growing_file_reads_as_what_is_there(guarded: SafeDir, root: Path) -> None:
    guarded.write("log", b"")
    stop = threading.Event()

    def grow() -> None:
        with (root / "log").open("ab", buffering=0) as log:
            while not stop.is_set():
                log.write(b"line\n" * 100)
                if log.tell() > 1 << 20:
                    log.truncate(0)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        reads = [guarded.read("log")[0] for _ in range(200)]
    finally:
        stop.set()
        thread.join()
    assert all(set(data) <= set(b"line\n\0") for data in reads)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")  # a socket's own name has a short limit
        finally:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(_fifo, "named pipe"), (_socket, "socket"), (Path.mkdir, "directory"), (lambda path: path.symlink_to("elsewhere"), "symbolic link")],
    ids=["fifo", "socket", "directory", "link"],
)
def test_only_regular_files_are_read_and_the_message_names_the_kind(
    guarded: SafeDir, root: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(root / "odd")
    for use in (lambda: guarded.read("odd"), lambda: guarded.chmod("odd", True)):
        with pytest.raises(WriteRejected, match=f"'odd' is a {kind}, not a file"):
            use()


def test_a_pipe_is_refused_without_waiting_for_its_other_end(guarded: SafeDir, root: Path) -> None:
    os.mkfifo(root / "pipe")
    outcome: list[BaseException] = []

    def read() -> None:
        try:
            guarded.read("pipe")
        except WriteRejected as error:
            outcome.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert len(outcome) == 1


# links


@pytest.mark.parametrize("target", [b"a", b"../outside/secret", b"/etc/passwd", b"\xff\n "])
def test_a_link_is_made_and_read_as_raw_bytes(guarded: SafeDir, target: bytes) -> None:
    guarded.make_link("d/link", target)
    assert guarded.read_link("d/link") == target
    assert guarded.exists("d/link")
    status = guarded.lstat("d/link")
    assert status is not None
    assert stat.S_ISLNK(status.st_mode)


@pytest.mark.parametrize("target", [b"", b"a\0b", b"x" * 5000])
def test_a_link_that_cannot_be_leaves_nothing(guarded: SafeDir, root: Path, target: bytes) -> None:
    with pytest.raises(WriteRejected):
        guarded.make_link("d/link", target)
    assert os.listdir(root) == []


def test_reading_a_file_as_a_link_is_refused(guarded: SafeDir) -> None:
    guarded.write("file", b"")
    with pytest.raises(WriteRejected, match="'file' is a file, not a symbolic link"):
        guarded.read_link("file")


def test_a_link_replaces_a_file_and_a_file_replaces_a_link(guarded: SafeDir, root: Path, outside: Path) -> None:
    guarded.write("x", b"file")
    guarded.make_link("x", os.fsencode(outside / "secret"))
    assert (root / "x").is_symlink()
    guarded.write("x", b"mine")
    assert not (root / "x").is_symlink()
    assert guarded.read("x")[0] == b"mine"
    assert (outside / "secret").read_bytes() == b"outside"


@pytest.mark.parametrize("depth", ["link", "a/link", "link/sub"])
def test_nothing_goes_through_a_linked_parent(guarded: SafeDir, root: Path, outside: Path, depth: str) -> None:
    (outside / "sub").mkdir()
    (outside / "sub" / "secret").write_bytes(b"outside")
    (root / "a").mkdir()
    for link in (root / "link", root / "a" / "link"):
        link.symlink_to(outside)
    inside = f"{depth}/secret"
    before = [(path, path.lstat().st_ctime_ns) for path in sorted(outside.rglob("*"))]
    for use in (
        lambda: guarded.read(inside),
        lambda: guarded.read_link(inside),
        lambda: guarded.write(inside, b"x"),
        lambda: guarded.write(f"{depth}/new/file", b"x"),
        lambda: guarded.make_link(inside, b"x"),
        lambda: guarded.delete(inside),
        lambda: guarded.chmod(inside, True),
        lambda: list(guarded.scan(depth)),
    ):
        with pytest.raises(WriteRejected, match="is a symbolic link, not a directory"):
            use()
    assert guarded.lstat(inside) is None
    assert not guarded.exists(inside)
    assert [(path, path.lstat().st_ctime_ns) for path in sorted(outside.rglob("*"))] == before


# scan


def test_scan_meets_everything_below_but_the_git_directory(guarded: SafeDir, root: Path, outside: Path) -> None:
    for path in ("b/2", "b/1", "a", ".git/config", "sub/.git/config", ".gitignore"):
        guarded.write(path, b"12345")
    (root / "link").symlink_to(outside)
    (root / "empty").mkdir()
    everything = list(guarded.scan())
    assert [each.path for each in everything] == [
        ".gitignore", "a", "b", "empty", "link", "sub", "b/1", "b/2", "sub/.git", "sub/.git/config",
    ]  # fmt: skip
    assert [each.path for each in everything if each.is_dir] == ["b", "empty", "sub", "sub/.git"]
    assert {each.stat.st_size for each in everything if stat.S_ISREG(each.stat.st_mode)} == {5}


def test_scan_starts_where_it_is_told_and_skips_what_it_is_told(guarded: SafeDir) -> None:
    for path in ("a/x", "a/b/y", "a/c/z", "d"):
        guarded.write(path, b"")
    assert paths(guarded.scan("a", skip=lambda path: path.endswith("/b"))) == ["a/c", "a/x", "a/c/z"]


def test_scan_of_nothing_and_of_a_file_are_errors(guarded: SafeDir) -> None:
    guarded.write("file", b"")
    with pytest.raises(PathNotFound, match="gone"):
        list(guarded.scan("gone"))
    with pytest.raises(WriteRejected, match="'file' is a file, not a directory"):
        list(guarded.scan("file"))
    with pytest.raises(PathNotFound, match="file/x"):
        list(guarded.scan("file/x"))


def test_scan_leaves_out_what_disappears_meanwhile(guarded: SafeDir, root: Path, outside: Path) -> None:
    for path in ("a/x", "b/x", "c/x"):
        guarded.write(path, b"")
    walk = guarded.scan()
    seen = [next(walk).path]
    guarded.delete("b/x")
    guarded.delete("c/x")
    (root / "c").symlink_to(outside)
    seen += paths(walk)
    assert seen == ["a", "b", "c", "a/x"]


def test_scan_reports_a_tree_too_deep_to_be_written(guarded: SafeDir, root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=descriptor)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    with pytest.raises(WriteRejected, match="more than 4096 characters"):
        list(guarded.scan())
    subprocess.run(["rm", "-rf", str(root)], check=True)  # deeper than a path can say


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors through /proc")
def test_a_root_that_cannot_be_opened_costs_no_descriptor(tmp_path: Path, outside: Path) -> None:
    before = open_descriptors()
    for path in (tmp_path / "gone", outside / "secret"):
        with pytest.raises((PathNotFound, WriteRejected)):
            SafeDir.open(path)
    assert open_descriptors() == before


def test_closing_lets_an_operation_under_way_finish(root: Path) -> None:
    outcomes: list[object] = []
    directory = SafeDir.open(root)
    directory.write("a/f", b"1")
    started = threading.Event()

    def read() -> None:
        try:
            while True:
                data = directory.read("a/f")[0]
                outcomes.append(data)
                started.set()
        except InvalidInput as error:
            outcomes.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    started.wait(60)
    directory.close()
    thread.join(60)
    assert isinstance(outcomes.pop(), InvalidInput)
    assert set(outcomes) == {b"1"}
