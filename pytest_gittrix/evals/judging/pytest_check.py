"""The check that runs hidden tests on a result, built so that the result cannot answer for them.

The tests run in a process that loads no code of the result. That code runs in a process of its own, and only plain values cross back.
Tests that fail so share a process with the code under test; then canaries tell whether they test anything. What judged each test is
recorded.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.judging.canary import changeable, changed, printed, test_name

Judge = Literal["subject", "canary", "plain"]
"""What judged a test: the code under test in a process of its own, a changed expectation, or only the test itself."""

_ROUNDS: Final = 2
"""How often each test that cannot cross is run as it is, and with a changed expectation."""


@dataclass(frozen=True)
class PytestPlace:
    """A place of its own for one run of pytest.

    Attributes:
        run: runs a program in a fresh checkout, given ``argv`` and by name ``stdin``.
        home: the program's home directory, which is empty.
    """

    run: Callable[..., Finished]
    home: Path


@dataclass(frozen=True)
class Verdict:
    """What a test file found out about a result.

    Attributes:
        wrong: why the result did not pass; empty if it did.
        done: how the program ended that decided it.
        judges: what judged each test that passed.
        failed: what judged each test that failed.
        collisions: the files of the result that have the name of a module of the tests' own.
    """

    wrong: str
    done: Finished
    judges: Mapping[str, Judge]
    failed: Mapping[str, Judge] = field(default_factory=dict)
    collisions: Collection[str] = ()

    @property
    def detail(self) -> str:
        """Why the result did not pass, and which files of the result have names of the tests' own modules, which were taken."""
        taken = f"the tests' own modules were taken, and not the result's {', '.join(sorted(self.collisions))}" if self.collisions else ""
        return "; ".join(one for one in (self.wrong, taken) if one)


@dataclass(frozen=True)
class HiddenTests:
    """The tests of one file.

    Attributes:
        name: the path of the file, relative to the other files.
        source: its text.
        support: the files in its directory, such as ``conftest.py`` and data, by path.
        chosen: the tests that must pass, such as ``TestIt::test_it[1]``; all by default, and then it is enough that none fails.
        roots: the directories of the checkout that modules are imported from.
    """

    name: str
    source: str
    support: Mapping[str, bytes] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    roots: tuple[str, ...] = (".",)

    def counts(self, name: str, outcome: str) -> bool:
        """Whether a test of that name has passed; one that its author expects to fail does so if it was chosen."""
        return outcome == "passed" or (outcome == "xfailed" and name in self.chosen)


def judge(test: HiddenTests, places: Callable[[], PytestPlace]) -> Verdict:
    """Run the tests of a file on a result.

    Args:
        test: the tests.
        places: makes a place for a run of pytest; there are several runs where tests cannot cross.
    """
    collisions: set[str] = set()

    def run(source: str, way: str) -> _Run:
        found = _Run.of(test, source, places(), way=way)
        collisions.update(found.found.get("collisions", ()))
        return found

    verdict = replace(_judge(test, run), collisions=collisions)
    missing: dict[str, Judge] = {one: "subject" for one in test.chosen if one not in verdict.judges}
    wrong = verdict.wrong or (f"{next(iter(missing))} did not pass" if missing else "")
    return replace(verdict, wrong=wrong, failed={**missing, **verdict.failed})


def _judge(test: HiddenTests, run_as: Callable[[str, str], _Run]) -> Verdict:
    first = run_as(test.source, "subject")
    if first.wrong:
        return Verdict(first.wrong, first.done, {})
    passing = {name: doubted for name, (outcome, doubted) in first.tests.items() if test.counts(name, outcome)}
    failed = {name: doubted for name, (outcome, doubted) in first.tests.items() if outcome == "failed"}
    passed: dict[str, Judge] = {name: "subject" for name, doubted in passing.items() if not doubted}
    ended_well = not first.found["status"] or first.found["status"] == _NO_TESTS
    if ended_well and len(passed) == len(passing):
        return Verdict("" if passed else "no test passed" if first.tests else f"status {first.found['status']}", first.done, passed)
    if first.found["gone"] and not first.found["touched"]:
        return Verdict("the result ended its process", first.done, passed, dict.fromkeys(failed, "subject"))
    doubted = [name for name in passing if name not in passed]
    verdict = _judge_by_canaries(test, run_as, [*failed, *doubted], passed)
    # Where only plain values crossed, the first run has already said how the result is wrong, and says it alike each time.
    crossed = not ended_well and not (all(failed.values()) if failed else first.found["touched"])
    return replace(verdict, wrong=f"status {first.found['status']}", done=first.done) if verdict.wrong and crossed else verdict


_NO_TESTS: Final = 5


