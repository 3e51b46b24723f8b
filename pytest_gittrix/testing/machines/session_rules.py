"""The rules of the session machine for agents, people, the clock and engines. ``session_machine`` adds promotions and ends to them.

A rule that needs a capability which the system does not declare is left out.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import ClassVar, Final

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.draws import (
    ABSOLUTE,
    AGENT_GIT,
    COMMITS,
    HIDE,
    KNOWN,
    LIMITED,
    LIVING,
    LYING,
    NAMES,
    POLICIES,
    SESSION,
    SHOW,
    SOME_WORK,
    TIMES,
    drawn_by,
    large_file,
    limited,
    living,
    many_files,
    needs,
)
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.machines.strategies import contents
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits
from pytest_gittrix.testing.repos.history import Content, retyped
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import Access, HeldSession

SESSIONS: Final[Bundle[HeldSession]] = Bundle("sessions")
"""All sessions, ended ones too."""
EXTENSIONS: Final = (timedelta(hours=1), timedelta(milliseconds=1), timedelta(days=400))
_MOST_ALIVE: Final = 3
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9/]+")
"""A path that an ignore rule can name as it is."""

some_live = precondition(lambda self: bool(living(self)))
"""For rules that do little with a session that has ended: while no session is live, other rules are drawn, such as ``start``."""
room_for_one = precondition(lambda self: len(living(self)) < _MOST_ALIVE)
"""For rules that start a session."""


class WorkRules(RuleBasedStateMachine):
    """What agents and people do.

    Attributes:
        access: how the system under test is reached; set by ``machine_for``.
        trial: the system and its model, once the first rule has opened it.
    """

    access: ClassVar[Access]
    trial: Trial

    @rule(target=SESSIONS, policy=POLICIES)
    @room_for_one
    def start(self, policy: EvictionPolicy) -> HeldSession:
        """A session starts."""
        return self.trial.start(policy)

    # The agent -------------------------------------------------------------------------------------------------------------------

    @rule(session=SESSION, path=NAMES, data=contents(kinds=["file"]))
    @some_live
    def agent_writes(self, session: HeldSession, path: str, data: bytes) -> None:
        """The agent writes a file through the session."""
        self.trial.write(session, path, data)

    @needs(Capability.DELETE)
    @rule(session=SESSION, path=NAMES)
    @some_live
    def agent_deletes(self, session: HeldSession, path: str) -> None:
        """The agent deletes a file through the session."""
        self.trial.delete(session, path)

    @needs(Capability.COMMITS)
    @rule(session=LIVING)
    @some_live
    def agent_commits(self, session: HeldSession) -> None:
        """The agent commits through the session."""
        self.trial.commit(session)

    @rule(session=SESSION)
    @some_live
    def agent_looks(self, session: HeldSession) -> None:
        """The agent reads everything in its workspace."""
        self.trial.look(session)

    @needs(Capability.SHELL)
    @rule(session=LIVING, path=NAMES, content=contents())
    @some_live
    def agents_program_writes(self, session: HeldSession, path: str, content: Content) -> None:
        """A program writes a file, an executable or a link in the workspace."""
        files = self.trial.model.sessions[session.id].files
        self.trial.shell(session, files.placing(path, content))

    @needs(Capability.SHELL)
    @rule(session=LIVING, old=KNOWN, new=NAMES)
    @some_live
    def agents_program_renames(self, session: HeldSession, old: str, new: str) -> None:
        """A program renames a file in the workspace."""
        files = self.trial.model.sessions[session.id].files
        if old in files:
            rest = files.apply({old: None})
            self.trial.shell(session, files.to(rest.apply(rest.placing(new, files[old]))))

    @rule(session=LIVING, large=st.booleans())
    @some_live
    def agent_writes_much(self, session: HeldSession, large: bool) -> None:
        """The agent writes one large file, or more files than a list made for people shows."""
        self.trial.edit(session, Edits(large_file() if large else many_files(b"agent\n")))

    @needs(Capability.SHELL)
    @rule(session=LIVING, path=KNOWN)
    @some_live
    def agents_program_flips_the_mode(self, session: HeldSession, path: str) -> None:
        """A program makes a file executable, or no longer executable; a link becomes a file of the same bytes."""
        content = self.trial.model.sessions[session.id].files.get(path)
        if content is not None:
            self.trial.shell(session, Edits({path: retyped(content)[0]}))

    @needs(Capability.SHELL)
    @rule(session=LIVING, what=st.sampled_from(sorted(AGENT_GIT)))
    @some_live
    def agent_runs_git(self, session: HeldSession, what: str) -> None:
        """The agent runs git in its own repository; no file changes, so the touched paths stay the same."""
        self.trial.run(session, AGENT_GIT[what])

    @needs(Capability.SHELL)
    @rule(session=LIVING)
    @some_live
    def agent_ignores_everything(self, session: HeldSession) -> None:
        """The agent ignores all files, and shows them again; what is touched is the same in between."""
        self.trial.run(session, HIDE)
        self.trial.look(session)
        self.trial.run(session, SHOW)

    @rule(session=LIVING, data=contents(kinds=["file"]), then_promote=st.booleans())
    @some_live
    def agent_ignores_what_it_edits(self, session: HeldSession, data: bytes, then_promote: bool) -> None:
        """The agent edits a file of the baseline that an ignore rule of its own names, which is touched all the same."""
        modelled = self.trial.model.sessions[session.id]
        path = next((one for one in modelled.files if one in modelled.baseline and PLAIN_NAME.fullmatch(one)), None)
        if path is None:
            return
        self.trial.edit(session, Edits({".gitignore": f"/{path}\n".encode(), path: data}))
        self.trial.look(session)
        if then_promote and path in modelled.touched:
            event(f"promote what is ignored: {self.trial.promote(session, [path])}")
        self.trial.edit(session, Edits({".gitignore": None}))

    # People ----------------------------------------------------------------------------------------------------------------------

    @rule(edit=COMMITS, at_the_desk=st.booleans())
    def durable_changes(self, edit: DurableEdit, at_the_desk: bool) -> None:
        """The human in durable's checkout (``at_the_desk``), or a rival in a clone, changes durable."""
        event(f"durable: {edit.kind}")
        self.trial.durable_edit(edit, at_the_desk=at_the_desk)

    @rule(edit=LYING)
    @precondition(lambda self: self.trial.model.checkout is not None)
    def human_leaves_work_lying(self, edit: DurableEdit) -> None:
        """The human changes files in durable's work tree, or stages them, and does not commit."""
        event(f"durable: {edit.kind}")
        self.trial.durable_edit(edit, at_the_desk=True)

    @rule(back=st.integers(1, 3), at_the_desk=st.booleans())
    @precondition(lambda self: len(self.trial.model.trees) > 1)
    def durable_is_rewound(self, back: int, at_the_desk: bool) -> None:
        """Durable's branch moves back by some commits, at most to the first one."""
        self.trial.rewind(back, at_the_desk=at_the_desk)


