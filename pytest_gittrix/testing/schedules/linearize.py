"""Checks whether one order of the operations of several actors, each done in an instant, explains all their results.

The checker is that of Wing and Gong ("Testing and verifying concurrent objects", 1993), and remembers what it tried as Lowe's does. It
looks for an order in which an operation that returned before another one was called comes first. A model says what each operation does to
a state, and what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from pytest_gittrix.errors import GittrixError

Op = TypeVar("Op", bound=Hashable)
State = TypeVar("State", bound=Hashable)
T = TypeVar("T")

Model = Callable[[State, Op], tuple[State, object]]
"""What an operation does to a state, and what it returns. A pure function; states are hashable values."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Op]):
    """One operation of one actor.

    Attributes:
        actor: the name of the actor.
        op: the operation, as the model takes it.
        called, returned: when, in any numbers that grow. ``returned`` is None if the outcome is unknown, for instance after a crash: then
            it happened at any time after it was called, or never.
        result: what it returned, as the model does.
    """

    actor: str
    op: Op
    called: int
    returned: int | None
    result: object = None

    def __str__(self) -> str:
        return f"{self.actor}: {self.op} -> {'unknown' if self.returned is None else self.result}"


class CallHistory(Generic[Op]):
    """Records operations as they happen, in any thread."""

    def __init__(self) -> None:
        self._calls: dict[int, Call[Op]] = {}
        self._time = count()

    @property
    def calls(self) -> list[Call[Op]]:
        """The recorded calls, in the order in which they were called."""
        return [self._calls[called] for called in sorted(self._calls)]

    def call(self, actor: str, op: Op, act: Callable[[], T], answer: Callable[[T], object] | None = None) -> T:
        """Call ``act`` and record its result.

        Args:
            actor: the name of the actor.
            op: the operation, as the model takes it.
            act: performs the operation. A ``GittrixError`` is a result too: its code. Any other exception leaves the outcome unknown.
            answer: turns what ``act`` returned into what the model returns; by default it stays as it is.

        Returns:
            What ``act`` returned. What it raises is raised.
        """
        called = next(self._time)
        self._calls[called] = Call(actor, op, called, None)
        try:
            value = act()
        except GittrixError as error:
            self._calls[called] = Call(actor, op, called, next(self._time), error.code)
            raise
        self._calls[called] = Call(actor, op, called, next(self._time), value if answer is None else answer(value))
        return value


History = CallHistory
"""The former name of ``CallHistory``."""


def linearise(calls: Iterable[Call[Op]], state: State, model: Model[State, Op]) -> list[Call[Op]] | None:
    """Find an order that explains a history: a call that returned before another one was called comes first.

    Args:
        calls: the history, in any order.
        state: the first state of the model.
        model: what is right.

    Returns:
        The calls in such an order, those of unknown outcome only where they must have happened; None if there is no such order.
    """
    return _Search(calls, model).order(state)


def require_linear(calls: Iterable[Call[Op]], state: State, model: Model[State, Op]) -> None:
    """Raise AssertionError unless some order explains a history. The message shows the longest beginning of one, and where it fails."""
    search = _Search(calls, model)
    if search.order(state) is not None:
        return
    left = [call for call in search.calls if call not in search.best]
    after = state
    for call in search.best:
        after = model(after, call.op)[0]
    lines = [f"  {call}" for call in search.best] + ["  and then none of"]
    lines += [f"  {call}   (the model answers {model(after, call.op)[1]})" for call in left if call.returned is not None]
    raise AssertionError("\n".join(["NOT LINEARISABLE: no order explains these answers. The best begins", *lines]))


def answered_before(one: Call[Op], other: Call[Op]) -> bool:
    """Whether one call returned before the other was called. If neither did, they overlap."""
    return one.returned is not None and one.returned < other.called


class _Search(Generic[State, Op]):
    """A depth-first search over pairs of the calls done so far (bits of a number) and the state they left. None is visited twice."""

    def __init__(self, calls: Iterable[Call[Op]], model: Model[State, Op]) -> None:
        self.calls = sorted(calls, key=lambda call: call.called)
        self.best: list[Call[Op]] = []
        self._model = model
        self._before = [sum(1 << i for i, one in enumerate(self.calls) if answered_before(one, call)) for call in self.calls]
        self._answered = sum(1 << i for i, call in enumerate(self.calls) if call.returned is not None)
        # States are identified by number, so that each is hashed once and not at every visit.
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._known: dict[tuple[int, int], int | None] = {}

    def order(self, state: State) -> list[Call[Op]] | None:
        """Return the calls in an order that explains them, or None; ``best`` is then the longest beginning of one."""
        start = (0, self._number(state))
        stack: list[tuple[int, int, tuple[int, ...]]] = [(*start, ())]
        visited = {start}
        while stack:
            done, number, path = stack.pop()
            if len(path) > len(self.best) or not self._answered & ~done:
                self.best = [self.calls[i] for i in path]
            if not self._answered & ~done:
                return self.best
            for i in range(len(self.calls) - 1, -1, -1):
                if done >> i & 1 or self._before[i] & ~done:
                    continue
                after = self._after(number, i)
                if after is not None and (there := (done | 1 << i, after)) not in visited:
                    visited.add(there)
                    stack.append((*there, (*path, i)))
        return None

    def _after(self, number: int, i: int) -> int | None:
        """Return the number of the state that a call leaves, or None if the model returns another result."""
        key = (number, i)
        if key not in self._known:
            call = self.calls[i]
            state, result = self._model(self._states[number], call.op)
            self._known[key] = self._number(state) if call.returned is None or result == call.result else None
        return self._known[key]

    def _number(self, state: State) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number
