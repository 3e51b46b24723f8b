"""A real event log for a test to build, to compare and to damage: its own, or that of a session.

Every change is made in the file that readers read; nothing is simulated.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.durations import ns_of
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.errors import InvalidInput, LogDamaged
from pytest_gittrix.record.eventlog.events import Actor, Event, check, decode, encode, path_fields
from pytest_gittrix.record.eventlog.log import ReadPolicy
from pytest_gittrix.record.state.fold import ORIGINS, SessionState, fold
from pytest_gittrix.record.state.values import Policy
from pytest_gittrix.record.store.store import LOG, Store
from pytest_gittrix.testing.scenarios.golden_log import golden
from pytest_gittrix.testing.scenarios.log_check import log_problems

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.agent_session import AgentSession

_SECOND: Final = timedelta(seconds=1)


class LogKit:
    """One log. Several threads can use it as safely as the engine: each event is written under the session's lease.

    Args:
        directory: a store of sessions, made if need be; the log is ``<id>/events.jsonl`` in it.
        id: the id of the session.
        start: the instant of its first event; aware.
        step: the time from each event to the next.

    Attributes:
        id: the id of the session.
        store: the store of the session, for ``store.load(id)`` and for an engine on it.
    """

    def __init__(
        self, directory: str | os.PathLike[str], id: str = "sess_0000000000log", *, start: datetime = CLOCK_START, step: timedelta = _SECOND
    ) -> None:
        self.id = id
        self.store = Store(Path(directory), durability="fast")
        self._start, self._step = ns_of(start), step // timedelta(microseconds=1) * 1000
        self.store.directory(id).mkdir(parents=True, exist_ok=True)
        self._log = self.store.log(id)

    @property
    def path(self) -> Path:
        """The file of the log."""
        return self._log.path

    @classmethod
    def of(cls, session: AgentSession | str | os.PathLike[str]) -> LogKit:
        """A kit for the log of an existing session: to compare it, to check it, to damage it.

        Args:
            session: a session, or the path of an ``events.jsonl`` in a directory that is named after its session.

        Raises:
            InvalidInput: the path is not that of a session's log.
        """
        if not isinstance(session, str | os.PathLike):
            return cls(parts_of(session).recorder.store.root, session.id)
        file = Path(session).absolute()
        if file.name != LOG or not file.is_file():
            raise InvalidInput(f"{file} is not the log of a session.", fix=f"Give a session, or the path of its {LOG}.")
        return cls(file.parent.parent, file.parent.name)

    # Reading -------------------------------------------------------------------------------------------------------------------

    def events(self, policy: ReadPolicy = "repair-tail") -> list[Event]:
        """The events that a reader gets; ``EventLog.read`` describes the policies and errors."""
        return self.store.log(self.id).read(policy)

    def state(self, policy: ReadPolicy = "repair-tail") -> SessionState:
        """The fold of the events; ``Store.load`` describes the errors."""
        return self.store.load(self.id, policy=policy)

    def golden(self) -> str:
        """The history as a text that is the same in every run, to compare with ``==``; see ``golden_log.golden``."""
        return golden(self.events())

    def invariants(self) -> list[str]:
        """The problems of the log, one text each; see ``log_check.log_problems``."""
        return log_problems(self.store.log(self.id))

    # Building ------------------------------------------------------------------------------------------------------------------

    def append(self, type: str, /, **data: Any) -> Event:
        """Store an event by the agent. If the log is empty, ``session.created`` and ``workspace.ready`` are stored first.

        Args:
            type: a type of the vocabulary.
            data: the data of the event. Missing keys of a ``session.created`` are filled in.

        Raises:
            InvalidInput: the vocabulary has no such event.
            LogDamaged: it cannot happen now (a write after the end, a second birth), or the log is damaged; nothing was stored.
        """
        return self.put(type, data)

    def put(self, type: str, data: Mapping[str, Any], *, actor: Actor = "agent", at: datetime | None = None, legal: bool = True) -> Event:
        """As ``append``, with every option.

        Args:
            type: a type of the vocabulary.
            data: the data of the event; its keys may have any names.
            actor: who did it.
            at: its instant; by default one step after the last event.
            legal: refuse an event that cannot happen now. Otherwise every event of the vocabulary is stored, and nothing before it, to
                write a history that readers must reject.
        """
        complete = {**self._birth(), **data} if type == "session.created" else data
        check(type, complete, actor)
        with self.store.lease(self.id):
            events = self.events(policy="repair-tail" if legal else "skip")
            if legal:
                state = fold(events) if events else None
                if state is None and type not in ORIGINS:
                    events = [self._store("session.created", self._birth(), "human", None, at)]
                    events.append(self._store("workspace.ready", self._ready(), "system", events[-1], at))
                    state = fold(events)
                self._require_possible(type, complete, state)
            return self._store(type, complete, actor, events[-1] if events else None, at)

    def build(self, count: int = 20, *, seed: int = 0) -> list[Event]:
        """Store various events that can happen: messages, turns, calls and answers, files, steps, odd characters.

        The session is live afterwards. The same arguments give the same events.

        Args:
            count: how many, with ``session.created`` and ``workspace.ready`` if the log is empty.
            seed: of the random choice of events.

        Returns:
            The new events.
        """
        draw = random.Random(seed)
        made: list[Event] = []
        with self.store.lease(self.id):
            events = self.events()
            state = fold(events) if events else None
            last = events[-1] if events else None
            while len(made) < count:
                type_, data, actor = self._next(state, draw)
                last = self._store(type_, data, actor, last)
                state = fold([last], state)
                made.append(last)
        return made

    def _next(self, state: SessionState | None, draw: random.Random) -> tuple[str, Mapping[str, Any], Actor]:
        if state is None:
            return "session.created", self._birth(), "human"
        if not state.workspace_present:
            return "workspace.ready", self._ready(), "system"
        type_, data = draw.choice(_POSSIBLE)(state, draw)
        return type_, data, "human" if type_ == "user_message" else "agent"

    def _store(self, type_: str, data: Mapping[str, Any], actor: Actor, last: Event | None, at: datetime | None = None) -> Event:
        ns = ns_of(at) if at is not None else last.ts + self._step if last is not None else self._start
        return self._log.append(type_, data, ts=ns, actor=actor)

    def _require_possible(self, type_: str, data: Mapping[str, Any], state: SessionState | None) -> None:
        seq = 0 if state is None else state.seq + 1
        ts = self._start if state is None else state.updated_ns
        fold([Event(seq, ts, self.id, type_, "agent", data)], state)

    def _birth(self) -> dict[str, Any]:
        durable, space = str(self.store.root / "durable"), self._space()
        return {
            "task": "fix the bug",
            "durable_ref": f"local://{durable}#main",
            **path_fields(durable, "durable_path"),
            "durable_branch": "main",
            "baseline": "1" * 40,
            "ephemeral_ref": f"local://{space}",
            **path_fields(space, "workspace"),
            "workspace_kind": "clone",
            "git_backed": True,
            "policy": Policy().to_data(),
            "format": "sha1",
            "history": "none",
        }

    def _ready(self) -> dict[str, Any]:
        return {**path_fields(self._space())}

    def _space(self) -> str:
        return str(self.store.directory(self.id) / "workspace")

    # Damaging ------------------------------------------------------------------------------------------------------------------

    def truncate(self, size: int) -> None:
        """Keep the first ``size`` bytes; a negative size removes so many bytes from the end, as a killed writer does."""
        with self._changing() as raw:
            del raw[size:]

    def garbage(self, line: int, data: bytes = b"\x00 not json \xff") -> None:
        """Replace a line by other bytes, but not its line end; ``line`` counts from 1, and the line after the last is added."""
        with self._changing() as raw:
            lines = _lines(raw)
            if not 1 <= line <= len(lines) + 1:
                raise InvalidInput(f"{self.path} has no line {line}.", fix=f"Its lines are 1 to {len(lines)}; {len(lines) + 1} is added.")
            lines[line - 1 : line] = [data + b"\n"]
            raw[:] = b"".join(lines)

    def duplicate(self, seq: int) -> None:
        """Write an event's line twice."""
        with self._changing() as raw:
            lines, index = self._find(raw, seq)
            lines.insert(index, lines[index])
            raw[:] = b"".join(lines)

    def drop(self, seq: int) -> None:
        """Remove an event's line, which leaves a gap; the last event leaves none, so no reader can notice."""
        with self._changing() as raw:
            lines, index = self._find(raw, seq)
            del lines[index]
            raw[:] = b"".join(lines)

    def unknown_type(self, name: str = "session.exploded") -> None:
        """Append a whole event with a valid checksum, of a type outside the vocabulary, as a newer engine would."""
        with self._changing() as raw:
            last = max(self.events("skip"), key=lambda event: event.seq, default=None)
            seq, ts = (last.seq + 1, last.ts + self._step) if last is not None else (0, self._start)
            raw += encode(Event(seq, ts, self.id, name, "system", {})) + b"\n"

    def flip(self, byte: int, bit: int = 0) -> None:
        """Flip one bit: bit 0 to 7 of a byte; a negative byte counts from the end, as in ``raw[byte]``."""
        with self._changing() as raw:
            if not (-len(raw) <= byte < len(raw) and 0 <= bit < 8):
                raise InvalidInput(f"{self.path} has no bit {bit} of byte {byte}.", fix=f"It has {len(raw)} bytes of bits 0 to 7.")
            raw[byte] ^= 1 << bit

    @contextmanager
    def _changing(self) -> Iterator[bytearray]:
        """The bytes of the file, to be changed in the block and written back; what was cached of the file is dropped."""
        with self.store.lease(self.id):
            raw = bytearray(self.path.read_bytes())
            yield raw
            self.path.write_bytes(raw)
        self._log = self.store.log(self.id)

    def _find(self, raw: bytearray, seq: int) -> tuple[list[bytes], int]:
        lines = _lines(raw)
        for index, line in enumerate(lines):
            with suppress(LogDamaged):
                if decode(line.rstrip(b"\n")).seq == seq:
                    return lines, index
        raise InvalidInput(f"{self.path} has no event {seq}.", fix="Build it first: log.build(20) has the events 0 to 19.")


