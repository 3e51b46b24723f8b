"""What the function of a turn shares with the code around it. A process has only a copy of that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any, Final

_CONTAINERS: Final = (MutableMapping, MutableSequence, MutableSet)
_CHANGES: Final = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard"}
    | {"clear", "sort", "reverse"}
)
_OF_THREADS: Final = frozenset({"threading", "_thread", "queue", "_queue"})


def warn_of_copies(fn: Callable[..., Any], *, stacklevel: int) -> None:
    """Warn if a function changes variables of the code around it, as far as its own code shows, since its turn runs in a process.

    Args:
        fn: the function of a turn.
        stacklevel: which caller the warning points at; 1 is the caller of this function.
    """
    shared = [*shared_variables(fn)]
    if shared:
        warnings.warn(
            f"The turn runs in a process, which has a copy of {', '.join(shared)}: this program sees no change to it. "
            "Return the result or record() it, share it with runs='thread', or say runs='process' if a copy is meant.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


def shared_variables(fn: Callable[..., Any]) -> Iterator[str]:
    """The variables around a closure that it assigns, containers where it changes some, and locks, events and queues of threads."""
    function = getattr(fn, "__func__", fn)
    cells, code = getattr(function, "__closure__", None), getattr(function, "__code__", None)
    if not cells or code is None:
        return
    from dis import get_instructions  # slow to load, and few turns are closures

    steps = [*get_instructions(code)]
    assigned = {step.argval for step in steps if step.opname == "STORE_DEREF"}
    changes = not _CHANGES.isdisjoint(code.co_names) or any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps)
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # nothing was assigned yet
            value = None
        of_threads = type(value).__module__ in _OF_THREADS
        if name in assigned or of_threads or (changes and isinstance(value, _CONTAINERS)):
            yield name
