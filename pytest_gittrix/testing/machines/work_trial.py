"""What agents and people do in a trial: the system under test and its model take the same steps.

``session_trial`` goes on with how sessions end.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.testing.machines.trial_base import TrialBase, checked
from pytest_gittrix.testing.oracle import (
    differences,
    files_in,
    invariant_touched_is_the_difference,
    require,
)
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits
from pytest_gittrix.testing.repos.history import Content, Executable, Symlink, stored_bytes
from pytest_gittrix.testing.session_model import ModelSession
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import HeldSession

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import EvictionPolicy

_NO_FILE: Final = frozenset({"PATH_NOT_FOUND", "PATH_IS_DIRECTORY", "WRITE_REJECTED"})
"""What a system may answer who reads a file that was deleted."""


class WorkTrial(TrialBase):
    """A trial in which agents work on sessions, and people on durable."""

    # The agent -------------------------------------------------------------------------------------------------------------------

    @checked
    def start(self, policy: EvictionPolicy) -> HeldSession:
        """Start a session from durable's head."""
        handle = self.engine.start_session("task", eviction=policy)
        now, tree = self.now, self.model.tree
        self.model.sessions[handle.id] = ModelSession(
            tree, tree, now, now, policy.ttl_idle, policy.ttl_absolute, policy.manual, policy.until_promote
        )
        held = HeldSession(f"s{len(self.held) + 1}", handle.id, handle, handle.workspace_path, self.model.head)
        self.held.append(held)
        return held

    @checked
    def write(self, held: HeldSession, path: str, data: bytes) -> None:
        """The agent writes a file; skipped where the contract leaves open what happens."""
        if self.model.open_question(self.model.sessions[held.id], path):
            return
        self.work(
            held,
            f"write({path!r})",
            lambda: self.access.write(held.handle, path, data),
            then=lambda session: self.model.write(session, path, data),
        )

    @checked
    def delete(self, held: HeldSession, path: str) -> None:
        """The agent deletes a file; skipped where the contract leaves open what happens."""
        if self.model.open_question(self.model.sessions[held.id], path):
            return
        self.work(held, f"delete({path!r})", lambda: held.handle.delete(path), then=lambda session: self.model.delete(session, path))

    @checked
    def commit(self, held: HeldSession) -> None:
        """The agent commits."""
        sha = self.work(held, "commit()", lambda: held.handle.commit("work"))
        if sha is not None:
            held.commits.append(sha)

    @checked
    def shell(self, held: HeldSession, edits: Edits) -> None:
        """The agent's own programs change files in the workspace; skipped without a workspace or a live session."""
        session = self.model.sessions[held.id]
        self.settle()
        if not edits or held.workspace is None or not self.live(held):
            return
        session.files = session.files.apply(edits)
        session.use(self.now, surely=self.access.native)
        for path, content in sorted(edits.items(), key=lambda item: item[1] is not None):
            full = held.workspace / path
            if full.is_symlink() or full.is_file():
                full.unlink()
            if content is None:
                _prune(full.parent, held.workspace)
                continue
            full.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Symlink):
                os.symlink(stored_bytes(content) or b"", os.fsencode(full))
                continue
            full.write_bytes(stored_bytes(content) or b"")
            full.chmod(0o755 if isinstance(content, Executable) else 0o644)

    @checked
    def edit(self, held: HeldSession, edits: Edits) -> None:
        """The agent makes several edits: by programs in its workspace if it has one, otherwise through the session."""
        if held.workspace is not None:
            files = self.model.sessions[held.id].files
            self.shell(held, files.to(files.made_by(edits)))
            return
        for path, content in sorted(edits.items(), key=lambda item: item[1] is not None):
            if content is None:
                if self.access.can(Capability.DELETE):
                    self.delete(held, path)
            elif not isinstance(content, Symlink):
                self.write(held, path, stored_bytes(content) or b"")

    @checked
    def run(self, held: HeldSession, script: str) -> None:
        """The agent runs git in its own repository; skipped without a repository or a live session."""
        session = self.model.sessions[held.id]
        self.settle()
        if held.workspace is None or not self.live(held) or not (held.workspace / ".git").is_dir():
            return
        session.use(self.now, surely=self.access.native)
        held.commits.clear()
        subprocess.run(["/bin/sh", "-c", script], cwd=held.workspace, env=hermetic_env(), capture_output=True, timeout=60, check=False)

    @checked
    def look(self, held: HeldSession) -> None:
        """The agent reads its touched paths, its listing and every file; what it deleted is absent."""
        touched = self.work(held, "touched_files()", held.handle.touched_files)
        if touched is None:
            return
        session = self.model.sessions[held.id]
        if self.access.native:
            deadline = held.handle.info().deadline
            require(deadline == session.deadline, "A deadline counts from the last use.", f"{deadline}, not {session.deadline}")
            log, newest = [one.sha for one in held.handle.log()], held.commits[::-1]
            require(log[: len(newest)] == newest, "The agent's log begins with its newest commits.", f"{log}, not {newest}")
        invariant_touched_is_the_difference(touched, session.baseline, session.files)
        listed = {entry.path for entry in held.handle.list() if entry.type != "dir"}
        differs = f"{sorted(listed)}, not {sorted(session.files)}"
        require(listed == set(session.files), "A listing is of the files there are.", differs, name="listing")
        for path, content in session.files.items():
            if isinstance(content, Symlink) and not self.access.native:
                continue
            expected, found = stored_bytes(content), self.access.read(held.handle, path)
            require(found == expected, f"{held} reads what it wrote.", *differences({path: expected}, {path: found}))
        for path in session.baseline.keys() - session.files.keys():
            self.ask(f"{held}.read({path!r})", _NO_FILE, partial(self.access.read, held.handle, path))
        if held.workspace is not None:
            found_files = files_in(held.workspace)
            lines = differences(session.files, found_files)
            require(found_files == session.files, f"The workspace of {held} holds its files.", *lines, name="workspace-files")

    # People ----------------------------------------------------------------------------------------------------------------------

    @checked
    def durable_edit(self, edit: DurableEdit, *, at_the_desk: bool) -> None:
        """The human in durable's checkout (``at_the_desk``), or a rival in a clone, changes durable."""
        self._drifted(edit.make(self.world.durable if at_the_desk else self.world.rival), edit, at_the_desk=at_the_desk)

    def _drifted(self, made: Sequence[str], edit: DurableEdit, *, at_the_desk: bool) -> None:
        """Enter into the model an edit that made these commits."""
        self._owed.update(made)
        for number, edits in enumerate(edit.commits):
            self.model.committed(f"amended {number}" if edit.rewrite else made[number], edits, in_checkout=at_the_desk)
        if edit.rewrite:
            self.model.moved(made[0], self.model.tree, in_checkout=at_the_desk)
            self._owed &= set(self.judge.history(made[0]))
        for left, stage in ((edit.dirty, False), (edit.staged, True)):
            if left and self.model.checkout is not None:
                self.model.checkout.edit(left, stage=stage)
        self._durable_changes()

    @checked
    def rewind(self, back: int, *, at_the_desk: bool) -> None:
        """The human or a rival moves the branch back by some commits, at most to the first one."""
        target = self.model.head
        for _ in range(back):
            target = next(iter(self.judge.commit(target).parents), target)
        (self.world.durable if at_the_desk else self.world.rival).rewind(target)
        self._owed &= set(self.judge.history(target))
        self.model.moved(target, in_checkout=at_the_desk)
        self._durable_changes()


