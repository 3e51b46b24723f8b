"""What a session system is to this kit: a few verbs over session ids, and a set of declared capabilities.

Ours, a toy of forty lines and a program in any language are all driven through this; the conformance suite, the state machine and the
zoo know nothing else of a system. It must know neither an engine nor pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.systems.protocol_members import MemberVerbs, StatusVerbs

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import EvictionPolicy
    from pytest_gittrix.testing.repos.place import Place


class Capability(StrEnum):
    """Something a system can do. Every system has those of ``BASE``; it declares which of ``EXTENDED`` it has besides."""

    START = "start"
    READ = "read"
    WRITE = "write"
    LIST = "list"
    PROMOTE = "promote"
    CONFLICT = "conflict"
    EVICT = "evict"

    DELETE = "delete"
    DISCARD = "discard"
    COMMITS = "commits"
    HUNKS = "hunks"
    STRATEGIES = "strategies"
    EXTEND = "extend"
    RESUME = "resume"
    SHELL = "shell"
    EVENTS = "events"
    CLOCK = "clock"
    ABSOLUTE = "absolute"
    PROCESSES = "processes"
    CRASH = "crash"
    HISTORY = "history"
    TURNS = "turns"
    FORKS = "forks"
    LINES = "lines"
    MEMBERS = "members"
    STATUS = "status"


BASE: Final = frozenset(
    {
        Capability.START,
        Capability.READ,
        Capability.WRITE,
        Capability.LIST,
        Capability.PROMOTE,
        Capability.CONFLICT,
        Capability.EVICT,
    }
)
"""What every session system does: start, read, write, list, promote, refuse a conflict, evict."""

EXTENDED: Final = frozenset(Capability) - BASE
"""What a system may do besides.

``resume``: sessions outlive the engine that started them. ``shell``: the agent has a directory to run programs in. ``clock``: TTLs follow
the place's clock. ``absolute``: sessions can have an absolute TTL. ``processes``: several processes may work on the same sessions.
``crash``: a killed process leaves nothing that needs a human. ``history`` builds on ``events``, ``turns`` and ``forks`` on both; with
``lines``, ``start`` takes who works in the session, and on what, as keywords: ``agent``, ``rig``, ``work_unit``. ``members``: there are
sessions of members of a team too, in workspaces of several repositories, whose work is saved when they end (BotMinter). ``status``: what a
session is follows from what is seen of it (agent-orchestrator).
"""

VERBS: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.DELETE: ("delete",),
    Capability.DISCARD: ("discard",),
    Capability.COMMITS: ("commit",),
    Capability.HUNKS: ("hunks",),
    Capability.EXTEND: ("extend",),
    Capability.SHELL: ("workspace",),
    Capability.EVENTS: ("events",),
    Capability.HISTORY: ("record", "emit", "subscribe"),
    Capability.TURNS: ("start_turn", "interrupt", "turn_running"),
    Capability.FORKS: ("fork",),
    Capability.LINES: ("handoff", "finish", "succeed", "lineage", "query", "chain"),
    Capability.MEMBERS: (
        *("open_member", "life", "lives", "repositories", "stop", "conclude", "finalize", "keep_for", "scan", "cleanup", "acquire"),
    ),
    Capability.STATUS: ("status_of", "is_terminal", "is_restorable", "is_polled", "look_through"),
}
"""The methods that an engine has if, and only if, its system declares the capability."""


@dataclass(frozen=True)
class Promoted:
    """What a promotion made.

    Attributes:
        sha: the commit; empty where the strategy makes none.
        branch: the branch it is on; None for durable's own.
        patch: the patch, with strategy ``patch``.
    """

    sha: str
    branch: str | None = None
    patch: str | None = None


class Engine(Protocol):
    """One process's way to the sessions of a place. Errors are exceptions with a ``code`` (``BASELINE_CONFLICT`` and so on, DESIGN 4.3).

    A promotion is called with ``hunks=`` and ``strategy=``, and ``start`` with ``agent=`` and so on, only where the system declares those
    capabilities (``hunks``, ``strategies``, ``lines``); a conflict's error has ``conflicting_files`` besides. The optional verbs are in
    ``OptionalVerbs``.
    """

    def start(self, task: str, policy: EvictionPolicy) -> str:
        """Start a session from the head of durable's branch; gives its id."""
        ...

    def read(self, id: str, path: str) -> bytes:
        """A file as the agent sees it. ``PATH_NOT_FOUND`` if there is none."""
        ...

    def write(self, id: str, path: str, data: bytes) -> None:
        """Write a file. ``WRITE_REJECTED`` for a path that may not be written."""
        ...

    def list(self, id: str) -> Iterable[str]:
        """The paths of all files the agent sees, in any order."""
        ...

    def touched(self, id: str) -> Iterable[str]:
        """The paths that differ from the baseline, in any order."""
        ...

    def promote(self, id: str, files: Sequence[str] | None = None, message: str | None = None) -> Promoted | str:
        """Promote everything, or some touched paths, as one commit. ``BASELINE_CONFLICT``, ``PROMOTE_FAILED``."""
        ...

    def evict(self, id: str) -> None:
        """End a session and remove its workspace."""
        ...

    def sweep(self) -> Iterable[str]:
        """Evict every session whose time is up; gives their ids."""
        ...

    def sessions(self) -> Mapping[str, str]:
        """Each session's state by id: ``active``, ``promoted``, ``discarded``, ``expired``."""
        ...

    def close(self) -> None:
        """Let go of everything; sessions stay as they are."""
        ...


