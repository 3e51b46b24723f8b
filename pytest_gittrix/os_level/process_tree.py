"""Ends processes with everything that they started, whatever those did to get away, and signals only those that are still the same.

``end_tree`` kills what descends from one process. A ``ProcessTree`` also finds what left its parents: processes that descend from its
supervisor (who adopts orphans), are in the session or group of its leader, carry its mark in their environment, or were found before. All
of a tree is stopped before any of it is killed, so that nothing slips away between two looks. Needs Linux's ``/proc``; elsewhere
``end_tree`` kills a process group. The module loads as little as it can, since small programs of the package use it, too.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.proc import (
    EXIT_STATUS,
    GROUP,
    PARENT,
    SESSION,
    START_TIME,
    STATE,
    environment,
    pids,
    stat_fields,
    with_descendants,
)

TYPE_CHECKING = False  # the module of that name is dear to load
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Final

    from pytest_gittrix.os_level.lock_owner import Owner
else:
    import _signal as signal  # the other one makes an enumeration of every number

MARK: Final = "GITTRIX_AGENT_MARK"
"""The variable that every process of an agent inherits; its value is the agent's own."""
POLL: Final = 0.5
"""Real seconds between two looks at an agent that was sent SIGTERM (BotMinter)."""
KILL_WAIT: Final = 2.0
"""Real seconds that killed processes have to be gone (BotMinter)."""

_FIRST_NAP: Final = 0.002
_SUPERVISOR_WAIT: Final = 0.3
_DEAD: Final = ("Z", "X")
_STOPPED: Final = ("T", "t")


