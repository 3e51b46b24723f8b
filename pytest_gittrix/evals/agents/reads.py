"""What an agent read, as it is kept with its samples, and compared before results are taken over.

Everything has a key of a kind and a name, such as ``file prompts/a.md`` or ``variable MODEL``, and a state: a digest, a version, or None
for what is not there. Files below the agent's own directory are named from there, so that a clone in another place has the same keys.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.errors import first_few
from pytest_gittrix.evals.inputs.agent_values import digest_of_values
from pytest_gittrix.evals.inputs.identity import Json, digest_of
from pytest_gittrix.evals.inputs.suite import is_left_out

READ: Final = "read"
"""The key of a line of a sample's timing that says what its agent has read."""

Kind = Literal["file", "listing", "exists", "variable", "distribution", "import", "installed"]
Key = tuple[Kind, str]
"""What was read: a kind, and an absolute path or another name."""

_PATHS: Final = ("file", "listing", "exists")
_SITES: Final = frozenset({"site-packages", "dist-packages"})
_KERNEL: Final = ("/proc", "/sys", "/dev")
SHARED_MEMORY: Final = "/dev/shm/"
"""Where ordinary files are, among the devices."""
_LIBRARIES: Final = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
_PYTHON: Final = tuple(dict.fromkeys([*_LIBRARIES, *map(os.path.realpath, _LIBRARIES)]))
_OURS: Final = str(Path(__file__).absolute().parents[2])
_NO_INPUTS: Final = tuple(f"{place}/" for place in (*_KERNEL, *_PYTHON, _OURS))
_ENDINGS: Final = (".dist-info", ".egg-info")
NETWORK: Final = "What the network answered is not compared."
_MOST: Final = 8
_MIXED: Final = "changed meanwhile"


@dataclass(frozen=True)
class Reads:
    """What the agent of a sample had read by the end of its work.

    Attributes:
        seen: the state of everything that was read, by its key as a text.
        unknown: what may have been read and cannot be seen, one sentence each.
        network: whether it used the network, whose answers are not compared.
    """

    seen: Mapping[str, str | None] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    network: bool = False

    @classmethod
    def of(cls, seen: Mapping[Key, str | None], root: str, unknown: Iterable[str] = (), *, network: bool = False) -> Reads:
        """Name what was read from the agent's own directory.

        Args:
            seen: what was read.
            root: the directory; whether it exists, and the directories above it, says nothing.
            unknown: see the class.
            network: see the class.
        """
        above = {root, *map(str, Path(root).parents)}
        whole = {name for (kind, name), state in seen.items() if kind in ("file", "listing") and state is not None}
        kept = {key: state for key, state in seen.items() if not (key[0] == "exists" and key[1] in above | whole)}
        named = {f"{kind} {_relative(name, root) if kind in _PATHS else name}": state for (kind, name), state in kept.items()}
        return cls(dict(sorted(named.items())), tuple(sorted(set(unknown))), network)

    @classmethod
    def among(cls, timing: Iterable[Mapping[str, Any]]) -> Reads | None:
        """What the lines of a sample's timing say that its agent read; None if they do not."""
        for line in timing:
            if READ in line:
                found = line[READ]
                return cls(found["seen"], tuple(found["unknown"]), found["network"])
        return None

    def to_json(self) -> dict[str, Json]:
        """The line of a sample's timing."""
        return {READ: {"seen": dict(self.seen), "unknown": list(self.unknown), "network": self.network}}

    def changed(self, root: str) -> list[str]:
        """The keys of what is another now.

        Args:
            root: the agent's own directory.
        """
        return [key for key, state in self.seen.items() if _state_now(key, root) != state]

    def why_not(self, root: str, *, trust: bool) -> str:
        """Why the result of an agent that read this does not count for the agent as it is now; empty if it does.

        Args:
            root: the agent's own directory.
            trust: whether what cannot be seen counts as the same.
        """
        changed = self.changed(root)
        if changed:
            return f"the agent read {first_few(changed, _MOST)}, changed since"
        return f"it cannot be known whether its inputs are the same: {' '.join(self.unknown)}" if self.unknown and not trust else ""


def together(reads: Iterable[Reads | None]) -> Reads:
    """What the agents of several samples have read; a key that has two states among them has the state ``changed meanwhile``."""
    seen: dict[str, str | None] = {}
    unknown: set[str] = set()
    network = False
    for one in reads:
        if one is None:
            continue
        for key, state in one.seen.items():
            seen[key] = state if seen.get(key, state) == state else _MIXED
        unknown |= {*one.unknown}
        network |= one.network
    return Reads(seen, tuple(sorted(unknown)), network)


