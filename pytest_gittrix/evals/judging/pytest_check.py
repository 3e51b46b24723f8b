"""The check that runs hidden tests on a result, built so that the result cannot answer for them.

The tests run in a process that loads no code of the result. That code runs in a process of its own, and only plain values cross back.
Tests that fail so share a process with the code under test; then canaries tell whether they test anything. What judged each test is
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pytest_gittrix.evals.judging.canary import test_name
from pytest_gittrix.evals.judging.canary_rounds import CanaryRounds
from pytest_gittrix.evals.judging.pytest_run import HiddenTests, PytestPlace, PytestRun
from pytest_gittrix.evals.judging.same_object import tells_objects_apart
from pytest_gittrix.evals.judging.verdict import Judge, Verdict

_NO_TESTS: Final = 5


def judge(test: HiddenTests, places: Callable[[], PytestPlace]) -> Verdict:
    """Run the tests of a file on a result.

    Args:
        test: the tests.
        places: makes a place for a run of pytest; there are several runs where tests cannot cross.
    """
    collisions: set[str] = set()

    def run(source: str, way: str, rows: Mapping[str, Sequence[int]] | None = None) -> PytestRun:
        found = PytestRun.of(test, source, places(), way=way, rows=rows)
        collisions.update(found.found.get("collisions", ()))
        return found

    verdict = replace(_judge(test, run), collisions=collisions)
    missing: dict[str, Judge] = {one: "subject" for one in test.chosen if one not in verdict.judges}
    wrong = verdict.wrong or (f"{next(iter(missing))} did not pass" if missing else "")
    return replace(verdict, wrong=wrong, failed={**missing, **verdict.failed})


def _judge(test: HiddenTests, run_as: Callable[..., PytestRun]) -> Verdict:
    first = run_as(test.source, "subject")
    if first.done.timed_out:
        # A test may wait for ever for what cannot cross.
        return CanaryRounds(test, run_as, ()).judge({})
    if first.wrong:
        return Verdict(first.wrong, first.done, {})
    if taken := sorted(test.imports.intersection(first.taken)):
        names = [*first.tests] or [*test.chosen] or [test.name]
        return Verdict(f"none can judge {names[0]}: pytest itself uses {taken[0]}", first.done, {}, dict.fromkeys(names, "unjudgeable"))
    passing = {name: end.doubted for name, end in first.tests.items() if test.counts(name, end.outcome)}
    failed = {name: end.doubted for name, end in first.tests.items() if end.outcome == "failed"}
    apart = tells_objects_apart(test.source, {test_name(name) for name in passing})
    passed: dict[str, Judge] = {name: "subject" for name, doubted in passing.items() if not doubted and test_name(name) not in apart}
    ended_well = not first.found["status"] or first.found["status"] == _NO_TESTS
    if ended_well and len(passed) == len(passing):
        return Verdict("" if passed else "no test passed" if first.tests else first.status, first.done, passed)
    if first.found["gone"] and not first.found["touched"]:
        return Verdict("the result ended its process", first.done, passed, dict.fromkeys(failed, "subject"))
    doubted = [name for name in passing if name not in passed]
    verdict = CanaryRounds(test, partial(run_as, rows=first.rows), [*failed, *doubted]).judge(passed)
    # Where only plain values crossed, the first run has already said how the result is wrong, and says it alike each time.
    crossed = not ended_well and not (all(failed.values()) if failed else first.found["touched"])
    told = crossed and {*verdict.failed.values()} != {"unjudgeable"}
    return replace(verdict, wrong=first.status, done=first.done) if verdict.wrong and told else verdict
