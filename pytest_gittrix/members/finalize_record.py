"""What a finalization did, as values; and the notes by which the next attempt knows what an earlier one did.

Notes are written before what they tell of is done. What the remote then has not, was not done; what it has, was: so an attempt that was
killed leaves no doubt. They stand outside the workspace, where no agent writes. It must not know git.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_gittrix.os_level.files import read_text, write_file
from pytest_gittrix.record.state.lifecycle import FinalizationResult, Pushed

Kind = Literal["committed", "pushed", "recovered", "left", "skipped", "failed"]
Status = Literal["Completed", "CompletedDegraded", "Failed", "Skipped"]

KINDS: Final[tuple[Kind, ...]] = ("skipped", "left", "failed", "committed", "pushed", "recovered")
"""In the order in which they are told."""

NOTES: Final = "notes.json"
"""The file of the notes, in the engine's directory for a session's finalizations."""

SHOWN: Final = 100
"""How many files an action names at most; its reason says how many there are."""


@dataclass(frozen=True, slots=True)
class Action:
    """What was done about a repository.

    Attributes:
        name: the repository's.
        action: ``committed`` (files), ``pushed`` (a branch), ``recovered`` (as a recovery branch), ``left`` (in the workspace, and nowhere
            else), ``skipped`` (nothing to do, or left on purpose: credentials, runtime state), ``failed``.
        branch: the branch of the remote, or of the workspace for what was not saved.
        commit: the commit it is at there.
        files: the files it is about, sorted; no more than ``SHOWN``.
        reason: why, in words.
    """

    name: str
    action: Kind
    branch: str | None = None
    commit: str | None = None
    files: tuple[str, ...] = ()
    reason: str | None = None

    @classmethod
    def about(
        cls, name: str, action: Kind, files: Iterable[str], reason: str = "", *, branch: str | None = None, commit: str | None = None
    ) -> Action:
        """An action about files, of which the first are named and all are counted."""
        named = sorted(files)
        more = f" ({len(named)} files)" if len(named) > SHOWN else ""
        return cls(name, action, branch, commit, tuple(named[:SHOWN]), f"{reason}{more}".strip() or None)

    def data(self) -> dict[str, Any]:
        """The data of its ``finalize.repository`` event."""
        told: dict[str, Any] = {"name": _plain(self.name), "action": self.action}
        for key, value in (("branch", self.branch), ("commit", self.commit), ("reason", self.reason)):
            if value:
                told[key] = _plain(value)
        if self.files:
            told["files"] = [_plain(path) for path in self.files]
        return told


def _plain(text: str) -> str:
    """A text that any log can hold: bytes that are not UTF-8 as ``\\xe9``."""
    return os.fsencode(text).decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Finalized:
    """What a finalization came to. A second one that finds nothing more to do comes to the same.

    Attributes:
        status: ``Completed``; ``CompletedDegraded`` (something is on a recovery branch); ``Failed`` (something could not be saved);
            ``Skipped`` (there was nothing to save).
        actions: what was done, repository by repository.
        issues: addresses of the issues that were opened.
        unsaved: whether the workspace holds work that is nowhere else. Then it may never be collected.
        reason: what went wrong, if something did.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    issues: tuple[str, ...] = ()
    unsaved: bool = False
    reason: str | None = None

    @property
    def result(self) -> FinalizationResult:
        """The document's record of it."""

        def where(kind: Kind) -> tuple[Pushed, ...]:
            named = (Pushed(one.name, one.branch) for one in self.actions if one.action == kind and one.branch is not None)
            return tuple(dict.fromkeys(named))

        return FinalizationResult(self.status, where("committed"), where("pushed"), where("recovered"), self.issues)

    def data(self) -> dict[str, Any]:
        """The data of its ``finalize.finished`` event."""
        told: dict[str, Any] = {"status": self.status}
        if self.reason:
            told["reason"] = _plain(self.reason)
        if self.issues:
            told["issues"] = list(self.issues)
        return told


