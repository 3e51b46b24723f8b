"""Find what a commit can hold and other machines or programs cannot take, or take for something else.

Such a path is no mistake where the commit is made: git and Linux allow it. These are pure functions over names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Set
from typing import Final

from pytest_gittrix.git.tree import parents

_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\..*)?", re.IGNORECASE | re.DOTALL)
_RESERVED: Final = re.compile(r'[\x00-\x1f<>:"|?*\\]')
_OBJECTS: Final = "objects/"
_PACK: Final = re.compile(r"((?:.*/)?)objects/pack/pack-[^/]*\.pack", re.DOTALL)
_OF_A_REPOSITORY: Final = re.compile(r"config|packed-refs|refs/.*", re.DOTALL)


def hazards(paths: Set[str], nested: Collection[str] = ()) -> dict[str, str]:
    """The hazards among the paths that a commit adds, each with the reason.

    Args:
        paths: the added paths.
        nested: directories with a repository of their own, whose files may be among them.
    """
    found = {path: reason for path in paths if (reason := unportable(path))}
    found.update((path, "it has the files of a git repository, and git can go by its configuration") for path in _bare(paths))
    inside = {above for path in paths for above in parents(path)}
    found.update((path, "it has a repository of its own, whose history is not in the commit") for path in nested if path in inside)
    return dict(sorted(found.items()))


def unportable(path: str) -> str:
    """Why a path cannot be checked out on Windows or macOS; empty if it can."""
    for name in path.split("/"):
        if any("\ud800" <= character <= "\udfff" for character in name):
            return "macOS allows only names in UTF-8"
        if reserved := _RESERVED.search(name):
            return f"Windows allows no {reserved[0]!r} in a name"
        if name.endswith((".", " ")):
            return f"Windows drops the last character of {name!r}"
        if _DEVICE.fullmatch(name):
            return f"on Windows {name!r} is a device"
    return ""


def _bare(paths: Set[str]) -> Iterator[str]:
    """The directories that have the files of a bare repository, or its configuration and packs: git needs little more to go by them."""
    for path in paths:
        if (pack := _PACK.fullmatch(path)) is not None and f"{pack[1]}config" in paths:
            yield pack[1].rstrip("/") or "."
        above, _, name = path.rpartition("/")
        if name != "HEAD":
            continue
        prefix = f"{above}/" if above else ""
        inside = [other.removeprefix(prefix) for other in paths if other.startswith(prefix)]
        if any(other.startswith(_OBJECTS) for other in inside) and any(map(_OF_A_REPOSITORY.fullmatch, inside)):
            yield above or "."
