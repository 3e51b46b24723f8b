"""The command lines by which a person reviews and promotes the work of an agent that requested it.

An agent can only request a promotion. A person reads the command line, and decides whether to run it. So the agent's message is always one
argument of that command, and a terminal shows it exactly as it is.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.engine.operations.validation import check_message
from pytest_gittrix.errors import InvalidInput

MOST_CHARACTERS: Final = 10_000
"""The length of the longest message; people do not read a longer command line before they run it."""

# Control characters other than newline, and marks that reorder the text around them.
_STEERING: Final = frozenset(
    map(chr, (*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)))
)


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """The two command lines for a person.

    Attributes:
        review: shows what would be promoted.
        command: promotes it.
    """

    review: str
    command: str


def promotion_request(session: str, store: Path, message: str) -> PromotionRequest:
    """Make the command lines for a person to run.

    Args:
        session: the id of the session.
        store: the directory of the store.
        message: the commit message that the agent proposes.

    Raises:
        InvalidInput: the message is empty, no text or too long, or has characters that a terminal would obey or hide.
    """
    check_message(message)
    if len(message) > MOST_CHARACTERS:
        raise InvalidInput(
            f"The message has {len(message)} characters; the limit is {MOST_CHARACTERS}.",
            why="A person has to read it before they run the command that it is in.",
            fix="Say in it what changed and why, and leave the rest to the diff.",
        )
    if steering := sorted(_steering(message)):
        raise InvalidInput(
            f"The message holds {', '.join(f'U+{ord(one):04X}' for one in steering[:5])}.",
            why="A terminal obeys or hides such characters, and the person who runs the command would see another one.",
            fix="Use plain text; of the control characters only the newline may stand in it.",
        )
    where = [session, "--store", str(store)]
    return PromotionRequest(
        review=shlex.join(["gittrix", "session", "diff", *where]),
        command=shlex.join(["gittrix", "promote", *where, f"--message={message}"]),
    )


def _steering(text: str) -> set[str]:
    return {one for one in text if one in _STEERING or "\ud800" <= one <= "\udfff"}
