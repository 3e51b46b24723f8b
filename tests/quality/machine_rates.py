"""Counts what the state machine meets: how often it comes into the situations that defects show in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pytest_gittrix.testing.machines.session_machine import SandboxMachine
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.session_model import OK, overlapping

RATES: Final[Mapping[str, tuple[str, str]]] = {
    "promotions of a session that cannot be used any more": ("ended", "promotions"),
    "promotions that conflict": ("conflicts", "promotions"),
    "conflicts with the work of another session": ("conflicts between sessions", "conflicts"),
    "promotions with a rival inside": ("rivals inside", "promotions"),
    "steps that sweep within a second of a deadline": ("sweeps at a deadline", "steps"),
    "of these, after a use of the session": ("sweeps after a use", "sweeps at a deadline"),
}
"""What is counted, and of what it is a share."""

Method = Callable[..., Any]


def rates(machine: type[SandboxMachine], limits: settings) -> dict[str, float]:
    """Run a machine, the same examples each time, and give each rate in per cent."""
    with counting() as counted:
        run_state_machine_as_test(machine, settings=settings(limits, phases=[Phase.generate], database=None, derandomize=True))
    return {name: 100 * counted[what] / max(counted[of], 1) for name, (what, of) in RATES.items()}


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """A block in which every step of every trial is counted; gives the counts."""
    counted: Counter[str] = Counter()
    instead = {"promote": _promotion, "promote_beside_a_rival": _beside, "sweep": _sweep, "_stepping": _step}
    with ExitStack() as patches:
        for method, make in instead.items():
            patches.enter_context(patch.object(Trial, method, make(getattr(Trial, method), counted)))
        yield counted


def _promotion(whole: Method, counted: Counter[str]) -> Method:
    def promote(trial: Any, held: Any, *arguments: Any, **options: Any) -> Any:
        session, landed = trial.model.sessions[held.id], vars(trial).setdefault("landed", [])
        usable, touched = OK in trial.model.refusal(session, trial.now), [*session.touched]
        counted.update(promotions=1, ended=not usable)
        answer = whole(trial, held, *arguments, **options)
        if answer == OK:
            landed.append((touched, {one.id for one in trial.held} - {held.id}))
        if answer == "BASELINE_CONFLICT":
            others = any(held.id in waiting and overlapping(touched, paths) for paths, waiting in landed)
            counted.update({"conflicts": 1, "conflicts between sessions": others})
        return answer

    return promote


def _beside(whole: Method, counted: Counter[str]) -> Method:
    def beside(trial: Any, *arguments: Any, **options: Any) -> Any:
        drifted = trial._drifted

        def came(*given: Any, **more: Any) -> None:
            counted["rivals inside"] += 1
            drifted(*given, **more)

        with patch.object(trial, "_drifted", came):
            return whole(trial, *arguments, **options)

    return beside


def _sweep(whole: Method, counted: Counter[str]) -> Method:
    def sweep(trial: Any, *arguments: Any, **options: Any) -> Any:
        limited = [one for one in trial.model.sessions.values() if one.present and one.deadline is not None]
        close = [one for one in limited if abs((one.deadline - trial.now).total_seconds()) <= 1]
        counted.update({"sweeps at a deadline": bool(close), "sweeps after a use": any(one.used > one.created for one in close)})
        return whole(trial, *arguments, **options)

    return sweep


def _step(whole: Method, counted: Counter[str]) -> Method:
    def stepping(trial: Any) -> Any:
        counted["steps"] += trial._depth == 0
        return whole(trial)

    return stepping