def differing(a: Reads, b: Reads) -> list[str]:
    """The keys of what both have read, in different states."""
    return sorted(key for key in {*a.seen} & {*b.seen} if a.seen[key] != b.seen[key] or _MIXED in (a.seen[key], b.seen[key]))


def unsure(a: Reads, b: Reads) -> list[str]:
    """Why it cannot be known whether the agents of two runs had the same to read, one sentence each; empty if it can."""
    alone = sorted({*a.seen} ^ {*b.seen})
    return [
        *sorted({*a.unknown} | {*b.unknown}),
        *([f"Only one of them has read {first_few(alone, _MOST)}."] if alone else []),
        *([NETWORK] if a.network or b.network else []),
    ]


def state_of(key: Key) -> str | None:
    """The state of something now: None for what is not there."""
    kind, name = key
    match kind:
        case "file":
            return _digest_of_file(name)
        case "listing":
            return _digest_of_names(name)
        case "exists":
            return "directory" if os.path.isdir(name) else "file" if os.path.exists(name) else None
        case "variable":
            return digest_of_values([name], os.environ)[name]
        case "distribution":
            return _version(name)
        case "import":
            return _place_of_module(name)
        case "installed":
            return digest_of(installed())


def key_of_file(path: str) -> Key | None:
    """The key of a file that was opened: itself, or the distribution that installed it.

    Returns:
        None for what is no input: files of Python's library and of this package, whose versions count anyway, and those of the kernel.
    """
    parts = path.split(os.sep)
    found = next((at for at in range(len(parts) - 2, 0, -1) if parts[at] in _SITES), None)
    if found is not None:
        name = distribution_of(parts[found + 1])
        return ("distribution", name) if name else ("file", path)
    if path.startswith(_NO_INPUTS) and not path.startswith(SHARED_MEMORY):
        return None
    return "file", path


def distribution_of(top: str) -> str:
    """The distribution that an entry of a directory of installed packages is of; empty if that is not known."""
    for ending in _ENDINGS:
        if top.endswith(ending):
            return _normal(top.removesuffix(ending).partition("-")[0])
    names = _distributions().get(top.partition(".")[0], ())
    return _normal(names[0]) if names else ""


def installed() -> dict[str, str]:
    """The versions of all distributions that are installed for this Python, by name: what a program that it runs may import."""
    found: dict[str, str] = {}
    for place in dict.fromkeys(path for path in sys.path if os.path.basename(path) in _SITES):
        for entry in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            ending = next((one for one in _ENDINGS if entry.endswith(one)), None)
            if ending is not None:
                name, _, version = entry.removesuffix(ending).partition("-")
                found.setdefault(_normal(name), version)
    return found


def _normal(name: str) -> str:
    return name.replace("_", "-").replace(".", "-").lower()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _state_now(key: str, root: str) -> str | None:
    kind, _, name = key.partition(" ")
    return state_of((kind, os.path.join(root, name) if kind in _PATHS else name))  # type: ignore[arg-type]


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root) if path == root or path.startswith(f"{root}/") else path


def _digest_of_file(path: str) -> str | None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None if not stat.S_ISDIR(status.st_mode) else "directory"
        return digest_of_file(path)
    except (OSError, ValueError):
        return None


def digest_of_file(path: str) -> str:
    """The digest of a file's content. Raises OSError: it cannot be read."""
    status = os.stat(path)
    return _digest_once(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=8192)
def _digest_once(path: str, _changed_ns: int, _size: int, _inode: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of_names(path: str) -> str | None:
    try:
        return digest_of(sorted(os.fsencode(name).hex() for name in os.listdir(path) if not is_left_out(name)))
    except (OSError, ValueError):
        return None


def _place_of_module(name: str) -> str | None:
    """The first directory of Python's path, of those that hold no installed packages, in which a module of that name is."""
    for place in dict.fromkeys(os.path.abspath(path) for path in sys.path):
        if os.path.basename(place) not in _SITES and place not in _PYTHON and key_of_file(f"{place}/x") is not None:
            for found in (f"{name}/__init__.py", f"{name}.py", name):
                if os.path.exists(os.path.join(place, found)):
                    return found
    return None
