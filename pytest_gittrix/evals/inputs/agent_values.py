"""The values that an agent depends on: those that its function carries with it, and those of environment variables."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pytest_gittrix.evals.inputs.identity import Json


def bound_values(function: Callable[..., object]) -> tuple[dict[str, Json], list[str]]:
    """The values that a function carries with it: of its closure, its defaults, a partial call, or the object that it is a method of.

    Returns:
        The plain values by name, as texts; and a sentence for each value that is not plain.
    """
    found: dict[str, object] = {}
    while isinstance(function, functools.partial):
        found |= {f"argument {number}": value for number, value in enumerate(function.args)} | dict(function.keywords)
        function = function.func
    if inspect.ismethod(function):
        found |= _attributes(function.__self__)
        function = function.__func__
    if inspect.isfunction(function):
        closed = inspect.getclosurevars(function).nonlocals
        found |= {name: value for name, value in closed.items() if not _is_code(value)}
        found |= {one.name: one.default for one in inspect.signature(function).parameters.values() if one.default is not one.empty}
    elif not inspect.isroutine(function) and not inspect.isclass(function):
        found |= _attributes(function)
    unknown = [f"{name} is {type(value).__name__}, whose content cannot be known." for name, value in found.items() if not _is_plain(value)]
    return {name: _shown(value) for name, value in found.items() if _is_plain(value)}, unknown


def _attributes(value: object) -> dict[str, object]:
    return dict(vars(value)) if hasattr(value, "__dict__") else {}


def _is_code(value: object) -> bool:
    """Whether the text of a module says what a value is."""
    return inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value) or inspect.isbuiltin(value)


def _shown(value: object) -> str:
    """A plain value as a text without addresses of memory."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_shown(key)}: {_shown(item)}' for key, item in value.items())}}}"
    return str(getattr(value, "__qualname__", getattr(value, "__name__", ""))) if _is_code(value) else repr(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str | bytes | Path) or _is_code(value)


def digest_of_values(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """A short digest of the value of each variable; None for one that is not set.

    The values are secrets, often. A digest is slow to compute and cut to 48 bits, so that it says whether a value is the same one and
    does not help to find it.
    """
    return {name: _short_digest(name, environment[name]) if name in environment else None for name in sorted(set(names))}


@lru_cache(maxsize=64)
def _short_digest(name: str, value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", os.fsencode(value), f"gittrix {name}".encode(errors="surrogatepass"), 50_000, dklen=6).hex()
