"""Agents as processes: observed, sent input, and stopped with everything they started, by any process.

``start`` starts them. Each has a directory with its files (its identity, its output, its input, how it ended), so that any process can do
all this, also after the process that started it is gone.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.engine.agents.supervisor import EXIT, INPUT, LIMIT, OUTPUT, RECORD
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.file_lock import try_lock
from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.process_tree import KILL_WAIT, POLL, ProcessTree, process, signal_process

AgentState = Literal["alive", "exited", "missing", "probe_failed"]

GRACE: Final = 10.0
"""Real seconds from SIGTERM to SIGKILL (BotMinter)."""
CAPTURED: Final = 100
"""Lines of output that ``capture`` returns (Gas Town)."""

_DIRECTORY: Final = re.compile(r"agent-([0-9]{1,9})")
_MOST_CAPTURED: Final = 1 << 20
_NAP: Final = 0.005
_LONGEST_NAP: Final = 0.05


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of an agent's process.

    Attributes:
        state: ``alive``, stopped or not; ``exited``: it has run and is dead; ``missing``: there is no such process, and no record of one;
            ``probe_failed``: it cannot be observed from here.
        code: its exit status; None if a signal ended it, or its end was not observed.
        signal: the number of the signal that ended it.
        ended_ns: when it ended, in nanoseconds since 1970 UTC, if its supervisor observed it.
        reason: more about it, for people.
        limit: the limit that it passed, and was ended for: ``processes``, ``memory``, ``disk`` or ``cpu``.
    """

    state: AgentState
    code: int | None = None
    signal: int | None = None
    ended_ns: int | None = None
    reason: str = ""
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """The result of stopping an agent.

    Attributes:
        observation: its state afterwards.
        asked: pids that got SIGTERM, in that order.
        killed: pids that got SIGKILL.
        left: pids that still run; none, unless they belong to another user or hang in the kernel.
    """

    observation: Observation
    asked: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.asked or self.killed or self.left)


