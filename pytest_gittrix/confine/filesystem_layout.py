"""Says what a confined program sees of the file system: its workspace, a private home, and as little of the machine as it can run on.

It says what is to be mounted or allowed, and makes nothing but directories next to a home. ``namespace_jail``, ``landlock_guard`` and
bubblewrap do it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Final, Literal

from pytest_gittrix.confine.kernel.namespace_jail import DEVICES
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.command import check_variables

SYSTEM: Final = "/usr"
ROOT_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC: Final = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
"""What of ``/etc`` is shown (``*`` is any text): what programs need to find libraries, names, zones and certificates. No secrets."""
HOME: Final = "/home/agent"
TEMPORARY: Final = "/tmp"

_TEMPORARY_NAME: Final = "tmp"
_TAKEN: Final = ("/", "/dev", "/etc", "/home", "/proc", "/sys", "/tmp", HOME)
_TAKEN_WITH_ALL_BELOW: Final = (SYSTEM, *ROOT_LINKS, "/dev", "/etc", "/proc", "/sys")


@dataclass(frozen=True)
class Layers:
    """What a workspace lies above, for a jail that mounts all as one directory (overlayfs(5)).

    Attributes:
        lower: a directory that never changes.
        work: an empty directory next to the workspace, on the same file system; the jail locks it for as long as it lasts.
        below: more such directories, which the lower one lies above, the uppermost first.
    """

    lower: Path
    work: Path
    below: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a program works.

    Attributes:
        workspace: the directory that it works in and may change.
        home: its private home directory. The one for temporary files is made next to it, where no program can replace it: ``<home>.tmp``.
            Whoever gives a home removes both. None for one that is there for one command.
        readable: what else it may read and execute, such as ``toolchain()``; what is not there is passed over.
        at: where a jail shows the workspace, so that it has the same path every time; None for its own path. Below it nothing is changed.
        beside: more directories that it may change, in a jail only: where each is, and where it is shown. None is in another that it may
            change; see ``directory_beside``.
        layers: what the workspace lies above; None for a directory by itself. Only a jail by namespaces can show the two as one.
        sockets: Unix sockets that it reaches, in a jail only: where each is, and where it is shown.

    Raises:
        InvalidInput: a path is not absolute, ``at`` is where something else has to be, or one of ``sockets`` is none.
    """

    workspace: Path
    home: Path | None = None
    readable: tuple[Path, ...] = ()
    at: str | None = None
    beside: tuple[tuple[Path, str], ...] = ()
    layers: Layers | None = None
    sockets: tuple[tuple[Path, str], ...] = ()

    def __post_init__(self) -> None:
        shown_elsewhere = (*self.beside, *self.sockets)
        paths = [self.workspace, *self.readable, *(path for path, _ in shown_elsewhere), *([] if self.home is None else [self.home])]
        wrong = [path for path in paths if not os.path.isabs(path) or "\0" in str(path)]
        if wrong:
            raise InvalidInput(f"{str(wrong[0])!r} is no absolute path.", why="What is confined sees nothing else.", fix="Give it in full.")
        for shown in (*([] if self.at is None else [self.at]), *(shown for _, shown in shown_elsewhere)):
            _check_shown(shown)
        missing = [path for path, _ in self.sockets if not path.is_socket()]
        if missing:
            raise InvalidInput(f"{str(missing[0])!r} is no socket.", why="Programs find nothing there.", fix="Start its server first.")


@dataclass(frozen=True, slots=True)
class Mount:
    """One thing that a jail's root has.

    Attributes:
        kind: ``ro`` and ``rw`` show a place of the machine, ``overlay`` one above another, ``link`` is a symlink, the others are file
            systems of their own.
        target: where.
        source: of what; the text of a link; for an overlay the upper directory, the work
            directory, then the lower ones, the uppermost first, with NUL between them.
    """

    kind: Literal["ro", "rw", "overlay", "link", "proc", "dev"]
    target: str
    source: str = ""


