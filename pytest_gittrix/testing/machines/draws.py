"""The strategies of the session machine: live sessions, existing paths, drift aimed at the agent's work, depending on the trial so far.

Everything drawn is possible when it is drawn, and is printed as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.drift_strategies import durable_edits, overlapping_edits
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.machines.strategies import edits, eviction_policies, instants_around, paths, trees
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Plain, Tree
from pytest_gittrix.testing.repos.history import Content
from pytest_gittrix.testing.session_model import ModelSession, overlapping
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import Access, HeldSession


class Machine(Protocol):
    """The attributes of the session machine that strategies depend on: ``access`` to the system, and its ``trial``."""

    access: Access
    trial: Trial


_UNCOMMITTED: tuple[DurableKind, ...] = ("dirty", "staged")
_COMMITTED: Final = [kind for kind in DURABLE_KINDS if kind not in _UNCOMMITTED]
_MANY: Final = "!many/"
MANY: Final = 60
"""Files that are more than a list made for people shows."""
LARGE: Final = 2 << 20
"""Bytes of a file that some systems take for too large."""
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


def many_files(data: bytes) -> dict[str, Content]:
    """Many files of one content. Their names come before most others, so that a list which is cut short has none of those."""
    return {f"{_MANY}{number:02}": data for number in range(MANY)}


def large_file() -> dict[str, Content]:
    """A file that some systems take for too large."""
    return {f"{_MANY}large": b"x" * LARGE}


def _few(tree: Mapping[str, Content]) -> Tree:
    """The files of a tree without those of ``many_files`` and ``large_file``, among which all others would hardly ever be drawn."""
    return Tree({path: content for path, content in tree.items() if not path.startswith(_MANY)})


def _known_names(machine: Machine) -> list[str]:
    return [path for path in machine.trial.names() if not path.startswith(_MANY)]


def _names(machine: Machine) -> SearchStrategy[str]:
    known = _known_names(machine)
    return st.sampled_from(known) | paths(near=_COMMON_PATHS) if known else paths(near=_COMMON_PATHS)


def _known(machine: Machine) -> SearchStrategy[str]:
    return st.sampled_from(_known_names(machine) or [*_COMMON_PATHS])


def _touched(machine: Machine) -> Edits:
    """What live sessions have touched: the paths that drift is aimed at."""
    sessions = (session for session in machine.trial.model.sessions.values() if session.state == "active")
    touched = (item for session in sessions for item in session.touched.items())
    return Edits({path: content for path, content in touched if not path.startswith(_MANY)})


def _commits(machine: Machine) -> SearchStrategy[DurableEdit]:
    tree = _few(machine.trial.model.tree)
    return _among_others(tree, durable_edits(tree, touched=_touched(machine), kinds=_COMMITTED))


def _among_others(tree: Tree, drift: SearchStrategy[DurableEdit]) -> SearchStrategy[DurableEdit]:
    """Drift as it is, or with another commit before or after it, so that neither the first commit nor the last one shows all of it."""
    path = next(name for number in count(1) if not overlapping([name := f"other{number}"], tree))

    def placed(edit: DurableEdit, where: str) -> DurableEdit:
        other = Edits({path: b"another commit\n"})
        if edit.rewrite or where == "alone" or overlapping([path], {path for one in edit.commits for path in one}):
            return edit
        return replace(edit, commits=(other, *edit.commits) if where == "before" else (*edit.commits, other))

    return st.builds(placed, drift, st.sampled_from(["alone", "after", "before"]))


def _lying(machine: Machine) -> SearchStrategy[DurableEdit]:
    checkout = machine.trial.model.checkout
    return durable_edits(_few(checkout.files if checkout is not None else {}), touched=_touched(machine), kinds=_UNCOMMITTED)


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
    """Work, and drift of every kind; of those that conflict the plainest one finds the most."""
    tree = _few(machine.trial.model.tree)
    return _met(machine, lambda work: [_COMMITTED, ["overlap"] if work or tree else ["disjoint"], ["disjoint"]])


def _disjoint(machine: Machine) -> SearchStrategy[Meeting]:
    """Work, and drift that is not in its way."""
    return _met(machine, lambda _work: [["disjoint"]])


def _met(machine: Machine, kinds: Callable[[Edits], list[list[DurableKind]]]) -> SearchStrategy[Meeting]:
    tree = _few(machine.trial.model.tree)

    def aimed(work: Edits) -> SearchStrategy[Meeting]:
        drift = st.one_of(*(durable_edits(tree, touched=work, kinds=some) for some in kinds(work)))
        return st.builds(Meeting, st.just(work), _among_others(tree, drift))

    return edits(_workspace(machine), min_size=1).flatmap(aimed)


def one_line_more(session: ModelSession) -> Edits:
    """One more line at the end of the first text file of a session's baseline; a new file if there is none."""
    for path, old in session.baseline.items():
        now = session.files.get(path)
        if isinstance(old, bytes) and isinstance(now, bytes) and old.endswith(b"\n") and b"\0" not in old:
            return Edits({path: now + b"one line more\n"})
    return Edits({"text": b"one line\n"})


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
    if access.can(Capability.CLOCK):
        drawn = eviction_policies(absolute=None if access.can(Capability.ABSOLUTE) else False)
    return drawn.map(lambda policy: _Policy(**dict(policy)))


def _workspace(machine: Machine) -> Tree:
    """The files of the newest live session; of durable, if there is none."""
    newest = next(iter(living(machine)), None)
    return _few(machine.trial.model.tree if newest is None else machine.trial.model.sessions[newest.id].files)


def _work(machine: Machine) -> SearchStrategy[Edits]:
    """Mostly some work, since a promotion of nothing has one answer only."""
    tree = _workspace(machine)
    return st.sampled_from([1, 1, 1, 1, 1, 0]).flatmap(lambda least: edits(tree, min_size=least))


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
ABSOLUTE = eviction_policies(manual=False, absolute=True).map(lambda policy: _Policy(**dict(policy)))
WORK = drawn_by(_work)
SOME_WORK = drawn_by(lambda machine: edits(_workspace(machine), min_size=1))
COMMITS = drawn_by(_commits)
LYING = drawn_by(_lying)
TIMES = drawn_by(_times)
MEETINGS = drawn_by(_meetings)
DISJOINT = drawn_by(_disjoint)
BOTH = drawn_by(lambda machine: overlapping_edits(machine.trial.model.tree))
DEATHS = drawn_by(_deaths)
