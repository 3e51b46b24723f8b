"""A state machine that plays agents, people, clocks, restarts and crashes against a session system, and compares it with the model.

It draws; ``trial`` does and judges. Sessions that have ended stay in its bundle, so that dead names are used too. To run it against a
system of your own::

    TestMySystem = machine_for(my_system).TestCase

Must know no pytest.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from hypothesis import event
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import SearchStrategy

from pytest_gittrix import points
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.harness.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Tree
from pytest_gittrix.harness.history import Content, Executable
from pytest_gittrix.harness.sandbox import Held, System
from pytest_gittrix.harness.strategies import contents, edits, eviction_policies, instants_around, paths, trees
from pytest_gittrix.harness.strategies_durable import durable_edits
from pytest_gittrix.harness.trial import Trial
from pytest_gittrix.harness.world import World

KINDS = ("lazy", "clone", "copy")
"""The kinds of workspace that are drawn: those that promise isolation."""

_LEFT_LYING: tuple[DurableKind, ...] = ("dirty", "staged")
_MOST_ALIVE = 3
_MEETING_POINTS = ("a", "lib/b")

# What an agent may do with its own git without changing a file: none of it may change what was touched (DESIGN rule 3). No ``checkout``:
# without an index it brings files back.
_AGENT_GIT: dict[str, str] = {
    "commit": "git add -A && git -c commit.gpgsign=false commit -qm own",
    "stage": "git add -A",
    "unstage": "git rm -rq --cached --ignore-unmatch .",
    "overlook": "git ls-files -z | git update-index -z --assume-unchanged --stdin",
    "ignore": "echo '*' > .git/info/exclude || { mkdir -p .git/info && echo '*' > .git/info/exclude; }",
    "another branch": "git symbolic-ref HEAD refs/heads/own",
    "detach": "git update-ref --no-deref HEAD $(git rev-parse HEAD)",
    "misconfigure": "git config core.fileMode false && git config core.ignoreCase true && git config core.excludesFile /dev/null",
    "forget the index": "rm -f .git/index",
}


def _drawn_by(strategy: Callable[[SandboxMachine], SearchStrategy[Any]]) -> SearchStrategy[Any]:
    """A strategy that depends on how far the machine has come, so that what it draws is possible, and printed as a value."""
    return st.runner().flatmap(strategy)


def _names(machine: SandboxMachine) -> SearchStrategy[str]:
    known = machine.trial.names()
    return st.sampled_from(known) | paths(near=_MEETING_POINTS) if known else paths(near=_MEETING_POINTS)


def _touched(machine: SandboxMachine) -> Edits:
    """What any live session has touched: what people are to meet."""
    sessions = (session for session in machine.trial.model.sessions.values() if session.state == "active")
    return Edits({path: content for session in sessions for path, content in session.touched.items()})


def _commits(machine: SandboxMachine) -> SearchStrategy[DurableEdit]:
    kinds = [kind for kind in DURABLE_KINDS if kind not in _LEFT_LYING]
    return durable_edits(machine.trial.model.tree, touched=_touched(machine), kinds=kinds)


def _lying(machine: SandboxMachine) -> SearchStrategy[DurableEdit]:
    checkout = machine.trial.model.checkout
    return durable_edits(checkout.files if checkout is not None else {}, touched=_touched(machine), kinds=_LEFT_LYING)


def _times(machine: SandboxMachine) -> SearchStrategy[timedelta]:
    now, sessions = machine.trial.now, machine.trial.model.sessions.values()
    deadlines = sorted({session.deadline for session in sessions if session.present and session.deadline is not None})
    seconds = st.sampled_from([timedelta(microseconds=1), timedelta(seconds=1), timedelta(hours=1)])
    return st.one_of(*(instants_around(deadline, not_before=now).map(lambda when: when - now) for deadline in deadlines), seconds)


@dataclass(frozen=True)
class Meeting:
    """What an agent does, and what somebody does to durable meanwhile that is aimed at it."""

    work: Edits
    drift: DurableEdit


def _meetings(machine: SandboxMachine) -> SearchStrategy[Meeting]:
    tree = machine.trial.model.tree
    kinds = [kind for kind in DURABLE_KINDS if kind not in _LEFT_LYING]

    def aimed(work: Edits) -> SearchStrategy[Meeting]:
        return st.builds(Meeting, st.just(work), durable_edits(tree, touched=work, kinds=kinds))

    return edits(tree, min_size=1).flatmap(aimed)


NAMES = _drawn_by(_names)
WORK = _drawn_by(lambda machine: edits(machine.trial.model.tree))


class SandboxMachine(RuleBasedStateMachine):
    """Every way of using a session system that the design speaks of, in any order, on one small repository.

    Attributes:
        sessions: the bundle of sessions that were started, ended ones too.
        system: opens the sandbox under test; set by ``machine_for``.
        trial: the system beside its model, once it is open.
    """

    sessions: ClassVar[Bundle[Held]] = Bundle("sessions")
    system: ClassVar[System] = staticmethod(partial(World.open))

    def __init__(self) -> None:
        super().__init__()
        self.trial: Trial = None  # type: ignore[assignment]  # opened by the first rule
        self._outer = sys.exc_info()[1]

    @initialize(
        target=sessions,
        files=trees(near=_MEETING_POINTS, min_files=1),
        workspace=st.sampled_from(KINDS),
        bare=st.booleans(),
        policy=eviction_policies(),
    )
    def world_opens(self, files: Tree, workspace: str, bare: bool, policy: Any) -> Held:
        """A durable repository with some files, an engine, and a first session."""
        self.trial = Trial(self.system, files=files, workspace=workspace, bare=bare)
        return self.trial.start(policy)

    @rule(target=sessions, policy=eviction_policies())
    @precondition(lambda self: sum(self.trial.live(held) for held in self.trial.held) < _MOST_ALIVE)
    def start(self, policy: Any) -> Held:
        """A session starts."""
        return self.trial.start(policy)

    # The agent -------------------------------------------------------------------------------------------------------------------

    @rule(session=sessions, path=NAMES, data=contents(kinds=["file"]))
    def agent_writes(self, session: Held, path: str, data: bytes) -> None:
        """Through the session."""
        self.trial.write(session, path, data)

    @rule(session=sessions, path=NAMES)
    def agent_deletes(self, session: Held, path: str) -> None:
        """Through the session."""
        self.trial.delete(session, path)

    @rule(session=sessions)
    def agent_commits(self, session: Held) -> None:
        """Through the session."""
        self.trial.commit(session)

    @rule(session=sessions)
    def agent_looks(self, session: Held) -> None:
        """At everything it has."""
        self.trial.look(session)

    @rule(session=sessions, path=NAMES, content=contents())
    def agents_program_writes(self, session: Held, path: str, content: Content) -> None:
        """A file, an executable or a link, without the session."""
        files = self.trial.model.sessions[session.id].files
        self.trial.shell(session, files.placing(path, content))

    @rule(session=sessions, old=NAMES, new=NAMES)
    def agents_program_renames(self, session: Held, old: str, new: str) -> None:
        """A file, without the session."""
        files = self.trial.model.sessions[session.id].files
        if old in files:
            rest = files.apply({old: None})
            self.trial.shell(session, files.to(rest.apply(rest.placing(new, files[old]))))

    @rule(session=sessions, path=NAMES)
    def agents_program_flips_the_mode(self, session: Held, path: str) -> None:
        """Of a file that is there, without the session."""
        content = self.trial.model.sessions[session.id].files.get(path)
        if isinstance(content, bytes):
            self.trial.shell(session, Edits({path: Executable(content)}))
        elif isinstance(content, Executable):
            self.trial.shell(session, Edits({path: content.data}))

    @rule(session=sessions, what=st.sampled_from(sorted(_AGENT_GIT)))
    def agent_runs_git(self, session: Held, what: str) -> None:
        """In its own repository; that changes no file, so nothing of it counts."""
        self.trial.run(session, _AGENT_GIT[what])

    # People ----------------------------------------------------------------------------------------------------------------------

    @rule(edit=_drawn_by(_commits), at_the_desk=st.booleans())
    def durable_changes(self, edit: DurableEdit, at_the_desk: bool) -> None:
        """The human (at the desk) or somebody else commits, renames, rewrites."""
        event(f"durable: {edit.kind}")
        self.trial.durable_edit(edit, at_the_desk=at_the_desk)

    @rule(edit=_drawn_by(_lying))
    @precondition(lambda self: self.trial.model.checkout is not None)
    def human_leaves_work_lying(self, edit: DurableEdit) -> None:
        """In the work tree, or staged."""
        event(f"durable: {edit.kind}")
        self.trial.durable_edit(edit, at_the_desk=True)

    @rule(back=st.integers(1, 3), at_the_desk=st.booleans())
    @precondition(lambda self: len(self.trial.model.trees) > 1)
    def durable_is_rewound(self, back: int, at_the_desk: bool) -> None:
        """By some commits, as far as there are any."""
        self.trial.rewind(back, at_the_desk=at_the_desk)

    # Ends ------------------------------------------------------------------------------------------------------------------------

    @rule(session=sessions, work=WORK)
    def promote(self, session: Held, work: Edits) -> None:
        """Everything that is touched, after some more work."""
        self.trial.edit(session, work)
        event(f"promote: {self.trial.promote(session)}")

    @rule(session=sessions, meeting=_drawn_by(_meetings), at_the_desk=st.booleans())
    def promote_over_drift(self, session: Held, meeting: Meeting, at_the_desk: bool) -> None:
        """Work, while durable changes where the work is, and a promotion that must see it."""
        self.trial.edit(session, meeting.work)
        self.trial.durable_edit(meeting.drift, at_the_desk=at_the_desk)
        event(f"promote over {meeting.drift.kind}: {self.trial.promote(session)}")

    @rule(session=sessions, meeting=_drawn_by(_meetings), on_overlap=st.sampled_from(["allow-identical", "merge"]))
    def promote_and_reconcile(self, session: Held, meeting: Meeting, on_overlap: str) -> None:
        """The same, where some drift may pass."""
        self.trial.edit(session, meeting.work)
        self.trial.durable_edit(meeting.drift, at_the_desk=False)
        event(f"promote, {on_overlap}: {self.trial.promote(session, on_overlap=on_overlap)}")

    @rule(session=sessions, work=WORK, some=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
    def promote_some(self, session: Held, work: Edits, some: list[int]) -> None:
        """Some of the touched paths, by their places in order."""
        self.trial.edit(session, work)
        touched = self.trial.model.sessions[session.id].touched.paths
        answer = self.trial.promote(session, sorted({touched[place % len(touched)] for place in some}) if touched else [])
        event(f"promote some: {answer}")

    @rule(session=sessions, files=st.lists(NAMES, min_size=1, max_size=2, unique=True))
    def promote_by_name(self, session: Held, files: list[str]) -> None:
        """Paths that may not have been touched."""
        self.trial.promote(session, files)

    @rule(session=sessions, path=NAMES, data=contents(kinds=["file"]))
    def promote_a_review(self, session: Held, path: str, data: bytes) -> None:
        """A review, while the agent writes on."""
        self.trial.promote_a_review(session, path, data)

    @rule(session=sessions, work=WORK, first=st.booleans())
    def promote_hunks(self, session: Held, work: Edits, first: bool) -> None:
        """All hunks of the first text file that has any, or its first one."""
        self.trial.edit(session, work)
        self.trial.promote_hunks(session, only_first=first)

    @rule(session=sessions, work=WORK, dies_at=st.none() | st.integers(1, 16))
    def promote_in_another_process(self, session: Held, work: Edits, dies_at: int | None) -> None:
        """Which is killed at some step, or not at all."""
        self.trial.edit(session, work)
        landed = self.trial.promote_elsewhere(session, partial(in_another_process, dies_at=dies_at))
        event(f"promote elsewhere: {'whole' if dies_at is None else 'killed'}, {'landed' if landed else 'not landed'}")

    @rule(session=sessions)
    def discard(self, session: Held) -> None:
        """The human gives it up."""
        self.trial.discard(session)

    @rule(session=sessions, ttl=st.sampled_from([timedelta(hours=1), timedelta(milliseconds=1), timedelta(days=400)]))
    def extend(self, session: Held, ttl: timedelta) -> None:
        """The human gives it another idle TTL."""
        self.trial.extend(session, ttl)

    # Time and engines --------------------------------------------------------------------------------------------------------------

    @rule(by=_drawn_by(_times))
    def time_passes(self, by: timedelta) -> None:
        """To one of the instants around a deadline, or just a little."""
        self.trial.world.clock.advance(by)

    @rule(session=sessions, late=st.booleans())
    def sweep_at_a_deadline(self, session: Held, late: bool) -> None:
        """At the last instant of a session, or at the first one after it."""
        deadline = self.trial.model.sessions[session.id].deadline
        if deadline is not None and deadline >= self.trial.now:
            self.trial.world.clock.advance_to(deadline + timedelta(microseconds=late))
        self.trial.sweep()

    @rule(by_another=st.booleans())
    def sweep(self, by_another: bool) -> None:
        """By the engine, or by another that works on the same sessions."""
        self.trial.sweep(self.trial.others[0] if by_another and self.trial.others else None)

    @rule(dies_at=st.integers(1, 6))
    @precondition(lambda self: self.trial.model.due(self.trial.now))
    def sweep_is_killed(self, dies_at: int) -> None:
        """In another process, at some step."""
        self.trial.sweep_elsewhere(partial(in_another_process, dies_at=dies_at))

    @rule(closed=st.booleans())
    def engine_restarts(self, closed: bool) -> None:
        """After it was closed; or it was not, and there are two."""
        self.trial.restart(closed=closed)

    def teardown(self) -> None:
        """Look at everything once more, unless a step has failed already, and clear up."""
        if self.trial is None:
            return
        with self.trial:
            if sys.exc_info()[1] is self._outer:
                self.trial.check_all()


def machine_for(
    system: System, *, rules: Iterable[Callable[..., Any]] = (), settings: hypothesis_settings | None = None
) -> type[SandboxMachine]:
    """The machine for a session system; ``.TestCase`` of the result is a test class.

    Args:
        system: opens a sandbox, see ``sandbox.System``: ``World.open`` does, and so does the fixture ``gittrix_system``.
        rules: functions with Hypothesis' ``rule``, to be rules of the machine too.
        settings: of the test class; the profile in use, without a deadline, by default.
    """
    body: dict[str, Any] = {one.__name__: one for one in rules}
    machine: type[SandboxMachine] = type("SandboxMachine", (SandboxMachine,), {**body, "system": staticmethod(system)})
    machine.TestCase.settings = settings if settings is not None else hypothesis_settings(deadline=None)
    return machine


def in_another_process(action: Callable[[], object], *, dies_at: int | None = None) -> bool:
    """Run an action in a forked process; whether it came to its end. An error of the engine is an end, too.

    Args:
        action: what to run.
        dies_at: the process is killed at the point of this number that it passes, from 1; None lets it live.

    Raises:
        AssertionError: it failed with what is no error of the engine.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forks beside other threads; the child uses none
        pid = os.fork()
    if pid == 0:
        _live_and_die(action, dies_at, writing)
    os.close(writing)
    with open(reading, "rb") as said:
        trace = said.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise AssertionError(f"An operation in another process failed with what is no error of the system.\n{trace}")
    return status == 0


def _live_and_die(action: Callable[[], object], dies_at: int | None, writing: int) -> None:
    passed: list[str] = []

    def listen(name: str) -> None:
        passed.append(name)
        if len(passed) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    status = 1
    try:
        with points.listening(listen), suppress(GittrixError):
            action()
        status = 0
    except BaseException:  # noqa: BLE001  (nothing may get back into the parent's test run)
        os.write(writing, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


def steps_of(error: BaseException) -> Sequence[str]:
    """The steps of the shrunk example that a failure of a machine carries, as Hypothesis prints them, opening and teardown left out."""
    notes = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
    return [line for line in notes if "state." in line and "state.teardown" not in line and "state.world_opens" not in line]