class TurnContext(Protocol):
    """What the function of a turn is given.

    Attributes:
        session_id: of the session that the turn is of.
    """

    session_id: str

    def record(self, type: str, data: dict[str, Any]) -> object:
        """As ``OptionalVerbs.record``, in that session."""
        ...


class TurnHandle(Protocol):
    """A turn that was started.

    Attributes:
        status: ``running``; then ``done`` (its function returned), ``failed`` (it raised), or ``interrupted``.
    """

    status: str

    def wait(self, seconds: float) -> bool:
        """Wait, in real seconds, until it is over and the log says so; whether it is."""
        ...


class OptionalVerbs(MemberVerbs, StatusVerbs, Protocol):
    """What an engine has besides, capability by capability."""

    def delete(self, id: str, path: str) -> None:
        """``delete``: remove a file. That there is none is no error."""
        ...

    def discard(self, id: str) -> None:
        """``discard``: end a session whose work is not wanted."""
        ...

    def commit(self, id: str, message: str) -> str:
        """``commits``: commit in the workspace, for the agent's own use; gives the id."""
        ...

    def hunks(self, id: str) -> Mapping[str, Sequence[int]]:
        """``hunks``: the numbers, from 1, of the hunks of each touched text file, as ``promote(hunks={path: numbers})`` takes them."""
        ...

    def extend(self, id: str, ttl: timedelta) -> None:
        """``extend``: give a session another idle TTL, counted from now."""
        ...

    def workspace(self, id: str) -> Path:
        """``shell``: the directory that the agent's programs run in."""
        ...

    def events(self, id: str) -> Sequence[Mapping[str, Any]]:
        """``events``: what happened to a session, in order, each with an integer ``seq`` from 0 and a ``type``.

        With ``history``, those that ``record`` stored have their ``data`` too; and an ended session has its events still.
        """
        ...

    def record(self, id: str, type: str, data: Mapping[str, Any]) -> int:
        """``history``: store what was said or done, then announce it; gives its ``seq``.

        There are at least ``user_message`` (``text``, perhaps ``metadata``), ``assistant_message`` (``text``), ``tool_call`` (``call_id``,
        ``name``, ``args``) and ``tool_result`` (``call_id``, ``ok``, perhaps ``output`` or ``error``). ``INVALID_INPUT`` for another type,
        or for data that lack a key or that JSON cannot hold.
        """
        ...

    def emit(self, id: str, type: str, data: Mapping[str, Any]) -> None:
        """``history``: announce what is not stored: at least ``text_delta`` (``chunk``). ``INVALID_INPUT`` as for ``record``."""
        ...

    def subscribe(self, id: str, listener: Callable[[Mapping[str, Any]], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """``history``: have ``listener(event)`` called for what this engine stores and announces in a session, in order.

        It is called before the verb that it tells of returns. It may read events. What was not stored has the ``seq`` -1.

        Args:
            id: the session.
            listener: is given what ``events`` would give.
            types: only these; all by default.

        Returns:
            A function that ends it.
        """
        ...

    def start_turn(self, id: str, fn: Callable[[Any], object]) -> TurnHandle:
        """``turns``: run ``fn(context)`` (a ``TurnContext``) beside this program, in a process or a thread. ``TURN_BUSY`` beside another.

        Calls of tools that have no result yet are answered first, and so are those that ``interrupt`` finds, in the order of their ids, by
        a ``tool_result`` of ``call_id``, ``ok`` (false) and ``error``: {``kind``: ``orphan_tool_call``, ``details``: {``call_id``,
        ``tool``, ``reason``}}, the reason being ``before_start_turn``, ``interrupt`` or ``interrupt_no_turn``.
        """
        ...

    def interrupt(self, id: str) -> bool:
        """``turns``: end the turn that this engine runs, with every process it started; whether there was one."""
        ...

    def turn_running(self, id: str) -> bool:
        """``turns``: whether this engine runs a turn of the session."""
        ...

    def fork(self, id: str, at_seq: int | None = None) -> str:
        """``forks``: start a session that begins as a live one was after an event, the last by default; gives its id.

        It has what was recorded up to there, under new numbers, and the files as they were. Those were kept where the user said something
        (``user_message``), and are known until files are written again. ``INVALID_INPUT`` for an event that there is not.
        """
        ...

    def handoff(self, id: str, **identity: str) -> str:
        """``lines``: end a session (its outcome is ``handoff``) and go on in a new one, with its workspace as it is; gives that one's id.

        Of who works in it, and on what, what is not told is as it was.
        """
        ...

    def finish(self, id: str, outcome: str) -> None:
        """``lines``: end a session as ``discard`` does, and say how its agent ended: ``done``, ``crash`` or ``killed``."""
        ...

    def succeed(self, id: str, **identity: str) -> str:
        """``lines``: start a session from the head of durable's branch that goes on in the line of one that crashed; gives its id.

        ``SESSION_EXPIRED`` if that one did not crash, or has a successor.
        """
        ...

    def lineage(self, id: str) -> Mapping[str, Any]:
        """``lines``: a session's place, ended or not: ``parent``, ``child``, ``chain``, ``root``, ``outcome``, ``state``.

        ``child`` is the one that goes on in its line, ``chain`` the first of the line, and ``root`` the first of all that it comes from, by
        forks too, with which lines begin. What there is none of is None.
        """
        ...

    def query(self, **filters: Any) -> Iterable[str]:
        """``lines``: the ids of the sessions for which everything given holds, newest first.

        Args:
            filters: ``agent``, ``rig``, ``work_unit``, ``chain``, ``outcome``: equal; ``since``: started then or later, a datetime;
                ``until``: started before; ``limit``: how many at most, 0 (the default) for all.
        """
        ...

    def chain(self, chain: str) -> Iterable[str]:
        """``lines``: the ids of a line, oldest first; of one that there is not, none."""
        ...


class SessionSystem(Protocol):
    """A session system that can be put to the test.

    Attributes:
        name: shown in reports.
        capabilities: all it can do; ``BASE`` and some of ``EXTENDED``.
    """

    name: str
    capabilities: frozenset[Capability]

    def open(self, place: Place) -> Engine:
        """An engine on the sessions kept in ``place.home``, for durable's branch ``place.durable.branch``.

        Called again on the same place where the system declares ``resume``, while another is open where it declares ``processes``.
        """
        ...


def check_system(system: SessionSystem) -> SessionSystem:
    """See that something is a session system, and declares capabilities that there are.

    Raises:
        InvalidInput: it has no ``name``, ``capabilities`` or ``open``; a capability is unknown; or one of ``BASE`` is missing.
    """
    missing = [name for name in ("name", "capabilities", "open") if not hasattr(system, name)]
    if missing:
        raise InvalidInput(
            f"{system!r} is not a session system: it has no {', '.join(missing)}.",
            fix="Give an object with a name, a set of capabilities, and open(place). See pytest_gittrix.conformance.SessionSystem.",
        )
    declared = set(system.capabilities)
    unknown = sorted(str(one) for one in declared - set(Capability))
    if unknown:
        raise InvalidInput(
            f"{system.name} declares {', '.join(unknown)}, which is no capability.", fix=f"There are: {', '.join(Capability)}."
        )
    left_out = [one for one in Capability if one in BASE and one not in declared]
    if left_out:
        raise InvalidInput(
            f"{system.name} does not declare {', '.join(left_out)}.",
            why="Every session system does what is in BASE; without it there is nothing to test.",
            fix="Declare BASE | {...}.",
        )
    return system
