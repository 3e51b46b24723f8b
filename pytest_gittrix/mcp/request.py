"""The command line by which a person answers an agent that asks for a promotion.

An agent decides about nothing; it can only ask. What it asks for is a line for a shell, which somebody reads, and runs or does not: so
whatever the agent put into it stays one word of that line, and shows on a terminal as what it is. It must not know who asks.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.engine.operations.validation import check_message
from pytest_gittrix.errors import InvalidInput

MOST_CHARACTERS: Final = 10_000
"""How long a message may be: a line that is longer is no line that anybody reads before they run it."""

# Control characters but newline, halves of surrogate pairs, and marks that reorder the text around them.
_STEERING: Final = frozenset(
    map(chr, (*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)))
)


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """What a person is asked to do.

    Attributes:
        review: the line that shows them what they would promote.
        command: the line that promotes it.
    """

    review: str
    command: str


def promotion_request(session: str, store: Path, message: str) -> PromotionRequest:
    """The lines for a person to run.

    Args:
        session: its id.
        store: where sessions are kept.
        message: the commit message that the agent proposes.

    Raises:
        InvalidInput: the message is empty or no text, is too long, or holds characters that a terminal would obey or hide.
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
