"""Ending a process with everything it started, whatever that does to stay alive.

On Linux the whole tree is stopped first and killed then, so that nothing slips away between two looks; elsewhere its process group is
killed. It must not know what a process is for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def lead() -> None:
    """Make this process the leader of a group of its own, and (on Linux) the parent of every orphan among its descendants."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_tree(root: int) -> None:
    """Kill a process that called ``lead`` (perhaps this one), and all that descend from it. One that is gone already is no error.

    The process itself is the caller's to wait for.
    """
    end_below(root, spare=frozenset())
    # Its group outlives a leader that died by itself.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


def end_below(root: int, *, spare: frozenset[int]) -> None:
    """Kill a process with all that descend from it, but for those to spare and for the one that calls this."""
    stopped: set[int] = set()
    spared = spare | {os.getpid()}  # who stops itself kills nobody any more
    while fresh := _tree(root) - stopped - spared:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def children(parent: int) -> set[int]:
    """The processes that a process is the parent of, where ``/proc`` tells."""
    return {pid for pid, its in _parents().items() if its == parent}


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _tree(root: int) -> set[int]:
    parents = _parents()
    found = {root} & (parents.keys() or {root})
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def _parents() -> dict[int, int]:
    """Each process's parent, where ``/proc`` tells."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                    # The second field is the program's name, in parentheses and of its own choosing.
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found
