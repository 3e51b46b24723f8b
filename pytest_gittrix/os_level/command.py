"""Commands as the system takes them: a program, its arguments and its variables, judged before anything is made for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from pytest_gittrix.errors import InvalidInput


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
