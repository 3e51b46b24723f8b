"""A system under test beside its model: how a trial asks, and what it checks after every step, out of band.

Must know no Hypothesis and no pytest, and not what steps there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from pytest_gittrix.testing.oracle import (
    Judge,
    invariant_answer,
    invariant_checkout,
    invariant_eviction_leaves_nothing,
    invariant_untouched,
    invariant_work_is_archived,
    require,
)
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.fingerprint import Fingerprint
from pytest_gittrix.testing.session_model import FINE, OK, Answers, Checkout, Model, Session
from pytest_gittrix.testing.systems.under_test import Held, System, access_to, directory_of

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
        system: the session system, or what opens a sandbox with it.
        files: what durable holds at first.
        workspace: the kind of workspaces, where that is for the sandbox to choose.
        bare: durable has no work tree.
    """

    def __init__(self, system: System, *, files: Tree, workspace: str = "clone", bare: bool = False) -> None:
        self.held: list[Held] = []
        self.access = access_to(system)
        self._stack = ExitStack()
        self.world = self._stack.enter_context(self.access.opens(files=files, workspace=workspace, bare=bare, sweep_interval=None))
        self.engine: Any = self.world.gittrix
        self.others: list[Any] = []
        self._engines = self._depth = 0
        self.judge = self._stack.enter_context(Judge(self.world.durable.path))
        self._first = self._look_at_durable()
        self._seen: Fingerprint | None = self._first
        self._approved: Fingerprint | None = None
        head = self._branch_in(self._first)
        self.model = Model(head, {head: files}, None if bare else Checkout(files, files), native=self.access.native)
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
        now: datetime = self.world.clock.now()
        return now

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
        self.settle()
        allowed = self.model.refusal(session, self.now)
        live = OK in allowed
        if live:
            session.use(self.now, surely=self.access.native)
            allowed = then(session) if then is not None else FINE
        answer, value, _ = self.ask(f"{held}.{to}", allowed, act)
        if live and then is not None and answer == OK:
            session.use(self.now, surely=True)
        return value

    def settle(self) -> None:
        """Have what is past its time swept, where the contract leaves open what can be done with it until then."""
        if not self.access.native and any(one.due(self.now) or one.doubtful(self.now) for one in self.model.sessions.values()):
            self.sweep()

    def sweep(self) -> None:
        """A sweep of the engine, judged."""
        raise NotImplementedError

    def elsewhere(self, action: Callable[[], object], *, dies_at: int | None = None) -> bool:
        """Run an action in another process; see ``Access.elsewhere``."""
        return self.access.elsewhere(self.world, action, dies_at=dies_at)

    def names(self) -> list[str]:
        """The paths that an actor may well meet others at: everything in durable and in workspaces there are, sorted."""
        trees = [self.model.tree, *(session.files for session in self.model.sessions.values() if session.present)]
        return sorted({path for tree in trees for path in tree})

    def live(self, held: Held) -> bool:
        """Whether a session can be worked on."""
        return OK in self.model.refusal(self.model.sessions[held.id], self.now)

    @property
    def seen(self) -> Fingerprint:
        """Durable as people and promotions left it."""
        if self._seen is None:
            self._seen = self._look_at_durable()
        return self._seen

    def _durable_changes(self, now: Fingerprint | None = None) -> None:
        self._seen = now
        self._owed.add(self.model.head)
        for held in self.held:
            held.hidden |= {self.model.head} - {held.baseline}

    def _branch_in(self, seen: Fingerprint) -> str:
        return seen.sections["refs"].get(f"refs/heads/{self.world.durable.branch}", "nowhere")

    def _look_at_durable(self) -> Fingerprint:
        """What may not change but by people and promotions. A system may keep notes of its own beside a person's branches and tags."""
        found = Fingerprint.of(self.world.durable.path)
        return found if self.access.native else _persons(found)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        self._depth += 1
        _ = self.seen  # is taken before the system does anything
        try:
            yield
        finally:
            self._depth -= 1
        if self._depth == 0:
            self.check()

    def check(self) -> None:
        """What holds after every step: durable is where the model says and as it was left, and so are the sessions' records."""
        now = self._look_at_durable()
        head = self._branch_in(now)
        require(head == self.model.head, "Durable's branch moves by people and promotions only.", f"it is at {head}")
        if self._seen is not None:
            invariant_untouched(self._seen, now, by="anything but people and promotions")
        else:
            self._seen = now
        if self.model.checkout is not None and self._approved is not self._seen:
            invariant_checkout(self.judge, files=self.model.checkout.files)
        self._approved = self._seen
        records = self.access.states(self.engine)
        states = {id_: session.state for id_, session in self.model.sessions.items()}
        if records != states:
            named = {held.id: held.name for held in self.held}
            listed, wanted = ({named.get(id_, id_): state for id_, state in one.items()} for one in (records, states))
            require(False, "Every session is listed, in its state.", f"{listed}, not {wanted}")

    def _check_evicted(self, held: Held, *, archived: bool = True) -> None:
        if held.workspace is not None:
            directory = directory_of(self.engine, held.id)
            invariant_eviction_leaves_nothing(held.workspace, directory and directory / ".lock")
        if archived:
            self._check_archive(held, Edits({}))

    def _check_archive(self, held: Held, landed: Edits) -> None:
        session = self.model.sessions[held.id]
        directory = directory_of(self.engine, held.id)
        if session.present or directory is None:
            return
        left = {path: new for path, new in session.touched.items() if path not in landed or landed[path] != new}
        if left:
            with Judge(directory / "archive.git") as archive:
                invariant_work_is_archived(archive, f"refs/gittrix/archive/{held.id}", left)


def _persons(found: Fingerprint) -> Fingerprint:
    """What of a repository is a person's own: HEAD, branches, tags and stash, hooks, configuration, staged entries, the work tree."""
    refs = found.sections["refs"].items()
    kept = {name: id_ for name, id_ in refs if name.startswith(("refs/heads/", "refs/tags/")) or name == "refs/stash"}
    staged = {name: entry for name, entry in found.sections["index"].items() if not name.endswith("(bytes)")}
    whole = ("HEAD", "hooks", "config", "work tree")
    return Fingerprint({"refs": kept, "index": staged, **{name: found.sections[name] for name in whole if name in found.sections}})


def beside(found: Fingerprint, branch: str) -> Fingerprint:
    """What of a repository a promotion to a branch has no business with; what becomes of index and work tree is judged elsewhere."""
    refs = {name: id_ for name, id_ in found.sections["refs"].items() if name != f"refs/heads/{branch}"}
    return Fingerprint(
        {"refs": refs, **{name: found.sections[name] for name in ("HEAD", "hooks", "config", "state") if name in found.sections}}
    )
