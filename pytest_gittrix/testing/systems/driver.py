"""Drives any session system by the names that users of our engine know, on a stage: a place with the system in it.

Clauses and the state machine are written against this: a ``Stage`` is a ``Sandbox``. Nothing here depends on which system is driven.
"""

from __future__ import annotations

import builtins
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from pytest_gittrix.engine.operations.shown_files import ListEntry
from pytest_gittrix.engine.operations.validation import policy_of
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.record.state.records import Eviction, EvictionPolicy
from pytest_gittrix.record.state.values import Policy
from pytest_gittrix.testing.oracle import Judge
from pytest_gittrix.testing.repos.journal import DURABLE, STATE_OF_DURABLE, Journal, RecordedEngine, RecordedPerson
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.driver_members import DrivenMembers, DrivenRules
from pytest_gittrix.testing.systems.handle import Handle, forwarded, forwarded_as
from pytest_gittrix.testing.systems.protocol import VERBS, Capability, Engine, OptionalVerbs, Promoted, SessionSystem, check_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gittrix.testing.repos.durable import DurableRepo, Rival

_CAPABILITIES: Final = {verb: capability for capability, verbs in VERBS.items() for verb in verbs}
"""The capability that has a verb; every system has the verbs that are not here."""


class DrivenSession(Handle):
    """A session of any system, with the verbs of our ``UserSession`` as far as the system has them.

    Every verb that the system does not declare raises CapabilityMissing.

    Attributes:
        id: its id.
    """

    def __init__(self, engine: Any, capabilities: frozenset[Capability], id_: str) -> None:
        super().__init__(engine, id_)
        self._capabilities = capabilities

    def _call(self, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        _require(_CAPABILITIES.get(verb), self._capabilities)
        return super()._call(verb, *args, **kwargs)

    read = forwarded_as(bytes, Engine.read)
    files = forwarded_as(sorted, Engine.list)
    touched_files = forwarded_as(sorted, Engine.touched)
    evict = forwarded(Engine.evict)
    delete = forwarded(OptionalVerbs.delete)
    commit = forwarded_as(str, OptionalVerbs.commit)
    hunks = forwarded(OptionalVerbs.hunks)
    discard = forwarded(OptionalVerbs.discard)
    extend = forwarded(OptionalVerbs.extend)
    archived = forwarded_as(dict, OptionalVerbs.archived)
    side_work = forwarded(OptionalVerbs.side_work)
    events = forwarded_as(builtins.list, OptionalVerbs.events)
    record = forwarded_as(int, OptionalVerbs.record)
    emit = forwarded(OptionalVerbs.emit)
    subscribe = forwarded(OptionalVerbs.subscribe)
    start_turn = forwarded(OptionalVerbs.start_turn)
    interrupt = forwarded_as(bool, OptionalVerbs.interrupt)
    finish = forwarded(OptionalVerbs.finish)
    lineage = forwarded(OptionalVerbs.lineage)

    @property
    def workspace_path(self) -> Path | None:
        """The directory that the agent's programs run in; None where the system has no ``shell``."""
        return Path(self._call("workspace")) if Capability.SHELL in self._capabilities else None

    @property
    def state(self) -> str:
        """Its state, as the engine lists it."""
        return str(self._engine.sessions()[self.id])

    @property
    def turn_running(self) -> bool:
        """Whether its engine runs a turn of it."""
        return bool(self._call("turn_running"))

    def exists(self, path: str) -> bool:
        """Whether the agent sees a file there."""
        return path in self.files()

    def write(self, path: str, data: bytes | str) -> None:
        """Write a file."""
        self._call("write", path, data.encode() if isinstance(data, str) else data)

    def list(self) -> builtins.list[ListEntry]:
        """The files as the entries that our engine lists."""
        return [ListEntry(path, "file") for path in self.files()]

    def promote(
        self,
        *,
        files: Iterable[str] | None = None,
        hunks: Mapping[str, Sequence[int]] | None = None,
        strategy: str | None = None,
        message: str | None = None,
    ) -> Promoted:
        """Promote everything, some files or some hunks, as one commit."""
        optional = {name: value for name, value in (("hunks", hunks), ("strategy", strategy)) if value is not None}
        made = self._call("promote", files=None if files is None else [*files], message=message, **optional)
        return made if isinstance(made, Promoted) else Promoted(str(made))

    def fork(self, at_seq: int | None = None) -> DrivenSession:
        """Start a session that begins as this one was after an event."""
        return self._another("fork", at_seq)

    def handoff(self, **identity: str) -> DrivenSession:
        """End it and go on in a new one."""
        return self._another("handoff", **identity)

    def succeed(self, **identity: str) -> DrivenSession:
        """Start a session that goes on in the line of this one, which crashed."""
        return self._another("succeed", **identity)

    def _another(self, verb: str, /, *args: Any, **kwargs: Any) -> DrivenSession:
        return DrivenSession(self._engine, self._capabilities, str(self._call(verb, *args, **kwargs)))


class DrivenEngine:
    """An engine of any system, with the verbs of our ``GitTrix`` as far as every system has them.

    Attributes:
        raw: the engine itself.
    """

    def __init__(self, raw: Any, capabilities: frozenset[Capability], journal: Journal | None = None) -> None:
        self.raw = raw
        self._engine: Any = RecordedEngine(raw, journal if journal is not None else Journal())
        self._capabilities = capabilities
        self._closed = False

    def start_session(self, task: str, *, eviction: Eviction | None = None, **identity: str) -> DrivenSession:
        """Start a session from the head of durable's branch; of a system with ``lines``, perhaps saying who works in it, and on what."""
        return self.get_session(str(self._engine.start(task, EvictionPolicy.of(policy_of(eviction, Policy())), **identity)))

    def get_session(self, id_: str) -> DrivenSession:
        """A handle of a session. Whether the session exists shows when the handle is used."""
        return DrivenSession(self._engine, self._capabilities, id_)

    def states(self) -> dict[str, str]:
        """Each session's state by id."""
        return dict(self._engine.sessions())

    def sweep(self) -> list[str]:
        """Evict what is past its time; gives the ids, sorted."""
        return sorted(self._engine.sweep())

    def query(self, **filters: Any) -> list[str]:
        """The ids of the sessions that fit, newest first."""
        return [*self._declared(Capability.LINES).query(**filters)]

    def chain(self, chain: str) -> list[str]:
        """The ids of a line, oldest first."""
        return [*self._declared(Capability.LINES).chain(chain)]

    @property
    def members(self) -> DrivenMembers:
        """The sessions of members."""
        return DrivenMembers(self._declared(Capability.MEMBERS))

    @property
    def rules(self) -> DrivenRules:
        """The rules by which the system tells a session's status."""
        return DrivenRules(self._declared(Capability.STATUS))

    def _declared(self, capability: Capability) -> Any:
        _require(capability, self._capabilities)
        return self._engine

    def close(self) -> None:
        """Close the engine. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self.raw.close()


def _require(capability: Capability | None, declared: frozenset[Capability]) -> None:
    if capability is not None and capability not in declared:
        raise CapabilityMissing(
            f"The system does not declare {capability!s}.", fix="Ask for `capabilities` first; a clause names what it needs."
        )


@dataclass(frozen=True)
class SearchBudget:
    """For how long a clause searches for crashes and races; with 0 seconds it tries a few moments only.

    Attributes:
        crash: seconds for kills of a process at each of its calls.
        race: seconds for orders of two processes.
    """

    crash: float = 0.0
    race: float = 0.0


NO_SEARCH: Final = SearchBudget()
"""A few moments only."""


class Stage:
    """A place with a system in it. Made by ``Stage.open``; a context manager that closes both.

    Attributes:
        system: the system.
        place: its place; ``durable``, ``rival`` and ``clock`` are those of the place.
        journal: what was done on the stage.
        gittrix: the first engine.
        budget: for how long a clause on this stage searches for crashes and races.
    """

    budget = SearchBudget()

    def __init__(self, system: SessionSystem, place: Place, closing: ExitStack) -> None:
        self.system = system
        self.place = place
        self.journal, self.clock = place.journal, place.clock
        self.durable = cast("DurableRepo", RecordedPerson(place.durable, self.journal, "durable"))
        self.rival = cast("Rival", RecordedPerson(place.rival, self.journal, "rival"))
        self._closing = closing
        self._began = place.clock.now()
        self.gittrix = self.reopen()

    @classmethod
    def open(cls, system: SessionSystem, path: str | os.PathLike[str] | None = None, **arguments: Any) -> Self:
        """Make a place and open the system in it.

        Args:
            system: the system under test.
            path: as for ``Place.open``, like all other arguments.
            arguments: as for ``Place.open``. ``workspace`` and ``sweep_interval`` are for our engine alone, and are dropped.

        Raises:
            InvalidInput: ``system`` is no session system, or an argument is not allowed.
        """
        arguments = {name: value for name, value in arguments.items() if name not in ("workspace", "sweep_interval")}
        with ExitStack() as closing:
            place = closing.enter_context(Place.open(path, **arguments))
            place.journal.begin(place.path, arguments)
            stage = cls(check_system(system), place, closing)
            stage._closing = closing.pop_all()
            return stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.journal.steps.clear()  # errors of the calls hold on to whole stacks
        self._closing.__exit__(kind, error, trace)

    @property
    def path(self) -> Path:
        """The directory of the place."""
        return self.place.path

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables for programs: hermetic git, dates of the clock."""
        return self.place.env

    def start(self, task: str = "Improve the project", eviction: Eviction | None = None, **identity: str) -> DrivenSession:
        """Start a session with the first engine."""
        return self.gittrix.start_session(task, eviction=eviction, **identity)

    @contextmanager
    def another(self, **arguments: Any) -> Iterator[Stage]:
        """A fresh stage with the same system; the arguments are those of ``open``.

        Where the block is left by an exception, the journal of this stage tells what was done on the other one.
        """
        with Stage.open(self.system, **arguments) as fresh:
            try:
                yield fresh
            except BaseException:
                fresh.note_end()
                self.journal.take_over(fresh.journal)
                raise

    def reopen(self) -> DrivenEngine:
        """Open one more engine on the same sessions; it is closed with the stage."""
        engine = DrivenEngine(self.system.open(self.place), self.system.capabilities, self.journal)
        self._closing.callback(engine.close)
        return engine

    def note_end(self) -> None:
        """Write into the journal how the place is left: the state of durable, and whether its clock was moved."""
        if self.journal.root != self.path:
            return  # the journal tells of another stage
        if self.clock.now() != self._began:
            self.journal.beyond = self.journal.beyond or "The clock of the place was moved meanwhile."
        environment = hermetic_env(self.path / "home")
        command = ["sh", "-c", f"{STATE_OF_DURABLE} 2>/dev/null | git hash-object --stdin"]
        with suppress(OSError):
            ended = subprocess.run(command, cwd=self.place.durable.path, env=environment, capture_output=True, text=True, check=False)
            self.journal.left = ended.stdout.strip()

    @property
    def judge(self) -> Judge:
        """Reads durable out of band, with a git process of its own."""
        self.journal.looked = DURABLE
        return self._judge

    @cached_property
    def _judge(self) -> Judge:
        return self._closing.enter_context(Judge(self.durable.path))


def sandbox_of(system: SessionSystem) -> Callable[..., Any]:
    """A function that opens stages with a system, as ``machine_for`` and ``ModelCheck`` take one."""

    @contextmanager
    def opened(**arguments: Any) -> Iterator[Stage]:
        with Stage.open(system, **arguments) as stage:
            yield stage

    opened.system = system  # type: ignore[attr-defined]  # so that ``access_to`` finds what the system declares
    return opened
