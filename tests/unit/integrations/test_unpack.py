"""Archives that an agent made: what is in them is unpacked, and nothing comes to be outside or leads there."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_gittrix.errors import WriteRejected
from pytest_gittrix.integrations.archives import unpack
from pytest_gittrix.testing.faults.small_disks import run_on_small_disk, supported

REGULAR, LINK, HARD, DIRECTORY, FIFO, DEVICE = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
)


@contextmanager
def archive(*members: tuple[str, bytes, str], mode: int = 0o4644) -> Iterator[tarfile.TarFile]:
    """An archive of members: the name, the kind, and the contents or where a link leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            data = text.encode() if kind == REGULAR else b""
            member.size, member.linkname = len(data), "" if data else text
            made.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as opened:
        yield opened


def unpacked(root: Path, *members: tuple[str, bytes, str]) -> dict[str, str]:
    """What is in a directory after members were unpacked there; a link shows where it leads."""
    (root / "in").mkdir(exist_ok=True)
    with archive(*members) as opened:
        unpack(opened, root / "in")
    found = {}
    for path in sorted((root / "in").rglob("*")):
        if path.is_symlink():
            found[path.relative_to(root / "in").as_posix()] = f"-> {path.readlink()}"
        elif path.is_file():
            found[path.relative_to(root / "in").as_posix()] = path.read_text()
    return found


def test_files_directories_and_links_are_unpacked(tmp_path: Path) -> None:
    found = unpacked(
        tmp_path,
        ("./", DIRECTORY, ""),
        ("./a/", DIRECTORY, ""),
        ("./a/b", REGULAR, "b"),
        ("c//d", REGULAR, "d"),
        ("/e", REGULAR, "e"),
        ("a/again", HARD, "./a/b"),
        ("a/down", LINK, "../c/d"),
        ("a/up", LINK, ".."),
        ("dangling", LINK, "nothing/there"),
        ("empty", DIRECTORY, ""),
    )

    links = {"a/down": "-> ../c/d", "a/up": "-> ..", "dangling": "-> nothing/there"}
    assert found == {"a/b": "b", "a/again": "b", "c/d": "d", "e": "e", **links}
    assert (tmp_path / "in" / "empty").is_dir()


@pytest.mark.parametrize(("mode", "executable"), [(0o4755, True), (0o000, False), (0o777, True), (0o066, False)])
def test_only_the_executable_bit_of_a_mode_is_kept(tmp_path: Path, mode: int, executable: bool) -> None:
    with archive(("file", REGULAR, "x"), ("directory", DIRECTORY, ""), ("directory/file", REGULAR, "x"), mode=mode) as opened:
        unpack(opened, tmp_path)

    umask = os.umask(0)
    os.umask(umask)
    for name in ("file", "directory/file"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == (0o777 if executable else 0o666) & ~umask


@pytest.mark.parametrize(
    "members",
    [
        [("../out", REGULAR, "x")],
        [("a/../../out", REGULAR, "x")],
        [("out", LINK, "/etc/passwd")],
        [("out", LINK, "../kept")],
        [("a", LINK, ".."), ("a/kept", REGULAR, "x")],
        [("a", LINK, "../directory"), ("a/new", REGULAR, "x"), ("a/made", DIRECTORY, "")],
        [("out", HARD, "../kept")],
        [("out", HARD, "/etc/passwd")],
        [("pipe", FIFO, ""), ("device", DEVICE, "")],
        [("round", LINK, "round")],
        [("a", LINK, "b"), ("b", LINK, "a")],
    ],
)
def test_what_would_be_outside_or_leads_there_is_left_out(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "directory").mkdir()

    found = unpacked(tmp_path, *members, ("last", REGULAR, "x"))

    assert found == {"last": "x"}
    assert sorted(os.listdir(tmp_path)) == ["directory", "in", "kept"]
    assert (tmp_path / "kept").read_text() == "kept"
    assert os.listdir(tmp_path / "directory") == []


def test_a_link_that_leads_out_by_way_of_another_is_left_out(tmp_path: Path) -> None:
    # Read as text, each of them stays inside.
    found = unpacked(
        tmp_path,
        ("deep/er/file", REGULAR, "x"),
        ("deep/er/top", LINK, "../.."),
        ("deep/er/out", LINK, "top/../kept"),
        ("deep/er/in", LINK, "top/deep"),
    )

    assert found == {"deep/er/file": "x", "deep/er/top": "-> ../..", "deep/er/in": "-> top/deep"}


def test_a_link_that_was_there_before_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "there").symlink_to("../directory")
    (tmp_path / "in" / "file").symlink_to("../kept")
    (tmp_path / "kept").write_text("kept")

    found = unpacked(tmp_path, ("there/x", REGULAR, "x"), ("file", REGULAR, "x"))

    assert found == {"there": "-> ../directory", "file": "x"}
    assert (os.listdir(tmp_path / "directory"), (tmp_path / "kept").read_text()) == ([], "kept")


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_a_full_disk_is_an_error() -> None:
    def unpack_there(disk: Path) -> None:
        with archive(("large", REGULAR, "x" * 100_000)) as opened, pytest.raises(WriteRejected, match="No space left"):
            unpack(opened, disk)

    run_on_small_disk(unpack_there, "32k")
