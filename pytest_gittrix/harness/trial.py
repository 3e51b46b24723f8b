"""A trial: one sandbox and the model of a correct one, led through the same steps, compared after each, judged out of band.

``machine`` draws the steps; a plain test can write them down. Every method does one thing to the system under test, says what a correct
system answers, and raises AssertionError where the system does otherwise. Must know no Hypothesis and no pytest.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.harness.edits import DurableEdit, Edits, Tree
from pytest_gittrix.harness.fingerprint import Fingerprint
from pytest_gittrix.harness.history import Executable, Symlink
from pytest_gittrix.harness.model import FINE, OK, Answers, Checkout, Model, Session
from pytest_gittrix.harness.oracle import (
    Judge,
    files_in,
    invariant_answer,
    invariant_checkout,
    invariant_conflict_iff_overlap,
    invariant_eviction_leaves_nothing,
    invariant_log_has_no_gap,
    invariant_no_commit_is_lost,
    invariant_nothing_is_half_done,
    invariant_promote_is_one_commit,
    invariant_sweep_is_exact,
    invariant_touched_is_the_difference,
    invariant_untouched,
    invariant_work_is_archived,
    invariant_workspace_stands_alone,
    require,
)
from pytest_gittrix.harness.sandbox import Held, System, another_engine

if TYPE_CHECKING:
    from pytest_gittrix.record.model import EvictionPolicy

P = ParamSpec("P")
T = TypeVar("T")


def judged(step: Callable[Concatenate[Trial, P], T]) -> Callable[Concatenate[Trial, P], T]:
    """Make a method a step of a trial: when the outermost one has ended, everything that is cheap to check is checked."""

    @wraps(step)
    def run(trial: Trial, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with trial._stepping():
            return step(trial, *args, **kwargs)

    return run


class Trial:
    """A system under test, beside its model. Use it as a context manager, or call ``close``.

    Args:
        system: opens the sandbox.
        files: what durable holds at first.
        workspace: the kind of workspaces.
        bare: durable has no work tree.
    """

    def __init__(self, system: System, *, files: Tree, workspace: str = "clone", bare: bool = False) -> None:
        self.kind = workspace
        self.held: list[Held] = []
        self._stack = ExitStack()
        self.world = self._stack.enter_context(system(files=files, workspace=workspace, bare=bare, sweep_interval=None))
        self.engine: Any = self.world.gittrix
        self.others: list[Any] = []
        self._engines = self._depth = 0
        self.judge = self._stack.enter_context(Judge(self.world.durable.path))
        self._seen = self._first = Fingerprint.of(self.world.durable.path)
        head = self._branch_in(self._seen)
        self.model = Model(head, {head: files}, None if bare else Checkout(files, files))
        self._owed = {head}

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every engine and the sandbox."""
        with self._stack:
            for engine in self.others:
                engine.close()

    @property
    def now(self) -> datetime:
        """The instant of the trial's clock."""
        return self.world.clock.now()

    # Asking ----------------------------------------------------------------------------------------------------------------------

    def ask(self, to: str, allowed: Answers, act: Callable[[], T]) -> tuple[str, T | None, Any]:
        """Do something, and see that the answer is allowed; gives the answer's code, its value and its error."""
        try:
            answer, value, error = OK, act(), None
        except Exception as problem:
            code = getattr(problem, "code", None)
            if not isinstance(code, str):
                raise
            answer, value, error = code, None, problem
        invariant_answer(answer, allowed, to=to, said=str(error or ""))
        return answer, value, error

    def work(self, held: Held, to: str, act: Callable[[], T], *, then: Callable[[Session], Answers] | None = None) -> T | None:
        """Work on a session through its handle: refused if it is over, otherwise as ``then`` says; it counts as use."""
        session = self.model.sessions[held.id]
        allowed = self.model.refusal(session, self.now)
        if OK in allowed:
            session.used = self.now
            allowed = then(session) if then is not None else FINE
        return self.ask(f"{held}.{to}", allowed, act)[1]

    def names(self) -> list[str]:
        """The paths that an actor may well meet others at: everything in durable and in workspaces there are, sorted."""
        trees = [self.model.tree, *(session.files for session in self.model.sessions.values() if session.present)]
        return sorted({path for tree in trees for path in tree})

    def live(self, held: Held) -> bool:
        """Whether a session can be worked on."""
        return OK in self.model.refusal(self.model.sessions[held.id], self.now)

    # The agent -------------------------------------------------------------------------------------------------------------------

    @judged
    def start(self, policy: EvictionPolicy) -> Held:
        """Start a session from durable's head."""
        handle = self.engine.start_session("task", eviction=policy)
        now, tree = self.now, self.model.tree
        self.model.sessions[handle.id] = Session(
            tree, tree, now, now, policy.ttl_idle, policy.ttl_absolute, policy.manual, policy.until_promote
        )
        held = Held(f"s{len(self.held) + 1}", handle.id, handle, handle.workspace_path, self.model.head)
        self.held.append(held)
        return held

    @judged
    def write(self, held: Held, path: str, data: bytes) -> None:
        """The agent writes a file."""
        self.work(
            held, f"write({path!r})", lambda: held.handle.write(path, data), then=lambda session: self.model.write(session, path, data)
        )

    @judged
    def delete(self, held: Held, path: str) -> None:
        """The agent deletes a file."""
        self.work(held, f"delete({path!r})", lambda: held.handle.delete(path), then=lambda session: self.model.delete(session, path))

    @judged
    def commit(self, held: Held) -> None:
        """The agent commits."""
        sha = self.work(held, "commit()", lambda: held.handle.commit("work"))
        if sha is not None:
            newest = held.handle.log()[0].sha
            require(newest == sha, "The agent's newest commit is the one it just made.", f"log() says {newest}, commit() said {sha}")

    @judged
    def shell(self, held: Held, edits: Edits) -> None:
        """The agent's own programs change files in the workspace. Nothing happens where there is none, or the session is over."""
        session = self.model.sessions[held.id]
        if held.workspace is None or not self.live(held):
            return
        session.files, session.used = session.files.apply(edits), self.now
        for path, content in sorted(edits.items(), key=lambda item: item[1] is not None):
            full = held.workspace / path
            if full.is_symlink() or full.is_file():
                full.unlink()
            if content is None:
                _prune(full.parent, held.workspace)
                continue
            full.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Symlink):
                os.symlink(content.target, os.fsencode(full))
                continue
            data = content.data if isinstance(content, Executable) else content
            assert isinstance(data, bytes)
            full.write_bytes(data)
            full.chmod(0o755 if isinstance(content, Executable) else 0o644)

    @judged
    def run(self, held: Held, script: str) -> None:
        """The agent runs git in its own repository. Nothing happens where there is none, or the session is over."""
        session = self.model.sessions[held.id]
        if self.kind != "clone" or held.workspace is None or not self.live(held):
            return
        session.used = self.now
        subprocess.run(["/bin/sh", "-c", script], cwd=held.workspace, env=hermetic_env(), capture_output=True, timeout=60, check=False)

    @judged
    def look(self, held: Held) -> None:
        """The agent looks at all it has: touched paths, listing, every file; what it deleted is absent."""
        if not self.live(held):
            self.work(held, "touched_files()", held.handle.touched_files)
            return
        session = self.model.sessions[held.id]
        info = self.work(held, "info()", held.handle.info)
        assert info is not None
        require(info.deadline == session.deadline, "A deadline counts from the last use.", f"{info.deadline}, not {session.deadline}")
        invariant_touched_is_the_difference(held.handle.touched_files(), session.baseline, session.files)
        listed = {entry.path for entry in held.handle.list() if entry.type != "dir"}
        require(listed == set(session.files), "A listing is of the files there are.", f"{sorted(listed)}, not {sorted(session.files)}")
        for path, content in session.files.items():
            wanted = content.target if isinstance(content, Symlink) else content.data if isinstance(content, Executable) else content
            found = held.handle.read(path)
            require(found == wanted, f"{held} reads what it wrote.", f"{path!r}: expected {wanted!r}, found {found!r}")
        for path in session.baseline.keys() - session.files.keys():
            self.ask(f"{held}.read({path!r})", frozenset({"PATH_NOT_FOUND", "WRITE_REJECTED"}), lambda path=path: held.handle.read(path))  # type: ignore[misc]
        if held.workspace is not None:
            found_files = files_in(held.workspace)
            require(found_files == session.files, f"The workspace of {held} holds its files.", f"{found_files} instead of {session.files}")

    # People ----------------------------------------------------------------------------------------------------------------------

    @judged
    def durable_edit(self, edit: DurableEdit, *, at_the_desk: bool) -> None:
        """The human, or somebody elsewhere, does something to durable."""
        made = edit.make(self.world.durable if at_the_desk else self.world.rival)
        self._owed.update(made)
        for number, edits in enumerate(edit.commits):
            self.model.committed(f"amended {number}" if edit.rewrite else made[number], edits, at_the_desk=at_the_desk)
        if edit.rewrite:
            self.model.moved(made[0], self.model.tree, at_the_desk=at_the_desk)
            self._owed &= set(self.judge.history(made[0]))
        for left, stage in ((edit.dirty, False), (edit.staged, True)):
            if left and self.model.checkout is not None:
                self.model.checkout.edit(left, stage=stage)
        self._durable_changes()

    @judged
    def rewind(self, back: int, *, at_the_desk: bool) -> None:
        """Somebody moves the branch back by some commits, or to the first one."""
        target = self.model.head
        for _ in range(back):
            target = next(iter(self.judge.commit(target).parents), target)
        (self.world.durable if at_the_desk else self.world.rival).rewind(target)
        self._owed &= set(self.judge.history(target))
        self.model.moved(target, at_the_desk=at_the_desk)
        self._durable_changes()

    # Ends ------------------------------------------------------------------------------------------------------------------------

    @judged
    def promote(
        self,
        held: Held,
        files: Collection[str] | None = None,
        *,
        on_overlap: str = "refuse",
        reviewed: Edits | None = None,
        whole: bool = True,
        act: Callable[[], Any] | None = None,
    ) -> str:
        """Promote all that is touched, or some paths; gives the answer's code.

        Args:
            held: the session.
            files: the paths; None for all.
            on_overlap: what is to happen where durable drifted.
            reviewed: the selection, if it is that of a review, whatever the workspace holds now.
            whole: whether the selected files land as they are, not in parts.
            act: how to promote, if not by ``handle.promote``.
        """
        session = self.model.sessions[held.id]
        touched = session.touched if reviewed is None else reviewed
        allowed, landing = self.model.refusal(session, self.now), Edits({})
        if OK in allowed:
            session.used = self.now
            if files is not None and not set(files) <= set(touched):
                allowed = frozenset({"PROMOTE_FAILED"})
            else:
                allowed, landing = self.model.promotion(session, touched.only(touched if files is None else files), on_overlap=on_overlap)
        onto = self.model.head
        doing = act if act is not None else lambda: held.handle.promote(files=files, on_overlap=on_overlap)
        answer, result, error = self.ask(f"{held}.promote({'' if files is None else sorted(files)})", allowed, doing)
        if answer == OK:
            assert result is not None
            self._landed(session, result.sha, onto, landing, exact=whole and allowed == FINE)
            if whole:
                self._check_archive(held, landing)
        elif answer == "BASELINE_CONFLICT" and on_overlap == "refuse":
            invariant_conflict_iff_overlap(error.conflicting_files, landing, session.baseline, self.model.tree)
        return answer

    @judged
    def promote_a_review(self, held: Held, path: str, data: bytes) -> str:
        """Review everything, let the agent write one more file, and promote the review: it is the bytes reviewed that land (rule 12)."""
        review = self.work(held, "review()", held.handle.review)
        reviewed = self.model.sessions[held.id].touched
        self.write(held, path, data)
        if review is None:
            return self.promote(held)
        return self.promote(held, reviewed=reviewed, act=lambda: held.handle.promote(review))

    @judged
    def promote_hunks(self, held: Held, *, only_first: bool) -> str:
        """Promote the hunks of the first text file that has any, or the first of them; gives the answer's code."""
        review = self.work(held, "review()", held.handle.review)
        hunks = {} if review is None else {path: [hunk.index for hunk in found] for path, found in review.hunks.items() if found}
        if not hunks:
            return self.promote(held, [])
        path, numbers = next(iter(hunks.items()))
        chosen = {path: numbers[:1] if only_first else numbers}
        part = self.model.sessions[held.id].touched.only([path])
        return self.promote(held, reviewed=part, whole=chosen[path] == numbers, act=lambda: held.handle.promote(hunks=chosen))

    def _landed(self, session: Session, sha: str, onto: str, landing: Edits, *, exact: bool) -> None:
        if exact:
            invariant_promote_is_one_commit(self.judge, sha, onto=onto, selection=landing)
        else:
            # What a merge makes of an overlap is its own; the paths are those selected all the same.
            landing = self.judge.tree(onto).to(self.judge.tree(sha))
            require(set(landing) <= set(session.touched), "A promotion changes selected paths only.", *landing)
            invariant_promote_is_one_commit(self.judge, sha, onto=onto, selection=landing)
        self.model.promoted(session, sha, landing)
        self._durable_changes()
        if self.model.checkout is not None:
            invariant_checkout(self.judge, staged=self.model.checkout.staged)

    @judged
    def promote_elsewhere(self, held: Held, run: Callable[[Callable[[], object]], bool]) -> bool:
        """Promote everything in another process, which may be killed half-way; afterwards this engine recovers.

        Args:
            held: the session.
            run: runs an action in another process, and says whether it came to its end.

        Returns:
            Whether the session is promoted.
        """
        self.sweep()  # so that the other engine, which sweeps as it starts, has nothing to do but to promote
        session = self.model.sessions[held.id]
        allowed, landing, onto = self.model.refusal(session, self.now), Edits({}), self.model.head
        if OK in allowed:
            allowed, landing = self.model.promotion(session, session.touched)
        ended = run(lambda: self._another_engine().get_session(held.id).promote())
        self.engine.recover()
        head = self.judge.head(self.world.durable.branch)
        if head != onto:
            require(OK in allowed, f"{held} may not be promoted.", *sorted(allowed))
            self._landed(session, head, onto, landing, exact=True)
            self._check_archive(held, landing)
        elif OK in self.model.refusal(session, self.now):
            require(not ended or OK not in allowed, f"{held} ran to its end and could be promoted, but was not.")
            self.look(held)
        if head != onto or session.state == "active":
            workspace = held.workspace or self._directory(held) / "workspace"
            invariant_nothing_is_half_done(self.judge, session.state, session.sha, workspace, self.world.durable.branch)
        return head != onto

    @judged
    def sweep_elsewhere(self, run: Callable[[Callable[[], object]], bool]) -> None:
        """Sweep in another process, which may be killed half-way; afterwards this engine recovers, and sweeps what is left."""
        run(self._another_engine)
        self.engine.recover()
        self.engine.sweep()
        self._swept()

    @judged
    def discard(self, held: Held) -> None:
        """The human gives a session up. Of one whose time is up, or that is over but has kept its workspace, either answer will do."""
        session = self.model.sessions[held.id]
        allowed = self.model.refusal(session, self.now)
        answer = self.ask(f"{held}.discard()", allowed | FINE if session.present else allowed, held.handle.discard)[0]
        if answer == OK:
            was_promoted = session.state == "promoted"
            self.model.ended(session, "discarded")
            self._check_evicted(held, archived=not was_promoted)

    @judged
    def extend(self, held: Held, ttl: timedelta) -> None:
        """The human gives a session another idle TTL, from now on."""

        def extended(session: Session) -> Answers:
            session.idle = ttl
            return FINE

        self.work(held, f"extend({ttl})", lambda: held.handle.extend(ttl), then=extended)

    @judged
    def sweep(self, engine: Any = None) -> None:
        """A sweep, of the engine or of another one on the same sessions."""
        before = {id_: session for id_, session in self.model.sessions.items() if session.present}
        evicted = (engine or self.engine).sweep()
        deadlines = {id_: session.deadline for id_, session in before.items()}
        invariant_sweep_is_exact(evicted, self.now, before, deadlines)
        self._swept()

    def _swept(self) -> None:
        for id_ in self.model.due(self.now):
            session = self.model.sessions[id_]
            was_promoted = session.state == "promoted"
            self.model.ended(session, "expired")
            self._check_evicted(next(held for held in self.held if held.id == id_), archived=not was_promoted)

    @judged
    def restart(self, *, closed: bool) -> None:
        """Another engine takes over. The one before was closed, or goes on beside it as another process would."""
        new = self._another_engine()
        if closed:
            self.engine.close()
        else:
            self.others.append(self.engine)
        self.engine = new
        self._stack.callback(new.close)
        self._swept()
        for held in self.held:
            if self.model.sessions[held.id].state == "active":
                held.handle = new.get_session(held.id)

    def _another_engine(self) -> Any:
        self._engines += 1
        return another_engine(self.world, self._engines)

    # Judging ---------------------------------------------------------------------------------------------------------------------

    def _durable_changes(self) -> None:
        self._seen = Fingerprint.of(self.world.durable.path)
        self._owed.add(self.model.head)
        for held in self.held:
            held.hidden |= {self.model.head} - {held.baseline}

    def _branch_in(self, seen: Fingerprint) -> str:
        return seen.sections["refs"].get(f"refs/heads/{self.world.durable.branch}", "nowhere")

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._depth == 0:
            self.check()

    def check(self) -> None:
        """What holds after every step: durable is where the model says and as it was left, and so are the sessions' records."""
        now = Fingerprint.of(self.world.durable.path)
        head = self._branch_in(now)
        require(head == self.model.head, "Durable's branch moves by people and promotions only.", f"it is at {head}")
        invariant_untouched(self._seen, now, by="anything but people and promotions")
        if self.model.checkout is not None:
            invariant_checkout(self.judge, files=self.model.checkout.files)
        records = {record.id: record.state for record in self.engine.list_sessions()}
        states = {id_: session.state for id_, session in self.model.sessions.items()}
        require(records == states, "Every session is listed, in its state.", f"{records}, not {states}")

    def check_all(self) -> None:
        """The whole truth, for the end of a trial."""
        self.check()
        if self._seen != self._first:  # to ask git takes as long as everything else together
            invariant_no_commit_is_lost(self.judge, self.model.head, self._owed)
            require(self.judge.tree(self.model.head) == self.model.tree, "The branch holds what was put there.")
        if self._seen != self._first and self.model.checkout is not None:
            invariant_checkout(self.judge, staged=self.model.checkout.staged)
        for held in self.held:
            session = self.model.sessions[held.id]
            self.look(held)
            if held.workspace is not None and session.present:
                invariant_workspace_stands_alone(held.workspace, self.judge, held.hidden)
            log = self._directory(held) / "events.jsonl"
            if log.exists():
                invariant_log_has_no_gap(log)

    def _directory(self, held: Held) -> Path:
        store = getattr(self.engine, "store", None)
        return Path(store.directory(held.id)) if store is not None else Path("/nonexistent")

    def _check_evicted(self, held: Held, *, archived: bool = True) -> None:
        if held.workspace is not None:
            invariant_eviction_leaves_nothing(held.workspace, self._directory(held) / ".lock")
        if archived:
            self._check_archive(held, Edits({}))

    def _check_archive(self, held: Held, landed: Edits) -> None:
        session = self.model.sessions[held.id]
        directory = self._directory(held)
        if session.present or not directory.exists():
            return
        left = {path: new for path, new in session.touched.items() if path not in landed or landed[path] != new}
        if left:
            with Judge(directory / "archive.git") as archive:
                invariant_work_is_archived(archive, f"refs/gittrix/archive/{held.id}", left)


def _prune(directory: Path, root: Path) -> None:
    """Remove a directory that is left empty, and those above it, as git does."""
    while directory != root and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent
