"""The judge of histories: what an order of operations explains passes, what none does is shown, and answers nobody got may be anything."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.errors import SessionNotFound
from pytest_gittrix.testing.schedules.linearize import Call, CallHistory, answered_before, linearise, require_linear
from pytest_gittrix.testing.schedules.sequential import LOST, SessionOp, Sessions, session_calls, sessions_model

Number = tuple[str, int]
READ: Number = ("read", 0)


def register(state: int, op: Number) -> tuple[int, object]:
    """A register: reads answer what was written last."""
    return (op[1], None) if op[0] == "write" else (state, state)


def call(actor: str, op: Number, called: int, returned: int | None, result: object = None) -> Call[Number]:
    return Call(actor, op, called, returned, result)


def test_operations_that_overlap_may_have_happened_in_either_order() -> None:
    write, old, new = call("A", ("write", 1), 0, 10), call("B", READ, 1, 2, 0), call("B", READ, 3, 4, 1)

    assert linearise([new, old, write], 0, register) == [old, write, new]


def test_a_value_that_was_seen_cannot_be_gone_again() -> None:
    history = [call("A", ("write", 1), 0, 10), call("B", READ, 1, 2, 1), call("B", READ, 3, 4, 0)]

    assert linearise(history, 0, register) is None


def test_old_news_is_no_answer() -> None:
    history = [call("A", ("write", 1), 0, 1), call("B", READ, 2, 3, 0)]

    assert linearise(history, 0, register) is None


def test_a_call_nobody_heard_of_again_may_have_happened_or_not() -> None:
    lost = call("A", ("write", 1), 0, None)

    assert linearise([lost, call("B", READ, 1, 2, 0)], 0, register) == [call("B", READ, 1, 2, 0)]
    assert linearise([lost, call("B", READ, 1, 2, 1)], 0, register) == [lost, call("B", READ, 1, 2, 1)]
    assert linearise([lost, call("B", READ, 1, 2, 0), call("B", READ, 3, 4, 1)], 0, register) is not None
    assert linearise([lost, call("B", READ, 1, 2, 1), call("B", READ, 3, 4, 0)], 0, register) is None


def test_a_call_cannot_have_happened_before_it_was_made() -> None:
    assert linearise([call("B", READ, 0, 1, 1), call("A", ("write", 1), 2, None)], 0, register) is None


def test_the_empty_history_is_fine() -> None:
    assert linearise([], 0, register) == []


def test_what_is_wrong_is_shown_with_what_was_explained_before_it() -> None:
    history = [call("A", ("write", 1), 0, 1), call("B", READ, 2, 3, 1), call("B", READ, 4, 5, 7)]

    with pytest.raises(AssertionError) as caught:
        require_linear(history, 0, register)

    assert str(caught.value) == (
        "NOT LINEARISABLE: no order explains these answers. The best begins\n"
        "  A: ('write', 1) -> None\n"
        "  B: ('read', 0) -> 1\n"
        "  and then none of\n"
        "  B: ('read', 0) -> 7   (the model answers 1)"
    )
    require_linear(history[:2], 0, register)


@st.composite
def histories(draw: st.DrawFn) -> list[Call[Number]]:
    """Up to five overlapping calls of a register, some right and some not, some without an answer."""
    times = draw(st.permutations(range(2 * (size := draw(st.integers(0, 5))))))
    calls = []
    for n in range(size):
        op = draw(st.sampled_from([READ, ("write", 1), ("write", 2)]))
        result = draw(st.integers(0, 2)) if op == READ else None
        called, returned = sorted(times[2 * n : 2 * n + 2])
        calls.append(call(f"actor {n}", op, called, None if draw(st.integers(0, 4)) == 0 else returned, result))
    return calls


@given(histories())
def test_it_agrees_with_trying_every_order(history: list[Call[Number]]) -> None:
    def explains(order: tuple[Call[Number], ...]) -> bool:
        state = 0
        for place, one in enumerate(order):
            if any(answered_before(later, one) for later in order[place + 1 :]):
                return False
            state, result = register(state, one.op)
            if one.returned is not None and result != one.result:
                return False
        return True

    answered = {one for one in history if one.returned is not None}
    orders = (order for size in range(len(answered), len(history) + 1) for order in permutations(history, size))
    found = linearise(history, 0, register)

    assert (found is not None) == any(explains(order) for order in orders if answered <= set(order))
    assert found is None or (explains(tuple(found)) and answered <= set(found))


def test_a_history_writes_down_answers_refusals_and_silence() -> None:
    history: CallHistory[str] = CallHistory()

    def refuse() -> None:
        raise SessionNotFound("gone")

    assert history.call("A", "add", lambda: 2, lambda value: value * 10) == 2
    with pytest.raises(SessionNotFound):
        history.call("A", "find", refuse)
    with pytest.raises(ZeroDivisionError):
        history.call("B", "divide", lambda: 1 // 0)

    assert [(one.actor, one.op, one.result) for one in history.calls] == [
        ("A", "add", 20),
        ("A", "find", "SESSION_NOT_FOUND"),
        ("B", "divide", None),
    ]
    assert [one.returned is None for one in history.calls] == [False, False, True]
    assert str(history.calls[2]) == "B: divide -> unknown"


def test_a_history_knows_what_overlapped() -> None:
    history: CallHistory[str] = CallHistory()
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go_on.wait(60)

    thread = threading.Thread(target=history.call, args=("A", "wait", wait))
    thread.start()
    inside.wait(60)
    history.call("B", "pass", lambda: None)
    go_on.set()
    thread.join(60)
    history.call("B", "after", lambda: None)
    waited, passed, after = history.calls

    assert not answered_before(waited, passed)
    assert not answered_before(passed, waited)
    assert answered_before(waited, after)


# Sessions ----------------------------------------------------------------------------------------------------------------------


def answers(*ops: SessionOp) -> list[object]:
    """What the model answers one after another."""
    state, answered = Sessions(), []
    for op in ops:
        state, answer = sessions_model(state, op)
        answered.append(answer)
    return answered


def start(name: str, *paths: str) -> SessionOp:
    return SessionOp("start", name, paths)


def commit(*paths: str) -> SessionOp:
    return SessionOp("commit", paths=paths)


HEAD, LATE = SessionOp("head"), SessionOp("late")
PROMOTE, EVICT, SWEEP = (SessionOp(do, "s") for do in ("promote", "evict", "sweep"))


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([HEAD, commit("a"), HEAD], [1, 2, 2]),
        ([start("s", "a"), PROMOTE, HEAD], [1, 2, 2]),
        ([start("s", "a"), commit("b"), PROMOTE], [1, 2, 3]),
        ([start("s", "a"), commit("a"), PROMOTE, HEAD], [1, 2, "BASELINE_CONFLICT", 2]),
        ([start("s", "a"), commit("a/b"), PROMOTE], [1, 2, "BASELINE_CONFLICT"]),
        ([start("s", "a/b"), commit("a"), PROMOTE], [1, 2, "BASELINE_CONFLICT"]),
        ([start("s", "a"), commit("ab"), PROMOTE], [1, 2, 3]),
        ([commit("a"), start("s", "a"), PROMOTE], [2, 2, 3]),
        ([start("s"), PROMOTE], [1, "PROMOTE_FAILED"]),
        ([start("s", "a"), PROMOTE, PROMOTE], [1, 2, "SESSION_EXPIRED"]),
        ([start("s", "a"), EVICT, EVICT, PROMOTE], [1, None, "SESSION_EXPIRED", "SESSION_EXPIRED"]),
        ([start("s", "a"), SWEEP, LATE, SWEEP, SWEEP], [1, False, None, True, False]),
        ([start("s", "a"), LATE, PROMOTE, EVICT], [1, None, "SESSION_EXPIRED", None]),
        ([LATE, start("s", "a"), PROMOTE], [None, 1, 2]),
        ([start("t", "a"), PROMOTE], [1, "SESSION_NOT_FOUND"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_sessions_one_operation_at_a_time(ops: list[SessionOp], expected: list[object]) -> None:
    assert answers(*ops) == expected


def sessions(*calls: Call[SessionOp], log: str) -> bool:
    """Whether a history of sessions is explained; commit ids are a letter forty times, the root's is ``r``."""
    known = [replace(one, result=one.result * 40 if isinstance(one.result, str) and len(one.result) == 1 else one.result) for one in calls]
    return linearise(session_calls(known, [letter * 40 for letter in log]), Sessions(), sessions_model) is not None


