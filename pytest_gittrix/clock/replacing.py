"""Attributes of a module or a class, replaced for the length of a block, and the code that keeps real time meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

WAITERS: Final = frozenset(
    {"_pytest", "asyncio", "concurrent", "execnet", "filelock", "hypothesis", "multiprocessing", "pytest"}
    | {"selectors", "subprocess", "threading", "xdist"}
)
"""Packages that wait for a lock, a program or a thread, or measure how long a test took: by real time."""


class RealTime(NamedTuple):
    """The modules that keep real time in a frozen process: those of ``packages``, and those whose names begin with one of ``prefixes``."""

    packages: frozenset[str]
    prefixes: tuple[str, ...]

    def has(self, module: object) -> bool:
        """Whether a module is one of them, by its ``__name__``."""
        name = str(module)
        return name.partition(".")[0] in self.packages or name.startswith(self.prefixes)


@contextmanager
def replaced(owner: Any, substitutes: Mapping[str, Any]) -> Iterator[None]:
    """Give attributes of ``owner`` other values until the block ends."""
    originals = {name: getattr(owner, name) for name in substitutes}
    try:
        for name, substitute in substitutes.items():
            setattr(owner, name, substitute)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
