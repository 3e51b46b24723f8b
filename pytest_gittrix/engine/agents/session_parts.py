"""What every object of a session is made of: its record, its workspace and its limits, for the engine and not for the agent.

``Programs`` and the engine take the parts by a function of this module, so that the agent's object does not offer them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gittrix.engine.operations.in_use import SESSION_VARIABLE
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.git.environment import without_local_variables
from pytest_gittrix.record.eventlog.events import Actor
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

VARIABLES: Final = (SESSION_VARIABLE, "GT_SESSION_UUID")
"""The environment variables in which programs of an agent find their session's id: ours, and Gas Town's."""


# fmt: off
DECISIONS: Final = frozenset({
    "archive", "archives", "begin_turn", "discard", "end_turn", "extend", "for_agent", "fork", "handoff", "identify", "interrupt",
    "metadata", "moved_refs", "promote", "rebase", "register_pressure_warning", "relocate", "review",
    "start_turn", "subscribe", "turn", "turn_running", "view",
})
# fmt: on
"""What the person's object of a session has, ``UserSession``, and the agent's has not."""

_MOST_PROGRAMS: Final = 200
_NOT_FOR_AGENTS: Final = (
    "only a person decides about a session.\n"
    "What an agent can call, its programs can call too.\n"
    "Call gittrix_session.{0}() in a test; elsewhere, {0}() of the session that the engine gave you."
)


class RanProgram(NamedTuple):
    """A program that ran to its end: its command line, and its exit code, or the signal that ended it."""

    argv: tuple[str, ...]
    code: int | None
    signal: int | None


class SessionParts(NamedTuple):
    """The parts of a session's object.

    Attributes:
        recorder: the session's record.
        workspace: its workspace.
        limits: sizes that a snapshot may have.
        actor: who is recorded as doing what is done with the object.
        ran: the last programs that this object, or the user's that it is from, ran to their ends; the record has only those with a model.
    """

    recorder: Recorder
    workspace: Workspace
    limits: Limits
    actor: Actor
    ran: deque[RanProgram]


class SessionObject:
    """What the agent's and the user's object of a session have in common with nothing that decides."""

    _actor: Actor = "agent"

    def __init__(self, recorder: Recorder, workspace: Workspace, limits: Limits, ran: deque[RanProgram] | None = None) -> None:
        self._recorder = recorder
        self._workspace = workspace
        self._limits = limits
        self._ran: deque[RanProgram] = deque(maxlen=_MOST_PROGRAMS) if ran is None else ran

    if not TYPE_CHECKING:  # a checker of types goes on to refuse any other name

        def __getattr__(self, name: str) -> Any:
            """Refuse a name; say who has it where only a person's object has."""
            fact = f"{type(self).__name__!r} object has no attribute {name!r}"
            fact += f": {_NOT_FOR_AGENTS.format(name)}" if name in DECISIONS else ""
            raise AttributeError(fact, name=name, obj=self)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._recorder.id

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for a program of the agent, with its session's id.

        ``base`` is this process's by default, without git's local variables: from a git hook they would lead the agent's git elsewhere.
        """
        return {**(without_local_variables(os.environ) if base is None else base), **dict.fromkeys(VARIABLES, self.id)}


def parts_of(session: SessionObject) -> SessionParts:
    """The parts of a session's object. This is no method, so that the agent is not offered them."""
    return SessionParts(session._recorder, session._workspace, session._limits, session._actor, session._ran)