@dataclass(frozen=True)
class Layout:
    """A place as a program of some level finds it.

    Attributes:
        workspace: on the machine, its real path.
        home, temporary, readable: also on the machine.
        shown: the workspace, the home and the temporary directory as the program names them.
        names: paths of the machine under which these are known, with what the program names them.
        beside: more directories of a jail, with where they are shown.
        layers: the work directory of a workspace that lies above others, then those, the uppermost first.
        sockets: sockets of the machine that a jail has, with where they are shown.
    """

    workspace: str
    home: str
    temporary: str
    readable: tuple[str, ...]
    shown: tuple[str, str, str]
    names: tuple[tuple[str, str], ...]
    beside: tuple[tuple[str, str], ...] = ()
    layers: tuple[str, ...] | None = None
    sockets: tuple[tuple[str, str], ...] = ()

    @cached_property
    def mounts(self) -> tuple[Mount, ...]:
        """The root of a jail, in the order in which it is put together."""
        return tuple(self._mounts())

    def _mounts(self) -> Iterator[Mount]:
        yield Mount("ro", SYSTEM, SYSTEM)
        for path in ROOT_LINKS:
            if os.path.islink(path):
                yield Mount("link", path, os.readlink(path))
            elif os.path.isdir(path):
                yield Mount("ro", path, path)
        for path in _etc():
            yield Mount("ro", path, os.path.realpath(path))
        yield Mount("proc", "/proc")
        yield Mount("dev", "/dev")
        yield Mount("rw", self.shown[2], self.temporary)
        yield Mount("rw", self.shown[1], self.home)
        for path in self.readable:
            if not any(_is_below(path, shown) for shown in (SYSTEM, *ROOT_LINKS)):
                yield Mount("ro", path, os.path.realpath(path))
        if self.layers is None:
            yield Mount("rw", self.shown[0], self.workspace)
        else:
            yield Mount("overlay", self.shown[0], "\0".join([self.workspace, *self.layers]))
        for path, shown in (*self.beside, *self.sockets):
            yield Mount("rw", shown, path)

    @property
    def writable(self) -> list[str]:
        """The directories that the program may write, on the machine; none of them below another."""
        found = dict.fromkeys([self.workspace, self.home, self.temporary, *(path for path, _ in self.beside)])
        return [path for path in found if not any(path != other and _is_below(path, other) for other in found)]

    @cached_property
    def allowed(self) -> dict[str, list[str]]:
        """What a guard allows, by the names of its arguments."""
        system = [SYSTEM, *ROOT_LINKS, *_etc(), *self.readable]
        return {
            "readable": [*dict.fromkeys(os.path.realpath(path) for path in system), "/proc"],
            "writable": [self.workspace, self.home, self.temporary],
            "devices": [f"/dev/{name}" for name in DEVICES],
        }

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Variables as the program is to have them: its home and temporary directory, and paths as it names them.

        Raises:
            InvalidInput: one cannot be given to a program.
        """
        check_variables(given)
        variables = {name: os.pathsep.join(map(self._as_shown, value.split(os.pathsep))) for name, value in given.items()}
        return {**variables, "HOME": self.shown[1], "TMPDIR": self.shown[2]}

    def _as_shown(self, path: str) -> str:
        return next((shown + path[len(known) :] for known, shown in self.names if _is_below(path, known)), path)

    def directory(self, inside: str) -> str:
        """A directory of the workspace, as the program names it.

        Raises:
            InvalidInput: there is none, or it is outside.
        """
        roots = [self.workspace, *(() if self.layers is None else self.layers[1:])]
        for root in roots if "\0" not in inside else ():
            real = os.path.realpath(os.path.join(root, inside))
            if _is_below(real, root) and os.path.isdir(real):
                return self.shown[0] + real[len(root) :]
        raise InvalidInput(f"cwd={inside!r} is no directory of the workspace.", fix="Give one by its path in the workspace.")


def layout(place: Place, home: Path, *, jailed: bool) -> Layout:
    """How a program finds a place.

    Args:
        place: the place.
        home: its home directory, which is there.
        jailed: whether it sees a root of its own; else everything has the path that it has on the machine.

    Raises:
        InvalidInput: the workspace or the home is no directory, or a directory for programs is below another one that they may change.
    """
    for path, what in ((place.workspace, "workspace"), (home, "home directory")):
        if not path.is_dir():
            raise InvalidInput(f"There is no {what} {path}.", why="The program would have nowhere to work.", fix="Make it first.")
    workspace, settled = os.path.realpath(place.workspace), os.path.realpath(home)
    _check_apart([place.workspace, home], [place.workspace, home, *(path for path, _ in place.beside)])
    temporary = str(directory_beside(Path(settled), _TEMPORARY_NAME))
    shown = (place.at or os.path.abspath(place.workspace), HOME, TEMPORARY) if jailed else (workspace, settled, temporary)
    named = dict.fromkeys(os.path.abspath(path) for path in place.readable if os.path.exists(path))
    readable = tuple(path for path in named if not any(path != other and _is_below(path, other) for other in named))
    known = [(temporary, shown[2])]
    known += [(path, shown[1]) for path in (settled, os.path.abspath(home))]
    known += [(path, shown[0]) for path in (workspace, os.path.abspath(place.workspace))]
    beside = tuple((os.path.realpath(path), where) for path, where in place.beside) if jailed else ()
    laid = place.layers
    layers = None if laid is None else tuple(os.path.realpath(path) for path in (laid.work, laid.lower, *laid.below))
    sockets = tuple((os.path.realpath(path), where) for path, where in place.sockets) if jailed else ()
    return Layout(workspace, settled, temporary, readable, shown, tuple(known), beside, layers, sockets)


def directory_beside(home: Path, name: str) -> Path:
    """The directory ``<home>.<name>``, made if it is missing: programs find it there with the home, but cannot put a link in its place.

    Earlier versions had it in the home, as ``.<name>``. It is moved from there, unless it is no directory.

    Raises:
        InvalidInput: something else is in its place.
    """
    path = home.with_name(f"{home.name}.{name}")
    if not os.path.lexists(path):
        with suppress(OSError):
            os.rename(home / f".{name}", path)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidInput(
            f"{path} is no directory of this user.",
            why="Programs would write wherever it leads to.",
            fix="Remove it, or give a home in a directory that no other user may write.",
        )
    return path


def _check_apart(writable: Iterable[Path], checked: Iterable[Path]) -> None:
    """See that programs cannot replace a directory, or one above it, by a link to somewhere else."""
    roots = {os.path.realpath(path) for path in writable}
    for path in checked:
        for above in Path(os.path.abspath(path)).parents:
            inside = next((root for root in roots if _is_below(os.path.realpath(above), root)), None)
            if inside is not None:
                raise InvalidInput(
                    f"{path} is in {inside}, which programs may change.",
                    why="A program could put a link in its place, and the next one would be given what the link leads to.",
                    fix="Give a directory outside of the workspace and the home.",
                )


def toolchain() -> tuple[Path, ...]:
    """The directories of this Python, which most programs of agents need as well as those of the system."""
    found = (os.path.abspath(path) for path in (sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)))
    return tuple(Path(path) for path in dict.fromkeys(found) if path not in ("/", SYSTEM) and not _is_below(path, SYSTEM))


def _check_shown(at: str) -> None:
    bad = not at.startswith("/") or os.path.normpath(at) != at or "\0" in at or at.startswith("//")
    if bad or at in _TAKEN or any(_is_below(at, taken) for taken in _TAKEN_WITH_ALL_BELOW):
        raise InvalidInput(
            f"A directory cannot be shown at {at!r}.",
            why="That is no absolute path in its shortest form, or a program needs something else to be there.",
            fix='Use a directory of its own, such as "/workspace".',
        )


def _etc() -> list[str]:
    found = (path for name in ETC for path in (sorted(glob(f"/etc/{name}")) if "*" in name else [f"/etc/{name}"]))
    return [path for path in found if os.path.exists(path)]


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
