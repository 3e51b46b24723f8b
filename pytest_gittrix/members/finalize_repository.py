"""One repository of a workspace, saved: what its agent committed and what it left uncommitted goes to the remote.

Nothing in the workspace is changed, ever: new commits are made, and old ones replayed, in a repository of the engine's that borrows the
agent's objects. So an attempt can be killed anywhere, and the next one starts from the same files. In order: branches, the detached
HEAD, stashes, then every other commit of the agent's that the remote has not (in a reflog or in none). What its own branch does not
take goes to ``recovery/<session>/...``. It must not know other repositories, nor who is told.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.tree import Entry, flatten
from pytest_gittrix.members.finalize_files import classify, is_credential, is_runtime
from pytest_gittrix.members.finalize_record import Action, Notes
from pytest_gittrix.members.finalize_remote import Deadline, OutOfTime, Remote
from pytest_gittrix.workspaces.alternates import ScratchRepository
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, clone_path
from pytest_gittrix.workspaces.rescue import LFS_OBJECTS, AgentRepository
from pytest_gittrix.workspaces.uncommitted import Uncommitted, find_uncommitted

RETRIES: Final = 3
"""How often a branch that moved meanwhile is fetched, and the work replayed onto it (BotMinter)."""

_SHORT: Final = 12
_NEVER: Final = "credentials never leave the workspace"
_RUNTIME: Final = "state of what ran here"


@dataclass(frozen=True)
class Task:
    """What one repository's finalization works on.

    Attributes:
        repository: which, and where it came from.
        root: its work tree.
        session: id of the session; in the names of recovery branches.
        strangers: repositories below it that are not its own, relative to it.
        identity: name and address of whoever commits what was left uncommitted.
    """

    repository: CheckedOutRepository
    root: str
    session: str
    strangers: frozenset[str]
    identity: tuple[str, str]


def lenders(task: Task, clones: str) -> list[str]:
    """The object directories in which the repository's objects are."""
    found = [os.path.join(task.root, ".git", "objects"), os.path.join(clone_path(clones, task.repository.url), "objects")]
    return [directory for directory in found if os.path.isdir(directory)]


