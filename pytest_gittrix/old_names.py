"""Earlier names of arguments and settings: each works until version 1.0, and a warning says what it is called today."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from pytest_gittrix.errors import InvalidInput

_Function = TypeVar("_Function", bound=Callable[..., Any])


def renamed(**today: str) -> Callable[[_Function], _Function]:
    """Let a function be called with arguments under their earlier names: ``@renamed(epoch="clock_start")``.

    Args:
        today: the name of today, by the earlier one.

    Returns:
        The decorator. Its functions raise InvalidInput if an argument is given under both names.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            return function(*args, **names_of_today(arguments, today))

        return cast(_Function, call)

    return decorate


def names_of_today(arguments: Mapping[str, Any], today: Mapping[str, str]) -> dict[str, Any]:
    """The arguments under their names of today. The warning points at the caller of whoever calls this function.

    Args:
        arguments: values by name.
        today: the name of today, by the earlier one.

    Raises:
        InvalidInput: an argument is given under both names.
    """
    found = dict(arguments)
    for old in today.keys() & arguments.keys():
        new = today[old]
        if new in arguments:
            raise given_twice(old, new)
        warn_of(old, new, stacklevel=3)
        found[new] = found.pop(old)
    return found


def warn_of(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Say that something was called by an earlier name.

    Args:
        old: the name that was used.
        new: the name of today.
        stacklevel: which caller the warning points at; 2 is the caller of whoever calls this function.
    """
    warnings.warn(message(old, new), DeprecationWarning, stacklevel=stacklevel + 1)


def given_twice(old: str, new: str) -> InvalidInput:
    """The error where something was given under its earlier name and under that of today."""
    return InvalidInput(f"Both {new} and {old} were given.", why=f"{old} is an earlier name of {new}.", fix=f"Give {new} alone.")


def message(old: str, new: str) -> str:
    """What the warnings say."""
    return f"{old} is called {new} today; the old name goes with version 1.0."
