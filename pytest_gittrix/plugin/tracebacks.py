"""Tracebacks that end at the user's line: in a failure, the frames of this package and of the library calls that it makes are hidden.

A frame is hidden as pytest documents it, by ``__tracebackhide__`` among its local variables, and only once a test has failed. So
``--full-trace`` shows every frame, a debugger stops in every frame, and a test that passes pays nothing.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from itertools import groupby, takewhile
from types import FrameType, ModuleType
from typing import Final

import pytest

from pytest_gittrix.errors import GittrixError

_PACKAGE: Final = __name__.partition(".")[0]
_CLAUSES: Final = f"{_PACKAGE}.conformance"
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_OWN_FILES: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_EXPLANATION: Final = "Explanation:"
"""The note of Hypothesis that begins an explanation; each of its lines is a note of its own."""
_PLACE: Final = re.compile(r":\d+$")
_HYPOTHESIS: Final = ("hypothesis", "_hypothesis_pytestplugin")


def hide_frames(failure: BaseException, test: ModuleType | None = None) -> bool:
    """Hide the frames of this package in the tracebacks of an exception, of its causes and contexts, and of the members of a group.

    An error of the package itself, such as a ``TypeError`` in the engine, keeps its frames: its report needs them, and those of its cause.
    So does a skip, since pytest takes the place of a skip from its last frame, and the code of the conformance clauses, which is what their
    tests check.

    Args:
        failure: what a phase of a test raised.
        test: the module of the test, which is the user's even if it is part of the package.

    Returns:
        Whether no frame is the user's, since a fixture raised the failure by itself: then none is hidden, and the message is all that is
        worth showing.
    """
    if isinstance(failure, pytest.skip.Exception):
        return False

    def is_users(frame: FrameType) -> bool:
        return _is_users(frame) or (test is not None and frame.f_globals is vars(test))

    chain = [(error, [*_frames(error)]) for error in _chain(failure)]
    if not any(is_users(frame) for _, frames in chain for frame in frames):
        return _is_deliberate(failure) and any(map(_is_ours, chain[0][1]))
    on_purpose = False
    for error, frames in chain:
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                hide_frames(member, test)
        on_purpose = on_purpose or _is_deliberate(error)  # an error that the package explains by one of its own is dealt with too
        last = next((frame for frame in reversed(frames) if is_users(frame) or _is_ours(frame)), None)
        if last is not None and not on_purpose and not is_users(last):
            return False
        for users, group in groupby(frames, is_users):
            run = [*group]
            if not users and any(map(_is_ours, run)):
                _hide(run)
    return False


def hide_lines(failure: BaseException) -> None:
    """Leave the lines of this package out of what Hypothesis notes about a failure: the lines that only failing examples ran.

    Every example runs lines of the engine. Some of them are run by failing examples alone, and say nothing about the code under test.

    Args:
        failure: what a test raised; its notes are changed.
    """
    for error in _chain(failure):
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, list) and _EXPLANATION in notes:
            notes[:] = _without_own_lines(notes)


def _without_own_lines(notes: list[str]) -> list[str]:
    """The notes with an explanation that names no place in this package; without it if it names no other."""
    start = notes.index(_EXPLANATION)
    explanation = [*takewhile(lambda note: note.startswith(" "), notes[start + 1 :])]
    places = [note for note in explanation if not note.lstrip().startswith(_OWN_FILES)]
    kept = [_EXPLANATION, *places] if any(_PLACE.search(note) for note in places) else []
    return [*notes[:start], *kept, *notes[start + 1 + len(explanation) :]]


def _hide(frames: list[FrameType]) -> None:
    for frame in frames:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function's: the variables of a module or class would stay in it
            frame.f_locals["__tracebackhide__"] = True


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
    """Whether a frame is neither of this package nor of a library between the package and the user."""
    return not (_is_ours(frame) or _is_of_the_standard_library(frame.f_code.co_filename) or _name(frame).partition(".")[0] in _HYPOTHESIS)


def _is_of_the_standard_library(file: str) -> bool:
    """Judged by the file, since a module of the user may have the name of one of the library."""
    return file.startswith("<frozen ") or (file.startswith(_STANDARD_LIBRARY) and "-packages" + os.sep not in file)
