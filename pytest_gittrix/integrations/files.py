"""Files of a sandbox by any path that its programs know, read and written as they would.

Harnesses name files by absolute paths too: of the workspace, of a temporary directory, of the system. Read from outside, such a path is
another file, or leads out of the sandbox by a link that an agent made. So each is read and written by a small program inside: what it may
not see nobody sees, and files and programs never disagree. Source: eval-anchors section 3a, the rule of one view.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.integrations.programs import Programs

MOST_BYTES: Final = 100 << 20
"""How large a file may be that is read, by default."""

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
cat > "$1"
"""


class TooLarge(InvalidInput):
    """A file is larger than the caller can take."""


class SandboxFiles:
    """The files that programs of one session see."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def read(self, path: str, *, most: int = MOST_BYTES, stop: int | None = None) -> bytes:
        """The bytes of a file.

        Args:
            path: from the workspace's root, or absolute as programs see it.
            most: how many bytes the caller can take.
            stop: as for ``Programs.run``.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError, OSError: as a program would find.
            TooLarge: it is larger.
            InvalidInput: it is no path.
        """
        done = self._programs.run(["/bin/sh", "-c", _READ, "sh", self._named(path)], most_output=most + 1, stop=stop)
        if done.truncated or len(done.stdout) > most:
            raise TooLarge(f"{path!r} has more than {most} bytes.", why="The caller takes no more.", fix="Read a part of it by a program.")
        if done.code != 0:
            self._failed(path, done.code, done.stderr)
        return done.stdout

    def write(self, path: str, data: bytes, *, stop: int | None = None) -> None:
        """Create a file, with the directories above it, or replace what is in one; through a link, if there is one.

        Args:
            path: as for ``read``.
            data: its bytes.
            stop: as for ``Programs.run``.

        Raises:
            IsADirectoryError, NotADirectoryError, PermissionError, OSError: as a program would find.
            InvalidInput: it is no path.
        """
        done = self._programs.run(["/bin/sh", "-c", _WRITE, "sh", self._named(path)], stdin=data, stop=stop)
        if done.code != 0:
            self._failed(path, done.code, done.stderr)

    def _named(self, path: str) -> str:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidInput(f"{path!r} is no path.", fix="Give a text without NUL.")
        return path if path.startswith("/") else os.path.join(self._programs.workspace, path)

    def _failed(self, path: str, code: int | None, words: bytes) -> NoReturn:
        if code in _ERRORS:
            kind, number = _ERRORS[code]
            raise kind(number, os.strerror(number) if number != errno.EISDIR else "Is a directory", path)
        if code in (126, 127):
            raise CapabilityMissing(
                "There is no shell in the sandbox.",
                why="Files are read and written by programs inside, so that both see the same.",
                fix="Let /bin/sh and cat be in it.",
            )
        text = words.decode("utf-8", "replace").strip()
        raise OSError(errno.EIO, text or f"the program that was to do it ended with {code}", path)
