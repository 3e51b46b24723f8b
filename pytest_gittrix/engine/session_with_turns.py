"""A session that its agent works in by turns, as the person in charge holds it: the part of ``UserSession`` that is about turns (Pixir)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.errors import TurnOver
from pytest_gittrix.record.eventlog.events import Actor
from pytest_gittrix.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.turns import Turn, TurnContext, TurnFunction


class SessionWithTurns(AgentSession):
    """Everything the agent has, and the turns that it takes."""

    _actor: Actor = "human"

    def __init__(self, services: EngineServices, recorder: Recorder, workspace: Workspace) -> None:
        super().__init__(recorder, workspace, services.resources.ephemeral.limits)
        self._services = services

    def for_agent(self) -> AgentSession:
        """The object to hand to the agent."""
        return AgentSession(self._recorder.twin(), self._workspace, self._limits, self._ran)

    def start_turn(self, fn: TurnFunction, *, runs: str | None = None, role: str | None = None) -> Turn:
        """Let the agent take a turn: run ``fn(context)`` next to this program (Pixir).

        Tool calls without an answer of an earlier turn are answered first, so that the history can be shown to a model.

        Args:
            fn: a function or coroutine function of a ``TurnContext``. A process is a fork of this one: it has a copy of this memory, and
                only the result comes back, which must be picklable.
            runs: ``process`` (can be ended for certain) or ``thread`` (can be asked to end). By default it is a process, with a
                ``RuntimeWarning`` if the function is a closure that changes variables around it, as this program would not see that.
            role: the role of the agent, for the context; by default that of the session's identity, or ``build``.

        Raises:
            TurnBusy: a turn is running, here or in another process.
            SessionExpired: the session has ended.
            InvalidInput: ``runs`` is neither.
        """
        if runs is None:
            from pytest_gittrix.engine.agents.closures import warn_of_copies

            warn_of_copies(fn, stacklevel=2)
        return self._services.turns.start(self._recorder.twin(), self.for_agent(), fn, runs=runs or "process", role=role)

    @contextmanager
    def turn(self, *, role: str | None = None) -> Iterator[TurnContext]:
        """Begin a turn, run the block, end the turn; a block that raises has ``failed``. Arguments and errors as for the two calls."""
        context = self.begin_turn(role=role)
        try:
            yield context
        except BaseException as problem:
            with suppress(TurnOver):  # the block was interrupted, and its turn ended by that
                self.end_turn(context, error=f"{type(problem).__name__}: {problem}")
            raise
        self.end_turn(context)

    def begin_turn(self, *, role: str | None = None) -> TurnContext:
        """Begin a turn of an agent that this program runs by itself, such as a prompt to a server; ``end_turn`` ends it.

        What is recorded until then belongs to the turn. It is this process's turn, and is over if the process dies. An ``interrupt()``, the
        end of the session and ``close()`` of the engine set ``cancelled`` of the context. From then on the context and its ``session``
        raise ``TurnOver``, while this object goes on. As for ``start_turn``, tool calls without an answer are answered first.

        Args:
            role: the role of the agent, for the context; by default that of the session's identity, or ``build``.

        Returns:
            The turn: records with ``record`` and ``emit``, and has the agent's side of the session.

        Raises:
            TurnBusy: a turn is running, here or in another process.
            SessionExpired: the session has ended.
            AdapterUnavailable: the engine was closed.
        """
        return self._services.turns.begin(self._recorder.twin(), self.for_agent(), role=role)

    def end_turn(self, context: TurnContext, *, error: str | None = None) -> None:
        """End a turn that ``begin_turn`` began; its context can do nothing more. If that cannot be stored, the next turn finds it ``lost``.

        Args:
            context: what ``begin_turn`` returned.
            error: why it failed; None if it is done.

        Raises:
            TurnOver: it was interrupted, or has been ended already.
            InvalidInput: the turn is that of a function or of another session; or the error is no text.
        """
        self._services.turns.end(self.id, context, None if error is None else check_text(error, "error"))

    @property
    def turn_running(self) -> bool:
        """Whether a turn of the session runs, here or in another process."""
        return self._services.turns.is_running(self._recorder)

    def interrupt(self) -> bool:
        """End the running turn, with all it started, and answer its open calls; the session goes on. Returns whether a turn ran.

        Raises:
            TurnBusy: one runs in another process, which alone can end it.
        """
        return self._services.turns.interrupt(self._recorder)

    def register_pressure_warning(self, checkpoint_to_seq: int | None, tier: str) -> str:
        """Whether to warn that the model's context fills up: ``warn`` the first time for a checkpoint and a tier, then ``already_warned``.

        Remembered by this engine and not stored, so a new engine warns again (Pixir).

        Args:
            checkpoint_to_seq: the last event of the latest compaction; None if there was none.
            tier: how full the context is, such as ``warning``.
        """
        return self._services.turns.pressure.register(self.id, checkpoint_to_seq, tier)