def _judge_by_canaries(
    test: HiddenTests, run_as: Callable[[str, str], _Run], chosen: Collection[str], passed: Mapping[str, Judge]
) -> Verdict:
    """Judge the tests that cannot cross: each must pass as it is, and fail with a changed expectation, in runs that look alike."""
    source = test.source
    functions = changeable(source)
    can_change = sorted({functions[name] for name in ({test_name(one) for one in chosen} or functions) if name in functions})
    judges: dict[str, Judge] = dict(passed)
    drawn = secrets.SystemRandom()
    for _ in range(_ROUNDS if can_change else 1):
        # A test is changed in one run of the two and not in the other; which one, and with which others, cannot be foreseen.
        half = {one for one in can_change if drawn.random() < 0.5}
        runs: list[tuple[_Run, str]] = []
        failed: dict[str, Judge] = {}
        for part in (half, {*can_change} - half) if can_change else [half]:
            names = {name for name, function in functions.items() if function in part}
            text = changed(source, names, drawn.getrandbits(32)) if names else printed(source)
            run = run_as(text, "here")
            runs.append((run, run.wrong or run.problem(names, chosen)))
            for name, (outcome, _) in run.tests.items():
                if chosen and name not in chosen:
                    continue
                by: Judge = "canary" if test_name(name) in functions else "plain"
                if test.counts(name, outcome):
                    judges.setdefault(name, by)
                if outcome == ("passed" if test_name(name) in names else "failed"):
                    failed[name] = by
        wrong = [(run.done, problem) for run, problem in runs if problem]
        if wrong and all(run.is_whole for run, _ in runs):
            # Both runs of a round say which tests failed, so that equal results have equal tables.
            return Verdict(wrong[0][1], wrong[0][0], {name: by for name, by in judges.items() if name not in failed}, failed)
        if wrong:
            unsure: dict[str, Judge] = {name: "canary" if test_name(name) in functions else "plain" for name in chosen}
            return Verdict(wrong[0][1], wrong[0][0], passed, unsure)
    return Verdict("" if judges else "no test passed", run.done, judges)


@dataclass(frozen=True)
class _Run:
    """One run of pytest, and what it answered."""

    found: Mapping[str, Any]
    done: Finished
    wrong: str

    @property
    def tests(self) -> Mapping[str, tuple[str, bool]]:
        """The outcome of each test, and whether an object of the code under test may have brought it about."""
        tests: Mapping[str, tuple[str, bool]] = self.found.get("tests", {})
        return tests

    @property
    def is_whole(self) -> bool:
        """Whether every test of the run came to its end."""
        return not self.wrong and not self.found["given_up"] and not self.found["missing"]

    @classmethod
    def of(cls, test: HiddenTests, source: str, place: PytestPlace, *, way: str) -> _Run:
        secret, answer = secrets.token_hex(16), f".answer-{secrets.token_hex(8)}"
        request = {
            "way": way,
            "secret": secret,
            "answer": answer,
            "name": test.name,
            "test": source,
            "support": {path: base64.b64encode(data).decode() for path, data in test.support.items()},
            "roots": list(test.roots),
            "chosen": sorted(test.chosen),
            "subject": _program("subject_program"),
            "places": _program("module_places"),
            "secrecy": _program("secrecy"),
        }
        # Python does not look into its working directory nor the user's packages: the agent could have put a pytest.py there.
        argv = [sys.executable, "-P", "-s", "-c", _program("verifier_program")]
        done = place.run(argv, stdin=json.dumps(request).encode("utf-8", "surrogatepass"))
        found = _read(place.home / answer)
        if done.timed_out:
            return cls(found, done, "its time was up")
        if found.get("secret") != secret or done.code != found.get("status"):
            how = f"status {done.code}" if done.code is not None else f"signal {done.signal}"
            return cls(found, done, how if done.code != 0 and not found else "the result ended pytest before it was done")
        return cls(found, done, "")

    def problem(self, names: Collection[str], chosen: Collection[str]) -> str:
        """Why a run in which the named tests were changed does not speak for the result; empty if it does."""
        found = self.found
        if found["given_up"]:
            return f"the result gave up {found['given_up']}"
        if found["missing"]:
            return "only {} of {} tests came to an end".format(*found["ended"])
        counted = {test: outcome for test, (outcome, _) in self.tests.items() if not chosen or test in chosen}
        for test, outcome in counted.items():
            if test_name(test) in names and outcome == "passed":
                return "a test passes whatever it expects"
            if test_name(test) not in names and outcome == "failed":
                return f"status {found['status']}"
        if found["status"] not in (0, 1) or (not counted and found["status"]):
            return f"status {found['status']}"
        return ""


def _program(name: str) -> str:
    return files(__package__ or "").joinpath(f"{name}.py").read_text(encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
