"""What a session system is: a few verbs over session ids, and a set of declared capabilities.

Our engine, a toy of forty lines and a program in any language are all driven through this protocol. The conformance suite, the state
machine and the zoo use nothing else of a system.
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
    """Something a system can do. Every system has the capabilities of ``BASE``, and declares which of ``EXTENDED`` it has too."""

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
    ARCHIVE = "archive"
    SIDE_WORK = "side-work"


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
"""What a system may do beyond ``BASE``.

``resume``: sessions outlive the engine that started them. ``shell``: the agent has a directory to run programs in. ``clock``: TTLs follow
the clock of the place. ``absolute``: sessions can have an absolute TTL. ``processes``: several processes may work on the same sessions.
``crash``: a killed process leaves nothing that needs a human. ``history`` requires ``events``; ``turns`` and ``forks`` require both. With
``lines``, ``start`` takes the identity of a session as keywords: ``agent``, ``rig``, ``work_unit``. ``members``: the system also has
sessions of the members of a team, in workspaces of several repositories, whose work is saved when they end
(docs/explanation/you-know-botminter.md). ``status``: the status of a session follows from observations of it
(docs/explanation/you-know-agent-orchestrator.md). ``archive``: what an ended session did not promote can be had back.
``side-work``: so can what the agent's own repository held beyond its files.
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
    Capability.ARCHIVE: ("archived",),
    Capability.SIDE_WORK: ("side_work",),
}
"""The methods that an engine has if, and only if, its system declares the capability."""


@dataclass(frozen=True)
class Promoted:
    """The result of a promotion.

    Attributes:
        sha: the id of the commit; empty with a strategy that makes no commit.
        branch: the branch that the commit is on; None for durable's own.
        patch: the patch, with strategy ``patch``.
    """

    sha: str
    branch: str | None = None
    patch: str | None = None


class Engine(Protocol):
    """The verbs by which one process works with the sessions of a place.

    Errors are exceptions with a ``code``, such as ``BASELINE_CONFLICT``; the error of a conflict also has ``conflicting_files``.
    ``promote`` is called with ``hunks=`` or ``strategy=``, and ``start`` with ``agent=`` and so on, only if the system declares the
    capability (``hunks``, ``strategies``, ``lines``). ``OptionalVerbs`` has the other verbs.
    """

    def start(self, task: str, policy: EvictionPolicy) -> str:
        """Start a session from the head of durable's branch; gives its id."""
        ...

    def read(self, id: str, path: str) -> bytes:
        """A file as the agent sees it. ``PATH_NOT_FOUND`` if it does not exist."""
        ...

    def write(self, id: str, path: str, data: bytes) -> None:
        """Write a file. ``WRITE_REJECTED`` for a path that must not be written."""
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
        """Release all resources; sessions stay as they are."""
        ...


class TurnContext(Protocol):
    """The argument of a turn's function.

    Attributes:
        session_id: the id of the session in which the turn runs.
    """

    session_id: str

    def record(self, type: str, data: dict[str, Any]) -> object:
        """Record an event in that session, as ``OptionalVerbs.record`` does."""
        ...


class TurnHandle(Protocol):
    """A turn that was started.

    Attributes:
        status: ``running``; then ``done`` (its function returned), ``failed`` (it raised), or ``interrupted``.
    """

    status: str

    def wait(self, seconds: float) -> bool:
        """Wait up to so many real seconds until the turn has ended and the log says so; whether it has."""
        ...


