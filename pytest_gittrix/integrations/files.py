"""Reads and writes files of a sandbox at any path that programs in it can name.

Harnesses use absolute paths too: of the workspace, of a temporary directory, of the system. From outside the sandbox such a path is another
file, or leads out of the sandbox through a link that an agent made. So a small program inside the sandbox reads and writes each file: it
can reach no more than the agent's programs, and always sees the same files. What comes out of a sandbox as an archive is unpacked here.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NoReturn

from pytest_gittrix.engine.agents.programs import Programs, run_while_live
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import SafeDir

if TYPE_CHECKING:
    import tarfile

MOST_BYTES: Final = 100 << 20
"""The size of the largest file that is read, by default, in bytes."""

_DIRECTORY, _ABSENT, _DENIED, _NO_FILE, _NO_DIRECTORY = 121, 122, 123, 124, 120

_ERRORS: Final[dict[int, tuple[type[OSError], int]]] = {
    _DIRECTORY: (IsADirectoryError, errno.EISDIR),
    _ABSENT: (FileNotFoundError, errno.ENOENT),
    _DENIED: (PermissionError, errno.EACCES),
    _NO_FILE: (OSError, errno.EINVAL),
    _NO_DIRECTORY: (NotADirectoryError, errno.ENOTDIR),
}
_READ: Final = f"""
[ ! -d "$1" ] || exit {_DIRECTORY}
[ -e "$1" ] || exit {_ABSENT}
[ -f "$1" ] || exit {_NO_FILE}
[ -r "$1" ] || exit {_DENIED}
exec cat -- "$1"
"""
_WRITE: Final = f"""
[ ! -d "$1" ] || exit {_DIRECTORY}
[ ! -e "$1" ] || [ -f "$1" ] || exit {_NO_FILE}
[ ! -e "$1" ] || [ -w "$1" ] || exit {_DENIED}
parent=${{1%/*}}
if [ -n "$parent" ] && [ ! -d "$parent" ]; then
    above=$parent
    while [ -n "$above" ] && [ ! -e "$above" ]; do case $above in */*) above=${{above%/*}};; *) above=;; esac; done
    [ -z "$above" ] || [ -d "$above" ] || exit {_NO_DIRECTORY}
    mkdir -p -- "$parent" || exit {_DENIED}
fi
cat > "$1" || exit
[ -z "$2" ] || exec chmod -- "$2" "$1"
"""


class TooLarge(InvalidInput):
    """A file is larger than the caller can take."""


class SandboxFiles:
    """The files that programs of one session see."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def read(self, path: str, *, most: int = MOST_BYTES, stop: int | None = None) -> bytes:
        """Read a file.

        Args:
            path: relative to the workspace's root, or absolute as programs see it.
            most: the size of the largest file that the caller accepts, in bytes.
            stop: as for ``Programs.run``.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: as for a program in the sandbox.
            TooLarge: the file is larger than ``most``.
            InvalidInput: the path is empty or has a NUL.
            CapabilityMissing: there is no shell in the sandbox.
            SessionExpired: the session ended, before the file was read or while it was.
            GittrixError: as ``Programs.run``.
        """
        done = run_while_live(self._programs, ["/bin/sh", "-c", _READ, "sh", self._named(path)], most_output=most + 1, stop=stop)
        if done.truncated or len(done.stdout) > most:
            raise TooLarge(f"{path!r} has more than {most} bytes.", why="The caller takes no more.", fix="Read a part of it by a program.")
        if done.code != 0:
            self._failed(path, done.code, done.stderr)
        return done.stdout

    def write(self, path: str, data: bytes, *, mode: int | None = None, stop: int | None = None) -> None:
        """Create a file and the directories above it, or replace the contents of a file; links are followed.

        Args:
            path: as for ``read``.
            data: the file's new contents.
            mode: the file's permissions afterwards; None for the usual ones, and for those that an existing file has.
            stop: as for ``Programs.run``.

        Raises:
            IsADirectoryError, NotADirectoryError, PermissionError, OSError: as for a program in the sandbox.
            InvalidInput, CapabilityMissing, SessionExpired, GittrixError: as for ``read``.
        """
        argv = ["/bin/sh", "-c", _WRITE, "sh", self._named(path), "" if mode is None else f"{mode:o}"]
        done = run_while_live(self._programs, argv, stdin=data, stop=stop)
        if done.code != 0:
            self._failed(path, done.code, done.stderr)

    def _named(self, path: str) -> str:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidInput(f"{path!r} is no path.", fix="Give a text without NUL.")
        return path if path.startswith("/") else os.path.join(self._programs.workspace, path)

    def _failed(self, path: str, code: int | None, stderr: bytes) -> NoReturn:
        if code in _ERRORS:
            kind, number = _ERRORS[code]
            raise kind(number, os.strerror(number) if number != errno.EISDIR else "Is a directory", path)
        if code in (126, 127):
            raise CapabilityMissing(
                "There is no shell in the sandbox.",
                why="Files are read and written by programs inside, so that both see the same.",
                fix="Let /bin/sh and cat be in it.",
            )
        text = stderr.decode("utf-8", "replace").strip()
        raise OSError(errno.EIO, text or f"the program that was to do it ended with {code}", path)


def unpack(archive: tarfile.TarFile, target: str | os.PathLike[str]) -> None:
    """Make the files, directories and links of an archive in a directory. Only the executable bit of their modes is kept.

    Left out are special files, and whatever would be outside of the directory or leads out of it. No link is followed, neither one of the
    archive nor one that was there before. It works on every Python: the filters of ``tarfile`` came with 3.11.4.

    Args:
        archive: open for reading.
        target: the directory.

    Raises:
        WriteRejected: the system refused, as for want of room.
        tarfile.TarError: the archive is damaged.
    """
    links = []
    with SafeDir.open(target) as directory:
        for member in archive:
            path = _inside(member.name)
            if not path:
                continue
            with tolerating_shape():
                if member.isdir():
                    directory.make_directory(path)
                elif member.issym():
                    directory.make_link(path, os.fsencode(member.linkname))
                    links.append(os.path.join(target, path))
                elif (data := _data(archive, member)) is not None:
                    directory.write(path, data, executable=bool(member.mode & 0o100))
    root = os.path.realpath(target)
    # All are judged before one goes, since one can lead out by way of another.
    for link in [link for link in links if _leads_out(link, root)]:
        os.unlink(link)


def _inside(name: str) -> str:
    """The canonical path of a name in an archive; empty for the directory itself, and where it is outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "" if ".." in parts else "/".join(parts)


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    """The contents of a file, or of the file that a hard link is another name of; None for anything else."""
    try:
        stream = archive.extractfile(member) if member.isfile() or member.islnk() else None
    except KeyError:  # the file is not in the archive
        return None
    return None if stream is None else stream.read()


def _leads_out(link: str, root: str) -> bool:
    if not os.path.islink(link):
        return False  # a later member took its place
    try:
        real = os.path.realpath(link, strict=True)
    except FileNotFoundError:
        real = os.path.realpath(link)
    except OSError:  # a circle, or one that is too long to be followed to its end
        return True
    return os.path.commonpath([real, root]) != root
