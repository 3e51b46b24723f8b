"""One run of pytest on hidden tests, by a program that loads nothing of the package."""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.inputs.hidden_tests import imports_of
from pytest_gittrix.evals.judging.canary import test_name

_PARTS: Final = {"secret": str, "status": int, "given_up": str, "missing": bool, "ended": list, "touched": bool, "gone": bool}
"""The parts of an answer that are neither tables nor lists of names."""
_FIRST_SHARE: Final = 0.3
"""The part of the time that the run with a process for the code under test may take: others may follow."""


@dataclass(frozen=True)
class PytestPlace:
    """A place of its own for one run of pytest.

    Attributes:
        run: runs a program in a fresh checkout, given ``argv`` and by name ``stdin`` and ``share``, the part of the time left that it may
            take.
        home: the program's home directory, which is empty.
    """

    run: Callable[..., Finished]
    home: Path


@dataclass(frozen=True)
class HiddenTests:
    """The tests of one file.

    Attributes:
        name: the path of the file, relative to the other files.
        source: its text.
        support: the files in its directory, such as ``conftest.py`` and data, by path.
        chosen: the tests that must pass, such as ``TestIt::test_it[1]``; all by default, and then it is enough that none fails.
        roots: the directories of the checkout that modules are imported from.
        known: the top-level modules that the repository had at first: what is installed under these names is never taken for the result's.
    """

    name: str
    source: str
    support: Mapping[str, bytes] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    roots: tuple[str, ...] = (".",)
    known: frozenset[str] = frozenset()

    @property
    def imports(self) -> set[str]:
        """The top-level names of the modules that the tests and their support files import."""
        sources = [self.source, *(data.decode("utf-8", "replace") for path, data in self.support.items() if path.endswith(".py"))]
        return {name.partition(".")[0] for source in sources for name in imports_of(source)}

    def counts(self, name: str, outcome: str) -> bool:
        """Whether a test of that name has passed; one that its author expects to fail does so if it was chosen."""
        return outcome == "passed" or (outcome == "xfailed" and name in self.chosen)


@dataclass(frozen=True)
class EndOfTest:
    """How a test ended in a run.

    Attributes:
        outcome: ``passed``, ``failed``, ``skipped`` or ``xfailed``.
        doubted: whether an object of the code under test may have brought it about.
        lacking: what the place of the run lacks for it, if it failed by that.
    """

    outcome: str
    doubted: bool
    lacking: str


@dataclass(frozen=True)
class PytestRun:
    """One run of pytest, and what it answered.

    Attributes:
        found: the answer.
        done: how the program ended.
        wrong: why there is no answer that counts; empty if there is one.
    """

    found: Mapping[str, Any]
    done: Finished
    wrong: str

    @property
    def tests(self) -> Mapping[str, EndOfTest]:
        """How each test ended, by name."""
        return {name: EndOfTest(*end) for name, end in self.found.get("tests", {}).items()}

    @property
    def rows(self) -> Mapping[str, Sequence[int]]:
        """The places of the rows that were run of each function."""
        found: dict[str, list[int]] = {}
        for name, place in self.found.get("rows", {}).items():
            found.setdefault(test_name(name), []).append(place)
        return found

    @property
    def looked(self) -> Collection[str]:
        """The files of the tests that code of the result opened though no test gave it these."""
        found: Collection[str] = self.found.get("looked", ())
        return found

    @property
    def taken(self) -> Collection[str]:
        """The modules that pytest itself had loaded, installed, before the tests could import those of the result under the same names."""
        found: Collection[str] = self.found.get("taken", ())
        return found

    def renamed(self, functions: Collection[str], like: PytestRun) -> PytestRun:
        """The same run, with the rows of some functions named as in another one, where other values may be written in them."""
        own, others = ({(test_name(name), place): name for name, place in run.found.get("rows", {}).items()} for run in (self, like))
        names = {name: others[row] for row, name in own.items() if row[0] in functions and row in others}
        return replace(self, found={**self.found, "tests": {names.get(name, name): end for name, end in self.found["tests"].items()}})

    def failing(self, names: Iterable[str]) -> PytestRun:
        """The same run, with some tests failed."""
        failed = {name: ["failed", *self.found["tests"][name][1:]] for name in names}
        return replace(self, found={**self.found, "tests": {**self.found["tests"], **failed}})

    @property
    def stopped(self) -> str:
        """Why tests of the run did not come to their end by themselves; empty if all did."""
        found = self.found
        if self.wrong or found["given_up"]:
            return self.wrong or f"the result gave up {found['given_up']}"
        if found["missing"]:
            return "only {} of {} tests came to an end".format(*found["ended"])
        return "" if found["status"] in (0, 1) else self.status

    @property
    def status(self) -> str:
        """The exit status of pytest, as a reason."""
        return f"status {self.found['status']}"

    @classmethod
    def of(
        cls, test: HiddenTests, source: str, place: PytestPlace, *, way: str, rows: Mapping[str, Sequence[int]] | None = None
    ) -> PytestRun:
        """Run the tests of a file.

        Args:
            test: the tests.
            source: the text of their file, which may be changed.
            place: where to run them.
            way: ``subject`` for a process of its own for the code under test, ``here`` for one that it shares with the tests, and ``free``
                for one in which, besides, programs may read all files of the tests.
            rows: the places of the rows to run, by function. The process that is shared must not know their names.
        """
        secret, answer = secrets.token_hex(16), f".answer-{secrets.token_hex(8)}"
        request = {
            "way": way,
            "secret": secret,
            "answer": answer,
            "name": test.name,
            "test": source,
            "support": {path: base64.b64encode(data).decode() for path, data in test.support.items()},
            "roots": list(test.roots),
            "known": sorted(test.known),
            "chosen": sorted(test.chosen if way == "subject" else {test_name(name) for name in test.chosen}),
            "rows": rows or {},
            "subject": _program("subject_program"),
            "places": _program("module_places"),
            "secrecy": _program("secrecy"),
            "recorder": _program("outcome_recorder"),
            "collected": _program("collected_tests"),
            "reads": _program("hidden_reads"),
        }
        # Python does not look into its working directory nor the user's packages: the agent could have put a pytest.py there.
        argv = [sys.executable, "-P", "-s", "-c", _program("verifier_program")]
        share = _FIRST_SHARE if way == "subject" else 1.0
        done = place.run(argv, stdin=json.dumps(request).encode("utf-8", "surrogatepass"), share=share)
        found = _read(place.home / answer)
        if done.timed_out:
            return cls(found, done, "its time was up")
        if found.get("secret") != secret or done.code != found.get("status"):
            how = f"status {done.code}" if done.code is not None else f"signal {done.signal}"
            return cls(found, done, how if done.code != 0 and not found else "the result ended pytest before it was done")
        return cls(found, done, "")


def _program(name: str) -> str:
    return files(__package__ or "").joinpath(f"{name}.py").read_text(encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and _is_answer(found) else {}


def _is_answer(found: Mapping[str, Any]) -> bool:
    """Whether an answer has the form of one: a result may have written it."""
    tests, rows = found.get("tests"), found.get("rows")
    lists = (found.get("collisions"), found.get("looked"), found.get("taken"))
    return (
        all(isinstance(found.get(name), kind) for name, kind in _PARTS.items())
        and [type(number) for number in found["ended"]] == [int, int]
        and isinstance(tests, dict)
        and all(isinstance(end, list) and [type(part) for part in end] == [str, bool, str] for end in tests.values())
        and isinstance(rows, dict)
        and all(type(place) is int for place in rows.values())
        and all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists)
    )