BEFORE = Call("before", start("s", "x"), 0, 1, "r")


def test_a_commit_that_is_not_on_the_branch_is_lost() -> None:
    both = [BEFORE, Call("A", PROMOTE, 2, 9, "a"), Call("B", commit("y"), 3, 4, "b")]

    assert sessions(*both, log="abr")
    assert sessions(*both, log="bar")
    assert not sessions(*both, log="ar")
    assert session_calls([Call("A", PROMOTE, 2, 9, "a" * 40)], ["r" * 40])[0].result == LOST


def test_commits_stand_on_the_branch_in_the_order_they_were_made() -> None:
    assert not sessions(BEFORE, Call("A", PROMOTE, 2, 3, "a"), Call("B", commit("y"), 4, 5, "b"), log="abr")


def test_a_sweep_says_nothing_about_a_session_that_somebody_works_on() -> None:
    late, refused = Call("C", LATE, 2, 3), Call("A", PROMOTE, 4, 8, "SESSION_EXPIRED")

    assert sessions(BEFORE, late, refused, Call("B", SWEEP, 5, 6, False), log="r")
    assert not sessions(BEFORE, late, refused, Call("B", SWEEP, 9, 10, False), log="r")


def test_a_promotion_that_began_in_time_goes_on() -> None:
    late = Call("C", LATE, 3, 4)

    assert sessions(BEFORE, late, Call("A", PROMOTE, 2, 9, "a"), Call("B", commit("y"), 5, 6, "b"), log="abr")
    assert sessions(BEFORE, late, Call("A", PROMOTE, 2, 9, "SESSION_EXPIRED"), log="r")
    assert not sessions(BEFORE, late, Call("A", PROMOTE, 5, 9, "a"), log="ar")


