"""What the state machine draws from, given how far it has come: sessions that live, paths that are there, drift that meets the work.

Everything drawn is possible when it is drawn, and is printed as a value. It must not know the machine's rules, nor pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.drift_strategies import durable_edits
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.machines.strategies import edits, eviction_policies, instants_around, paths, trees
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Plain
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import Access, HeldSession


class Player(Protocol):
    """The machine, as far as it matters here. Attributes: ``access`` to the system, and its ``trial``."""

    access: Access
    trial: Trial


_LEFT_LYING: tuple[DurableKind, ...] = ("dirty", "staged")
_MEETING_POINTS = ("a", "lib/b")


def drawn_by(strategy: Callable[[Player], SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """A strategy that depends on how far the machine has come, so that what it draws is possible, and printed as a value."""
    return st.runner().flatmap(strategy)


def _names(machine: Player) -> SearchStrategy[str]:
    known = machine.trial.names()
    return st.sampled_from(known) | paths(near=_MEETING_POINTS) if known else paths(near=_MEETING_POINTS)


def _known(machine: Player) -> SearchStrategy[str]:
    return st.sampled_from(machine.trial.names() or [*_MEETING_POINTS])


def _touched(machine: Player) -> Edits:
    """What any live session has touched: what people are to meet."""
    sessions = (session for session in machine.trial.model.sessions.values() if session.state == "active")
    return Edits({path: content for session in sessions for path, content in session.touched.items()})


def _commits(machine: Player) -> SearchStrategy[DurableEdit]:
    kinds = [kind for kind in DURABLE_KINDS if kind not in _LEFT_LYING]
    return durable_edits(machine.trial.model.tree, touched=_touched(machine), kinds=kinds)


def _lying(machine: Player) -> SearchStrategy[DurableEdit]:
    checkout = machine.trial.model.checkout
    return durable_edits(checkout.files if checkout is not None else {}, touched=_touched(machine), kinds=_LEFT_LYING)


def _times(machine: Player) -> SearchStrategy[timedelta]:
    now, sessions = machine.trial.now, machine.trial.model.sessions.values()
    deadlines = sorted({session.deadline for session in sessions if session.present and session.deadline is not None})
    seconds = st.sampled_from([timedelta(microseconds=1), timedelta(seconds=1), timedelta(hours=1)])
    return st.one_of(*(instants_around(deadline, not_before=now).map(lambda when: when - now) for deadline in deadlines), seconds)


@dataclass(frozen=True, repr=False)
class Meeting(Plain):
    """What an agent does, and what somebody does to durable meanwhile that is aimed at it."""

    work: Edits
    drift: DurableEdit

    def __repr__(self) -> str:
        return f"Meeting({self.work!r}, {self.drift!r})"


class _Policy(Plain, EvictionPolicy):
    """A policy that prints what is not the default."""

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in self if value != EvictionPolicy.model_fields[name].default]
        return f"EvictionPolicy({', '.join(told)})"


def _meetings(machine: Player) -> SearchStrategy[Meeting]:
    tree = machine.trial.model.tree
    kinds = [kind for kind in DURABLE_KINDS if kind not in _LEFT_LYING]

    def aimed(work: Edits) -> SearchStrategy[Meeting]:
        return st.builds(Meeting, st.just(work), durable_edits(tree, touched=work, kinds=kinds))

    return edits(tree, min_size=1).flatmap(aimed)


def living(machine: Player) -> list[HeldSession]:
    """Newest first."""
    return [held for held in machine.trial.held[::-1] if machine.trial.live(held)]


def _sessions(machine: Player) -> SearchStrategy[HeldSession]:
    """Mostly sessions that live, or whose time has just run out; now and then one that is over."""
    trial = machine.trial
    newest = trial.held[::-1]
    current = [held for held in newest if trial.model.sessions[held.id].state == "active"]
    return st.sampled_from([*current, *current, *newest])


def _policies(machine: Player) -> SearchStrategy[EvictionPolicy]:
    access = machine.access
    drawn: SearchStrategy[EvictionPolicy] = st.just(EvictionPolicy())
    if access.native:
        drawn = eviction_policies()
    elif access.can(Capability.CLOCK):
        drawn = eviction_policies(until_promote=True, absolute=None if access.can(Capability.ABSOLUTE) else False)
    return drawn.map(lambda policy: _Policy(**dict(policy)))


def _deaths(machine: Player) -> SearchStrategy[int | None]:
    access = machine.access
    return st.none() | st.integers(1, access.moments) if access.can(Capability.CRASH) else st.none()


SESSION = drawn_by(_sessions)
LIVING = drawn_by(lambda machine: st.sampled_from(living(machine)))
POLICIES = drawn_by(_policies)
NAMES = drawn_by(_names)
KNOWN = drawn_by(_known)
FILES = trees(near=_MEETING_POINTS, min_files=1)
WORK = drawn_by(lambda machine: edits(machine.trial.model.tree))
COMMITS = drawn_by(_commits)
LYING = drawn_by(_lying)
TIMES = drawn_by(_times)
MEETINGS = drawn_by(_meetings)
DEATHS = drawn_by(_deaths)