def summed_up(actions: Sequence[Action], issues: Sequence[str], trouble: Sequence[str]) -> Finalized:
    """What some actions come to; ``trouble`` is what went wrong beside them."""
    kinds = {one.action for one in actions}
    failures = [f"{one.name}: {one.reason}" for one in actions if one.action == "failed"]
    status: Status = "Skipped"
    if "failed" in kinds:
        status = "Failed"
    elif "recovered" in kinds:
        status = "CompletedDegraded"
    elif kinds & {"committed", "pushed"}:
        status = "Completed"
    unsaved = bool(kinds & {"failed", "left"})
    return Finalized(status, tuple(actions), tuple(issues), unsaved, "; ".join([*failures, *trouble]) or None)


@dataclass(frozen=True, slots=True)
class Saved:
    """What of one repository is on its remote, by commits of the engine's or under other names than in the workspace.

    Attributes:
        commits: the agent's commits that are there, as they are or replayed.
        files: mode and id of each file that was committed by a finalization, by path; None for one that was deleted.
    """

    commits: frozenset[str] = frozenset()
    files: Mapping[str, tuple[int, str] | None] = field(default_factory=dict)


@dataclass
class Notes:
    """The notes of one session's finalizations, in one file. Made by ``Notes.at``."""

    path: str
    _actions: list[Action] = field(default_factory=list)
    _times: dict[str, int] = field(default_factory=dict)
    _issues: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    saved: dict[str, Saved] = field(default_factory=dict)

    @classmethod
    def at(cls, path: str) -> Notes:
        """The notes in a file; none if it is not there, or is damaged (then the remote alone tells what was done)."""
        notes = cls(path)
        try:
            told = json.loads(read_text(path) or "{}")
            notes._actions = [Action(**{**one, "files": tuple(one["files"])}) for one in told.get("actions", ())]
            notes._times = {str(key): int(value) for key, value in told.get("times", {}).items()}
            notes._issues = {name: (url, tuple(branches)) for name, (url, branches) in told.get("issues", {}).items()}
            notes.saved = {name: _saved_in(one) for name, one in told.get("saved", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(path)
        return notes

    def of(self, name: str) -> list[Action]:
        """What was to be done about a repository."""
        return [one for one in self._actions if one.name == name]

    def intend(self, actions: Iterable[Action]) -> None:
        """Note what is about to be done."""
        fresh = [one for one in actions if one not in self._actions]
        if fresh:
            self._actions += fresh
            self._save()

    def forget(self, actions: Iterable[Action]) -> None:
        """Strike out what was not done."""
        gone = list(actions)
        self._actions = [one for one in self._actions if one not in gone]
        self._save()

    def time_of(self, key: str, seconds: int) -> int:
        """The time of a commit, known by its repository, parent and tree: the same at every attempt, and ``seconds`` at the first."""
        if key not in self._times:
            self._times[key] = seconds
            self._save()
        return self._times[key]

    def issue_about(self, name: str, branches: Iterable[str]) -> str | None:
        """The issue that tells of all these recovery branches of a repository, if there is one."""
        url, told = self._issues.get(name, ("", ()))
        return url if url and set(branches) <= set(told) else None

    def opened(self, name: str, branches: Iterable[str], url: str) -> None:
        """Note an issue. One is opened again only if the attempt that opened it was killed before this."""
        self._issues[name] = (url, tuple(branches))
        self._save()

    def note_saved(self, name: str, commits: Iterable[str], files: Mapping[str, tuple[int, str] | None]) -> None:
        """Note what the remote of a repository is known to have, besides what was noted before."""
        known = self.saved.get(name, Saved())
        now = Saved(known.commits.union(commits), {**known.files, **files})
        if now != known:
            self.saved[name] = now
            self._save()

    def _save(self) -> None:
        actions = [{field: getattr(one, field) for field in Action.__slots__} for one in self._actions]
        issues = {name: [url, list(branches)] for name, (url, branches) in self._issues.items()}
        saved = {name: {"commits": sorted(one.commits), "files": dict(one.files)} for name, one in self.saved.items()}
        told = {"actions": actions, "times": self._times, "issues": issues, "saved": saved}
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        write_file(self.path, json.dumps(told, indent=1).encode(), sync=True)


def _saved_in(told: Mapping[str, Any]) -> Saved:
    files = {str(path): None if one is None else (int(one[0]), str(one[1])) for path, one in told["files"].items()}
    return Saved(frozenset(map(str, told["commits"])), files)
