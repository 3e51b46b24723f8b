"""Models by a name that a person types: the real one, another real one, a tape, or a script in a file."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.delivery import Script, Source
from pytest_gittrix.model.tapes.placeholders import Known
from pytest_gittrix.model.tapes.player import Player
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.model.tapes.upstream import Upstream

LIVE: Final = "live"
_SCRIPT: Final = "SCRIPT"


def model_named(name: str, known: Callable[[], Known]) -> Source:
    """Whoever answers under a name.

    Args:
        name: ``live`` for the real server of the agent's protocol, with the key of this process; ``live:NAME`` for another model there;
            the path of a tape, which ends in ``.jsonl``; or that of a Python file with ``SCRIPT``, as ``gittrix tape script`` prints it.
        known: gives the placeholders of the session.

    Raises:
        InvalidInput: it is none of these, or the file cannot be used.
    """
    kind, _, model = name.partition(":")
    if kind == LIVE:
        return Upstream(model=model)
    if name.endswith(".jsonl"):
        return Player(Tape.read(name), known, name=Path(name).name, again="record the tape with this agent and task")
    if name.endswith(".py"):
        return Script(_script_in(name))
    raise InvalidInput(
        f"{name!r} is no model.",
        why="The agent's requests are answered by it.",
        fix="Use live, live:NAME, the path of a tape (.jsonl), or that of a script (.py with SCRIPT).",
    )


def _script_in(path: str) -> tuple[Any, ...]:
    try:
        found = runpy.run_path(path)
    except Exception as problem:
        raise InvalidInput(f"The script {path} cannot be loaded: {type(problem).__name__}: {problem}.", fix="Mend it.") from problem
    steps = found.get(_SCRIPT)
    if not isinstance(steps, (tuple, list)):
        raise InvalidInput(f"The script {path} has no {_SCRIPT}.", why="It is a tuple of steps.", fix="SCRIPT = (say('Done.'),)")
    return tuple(steps)