class Process:
    """One line of the process table; equal to each later one of the same process.

    Attributes:
        pid: its number.
        start_time: clock ticks from boot to its start, which tells it from another one with that number.
        parent: the number of its parent.
        group: the number of its process group.
        session: the number of its session.
        state: the status letter; ``Z`` and ``X`` are dead.
        status: how it ended, as ``waitpid`` tells it; only of a dead one, and None where the system does not say.
    """

    __slots__ = ("group", "parent", "pid", "session", "start_time", "state", "status")

    def __init__(self, pid: int, start_time: int, parent: int, group: int, session: int, state: str, status: int | None = None) -> None:
        self.pid = pid
        self.start_time = start_time
        self.parent = parent
        self.group = group
        self.session = session
        self.state = state
        self.status = status

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Process) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from every other process of this boot."""
        return self.pid, self.start_time

    @property
    def alive(self) -> bool:
        """Whether it is not dead; one that is stopped lives."""
        return self.state not in _DEAD

    def is_(self, owner: Owner | None) -> bool:
        """Whether it is the process that an owner names."""
        return owner is not None and (owner.pid, owner.start_time) == self.identity


def process(pid: int) -> Process | None:
    """The process of a number, None if there is none that can be seen."""
    try:
        fields = stat_fields(pid)
        state = fields[STATE].decode()
        status = int(fields[EXIT_STATUS]) if state == "Z" and len(fields) > EXIT_STATUS and _may_look_into(pid) else None
        return Process(pid, int(fields[START_TIME]), int(fields[PARENT]), int(fields[GROUP]), int(fields[SESSION]), state, status)
    except (OSError, ValueError, IndexError):
        return None


def _may_look_into(pid: int) -> bool:
    """Whether the system tells this user how a process ended; to others it says 0."""
    return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)


def table() -> dict[int, Process]:
    """All processes that can be seen, by number."""
    found = (process(pid) for pid in pids())
    return {one.pid: one for one in found if one is not None}


def marked(pids: Iterable[int], mark: str, variable: str = MARK) -> set[int]:
    """Those of some processes that were started with a mark in their environment."""
    wanted = f"{variable}={mark}".encode()
    found = set()
    for pid in pids:
        with suppress(OSError):
            if wanted in environment(pid):
                found.add(pid)
    return found


def marks_above(pid: int, variable: str = MARK) -> Iterator[str]:
    """The marks of a process and of those that it descends from, nearest first. What cannot be seen has none.

    Args:
        pid: its number.
        variable: the name that they carry their marks under.
    """
    prefix = f"{variable}=".encode()
    passed: set[int] = set()
    while pid > 0 and pid not in passed:
        passed.add(pid)
        with suppress(OSError):
            yield from (one[len(prefix) :].decode(errors="replace") for one in environment(pid) if one.startswith(prefix))
        try:
            pid = int(stat_fields(pid)[PARENT])
        except (OSError, ValueError, IndexError):
            return


def signal_process(which: Process | Owner, number: int) -> bool:
    """Send a signal to a process if it is still the same one; whether it was sent.

    Where the system has pidfds, no other process can get the signal, however fast numbers are used again.
    """
    fd = None
    try:
        with suppress(AttributeError, OSError):
            fd = os.pidfd_open(which.pid)
        now = process(which.pid)
        if now is None or now.start_time != which.start_time:
            return False
        if fd is None:
            os.kill(which.pid, number)
        else:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


class EndedTree:
    """What was done to end processes.

    Attributes:
        asked: pids that were sent SIGTERM, in that order.
        killed: pids that got SIGKILL.
        left: pids that run all the same: they belong to another user, or hang in the kernel.
    """

    def __init__(self, asked: Iterable[int], killed: Iterable[int], left: Iterable[int]) -> None:
        self.asked, self.killed, self.left = tuple(asked), tuple(killed), tuple(left)


class ProcessTree:
    """The processes of an agent, or of another program.

    Args:
        leader: the first of them, which leads a session; None to go by the mark alone.
        supervisor: who waits for it and adopts orphans; not one of them itself.
        mark: what they carry in their environment.
        variable: under which name.
    """

    def __init__(
        self, leader: Owner | None = None, supervisor: Owner | None = None, mark: str | None = None, *, variable: str = MARK
    ) -> None:
        self._leader = leader
        self._supervisor = supervisor
        self._mark = mark
        self._variable = variable
        self._known: dict[int, int] = {}

    def look(self) -> list[Process]:
        """Those that live now, without the supervisor and without the process that asks."""
        return sorted((one for one in self._ours() if one.alive), key=lambda one: (one.start_time, one.pid))

    def _ours(self) -> list[Process]:
        """Those that live, and those that are dead but not waited for."""
        now = table()
        found = {
            pid for pid, one in now.items() if self._known.get(pid) == one.start_time or one.is_(self._leader) or one.is_(self._supervisor)
        }
        if self._leader is not None and self._leader.pid in found:
            # As long as the leader's number is the leader's, a session of that number is no other one.
            found |= {pid for pid, one in now.items() if self._leader.pid in (one.session, one.group)}
        if self._mark is not None:
            found |= marked(now, self._mark, self._variable)
        parents = {pid: one.parent for pid, one in now.items()}
        ours = [now[pid] for pid in with_descendants(found, parents) if not now[pid].is_(self._supervisor) and pid != os.getpid()]
        self._known = {one.pid: one.start_time for one in ours}
        return ours

    def end(self, *, grace: float = 0, poll: float = POLL) -> EndedTree:
        """Have all of them end: the leader is asked first, then what it left behind; what does not end in time is killed.

        Args:
            grace: real seconds from the first SIGTERM to SIGKILL; 0 kills at once.
            poll: the longest time between two looks, in real seconds.
        """
        asked = self._ask(grace, poll) if grace > 0 else []
        # Who forks faster than anybody can look may not be seen; but a supervisor does not end as long as there is somebody.
        if not self.look() and self._supervisor_ends():
            return EndedTree(asked, (), ())
        killed = self._kill()
        left = self._wait_gone(KILL_WAIT) if killed else self.look()
        return EndedTree(asked, killed, (one.pid for one in left))

    def _ask(self, grace: float, poll: float) -> list[int]:
        asked: dict[int, int] = {}
        deadline, nap = real_seconds() + grace, _FIRST_NAP
        while left := self.look():
            first = [one for one in left if one.is_(self._leader)]
            for one in first or left:
                if asked.get(one.pid) != one.start_time:
                    asked[one.pid] = one.start_time
                    signal_process(one, signal.SIGTERM)
                    signal_process(one, signal.SIGCONT)  # one that is stopped hears nothing
            rest = deadline - real_seconds()
            if rest <= 0:
                break
            pause(min(nap, poll, rest))
            nap *= 2
        return [*asked]

    def _kill(self) -> list[int]:
        # A stopped supervisor waits for no child, so that even those that die and fork all the time can be seen, and keep their numbers.
        self._stop_supervisor()

        def look() -> list[Process]:
            ours = self._ours()
            self._stop_groups(ours)
            return ours

        killed = _stop_and_kill(look)
        if (supervisor := self._living_supervisor()) is not None:
            signal_process(supervisor, signal.SIGCONT)
        return killed

    def _stop_groups(self, ours: list[Process]) -> None:
        """One that forks faster than anybody can look is met with its group, since all of that gets a signal at once."""
        for group in {one.group for one in ours} - {0, os.getpgrp()}:
            leader = process(group)
            if leader is None or self._known.get(group) == leader.start_time:
                with suppress(OSError):
                    os.killpg(group, signal.SIGSTOP)

    def _living_supervisor(self) -> Process | None:
        supervisor = process(self._supervisor.pid) if self._supervisor is not None else None
        return supervisor if supervisor is not None and supervisor.alive and supervisor.is_(self._supervisor) else None

    def _stop_supervisor(self) -> None:
        deadline = real_seconds() + _SUPERVISOR_WAIT
        while (supervisor := self._living_supervisor()) is not None and supervisor.state not in _STOPPED and real_seconds() < deadline:
            signal_process(supervisor, signal.SIGSTOP)
            pause(_FIRST_NAP)

    def _supervisor_ends(self) -> bool:
        deadline = real_seconds() + _SUPERVISOR_WAIT
        while self._living_supervisor() is not None and real_seconds() < deadline:
            pause(_FIRST_NAP)
        return self._living_supervisor() is None

    def _wait_gone(self, wait: float) -> list[Process]:
        deadline, nap = real_seconds() + wait, _FIRST_NAP
        while (left := self.look()) and real_seconds() < deadline:
            for one in left:
                signal_process(one, signal.SIGKILL)
            pause(nap)
            nap = min(nap * 2, 0.05)
        return left


def _stop_and_kill(look: Callable[[], list[Process]]) -> list[int]:
    """Stop all that is found, until two looks find the same; then kill it, and return the pids of what was killed."""
    stopped: dict[Process, None] = {}
    before: list[tuple[int, int, str]] | None = None
    deadline = real_seconds() + KILL_WAIT
    while True:
        ours = look()
        for one in ours:
            if one.alive and one not in stopped:
                stopped[one] = None
                signal_process(one, signal.SIGSTOP)
        now = [(*one.identity, one.state) for one in ours]
        if now == before or real_seconds() >= deadline:
            break
        before = now
    return [one.pid for one in stopped if signal_process(one, signal.SIGKILL)]


def lead() -> None:
    """Make this process the leader of a group of its own, and (on Linux) the parent of every orphan among its descendants."""
    os.setsid()
    if sys.platform == "linux":
        from pytest_gittrix.os_level.linux import adopt_orphans

        adopt_orphans()


def end_tree(root: int) -> None:
    """Kill a process that leads its group (perhaps this one), and all that descend from it. One that is gone already is no error.

    The process itself is the caller's to wait for. If it was waited for already, another process may have its number; that is left alone.
    """
    seen = process(root)
    if seen is not None and (root in (seen.group, os.getpid()) or seen.parent == os.getpid()):
        end_below(root)
    # Its group outlives a leader that died by itself.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


def end_below(root: int, *, spare: Collection[int] = ()) -> None:
    """Kill a process with all that descend from it, but for those to spare and for the one that calls this."""

    def look() -> list[Process]:
        now = table()
        below = with_descendants({root} & now.keys(), {pid: one.parent for pid, one in now.items()})
        return [now[pid] for pid in sorted(below.difference(spare, {os.getpid()}))]  # a process that stops itself kills nothing any more

    _stop_and_kill(look)


def end_descendants() -> None:
    """Kill all that descend from this process, which must adopt orphans, and wait for them."""
    with suppress(ChildProcessError):
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            end_below(os.getpid())
            os.waitpid(-1, 0)
