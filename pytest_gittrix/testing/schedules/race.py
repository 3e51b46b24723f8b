"""Races: an action at a named step of another one, or several actors that run one at a time in an order the test chooses.

A step is a point of the engine (``promote:head-read``, see ``points``), or a git command of a program that runs with ``Race.env``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final, Self

from pytest_gittrix import points
from pytest_gittrix.errors import Deadlock, GittrixError, nearest
from pytest_gittrix.testing.schedules.actors import Actors, Outcome
from pytest_gittrix.testing.schedules.git_shim import GitShim, Side

Act = Callable[[], object]

_AT_GIT: Final = " git "
_SHORT: Final = 2
_LONGEST: Final = 120


@dataclass
class _Passed:
    """A step that an actor passed, and what was done there."""

    actor: str
    step: str
    did: list[str] = field(default_factory=list)


@dataclass
class _Hook:
    step: str
    fn: Act
    times: int | None
    runs: int = 0

    @property
    def spent(self) -> bool:
        return self.times is not None and self.runs >= self.times


class Race:
    """Control over interleavings, from ``with Race(...)`` until the block ends.

    Args:
        directory: where the git shim puts its files; created when it is needed.
        base_env: returns the variables that ``env`` is built on.
        timeout: real seconds that actors may take from one point to the next, or wait for each other.
    """

    def __init__(self, directory: Path, base_env: Callable[[], Mapping[str, str]], *, timeout: float = 5.0) -> None:
        self._directory = directory
        self._base_env = base_env
        self._timeout = timeout
        self._hooks: list[_Hook] = []
        self._passed: list[_Passed] = []
        self._played: list[Actors] = []
        self._acting = threading.local()
        self._actors: Actors | None = None
        self._shim: GitShim | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(points.listening(self._reached))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._stack.close()
        if kind is not None:
            return
        if self._shim is not None and self._shim.errors:
            raise self._shim.errors[0]
        self._refuse_unreached()

    def before(self, step: str, fn: Act, *, times: int | None = 1) -> None:
        """Run ``fn`` when the engine reaches the point ``step``, or just before a program runs ``git <step>``.

        Points that ``fn`` itself reaches are no steps. At a point of the engine, what ``fn`` raises is raised there, on the engine's
        thread; at a git command ``fn`` runs on a thread of its own while that git waits, and what it raises is raised when the race ends.

        Args:
            step: a point (its name has a colon) or the name of a git command.
            fn: the action.
            times: how often it happens, from the first time on; the race fails if the step was reached less often. None for every time,
                which may be never.

        Raises:
            InvalidInput: ``step`` is neither.
            CapabilityMissing: a git command, where the platform has no named pipes.
        """
        self._add("before", step, fn, times)

    def after(self, step: str, fn: Act, *, times: int | None = 1) -> None:
        """As ``before``, but after ``git <step>`` has run and before its caller goes on. At a point of the engine it is the same."""
        self._add("after", step, fn, times)

    @property
    def env(self) -> dict[str, str]:
        """The hermetic environment with the git shim first on PATH: run the other program with it, so that its git commands are steps."""
        return self._git().environment(self._base_env())

    @contextmanager
    def actors(self, **actors: Act) -> Iterator[Actors]:
        """Create actors that take turns as the test says: ``actors.step("A")``. Those that have not ended at the end go on to theirs.

        One thread runs at a time. While an actor has its turn, the others wait at a point of the engine.
        """
        with Actors(actors, timeout=self._timeout) as self._actors:
            self._played.append(self._actors)
            try:
                yield self._actors
                self._actors.finish()
            finally:
                self._actors = None

    def run(self, schedule: Iterable[str], /, **actors: Act) -> dict[str, Outcome]:
        """Run actors one at a time: each name in ``schedule`` lets that actor go on to its next point, then all finish in turn.

        Args:
            schedule: names of actors; one that has ended already is skipped.
            actors: what each actor does, by name.

        Returns:
            The outcome of each actor, by name. A ``GittrixError`` is an outcome; anything else an actor raises is raised here.

        Raises:
            InvalidInput: the schedule names an unknown actor.
            Deadlock: the actors wait for each other.
        """
        with self.actors(**actors) as taking_turns:
            for name in schedule:
                taking_turns.step(name)
        return taking_turns.outcomes

    def story(self) -> list[str]:
        """What happened, in order, one line each: who passed which steps, what was done at a step, and how each actor ended.

        Empty if nothing was to be done and no actor was played.
        """
        if not self._hooks and not self._played:
            return []
        lines: list[str] = []
        for (actor, eventful), group in groupby(self._passed, lambda passed: (passed.actor, bool(passed.did))):
            run = [*group]
            if eventful:
                lines += [f"{actor}: {passed.step}: {did}" for passed in run for did in passed.did]
            else:
                steps = [passed.step for passed in run]
                lines.append(f"{actor}: {', '.join(steps) if len(steps) <= _SHORT else f'{steps[0]} .. {steps[-1]}'}")
        lines += [f"{hook.step} was never reached" for hook in self._hooks if not hook.runs]
        return [*lines, *(f"{name} {_ended(outcome)}" for actors in self._played for name, outcome in actors.outcomes.items())]

    def _add(self, side: Side, step: str, fn: Act, times: int | None) -> None:
        if ":" not in step:
            self._git().watch(side, step)
            step = f"{side}{_AT_GIT}{step}"
        self._hooks.append(_Hook(step, fn, times))

    def _git(self) -> GitShim:
        if self._shim is None:
            self._shim = GitShim(self._directory, self._at_git)
            self._stack.callback(self._shim.close)
        return self._shim

    def _at_git(self, side: Side, command: str) -> None:
        step = f"{side}{_AT_GIT}{command}"
        self._act(step)
        if self._shim and all(hook.spent for hook in self._hooks if hook.step == step):
            self._shim.forget(side, command)

    def _reached(self, point: str) -> None:
        if getattr(self._acting, "now", False):
            return
        self._act(point)
        if self._actors is not None:
            self._actors.pause(point)

    def _act(self, step: str) -> None:
        passed = _Passed(self._actors.current or "test" if self._actors is not None else "test", step)
        self._passed.append(passed)
        for hook in [hook for hook in self._hooks if hook.step == step and not hook.spent]:
            hook.runs += 1
            self._acting.now = True
            try:
                passed.did.append(f"{_named(hook.fn)} {_ended(Outcome(hook.fn()))}")
            except BaseException as error:
                passed.did.append(f"{_named(hook.fn)} {_ended(Outcome(error=error))}")
                raise
            finally:
                self._acting.now = False

    def _refuse_unreached(self) -> None:
        open_hooks = [hook for hook in self._hooks if hook.times is not None and not hook.spent]
        if not open_hooks:
            return
        unreached = [hook.step for hook in open_hooks]
        never_run = [_word(hook.step) for hook in open_hooks if _AT_GIT in hook.step and not hook.runs]
        others = [hook.step for hook in open_hooks if _AT_GIT not in hook.step or hook.runs]
        facts = [f"The git command `{command}` was never run." for command in never_run]
        facts += [f"Never reached, or less often than asked: {', '.join(others)}."] if others else []
        reached = list(dict.fromkeys(passed.step for passed in self._passed))
        near = dict.fromkeys(name for step in unreached if (name := nearest(_word(step), map(_word, reached))) is not None)
        raise Deadlock(
            " ".join(facts),
            why="The action of that step did not run, so the test has shown nothing.",
            fix=f"{f'Did you mean {_listed(near)}? ' if near else ''}Steps that were reached: {_listed(reached) or 'none'}."
            + (" A step without a colon is a git command of a program that runs with the race's env." if never_run else ""),
            opt_out="Pass times=None for a step that need not be reached.",
        )


def _word(step: str) -> str:
    """The name of a step, without the side of a git command."""
    return step.rpartition(_AT_GIT)[2]


def _named(fn: Act) -> str:
    code = getattr(fn, "__code__", None)
    return f"{fn.__name__} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else _shortened(repr(fn))


def _ended(outcome: Outcome) -> str:
    if outcome.error is None:
        return f"returned {_shortened(repr(outcome.value))}"
    name = outcome.error.code if isinstance(outcome.error, GittrixError) else type(outcome.error).__name__
    first, _, _ = str(outcome.error).partition("\n")
    return f"raised {name}: {_shortened(first)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
