"""Saving one repository of a workspace: its agent's commits and uncommitted files go to the remote.

Nothing in the workspace is ever changed: new commits are made, and old ones replayed, in a repository of the engine's that borrows the
agent's objects. So an attempt can be killed at any point, and the next one starts from the same files. Saved are, in this order: branches,
the detached HEAD, stashes, then every other commit of the agent's that the remote does not have (in a reflog or unreferenced). A commit
that its branch does not take goes to ``recovery/<session>/...``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.tree import EXECUTABLE, FILE, Entry, flatten
from pytest_gittrix.members.finalize_files import classify, is_runtime
from pytest_gittrix.members.finalize_held import HeldBack
from pytest_gittrix.members.finalize_record import MAX_FILES, Action, Notes
from pytest_gittrix.members.finalize_remote import Deadline, Remote
from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, clone_format, clone_path
from pytest_gittrix.workspaces.repositories.agent_repository import LFS_OBJECTS, AgentRepository, read_repository
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository, Touched
from pytest_gittrix.workspaces.repositories.uncommitted import Uncommitted, find_uncommitted
from pytest_gittrix.workspaces.secrets import Suspect, is_credential_file, masked, suspect

RETRIES: Final = 3
"""How often a branch that moved meanwhile is fetched, and the work replayed onto it (BotMinter)."""

GONE: Final = "there is no repository any more"
"""Why nothing of a repository can be saved whose git directory the agent removed."""

_SHORT: Final = 12
_NEVER: Final = "credentials are not pushed"
_SECRET: Final = "it seems to hold a secret"
_BRANCH: Final = "name of the branch"
_FILES: Final = (FILE, EXECUTABLE)
_RUNTIME: Final = "state of what ran here"


@dataclass(frozen=True)
class Task:
    """One repository of a workspace, to be saved or inspected.

    Attributes:
        workspace: the workspace.
        repository: the repository as the workspace was planned.
        root: its work tree.
        session: id of the session; in the names of recovery branches.
        strangers: other repositories below the work tree, relative to it.
        identity: name and address of the committer of uncommitted files.
    """

    workspace: MultiRepoWorkspace
    repository: CheckedOutRepository
    root: str
    session: str
    strangers: frozenset[str]
    identity: tuple[str, str]

    @classmethod
    def of(
        cls,
        workspace: MultiRepoWorkspace,
        repository: CheckedOutRepository,
        found: Iterable[str],
        session: str = "",
        identity: tuple[str, str] = ("", ""),
    ) -> Task:
        """The task for a repository; ``found`` are the paths of all repositories that are in the workspace."""
        below = f"{repository.directory}/"
        strangers = frozenset(path.removeprefix(below) for path in found if path.startswith(below))
        return cls(workspace, repository, os.path.join(workspace.path, repository.directory), session, strangers, identity)

    @property
    def elsewhere(self) -> str:
        """Why nothing of a repository can be saved that a link replaced."""
        return f"a link leads from {self.repository.directory} to another place"

    def is_gone(self) -> bool:
        """Whether the work tree has no git directory any more."""
        return not os.path.lexists(os.path.join(self.root, ".git"))

    def is_elsewhere(self) -> bool:
        """Whether a link replaced the work tree or a directory above it."""
        return os.path.realpath(self.root) != os.path.join(os.path.realpath(self.workspace.path), *self.repository.directory.split("/"))

    @property
    def clone(self) -> str:
        """The shared clone of the repository's remote."""
        return clone_path(self.workspace.clones, self.repository.url)

    @contextmanager
    def opened(self, path: str, left: Callable[[], float]) -> Iterator[tuple[AgentRepository, ScratchRepository]]:
        """Read the agent's git directory as plain files, and make a repository of the engine's that borrows its objects.

        Args:
            path: where to make the engine's repository.
            left: the seconds that are left; it may raise.

        Raises:
            GittrixError, OSError, ValueError, LookupError, RecursionError: the agent's repository cannot be read.
        """
        format_ = clone_format(self.clone, self.repository.commit)
        found = read_repository(self.root, format_, on_step=left)
        lenders = [directory for parent in (os.path.join(self.root, ".git"), self.clone) if os.path.isdir(directory := f"{parent}/objects")]
        scratch = ScratchRepository.make(path, format_, lenders, shallow=found.shallow, time_left=left)
        try:
            yield found, scratch
        finally:
            scratch.close()

    def compare(
        self, found: AgentRepository, scratch: ScratchRepository, tick: Callable[[], object] = lambda: None
    ) -> tuple[Mapping[str, Entry], Uncommitted]:
        """Everything in the commit that is checked out, and the files of the work tree that differ from it.

        Args:
            found: the contents of the git directory.
            scratch: the engine's repository.
            tick: called for each file; may raise to end the walk.
        """
        commit = found.commit
        entries = {} if commit is None else flatten(scratch.trees.read, scratch.commit(commit).tree)
        differing = find_uncommitted(
            self.root,
            entries,
            scratch.format,
            may_be_deleted=found.may_be_deleted,
            exclude=found.exclude,
            nested=self.strangers,
            on_file=tick,
        )
        return entries, differing


