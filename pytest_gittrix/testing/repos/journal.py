"""What was done on a stage, in order: the calls of the system's verbs, the commands that they ran, and what people did in durable.

A ``Stage`` writes it, and an engine that runs commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.os_level.monotonic import real_seconds

PEOPLE: Final = frozenset({"commit", "rename", "rewind", "dirty", "stage", "git"})
"""The methods of ``DurableRepo`` that change something."""

DURABLE: Final = "durable"
"""What ``Journal.looked`` says when git was asked about durable."""

STATE_OF_DURABLE: Final = "{ git log --all --format='%T %s' | sort; git status --porcelain; git symbolic-ref -q HEAD; }"
"""A command that prints what durable holds: the trees and subjects of all commits, and the state of the checkout."""

_LISTS: Final = frozenset({"list"})
_CHANGING: Final = re.compile(r"\b(?:[0-9a-f]{7,64}|[0-9]+|[A-Za-z]+_[\w-]{8,})\b|(?:/[\w.@+-]+)+/?|'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True)
class TimedOperation:
    """One operation of one process, as checkers of histories read it.

    Attributes:
        process: the name of the process; ``main`` for that of the clause.
        operation: the verb.
        arguments: its arguments, as far as JSON can say them.
        start, end: nanoseconds of the machine's monotonic clock, which all processes share.
        result: ``OK``, or the code of the error; the error's type if it has no code.
        value: what it returned, as far as JSON can say it; the message of an error.
    """

    process: str
    operation: str
    arguments: tuple[Any, ...]
    start: int
    end: int
    result: str
    value: Any = None


def timed(process: str, operation: str, arguments: Sequence[Any], act: Callable[[], Any]) -> TimedOperation:
    """Do an operation and note when it began and ended, and what came of it."""
    start = now_ns()
    try:
        value, result = act(), "OK"
    except Exception as error:  # noqa: BLE001  (a system under test may raise anything)
        value, result = str(error), result_of(error)
    return TimedOperation(process, operation, _as_json(arguments), start, now_ns(), result, _as_json(value))


def as_json_lines(operations: Iterable[TimedOperation], **facts: str) -> str:
    """A history as JSON lines, one an operation, in the order in which they began, each with the facts before its own."""
    return "".join(json.dumps(facts | asdict(one)) + "\n" for one in sorted(operations, key=lambda one: one.start))


def now_ns() -> int:
    """Nanoseconds of the machine's monotonic clock, which no time library moves."""
    return round(real_seconds() * 1e9)


def result_of(error: BaseException | None) -> str:
    """``OK`` for no error, otherwise its code, or its type if it has none."""
    return "OK" if error is None else str(getattr(error, "code", None) or type(error).__name__)


def _answer(call: VerbCall) -> Any:
    return _as_json(call.answer if call.error is None else str(call.error))


