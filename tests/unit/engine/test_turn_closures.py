"""The function of a turn that is a closure: by default it runs in a process, and says so where the program would miss what it does."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.engine import open_site

from pytest_gittrix import UserSession
from pytest_gittrix.engine.agents.closures import shared_variables


@pytest.fixture
def session(tmp_path: Path) -> Iterator[UserSession]:
    with open_site(tmp_path) as site:
        yield site.start()


def test_a_closure_that_changes_what_is_around_it_says_that_it_runs_in_a_process(session: UserSession) -> None:
    found: list[str] = []

    def agent(context: Any) -> None:
        found.append(context.turn)

    with pytest.warns(RuntimeWarning, match="runs in a process, which has a copy of found: this program sees no change") as caught:
        turn = session.start_turn(agent)
    assert caught[0].filename == __file__
    assert turn.wait(60)
    assert (turn.runs, turn.status, found) == ("process", "done", [])


@pytest.mark.parametrize(("runs", "left"), [("thread", 1), ("process", 0)])
def test_a_closure_that_is_told_where_to_run_says_nothing(session: UserSession, runs: str, left: int) -> None:
    found: list[str] = []
    turn = session.start_turn(lambda context: found.append(context.turn), runs=runs)
    assert turn.wait(60)
    assert (turn.runs, len(found)) == (runs, left)


def test_a_function_that_shares_nothing_says_nothing(session: UserSession) -> None:
    text, names = "v2\n", ["app.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.start_turn(lambda context: [context.session.write(name, text) for name in names]).wait(60)
        assert session.start_turn(print).wait(60)
    assert session.read("app.py") == b"v2\n"


class Agent:
    def method(self) -> None: ...


def closures() -> dict[str, tuple[Callable[..., Any], list[str]]]:
    number, table, text, late = 0, {}, "text", threading.Event()
    lines: queue.Queue[str] = queue.Queue()

    def assigns() -> None:
        nonlocal number
        number += 1

    def changes() -> None:
        table[text] = 1

    def removes() -> None:
        del table[text]

    return {
        "assigns": (assigns, ["number"]),
        "changes": (changes, ["table"]),
        "removes": (removes, ["table"]),
        "sets": (lambda: late.set(), ["late"]),
        "waits": (lambda: lines.get(), ["lines"]),
        "reads": (lambda: (len(table), text), []),
        "method": (Agent().method, []),
        "partial": (partial(print, table), []),
        "builtin": (print, []),
    }


@pytest.mark.parametrize("name", closures())
def test_what_a_closure_shares_is_seen_in_its_code(name: str) -> None:
    function, shared = closures()[name]
    assert [*shared_variables(function)] == shared
