"""Processes that do something at the same instant, and the history of what they did, as another checker reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fixtures.broken_systems.plain import PlainSystem
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix.conformance.base.contests import contests
from pytest_gittrix.errors import PathNotFound
from pytest_gittrix.testing.repos.journal import TimedOperation, as_json_lines, timed
from pytest_gittrix.testing.schedules.contention import at_once
from pytest_gittrix.testing.schedules.linearize import Call, require_linear
from pytest_gittrix.testing.systems.driver import SearchBudget, Stage
from pytest_gittrix.testing.systems.protocol import SessionSystem

Promotion = tuple[str, int]
"""The id of a session, and how many promotions had landed when it started."""


def prepared(process: str, act: Callable[[], object]) -> Callable[[], TimedOperation]:
    return partial(timed, process, "look", [], act)


def test_processes_are_let_go_when_all_are_ready(tmp_path: Path) -> None:
    def ready(name: str) -> Callable[[], TimedOperation]:
        (tmp_path / name).touch()
        return prepared(name, lambda: sorted(path.name for path in tmp_path.iterdir()))

    answers = at_once([partial(ready, "A"), partial(ready, "B")])

    assert [(one.process, one.result, one.value) for one in answers] == [("A", "OK", ("A", "B")), ("B", "OK", ("A", "B"))]


def test_a_process_without_an_answer_is_an_error() -> None:
    def fails() -> Callable[[], TimedOperation]:
        raise ZeroDivisionError("no engine")

    with pytest.raises(AssertionError, match="gave no answer"):
        at_once([fails, partial(prepared, "B", str)])


def test_a_refusal_is_a_result_by_its_code() -> None:
    def refuse() -> None:
        raise PathNotFound("There is no file 'a'.")

    assert timed("A", "read", ["a"], refuse).result == "PATH_NOT_FOUND"
    assert timed("A", "read", ["a"], lambda: {}["a"]).result == "KeyError"


def test_a_line_of_a_history_is_json_and_they_are_in_the_order_of_their_starts() -> None:
    first, second = timed("A", "write", ["s1", b"\xff"], lambda: b"one\n"), timed("B", "list", ["s1"], lambda: ["a"])

    lines = [json.loads(line) for line in as_json_lines([second, first], clause="LCK-15").splitlines()]

    assert [(line["clause"], line["process"], line["arguments"], line["value"]) for line in lines] == [
        ("LCK-15", "A", ["s1", "\\xff"], "one\n"),
        ("LCK-15", "B", ["s1"], ["a"]),
    ]


def history_of(system: SessionSystem, *, most: int) -> str:
    """The JSON lines of contests of two promotions of one file."""
    with Stage.open(system, files={"app.py": "one\n"}) as stage:
        stage.budget = SearchBudget(race=60)
        for number, contest in enumerate(contests(stage, ("A", "B"), ("promote", "promote")), 1):
            if number == most or all(one.result == "OK" for one in contest.answers):
                break
        return as_json_lines(stage.journal.operations())


def promotions_in(history: str) -> list[Call[Promotion]]:
    """The contended promotions that did something, as the checker of linear histories takes them: it knows nothing of their origin."""
    lines = [json.loads(line) for line in history.splitlines()]
    contended = [line for line in lines if line["operation"] == "promote" and line["process"] != "main"]
    starts = {line["value"]: line["end"] for line in lines if line["operation"] == "start"}
    landed = [line["end"] for line in contended if line["result"] == "OK"]
    return [
        Call(
            line["process"],
            (session, sum(end < starts[session] for end in landed)),
            line["start"],
            line["end"],
            line["result"],
        )
        for line in contended
        for session in line["arguments"]
        if line["result"] in ("OK", "BASELINE_CONFLICT")
    ]


def landing(state: int, op: Promotion) -> tuple[int, str]:
    """Durable has had so many promotions of the file; one that started from fewer is in conflict."""
    return (state + 1, "OK") if op[1] == state else (state, "BASELINE_CONFLICT")


def test_a_checker_of_histories_explains_contended_promotions_of_a_correct_system() -> None:
    calls = promotions_in(history_of(PlainSystem(), most=6))

    require_linear(calls, 0, landing)
    assert sum(call.result == "OK" for call in calls) == 6


def test_a_checker_of_histories_finds_a_lost_update_in_them() -> None:
    calls = promotions_in(history_of(ZOO["looks before the lock"].system(), most=200))

    with pytest.raises(AssertionError, match="NOT LINEARISABLE"):
        require_linear(calls, 0, landing)
