"""What a record of an agent's log says of its activity: a small table of rules, and pure functions of the newest records.

A log says more than a time: its newest record shows whether the model is at work, a turn is over, a question is asked, or an error came.
See docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.agent_activity import ACTIVE_NS, IDLE_NS, UNITS, time_of
from pytest_gittrix.record.state.observations import ACTIVITIES, Activity

Record = Mapping[str, Any]
Value = str | int | bool

ANY: Final = "*"
"""The value of a condition that any value but null fulfils."""
_MOST: Final = 2000
_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class ActivityRule:
    """What a record means.

    A key is names joined by dots (``message.content.type``); a list on the way means each of its items.

    Attributes:
        when: the values that a record has, by key: one of several, or ``*`` for any. All keys must fit.
        state: what the agent does after such a record, one of ``ACTIVITIES``.
        calls: the key of the ids of tool calls that such a record begins. A call without a result for five minutes asks for permission:
            the agent is ``waiting_input``.
        answers: the key of the ids of tool calls that such a record answers.

    Raises:
        InvalidInput: there is no such state, or no condition.
    """

    when: Mapping[str, Value | tuple[Value, ...]]
    state: str
    calls: str | None = None
    answers: str | None = None

    def __post_init__(self) -> None:
        if self.state not in ACTIVITIES:
            raise InvalidInput(f"{self.state!r} is no activity.", fix=f"Use one of: {', '.join(ACTIVITIES)}.")
        if not self.when:
            raise InvalidInput("A rule has no condition.", why="It would fit every record.", fix='Give one, such as {"type": "error"}.')

    def fits(self, record: Record) -> bool:
        """Whether a record has all its values."""
        return all(_has(values_at(record, key), wanted) for key, wanted in self.when.items())


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How the records of a log or of a database are read.

    Attributes:
        rules: the first one that fits a record says what it means; a record that none fits is passed over.
        time: the key of a record's time.
        unit: of a time that is a number, one of ``UNITS``.
        trusted: values by key of an agent that asks for no permission; the newest record with such a key counts.
        asks: whether the agent ever asks for permission.

    Raises:
        InvalidInput: there is no such unit.
    """

    rules: tuple[ActivityRule, ...]
    time: str = "timestamp"
    unit: str = "ms"
    trusted: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    asks: bool = True

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidInput(f"{self.unit!r} is not a unit of time here.", fix=f"Use one of: {', '.join(UNITS)}.")

    def read(self, newest_first: Iterable[Record], now_ns: int) -> Activity | None:
        """The activity that the newest records show; None if no rule fits any.

        Only as many are read as it takes to know whether a tool call is without a result.
        """
        records, passed = iter(newest_first), list[Record]()
        meant = self._meant(records, passed)
        first = next(meant, None)
        if first is None:
            return None
        rule, newest = first
        call = _open_call(chain([first], islice(meant, _BATCH)))
        when = next((one for one in (time_of(value, self.unit) for value in values_at(newest, self.time)) if one is not None), None)
        state = rule.state if call is None else call.state
        silent = call is not None and when is not None and now_ns - when > IDLE_NS
        if silent and state == "active" and not self._asks_nothing(chain(passed, islice(records, _MOST))):
            state = "waiting_input"
        return Activity(native_state(state, when, now_ns), "native", when, None, now_ns)

    def _meant(self, records: Iterable[Record], passed: list[Record]) -> Iterator[tuple[ActivityRule, Record]]:
        """The records that a rule fits, each with its rule; all that were read for that are put into ``passed``."""
        for record in records:
            passed.append(record)
            rule = next((rule for rule in self.rules if rule.fits(record)), None)
            if rule is not None:
                yield rule, record

    def _asks_nothing(self, newest_first: Iterable[Record]) -> bool:
        """Whether the newest record that says how permission is asked for says that it is not."""
        if not self.asks or not self.trusted:
            return not self.asks
        said = ((values_at(record, key), values) for record in newest_first for key, values in self.trusted.items())
        return next((_has(given, values) for given, values in said if given), False)


def _open_call(meant: Iterable[tuple[ActivityRule, Record]]) -> ActivityRule | None:
    """The rule of the newest tool call that nothing answered, among the calls and answers at the end of a log; None without one."""
    answered: set[object] = set()
    for number, (rule, record) in enumerate(meant):
        answered |= _ids(record, rule.answers)
        if rule.calls is not None:
            calls = _ids(record, rule.calls)
            if not calls <= answered or (not calls and number == 0):
                return rule
        elif rule.answers is None:
            return None
    return None


def native_state(state: str, when: int | None, now_ns: int) -> str:
    """What a state that an agent's own log shows has become since.

    Unlike a state that somebody reports now and then, it holds until the next record: a turn is not over before the log says so, and a
    question stays one. An agent that is at work, or has finished, is idle after five minutes; one that met an error tries again at first,
    and is blocked after thirty seconds.
    """
    if when is None:
        return state
    age = now_ns - when
    if state in ("active", "ready"):
        return "idle" if age > IDLE_NS else state
    return "active" if state == "blocked" and age <= ACTIVE_NS else state


def values_at(record: object, key: str) -> list[object]:
    """The values under a key of a record, null left out; see ``ActivityRule``."""
    found = [record]
    for name in key.split("."):
        found = [one[name] for value in found for one in _items(value) if isinstance(one, Mapping) and name in one]
    return [one for value in found for one in _items(value) if one is not None]


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _has(given: list[object], wanted: Value | tuple[Value, ...]) -> bool:
    values = wanted if isinstance(wanted, tuple) else (wanted,)
    return any(ANY in values or any(one is value or (type(one) is type(value) and one == value) for value in values) for one in given)


def _ids(record: Record, key: str | None) -> set[object]:
    return set() if key is None else {one for one in values_at(record, key) if isinstance(one, str | int)}