class TimeRules(RuleBasedStateMachine):
    """What the clock and engines do; its attributes are those of ``WorkRules``."""

    access: ClassVar[Access]
    trial: Trial

    @needs(Capability.CLOCK)
    @rule(by=TIMES, then_sweep=st.sampled_from([True, False]))
    def time_passes(self, by: timedelta, then_sweep: bool = False) -> None:
        """The clock advances to an instant around a deadline, or by a little; then a sweep may come."""
        self.trial.world.clock.advance(by)
        if then_sweep:
            self.trial.sweep()

    @needs(Capability.CLOCK)
    @rule(session=LIMITED, work=SOME_WORK, late=st.booleans())
    @precondition(lambda self: bool(limited(self)))
    def sweep_at_a_deadline(self, session: HeldSession, work: Edits, late: bool) -> None:
        """A sweep at the last instant of a session, and a use of it then, or a sweep at the first instant after it.

        Before that the agent works half-way to it.
        """
        modelled = self.trial.model.sessions[session.id]
        if work and modelled.deadline is not None:
            self.trial.world.clock.advance((modelled.deadline - self.trial.now) / 2)
            self.trial.edit(session, work)
        if not late:
            self.trial.at_the_last_instant(session)
            return
        self.trial.after_the_last_instant(session)

    @needs(Capability.CLOCK, Capability.SHELL)
    @rule(target=SESSIONS, path=NAMES, content=contents())
    @room_for_one
    def a_program_keeps_a_session_alive(self, path: str, content: Content) -> HeldSession:
        """A session starts, a program writes a file half-way to its deadline, and a sweep comes when that deadline has passed."""
        held = self.trial.start(EvictionPolicy())
        modelled = self.trial.model.sessions[held.id]
        if (deadline := modelled.deadline) is not None:
            self.trial.world.clock.advance((deadline - self.trial.now) / 2)
            self.trial.shell(held, modelled.files.placing(path, content))
            self.trial.world.clock.advance_to(deadline + timedelta(microseconds=1))
        self.trial.sweep()
        return held

    @needs(Capability.CLOCK, Capability.EXTEND, Capability.ABSOLUTE)
    @rule(target=SESSIONS, policy=ABSOLUTE, ttl=st.sampled_from(EXTENSIONS))
    @room_for_one
    def an_extension_leaves_the_absolute_time(self, policy: EvictionPolicy, ttl: timedelta) -> HeldSession:
        """A session with an absolute time starts, is extended half-way to its end, and meets a sweep at its last instant, and after it."""
        held = self.trial.start(policy)
        modelled = self.trial.model.sessions[held.id]
        if (deadline := modelled.deadline) is not None:
            self.trial.world.clock.advance((deadline - self.trial.now) / 2)
            self.trial.extend(held, ttl)
        self.trial.at_the_last_instant(held)
        self.trial.after_the_last_instant(held)
        return held

    @rule(by_another=st.booleans())
    def sweep(self, by_another: bool) -> None:
        """The engine sweeps, or another one on the same sessions."""
        self.trial.sweep(self.trial.others[0] if by_another and self.trial.others else None)

    @needs(Capability.CLOCK, Capability.RESUME, Capability.PROCESSES, Capability.CRASH)
    @rule(dies_at=st.integers(1, 6))
    @precondition(lambda self: self.trial.model.due(self.trial.now))
    def sweep_is_killed(self, dies_at: int) -> None:
        """Another process sweeps, and is killed at some moment."""
        self.trial.sweep_elsewhere(partial(self.trial.elsewhere, dies_at=dies_at))

    @needs(Capability.RESUME)
    @rule(closed=drawn_by(lambda machine: st.booleans() if machine.access.can(Capability.PROCESSES) else st.just(True)))
    def engine_restarts(self, closed: bool) -> None:
        """A new engine takes over; the old one is closed, or stays open."""
        self.trial.restart(closed=closed)
