"""Small files, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pytest_gittrix.os_level.files import create_whole, read_text, sync_directory, write_all, write_file, write_temporary


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_made_or_replaced(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "file"

    for data in (b"one", b"", b"x" * 100_000):
        write_file(str(path), data, sync=sync)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_keeps_the_old_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(str(path), b"old")
    with path.open("rb") as reader:
        write_file(str(path), b"new")

        assert reader.read() == b"old"


@pytest.mark.parametrize("mode", [0o444, 0o644, 0o600])
def test_a_file_has_the_mode_that_was_asked_for(tmp_path: Path, mode: int) -> None:
    write_file(str(tmp_path / "file"), b"", mode=mode)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_what_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken/inside").mkdir(parents=True)

    with pytest.raises(OSError, match="taken"):
        write_file(str(tmp_path / "taken"), b"data")

    assert os.listdir(tmp_path) == ["taken"]
    assert (tmp_path / "taken/inside").is_dir()


def test_a_directory_that_is_not_there_is_an_error_as_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_file(str(tmp_path / "none/file"), b"")
    with pytest.raises(FileNotFoundError):
        sync_directory(str(tmp_path / "none"))


def test_temporary_files_have_names_of_their_own(tmp_path: Path) -> None:
    paths = [write_temporary(str(tmp_path), b"%d" % number, prefix="mine-") for number in range(3)]

    assert len(set(paths)) == 3
    assert [Path(path).read_bytes() for path in paths] == [b"0", b"1", b"2"]
    assert all(os.path.basename(path).startswith("mine-") for path in paths)


def test_a_pipe_that_takes_little_at_a_time_gets_everything() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        write_all(writing, b"x" * 1_000_000)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert len(file.read()) == 1_000_000
    assert os.waitpid(pid, 0)[1] == 0


def test_text_is_read_without_its_white_space_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"  ref: \xff \n")

    assert read_text(str(tmp_path / "file")) == "ref: \udcff"
    assert read_text(str(tmp_path / "none")) is None
    assert read_text(str(tmp_path / "file/below")) is None


@pytest.mark.parametrize("links", [True, False], ids=["with-links", "without-links"])
def test_a_lock_is_made_whole_once_and_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    lock = str(tmp_path / "ref.lock")

    create_whole(lock, b"owner\n", beside=str(tmp_path), prefix="tmp_")
    with pytest.raises(FileExistsError):
        create_whole(lock, b"somebody else\n", beside=str(tmp_path), prefix="tmp_")

    assert os.listdir(tmp_path) == ["ref.lock"]
    assert read_text(lock) == "owner"


def test_a_lock_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        create_whole(str(tmp_path / "no" / "ref.lock"), b"owner\n", beside=str(tmp_path), prefix="tmp_")

    assert os.listdir(tmp_path) == []


def test_a_directory_has_no_text(tmp_path: Path) -> None:
    assert read_text(str(tmp_path)) is None