def test_who_gave_up_waiting_says_nothing() -> None:
    assert sessions(BEFORE, Call("A", PROMOTE, 2, 3, "EVICTION_RACE"), log="r")


def overlapping(seed: int, *, corrupt: bool, unknown: int) -> tuple[list[Call[SessionOp]], Sessions]:
    """Twelve operations, all at the same time, answered by the model in a random order, some to nobody; if corrupt, one answer is wrong."""
    rng = random.Random(seed)
    begun = Sessions()
    for name in "stu":
        begun, _ = sessions_model(begun, start(name, rng.choice("abc")))
    ops = [
        rng.choice([HEAD, commit(rng.choice("abc")), *(SessionOp(do, rng.choice("stu")) for do in ("promote", "evict", "sweep"))])
        for _ in range(12)
    ]
    state, calls = begun, []
    for n, op in enumerate(ops):
        state, answer = sessions_model(state, op)
        calls.append(Call(f"actor {n}", op, n, 100 + n, answer))
    rng.shuffle(calls)
    calls = [replace(one, called=n, returned=100 + n if n < 12 - unknown else None) for n, one in enumerate(calls)]
    if corrupt:
        calls[0] = replace(calls[0], result=LOST)
    return calls, begun


@pytest.mark.parametrize("unknown", [0, 6])
@pytest.mark.parametrize("corrupt", [False, True])
def test_twelve_operations_at_the_same_time_are_judged(corrupt: bool, unknown: int) -> None:
    seconds = []
    for seed in range(100):
        calls, begun = overlapping(seed, corrupt=corrupt, unknown=unknown)
        began = time.perf_counter()
        found = linearise(calls, begun, sessions_model)
        seconds.append(time.perf_counter() - began)
        assert (found is None) == corrupt
    seconds.sort()
    figures = ", ".join(f"{name} {seconds[place] * 1e3:.2f} ms" for name, place in {"median": 50, "p99": 98, "most": 99}.items())
    print(f"12 operations at the same time, corrupt={corrupt}, unknown={unknown}: {figures}")
