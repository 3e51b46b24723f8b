"""Runs process trees one at a time, from call to call, in an order given by its preemptions; and traces what happened.

An actor that runs goes on until it ends or waits; the preemption ``(3, 1)`` lets actor 1 go on at step 3 instead.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.faults.faults import FileCall
from pytest_gittrix.testing.schedules.process_stepper import Ended, SteppedProcess
from pytest_gittrix.testing.schedules.trace_table import PlayedOrder, TraceStep, TurnChoice, columns

_MOST_STEPS: Final = 20_000
_GRACE: Final = 2.0  # seconds in which an actor may still get what it waits for from outside the actors
_LONGEST: Final = 44  # characters of a path in a trace
_OTHER_FORMS: Final = re.compile(r"(?<!^cre)(at)?\d*$")  # renameat2 is rename, but creat is creat
_RANDOM: Final = re.compile(
    r"(?<=objects/)(?P<fan>[0-9a-f]{2})(?=/|$)"
    r"|(?<=tmp_obj_)\w+|(?<=sess_)[\w-]{12}|(?<=/tmp[._])\w+|(?<![A-Za-z0-9])tmp[a-z0-9_]{8}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z]*\d)[A-Za-z0-9]{7,}|(?<!\d)\d{3,}"
)


@dataclass(frozen=True)
class ProcessTurn:
    """One step: an actor went on to its next call.

    Attributes:
        actor: the index of the actor.
        did: the call it made; None if it only started, or ran already.
        came_to: the call it came to; None if it ended or sleeps.
        waits: what it waits for: a path, or "sleep"; None if it does not wait.
    """

    actor: int
    did: FileCall | None
    came_to: FileCall | None
    waits: str | None


@dataclass(frozen=True)
class ProcessInterleaving(PlayedOrder):
    """One order that was played.

    Attributes:
        preemptions: the order, as a list that plays it again; preemptions that made no difference are left out.
        turns: what happened, step by step.
        ended: how each actor ended.
        choices: the alternatives at each step.
        missed: the requested preemptions that did not happen: the step never came, or the actor could not go on there.
        finding: what is wrong, or None.
        root: paths are shown relative to this directory.
    """

    preemptions: tuple[tuple[int, int], ...]
    turns: tuple[ProcessTurn, ...]
    ended: tuple[Ended, ...]
    choices: tuple[TurnChoice[int], ...]
    missed: tuple[tuple[int, int], ...]
    finding: str | None
    root: str

    @property
    def ending(self) -> str:
        """How the actors ended, on a line: ``A done, B BASELINE_CONFLICT``."""
        return ", ".join(f"{_name(actor)} {ended.code or 'done'}" for actor, ended in enumerate(self.ended))

    @property
    def points(self) -> tuple[str, ...]:
        """Each step as a line that is the same in every run of the same order: random names are replaced by numbers."""
        names = _Names(self.root)
        return tuple(f"{_name(turn.actor)} {_what(turn, names)}" for turn in self.turns)

    def trace(self, *, full: bool = False) -> str:
        """Draw a column for each actor, and the verdict below.

        Args:
            full: a line for each call; otherwise one for each turn, from its first call to its last.
        """
        steps, names = [], _Names(self.root)
        for number, turn in enumerate(self.turns):
            actor = _name(turn.actor)
            if turn.did is not None:
                steps.append(TraceStep(actor, names.call(turn.did)))
            following = self.turns[number + 1].actor if number + 1 < len(self.turns) else None
            if turn.waits is not None:
                steps.append(TraceStep(actor, "waits" if turn.waits == "sleep" else f"waits for {names.path(turn.waits)}"))
            elif turn.came_to is None:
                steps.append(TraceStep(actor, self.ended[turn.actor].code or "done"))
            elif following != turn.actor:
                steps.append(TraceStep(actor, f"before {names.call(turn.came_to)}"))
        actors = [_name(actor) for actor in range(len(self.ended))]
        return columns(actors, steps, {}, self.finding or self.ending, full=full)

    def __str__(self) -> str:
        return f"{self.trace()}\n    preemptions = {list(self.preemptions)!r}"


class TurnScheduler:
    """Plays one order.

    An actor that waits gets a turn again only after another actor has made progress.

    Args:
        trees: the process trees of the actors.
        preemptions: the actor that goes on at a step, by step, where it is not the usual one.
        patience: seconds of sleep after which an actor counts as waiting.
        timeout: seconds that the last remaining actor may wait.
        enters: ``(call, actor)``: this actor starts only when actor 0 is about to make its call of this number, or has ended.
    """

    def __init__(
        self,
        trees: Sequence[SteppedProcess],
        preemptions: Mapping[int, int],
        patience: float,
        timeout: float,
        enters: tuple[int, int] | None = None,
    ) -> None:
        self.turns: list[ProcessTurn] = []
        self.choices: list[TurnChoice[int]] = []
        self.taken: list[tuple[int, int]] = []
        self.met: set[int] = set()  # steps at which the wanted actor could go on
        self._trees = trees
        self._wanted = dict(preemptions)
        self._enters = enters
        self._patience = patience
        self._alive = [actor for actor in range(len(trees)) if enters is None or actor != enters[1]]  # the actor that ran last is first
        self._waiting: set[int] = set()
        self._retried: set[int] = set()
        self._sleeping: set[int] = set()
        self._deadline = real_seconds() + timeout + 1.0  # by then every actor has been killed that can be

    def play(self) -> str | None:
        """Let all actors go on to the end; return what went wrong, or None."""
        while self._alive or self._enters:
            self._admit()
            if len(self.turns) >= _MOST_STEPS:
                return f"ENDLESS: {_MOST_STEPS} steps, and {self._describe(self._alive)}"
            self._settle()
            able = [actor for actor in self._alive if actor not in self._retried and actor not in self._sleeping]
            if able:
                self._go(*self._chosen(able))
            elif self._alive and not self._got_what_it_waits_for():
                return f"DEADLOCK: {self._describe(self._alive)}"
        return None

    def _admit(self) -> None:
        if self._enters is None:
            return
        (at, actor), first = self._enters, self._trees[0]
        if first.ended is not None or (first.held is not None and len(first.calls) == at - 1):
            self._enters = None
            self._alive.append(actor)
            self._wanted[len(self.turns)] = actor

    def _chosen(self, able: list[int]) -> tuple[int, TurnChoice[int]]:
        usual = next((actor for actor in able if actor not in self._waiting), able[0])
        step = len(self.turns)
        wanted = self._wanted.get(step, usual)
        if wanted in able:
            self.met.add(step)
        under_way = bool(self.turns) and self.turns[-1].came_to is not None and self.turns[-1].waits is None
        choice = TurnChoice(step, tuple(actor for actor in able if actor != usual), under_way)
        return wanted if wanted in able else usual, choice

    def _go(self, actor: int, choice: TurnChoice[int] | None = None) -> bool:
        """Let an actor go on; whether it made progress instead of waiting on."""
        tree = self._trees[actor]
        did = tree.go()
        tree.wait(self._patience)
        waits = tree.waits
        if not tree.stopped:
            self._sleeping.add(actor)
        if waits is not None and actor in self._waiting:
            self._retried.add(actor)
            return False
        if choice is not None:
            self.choices.append(choice)
            if actor in choice.others:
                self.taken.append((choice.step, actor))
        self._note(actor, did)
        return True

    def _note(self, actor: int, did: FileCall | None) -> None:
        tree = self._trees[actor]
        waits = tree.waits
        self.turns.append(ProcessTurn(actor, did, tree.held, waits))
        self._retried = {actor} if waits is not None else set()
        (self._waiting.discard if waits is None else self._waiting.add)(actor)
        self._alive.remove(actor)
        if tree.ended is None:
            self._alive.insert(0, actor)

    def _settle(self) -> None:
        """Let the actors that the last step woke come to their next call, while no other one runs."""
        for actor in sorted(self._sleeping):
            tree = self._trees[actor]
            if not tree.stopped and not tree.sleeps():
                tree.wait(self._patience)
            self._progressed(actor)

    def _progressed(self, actor: int) -> bool:
        """Whether an actor that slept has come to a call, or its end, by itself."""
        tree = self._trees[actor]
        if actor not in self._sleeping or not tree.stopped:
            return False
        self._sleeping.discard(actor)
        if tree.waits is not None:
            return False
        last = self._alive[0]
        self._note(actor, None)
        if last in self._alive:  # waking up is no turn: the actor that ran goes on running
            self._alive.remove(last)
            self._alive.insert(0, last)
        return True

    def _got_what_it_waits_for(self) -> bool:
        """Whether one of the actors, which all wait, makes progress within the grace period; a single one has until the timeout."""
        locked_out = all(self._trees[actor].locked_out for actor in self._alive)
        deadline = self._deadline if len(self._alive) == 1 else real_seconds() + (self._patience if locked_out else _GRACE)
        while real_seconds() < deadline:
            for actor in tuple(self._alive):
                if actor in self._sleeping:
                    self._trees[actor].wait(min(self._patience, 0.05))
                    if self._progressed(actor):
                        return True
                elif self._go(actor):
                    return True
            time.sleep(0.001)
        return False

    def _describe(self, actors: Sequence[int]) -> str:
        waits = {actor: self._trees[actor].waits for actor in sorted(actors)}
        states = {None: "is not done", "sleep": "sleeps"}
        return ", ".join(f"{_name(actor)} {states.get(why) or f'waits for {why}'}" for actor, why in waits.items())


class _Names:
    """Shows calls and paths; random names are replaced by numbers, in the order in which they appear."""

    def __init__(self, root: str) -> None:
        self._root = os.path.join(root, "") if root else ""
        self._numbers: dict[str, str] = {}

    def call(self, call: FileCall) -> str:
        return f"{_OTHER_FORMS.sub('', call.name, count=1)} {self.path(call.path or '')}"

    def path(self, path: str) -> str:
        shown = _RANDOM.sub(self._number, path.removeprefix(self._root))
        return shown if len(shown) <= _LONGEST else "…" + shown[-_LONGEST:]

    def _number(self, found: re.Match[str]) -> str:
        return "xx" if found["fan"] else self._numbers.setdefault(found.group(), f"#{len(self._numbers) + 1}")


def _name(actor: int) -> str:
    return chr(ord("A") + actor) if actor < 26 else f"P{actor}"


def _what(turn: ProcessTurn, names: _Names) -> str:
    did = names.call(turn.did) if turn.did is not None else "goes on"
    came_to = names.call(turn.came_to) if turn.came_to is not None else "no call"
    return f"{did}, comes to {came_to}" + (f", waits for {names.path(turn.waits)}" if turn.waits else "")
