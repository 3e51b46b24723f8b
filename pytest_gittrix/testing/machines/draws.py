"""The strategies of the session machine: live sessions, existing paths, drift aimed at the agent's work, depending on the trial so far.

Everything drawn is possible when it is drawn, and is printed as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.drift_strategies import durable_edits
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.machines.strategies import edits, eviction_policies, instants_around, paths, trees
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Plain
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import Access, HeldSession


class Machine(Protocol):
    """The attributes of the session machine that strategies depend on: ``access`` to the system, and its ``trial``."""

    access: Access
    trial: Trial


_UNCOMMITTED: tuple[DurableKind, ...] = ("dirty", "staged")
_COMMON_PATHS = ("a", "lib/b")
AGENT_GIT: Final[Mapping[str, str]] = {
    "commit": "git add -A && git -c commit.gpgsign=false commit -qm own",
    "stage": "git add -A",
    "unstage": "git rm -rq --cached --ignore-unmatch .",
    "overlook": "git ls-files -z | git update-index -z --assume-unchanged --stdin",
    "another branch": "git symbolic-ref HEAD refs/heads/own",
    "detach": "git update-ref --no-deref HEAD $(git rev-parse HEAD)",
    "misconfigure": "git config core.fileMode false && git config core.ignoreCase true && git config core.excludesFile /dev/null",
    "forget the index": "rm -f .git/index",
}
"""What an agent may do with its own git without changing a file: none of it may change what is touched (rule 3, docs/explanation/rules.md).

There is no ``checkout``: without an index it restores files.
"""
HIDE: Final = "mkdir -p .git/info && echo '*' > .git/info/exclude"
SHOW: Final = "rm -f .git/info/exclude"


R = TypeVar("R", bound=Callable[..., Any])
_NEEDS: Final = "_gittrix_needs"


def needs(*capabilities: Capability, native: bool = False) -> Callable[[R], R]:
    """Leave a rule out unless the system declares these capabilities and, with ``native``, has our engine's own verbs."""

    def mark(rule: R) -> R:
        setattr(rule, _NEEDS, (capabilities, native))
        return rule

    return mark


def playable(rule: object, access: Access) -> bool:
    """Whether the system that is reached so has what a rule needs."""
    capabilities, native = getattr(rule, _NEEDS, ((), False))
    return access.can(*capabilities) and (access.native or not native)


def drawn_by(strategy: Callable[[Machine], SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """A strategy that depends on the machine's state, so that what it draws is possible then, and is printed as a value."""
    return st.runner().flatmap(strategy)


def _names(machine: Machine) -> SearchStrategy[str]:
    known = machine.trial.names()
    return st.sampled_from(known) | paths(near=_COMMON_PATHS) if known else paths(near=_COMMON_PATHS)


def _known(machine: Machine) -> SearchStrategy[str]:
    return st.sampled_from(machine.trial.names() or [*_COMMON_PATHS])


def _touched(machine: Machine) -> Edits:
    """What live sessions have touched: the paths that drift is aimed at."""
    sessions = (session for session in machine.trial.model.sessions.values() if session.state == "active")
    return Edits({path: content for session in sessions for path, content in session.touched.items()})


def _commits(machine: Machine) -> SearchStrategy[DurableEdit]:
    kinds = [kind for kind in DURABLE_KINDS if kind not in _UNCOMMITTED]
    return durable_edits(machine.trial.model.tree, touched=_touched(machine), kinds=kinds)


def _lying(machine: Machine) -> SearchStrategy[DurableEdit]:
    checkout = machine.trial.model.checkout
    return durable_edits(checkout.files if checkout is not None else {}, touched=_touched(machine), kinds=_UNCOMMITTED)


def _times(machine: Machine) -> SearchStrategy[timedelta]:
    now, sessions = machine.trial.now, machine.trial.model.sessions.values()
    deadlines = sorted({session.deadline for session in sessions if session.present and session.deadline is not None})
    seconds = st.sampled_from([timedelta(microseconds=1), timedelta(seconds=1), timedelta(hours=1)])
    return st.one_of(*(instants_around(deadline, not_before=now).map(lambda when: when - now) for deadline in deadlines), seconds)


@dataclass(frozen=True, repr=False)
class Meeting(Plain):
    """An agent's edits, and drift of durable that is aimed at them."""

    work: Edits
    drift: DurableEdit

    def __repr__(self) -> str:
        return f"Meeting({self.work!r}, {self.drift!r})"


class _Policy(Plain, EvictionPolicy):
    """A policy whose repr has only the fields that differ from the default."""

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self if value != EvictionPolicy.model_fields[name].default]
        return f"EvictionPolicy({', '.join(fields)})"


def _meetings(machine: Machine) -> SearchStrategy[Meeting]:
    tree = machine.trial.model.tree
    kinds = [kind for kind in DURABLE_KINDS if kind not in _UNCOMMITTED]

    def aimed(work: Edits) -> SearchStrategy[Meeting]:
        # Of all kinds the plainest one finds the most. It needs a path: work on an empty tree may come to nothing.
        plainest = durable_edits(tree, touched=work, kinds=["overlap"] if work or tree else ["disjoint"])
        drift = durable_edits(tree, touched=work, kinds=kinds) | plainest
        return st.builds(Meeting, st.just(work), drift)

    return edits(tree, min_size=1).flatmap(aimed)


def living(machine: Machine) -> list[HeldSession]:
    """The live sessions, newest first."""
    return [held for held in machine.trial.held[::-1] if machine.trial.live(held)]


def limited(machine: Machine) -> list[HeldSession]:
    """The live sessions that have a deadline, newest first."""
    return [held for held in living(machine) if machine.trial.model.sessions[held.id].deadline is not None]


_LIVE_TO_ENDED = 9


def _sessions(machine: Machine) -> SearchStrategy[HeldSession]:
    """Mostly live sessions; now and then one that is past its time or has ended, which answers in one way only."""
    alive = living(machine)
    others = [held for held in machine.trial.held[::-1] if held not in alive]
    weight = -(-_LIVE_TO_ENDED * len(others) // len(alive)) if alive else 0
    return st.sampled_from([*alive * max(weight, 1), *others])


def _policies(machine: Machine) -> SearchStrategy[EvictionPolicy]:
    access = machine.access
    drawn: SearchStrategy[EvictionPolicy] = st.just(EvictionPolicy())
    if access.native:
        drawn = eviction_policies()
    elif access.can(Capability.CLOCK):
        drawn = eviction_policies(until_promote=True, absolute=None if access.can(Capability.ABSOLUTE) else False)
    return drawn.map(lambda policy: _Policy(**dict(policy)))


def _deaths(machine: Machine) -> SearchStrategy[int | None]:
    access = machine.access
    return st.none() | st.integers(1, access.moments) if access.can(Capability.CRASH) else st.none()


SESSION = drawn_by(_sessions)
LIVING = drawn_by(lambda machine: st.sampled_from(living(machine)))
LIMITED = drawn_by(lambda machine: st.sampled_from(limited(machine)))
POLICIES = drawn_by(_policies)
NAMES = drawn_by(_names)
KNOWN = drawn_by(_known)
FILES = trees(near=_COMMON_PATHS, min_files=1)
WORK = drawn_by(lambda machine: edits(machine.trial.model.tree))
SOME_WORK = drawn_by(lambda machine: edits(machine.trial.model.tree, min_size=1))
COMMITS = drawn_by(_commits)
LYING = drawn_by(_lying)
TIMES = drawn_by(_times)
MEETINGS = drawn_by(_meetings)
DEATHS = drawn_by(_deaths)
