"""Waivers: invariants of the state machine that a session system breaks on purpose, each by its name and with a reason.

An invariant can be waived if the model does not depend on it, so that the machine can go on where it is broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from pytest_gittrix.errors import InvalidInput, did_you_mean

INVARIANTS: Final[Mapping[str, str]] = {
    "durable-untouched": "nothing in durable changes but by people and promotions: references, HEAD, index, configuration, hooks, files",
    "human-work-tree": "the person's work tree holds the person's own work, and what was promoted where it was clean",
    "human-index": "the person's index holds the person's own work, and what was promoted where it was clean",
    "workspace-own-repository": (
        "a workspace's `.git` is a directory of its own; where this is waived and it is none, the next three are not checked"
    ),
    "workspace-borrows-nothing": "a workspace has no alternates and no common directory",
    "workspace-no-remote": "a workspace's configuration names no remote, and not durable",
    "workspace-no-other-commits": "a workspace shows no commit that was made in durable after its session started",
    "workspace-files": "a workspace holds the files of its session, and no others",
    "listing": "a listing is of the files there are",
    "touched": "touched is exactly what differs from the baseline",
    "conflicting-files": "a conflict names exactly the paths at which durable drifted over the selection",
    "eviction-leaves-nothing": "an eviction leaves no workspace and no lock",
    "nothing-stays": "when every session has ended, no reference, work tree or lock of the system's stays in durable",
    "no-lock-left": "a killed promotion leaves no lock that a person has to delete",
    "events-without-gap": "events are numbered without a gap",
}
"""What each invariant that can be waived says, by its name."""

_WAIVED: ContextVar[Collection[str] | None] = ContextVar("_WAIVED", default=None)
_of_the_run: Mapping[str, str] = MappingProxyType({})


def check_waivers(waivers: Mapping[str, str], owner: str, clauses: Collection[str] = ()) -> Mapping[str, str]:
    """Check that waivers are of known names and have reasons; gives them back.

    Args:
        waivers: the reasons, by name.
        owner: the class or system that the waivers belong to, for the error message.
        clauses: the codes of clauses, where those can be waived too.

    Raises:
        InvalidInput: the waivers are no mapping, a name is unknown, or a reason is missing.
    """
    if not isinstance(waivers, Mapping):
        raise InvalidInput(f"The waivers of {owner} are no mapping.", fix='Write waivers = {"CNF-03": "the reason"}.')
    known = (*clauses, *INVARIANTS)
    for name, reason in waivers.items():
        if name not in known:
            near = did_you_mean(str(name).upper(), clauses) or did_you_mean(str(name).lower(), INVARIANTS)
            listed = f"the invariants are {', '.join(INVARIANTS)}."
            raise InvalidInput(
                f"{owner} waives {name!r}, which is {'no clause and ' if clauses else ''}no invariant.",
                why="A waiver of nothing would hide that what it was meant for is not waived.",
                fix=near + (f"`gittrix conform --list` lists all clauses; {listed}" if clauses else listed.capitalize()),
            )
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidInput(
                f"The waiver of {name} by {owner} has no reason.",
                why="The report shows the reason to those who rely on the promise.",
                fix="Say why the system need not keep this promise.",
                opt_out="Without a waiver it is checked, and may fail.",
            )
    return waivers


def waive_for_the_run(waivers: Mapping[str, str]) -> Mapping[str, str]:
    """Waive clauses and invariants for every system and class until this is called again; gives those that were waived before."""
    global _of_the_run
    before, _of_the_run = _of_the_run, waivers
    return before


def waived_for_the_run() -> Mapping[str, str]:
    """The reasons of what is waived for the run, by name."""
    return _of_the_run


@contextmanager
def waiving(names: Collection[str]) -> Iterator[None]:
    """A block in which some invariants are not required."""
    token = _WAIVED.set(names)
    try:
        yield
    finally:
        _WAIVED.reset(token)


def is_waived(name: str) -> bool:
    """Whether an invariant is not required here."""
    return name in (_WAIVED.get() or ())


def how_to_waive(name: str) -> list[str]:
    """A line that says how an invariant is waived; none outside of ``waiving``, and for an empty name."""
    return [f"Where this is so on purpose, waive {name} with a reason."] if name and _WAIVED.get() is not None else []
