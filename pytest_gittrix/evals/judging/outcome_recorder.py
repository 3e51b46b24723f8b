"""The plugin of pytest that writes down how each hidden test ended.

It runs with nothing of the package: ``verifier_program`` is given its text.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import socket
import termios
import unittest
from collections.abc import Iterator
from typing import Any

import _pytest
import pluggy
import pytest
from _pytest.fixtures import FixtureLookupError

_GIVEN_UP = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
_TOOLS = tuple(os.path.dirname(os.path.realpath(str(one.__file__))) + os.sep for one in (_pytest, pluggy, unittest))
_NO_NETWORK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)
_NO_TERMINAL = (errno.ENOTTY, errno.ENXIO)


class OutcomeRecorder:
    """How each test ended.

    Args:
        finder: finds the modules of the result in a process of its own; None where the tests share a process with them.
        checkout: the directory of the result.
        directory: the directory of the hidden files.

    Attributes:
        tests: by name, the outcome; whether an object of the code under test may have brought it about; what the place lacks for it.
        ended: how many tests came to an end.
        collected: how many there are.
        given_up: the test that code of the result skipped.
    """

    def __init__(self, finder: Any, checkout: str, directory: str) -> None:
        self._finder = finder
        self._checkout = checkout
        self._directory = directory
        self._before = (False, False)
        self.tests: dict[str, list[Any]] = {}
        self.ended = self.collected = 0
        self.given_up = ""

    @property
    def _subject(self) -> Any:
        return self._finder and self._finder.started

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Doubt a test that passed only where an object could decide what it found, or a program could read the tests' data."""
        subject = self._subject
        if subject is not None:
            if not self.tests:
                self._before = subject.touched, subject.decided
            # What pytest asked about objects when it collected the tests is nothing that a test found.
            subject.touched, subject.decided, subject.asked = *self._before, False
        yield
        subject = self._subject
        entry = self.tests[_name_of(item)]
        doubted = subject is not None and (subject.touched if entry[0] == "failed" else subject.decided or subject.asked)
        entry[1] = doubted or (self._finder is not None and not self._finder.keeps())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Note the outcome of a part of a test."""
        found = call.excinfo
        report = (yield).get_result()
        entry = self.tests.setdefault(_name_of(item), ["passed", False, ""])
        if report.failed:
            entry[0] = "failed"
            entry[2] = entry[2] or (self._lacking(found.value) if found is not None else "")
        elif report.skipped and entry[0] == "passed":
            entry[0] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        if self._finder is None and found is not None and isinstance(found.value, _GIVEN_UP) and not self.given_up:
            files = [os.path.realpath(str(one.path)) for one in found.traceback]
            files = [one for one in files if not one.startswith(_TOOLS)]
            marked = not files and report.when != "call"
            if not marked and (not files or files[-1].startswith(self._checkout + os.sep)):
                self.given_up = item.nodeid

    def _lacking(self, problem: BaseException) -> str:
        for one in _chain(problem):
            if isinstance(one, FileNotFoundError) and isinstance(one.filename, str):
                path = os.path.relpath(os.path.realpath(one.filename), os.path.realpath(self._directory))
                if not path.startswith("..") and os.path.exists(os.path.join(self._checkout, path)):
                    return f"the result's {path} is not beside the tests"
        return lacking(problem)

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
        """Await a test: no plugin is loaded that would."""
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
        return True

    def pytest_collection_finish(self) -> None:
        """Forget the test file where code under test could look for it."""
        if self._finder is not None:
            self._finder.hide()

    def pytest_runtest_logfinish(self) -> None:
        """Count a test that came to its end."""
        self.ended += 1

    def pytest_sessionfinish(self, session: Any) -> None:
        """Note how many tests there are."""
        self.collected = session.testscollected


def _name_of(item: Any) -> str:
    return str(item.nodeid.partition("::")[2])


def lacking(problem: BaseException | None) -> str:
    """What the place of a run lacks, by the exception that ended a test; empty if that does not say so."""
    for one in _chain(problem):
        if isinstance(one, FixtureLookupError):
            return f"no loaded plugin defines the fixture {one.argname}"
        if isinstance(one, socket.gaierror) or (isinstance(one, OSError) and one.errno in _NO_NETWORK):
            return "there is no network"
        if isinstance(one, termios.error) or (isinstance(one, OSError) and one.errno in _NO_TERMINAL):
            return "there is no terminal"
    return ""


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__
