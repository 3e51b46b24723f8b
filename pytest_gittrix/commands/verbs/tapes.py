"""The verbs for tapes: files of what an agent's model was asked and answered."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import Group, arg, verb
from pytest_gittrix.commands.output import CommandResult

_TAPE: Final = arg("file", metavar="FILE", help="the tape, which ends in .jsonl")


@verb(
    _TAPE,
    examples=("gittrix tape script tapes/test_fixer.jsonl > script.py",),
    only_looks=True,
    terminal_only=True,
)
def script(options: Namespace) -> CommandResult:
    """Print the answers of a tape as a script, for gittrix_model.script(*SCRIPT) or session run --model script.py."""
    from pytest_gittrix.model.tapes.script_text import script_of
    from pytest_gittrix.model.tapes.tape import Tape

    text = script_of(Tape.read(context.absolute_path(options.file)), Path(options.file).name)
    return CommandResult({"script": text}, text)


TAPE: Final = Group("tape", "what agents and their models said, as files", {"look": (script,)})
