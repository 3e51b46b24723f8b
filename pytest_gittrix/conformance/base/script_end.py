"""The end of a script: a test that prints ``LOST:`` or ``WRONG:`` if the system did once more what it is accused of.

The test looks at what the clause looked at last: how the last command ended, what it answered, or what durable holds.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.safe_text import printable_line
from pytest_gittrix.testing.repos.journal import DURABLE, STATE_OF_DURABLE, CommandRun, Journal, VerbCall

FOUND: Final = re.compile(r"^(?:LOST|WRONG): ", re.MULTILINE)
"""What the output of a script has where its end found what it looked for."""

SAYS: Final = re.compile(r"^then echo '(?:LOST|WRONG): ", re.MULTILINE)
"""What a script has that ends with a test."""

_ANSWERING: Final = frozenset({"read", "list", "touched"})
"""The verbs whose answers are the same each time."""
_CODE: Final = re.compile(r"\w+", re.ASCII)
_CONFLICTING: Final = "conflictingFiles"
_MOST: Final = 200
_FLAT: Final = "printf '%s' \"$ANSWER\" | tr -d ' \\n'"


@dataclass(frozen=True)
class Accusation:
    """What a clause says against a system.

    Attributes:
        what: what it did, in a sentence.
        lost: whether work is lost by it.
        of_call: whether it is about how the last command ended: it was done, and had to be refused, or the reverse.
        done: whether the last command was done, and had to be refused.
    """

    what: str
    lost: bool = False
    of_call: bool = False
    done: bool = False


def asked_last(journal: Journal) -> CommandRun | None:
    """The command of the system that was run last; None if its last verb ran none."""
    last = next((step for step in reversed(journal.steps) if isinstance(step, VerbCall) or step_is_command(step)), None)
    return last if isinstance(last, CommandRun) else None


def step_is_command(step: object) -> bool:
    """Whether a step is a command of the system, and not one of the agent."""
    return isinstance(step, CommandRun) and bool(step.program)


def script_end(journal: Journal, accused: Accusation, word: Callable[[str], str]) -> Iterator[str]:
    """The last lines of a script; none if nothing that a script can see shows what the system is accused of.

    Args:
        journal: what was done, and what was looked at last.
        accused: what the system is accused of.
        word: writes a text as a word of the shell.
    """
    asked = asked_last(journal)
    if (asked is None and not any(map(step_is_command, journal.steps))) or journal.scene or journal.beyond:
        return
    test = _test(journal, accused, asked, word)
    if not test:
        return
    said = " ".join(printable_line(accused.what.replace(str(journal.root), "$ROOT")).split())[:_MOST]
    yield f"if {test}"
    yield f"then echo {shlex.quote(f'{_label(accused)}: {said}')}"
    yield "else echo 'The system did not do it this time.'; exit 1"
    yield "fi"


def _label(accused: Accusation) -> str:
    return "LOST" if accused.lost else "WRONG"


def _test(journal: Journal, accused: Accusation, asked: CommandRun | None, word: Callable[[str], str]) -> str:
    """A command that succeeds if the system did it again; empty if there is none."""
    if accused.of_call:
        return _of_the_end(asked, accused) if asked is not None else ""
    if journal.looked == DURABLE and journal.left:
        as_seen = f'[ "$({STATE_OF_DURABLE} 2>/dev/null | git hash-object --stdin)" = {journal.left} ]'
        return as_seen if asked is None else f"{_ended_as(asked)} && {as_seen}"
    if journal.looked in _ANSWERING and asked is not None and asked.ended == "ok":
        return f'[ "$ANSWER" = {word(asked.printed.decode("utf-8", "surrogateescape").rstrip(chr(10)))} ]'
    return ""


def _ended_as(asked: CommandRun) -> str:
    return '[ "$S" -eq 0 ]' if asked.ended == "ok" else '[ "$S" -ne 0 ]'


def _of_the_end(asked: CommandRun, accused: Accusation) -> str:
    """A command that succeeds if the last command ended as it did."""
    if asked.ended == "ok":
        return '[ "$S" -eq 0 ]' if accused.done else ""
    if not asked.ended:
        return """! printf '%s' "$ANSWER" | grep -q '"ok"'"""
    if not _CODE.fullmatch(asked.ended):
        return ""
    tests = ['[ "$S" -ne 0 ]', f"""{_FLAT} | grep -q '"code":"{asked.ended}"'"""]
    named = asked.answer.get(_CONFLICTING) if isinstance(asked.answer, dict) else None
    if named:
        listed = json.dumps(named, separators=(",", ":")).replace(" ", "")
        tests.append(f"{_FLAT} | grep -qF {shlex.quote(f'{json.dumps(_CONFLICTING)}:{listed}')}")
    elif asked.ended == "BASELINE_CONFLICT":
        tests.append(f"""! {_FLAT} | grep -q '"{_CONFLICTING}":\\["'""")
    return " && ".join(tests)
