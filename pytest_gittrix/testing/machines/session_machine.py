"""A state machine that plays agents, people, clocks, restarts and crashes against a session system, and compares it with the model.

The machine draws steps, and its ``trial`` takes and checks them. Sessions that have ended stay in the bundle, so that rules use them too.
To run it against a system of your own; rules that need a capability the system does not declare are left out::

    TestMySystem = machine_for(MySystem()).TestCase
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final

from hypothesis import event
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, multiple, rule

from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.machines.draws import (
    BOTH,
    COMMITS,
    DEATHS,
    DISJOINT,
    FILES,
    LIVING,
    MEETINGS,
    NAMES,
    POLICIES,
    SESSION,
    WORK,
    Meeting,
    many_files,
    needs,
    one_line_more,
    playable,
)
from pytest_gittrix.testing.machines.machine_base import capped
from pytest_gittrix.testing.machines.session_rules import (
    EXTENSIONS,
    SESSIONS,
    TimeRules,
    WorkRules,
    some_live,
)
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.machines.strategies import contents
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits, Tree
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import Access, HeldSession, System, access_to
from pytest_gittrix.testing.waivers import check_waivers, waived_for_the_run
from pytest_gittrix.testing.world import World

KINDS = ("lazy", "clone", "copy")
"""The kinds of workspace that are drawn: those that promise isolation."""
RIVAL_POINTS: Final = ("head-read", "drift-checked", "intent-logged")
"""Points inside a promotion of our engine at which a rival can commit, before the branch moves: the ends of their names."""
_CODE: Final = re.compile("[A-Z]{3}-[0-9]{2}")  # of a clause


class SandboxMachine(WorkRules, TimeRules):
    """Every way of using a session system, in any order, on one small repository.

    Attributes:
        sessions: the bundle of all sessions, ended ones too.
        access: how the system under test is reached; set by ``machine_for``.
        system: the system under test; set by ``machine_for``.
        waivers: the reasons why the system need not keep an invariant, by its name in ``waivers.INVARIANTS``.
        trial: the system and its model, once the first rule has opened it.
    """

    sessions: ClassVar[Bundle[HeldSession]] = SESSIONS
    system: ClassVar[System] = staticmethod(World.open)
    access: ClassVar[Access] = access_to(World.open)
    waivers: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.trial: Trial = None  # type: ignore[assignment]  # opened by the first rule
        self._outer = sys.exc_info()[1]

    @needs(native=True)
    @initialize(target=SESSIONS, files=FILES, workspace=st.sampled_from(KINDS), bare=st.booleans(), policy=POLICIES)
    def world_opens(self, files: Tree, workspace: str, bare: bool, policy: EvictionPolicy) -> HeldSession:
        """A durable repository with some files, an engine, and a first session."""
        self.trial = Trial(self.system, files=files, workspace=workspace, bare=bare, waived=self._waived())
        return self.trial.start(policy)

    @initialize(target=SESSIONS, files=FILES, bare=st.booleans(), policy=POLICIES)
    def stage_opens(self, files: Tree, bare: bool, policy: EvictionPolicy) -> HeldSession:
        """The same for a system that is not native, which chooses the kind of its workspaces itself."""
        self.trial = Trial(self.system, files=files, bare=bare, waived=self._waived())
        return self.trial.start(policy)

    def _waived(self) -> frozenset[str]:
        """The invariants that are waived by the class, by the system, or for the run."""
        own = check_waivers(self.waivers, type(self).__name__)
        return frozenset({*own, *self.access.waivers, *waived_for_the_run()})

    # Ends ------------------------------------------------------------------------------------------------------------------------

    @rule(session=SESSION, work=WORK, again=st.sampled_from([False, False, False, True]))
    @some_live
    def promote(self, session: HeldSession, work: Edits, again: bool = False) -> None:
        """Everything that is touched is promoted, after some more work; and perhaps again, which a session that stays refuses too."""
        self.trial.edit(session, work)
        event(f"promote: {self.trial.promote(session)}")
        if again:
            event(f"promote again: {self.trial.promote(session)}")

    @rule(session=LIVING, meeting=MEETINGS, at_the_desk=st.booleans(), inside=st.sampled_from([None, "many", *RIVAL_POINTS]))
    @some_live
    def promote_over_drift(self, session: HeldSession, meeting: Meeting, at_the_desk: bool, inside: str | None = None) -> None:
        """The agent works, and durable changes at the same paths, perhaps inside many other changes, or only inside the promotion."""
        self.trial.edit(session, meeting.work)
        if inside in RIVAL_POINTS:
            event(f"promote over drift inside: {self.trial.promote_beside_a_rival(session, meeting.drift, inside)}")
            return
        if inside == "many":
            others = self.trial.model.tree.to(self.trial.model.tree.made_by(many_files(b"human\n")))
            self.trial.durable_edit(DurableEdit("disjoint", (others,)), at_the_desk=False)
        self.trial.durable_edit(meeting.drift, at_the_desk=at_the_desk)
        event(f"promote over {meeting.drift.kind}: {self.trial.promote(session)}")

    @rule(session=LIVING, meeting=MEETINGS | DISJOINT, point=st.sampled_from(RIVAL_POINTS))
    @some_live
    def promote_beside_a_rival(self, session: HeldSession, meeting: Meeting, point: str) -> None:
        """The agent works, and a rival commits at the same paths, or elsewhere, inside the promotion, before the branch moves."""
        self.trial.edit(session, meeting.work)
        event(f"promote against a rival: {self.trial.promote_beside_a_rival(session, meeting.drift, point)}")

    @rule(target=SESSIONS, session=LIVING, meeting=MEETINGS)
    @some_live
    def promote_over_another_session(self, session: HeldSession, meeting: Meeting) -> HeldSession | MultipleResults[HeldSession]:
        """Two agents work on the same paths, and the other one is promoted first; it starts now if there is only one."""
        others = [held for held in self.trial.held[::-1] if held is not session and self.trial.live(held)]
        other = others[0] if others else self.trial.start(EvictionPolicy())
        self.trial.edit(session, meeting.work)
        for edits in meeting.drift.commits:
            self.trial.edit(other, edits)
        event(f"promote the other: {self.trial.promote(other)}")
        event(f"promote over another session: {self.trial.promote(session)}")
        return multiple() if others else other

    @needs(native=True)
    @rule(session=LIVING, meeting=MEETINGS, on_overlap=st.sampled_from(["allow-identical", "merge"]))
    @some_live
    def promote_and_reconcile(self, session: HeldSession, meeting: Meeting, on_overlap: str) -> None:
        """The agent works, durable changes at the same paths, and the promotion has an ``on_overlap`` that lets some drift pass."""
        self.trial.edit(session, meeting.work)
        self.trial.durable_edit(meeting.drift, at_the_desk=False)
        event(f"promote, {on_overlap}: {self.trial.promote(session, on_overlap=on_overlap)}")

    @needs(native=True)
    @rule(session=LIVING, work=WORK, drift=st.none() | COMMITS, on_overlap=st.sampled_from(["refuse", "merge"]), most=st.integers(1, 3))
    @some_live
    def promote_and_go_on(self, session: HeldSession, work: Edits, drift: DurableEdit | None, on_overlap: str, most: int) -> None:
        """Some of the touched paths are promoted, perhaps over drift, and the session goes on."""
        self.trial.edit(session, work)
        if drift is not None:
            self.trial.durable_edit(drift, at_the_desk=False)
        touched = self.trial.model.sessions[session.id].touched.paths
        answer = self.trial.promote(session, touched[:most], on_overlap=on_overlap, keep=True)
        event(f"promote and go on, {on_overlap}: {answer}")

    @needs(native=True)
    @rule(session=LIVING, other=LIVING, both=BOTH)
    @some_live
    def sessions_overlap(self, session: HeldSession, other: HeldSession, both: tuple[Edits, Edits]) -> None:
        """Two agents work on the same paths, if two are live, and the overlaps of all sessions are looked at."""
        for held, work in zip((session, other), both, strict=True):
            self.trial.edit(held, work)
        event(f"overlaps: {self.trial.overlaps()}")

    @needs(native=True)
    @rule(session=LIVING, meeting=MEETINGS)
    @some_live
    def rebase(self, session: HeldSession, meeting: Meeting) -> None:
        """The agent works, durable changes at the same paths, and the session is rebased onto that."""
        self.trial.edit(session, meeting.work)
        self.trial.durable_edit(meeting.drift, at_the_desk=False)
        event(f"rebase over {meeting.drift.kind}: {self.trial.rebase(session)}")

    @rule(session=LIVING, work=WORK, some=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
    @some_live
    def promote_some(self, session: HeldSession, work: Edits, some: list[int]) -> None:
        """Some of the touched paths are promoted."""
        self.trial.edit(session, work)
        touched = self.trial.model.sessions[session.id].touched.paths
        answer = self.trial.promote(session, sorted({touched[index % len(touched)] for index in some}) if touched else [])
        event(f"promote some: {answer}")

    @rule(session=SESSION, work=WORK, files=st.lists(NAMES, min_size=1, max_size=2, unique=True), with_touched=st.booleans())
    @some_live
    def promote_by_name(self, session: HeldSession, work: Edits, files: list[str], with_touched: bool) -> None:
        """Paths that are perhaps untouched are promoted, alone or with a touched one."""
        self.trial.edit(session, work)
        touched = self.trial.model.sessions[session.id].touched.paths[:1] if with_touched else ()
        self.trial.promote(session, [*dict.fromkeys([*touched, *files])])

    @needs(native=True)
    @rule(session=LIVING, path=NAMES, data=contents(kinds=["file"]))
    @some_live
    def promote_a_review(self, session: HeldSession, path: str, data: bytes) -> None:
        """A review is promoted after the agent has written again."""
        self.trial.promote_a_review(session, path, data)

    @needs(Capability.HUNKS)
    @rule(session=LIVING, work=WORK, first=st.booleans())
    @some_live
    def promote_hunks(self, session: HeldSession, work: Edits, first: bool) -> None:
        """All hunks of the first text file with hunks are promoted, or its first one."""
        self.trial.edit(session, work)
        self.trial.edit(session, one_line_more(self.trial.model.sessions[session.id]))
        self.trial.promote_hunks(session, only_first=first)

    @needs(Capability.RESUME, Capability.PROCESSES)
    @rule(session=SESSION, work=WORK, dies_at=DEATHS)
    @some_live
    def promote_in_another_process(self, session: HeldSession, work: Edits, dies_at: int | None) -> None:
        """Another process promotes, and is killed at some moment, or not at all."""
        self.trial.edit(session, work)
        landed = self.trial.promote_elsewhere(session, partial(self.trial.elsewhere, dies_at=dies_at))
        event(f"promote elsewhere: {'whole' if dies_at is None else 'killed'}, {'landed' if landed else 'not landed'}")

    @needs(Capability.DISCARD)
    @rule(session=SESSION)
    def discard(self, session: HeldSession) -> None:
        """The human discards a session."""
        self.trial.discard(session)

    @rule(session=SESSION)
    def evict(self, session: HeldSession) -> None:
        """A session is evicted before its time is up."""
        self.trial.evict(session)

    @needs(Capability.EXTEND)
    @rule(session=SESSION, ttl=st.sampled_from(EXTENSIONS))
    def extend(self, session: HeldSession, ttl: timedelta) -> None:
        """The human gives a session another idle TTL."""
        self.trial.extend(session, ttl)

    def teardown(self) -> None:
        """Check everything once more, let the time of all sessions run out, and close the trial; only close it if a step has failed."""
        if self.trial is None:
            return
        with self.trial:
            if sys.exc_info()[1] is not self._outer:
                return
            self.trial.check_all()
            if self.access.can(Capability.CLOCK):
                self.trial.let_time_run_out()
            self.trial.end_all()


def machine_for(
    system: System,
    *,
    rules: Iterable[Callable[..., Any]] = (),
    settings: hypothesis_settings | None = None,
    waivers: Mapping[str, str] | None = None,
) -> type[SandboxMachine]:
    """The machine for a session system; ``.TestCase`` of the result is a test class.

    Args:
        system: a session system (``protocol.SessionSystem``); rules that need a capability it does not declare are left out. Or a function
            that opens a sandbox with the verbs of our engine, as ``World.open`` does.
        rules: more rules: functions decorated with Hypothesis' ``rule``.
        settings: of the test class; by default those that ``profiles.in_use`` gives.
        waivers: the reasons why the system need not keep an invariant, by its name in ``waivers.INVARIANTS``; the system has its own too.

    Raises:
        InvalidInput: ``system`` is neither a session system nor a function, or a waiver, also one of the system's own, is of no invariant,
            or has no reason. The system's own may be of clauses.
    """
    access = access_to(system)
    check_waivers(access.waivers, "the system", [name for name in access.waivers if _CODE.fullmatch(str(name))])
    body: dict[str, Any] = {
        "access": access,
        "system": staticmethod(access.opens),
        "waivers": check_waivers(waivers or {}, "the machine"),
    }
    rules_of = {name: one for base in SandboxMachine.__mro__ for name, one in vars(base).items()}
    body |= {name: None for name, one in rules_of.items() if not playable(one, access)}  # hides it
    body["stage_opens" if access.native else "world_opens"] = None
    body |= {one.__name__: one for one in rules}
    machine: type[SandboxMachine] = type("SandboxMachine", (SandboxMachine,), body)
    return capped(machine, settings)
