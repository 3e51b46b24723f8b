"""The arguments of the marker ``gittrix``: what they may be, how those of several markers are one set, and which budgets they set."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn

import pytest

from pytest_gittrix.plugin.options import FREEZES, MODELS, WORKSPACES

if TYPE_CHECKING:
    from pytest_gittrix.backends.local import LocalEphemeral
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.plugin.config import GittrixConfig
    from pytest_gittrix.record.state.records import Eviction
    from pytest_gittrix.testing.repos.history import Contents


def gittrix(
    *,
    files: Contents | None = None,
    history: object = None,
    repository: str | os.PathLike[str] | None = None,
    branch: str = "main",
    bare: bool = False,
    workspace: str | LocalEphemeral | None = None,
    eviction: Eviction | None = None,
    clock_start: datetime | str | None = None,
    task: str | None = None,
    freeze: str | None = None,
    autojump: bool | float | None = None,
    object_format: str = "sha1",
    model: str | None = None,
    max_seconds: float | None = None,
    max_files: int | None = None,
    max_tokens: int | None = None,
) -> None:
    """The signature of ``@pytest.mark.gittrix``; what each argument means is in the reference of fixtures."""


_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "files": ((Mapping,), 'a mapping of path to contents, such as {"app.py": "v1\\n"}'),
    "repository": ((str, os.PathLike), "the path of a repository"),
    "branch": ((str,), "the name of a branch"),
    "freeze": ((str,), "a text"),
    "autojump": ((bool, int, float), "True, False, or the real seconds to wait for threads and programs, not below 0"),
    "object_format": ((str,), "a text"),
    "bare": ((bool,), "True or False"),
    "clock_start": ((datetime, str), "an aware datetime, or ISO 8601 with a time zone"),
    "task": ((str,), "a text"),
    "model": ((str,), f'"tape", the path of one that ends in .jsonl, or one of {", ".join(MODELS)}'),
    "max_seconds": ((int, float), "real seconds, not below 0"),
    "max_files": ((int,), "a whole number of files, not below 0"),
    "max_tokens": ((int,), "a whole number of tokens, not below 0"),
}
_LISTED: Final = 10
BUDGETS: Final = frozenset({"max_seconds", "max_files", "max_tokens"})
"""The arguments of the marker that a test may not exceed."""
OF_THE_TEST: Final = frozenset({"task", "freeze", "autojump", "model"}) | BUDGETS
"""The arguments of the marker that are not those of ``World.open``."""
SOURCES: Final = frozenset({"files", "history", "repository"})
"""The arguments that durable is made from; they count as one."""
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"workspace": WORKSPACES, "freeze": FREEZES, "object_format": ("sha1", "sha256")}


def marker_arguments(item: pytest.Item) -> dict[str, Any]:
    """The arguments of a test's markers, merged: of two that give the same one, the nearer to the test wins.

    What durable is made from (``files``, ``history`` or ``repository``) counts as one argument.

    Raises:
        pytest.fail.Exception: an argument is unknown or wrong; the message points at the test and lists what is valid.
    """
    merged: dict[str, Any] = {}
    for mark in item.iter_markers("gittrix"):
        if mark.args:
            _fail(item, f"takes keyword arguments only, and was given {mark.args[0]!r}", f"Arguments: {', '.join(_names())}.")
        nearer = merged.keys() | (SOURCES if merged.keys() & SOURCES else set())
        for name, value in mark.kwargs.items():
            _check_argument(item, name, value)
            if name not in nearer:
                merged[name] = value
    if isinstance(merged.get("clock_start"), str | datetime):
        merged["clock_start"] = _instant(item, merged["clock_start"])
    return {name: value for name, value in merged.items() if value is not None}


class Freezing(NamedTuple):
    """How a test has its process frozen.

    Attributes:
        mode: ``wall``, ``all`` or ``none``.
        autojump: whether sleeps move the clock, or how many real seconds it waits for threads and programs.
        children: whether Python programs see the clock, too.
        asked: whether the marker asks for it, so that the test need not name the clock.
    """

    mode: Literal["wall", "all", "none"]
    autojump: bool | float
    children: bool
    asked: bool


def freezing(item: pytest.Item, given: Mapping[str, Any], options: GittrixConfig) -> Freezing:
    """How a test has its process frozen, by the merged arguments of its markers and by the options of the run.

    Raises:
        pytest.fail.Exception: a marker asks for autojump in a process that is not to be frozen.
    """
    mode, autojump = given.get("freeze", options.freeze), given.get("autojump", options.autojump == "yes")
    asks_to_jump = given.get("autojump", False) is not False
    if asks_to_jump and mode == "none":
        _fail(
            item,
            f"was given autojump={autojump!r} where freeze is 'none'",
            "Sleeps move a clock that the process shows: use freeze='wall'.",
        )
    return Freezing(mode, autojump, options.freeze_children == "yes", "freeze" in given or asks_to_jump)


@contextmanager
def refusals_at(item: pytest.Item, options: object = None, files: object = None) -> Iterator[None]:
    """Report what the block refuses of the arguments of a test's world as an error at the test.

    Args:
        item: the test.
        options: what ``gittrix_world_options`` gives.
        files: what ``gittrix_files`` gives.

    Raises:
        pytest.fail.Exception: the block raised a GittrixError; the message points at the test, and says what is valid.
    """
    from pytest_gittrix.errors import GittrixError

    try:
        yield
    except GittrixError as problem:
        marked = dict.fromkeys(f"{name}=" for mark in item.iter_markers("gittrix") for name in mark.kwargs if name not in OF_THE_TEST)
        project = [f"{name}= of gittrix_world_options" for name in options] if isinstance(options, Mapping) else ["gittrix_world_options"]
        project += [] if files is None else ["gittrix_files"]
        given = [*marked, *(project if options or files else ())]
        if given:
            _fail(item, f"has a wrong value for {' or '.join(given)}", str(problem), "the gittrix marker" if marked else "the world")
        raise


@contextmanager
def within_budgets(item: pytest.Item, given: Mapping[str, Any]) -> Iterator[None]:
    """Fail a test whose call passed and exceeded a budget.

    Args:
        item: the test.
        given: the merged arguments of its markers.

    Raises:
        pytest.fail.Exception: the message has each budget that was exceeded, and by how much.
    """
    from pytest_gittrix.os_level.monotonic import real_seconds

    start = real_seconds()
    yield
    took = real_seconds() - start
    exceeded: list[str] = []
    if took > given.get("max_seconds", took):
        exceeded.append(f"It took {took:.3g} real seconds, and max_seconds is {given['max_seconds']}.")
    parts = getattr(item, "funcargs", None) or {}
    engine, model = parts.get("gittrix"), parts.get("gittrix_model")
    if "max_files" in given and engine is not None:
        exceeded += _sessions_over(engine, given["max_files"])
    if "max_tokens" in given and model is not None:
        tokens = model.usage.input + model.usage.output
        if tokens > given["max_tokens"]:
            exceeded.append(f"Its agents used {tokens} tokens of gittrix_model, and max_tokens is {given['max_tokens']}.")
    if exceeded:
        path, line, _ = item.location
        lines = [f"{path}:{(line or 0) + 1}: {item.name} passed, but went over the budget of its gittrix marker.", *exceeded]
        raise pytest.fail.Exception("\n".join([*lines, "Let the agent do less, or set a higher budget."]), pytrace=False)


def _sessions_over(engine: GitTrix, most: int) -> Iterator[str]:
    """A line for each session of an engine that touched more files than so many."""
    from pytest_gittrix.errors import GittrixError, first_few

    for session in engine.list_sessions():
        touched: Collection[str] = session.touched_files
        with suppress(GittrixError):  # what the test itself broke or let expire counts as it was last seen
            touched = engine.info(session.id).touched_files
        if len(touched) > most:
            listed = first_few(map(repr, touched), _LISTED)
            yield f"Session {session.id} touched {len(touched)} files, and max_files is {most}: {listed}."


def _names() -> list[str]:
    code = gittrix.__code__
    return list(code.co_varnames[: code.co_kwonlyargcount])


def _check_argument(item: pytest.Item, name: str, value: object) -> None:
    if name not in _names():
        from pytest_gittrix.errors import nearest

        near = nearest(name, _names())
        hint = f"Did you mean {near!r}? " if near else ""
        _fail(item, f"has no argument {name!r}", f"{hint}Arguments: {', '.join(_names())}.")
    if value is None:
        return
    types, wanted = _KINDS.get(name, ((object,), ""))
    is_flag_for_number = isinstance(value, bool) and not {bool, object} & {*types}
    if not isinstance(value, types) or is_flag_for_number or (isinstance(value, int | float) and not value >= 0):
        _fail(item, f"was given {name}={value!r}", f"It takes {wanted}.")
    if isinstance(value, str) and value not in _CHOICES.get(name, (value,)):
        from pytest_gittrix.errors import did_you_mean

        hint = did_you_mean(value, _CHOICES[name])
        _fail(item, f"was given {name}={value!r}", f"{hint}Valid values: {', '.join(_CHOICES[name])}.")


def _instant(item: pytest.Item, given: datetime | str) -> datetime:
    from pytest_gittrix.durations import instant_at, ns_of, parse_instant
    from pytest_gittrix.errors import InvalidInput

    try:
        return parse_instant(given) if isinstance(given, str) else instant_at(ns_of(given))
    except InvalidInput:
        _fail(item, f"was given clock_start={given!r}", f"clock_start takes {_KINDS['clock_start'][1]}.")


def _fail(item: pytest.Item, fact: str, fix: str, what: str = "the gittrix marker") -> NoReturn:
    path, line, _ = item.location
    # The message has all that the error said, so it is not shown a second time as the context.
    raise pytest.fail.Exception(f"{path}:{(line or 0) + 1}: {what} of {item.name} {fact}.\n{fix}", pytrace=False) from None
