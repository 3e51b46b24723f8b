"""The levels at which an agent's programs can be confined, as whoever makes a workspace names them.

``docs/reference/confinement.md`` says what each level keeps in; the room ``confine`` does it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput

Level = Literal["auto", "off", "guard", "jail"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)


def check_level(level: object) -> Level:
    """Validate a level of confinement.

    Raises:
        InvalidInput: it is none; the message lists those there are.
    """
    for known in LEVELS:
        if level == known:
            return known
    raise InvalidInput(
        f"confine={level!r} is no level of confinement.",
        why="It decides what an agent's programs can reach.",
        fix=f"Use one of: {', '.join(LEVELS)}.",
    )
