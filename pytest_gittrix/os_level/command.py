"""What a program is to be started with, judged before anything is made for it: its command, its variables, its level of confinement.

``docs/reference/confinement.md`` says what each level keeps in; the room ``confine`` does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput

Level = Literal["auto", "off", "guard", "jail"]
"""The levels at which an agent's programs can be confined, as whoever makes a workspace names them."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)


def check_command(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Judge what an agent would be started with, before anything is made for it.

    Raises:
        InvalidInput: it is no command, or a text in it or in the variables cannot be given to a program.
    """
    if isinstance(command, str) or not command or not command[0]:
        raise InvalidInput(f"{command!r} is no command.", fix='Give a list whose first text is a program, such as ["git", "status"].')
    _check_texts(command)
    check_variables(environment)


def check_variables(environment: Mapping[str, str]) -> None:
    """Judge the variables that a program would get.

    Raises:
        InvalidInput: a name or a value is no text, or cannot be given to a program.
    """
    _check_texts((*environment, *environment.values()))
    wrong = [name for name in environment if not name or "=" in name]
    if wrong:
        raise InvalidInput(f"{wrong[0]!r} cannot be the name of a variable.", fix="Use one without =, of one character or more.")


def check_level(level: object, name: str = "confine") -> Level:
    """Validate a level of confinement that an argument or variable of a name has.

    Raises:
        InvalidInput: it is none; the message lists those there are.
    """
    for known in LEVELS:
        if level == known:
            return known
    raise InvalidInput(
        f"{name}={level!r} is no level of confinement.",
        why="It decides what an agent's programs can reach.",
        fix=f"Use one of: {', '.join(LEVELS)}.",
    )


def _check_texts(texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str) or "\0" in text or not _is_encodable(text):
            raise InvalidInput(f"{text!r} cannot be given to a program.", fix="Use texts without null bytes.")


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