@dataclass
class Saving:
    """The saving of one repository.

    Attributes:
        task: the repository.
        found: the contents of its git directory.
        scratch: the engine's repository.
        remote: the remote.
        notes: the notes of this and earlier attempts.
        deadline: the end of the time for it.
        held: what is done about files that seem to hold credentials.
        done: what was done, in order.
    """

    task: Task
    found: AgentRepository
    scratch: ScratchRepository
    remote: Remote
    notes: Notes
    deadline: Deadline
    held: HeldBack
    done: list[Action] = field(default_factory=list)
    _own: frozenset[str] = frozenset()
    _never: dict[str, Suspect] = field(default_factory=dict)
    _saved: list[str] = field(default_factory=list)
    _given_up: list[str] = field(default_factory=list)

    @property
    def _name(self) -> str:
        return self.task.repository.name

    def run(self) -> None:
        """Save all work of the repository.

        Raises:
            GittrixError: the remote cannot be read, or git failed.
            OutOfTime: the time is up. The actions in ``done`` were done.
            OSError: the disk refused.
        """
        kinds = self.scratch.object_kinds(self.found.objects)
        own = self._own = frozenset(id_ for id_, kind in kinds.items() if kind == "commit")
        entries, dirty = self.task.compare(self.found, self.scratch, self.deadline.left)
        for path in filter(is_credential_file, [*dirty.changes, *dirty.refused]):
            if (one := self._suspect(path, dirty, entries)) is not None:
                self._never[path] = one
        for problem in self.found.problems:
            self.done.append(Action(self._name, "failed", reason=problem))
        quiet = self._is_quiet(own, dirty, entries)
        for path in self.found.other_stores:
            if not (quiet and path == LFS_OBJECTS):
                self.done.append(Action(self._name, "left", reason=f".git/{path} holds work that no push of a branch takes along"))
        if quiet:
            self._pass_over(dirty, entries)
            return
        self.scratch.declare_complete(self.scratch.object_kinds({*self._tips(), *filter(None, [self.task.repository.commit])}))
        self.remote.refresh()
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

    # The agent's work ------------------------------------------------------------------------------------------------------------

    def _tips(self) -> set[str]:
        return {*self.found.branches.values(), *self.found.stashes, *filter(None, [self.found.commit])}

    def _is_quiet(self, own: Collection[str], dirty: Uncommitted, entries: Mapping[str, Entry]) -> bool:
        """Whether the agent left nothing that could be saved, so that the remote need not be read."""
        idle = self._never.keys() | {path for path in self._changed(dirty) if is_runtime(path, tracked=path in entries)}
        return set(self._changed(dirty)) <= idle and not own and self._tips() <= {self.task.repository.commit}

    @staticmethod
    def _changed(dirty: Uncommitted) -> list[str]:
        return [*dirty.changes, *dirty.refused]

    def _pass_over(self, dirty: Uncommitted, entries: Mapping[str, Entry], secret: Mapping[str, Suspect] | None = None) -> None:
        """Add actions for the files that stay on purpose, and archive those that seem to hold credentials.

        Args:
            dirty: the files that differ from the commit that is checked out.
            entries: everything in that.
            secret: the files with lines that seem to be secret.
        """
        runtime = [path for path in self._changed(dirty) if path not in self._never and is_runtime(path, tracked=path in entries)]
        if runtime:
            self.done.append(Action.about(self._name, "skipped", runtime, _RUNTIME))
        lines = list((secret or {}).values())
        if not self._never and not lines:
            return
        kept, archived = self._archived([*self._never, *(secret or {})], dirty)
        for where, paths in ((kept, self._never.keys() & archived), ("", self._never.keys() - archived)):
            if held := {path: one for path, one in self._never.items() if path in paths}:
                way = self.held.way_through(held.values(), by_path=True)
                self.done.append(Action.about(self._name, "skipped", held, f"{_NEVER}{where}; {way}"))
        for some in [*([one] for one in lines[:MAX_FILES]), *filter(None, [lines[MAX_FILES:]])]:
            reason = f"{_SECRET} ({some[0].found[0]}){kept}; {self.held.way_through(some)}"
            self.done.append(Action.about(self._name, "left", [one.path for one in some], reason, branch=self.found.branch))

    def _archived(self, paths: Iterable[str], dirty: Uncommitted) -> tuple[str, Collection[str]]:
        """Archive files; return where they are, for people, and which these are: deleted ones and those over the limit are not."""
        entries = {path: entry for path in paths if (entry := dirty.changes.get(path)) is not None and entry.id in dirty.blobs}
        if not entries:
            return "", ()
        author = Signature(*self.task.identity, max(dirty.times.get(path, 0) for path in entries))
        where = self.held.keep(self._name, entries, dirty.blobs, author, self.scratch.format)
        return f", and kept in the session's {where}", entries.keys()

    # Uncommitted files -----------------------------------------------------------------------------------------------------------

    def _commit(self, dirty: Uncommitted, entries: Mapping[str, Entry]) -> tuple[str | None, tuple[str, ...]]:
        """Commit the files that should be committed, in the engine's repository; return the new commit, if any, and its files."""
        repository, branch = self.task.repository, self.found.branch
        default = self.remote.default or repository.branch
        wanted: dict[str, Entry | None] = {}
        secret: dict[str, Suspect] = {}
        left: list[str] = []
        for path, entry in dirty.changes.items():
            let = path not in self._never
            disposition = classify(path, team=repository.team, branch=branch, default=default, tracked=path in entries, let_through=let)
            if disposition == "left":
                left.append(path)
            elif disposition == "commit" and (one := self._suspect(path, dirty, entries)) is not None:
                secret[path] = one
            elif disposition == "commit":
                wanted[path] = entry
        self._pass_over(dirty, entries, secret)
        if left:
            reason = f"files of the default branch {branch} that are not committed" if branch == default else "files that are not committed"
            self.done.append(Action.about(self._name, "left", left, reason, branch=branch))
        for path, reason in dirty.refused.items():
            if path not in self._never and not is_runtime(path, tracked=path in entries):
                self.done.append(Action.about(self._name, "left", [path], reason, branch=branch))
        if not wanted:
            return None, ()
        return self._built(wanted, dirty), tuple(wanted)

    def _suspect(self, path: str, dirty: Uncommitted, entries: Mapping[str, Entry]) -> Suspect | None:
        """Why an uncommitted file seems to hold credentials; None if it does not, or if a person lets it through."""
        entry, old = dirty.changes.get(path), entries.get(path)
        new = dirty.blobs[entry.id] if entry is not None and entry.mode in _FILES else b""
        before = [self.scratch.objects.read(old.id)[1]] if new and old is not None and old.mode in _FILES else []
        return self._unless_allowed(suspect(path, new, before))

    def _unless_allowed(self, found: Suspect | None) -> Suspect | None:
        return None if found is None or found.is_among(self.held.allowed) else found

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
        """The commits reachable from ``tips`` that the remote does not have, as they are or replayed."""
        return self.scratch.new_commits(tips, {*self.remote.known(), *self._saved})

    def _save_branch(self, name: str, tip: str, files: tuple[str, ...]) -> None:
        """Push a branch: as it is, replayed onto the remote's new commits, or as a recovery branch."""
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
            self.remote.refresh()
            if not self._missing([tip]):
                return  # the remote got it in another way
            if self.remote.heads.get(name) == there:
                break  # it did not move: the remote does not want it
        self._recover(name, tip, files, why)

    def _replayed(self, tip: str, onto: str) -> str | None:
        """The agent's commits on top of the remote's new ones; None if that needs a person, or would restore what others removed."""
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
        # The team's knowledge goes to the default branch, at whose head a workspace has the team's repository detached.
        at = self.found.commit
        if self.task.repository.team and there is not None and at is not None and self.scratch.leads_to(there, at):
            self._save_branch(default, tip, files)
            return
        self._save_apart("HEAD", tip, files, label=at)

    def _save_apart(self, kind: str, tip: str, files: tuple[str, ...] = (), *, label: str | None = None) -> None:
        """Save a commit that is on no branch as a recovery branch."""
        missing = self._missing([tip])
        name = f"{kind}-{(label or tip)[:_SHORT]}"
        if missing and not self._holds_credentials(name, tip, missing):
            self._recover(name, tip, files, "it is on no branch")

    def _save_others(self, own: Collection[str]) -> None:
        """Save every other commit of the agent's: those that only a reflog or a tag refers to, or nothing at all."""
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
        """One commit without files whose parents are all of these."""
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
        """Whether a missing commit has a credential, or its branch's name; then nothing of ``tip`` is pushed, and an action says so."""
        secret = [one for one in map(self._suspect_in_commit, self.scratch.touched(missing)) if one is not None]
        texts = {_BRANCH: os.fsencode(what), **{f"commit {id_[:_SHORT]}": self.scratch.objects.read(id_)[1] for id_ in missing}}
        told = (self._unless_allowed(suspect(place, text, by_name=False)) for place, text in texts.items())
        secret += [one for one in told if one is not None]
        if secret:
            reason = f"commits hold credentials, so they are not pushed ({masked(secret[0].path)}, {secret[0].found[0]})"
            way = self.held.way_through(secret, by_path=True)
            self.done.append(Action.about(self._name, "failed", {one.path for one in secret}, f"{reason}; {way}", branch=masked(what)))
            self._given_up.append(tip)
        return bool(secret)

    def _suspect_in_commit(self, touched: Touched) -> Suspect | None:
        """Why a file that a commit touched seems to hold credentials; as ``_suspect``."""
        new, *old = (self.scratch.objects.read(id_)[1] for id_ in (touched.id, *touched.old)) if touched.is_file else (b"",)
        return self._unless_allowed(suspect(touched.path, new, old))

    # Pushing ---------------------------------------------------------------------------------------------------------------------

    def _recover(self, label: str, tip: str, files: tuple[str, ...], why: str) -> None:
        """Push to a recovery branch; an existing one with other work is left alone."""
        plain = f"recovery/{self.task.session}/{label}"
        for name in (plain, f"{plain}-{tip[:_SHORT]}"):
            head = self.remote.heads.get(name)
            if head is not None and not self.scratch.leads_to(tip, head):
                continue
            refused = self._push(name, tip, files, "recovered", why)
            if refused is None:
                self._saved.append(tip)
                return
            why = f"{why}; {refused}" if why != refused else why
            self.remote.refresh()
            if not self._missing([tip]):
                return
        self.done.append(Action(self._name, "failed", label, tip, reason=f"neither it nor a recovery branch was taken: {why}"))
        self._given_up.append(tip)

    def _push(self, branch: str, commit: str, files: tuple[str, ...], kind: str, why: str | None = None) -> str | None:
        """Push one branch, and add its actions. Return the reason if the remote refused it, else None."""
        actions = [Action(self._name, "recovered" if kind == "recovered" else "pushed", branch, commit, reason=why)]
        if files:
            actions.insert(0, Action.about(self._name, "committed", files, branch=branch, commit=commit))
        before = self.notes.of(self._name)
        self.notes.intend(actions)
        ended = self.remote.push(commit, branch)
        if ended.outcome == "unknown":
            self.remote.refresh()
        if self.remote.heads.get(branch) == commit:
            self.done += actions
            return None
        self.notes.forget(one for one in actions if one not in before)
        return ended.reason or "the remote did not take it"

    def _note_saved(self, commits: set[str], fresh: str | None, files: Mapping[str, Entry | None]) -> None:
        """Note what is safe by now, for an inspection of the workspace, which does not ask the remote."""
        # The work is saved: a note that cannot be written is no failure, and only retains the workspace for longer.
        with suppress(GittrixError, OutOfTime, OSError):
            missing = self._missing([*commits, *filter(None, [fresh])])
            there = {path: None if entry is None else (entry.mode, entry.id) for path, entry in files.items() if fresh not in missing}
            self.notes.note_saved(self._name, commits - missing.keys(), there)

    def _remember(self) -> None:
        """Add the actions of an earlier attempt, as far as the remote still has their commits."""
        done = {(one.action, one.branch, one.commit) for one in self.done}
        earlier = [one for one in self.notes.of(self._name) if (one.action, one.branch, one.commit) not in done]
        kinds = self.scratch.object_kinds({one.commit for one in earlier if one.commit is not None})
        self.done += [
            one
            for one in earlier
            if one.branch in self.remote.heads and one.commit in kinds and self.scratch.leads_to(self.remote.heads[one.branch], one.commit)
        ]
