"""Judges tests in the process of the code under test: each must pass as it is, and fail with a changed expectation, in like runs."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from pytest_gittrix.evals.judging.canary import TOO_MANY, changeable, changed, printed, test_name, turns
from pytest_gittrix.evals.judging.pytest_run import HiddenTests, PytestRun
from pytest_gittrix.evals.judging.verdict import Judge, Verdict

_ROUNDS: Final = 2
"""How often each test is run as it is, and with a changed expectation."""
_UNLIKE: Final = "its runs do not look alike"
_MEETS_ALL: Final = "a test passes whatever it expects"


class CanaryRounds:
    """The rounds of a file of tests.

    Args:
        test: the tests.
        run_as: runs a text of their file in one of the two ways.
        chosen: the tests that are to be judged; all if there are none.
    """

    def __init__(self, test: HiddenTests, run_as: Callable[[str, str], PytestRun], chosen: Collection[str]) -> None:
        self._test = test
        self._run_as = run_as
        self._chosen = chosen
        self._functions = changeable(test.source)
        names = {test_name(one) for one in chosen} or self._functions
        self._can_change = sorted({self._functions[name] for name in names if name in self._functions})
        self._drawn = secrets.SystemRandom()
        self._order = self._drawn.getrandbits(32)
        self._seen: list[tuple[Collection[str], PytestRun]] = []

    def judge(self, passed: Mapping[str, Judge]) -> Verdict:
        """Judge the tests.

        Args:
            passed: what judged the tests of the file that have passed already.
        """
        stopped = self._run_rounds()
        suspects = [name for name in self._names if "failed" in self._ends(name, changed=False)]
        # What a test that failed says of the result is only known where it fails as its author wrote it, too.
        again = self._run_as(self._test.source, "free") if suspects and stopped is None else None
        stopped = again if again is not None and again.stopped else stopped
        if stopped is not None:
            return Verdict(stopped.stopped, stopped.done, passed, {name: self._judge_of(name) for name in self._chosen})
        found = {name: self._problem(name, again) for name in self._names}
        failed = {name: problem for name, problem in found.items() if problem is not None}
        if looked := sorted({file for _, run in self._seen for file in run.looked}):
            reason = f"the code under test read {', '.join(looked)} of the hidden tests, and no test gave it that"
            failed = {**{name: ("unjudgeable", reason) for name in self._names if self._counts(name)}, **failed}
        judges = {**passed, **{name: self._judge_of(name) for name in self._names if name not in failed and self._counts(name)}}
        done = self._seen[0][1].done
        return Verdict(_told(failed, judges), done, judges, {name: judge for name, (judge, _) in failed.items()})

    def _run_rounds(self) -> PytestRun | None:
        """Run the rounds; gives the run that stopped them, if one did."""
        for turn in range(_ROUNDS if self._can_change else 1):
            # A test is changed in one run of the two and not in the other; which one, and with which others, cannot be foreseen.
            half = {one for one in self._can_change if self._drawn.random() < 0.5}
            pair: list[tuple[Collection[str], PytestRun]] = []
            for part in (half, {*self._can_change} - half) if self._can_change else [half]:
                names = {name for name, function in self._functions.items() if function in part}
                seed = self._drawn.getrandbits(32)
                run = self._run_as(self._changed(names, seed, turn) if names else printed(self._test.source), "here")
                run = run if run.stopped else self._other_exceptions(run, names, seed, turn)
                if run.stopped:
                    return run
                pair.append((names, run))
            # A test whose rows are changed has the names that it has in the other run, where it is as it is.
            self._seen += [(names, run.renamed(names, other)) for (names, run), (_, other) in zip(pair, pair[::-1], strict=True)]
            if any(self._is_suspect(name) for name in self._names):
                return None
        return None

    def _changed(self, names: Collection[str], seed: int, turn: int) -> str:
        return changed(self._test.source, names, seed, turn, self._order)

    def _other_exceptions(self, run: PytestRun, names: Collection[str], seed: int, turn: int) -> PytestRun:
        """A changed run in which a test that met another exception has failed, unless it meets too many; or the run that stopped this."""
        met = Counter({name: 1 for name, end in run.tests.items() if end.outcome == "passed"})
        more = {name: count for name, count in turns(self._test.source, names, seed).items() if any(test_name(one) == name for one in met)}
        for step in range(1, max(more.values(), default=0)):
            asked = {name for name, count in more.items() if step < count}
            again = self._run_as(self._changed(asked, seed, turn + step), "here")
            if again.stopped:
                return again
            met.update(name for name, end in again.tests.items() if end.outcome == "passed" and test_name(name) in asked)
        return run.failing(name for name, count in met.items() if test_name(name) in more and count < TOO_MANY)

    @property
    def _names(self) -> list[str]:
        """The tests to judge that were seen."""
        names = dict.fromkeys(name for _, run in self._seen for name in run.tests)
        return [name for name in names if not self._chosen or name in self._chosen]

    def _ends(self, name: str, *, changed: bool) -> list[str]:
        """The outcomes of a test where it was changed, or where it was not."""
        return [run.tests[name].outcome for names, run in self._seen if name in run.tests and (test_name(name) in names) == changed]

    def _is_suspect(self, name: str) -> bool:
        return "failed" in self._ends(name, changed=False) or "passed" in self._ends(name, changed=True)

    def _counts(self, name: str) -> bool:
        return any(self._test.counts(name, outcome) for outcome in self._ends(name, changed=False))

    def _judge_of(self, name: str) -> Judge:
        return "canary" if test_name(name) in self._functions else "plain"

    def _problem(self, name: str, again: PytestRun | None) -> tuple[Judge, str] | None:
        """What judged a test that has not passed, and why it has not; none if it has, or was skipped."""
        as_it_is, changed = self._ends(name, changed=False), self._ends(name, changed=True)
        if len(as_it_is) + len(changed) < len(self._seen):
            return "unjudgeable", _UNLIKE
        if again is None or "failed" not in as_it_is:
            return (self._judge_of(name), _MEETS_ALL) if "passed" in changed else None
        if {*as_it_is} != {"failed"} or name not in again.tests or again.tests[name].outcome != "failed":
            return "unjudgeable", _UNLIKE
        lacking = again.tests[name].lacking
        return ("unjudgeable", lacking) if lacking else (self._judge_of(name), again.status)


def _told(failed: Mapping[str, tuple[Judge, str]], judges: Collection[str]) -> str:
    """Why the result has not passed; empty if it has."""
    if not failed:
        return "" if judges else "no test passed"
    wrong = sorted({reason for judge, reason in failed.values() if judge != "unjudgeable"}, reverse=True)
    name, (_, reason) = min(failed.items())
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return wrong[0] if wrong else f"none can judge {name}{more}: {reason}"
