"""How a failure is said: on one line that is the same each time, and as the traceback of an agent."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Final

CHECK: Final = "check-"
"""How the names of the directories of checks begin."""

_LONGEST: Final = 300
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}\b")


def one_line(text: str, directory: Path) -> str:
    """Make a reason one short line that is the same each time; a long one is cut in the middle.

    Args:
        text: the reason.
        directory: the directory of the sample, which is left out.
    """
    places = rf"{re.escape(str(directory))}(/{CHECK}\w+)?"
    line = _ADDRESS.sub("0x…", " ".join(re.sub(places, "", text).split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 3]} … {line[-_LONGEST * 2 // 3 :]}"


def traceback_of(problem: BaseException) -> str:
    """The traceback of what an agent raised, from the agent's own first line on."""
    trace = problem.__traceback__
    return "".join(traceback.format_exception(type(problem), problem, trace.tb_next if trace is not None else None))
