"""What comes of two processes on one stage: of a race in which they took turns, and of contests at the same instant, over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.conformance.base.expect import beyond_a_script
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.repos.journal import TimedOperation, timed
from pytest_gittrix.testing.schedules.blackbox import Ended
from pytest_gittrix.testing.schedules.contention import at_once
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage

BUSY: Final = frozenset({"EVICTION_RACE", "PROMOTE_FAILED", "DURABLE_LOCKED"})
"""Error codes that a system may give while another process works, if a second try succeeds."""

CONTESTS: Final = 100
"""How many contests a clause holds, unless its time is up before."""
SECONDS: Final = 10.0
"""Real seconds for the contests of a clause, unless the user gives more for races."""
_VERBS: Final[Mapping[str, Callable[[DrivenSession], object]]] = {
    "promote": lambda session: session.promote().sha,
    "evict": lambda session: session.evict(),
}


@dataclass(frozen=True)
class RaceOutcome:
    """The outcome of two processes that took turns.

    Attributes:
        stage: the stage that both worked on.
        sessions: the prepared sessions, as the engine that prepared them knows them.
        workspaces: their directories, None where the system has no ``shell``.
        action: how the first process ended.
        intruder: how the other process ended.
    """

    stage: Stage
    sessions: tuple[DrivenSession, ...]
    workspaces: tuple[Path | None, ...]
    action: Ended
    intruder: Ended

    def head(self) -> Mapping[str, Any]:
        """What the branch holds."""
        return self.stage.judge.tree(self.stage.judge.head())

    def history(self) -> list[str]:
        """All commits of the branch."""
        return self.stage.judge.history(self.stage.judge.head())


@dataclass(frozen=True)
class Contest:
    """Two operations at the same instant, and what came of them.

    Attributes:
        sessions: the sessions, by name.
        work: what the session of each process wrote to ``app.py``.
        answers: the operations, the first one first.
        before: the head of the branch before them.
        stage: the stage that both worked on.
    """

    sessions: Mapping[str, DrivenSession]
    work: Mapping[str, bytes]
    answers: tuple[TimedOperation, ...]
    before: str
    stage: Stage

    def refused(self, one: TimedOperation, *codes: str) -> bool:
        """Check that an operation was done, or was refused with one of the codes or as busy; gives whether it was refused."""
        assert one.result in {"OK", *codes, *BUSY}, f"{one.operation}: {one.result}: {one.value}"
        return one.result != "OK"

    @property
    def all_busy(self) -> bool:
        """Whether none of them was done, since each was in the way of the other."""
        return all(one.result in BUSY for one in self.answers)

    def commits(self) -> list[str]:
        """The commits that were made meanwhile, by first parents, newest first."""
        made, here = [], self.stage.judge.head()
        while here != self.before:
            made.append(here)
            here = next(iter(self.stage.judge.commit(here).parents), self.before)
        return made


def contests(stage: Stage, names: tuple[str, str], verbs: tuple[str, str]) -> Iterator[Contest]:
    """Have two processes do something at the same instant, again and again, each with an engine of its own and new work.

    The history of all of it is kept in the stage's journal.

    Args:
        stage: where.
        names: the session of each of the two: twice the same, or two sessions.
        verbs: what each of them does.
    """
    beyond_a_script(stage, "Two processes worked at the same instant.")
    deadline, number, took = real_seconds() + (stage.budget.race or SECONDS), 0, [0.0, 0.0]
    while real_seconds() < deadline and (number < CONTESTS or stage.budget.race):
        sessions = {name: stage.start() for name in sorted({*names})}
        work = {name: b"agent %s, %d\n" % (name.encode(), number) for name in sessions}
        for name, session in sessions.items():
            session.write("app.py", work[name])
        before, second = stage.judge.head(), number % 2
        delays = [0.0, 0.0]
        delays[second] = took[1 - second] * _fraction(number // 2)  # so that it begins at any moment of the other one
        todo = [partial(_do, stage, sessions[name].id, name, verb) for name, verb in zip(names, verbs, strict=True)]
        answers = at_once(todo, delays=delays)
        took = [max(known, (one.end - one.start) / 1e9) if number < 2 else known for known, one in zip(took, answers, strict=True)]
        stage.journal.contended += answers
        number += 1
        stage.journal.covered = f"two processes at the same instant: {number} contests"
        yield Contest(sessions, work, (*answers,), before, stage)
        for session in sessions.values():
            if session.state == "active":
                session.evict()


def _do(stage: Stage, id_: str, process: str, verb: str) -> Callable[[], TimedOperation]:
    session = stage.reopen().get_session(id_)
    return partial(timed, process, verb, [id_], partial(_VERBS[verb], session))


def _fraction(number: int) -> float:
    """Numbers from 0 to 1 that fill the space between them evenly, however many are taken: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    found, part = 0.0, 0.5
    while number:
        found, number, part = found + part * (number % 2), number // 2, part / 2
    return found
