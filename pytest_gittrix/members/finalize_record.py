"""A finalization's actions as values; and its notes, by which the next attempt knows the actions of an earlier one.

A note is written before its action is done. If the remote then has the commit, the action was done, else not: so an attempt that was
killed leaves no doubt. The notes are outside the workspace, where no agent writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_gittrix.os_level.files import read_text, write_file
from pytest_gittrix.record.state.lifecycle import FinalizationResult, Pushed
from pytest_gittrix.workspaces.secrets import masked

Kind = Literal["committed", "pushed", "recovered", "left", "skipped", "failed"]
Status = Literal["Completed", "CompletedDegraded", "Failed", "Skipped"]

KINDS: Final[tuple[Kind, ...]] = ("skipped", "left", "failed", "committed", "pushed", "recovered")
"""The kinds in the order in which the actions of a repository are reported."""

NOTES: Final = "notes.json"
"""The file of the notes, in the engine's directory for a session's finalizations."""

MAX_FILES: Final = 100
"""The most files that an action names; its reason gives their number."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a finalization in a repository.

    Attributes:
        name: the repository's.
        action: ``committed`` (files), ``pushed`` (a branch), ``recovered`` (as a recovery branch), ``left`` (in the workspace, and nowhere
            else), ``skipped`` (nothing to do, or left on purpose: credentials, runtime state), ``failed``.
        branch: the branch of the remote, or of the workspace for what was not saved.
        commit: the commit that this branch is at.
        files: the files that it concerns, sorted; no more than ``MAX_FILES``.
        reason: the reason as text.
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
        """An action about files; the first are named, without secrets that are in their names, and all are counted."""
        named = sorted(files)
        more = f" ({len(named)} files)" if len(named) > MAX_FILES else ""
        return cls(name, action, branch, commit, tuple(map(masked, named[:MAX_FILES])), f"{reason}{more}".strip() or None)

    def data(self) -> dict[str, Any]:
        """The data of its ``finalize.repository`` event."""
        fields: dict[str, Any] = {"name": plain(self.name), "action": self.action}
        for key, value in (("branch", self.branch), ("commit", self.commit), ("reason", self.reason)):
            if value:
                fields[key] = plain(value)
        if self.files:
            fields["files"] = [plain(path) for path in self.files]
        return fields


def plain(text: str) -> str:
    """A text that any log can hold: bytes that are not UTF-8 as ``\\xe9``."""
    return os.fsencode(text).decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Finalized:
    """The outcome of a finalization. A second one that finds nothing more to do has the same outcome.

    Attributes:
        status: ``Completed``; ``CompletedDegraded`` (something is on a recovery branch); ``Failed`` (something could not be saved);
            ``Skipped`` (there was nothing to save).
        actions: what was done, repository by repository.
        issues: addresses of the issues that were opened.
        unsaved: whether the workspace holds work that is nowhere else. Then it is never removed unless a person asks for it.
        reason: what went wrong, if something did.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    issues: tuple[str, ...] = ()
    unsaved: bool = False
    reason: str | None = None

    @property
    def result(self) -> FinalizationResult:
        """BotMinter's record of it."""

        def branches(kind: Kind) -> tuple[Pushed, ...]:
            named = (Pushed(one.name, one.branch) for one in self.actions if one.action == kind and one.branch is not None)
            return tuple(dict.fromkeys(named))

        return FinalizationResult(self.status, branches("committed"), branches("pushed"), branches("recovered"), self.issues)

    def data(self) -> dict[str, Any]:
        """The data of its ``finalize.finished`` event."""
        fields: dict[str, Any] = {"status": self.status}
        if self.reason:
            fields["reason"] = plain(self.reason)
        if self.issues:
            fields["issues"] = list(self.issues)
        return fields


def summarise(actions: Sequence[Action], issues: Sequence[str], trouble: Sequence[str]) -> Finalized:
    """The outcome of all actions; ``trouble`` are further errors, such as issues that could not be opened."""
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
    """The work of one repository that is on its remote, in commits of the engine's or on other branches than in the workspace.

    Attributes:
        commits: the agent's commits that the remote has, as they are or replayed.
        files: mode and id of each file that a finalization committed, by path; None for one that was deleted.
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
    allowed: frozenset[str] = frozenset()

    @classmethod
    def at(cls, path: str) -> Notes:
        """The notes in a file; no notes if it does not exist or is damaged (then only the remote shows what was done)."""
        notes = cls(path)
        try:
            fields = json.loads(read_text(path) or "{}")
            notes._actions = [Action(**{**one, "files": tuple(one["files"])}) for one in fields.get("actions", ())]
            notes._times = {str(key): int(value) for key, value in fields.get("times", {}).items()}
            notes._issues = {name: (url, tuple(branches)) for name, (url, branches) in fields.get("issues", {}).items()}
            notes.allowed = frozenset(map(str, fields.get("allowed", ())))
            notes.saved = {name: _saved_in(one) for name, one in fields.get("saved", {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(path)
        return notes

    def of(self, name: str) -> list[Action]:
        """The noted actions of a repository."""
        return [one for one in self._actions if one.name == name]

    def intend(self, actions: Iterable[Action]) -> None:
        """Note actions that are about to be done."""
        fresh = [one for one in actions if one not in self._actions]
        if fresh:
            self._actions += fresh
            self._save()

    def forget(self, actions: Iterable[Action]) -> None:
        """Remove the notes of actions that were not done."""
        gone = list(actions)
        self._actions = [one for one in self._actions if one not in gone]
        self._save()

    def time_of(self, key: str, seconds: int) -> int:
        """The time of a commit, by its repository, parent and tree: ``seconds`` at the first attempt, and the same at every later one."""
        if key not in self._times:
            self._times[key] = seconds
            self._save()
        return self._times[key]

    def allow(self, secrets: Iterable[str]) -> None:
        """Note paths and fingerprints of files that a person lets through."""
        if not self.allowed.issuperset(more := frozenset(secrets)):
            self.allowed |= more
            self._save()

    def issue_about(self, name: str, branches: Iterable[str]) -> str | None:
        """The issue about all these recovery branches of a repository, if there is one."""
        url, known = self._issues.get(name, ("", ()))
        return url if url and set(branches) <= set(known) else None

    def opened(self, name: str, branches: Iterable[str], url: str) -> None:
        """Note an issue. It is opened a second time only if the attempt that opened it was killed before this call."""
        self._issues[name] = (url, tuple(branches))
        self._save()

    def note_saved(self, name: str, commits: Iterable[str], files: Mapping[str, tuple[int, str] | None]) -> None:
        """Add to the notes what the remote of a repository is known to have."""
        known = self.saved.get(name, Saved())
        now = Saved(known.commits.union(commits), {**known.files, **files})
        if now != known:
            self.saved[name] = now
            self._save()

    def _save(self) -> None:
        actions = [{field: getattr(one, field) for field in Action.__slots__} for one in self._actions]
        issues = {name: [url, list(branches)] for name, (url, branches) in self._issues.items()}
        saved = {name: {"commits": sorted(one.commits), "files": dict(one.files)} for name, one in self.saved.items()}
        fields = {"actions": actions, "times": self._times, "issues": issues, "saved": saved, "allowed": sorted(self.allowed)}
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        write_file(self.path, json.dumps(fields, indent=1).encode(), sync=True)


def _saved_in(fields: Mapping[str, Any]) -> Saved:
    files = {str(path): None if one is None else (int(one[0]), str(one[1])) for path, one in fields["files"].items()}
    return Saved(frozenset(map(str, fields["commits"])), files)
