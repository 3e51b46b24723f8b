"""A system under test and its model: how a trial makes requests, and what it checks after each step of ``session_trial``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from pytest_gittrix.testing.oracle import (
    Judge,
    differences,
    invariant_answer,
    invariant_checkout,
    invariant_eviction_leaves_nothing,
    invariant_untouched,
    invariant_work_is_archived,
    require,
)
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.fingerprint import REFS_OF_PEOPLE, Fingerprint, linked_work_tree
from pytest_gittrix.testing.repos.history import stored_bytes
from pytest_gittrix.testing.session_model import FINE, OK, Answers, Model, ModelCheckout, ModelSession
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import HeldSession, System, access_to, directory_of
from pytest_gittrix.testing.waivers import waiving

P = ParamSpec("P")
B = TypeVar("B", bound="TrialBase")
T = TypeVar("T")


def answer_of(to: str, act: Callable[[], T], allowed: Collection[str]) -> tuple[str, T | None, Exception | None]:
    """Make a request of a system, and check that its answer is allowed.

    Args:
        to: the request, for the message.
        act: makes it.
        allowed: ``OK``, or codes of errors.

    Returns:
        ``OK`` or the error's code, the value, and the error.

    Raises:
        AssertionError: the answer is not allowed.
    """
    error: Exception | None = None
    try:
        answer, value = OK, act()
    except Exception as problem:
        code = getattr(problem, "code", None)
        if not isinstance(code, str):
            raise
        answer, value, error = code, None, problem
    invariant_answer(answer, allowed, to=to, said=str(error or ""))
    return answer, value, error


def checked(step: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[B, P], T]:
    """Make a method a step of a trial. When the outermost step has ended, everything that is cheap to check is checked."""

    @wraps(step)
    def run(trial: B, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with trial._stepping():
            return step(trial, *args, **kwargs)

    return run


class TrialBase:
    """A sandbox with the system under test, its model, and the checks between steps.

    Args:
        system: the session system, or a function that opens a sandbox with it.
        files: what durable holds at first.
        workspace: the kind of workspaces, for sandboxes that can choose it.
        bare: durable has no work tree.
        waived: the names of invariants that are not required.
    """

    def __init__(self, system: System, *, files: Tree, workspace: str = "clone", bare: bool = False, waived: Collection[str] = ()) -> None:
        self.held: list[HeldSession] = []
        self.waived = waived
        self.access = access_to(system)
        self._stack = ExitStack()
        self.world = self._stack.enter_context(self.access.opens(files=files, workspace=workspace, bare=bare, sweep_interval=None))
        self.engine: Any = self.world.gittrix
        self.others: list[Any] = []
        self._engines = self._depth = 0
        self.judge = self._stack.enter_context(Judge(self.world.durable.path))
        self._whole = Fingerprint.of(self.world.durable.path)
        self._first = self._fingerprint()
        self._known: Fingerprint | None = self._first
        self._checked: Fingerprint | None = None
        head = self._branch_in(self._first)
        self.model = Model(head, {head: files}, None if bare else ModelCheckout(files, files), native=self.access.native)
        self._owed = {head}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every engine and the sandbox."""
        with self._stack:
            for engine in self.others:
                engine.close()

    @property
    def now(self) -> datetime:
        """The instant of the trial's clock."""
        now: datetime = self.world.clock.now()
        return now

    # Requests --------------------------------------------------------------------------------------------------------------------

    def ask(self, to: str, allowed: Answers, act: Callable[[], T]) -> tuple[str, T | None, Any]:
        """Make a request and check its answer; gives what ``answer_of`` gives."""
        return answer_of(to, act, allowed)

    def work(self, held: HeldSession, to: str, act: Callable[[], T], *, then: Callable[[ModelSession], Answers] | None = None) -> T | None:
        """Work on a session through its handle, which counts as use; gives the value.

        Args:
            held: the session.
            to: the request, for messages.
            act: makes the request.
            then: enters the request into the model, if the session is live; gives the allowed answers, ``OK`` alone by default.
        """
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
        """Sweep if it is open whether a session is past its time, or can be used in spite of it (a system may waive ``END-07``)."""
        if self.access.native:
            return
        lenient = "END-07" in self.access.waivers
        if any(one.doubtful(self.now) or (lenient and one.due(self.now)) for one in self.model.sessions.values()):
            self.sweep()

    def sweep(self) -> None:
        """Sweep, and check what was evicted."""
        raise NotImplementedError

    def elsewhere(self, action: Callable[[], object], *, dies_at: int | None = None) -> bool:
        """Run an action in another process; see ``Access.elsewhere``."""
        return self.access.elsewhere(self.world, action, dies_at=dies_at)

    def names(self) -> list[str]:
        """All paths in durable and in the workspaces, sorted: those at which two actors can collide."""
        trees = [self.model.tree, *(session.files for session in self.model.sessions.values() if session.present)]
        return sorted({path for tree in trees for path in tree})

    def live(self, held: HeldSession) -> bool:
        """Whether a session can be worked on."""
        return OK in self.model.refusal(self.model.sessions[held.id], self.now)

    @property
    def known(self) -> Fingerprint:
        """Durable's fingerprint as the last change by people or promotions left it."""
        if self._known is None:
            self._known = self._fingerprint()
        return self._known

    def _durable_changes(self, now: Fingerprint | None = None) -> None:
        self._known = now
        self._owed.add(self.model.head)
        for held in self.held:
            held.hidden |= {self.model.head} - {held.baseline}

    def _branch_in(self, found: Fingerprint) -> str:
        return found.sections["refs"].get(f"refs/heads/{self.world.durable.branch}", "nowhere")

    def _fingerprint(self) -> Fingerprint:
        """What only people and promotions may change in durable. A system that is not native may keep refs of its own there."""
        found = Fingerprint.of(self.world.durable.path)
        return found if self.access.native else _of_people(found)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        self._depth += 1
        _ = self.known  # computed before the system does anything
        with waiving(self.waived):
            try:
                yield
            finally:
                self._depth -= 1
            if self._depth == 0:
                self.check()

    def check(self) -> None:
        """Check what holds after every step: durable and the states of the sessions are those of the model."""
        now = self._fingerprint()
        head = self._branch_in(now)
        require(head == self.model.head, "Durable's branch moves by people and promotions only.", f"it is at {head}")
        if self._known is not None:
            invariant_untouched(self._known, now, by="anything but people and promotions")
        else:
            self._known = now
        if self.model.checkout is not None and self._checked is not self._known:
            invariant_checkout(self.judge, files=self.model.checkout.files)
        self._checked = self._known
        records = self.access.states(self.engine)
        states = {id_: session.state for id_, session in self.model.sessions.items()}
        if records != states:
            named = {held.id: held.name for held in self.held}
            listed, expected = ({named.get(id_, id_): state for id_, state in one.items()} for one in (records, states))
            require(False, "Every session is listed, in its state.", f"{listed}, not {expected}")

    def _check_evicted(self, held: HeldSession, *, archived: bool = True) -> None:
        if held.workspace is not None:
            directory = directory_of(self.engine, held.id)
            invariant_eviction_leaves_nothing(held.workspace, directory and directory / ".lock")
        if archived:
            self._check_archive(held, Edits({}))

    def _check_archive(self, held: HeldSession, landed: Edits) -> None:
        session = self.model.sessions[held.id]
        directory = directory_of(self.engine, held.id)
        if session.present or not self.access.can(Capability.ARCHIVE):
            return
        left = {path: new for path, new in session.touched.items() if path not in landed or landed[path] != new}
        if directory is None:
            expected = {path: stored_bytes(new) for path, new in left.items()}
            archived = held.handle.archived()
            require(
                archived == expected,
                f"What {held} did not promote can be had back.",
                *differences(expected, archived, absent="nothing", none="a deletion"),
            )
        elif left:
            with Judge(directory / "archive.git") as archive:
                invariant_work_is_archived(archive, f"refs/gittrix/archive/{held.id}", left)


