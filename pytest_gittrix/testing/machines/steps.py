"""The steps of a state machine that failed: read from the failure, and repeated without Hypothesis."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Sequence

from hypothesis.stateful import RuleBasedStateMachine

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.draws import Meeting
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits, Tree
from pytest_gittrix.testing.repos.history import Executable, Submodule, Symlink


def steps_of(error: BaseException) -> Sequence[str]:
    """The steps of a failure's shrunk example, as Hypothesis prints them, without opening and teardown."""
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    return [line for line in notes if re.search(r"state\.(?!teardown|world_opens|stage_opens)", line)]


def replay(machine: type[RuleBasedStateMachine], steps: str) -> None:
    """Repeat the steps that a failing run printed, without Hypothesis.

    Args:
        machine: the machine of the same system, as ``machine_for`` made it.
        steps: the printed lines, from ``state = ...`` to ``state.teardown()``.
    """
    values = (DurableEdit, Edits, EvictionPolicy, Executable, Meeting, Submodule, Symlink, Tree)
    names = {one.__name__: one for one in values} | {"datetime": datetime, machine.__name__: machine}
    exec(textwrap.dedent(steps), names)
