"""Tracebacks that end at the user's line: in a failure, the frames of this package and of the library calls that it makes are hidden.

A frame is hidden as pytest documents it, by ``__tracebackhide__`` among its local variables, and only once a test has failed. So
``--full-trace`` shows every frame, a debugger stops in every frame, and a test that passes pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from types import FrameType, ModuleType
from typing import Final

import pytest

from pytest_gittrix.errors import GittrixError

_PACKAGE: Final = __name__.partition(".")[0]
_CLAUSES: Final = f"{_PACKAGE}.conformance"
_LIBRARIES: Final = sys.stdlib_module_names | {"hypothesis", "_hypothesis_pytestplugin"}


def hide_frames(failure: BaseException, test: ModuleType | None = None) -> bool:
    """Hide the frames of this package in the tracebacks of an exception, of its causes and of its contexts.

    An error of the package itself, such as a ``TypeError`` in the engine, keeps its frames: its report needs them. So does a skip, since
    pytest takes the place of a skip from its last frame, and the code of the conformance clauses, which is what their tests check.

    Args:
        failure: what a phase of a test raised.
        test: the module of the test, which is the user's even if it is part of the package.

    Returns:
        Whether no frame is the user's, since a fixture raised the failure by itself: then none is hidden, and the message is all that is
        worth showing.
    """
    if isinstance(failure, pytest.skip.Exception):
        return False
    frames = [*_frames(failure)]

    def is_users(frame: FrameType) -> bool:
        return _is_users(frame) or (test is not None and frame.f_globals is vars(test))

    if not any(map(_is_ours, frames)) or not (_is_deliberate(failure) or is_users(frames[-1])):
        return False
    if not any(map(is_users, frames)):
        return True
    for error in _chain(failure):
        for users, group in groupby(_frames(error), is_users):
            run = [*group]
            if not users and any(_is_ours(frame) for frame in run):
                for frame in run:
                    frame.f_locals["__tracebackhide__"] = True
    return False


def _is_deliberate(failure: BaseException) -> bool:
    """Whether the error was raised with a message for the user; an ``assert`` without one is a defect of the package."""
    return isinstance(failure, GittrixError | pytest.fail.Exception) or (isinstance(failure, AssertionError) and bool(failure.args))


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """The exception and those that pytest shows with it."""
    error: BaseException | None = failure
    known: set[int] = set()
    while error is not None and id(error) not in known:
        known.add(id(error))
        yield error
        error = error.__cause__ if error.__cause__ is not None or error.__suppress_context__ else error.__context__


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of a traceback below pytest's own."""
    trace = error.__traceback__
    while trace is not None:
        if _name(trace.tb_frame).partition(".")[0] not in ("_pytest", "pluggy"):
            yield trace.tb_frame
        trace = trace.tb_next


def _name(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _is_ours(frame: FrameType) -> bool:
    name = _name(frame)
    return name.partition(".")[0] == _PACKAGE and not name.startswith(_CLAUSES)


def _is_users(frame: FrameType) -> bool:
    """Whether a frame is neither of this package nor of a library that stands between the package and the user."""
    return not _is_ours(frame) and _name(frame).partition(".")[0] not in _LIBRARIES