def _of_people(found: Fingerprint) -> Fingerprint:
    """The parts of a repository that belong to people: HEAD, branches, tags, stash, hooks, configuration, staged entries, the work tree.

    In a trial no person makes a linked work tree, so git's entry of each is the system's own.
    """
    refs = found.sections["refs"].items()
    own = {name: id_ for name, id_ in refs if name.startswith(REFS_OF_PEOPLE)}
    staged = {name: entry for name, entry in found.sections["index"].items() if not name.endswith("(bytes)")}
    whole = ("HEAD", "hooks", "config", "work tree")
    sections = {"index": staged, **{name: found.sections[name] for name in whole if name in found.sections}}
    return Fingerprint(
        {"refs": own}
        | {
            section: {name: fact for name, fact in facts.items() if linked_work_tree(section, name) is None}
            for section, facts in sections.items()
        }
    )


def beside_promotion(found: Fingerprint, branch: str) -> Fingerprint:
    """The parts of a repository that a promotion to a branch leaves alone; index and work tree are checked by other invariants."""
    refs = {name: id_ for name, id_ in found.sections["refs"].items() if name != f"refs/heads/{branch}"}
    return Fingerprint(
        {"refs": refs, **{name: found.sections[name] for name in ("HEAD", "hooks", "config", "state") if name in found.sections}}
    )
