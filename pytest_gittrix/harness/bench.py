"""A system under test beside its model: how a trial asks, and what it checks after every step, out of band.

Must know no Hypothesis and no pytest, and not what steps there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from pytest_gittrix.harness.edits import Edits, Tree
from pytest_gittrix.harness.fingerprint import Fingerprint
from pytest_gittrix.harness.model import FINE, OK, Answers, Checkout, Model, Session
from pytest_gittrix.harness.oracle import (
    Judge,
    invariant_answer,
    invariant_checkout,
    invariant_eviction_leaves_nothing,
    invariant_untouched,
    invariant_work_is_archived,
    require,
)
from pytest_gittrix.harness.sandbox import Held, System

P = ParamSpec("P")
B = TypeVar("B", bound="Bench")
T = TypeVar("T")


def judged(step: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[B, P], T]:
    """Make a method a step of a trial: when the outermost one has ended, everything that is cheap to check is checked."""

    @wraps(step)
    def run(bench: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with bench._stepping():
            return step(bench, *args, **kwargs)

    return run


class Bench:
    """What a trial stands on.

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

    def __enter__(self) -> Self:
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
