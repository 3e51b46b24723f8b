"""Drives any session system by the names that users of our engine know, on a stage: a place with the system in it.

Clauses are written against this, and so is the state machine: a ``Stage`` is a ``Sandbox``. It must not know which system it drives, nor
pytest.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pytest_gittrix.engine.operations.review import ListEntry
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.oracle import Judge
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.driver_members import DrivenMembers, DrivenRules
from pytest_gittrix.testing.systems.protocol import Capability, Promoted, SessionSystem, TurnHandle, check_system

if TYPE_CHECKING:
    from collections.abc import Iterator


class DrivenSession:
    """A session of any system, with the verbs of our ``UserSession`` as far as the system has them.

    Attributes:
        id: its id.
    """

    def __init__(self, engine: Any, capabilities: frozenset[Capability], id_: str) -> None:
        self.id = id_
        self._engine = engine
        self._capabilities = capabilities

    def __repr__(self) -> str:
        return f"<DrivenSession {self.id}>"

    def _verb(self, capability: Capability, name: str) -> Callable[..., Any]:
        if capability not in self._capabilities:
            raise CapabilityMissing(f"The system does not declare {capability!s}.")
        verb: Callable[..., Any] = getattr(self._engine, name)
        return verb

    @property
    def workspace_path(self) -> Path | None:
        """The directory that the agent's programs run in; None where the system has no ``shell``."""
        if Capability.SHELL not in self._capabilities:
            return None
        return Path(self._engine.workspace(self.id))

    @property
    def state(self) -> str:
        """Its state as the engine lists it."""
        return str(self._engine.sessions()[self.id])

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        return bytes(self._engine.read(self.id, path))

    def exists(self, path: str) -> bool:
        """Whether the agent sees a file there."""
        return path in self.files()

    def write(self, path: str, data: bytes | str) -> None:
        """Write a file."""
        self._engine.write(self.id, path, data.encode() if isinstance(data, str) else data)

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._verb(Capability.DELETE, "delete")(self.id, path)

    def files(self) -> list[str]:
        """The paths of all files, sorted."""
        return sorted(self._engine.list(self.id))

    def list(self) -> list[ListEntry]:
        """The same as our engine gives them."""
        return [ListEntry(path, "file") for path in self.files()]

    def touched_files(self) -> builtins.list[str]:
        """The paths that differ from the baseline, sorted."""
        return sorted(self._engine.touched(self.id))

    def commit(self, message: str) -> str:
        """Commit in the workspace."""
        return str(self._verb(Capability.COMMITS, "commit")(self.id, message))

    def hunks(self) -> Mapping[str, Sequence[int]]:
        """The hunks of each touched text file."""
        found: Mapping[str, Sequence[int]] = self._verb(Capability.HUNKS, "hunks")(self.id)
        return found

    def events(self) -> builtins.list[Mapping[str, Any]]:
        """What happened to it, in order."""
        return [*self._verb(Capability.EVENTS, "events")(self.id)]

    def record(self, type: str, data: Mapping[str, Any]) -> int:
        """Store what was said or done, then announce it; gives its ``seq``."""
        return int(self._verb(Capability.HISTORY, "record")(self.id, type, data))

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Announce what is not stored."""
        self._verb(Capability.HISTORY, "emit")(self.id, type, data)

    def subscribe(self, listener: Callable[[Mapping[str, Any]], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """Have a listener told of what happens; gives a function that ends it."""
        ends: Callable[[], None] = self._verb(Capability.HISTORY, "subscribe")(self.id, listener, types)
        return ends

    def start_turn(self, fn: Callable[[Any], object]) -> TurnHandle:
        """Run ``fn(context)`` beside this program."""
        turn: TurnHandle = self._verb(Capability.TURNS, "start_turn")(self.id, fn)
        return turn

    def interrupt(self) -> bool:
        """End its turn; whether there was one."""
        return bool(self._verb(Capability.TURNS, "interrupt")(self.id))

    @property
    def turn_running(self) -> bool:
        """Whether its engine runs a turn of it."""
        return bool(self._verb(Capability.TURNS, "turn_running")(self.id))

    def fork(self, at_seq: int | None = None) -> DrivenSession:
        """Start a session that begins as this one was after an event."""
        return self._other(self._verb(Capability.FORKS, "fork")(self.id, at_seq))

    def handoff(self, **identity: str) -> DrivenSession:
        """End it and go on in a new one."""
        return self._other(self._verb(Capability.LINES, "handoff")(self.id, **identity))

    def finish(self, outcome: str) -> None:
        """End it, and say how its agent ended."""
        self._verb(Capability.LINES, "finish")(self.id, outcome)

    def succeed(self, **identity: str) -> DrivenSession:
        """Start a session that goes on in the line of this one, which crashed."""
        return self._other(self._verb(Capability.LINES, "succeed")(self.id, **identity))

    def lineage(self) -> Mapping[str, Any]:
        """Its place in its line."""
        place: Mapping[str, Any] = self._verb(Capability.LINES, "lineage")(self.id)
        return place

    def _other(self, id_: object) -> DrivenSession:
        return DrivenSession(self._engine, self._capabilities, str(id_))

    def promote(
        self,
        *,
        files: Iterable[str] | None = None,
        hunks: Mapping[str, Sequence[int]] | None = None,
        strategy: str | None = None,
        message: str | None = None,
    ) -> Promoted:
        """Promote everything, some files or some hunks, as one commit."""
        more: dict[str, Any] = {}
        if hunks is not None:
            more["hunks"] = hunks
        if strategy is not None:
            more["strategy"] = strategy
        made = self._engine.promote(self.id, files=None if files is None else [*files], message=message, **more)
        return made if isinstance(made, Promoted) else Promoted(str(made))

    def discard(self) -> None:
        """End it; its work is not wanted."""
        self._verb(Capability.DISCARD, "discard")(self.id)

    def extend(self, ttl: timedelta) -> None:
        """Give it another idle TTL, from now."""
        self._verb(Capability.EXTEND, "extend")(self.id, ttl)

    def evict(self) -> None:
        """End it and remove its workspace."""
        self._engine.evict(self.id)


class DrivenEngine:
    """An engine of any system, with the verbs of our ``GitTrix`` as far as every system has them.

    Attributes:
        raw: the engine itself.
    """

    def __init__(self, raw: Any, capabilities: frozenset[Capability]) -> None:
        self.raw = raw
        self._capabilities = capabilities
        self._closed = False

    def start_session(self, task: str, *, eviction: EvictionPolicy | None = None, **identity: str) -> DrivenSession:
        """Start a session from the head of durable's branch; of a system with ``lines``, perhaps saying who works in it, and on what."""
        return self.get_session(str(self.raw.start(task, eviction if eviction is not None else EvictionPolicy(), **identity)))

    def get_session(self, id_: str) -> DrivenSession:
        """A handle on a session; that it exists is found out by using it."""
        return DrivenSession(self.raw, self._capabilities, id_)

    def states(self) -> dict[str, str]:
        """Each session's state by id."""
        return dict(self.raw.sessions())

    def sweep(self) -> list[str]:
        """Evict what is past its time; gives the ids, sorted."""
        return sorted(self.raw.sweep())

    def query(self, **filters: Any) -> list[str]:
        """The ids of the sessions that fit, newest first."""
        return [*self._lines().query(**filters)]

    def chain(self, chain: str) -> list[str]:
        """The ids of a line, oldest first."""
        return [*self._lines().chain(chain)]

    @property
    def members(self) -> DrivenMembers:
        """Its members' sessions."""
        return DrivenMembers(self._declared(Capability.MEMBERS))

    @property
    def rules(self) -> DrivenRules:
        """How it tells what a session is."""
        return DrivenRules(self._declared(Capability.STATUS))

    def _lines(self) -> Any:
        return self._declared(Capability.LINES)

    def _declared(self, capability: Capability) -> Any:
        if capability not in self._capabilities:
            raise CapabilityMissing(f"The system does not declare {capability!s}.")
        return self.raw

    def close(self) -> None:
        """Let go of everything. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self.raw.close()


class Stage:
    """A place with a system in it. Made by ``Stage.open``; a context manager that closes both.

    Attributes:
        system: the system.
        place: its place; ``durable``, ``rival`` and ``clock`` are those of the place.
        gittrix: the first engine.
    """

    def __init__(self, system: SessionSystem, place: Place, closing: ExitStack) -> None:
        self.system = system
        self.place = place
        self.durable, self.rival, self.clock = place.durable, place.rival, place.clock
        self._closing = closing
        self.gittrix = self.reopen()

    @classmethod
    def open(cls, system: SessionSystem, path: str | os.PathLike[str] | None = None, **arguments: Any) -> Self:
        """Set a stage.

        Args:
            system: the system under test.
            path: as for ``Place.open``, like all other arguments.
            arguments: of these, ``workspace`` and ``sweep_interval`` are for our engine alone, and are dropped.

        Raises:
            InvalidInput: ``system`` is none, or an argument is not allowed.
        """
        arguments = {name: value for name, value in arguments.items() if name not in ("workspace", "sweep_interval")}
        with ExitStack() as closing:
            place = closing.enter_context(Place.open(path, **arguments))
            stage = cls(check_system(system), place, closing)
            stage._closing = closing.pop_all()
            return stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.__exit__(kind, error, trace)

    @property
    def path(self) -> Path:
        """The directory of it all."""
        return self.place.path

    @property
    def env(self) -> Mapping[str, str]:
        """Variables for programs: hermetic git, dates of the clock."""
        return self.place.env

    def start(self, task: str = "Improve the project", eviction: EvictionPolicy | None = None, **identity: str) -> DrivenSession:
        """Start a session with the first engine."""
        return self.gittrix.start_session(task, eviction=eviction, **identity)

    def reopen(self) -> DrivenEngine:
        """One more engine on the same sessions; closed with the stage."""
        engine = DrivenEngine(self.system.open(self.place), self.system.capabilities)
        self._closing.callback(engine.close)
        return engine

    @cached_property
    def judge(self) -> Judge:
        """Reads durable out of band, with a git process of its own."""
        return self._closing.enter_context(Judge(self.durable.path))


def sandbox_of(system: SessionSystem) -> Callable[..., Any]:
    """A system as ``machine_for`` and ``Trial`` take one."""

    @contextmanager
    def opened(**arguments: Any) -> Iterator[Stage]:
        with Stage.open(system, **arguments) as stage:
            yield stage

    opened.system = system  # type: ignore[attr-defined]  # so that it is known what may be asked of it
    return opened