@dataclass
class Saving:
    """The saving of one repository.

    Attributes:
        task: see ``Task``.
        found: what its git directory says.
        scratch: the engine's repository.
        remote: the remote.
        notes: what earlier attempts meant to do.
        deadline: by when it has to be done.
        done: what was done, in order.
    """

    task: Task
    found: AgentRepository
    scratch: ScratchRepository
    remote: Remote
    notes: Notes
    deadline: Deadline
    done: list[Action] = field(default_factory=list)
    _own: frozenset[str] = frozenset()
    _saved: list[str] = field(default_factory=list)
    _given_up: list[str] = field(default_factory=list)

    @property
    def _name(self) -> str:
        return self.task.repository.name

    def run(self) -> None:
        """Save all there is.

        Raises:
            GittrixError: the remote cannot be read, or git failed.
            OutOfTime: the time is up. What is in ``done`` was done.
            OSError: the disk refused.
        """
        kinds = self.scratch.object_kinds(self.found.objects)
        own = self._own = frozenset(id_ for id_, kind in kinds.items() if kind == "commit")
        entries = self._entries()
        dirty = self._uncommitted(entries)
        for problem in self.found.problems:
            self.done.append(Action(self._name, "failed", reason=problem))
        quiet = self._is_quiet(own, dirty, entries)
        for place in self.found.other_stores:
            if not (quiet and place == LFS_OBJECTS):
                self.done.append(Action(self._name, "left", reason=f".git/{place} holds work that no push of a branch takes along"))
        if quiet:
            self._pass_over(dirty, entries)
            return
        self.scratch.declare_complete(self.scratch.object_kinds({*self._tips(), *filter(None, [self.task.repository.commit])}))
        self.remote.look()
        fresh, files = self._commit(dirty, entries)
        for name, tip in self.found.branches.items():
            on_it = fresh is not None and name == self.found.branch
            self._save_branch(name, fresh if on_it and fresh is not None else tip, files if on_it else ())
        self._save_head(fresh, files)
        for stash in self.found.stashes:
            self._save_apart("stash", stash)
        self._save_others(own)
        self._remember()
        self._note_saved({*own, *self._tips()}, fresh, {path: dirty.changes[path] for path in files})

    # What there is ---------------------------------------------------------------------------------------------------------------

    def _tips(self) -> set[str]:
        return {*self.found.branches.values(), *self.found.stashes, *filter(None, [self.found.commit])}

    def _entries(self) -> Mapping[str, Entry]:
        """Everything in the commit that is checked out."""
        if self.found.commit is None:
            return {}
        return flatten(self.scratch.trees.read, self.scratch.commit(self.found.commit).tree)

    def _uncommitted(self, entries: Mapping[str, Entry]) -> Uncommitted:
        return find_uncommitted(
            self.task.root,
            entries,
            self.scratch.format,
            may_be_deleted=self.found.may_be_deleted,
            exclude=self.found.exclude,
            nested=self.task.strangers,
            on_file=self.deadline.left,
        )

    def _is_quiet(self, own: Collection[str], dirty: Uncommitted, entries: Mapping[str, Entry]) -> bool:
        """Whether the agent did nothing here that anybody could save, so that the remote need not even be asked."""
        changed = [*dirty.changes, *dirty.refused]
        idle = all(is_credential(path) or is_runtime(path, tracked=path in entries) for path in changed)
        return idle and not own and self._tips() <= {self.task.repository.commit}

    def _pass_over(self, dirty: Uncommitted, entries: Mapping[str, Entry]) -> None:
        """Tell of files that stay on purpose."""
        changed = [*dirty.changes, *dirty.refused]
        never = [path for path in changed if is_credential(path)]
        runtime = [path for path in changed if not is_credential(path) and is_runtime(path, tracked=path in entries)]
        for paths, reason in ((never, _NEVER), (runtime, _RUNTIME)):
            if paths:
                self.done.append(Action.about(self._name, "skipped", paths, reason))

    # Files that nobody committed -------------------------------------------------------------------------------------------------

    def _commit(self, dirty: Uncommitted, entries: Mapping[str, Entry]) -> tuple[str | None, tuple[str, ...]]:
        """Commit what is to be committed, in the engine's repository: the new commit, if there is one, and its files."""
        repository, branch = self.task.repository, self.found.branch
        default = self.remote.default or repository.branch
        self._pass_over(dirty, entries)
        wanted: dict[str, Entry | None] = {}
        left: list[str] = []
        for path, entry in dirty.changes.items():
            what = classify(path, team=repository.team, branch=branch, default=default, tracked=path in entries)
            if what == "commit":
                wanted[path] = entry
            elif what == "left":
                left.append(path)
        if left:
            where = f"files of the default branch {branch} that are not committed" if branch == default else "files that are not committed"
            self.done.append(Action.about(self._name, "left", left, where, branch=branch))
        for path, reason in dirty.refused.items():
            if not is_credential(path) and not is_runtime(path, tracked=path in entries):
                self.done.append(Action.about(self._name, "left", [path], reason, branch=branch))
        if not wanted:
            return None, ()
        return self._built(wanted, dirty), tuple(wanted)

    def _built(self, changes: Mapping[str, Entry | None], dirty: Uncommitted) -> str:
        """The commit of some changes. The same changes to the same parent always give the same commit."""
        parent = self.scratch.commit(self.found.commit) if self.found.commit is not None else None
        earliest = parent.committer.seconds if parent is not None else 0
        seconds = max([earliest, *(dirty.times.get(path, 0) for path in changes)])
        for last in (False, True):
            built = build_commit(
                self.scratch.trees.read,
                parent.tree if parent is not None else None,
                changes,
                dirty.blobs,
                parent=self.found.commit,
                author=Signature(*self.task.identity, seconds),
                message=f"Left uncommitted in session {self.task.session}\n\nCommitted by its finalization.\n",
                format_=self.scratch.format,
            )
            if not last:
                seconds = self.notes.time_of(f"{self._name} {self.found.commit} {built.tree}", seconds)
        self.scratch.write(built.objects)
        return built.id

    # Commits ---------------------------------------------------------------------------------------------------------------------

    def _missing(self, tips: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The commits below ``tips`` that are not on the remote, nor replayed there."""
        return self.scratch.new_commits(tips, {*self.remote.known(), *self._saved})

    def _save_branch(self, name: str, tip: str, files: tuple[str, ...]) -> None:
        """Bring a branch to the remote: as it is, replayed onto what came meanwhile, or as a recovery branch."""
        missing = self._missing([tip])
        if not missing or self._holds_credentials(name, tip, missing):
            return
        why = ""
        for _ in range(1 + RETRIES):
            there = self.remote.heads.get(name)
            offered = tip if there is None or self.scratch.leads_to(tip, there) else self._replayed(tip, there)
            if offered is None:
                why = f"{name} has moved, and the work does not go onto it by itself"
                break
            if offered == there:
                self._saved.append(tip)  # it was replayed there before
                return
            refused = self._push(name, offered, files, "pushed")
            if refused is None:
                self._saved.append(tip)
                return
            why = refused
            self.remote.look()
            if not self._missing([tip]):
                return  # it got there in some other way
            if self.remote.heads.get(name) == there:
                break  # it did not move: the remote does not want it
        self._recover(name, tip, files, why)

    def _replayed(self, tip: str, onto: str) -> str | None:
        """The agent's commits on top of what came meanwhile; None if that needs a person, or would bring back what others took away."""
        strange = self._missing([tip]).keys() - self._own - {tip}
        return None if strange else self.scratch.replay(tip, onto)

    def _save_head(self, fresh: str | None, files: tuple[str, ...]) -> None:
        """Save what is on a detached HEAD, or on a branch that has no commit yet."""
        tip = fresh or self.found.commit
        if tip is None or self.found.branch in self.found.branches:
            return
        if self.found.branch is not None:
            self._save_branch(self.found.branch, tip, files)
            return
        default = self.remote.default or self.task.repository.branch
        there = self.remote.heads.get(default)
        # What a team knows belongs to everybody; a workspace has the team's repository detached at the default branch's head.
        at = self.found.commit
        if self.task.repository.team and there is not None and at is not None and self.scratch.leads_to(there, at):
            self._save_branch(default, tip, files)
            return
        self._save_apart("HEAD", tip, files, label=at)

    def _save_apart(self, word: str, tip: str, files: tuple[str, ...] = (), *, label: str | None = None) -> None:
        """Save what is on no branch as a recovery branch."""
        missing = self._missing([tip])
        name = f"{word}-{(label or tip)[:_SHORT]}"
        if missing and not self._holds_credentials(name, tip, missing):
            self._recover(name, tip, files, "it is on no branch")

    def _save_others(self, own: Collection[str]) -> None:
        """Save every other commit of the agent's: those that only a reflog, a tag or nothing at all leads to."""
        base = [self.task.repository.commit] if self.task.repository.commit is not None else []
        missing = self.scratch.new_commits(own, {*self.remote.known(), *self._saved, *self._given_up, *base})
        inner = {parent for parents in missing.values() for parent in parents}
        tips = [id_ for id_ in missing if id_ not in inner]
        safe = sorted(tip for tip in tips if not self._holds_credentials(f"commit {tip[:_SHORT]}", tip, self._missing([tip])))
        if len(safe) == 1:
            self._save_apart("lost", safe[0])
        elif safe:
            self._save_apart("lost", self._bundle(safe))

    def _bundle(self, tips: list[str]) -> str:
        """One commit, without files of its own, that leads to all of these."""
        tree = self.scratch.format.hash_object("tree", b"")
        seconds = max(self.scratch.commit(tip).committer.seconds for tip in tips)
        who = Signature(*self.task.identity, seconds).encode().decode(errors="surrogateescape")
        parents = "".join(f"parent {tip}\n" for tip in tips)
        message = f"Commits that nothing led to in session {self.task.session}\n\nEach parent is one. This commit itself has no files.\n"
        raw = f"tree {tree}\n{parents}author {who}\ncommitter {who}\n\n{message}".encode(errors="surrogateescape")
        id_ = self.scratch.format.hash_object("commit", raw)
        self.scratch.write({id_: ("commit", raw), tree: ("tree", b"")})
        return id_

    def _holds_credentials(self, what: str, tip: str, missing: Mapping[str, object]) -> bool:
        """Whether a commit that the remote has not yet would bring it a credential; then none of it is pushed, and this is told."""
        secret = sorted(path for path in self.scratch.touched_paths(missing) if is_credential(path))
        if secret:
            self.done.append(Action.about(self._name, "failed", secret, "commits hold credentials, so they are not pushed", branch=what))
            self._given_up.append(tip)
        return bool(secret)

    # Pushing ---------------------------------------------------------------------------------------------------------------------

    def _recover(self, label: str, tip: str, files: tuple[str, ...], why: str) -> None:
        """Push to a recovery branch; one that is there already and holds something else is left alone."""
        plain = f"recovery/{self.task.session}/{label}"
        for name in (plain, f"{plain}-{tip[:_SHORT]}"):
            there = self.remote.heads.get(name)
            if there is not None and not self.scratch.leads_to(tip, there):
                continue
            refused = self._push(name, tip, files, "recovered", why)
            if refused is None:
                self._saved.append(tip)
                return
            why = f"{why}; {refused}" if why != refused else why
            self.remote.look()
            if not self._missing([tip]):
                return
        self.done.append(Action(self._name, "failed", label, tip, reason=f"neither it nor a recovery branch was taken: {why}"))
        self._given_up.append(tip)

    def _push(self, branch: str, commit: str, files: tuple[str, ...], kind: str, why: str | None = None) -> str | None:
        """Push one branch, and tell so. Gives the reason if it was not taken."""
        actions = [Action(self._name, "recovered" if kind == "recovered" else "pushed", branch, commit, reason=why)]
        if files:
            actions.insert(0, Action.about(self._name, "committed", files, branch=branch, commit=commit))
        before = self.notes.of(self._name)
        self.notes.intend(actions)
        ended = self.remote.push(commit, branch)
        if ended.outcome == "unknown":
            self.remote.look()
        if self.remote.heads.get(branch) == commit:
            self.done += actions
            return None
        self.notes.forget(one for one in actions if one not in before)
        return ended.reason or "the remote did not take it"

    def _note_saved(self, commits: set[str], fresh: str | None, files: Mapping[str, Entry | None]) -> None:
        """Note what is safe by now, for who looks into the workspace without asking the remote."""
        # All is where it belongs: that this cannot be told is no failure, and only keeps the workspace for longer.
        with suppress(GittrixError, OutOfTime, OSError):
            missing = self._missing([*commits, *filter(None, [fresh])])
            there = {path: None if entry is None else (entry.mode, entry.id) for path, entry in files.items() if fresh not in missing}
            self.notes.note_saved(self._name, commits - missing.keys(), there)

    def _remember(self) -> None:
        """Tell too what an earlier attempt did, as far as the remote still has it."""
        done = {(one.action, one.branch, one.commit) for one in self.done}
        earlier = [one for one in self.notes.of(self._name) if (one.action, one.branch, one.commit) not in done]
        kinds = self.scratch.object_kinds({one.commit for one in earlier if one.commit is not None})
        held = [
            one
            for one in earlier
            if one.branch in self.remote.heads and one.commit in kinds and self.scratch.leads_to(self.remote.heads[one.branch], one.commit)
        ]
        self.done += held
