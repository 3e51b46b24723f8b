"""Runs an agent once for each fault of its model at each exchange, and judges what is in the workspace afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, Final

from pytest_gittrix.engine.agents.exchanges import KeptExchanges, record_exchange
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.lineage.exchange_point import ExchangePoint
from pytest_gittrix.engine.model_runs import kept_exchanges, known_of, require_files
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.model.answers.faults import FAULTS, AnswerFault
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.named import model_named
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Request
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.os_level.proc import running_in
from pytest_gittrix.testing.faults.fault_sweep import Progress, Report, SweepFailure, collect
from pytest_gittrix.testing.repos.durable import DurableRepo

MOST_REQUESTS: Final = 30
"""So many requests more than a run without faults are a storm, and are answered no longer."""

_LONGEST_PROBLEM: Final = 2_000
_TIMED_OUT: Final = -(1 << 16)


@dataclass
class _Run:
    """What one run of the agent did.

    Attributes:
        states: the workspace at each request, and at the end, as a patch.
        replies: the right replies with their requests, in order.
        hurt: the number of the request that a fault happened to, from 0; None if it never happened.
        code: the exit status.
        problems: what is wrong apart from the workspace.
    """

    states: list[str] = field(default_factory=list)
    replies: list[tuple[Request, ModelReply]] = field(default_factory=list)
    hurt: int | None = None
    code: int = 0
    problems: list[str] = field(default_factory=list)


class WorldModel(ModelServer):
    """The model of a world, which can be made to fail in all ways, one after the other.

    Its exchanges are events of the session whose program asked, or of the world's only one.

    Args:
        start: starts a session for one run of the agent.
        durable: the repository that it must leave alone.
        engine: whose sessions ask it.
        options: as for ``ModelServer``.

    Attributes:
        keep_content: whether the content of requests and answers is stored next to the log; off by default, since it may hold secrets.
    """

    keep_content = False

    def __init__(
        self, start: Callable[[], UserSession], durable: Callable[[], DurableRepo], engine: Callable[[], GitTrix], **options: Any
    ) -> None:
        super().__init__(on_exchange=self._record, on_request=self._came, **options)
        self._start = start
        self._durable = durable
        self._engine = engine
        self._recorders: dict[tuple[GitTrix, str], Recorder] = {}
        self._kept: dict[tuple[GitTrix, str], KeptExchanges] = {}
        self._turn = Lock()

    def _record(self, exchange: Exchange) -> None:
        with self._turn:  # exchanges of several connections end at once, and a recorder goes on from where it read
            key = self._session_of(exchange.session)
            if key is not None and (kept := self._keeper(key)) is not None:
                kept.record(exchange)
            elif key is not None:
                record_exchange(self._recorders.get(key) or self._recorders.setdefault(key, key[0].services.recorder(key[1])), exchange)

    def _came(self, _: Request, session: str | None) -> str | None:
        with self._turn:
            key = self._session_of(session)
            kept = None if key is None else self._keeper(key)
            return None if kept is None else kept.came()

    def _session_of(self, named: str | None) -> tuple[GitTrix, str] | None:
        """The session that an exchange is of: the one that its address names, or the only one."""
        engine = self._engine()
        ids = [named] if named is not None else [*islice(engine.store.ids(), 2)]
        return (engine, ids[0]) if len(ids) == 1 else None

    def _keeper(self, key: tuple[GitTrix, str]) -> KeptExchanges | None:
        """What keeps the content of a session's exchanges; None if nothing does."""
        if not self.keep_content:
            return None
        if key not in self._kept:
            with suppress(GittrixError):
                self._kept[key] = kept_exchanges(key[0].services, key[1], self._places)
        return self._kept.get(key)

    def fork(
        self, session: UserSession | str, at: int | None = None, *, model: str | None = None, lenient: bool = False, **options: Any
    ) -> UserSession:
        """Start a session in which a run of the agent is repeated up to an exchange, and goes another way from there on.

        The new session begins with the files that the run began with. An agent that is run in it gets the earlier answers as they were;
        the exchange and all after it are answered anew. Before that, the files are compared with those that were there then.

        Args:
            session: the session, or its id, whose exchanges were kept (``keep_content``).
            at: the event of the exchange; the last one by default.
            model: who answers from there on: ``live``, ``live:NAME``, the path of a tape or of a script. By default it is the script, the
                function or the tape that this model has.
            lenient: whether only calls and results are compared, and no files.
            options: as for ``UserSession.fork``.

        Returns:
            The new session. Its programs reach this model by ``network=[gittrix_model]`` or ``gittrix_model.env(session.id)``.

        Raises:
            InvalidInput: there is no such exchange, it was not kept, or there is no such model.
            AdapterUnavailable: the session has ended, and the files that the run began with are gone.
        """
        engine = self._engine()
        parent = engine.services.recorder(session if isinstance(session, str) else session.id)
        point = ExchangePoint.of(parent, at)
        child = engine.fork(parent.id, point.begin, **options)
        known = known_of(engine.services, child.id, str(child.workspace_path), self._places)
        later = None if model is None else model_named(model, known)
        reached = partial(require_files, parent.twin(), point, child)
        self.go_on(child.id, point.earlier, known, later=later, reached=(lambda: None) if lenient else reached, lenient=lenient)
        return child

    def sweep(
        self,
        run: Callable[[UserSession], object],
        *,
        faults: Iterable[AnswerFault] = FAULTS,
        exchanges: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Run an agent once for each fault at each exchange, each time in a session of its own, and judge each run.

        After each, durable is unchanged, the workspace is as it was between two exchanges of a run without faults, nothing ran of a call
        that came damaged, no process is left in the workspace, the model was not asked again and again, and the agent did not end as if all
        were well unless its task is done. An agent that asks again and again is killed, if it runs in the workspace and is not confined.

        Args:
            run: runs the agent in a session, and gives its exit status: a number, or what has one as ``code`` or ``returncode``. Nothing is
                0, and an exception is 1.
            faults: the faults.
            exchanges: the exchanges that they happen to, from 1; all if nothing is said.
            progress: called after each run.

        Returns:
            What was tried, and which runs are wrong, each with a line that runs it again.

        Raises:
            InvalidInput: the run fails without a fault, or asks for nothing.
        """
        clean = self._once(run)
        if clean.code or clean.problems or not clean.replies:
            raise InvalidInput(
                f"The run fails without any fault: {'; '.join(clean.problems) or f'its exit status is {clean.code}'}.",
                why="The effect of a fault is found by comparing runs.",
                fix="Let the run pass by itself first, with an agent that asks the model.",
            )
        cases = [(at, fault) for at in exchanges or range(1, len(clean.replies) + 1) for fault in faults if _spoils(fault, clean, at)]

        def failure(case: tuple[int, AnswerFault]) -> SweepFailure | None:
            at, fault = case
            done = self._once(run, at, fault, most=len(clean.states) + MOST_REQUESTS)
            problems = [*done.problems, *_judged(clean, done, fault)]
            replay = f"gittrix_model.sweep(run, faults=[{fault}], exchanges=[{at}])"
            message = "\n".join(problems)[:_LONGEST_PROBLEM]
            return SweepFailure(at, str(fault), f"exchange {at}", message, replay) if problems else None

        return replace(collect("faults", len(clean.replies), cases, failure, progress), unit="exchanges")

    def _once(self, run: Callable[[UserSession], object], at: int = 0, fault: AnswerFault | None = None, most: int = 1_000) -> _Run:
        """Run the agent in a new session, with a fault at one exchange."""
        done, session, durable = _Run(), self._start(), self._durable()
        before = durable.fingerprint()

        def look(_: Request) -> None:
            done.states.append(session.diff())
            if len(done.states) > most:
                done.problems[:] = [f"it asked the model {most} times, where {most - MOST_REQUESTS} are enough, and was ended"]
                for pid in running_in(str(session.workspace_path)):
                    os.kill(pid, signal.SIGKILL)
                raise InvalidInput("The model was asked too often.", fix="Give up after a few attempts.")

        def next_fault(right: ModelReply, request: Request) -> AnswerFault | None:
            done.replies.append((request, right))
            if len(done.replies) != at:
                return None
            done.hurt = len(done.states) - 1
            return fault

        with self.restarted(next_fault, look):
            try:
                done.code = _exit_status(run(session))
            except Exception:  # noqa: BLE001 - a client of the test's own process fails in its own way
                done.code = 1
        done.problems += [*_ended(session, done.code)]
        done.states.append(session.diff())
        if durable.fingerprint() != before:
            done.problems.append("the durable repository is another")
        session.discard(force=True)
        return done


def _ended(session: UserSession, code: int) -> Iterator[str]:
    if code == _TIMED_OUT:
        yield "it did not end in time"
    left = running_in(str(session.workspace_path))
    if left:
        yield f"{len(left)} of its processes still run in the workspace"


def _exit_status(result: object) -> int:
    if getattr(result, "timed_out", False):
        return _TIMED_OUT
    for name in ("code", "returncode"):
        if hasattr(result, name):
            found = getattr(result, name)
            return found if isinstance(found, int) else 1  # None is the end by a signal
    return int(result) if isinstance(result, int) else 0


def _spoils(fault: AnswerFault, clean: _Run, at: int) -> bool:
    """Whether a fault has anything to spoil at an exchange."""
    request, reply = clean.replies[at - 1]
    return fault.apply(request, reply) is not reply


def _judged(clean: _Run, done: _Run, fault: AnswerFault) -> Iterator[str]:
    """What is wrong with the workspace or with the exit status of a run with a fault."""
    end = done.states[-1]
    if end not in clean.states:
        yield f"the workspace is at no state between two exchanges:\n{end}"
    if done.code == 0 and end != clean.states[-1]:
        yield "it ended as if all were well (exit status 0), and the task is not done"
    if done.hurt is None or fault.seen_as != "answer":
        return
    after = done.states[done.hurt + 1]
    if after != done.states[done.hurt]:
        yield f"it ran a call that came damaged:\n{after}"