@dataclass(frozen=True)
class AgentProcess:
    """An agent that was started by any process.

    Args:
        directory: the directory of its files; it may be gone.
        owner: its process, as it was stored when it was started; by default as its directory records it.
    """

    directory: Path
    owner: Owner | None = None
    _supervisor: Owner | None = field(default=None, init=False, repr=False)
    _mark: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        record = _json_file(self.directory / RECORD)
        try:
            written, supervisor, mark = Owner.from_json(record.get("owner")), Owner.from_json(record.get("keeper")), str(record["mark"])
        except (InvalidInput, KeyError):
            return
        if self.owner is None:
            object.__setattr__(self, "owner", written)
        if self.owner == written:  # the files of another agent say nothing about this one
            object.__setattr__(self, "_supervisor", supervisor)
            object.__setattr__(self, "_mark", mark)

    def observe(self) -> Observation:
        """Its state. Neither another process that has its pid now, nor a zombie, is taken for alive."""
        owner = self.owner
        if owner is None:
            return Observation("missing", reason="nothing tells that an agent was started here")
        lives = owner.alive()
        if lives:
            return Observation("alive")
        if lives is None:
            return Observation("probe_failed", reason=_unseen(owner))
        return self._ended(owner)

    def wait(self, timeout: float) -> Observation:
        """Wait until it runs no more, for ``timeout`` real seconds at most; returns its state then."""
        deadline, nap = real_seconds() + timeout, _NAP
        while (observation := self.observe()).state == "alive" and real_seconds() < deadline:
            pause(min(nap, max(deadline - real_seconds(), 0)))
            nap = min(nap * 2, _LONGEST_NAP)
        return observation

    def _ended(self, owner: Owner) -> Observation:
        # A zombie still shows how it ended; its supervisor writes that down before it waits for it.
        observation = self._written(owner) or _of_zombie(owner) or self._written(owner)
        if observation is not None:
            return self._with_limit(observation)
        if self._supervisor is None:
            return Observation("missing", reason=f"process {owner.pid} is not there, and nothing tells how it ended")
        return Observation("exited", reason="no process was left to see how it ended")

    def _written(self, owner: Owner) -> Observation | None:
        record = _json_file(self.directory / EXIT)
        if (record.get("pid"), record.get("start_time")) != (owner.pid, owner.start_time):
            return None
        return Observation("exited", record.get("code"), record.get("signal"), record.get("at_ns"))

    def _with_limit(self, observation: Observation) -> Observation:
        """An observation with the limit that it was ended for, which its launcher wrote down before it ended."""
        try:
            limit = (self.directory / LIMIT).read_text("utf-8")
        except OSError:
            return observation
        if not limit:  # the disk was full
            return observation
        return replace(observation, limit=limit, reason=f"it was ended, because it passed its limit of {limit}")

    def stop(self, *, grace: float = GRACE, poll: float = POLL) -> StopOutcome:
        """End it, with everything it started: SIGTERM for the agent, then for its orphans, then SIGKILL for what is left.

        It does not matter which process started it, or where its children went. A second call does nothing.

        Args:
            grace: real seconds from the first SIGTERM to SIGKILL; 0 kills at once.
            poll: the longest time between two looks, in real seconds.

        Returns:
            What was done. Killed processes have 2 seconds to end, and then the supervisor has 2 to write down how the agent ended.

        Raises:
            InvalidInput: grace is below 0, or poll not above.
            CapabilityMissing: it runs on another machine or in another container, or this system does not show its processes.
        """
        if not grace >= 0 or not poll > 0:
            raise InvalidInput(f"grace is {grace!r} and poll {poll!r}.", fix="Use seconds: grace from 0, poll above 0.")
        before = self.observe()
        if before.state == "probe_failed":
            raise CapabilityMissing(
                f"The agent in {self.directory} cannot be stopped from here: {before.reason}.",
                why="A signal could meet a process that has nothing to do with it.",
                fix="Stop it on the machine and in the container where it runs.",
            )
        if self.owner is None or self.owner.boot_id != Owner.current().boot_id:
            return StopOutcome(before)
        ended = ProcessTree(self.owner, self._supervisor, self._mark).end(grace=grace, poll=poll)
        if not ended.left:
            self._await_supervisor()
        return StopOutcome(self.observe(), ended.asked, ended.killed, ended.left)

    def capture(self, lines: int = CAPTURED) -> str:
        """The last lines of its output and errors, as they came; of very long ones, the last million bytes of them all.

        What is not UTF-8 is shown as U+FFFD. Empty if there is none.

        Raises:
            InvalidInput: fewer than 0 lines.
        """
        if lines < 0:
            raise InvalidInput(f"{lines} lines cannot be shown.", fix="Use 0 or more.")
        try:
            with open(self.directory / OUTPUT, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_CAPTURED))
                data = file.read(_MOST_CAPTURED)
        except OSError:
            return ""
        shown = data.removesuffix(b"\n").split(b"\n")[-lines:] if lines and data else []
        return b"\n".join(shown).decode("utf-8", "replace") + ("\n" if shown and data.endswith(b"\n") else "")

    def send(self, text: str, *, wait: float = 5.0) -> None:
        """Write a text to its standard input, whole, after those of other writers.

        Args:
            text: as it is; most programs want a line end.
            wait: real seconds to wait for an agent that does not read.

        Raises:
            AdapterUnavailable: no process of it reads any more, or it did not read in time; the message says how much was written.
        """
        data = text.encode("utf-8", "surrogateescape")
        try:
            fd = os.open(self.directory / INPUT, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                written = _write_in_turn(fd, data, real_seconds() + wait)
            finally:
                os.close(fd)
        except OSError as problem:
            raise AdapterUnavailable(
                f"The agent in {self.directory} reads nothing any more.",
                why=f"It is {self.observe().state}; of its input the system says: {problem.strerror}.",
                fix="Start it again.",
            ) from problem
        if written < len(data):
            raise AdapterUnavailable(
                f"The agent in {self.directory} did not read within {wait:g} s, and {written} of {len(data)} bytes were written to it.",
                why="What was sent before fills its input.",
                fix="See whether it hangs, with observe() and capture().",
            )

    def _await_supervisor(self) -> None:
        """Let the supervisor write down how the agent ended; a supervisor that does not is killed."""
        if self._supervisor is None or self.owner is None:
            return
        deadline = real_seconds() + KILL_WAIT
        while (supervisor := process(self._supervisor.pid)) and supervisor.is_(self._supervisor) and supervisor.alive:
            if real_seconds() > deadline:
                if self._written(self.owner) is None:
                    signal_process(supervisor, signal.SIGKILL)
                return
            pause(_NAP)


def agent_directories(directory: Path) -> dict[int, Path]:
    """The directories of a session's agents, ``agent-1``, ``agent-2`` and so on, by their numbers.

    Args:
        directory: the session's directory.
    """
    return {int(match[1]): directory / name for name in names_in(directory) if (match := _DIRECTORY.fullmatch(name))}


def _of_zombie(owner: Owner) -> Observation | None:
    dead = process(owner.pid)
    if dead is None or not dead.is_(owner) or dead.status is None:
        return None
    code = os.waitstatus_to_exitcode(dead.status)
    return Observation("exited", code if code >= 0 else None, -code if code < 0 else None)


def _write_in_turn(fd: int, data: bytes, deadline: float) -> int:
    """Write all that can be written until a deadline, one sender at a time; returns how much. Raises OSError without a reader."""
    mine, written = False, 0
    while written < len(data):
        with suppress(BlockingIOError):
            mine = mine or try_lock(fd)
            if mine:
                written += os.write(fd, data[written : written + select.PIPE_BUF])
                continue
        if real_seconds() > deadline:
            break
        pause(_NAP)
    return written


def _json_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _unseen(owner: Owner) -> str:
    here = Owner.current()
    if owner.host != here.host:
        return f"it runs on {owner.host}, and this is {here.host}"
    return f"whether process {owner.pid} is it cannot be seen from here"