@contextmanager
def open_log(directory: str | os.PathLike[str] | None = None, **arguments: Any) -> Iterator[LogKit]:
    """A log in a directory, or in a temporary one that is removed after the block.

    Args:
        directory: as for ``LogKit``, and so are the other arguments.
    """
    if directory is not None:
        yield LogKit(directory, **arguments)
        return
    with tempfile.TemporaryDirectory(prefix="gittrix-log-") as made:
        yield LogKit(made, **arguments)


def _lines(raw: bytearray) -> list[bytes]:
    return [line + b"\n" for line in bytes(raw.removesuffix(b"\n")).split(b"\n")] if raw else []


# What can happen in a live session ---------------------------------------------------------------------------------------

Possible = Callable[[SessionState, random.Random], tuple[str, Mapping[str, Any]]]

_TEXTS: Final = ("Greet everybody.", "", "Grüße, 世界 🙂", 'a "quoted" \\ backslash', "two\nlines\r\n\ttab", "\u2028 \x7f \x00", "x" * 300)
_PATHS: Final = ("app.py", "src/deep/er.txt", "weiß nicht.txt", "caf\udce9.txt", " leading", "a\nb")


def _message(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return draw.choice(("user_message", "assistant_message")), {"text": draw.choice(_TEXTS)}


def _reasoning(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return "reasoning", {"item": {"summary": [draw.choice(_TEXTS)], "tokens": draw.randrange(2**60)}, "model": "model-1"}


def _usage(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return "provider_usage", {"input": draw.randrange(10**6), "cost": draw.choice((0.0, 0.125, 1e-9, 1e300)), "cached": None}


def _call_or_answer(state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    if not state.calls:
        return "tool_call", {
            "call_id": f"c{state.seq}",
            "name": draw.choice(("shell", "edit")),
            "args": {"argv": ["ls", draw.choice(_TEXTS)]},
        }
    call, ok = min(state.calls), draw.random() < 0.7
    return "tool_result", {"call_id": call, "ok": ok, **({"output": draw.choice(_TEXTS)} if ok else {"error": {"kind": "failed"}})}


def _turn(state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    if state.turn is not None:
        return "turn.ended", {"turn": state.turn, "status": draw.choice(("done", "failed", "interrupted"))}
    if state.calls:
        return _call_or_answer(state, draw)
    return "turn.started", {"turn": f"t{state.seq + 1}", "runs": draw.choice(("process", "thread", "task"))}


def _write(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return "session.write", {**path_fields(draw.choice(_PATHS)), "op": draw.choice(("write", "delete"))}


def _checkpoint(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return draw.choice((("workspace.kept", {"tree": _sha(draw)}), ("session.commit", {"sha": _sha(draw), "message": draw.choice(_TEXTS)})))


def _step(state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    if "step_ref" in state.identity:
        return "step.completed", {"step": state.identity["step_ref"], "outcome": "done"}
    return "step.started", {"step": draw.choice(("plan", "test")), "molecule_id": "mol-1"}


def _identity(_state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    return "session.identified", {"identity": {"agent": draw.choice(("rig/crew/ada", None)), "work_unit": "gt-1"}}


def _use(state: SessionState, draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    hour = 3_600_000_000_000
    return draw.choice(
        (
            ("session.accessed", {"op": "read"}),
            ("session.extended", {"ttl_idle_ns": draw.choice((hour, 5 * hour))}),
            ("session.activity", {"observed_ns": state.updated_ns}),
        )
    )


def _sha(draw: random.Random) -> str:
    return f"{draw.getrandbits(160):040x}"


_POSSIBLE: Final[tuple[Possible, ...]] = (
    _message,
    _reasoning,
    _usage,
    _call_or_answer,
    _turn,
    _write,
    _checkpoint,
    _step,
    _identity,
    _use,
)
