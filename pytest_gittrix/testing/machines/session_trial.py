"""A trial takes a system under test and the model of a correct one through the same steps, and compares them after each.

``session_machine`` draws the steps; a plain test can write them down. Every method does one thing to the system, and raises AssertionError
unless the system answers as a correct one does. Durable is read with git, not through the system.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_gittrix import points
from pytest_gittrix.errors import first_few
from pytest_gittrix.testing.machines.trial_base import beside_promotion, checked
from pytest_gittrix.testing.machines.work_trial import WorkTrial, merged_by_git
from pytest_gittrix.testing.oracle import (
    invariant_checkout,
    invariant_conflict_iff_overlap,
    invariant_log_has_no_gap,
    invariant_no_commit_is_lost,
    invariant_nothing_is_half_done,
    invariant_nothing_stays,
    invariant_promote_is_one_commit,
    invariant_sweep_is_exact,
    invariant_untouched,
    invariant_workspace_stands_alone,
    require,
)
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits
from pytest_gittrix.testing.repos.fingerprint import Fingerprint
from pytest_gittrix.testing.schedules.actors import Outcome
from pytest_gittrix.testing.session_model import FINE, OK, Answers, ModelSession, State, overlapping
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.testing.systems.under_test import HeldSession, another_engine, directory_of

if TYPE_CHECKING:
    pass


def _outcome_of(act: Callable[[], Any]) -> Outcome:
    """Call a function; gives what it returned or raised."""
    try:
        return Outcome(act())
    except Exception as error:  # noqa: BLE001  (a system under test may raise anything)
        return Outcome(error=error)


def _again(outcome: Outcome) -> Any:
    """Return or raise what a call did."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