def _as_json(value: Any) -> Any:
    """A value as far as JSON can say it: bytes as text, anything else by its ``str``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, Iterable):
        return tuple(_as_json(one) for one in value) if isinstance(value, list | tuple | set | frozenset) else str(value)
    return str(value)


@dataclass
class VerbCall:
    """A call of a verb of the system.

    Attributes:
        verb: the verb's name.
        arguments: its arguments, as Python writes them.
        answer: what it returned.
        error: the exception that it raised; None if it returned.
        given: the arguments themselves, in their order.
        start, end: nanoseconds of the machine's monotonic clock; 0 for a call that did not begin or end.
    """

    verb: str
    arguments: str
    answer: Any = None
    error: BaseException | None = None
    given: tuple[Any, ...] = ()
    start: int = 0
    end: int = 0


@dataclass
class PersonCall:
    """A call of a method of ``DurableRepo`` that changes the repository.

    Attributes:
        person: ``durable`` for its owner, ``rival`` for the second person.
        method: the method's name; one of ``PEOPLE``.
        arguments: the positional arguments.
        options: the keyword arguments.
        result: the id of the commit that it made, if it made one.
    """

    person: str
    method: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    result: str = ""


@dataclass
class CommandRun:
    """A command that the system, or the agent, ran.

    Attributes:
        command: the program and its arguments.
        directory: where it ran.
        variables: the environment variables that are not those of the place.
        secret: the names of those whose values may be secret, so that no report shows them.
        stdin: its standard input.
        program: the program and its first arguments, which all commands of the system have; empty for a command of the agent.
        answer: the ``data`` of its answer, or the error by which it refused; None until it has answered.
        ended: ``ok``, or the code of the error that it answered with; empty if it gave no answer.
        printed: what it wrote to standard output, where it answered.
    """

    command: tuple[str, ...]
    directory: str
    variables: Mapping[str, str] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()
    stdin: bytes = b""
    program: tuple[str, ...] = ()
    answer: Any = None
    ended: str = ""
    printed: bytes = b""


Step = VerbCall | PersonCall | CommandRun


@dataclass
class Journal:
    """What was done in a place.

    Attributes:
        steps: what was done, in order.
        root: the directory of the place.
        opened_with: the arguments that the place was opened with.
        scene: what another process did in the place meanwhile, or at which call it was killed; empty if there was none.
        covered: how many of such scenes were tried, of how many; empty if there are none.
        setting: how the person works on durable, as a sentence; empty if the clause is about one way alone.
        looked: what was looked at last: the verb that was asked, ``durable``, or nothing that a journal knows.
        left: the state of durable when the place was left; see ``STATE_OF_DURABLE``.
        beyond: what happened in the place that no script can repeat, as a sentence; empty if there is nothing.
        met: refusals of other plays of the clause, as lines ``verb: CODE``.
        contended: operations of processes that worked at the same instant.
    """

    steps: list[Step] = field(default_factory=list)
    root: Path = Path()
    opened_with: Mapping[str, Any] = field(default_factory=dict)
    scene: str = ""
    covered: str = ""
    setting: str = ""
    looked: str = ""
    left: str = ""
    beyond: str = ""
    met: set[str] = field(default_factory=set)
    contended: list[TimedOperation] = field(default_factory=list)

    def begin(self, root: Path, opened_with: Mapping[str, Any]) -> None:
        """Say which place this is the journal of.

        Args:
            root: the directory of the place.
            opened_with: the arguments of ``Place.open``.
        """
        self.root, self.opened_with = root, opened_with

    def take_over(self, other: Journal) -> None:
        """Tell from now on what another journal tells so far, of its place; what was covered stays."""
        self.met |= {*other.refusals(), *self.refusals()}
        self.steps, self.root, self.opened_with, self.scene = [*other.steps], other.root, other.opened_with, other.scene
        self.setting, self.looked, self.left, self.beyond = other.setting, other.looked, other.left, other.beyond

    @property
    def calls(self) -> Iterator[VerbCall]:
        """The calls of verbs."""
        return (step for step in self.steps if isinstance(step, VerbCall))

    def operations(self) -> list[TimedOperation]:
        """Every call of a verb in this process, and those of processes that worked at the same instant."""
        own = [
            TimedOperation("main", one.verb, _as_json(one.given), one.start, one.end, result_of(one.error), _answer(one))
            for one in self.calls
        ]
        return own + self.contended

    def refusals(self) -> list[str]:
        """Each refusal with a code, as ``verb: CODE``, sorted."""
        own = {f"{call.verb}: {code}" for call in self.calls if (code := getattr(call.error, "code", None))}
        return sorted(own | self.met)

    def cause_of(self, error: BaseException) -> str:
        """The cause of a failure, as a sentence; empty if the failure is only what the clause saw.

        An error that a verb raised is the cause. So is a listing, if it was the last thing to be asked for.

        Args:
            error: the exception that ended the clause.
        """
        calls = [*self.calls]
        raised = next((call for call in calls if call.error is error), None)
        if raised is not None:
            return f"{raised.verb} fails: {cause_text(error)}"
        return f"{calls[-1].verb} names other files than there are" if calls and calls[-1].verb in _LISTS else ""


def cause_text(error: BaseException) -> str:
    """The code and the first line of an error, without the ids, numbers and paths that differ from one place to another."""
    first = next(iter(str(error).splitlines()), "")
    return f"{getattr(error, 'code', None) or type(error).__name__}: {_CHANGING.sub('…', first)}"


class RecordedEngine:
    """An engine whose calls of verbs are written into a journal.

    Args:
        engine: the engine.
        journal: the journal.
    """

    def __init__(self, engine: Any, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._recorded(name, found) if callable(found) and not name.startswith("_") else found

    def _recorded(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            made = VerbCall(verb, _written(arguments, options), given=(*arguments, *options.values()), start=now_ns())
            self._journal.steps.append(made)
            self._journal.looked = verb
            try:
                made.answer = method(*arguments, **options)
            except BaseException as error:
                made.error = error
                raise
            finally:
                made.end = now_ns()
            return made.answer

        return call


class RecordedPerson:
    """A person's repository whose changes are written into a journal; everything else of it is as it is.

    Args:
        repository: the ``DurableRepo``.
        journal: the journal.
        name: ``durable`` or ``rival``.
    """

    def __init__(self, repository: Any, journal: Journal, name: str) -> None:
        self._repository = repository
        self._journal = journal
        self._name = name

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the repository, for ``isinstance``."""
        return type(self._repository)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._repository, name)
        if name not in PEOPLE or name == "git":
            self._journal.looked = DURABLE
        if name not in PEOPLE:
            return found

        @wraps(found)
        def change(*arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            made = PersonCall(self._name, name, arguments, options)
            self._journal.steps.append(made)
            answer = found(*arguments, **options)
            made.result = answer if name in ("commit", "rename") else ""
            return answer

        return change


def _written(arguments: Sequence[Any], options: Mapping[str, Any]) -> str:
    parts = [_shown(one) for one in arguments]
    return ", ".join([*parts, *(f"{name}={_shown(value)}" for name, value in options.items() if value is not None)])


def _shown(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, Path) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
