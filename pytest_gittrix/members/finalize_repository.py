"""Saving one repository of a workspace: its agent's commits and uncommitted files go to the remote.

Nothing in the workspace is ever changed: new commits are made, and old ones replayed, in a repository of the engine's that borrows the
agent's objects. So an attempt can be killed at any point, and the next one starts from the same files. Saved are, in this order: branches,
the detached HEAD, stashes, then every other commit of the agent's that the remote does not have (in a reflog or unreferenced). A commit
that its branch does not take goes to ``recovery/<session>/...``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.tree import EXECUTABLE, FILE, Entry
from pytest_gittrix.members.finalize_files import classify, is_runtime
from pytest_gittrix.members.finalize_held import HeldBack
from pytest_gittrix.members.finalize_record import MAX_FILES, Action, Notes
from pytest_gittrix.members.finalize_remote import Remote
from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.workspaces.finder.opened_repository import SHORT, OpenedRepository
from pytest_gittrix.workspaces.repositories.agent_repository import LFS_OBJECTS, AgentRepository
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository, Touched
from pytest_gittrix.workspaces.secrets import Suspect, is_credential_file, masked, suspect

RETRIES: Final = 3
"""How often a branch that moved meanwhile is fetched, and the work replayed onto it (BotMinter)."""

_NEVER: Final = "credentials are not pushed"
_SECRET: Final = "it seems to hold a secret"
_BRANCH: Final = "name of the branch"
_FILES: Final = (FILE, EXECUTABLE)
_RUNTIME: Final = "state of what ran here"


@dataclass
class Saving:
    """The saving of one repository.

    Attributes:
        look: the repository.
        session: id of the session; in the names of recovery branches.
        identity: name and address of the committer of uncommitted files.
        remote: the remote.
        notes: the notes of this and earlier attempts.
        held: what is done about files that seem to hold credentials.
        done: what was done, in order.
    """

    look: OpenedRepository
    session: str
    identity: tuple[str, str]
    remote: Remote
    notes: Notes
    held: HeldBack
    done: list[Action] = field(default_factory=list)
    _never: dict[str, Suspect] = field(default_factory=dict)
    _saved: list[str] = field(default_factory=list)
    _given_up: list[str] = field(default_factory=list)

    @property
    def _name(self) -> str:
        return self.look.planned.name

    @property
    def _found(self) -> AgentRepository:
        return self.look.found

    @property
    def _scratch(self) -> ScratchRepository:
        return self.look.scratch

    def run(self) -> None:
        """Save all work of the repository.

        Raises:
            GittrixError: the remote cannot be read, or git failed.
            OutOfTime: the time is up. The actions in ``done`` were done.
            OSError: the disk refused.
        """
        changed = self.look.uncommitted.changes
        for path in filter(is_credential_file, self.look.paths):
            if (one := self._suspect(path)) is not None:
                self._never[path] = one
        for problem in self._found.problems:
            self.done.append(Action(self._name, "failed", reason=problem))
        quiet = self._is_quiet()
        for path in self._found.other_stores:
            if not (quiet and path == LFS_OBJECTS):
                self.done.append(Action(self._name, "left", reason=f".git/{path} holds work that no push of a branch takes along"))
        if quiet:
            self._pass_over()
            return
        self._scratch.declare_complete(self._scratch.object_kinds({*self._tips(), *filter(None, [self.look.planned.commit])}))
        self.remote.refresh()
        fresh, files = self._commit()
        for name, tip in self._found.branches.items():
            on_it = fresh is not None and name == self._found.branch
            self._save_branch(name, fresh if on_it and fresh is not None else tip, files if on_it else ())
        self._save_head(fresh, files)
        for stash in self._found.stashes:
            self._save_apart("stash", stash)
        self._save_others()
        self._remember()
        self._note_saved(fresh, {path: changed[path] for path in files})

    # The agent's work ------------------------------------------------------------------------------------------------------------

    def _tips(self) -> set[str]:
        return {*self.look.tips.values(), *filter(None, [self._found.commit])}

    def _is_runtime(self, path: str) -> bool:
        return is_runtime(path, tracked=path in self.look.entries)

    def _is_quiet(self) -> bool:
        """Whether the agent left nothing that could be saved, so that the remote need not be read."""
        files = any(path not in self._never and not self._is_runtime(path) for path in self.look.paths)
        return not files and not self.look.own_commits and self._tips() <= {self.look.planned.commit}

    def _pass_over(self, secret: Mapping[str, Suspect] | None = None) -> None:
        """Add actions for the files that stay on purpose, and archive those that seem to hold credentials.

        Args:
            secret: the files with lines that seem to be secret.
        """
        runtime = [path for path in self.look.paths if path not in self._never and self._is_runtime(path)]
        if runtime:
            self.done.append(Action.about(self._name, "skipped", runtime, _RUNTIME))
        lines = list((secret or {}).values())
        if not self._never and not lines:
            return
        kept, archived = self._archived([*self._never, *(secret or {})])
        for where, paths in ((kept, self._never.keys() & archived), ("", self._never.keys() - archived)):
            if held := {path: one for path, one in self._never.items() if path in paths}:
                way = self.held.way_through(held.values(), by_path=True)
                self.done.append(Action.about(self._name, "skipped", held, f"{_NEVER}{where}; {way}"))
        for some in [*([one] for one in lines[:MAX_FILES]), *filter(None, [lines[MAX_FILES:]])]:
            reason = f"{_SECRET} ({some[0].found[0]}){kept}; {self.held.way_through(some)}"
            self.done.append(Action.about(self._name, "left", [one.path for one in some], reason, branch=self._found.branch))

    def _archived(self, paths: Iterable[str]) -> tuple[str, Collection[str]]:
        """Archive files; return where they are, for people, and which these are: deleted ones and those over the limit are not."""
        dirty = self.look.uncommitted
        entries = {path: entry for path in paths if (entry := dirty.changes.get(path)) is not None and entry.id in dirty.blobs}
        if not entries:
            return "", ()
        author = Signature(*self.identity, max(dirty.times.get(path, 0) for path in entries))
        where = self.held.keep(self._name, entries, dirty.blobs, author, self._scratch.format)
        return f", and kept in the session's {where}", entries.keys()

    # Uncommitted files -----------------------------------------------------------------------------------------------------------

    def _commit(self) -> tuple[str | None, tuple[str, ...]]:
        """Commit the files that should be committed, in the engine's repository; return the new commit, if any, and its files."""
        repository, branch, dirty = self.look.planned, self._found.branch, self.look.uncommitted
        default = self.remote.default or repository.branch
        wanted: dict[str, Entry | None] = {}
        secret: dict[str, Suspect] = {}
        left: list[str] = []
        for path, entry in dirty.changes.items():
            let = path not in self._never
            tracked = path in self.look.entries
            disposition = classify(path, team=repository.team, branch=branch, default=default, tracked=tracked, let_through=let)
            if disposition == "left":
                left.append(path)
            elif disposition == "commit" and (one := self._suspect(path)) is not None:
                secret[path] = one
            elif disposition == "commit":
                wanted[path] = entry
        self._pass_over(secret)
        if left:
            reason = f"files of the default branch {branch} that are not committed" if branch == default else "files that are not committed"
            self.done.append(Action.about(self._name, "left", left, reason, branch=branch))
        for path, reason in dirty.refused.items():
            if path not in self._never and not self._is_runtime(path):
                self.done.append(Action.about(self._name, "left", [path], reason, branch=branch))
        if not wanted:
            return None, ()
        return self._built(wanted), tuple(wanted)

    def _suspect(self, path: str) -> Suspect | None:
        """Why an uncommitted file seems to hold credentials; None if it does not, or if a person lets it through."""
        entry, old = self.look.uncommitted.changes.get(path), self.look.entries.get(path)
        new = self.look.uncommitted.blobs[entry.id] if entry is not None and entry.mode in _FILES else b""
        before = [self._scratch.objects.read(old.id)[1]] if new and old is not None and old.mode in _FILES else []
        return self._unless_allowed(suspect(path, new, before))

    def _unless_allowed(self, found: Suspect | None) -> Suspect | None:
        return None if found is None or found.is_among(self.held.allowed) else found

    def _built(self, changes: Mapping[str, Entry | None]) -> str:
        """The commit of some changes. The same changes to the same parent always give the same commit."""
        dirty = self.look.uncommitted
        parent = self._scratch.commit(self._found.commit) if self._found.commit is not None else None
        earliest = parent.committer.seconds if parent is not None else 0
        seconds = max([earliest, *(dirty.times.get(path, 0) for path in changes)])
        for last in (False, True):
            built = build_commit(
                self._scratch.trees.read,
                parent.tree if parent is not None else None,
                changes,
                dirty.blobs,
                parent=self._found.commit,
                author=Signature(*self.identity, seconds),
                message=f"Left uncommitted in session {self.session}\n\nCommitted by its finalization.\n",
                format_=self._scratch.format,
            )
            if not last:
                seconds = self.notes.time_of(f"{self._name} {self._found.commit} {built.tree}", seconds)
        self._scratch.write(built.objects)
        return built.id

    # Commits ---------------------------------------------------------------------------------------------------------------------

    def _missing(self, tips: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The commits reachable from ``tips`` that the remote does not have, as they are or replayed."""
        return self._scratch.new_commits(tips, {*self.remote.known(), *self._saved})

    def _save_branch(self, name: str, tip: str, files: tuple[str, ...]) -> None:
        """Push a branch: as it is, replayed onto the remote's new commits, or as a recovery branch."""
        missing = self._missing([tip])
        if not missing or self._holds_credentials(name, tip, missing):
            return
        why = ""
        for _ in range(1 + RETRIES):
            there = self.remote.heads.get(name)
            offered = tip if there is None or self._scratch.leads_to(tip, there) else self._replayed(tip, there)
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
        strange = self._missing([tip]).keys() - self.look.own_commits - {tip}
        return None if strange else self._scratch.replay(tip, onto)

    def _save_head(self, fresh: str | None, files: tuple[str, ...]) -> None:
        """Save what is on a detached HEAD, or on a branch that has no commit yet."""
        tip = fresh or self._found.commit
        if tip is None or self._found.branch in self._found.branches:
            return
        if self._found.branch is not None:
            self._save_branch(self._found.branch, tip, files)
            return
        default = self.remote.default or self.look.planned.branch
        there = self.remote.heads.get(default)
        # The team's knowledge goes to the default branch, at whose head a workspace has the team's repository detached.
        at = self._found.commit
        if self.look.planned.team and there is not None and at is not None and self._scratch.leads_to(there, at):
            self._save_branch(default, tip, files)
            return
        self._save_apart("HEAD", tip, files, label=at)

    def _save_apart(self, kind: str, tip: str, files: tuple[str, ...] = (), *, label: str | None = None) -> None:
        """Save a commit that is on no branch as a recovery branch."""
        missing = self._missing([tip])
        name = f"{kind}-{(label or tip)[:SHORT]}"
        if missing and not self._holds_credentials(name, tip, missing):
            self._recover(name, tip, files, "it is on no branch")

    def _save_others(self) -> None:
        """Save every other commit of the agent's: those that only a reflog or a tag refers to, or nothing at all."""
        base = [self.look.planned.commit] if self.look.planned.commit is not None else []
        tips = self.look.lost({*self.remote.known(), *self._saved, *self._given_up, *base})
        safe = sorted(tip for tip in tips if not self._holds_credentials(f"commit {tip[:SHORT]}", tip, self._missing([tip])))
        if len(safe) == 1:
            self._save_apart("lost", safe[0])
        elif safe:
            self._save_apart("lost", self._bundle(safe))

    def _bundle(self, tips: list[str]) -> str:
        """One commit without files whose parents are all of these."""
        tree = self._scratch.format.hash_object("tree", b"")
        seconds = max(self._scratch.commit(tip).committer.seconds for tip in tips)
        who = Signature(*self.identity, seconds).encode().decode(errors="surrogateescape")
        parents = "".join(f"parent {tip}\n" for tip in tips)
        message = f"Commits that nothing reached in session {self.session}\n\nEach parent is one. This commit itself has no files.\n"
        raw = f"tree {tree}\n{parents}author {who}\ncommitter {who}\n\n{message}".encode(errors="surrogateescape")
        id_ = self._scratch.format.hash_object("commit", raw)
        self._scratch.write({id_: ("commit", raw), tree: ("tree", b"")})
        return id_

    def _holds_credentials(self, what: str, tip: str, missing: Mapping[str, object]) -> bool:
        """Whether a missing commit has a credential, or its branch's name; then nothing of ``tip`` is pushed, and an action says so."""
        secret = [one for one in map(self._suspect_in_commit, self._scratch.touched(missing)) if one is not None]
        texts = {_BRANCH: os.fsencode(what), **{f"commit {id_[:SHORT]}": self._scratch.objects.read(id_)[1] for id_ in missing}}
        found = (self._unless_allowed(suspect(place, text, by_name=False)) for place, text in texts.items())
        secret += [one for one in found if one is not None]
        if secret:
            reason = f"commits hold credentials, so they are not pushed ({masked(secret[0].path)}, {secret[0].found[0]})"
            way = self.held.way_through(secret, by_path=True)
            self.done.append(Action.about(self._name, "failed", {one.path for one in secret}, f"{reason}; {way}", branch=masked(what)))
            self._given_up.append(tip)
        return bool(secret)

    def _suspect_in_commit(self, touched: Touched) -> Suspect | None:
        """Why a file that a commit touched seems to hold credentials; as ``_suspect``."""
        new, *old = (self._scratch.objects.read(id_)[1] for id_ in (touched.id, *touched.old)) if touched.is_file else (b"",)
        return self._unless_allowed(suspect(touched.path, new, old))

    # Pushing ---------------------------------------------------------------------------------------------------------------------

    def _recover(self, label: str, tip: str, files: tuple[str, ...], why: str) -> None:
        """Push to a recovery branch; an existing one with other work is left alone."""
        plain = f"recovery/{self.session}/{label}"
        for name in (plain, f"{plain}-{tip[:SHORT]}"):
            head = self.remote.heads.get(name)
            if head is not None and not self._scratch.leads_to(tip, head):
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

    def _note_saved(self, fresh: str | None, files: Mapping[str, Entry | None]) -> None:
        """Note what is safe by now, for an inspection of the workspace, which does not ask the remote."""
        commits = {*self.look.own_commits, *self._tips()}
        # The work is saved: a note that cannot be written is no failure, and only retains the workspace for longer.
        with suppress(GittrixError, OutOfTime, OSError):
            missing = self._missing([*commits, *filter(None, [fresh])])
            there = {path: None if entry is None else (entry.mode, entry.id) for path, entry in files.items() if fresh not in missing}
            self.notes.note_saved(self._name, commits - missing.keys(), there)

    def _remember(self) -> None:
        """Add the actions of an earlier attempt, as far as the remote still has their commits."""
        done = {(one.action, one.branch, one.commit) for one in self.done}
        earlier = [one for one in self.notes.of(self._name) if (one.action, one.branch, one.commit) not in done]
        kinds = self._scratch.object_kinds({one.commit for one in earlier if one.commit is not None})
        self.done += [
            one
            for one in earlier
            if one.branch in self.remote.heads and one.commit in kinds and self._scratch.leads_to(self.remote.heads[one.branch], one.commit)
        ]