class Trial(WorkTrial):
    """A system under test and its model, step by step; a context manager. ``TrialBase`` says what its arguments are."""

    # Ends ------------------------------------------------------------------------------------------------------------------------

    @checked
    def promote(
        self,
        held: HeldSession,
        files: Collection[str] | None = None,
        *,
        on_overlap: str = "refuse",
        reviewed: Edits | None = None,
        whole: bool = True,
        keep: bool = False,
        act: Callable[[], Any] | None = None,
    ) -> str:
        """Promote all that is touched, or some paths; gives the answer's code.

        Args:
            held: the session.
            files: the paths; None for all.
            on_overlap: what to do with paths that durable changed too.
            reviewed: the selection of a review, which lands whatever the workspace holds now.
            whole: whether the selected files land whole, not in parts.
            keep: whether the session goes on.
            act: promotes in another way than by ``handle.promote``.
        """
        session = self.model.sessions[held.id]
        self.settle()
        touched = session.touched if reviewed is None else reviewed
        selected = landing = touched if files is None else touched.only(path for path in files if path in touched)
        allowed = self.model.refusal(session, self.now)
        if OK in allowed:
            session.use(self.now, surely=self.access.native)
            allowed, landing = self.model.promotion(session, selected, on_overlap=on_overlap, keep=keep)
            if files is not None and not set(files) <= set(touched):
                others = () if self.access.native else allowed - {OK}
                allowed = self.model.answers("PROMOTE_FAILED", *others)
        onto = self.model.head
        more: dict[str, Any] = ({} if on_overlap == "refuse" else {"on_overlap": on_overlap}) | ({"keep": True} if keep else {})
        promote = act if act is not None else lambda: held.handle.promote(files=files, **more)
        to = f"{held}.promote({'' if files is None else sorted(files)}) {self._at(session, selected)}"
        answer, result, error = self.ask(to, allowed, promote)
        if answer == OK:
            assert result is not None
            exact = whole and (on_overlap == "refuse" or allowed == FINE)
            self._landed(session, result.sha, onto, landing, exact=exact, kept=selected if keep else None)
            if whole and not keep:
                self._check_archive(held, selected)
        elif answer == "BASELINE_CONFLICT" and on_overlap == "refuse" and not keep:
            named = error.conflicting_files if self.access.native else _as_selected(error.conflicting_files, selected)
            invariant_conflict_iff_overlap(named, selected, session.baseline, self.model.tree)
        return answer

    @checked
    def promote_beside_a_rival(self, held: HeldSession, edit: DurableEdit, point: str) -> str:
        """Promote everything, while a rival commits at a named point inside the promotion; gives the answer's code.

        The rival is first then: the promotion must take its commits for drift, and land on top of them. One that is refused may have been
        judged before the rival came or after, and is made again without a rival.

        Args:
            held: the session.
            edit: what the rival does; one that rewrites history is left out.
            point: the end of a point's name, such as ``head-read``, that the system passes before it moves the branch; in another system
                than ours the rival comes at the point ``built`` at the latest.
        """
        self.settle()
        made: list[str] = []
        ends = (f":{point}",) if self.access.native else (f":{point}", ":built")

        def slip_in(name: str) -> None:
            if name.endswith(ends) and not made and not edit.rewrite:
                made.extend(edit.make(self.world.rival))

        session = self.model.sessions[held.id]
        before = self._answers(session)
        with points.listening(slip_in):
            outcome = _outcome_of(held.handle.promote)
        if not made:
            return self.promote(held, act=partial(_again, outcome))
        self._drifted(made, replace(edit, dirty=None, staged=None), at_the_desk=False)
        if outcome.error is None:
            return self.promote(held, act=partial(_again, outcome))
        to = f"{held}.promote() {self._at(session, session.touched)}"
        self.ask(to, (before | self._answers(session)) - {OK}, partial(_again, outcome))
        return self.promote(held)

    def _at(self, session: ModelSession, selected: Edits) -> str:
        """The paths that a promotion is about, for messages: those that were selected, and those at which durable changed too."""
        met = overlapping(selected, session.baseline.to(self.model.tree))
        drifted = f", of which durable changed {first_few(map(ascii, met))}," if met else ""
        return f"of {first_few(map(ascii, selected)) or 'nothing'}{drifted}"

    def _answers(self, session: ModelSession) -> Answers:
        """The answers that a promotion of everything may give now."""
        refusal = self.model.refusal(session, self.now)
        return self.model.promotion(session, session.touched)[0] if OK in refusal else refusal

    @checked
    def promote_a_review(self, held: HeldSession, path: str, data: bytes) -> str:
        """Review everything, let the agent write one more file, and promote the review: the reviewed bytes land (rule 12,
        docs/explanation/rules.md).
        """
        review = self.work(held, "review()", held.handle.review)
        reviewed = self.model.sessions[held.id].touched
        self.write(held, path, data)
        if review is None:
            return self.promote(held)
        return self.promote(held, reviewed=reviewed, act=lambda: held.handle.promote(review))

    @checked
    def promote_hunks(self, held: HeldSession, *, only_first: bool) -> str:
        """Promote the hunks of the first text file that has any, or the first of them; gives the answer's code."""
        hunks = self.work(held, "hunks()", lambda: self.access.hunks(held.handle))
        if not hunks:
            return self.promote(held)
        path, numbers = next(iter(hunks.items()))
        chosen = {path: numbers[:1] if only_first else numbers}
        part = self.model.sessions[held.id].touched.only([path])
        whole = self.access.native and chosen[path] == numbers
        return self.promote(held, reviewed=part, whole=whole, act=lambda: held.handle.promote(hunks=chosen))

    @checked
    def rebase(self, held: HeldSession) -> str:
        """Rebase a session onto durable's head; gives the answer's code. What both sides changed becomes what ``git merge-file`` gives."""
        session = self.model.sessions[held.id]
        self.settle()
        allowed = self.model.refusal(session, self.now)
        rebased = session.files
        if OK in allowed:
            session.use(self.now, surely=True)
            allowed, rebased = self.model.rebase(session, merged_by_git)
        answer = self.ask(f"{held}.rebase()", allowed, held.handle.rebase)[0]
        if answer == OK:
            session.baseline, session.files = self.model.tree, rebased
        return answer

    @checked
    def overlaps(self) -> str:
        """Look at the overlaps of all live sessions, which must be those of the model; gives how their promotions would end."""
        found = {one.id: one for one in self.engine.overlaps(look=True)}
        live = {held.id: self.model.sessions[held.id] for held in self.held if self.live(held)}
        for id_, session in live.items():
            one, drift = found[id_], session.baseline.to(self.model.tree)
            require(sorted(one.durable) == overlapping(session.touched, drift), "Overlaps with durable are all seen.", id_, *one.durable)
            answers = self.model.promotion(session, session.touched)[0]
            foreseen = one.ends in ("merges", "conflict")
            require(foreseen == ("BASELINE_CONFLICT" in answers), "A conflict is seen if a promotion would meet it.", id_, one.ends)
            for other, theirs in live.items():
                shared = overlapping(session.touched, theirs.touched) if other != id_ else []
                require([*one.sessions.get(other, ())] == shared, "Sessions that touch the same paths are all seen.", id_, other, *shared)
        return ", ".join(sorted({found[id_].ends for id_ in live}))

    def _landed(self, session: ModelSession, sha: str, onto: str, landing: Edits, *, exact: bool, kept: Edits | None = None) -> None:
        if exact:
            invariant_promote_is_one_commit(self.judge, sha, onto=onto, selection=landing)
        else:
            # The contents of a merge are not modelled; its paths are the selected ones all the same.
            landing = self.judge.tree(onto).to(self.judge.tree(sha))
            require(set(landing) <= set(session.touched), "A promotion changes selected paths only.", *landing)
            invariant_promote_is_one_commit(self.judge, sha, onto=onto, selection=landing)
        if kept is None:
            self.model.promoted(session, sha, landing)
        else:
            self.model.kept(session, sha, kept, landing)
        now = self._fingerprint()
        branch = self.world.durable.branch
        invariant_untouched(
            beside_promotion(self.known, branch), beside_promotion(now, branch), by="a promotion, but for its branch and what follows that"
        )
        self._durable_changes(now)
        if self.model.checkout is not None:
            invariant_checkout(self.judge, staged=self.model.checkout.staged)

    @checked
    def promote_elsewhere(self, held: HeldSession, run: Callable[[Callable[[], object]], bool]) -> bool:
        """Promote everything in another process, which may be killed half-way; afterwards this engine recovers.

        Args:
            held: the session.
            run: runs an action in another process; returns whether the action came to its end.

        Returns:
            Whether the session is promoted.
        """
        self.sweep()  # the other engine sweeps as it starts: it must have nothing to do but to promote
        session = self.model.sessions[held.id]
        allowed, landing, onto = self.model.refusal(session, self.now), Edits({}), self.model.head
        if OK in allowed:
            allowed, landing = self.model.promotion(session, session.touched)
        ended = run(lambda: self._another_engine().get_session(held.id).promote())
        self._recover()
        head = self.judge.head(self.world.durable.branch)
        if head != onto:
            require(OK in allowed, f"{held} may not be promoted.", *sorted(allowed))
            self._landed(session, head, onto, landing, exact=True)
            self._check_archive(held, landing)
        elif OK in self.model.refusal(session, self.now):
            require(not ended or allowed != FINE, f"{held} ran to its end and could be promoted, but was not.")
            self.look(held)
        if head != onto or session.state == "active":
            directory = directory_of(self.engine, held.id)
            workspace = held.workspace or (directory / "workspace" if directory is not None else self.world.durable.path)
            invariant_nothing_is_half_done(self.judge, session.state, session.sha, workspace, self.world.durable.branch)
        return head != onto

    @checked
    def sweep_elsewhere(self, run: Callable[[Callable[[], object]], bool]) -> None:
        """Sweep in another process, which may be killed half-way; afterwards this engine recovers, and sweeps the rest."""
        run(lambda: self._another_engine().sweep())
        self._recover()
        self.engine.sweep()
        self._swept()

    def _recover(self) -> None:
        """Recover from a killed process, as the next engine to start does."""
        if self.access.native:
            self.engine.recover()
        else:
            self.others.append(self._another_engine())

    @checked
    def discard(self, held: HeldSession) -> None:
        """The human discards a session."""
        self._end(held, "discarded", "discard()", held.handle.discard)

    @checked
    def evict(self, held: HeldSession) -> None:
        """A session is evicted before its time is up."""
        self._end(held, "expired", "evict()", lambda: self.access.evict(self.engine, held))

    def _end(self, held: HeldSession, how: State, to: str, act: Callable[[], object]) -> None:
        """End a session. If its time is up, or if it has ended and still has its workspace, OK and a refusal are both allowed."""
        session = self.model.sessions[held.id]
        self.settle()
        allowed = self.model.refusal(session, self.now)
        before = session.state
        answer = self.ask(f"{held}.{to}", allowed | FINE if session.present or not self.access.native else allowed, act)[0]
        if answer != OK:
            return
        if how == "expired" and not self.access.native:  # the contract leaves open which state an eviction by hand ends in
            how = "discarded" if self.access.states(self.engine).get(held.id) == "discarded" else "expired"
        self.model.ended(session, how)
        self._check_evicted(held, archived=before != "promoted")

    @checked
    def extend(self, held: HeldSession, ttl: timedelta) -> None:
        """The human gives a session another idle TTL, counted from now."""

        def extended(session: ModelSession) -> Answers:
            session.idle = ttl
            session.use(self.now, surely=True)
            return FINE

        self.work(held, f"extend({ttl})", lambda: held.handle.extend(ttl), then=extended)

    @checked
    def sweep(self, engine: Any = None) -> None:
        """The engine sweeps, or another engine on the same sessions."""
        self._judge_sweep(set((engine or self.engine).sweep()))

    def let_time_run_out(self) -> None:
        """Use each session at its last instant, after a sweep there, the earliest first; then sweep when the time of all has passed."""
        limited = {held: deadline for held in self.held if (deadline := self._deadline_ahead(held)) is not None}
        for held in sorted(limited, key=lambda held: limited[held]):
            self.at_the_last_instant(held)
        if left := [deadline for held in self.held if (deadline := self._deadline_ahead(held)) is not None]:
            self.world.clock.advance_to(max(left) + timedelta(microseconds=1))
            self.sweep()

    @checked
    def at_the_last_instant(self, held: HeldSession) -> None:
        """Sweep at the last instant of a session, which must spare it, and use it then; only sweep if it has no deadline ahead."""
        if (deadline := self._deadline_ahead(held)) is not None:
            self.world.clock.advance_to(deadline)
        self.sweep()
        if self.live(held):
            self.look(held)

    @checked
    def after_the_last_instant(self, held: HeldSession) -> None:
        """Sweep at the first instant after the last one of a session, at which it cannot be promoted; now if it has no deadline ahead."""
        if (deadline := self._deadline_ahead(held)) is not None:
            self.world.clock.advance_to(deadline + timedelta(microseconds=1))
            self.settle()
            self.ask(f"{held}.promote(), past its time,", self.model.refusal(self.model.sessions[held.id], self.now), held.handle.promote)
        self.sweep()

    @checked
    def end_all(self) -> None:
        """Evict every session that still has a workspace; then nothing of the system's stays in durable."""
        for held in self.held:
            if self.model.sessions[held.id].present:
                self.evict(held)
        invariant_nothing_stays(self._whole, Fingerprint.of(self.world.durable.path))

    def _deadline_ahead(self, held: HeldSession) -> datetime | None:
        session = self.model.sessions[held.id]
        return session.deadline if session.present and session.deadline is not None and session.deadline >= self.now else None

    def _judge_sweep(self, evicted: set[str]) -> None:
        if not self.access.native:  # the contract leaves open whether a sweep names a promoted session whose workspace it removes
            evicted = evicted | {id_ for id_ in self.model.due(self.now) if self.model.sessions[id_].state == "promoted"}
        for id_, session in self.model.sessions.items():
            if session.doubtful(self.now):
                session.settled(self.now, kept=id_ not in evicted)
        before = {id_: session for id_, session in self.model.sessions.items() if session.present}
        deadlines = {id_: session.deadline for id_, session in before.items()}
        invariant_sweep_is_exact(evicted, self.now, before, deadlines)
        self._swept()

    def _swept(self) -> None:
        for id_ in self.model.due(self.now):
            session = self.model.sessions[id_]
            was_promoted = session.state == "promoted"
            self.model.ended(session, "expired")
            self._check_evicted(next(held for held in self.held if held.id == id_), archived=not was_promoted)

    @checked
    def restart(self, *, closed: bool) -> None:
        """A new engine takes over. The one before is closed, or stays open as another process would."""
        if closed:
            self.engine.close()
        else:
            self.others.append(self.engine)
        new = self.engine = self._another_engine()
        self._stack.callback(new.close)
        if self.access.native:
            self._swept()
        else:
            swept_at_the_start = self._ended_unseen(new.states())
            self._judge_sweep(swept_at_the_start | set(new.sweep()))
        for held in self.held:
            if self.model.sessions[held.id].state == "active":
                held.handle = new.get_session(held.id)

    def _ended_unseen(self, states: Mapping[str, str]) -> set[str]:
        """The sessions that a system evicted as it started, as its states show; of a promoted one only its workspace shows that."""
        present = {id_: session for id_, session in self.model.sessions.items() if session.present}
        return {
            id_
            for id_, session in present.items()
            if states.get(id_) == "expired" or (session.state == "promoted" and session.due(self.now))
        }

    def _another_engine(self) -> Any:
        self._engines += 1
        return another_engine(self.world, self._engines)

    # Checks ----------------------------------------------------------------------------------------------------------------------

    @checked
    def check_all(self) -> None:
        """Check everything, also what is slow to check; for the end of a trial."""
        if self.known != self._first:  # these calls of git take as long as all other checks together
            invariant_no_commit_is_lost(self.judge, self.model.head, self._owed)
            require(self.judge.tree(self.model.head) == self.model.tree, "The branch holds what was put there.")
        if self.known != self._first and self.model.checkout is not None:
            invariant_checkout(self.judge, staged=self.model.checkout.staged)
        for held in self.held:
            session = self.model.sessions[held.id]
            self.look(held)
            if held.workspace is not None and session.present:
                invariant_workspace_stands_alone(held.workspace, self.judge, held.hidden)
            directory = directory_of(self.engine, held.id)
            if directory is not None:
                invariant_log_has_no_gap(directory / "events.jsonl")
            elif self.access.can(Capability.EVENTS):
                numbers = [one["seq"] for one in held.handle.events()]
                whole = numbers == [*range(len(numbers))]
                require(whole, "Events are numbered without a gap.", f"found {numbers}", name="events-without-gap")


def _as_selected(named: Collection[str], selected: Collection[str]) -> set[str]:
    """Conflicting paths as selected ones: a system may name durable's path, which can lie above or below a selected one."""
    return {path for name in named for path in ([name] if name in selected else overlapping(selected, [name]) or [name])}
