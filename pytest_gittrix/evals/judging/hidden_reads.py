"""Notes which files of hidden tests code under test reads in the process that it shares with them, though no test gave it these.

A test may give the code a file of its own: by an argument, a variable of the code's module, the working directory or the environment. Code
that opens one of them without that has looked for it. What is compared with such a file cannot judge that code.

It runs with nothing of the package: ``verifier_program`` is given its text. Code that is written against it can evade it: it sees what
Python opens, and no system call of ``ctypes`` or of a module in C, no other process, and no value that the tests have read already.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any

_DEPTH = 3
"""How deep in an argument a path is looked for."""
_MOST = 1000


class HiddenReads:
    """Watches what this process opens from now on.

    Args:
        directory: the directory of the hidden files.
        checkout: the directory of the result.

    Attributes:
        found: the files that code of the result opened by itself, relative to the directory.
    """

    def __init__(self, directory: str, checkout: str) -> None:
        self._directory = os.path.realpath(directory)
        self._checkout = checkout
        self.found: set[str] = set()
        self._busy = False
        sys.addaudithook(self._watch)

    def looks(self) -> bool:
        """Whether it is code of the result that runs now, and it was not given a hidden file."""
        frames = [*self._of_either(sys._getframe(1))]
        if not frames or self._is_hidden(frames[0].f_code.co_filename):
            return False
        until = next((number for number, frame in enumerate(frames) if self._is_hidden(frame.f_code.co_filename)), len(frames))
        return not self._was_given(frames[until - 1])

    def names_hidden(self, *values: Any) -> bool:
        """Whether one of some values has a path of the hidden directory in it."""
        return any(self._holds(value, _DEPTH) for value in values)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._busy or not isinstance(arguments[0], str | bytes | PurePath):
            return
        self._busy = True
        # What an audit hook raises would be raised by what is opened.
        with contextlib.suppress(Exception):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            # Python opens modules for who imports them: the tests' own are taken where both have one of a name.
            if self._is_hidden(path) and not path.endswith((".py", ".pyc")) and os.path.isfile(path) and self.looks():
                self.found.add(os.path.relpath(path, self._directory))
        self._busy = False

    def _of_either(self, frame: FrameType | None) -> Iterator[FrameType]:
        """The frames of the result and of the tests, from the innermost one."""
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_hidden(file) or file.startswith(self._checkout + os.sep):
                yield frame
            frame = frame.f_back

    def _is_hidden(self, path: str) -> bool:
        return path.startswith(self._directory + os.sep)

    def _was_given(self, frame: FrameType) -> bool:
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
        given: list[Any] = [frame.f_locals.get(name) for name in arguments]
        if code.co_name != "<module>":
            given += [value for value in [*frame.f_globals.values()] if isinstance(value, str | bytes | PurePath)]
        return self.names_hidden(*given, os.getcwd(), [*os.environ.values()])

    def _holds(self, value: Any, depth: int) -> bool:
        if isinstance(value, str | bytes | PurePath):
            text = os.fsdecode(value)
            return self._directory in text or (depth == _DEPTH and self._is_hidden(os.path.realpath(text[:_MOST])))
        if not depth or value is None:
            return False
        if isinstance(value, dict | os._Environ):
            value = [*value.values()]
        if isinstance(value, list | tuple | set | frozenset):
            return any(self._holds(one, depth - 1) for one in [*value][:_MOST])
        if isinstance(value, io.IOBase):
            return self._holds(getattr(value, "name", None), depth - 1)
        # No code of the object runs.
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return False
        return any(self._holds(one, depth - 1) for one in [*own.values()][:_MOST])


def watched(request: dict[str, Any], directory: str, checkout: str, secrecy: Any) -> HiddenReads | None:
    """Watch the reads of a request's process if code under test shares it; a program may read only what the test that starts it names."""
    if request["way"] == "subject" or not request["support"]:
        return None
    reads = HiddenReads(directory, checkout)

    def may(argv: Any, place: Any, variables: Any) -> bool:
        named = reads.names_hidden([*argv], place or os.getcwd(), os.environ if variables is None else [*variables])
        return named and not reads.looks()

    if request["way"] == "here":
        secrecy.Secrecy(directory, may)
    return reads