def _prune(directory: Path, root: Path) -> None:
    """Remove a directory if it is empty, and then the empty ones above it, as git does."""
    while directory != root and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def merged_by_git(base: Content | None, ours: Content | None, theirs: Content | None) -> Content | None:
    """Merge the edits of both sides to a file, as ``git merge-file`` does; None where a person has to decide."""
    sides = [content.data if isinstance(content, Executable) else content for content in (base, ours, theirs)]
    texts = [side.encode() if isinstance(side, str) else side for side in sides if isinstance(side, bytes | str)]
    if len(texts) < len(sides):
        return None
    modes = [isinstance(content, Executable) for content in (base, ours, theirs)]
    is_executable = modes[1] if modes[2] == modes[0] else modes[2]
    with tempfile.TemporaryDirectory(prefix="gittrix-merge-") as directory:
        names = [os.path.join(directory, name) for name in ("ours", "base", "theirs")]
        for name, text in zip(names, (texts[1], texts[0], texts[2]), strict=True):
            with open(name, "wb") as file:
                file.write(text)
        done = subprocess.run([git_binary(), "merge-file", "-p", "-q", *names], capture_output=True, check=False, env=hermetic_env())
    if done.returncode:
        return None
    return Executable(done.stdout) if is_executable else done.stdout