class OptionalVerbs(MemberVerbs, StatusVerbs, Protocol):
    """The verbs that an engine has for the capabilities its system declares; each docstring begins with the capability."""

    def delete(self, id: str, path: str) -> None:
        """``delete``: remove a file; no error if it does not exist."""
        ...

    def discard(self, id: str) -> None:
        """``discard``: end a session and give its work up."""
        ...

    def commit(self, id: str, message: str) -> str:
        """``commits``: make a commit in the workspace, for the agent's own use; gives its id."""
        ...

    def hunks(self, id: str) -> Mapping[str, Sequence[int]]:
        """``hunks``: the numbers of the hunks of each touched text file, from 1, as ``promote(hunks={path: numbers})`` takes them."""
        ...

    def extend(self, id: str, ttl: timedelta) -> None:
        """``extend``: give a session a new idle TTL, counted from now."""
        ...

    def archived(self, id: str) -> Mapping[str, bytes | None]:
        """``archive``: the work of an ended session that was not promoted: the bytes of each path, None for one that was deleted."""
        ...

    def side_work(self, id: str) -> Path | None:
        """``side-work``: a repository with the branches and stashes of an ended session's own repository; None for nothing."""
        ...

    def workspace(self, id: str) -> Path:
        """``shell``: the directory in which the agent's programs run."""
        ...

    def events(self, id: str) -> Sequence[Mapping[str, Any]]:
        """``events``: the stored events of a session, in order, each with an integer ``seq`` from 0 and a ``type``.

        With ``history``, events that ``record`` stored also have their ``data``, and an ended session keeps its events.
        """
        ...

    def record(self, id: str, type: str, data: Mapping[str, Any]) -> int:
        """``history``: store an event, then announce it; gives its ``seq``.

        The types are at least ``user_message`` (``text``, perhaps ``metadata``), ``assistant_message`` (``text``), ``tool_call``
        (``call_id``, ``name``, ``args``) and ``tool_result`` (``call_id``, ``ok``, perhaps ``output`` or ``error``). ``INVALID_INPUT`` for
        another type, or for data that lack a key or are not JSON.
        """
        ...

    def emit(self, id: str, type: str, data: Mapping[str, Any]) -> None:
        """``history``: announce an event that is not stored: at least ``text_delta`` (``chunk``). ``INVALID_INPUT`` as for ``record``."""
        ...

    def subscribe(self, id: str, listener: Callable[[Mapping[str, Any]], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """``history``: have ``listener(event)`` called for each event that this engine stores or announces in a session, in order.

        The listener is called before the verb that caused the event returns, and may read events. An event that is not stored has
        the ``seq`` -1.

        Args:
            id: the session.
            listener: takes an event as ``events`` gives it.
            types: the types of events to receive; all by default.

        Returns:
            A function that ends the subscription.
        """
        ...

    def start_turn(self, id: str, fn: Callable[[Any], object]) -> TurnHandle:
        """``turns``: run ``fn(context)`` (a ``TurnContext``) in a process or a thread. ``TURN_BUSY`` while another turn runs.

        Before the turn starts, open tool calls are answered in the order of their ids, and so are those that ``interrupt`` finds. The
        answer is a ``tool_result`` of ``call_id``, ``ok`` (false) and ``error``: {``kind``: ``orphan_tool_call``, ``details``:
        {``call_id``, ``tool``, ``reason``}}, the reason being ``before_start_turn``, ``interrupt`` or ``interrupt_no_turn``.
        """
        ...

    def interrupt(self, id: str) -> bool:
        """``turns``: end the turn that this engine runs, and every process it started; whether a turn ran."""
        ...

    def turn_running(self, id: str) -> bool:
        """``turns``: whether this engine runs a turn of the session."""
        ...

    def fork(self, id: str, at_seq: int | None = None) -> str:
        """``forks``: start a session that begins as a live one was after an event, the last by default; gives its id.

        The new session has the events up to that one, under new numbers, and the files of that moment. Files are saved at every
        ``user_message``, so they are known for an event between a ``user_message`` and the next write. ``INVALID_INPUT`` for an event
        that does not exist.
        """
        ...

    def handoff(self, id: str, **identity: str) -> str:
        """``lines``: end a session with the outcome ``handoff``, and go on with its workspace in a new one; gives the new one's id.

        Whatever ``identity`` does not name stays as it was.
        """
        ...

    def finish(self, id: str, outcome: str) -> None:
        """``lines``: end a session as ``discard`` does, with an outcome: ``done``, ``crash`` or ``killed``."""
        ...

    def succeed(self, id: str, **identity: str) -> str:
        """``lines``: start a session from the head of durable's branch, in the line of one that crashed; gives the new one's id.

        ``SESSION_EXPIRED`` if that session did not crash, or has a successor.
        """
        ...

    def lineage(self, id: str) -> Mapping[str, Any]:
        """``lines``: the lineage of a session, live or ended: ``parent``, ``child``, ``chain``, ``root``, ``outcome``, ``state``.

        ``child`` is the session that goes on in its line, ``chain`` the first session of the line, and ``root`` the first ancestor, by
        forks too (a fork begins a line). A value that does not exist is None.
        """
        ...

    def query(self, **filters: Any) -> Iterable[str]:
        """``lines``: the ids of the sessions that match all filters, newest first.

        Args:
            filters: ``agent``, ``rig``, ``work_unit``, ``chain``, ``outcome``: equal to the value; ``since``: started at that datetime or
                later; ``until``: started before that datetime; ``limit``: how many at most, 0 (the default) for all.
        """
        ...

    def chain(self, chain: str) -> Iterable[str]:
        """``lines``: the ids of the sessions of a line, oldest first; none for an unknown line."""
        ...


class SessionSystem(Protocol):
    """A session system that can be tested.

    Attributes:
        name: its name in reports.
        capabilities: everything it can do: ``BASE`` and some of ``EXTENDED``.
    """

    name: str
    capabilities: frozenset[Capability]

    def open(self, place: Place) -> Engine:
        """Open an engine on the sessions in ``place.home``, for durable's branch ``place.durable.branch``.

        If the system declares ``resume``, it is called again on the same place; with ``processes``, also while another engine is open.
        """
        ...


def check_system(system: SessionSystem) -> SessionSystem:
    """Check that an object is a session system, and that the capabilities it declares exist.

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
    undeclared = [one for one in Capability if one in BASE and one not in declared]
    if undeclared:
        raise InvalidInput(
            f"{system.name} does not declare {', '.join(undeclared)}.",
            why="Every session system does what is in BASE; without it there is nothing to test.",
            fix="Declare BASE | {...}.",
        )
    return system
