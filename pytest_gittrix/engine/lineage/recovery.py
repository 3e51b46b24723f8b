"""Recovery after a kill: every interrupted operation is finished or undone (rule 9, docs/explanation/rules.md).

A logged intent without an end is rolled forward if its commit is in, and back if it is not; an eviction that stopped half-way goes on; a
start that never finished is ended. Recovery takes each session's lease without waiting, so it never touches a session with a running
operation. A second run does nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.archiver import was_postponed
from pytest_gittrix.engine.eviction.evictor import Evictor
from pytest_gittrix.engine.lineage.handoff import Handoff, Succession
from pytest_gittrix.engine.lineage.member_recovery import mend_life
from pytest_gittrix.engine.operations.attachments import RESOURCES
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.promotion.landing import record_checkouts, record_done
from pytest_gittrix.engine.promotion.pull_requests import Proposal, PullRequests
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, SessionNotFound
from pytest_gittrix.os_level.files import names_in, remove_left
from pytest_gittrix.os_level.monotonic import TimeLimit
from pytest_gittrix.record.state.fold import Intent, SessionState
from pytest_gittrix.record.store.listing import ID, LOG, is_temporary
from pytest_gittrix.record.store.store import LOCK, Problem
from pytest_gittrix.workspaces.kinds import KINDS
from pytest_gittrix.workspaces.spares import CLAIMED

_STILLBORN: Final = (LOCK, LOG)
_SPARE: Final = f"workspace{CLAIMED}"


@dataclass
class RecoveryReport:
    """The result of a recovery.

    Attributes:
        rolled_forward: sessions whose promotion had landed and is now recorded; they are active if it was to keep them.
        rolled_back: sessions whose promotion had not landed, which are active again.
        removed: sessions whose workspace was still to be removed, or whose start never finished.
        postponed: ended sessions whose work takes longer to archive than one session may take; the next sweep goes on with them.
        in_use: ended sessions whose workspaces stay because processes work there; a sweep removes them after those have ended.
        problems: records that could not be read or mended, each with the reason; they were left as they are.
    """

    rolled_forward: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    postponed: list[str] = field(default_factory=list)
    in_use: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class Recovery:
    """One recovery of one store.

    Attributes:
        resources: of the engine.
        evictor: finishes interrupted evictions.
        pull_requests: opens the pull requests of killed promotions.
        report: the result, filled by ``run``.
    """

    resources: Resources
    evictor: Evictor
    pull_requests: PullRequests = field(default_factory=PullRequests)
    report: RecoveryReport = field(default_factory=RecoveryReport)

    def run(self, unsettled: list[str]) -> RecoveryReport:
        """Mend the sessions given, and directories that never became a session."""
        for id_ in unsettled:
            try:
                self._mend(id_)
            except (EvictionRace, SessionNotFound):
                continue  # another operation runs on it, or its start failed meanwhile and removed it
            except Exception as problem:  # noqa: BLE001  (one odd record must not stop the others from being mended)
                self.report.problems.append(Problem(id_, str(problem)))
        self._orphans()
        self.resources.trash.empty_soon()
        return self.report

    def resume(self, id_: str) -> bool:
        """Continue an interrupted or postponed eviction; returns whether it is done now.

        Raises:
            EvictionRace: another operation on the session runs.
            GittrixError: see ``Evictor.evict``.
        """
        recorder = self.resources.recorder(id_)
        with recorder.leased(wait=0) as state:
            if state.ended and state.workspace_present:
                self._finish(recorder, state)
        return id_ in self.report.removed

    def _mend(self, id_: str) -> None:
        recorder = self.resources.recorder(id_)
        self._mend_parent(recorder.read())
        with recorder.leased(wait=0) as state:
            points.reached("recover:leased")
            if state.life is not None:
                if mend_life(recorder, state, self.resources.trash):
                    self.report.removed.append(id_)
                return
            if state.handoff is not None:
                state = Handoff(self.resources, recorder).finish(state.handoff)
            if state.intent is not None:
                state = self._settle(recorder, state, state.intent)
            if state.ended and state.workspace_present and was_postponed(recorder):
                self.report.postponed.append(id_)  # a sweep goes on with it, after all others
            elif state.ended and state.workspace_present:
                self._finish(recorder, state)
            elif not state.ended and not state.workspace_present:
                if state.lineage is not None and state.lineage.relation == "crash":
                    Succession(self.resources.recorder(state.lineage.parent)).undo(id_)
                self._withdraw(recorder, state)
                # First of all, so that a kill in between leaves a session that the next recovery looks at.
                made = [str(recorder.directory / name) for name in (_SPARE, "engine")]
                for path in [*made, state.workspace] if state.workspace is not None else made:
                    self.resources.trash.discard(path)
                state = recorder.append("session.ended", {"state": "discarded", "reason": "its start never finished"}, commit_point=True)
                self.evictor.evict(recorder, state, "discarded")
                self.report.removed.append(id_)
            recorder.derive()

    def _withdraw(self, recorder: Recorder, state: SessionState) -> None:
        """Remove the workspace of an unfinished start where only its adapter can."""
        if state.workspace_kind in KINDS or not (recorder.directory / "engine" / "workspace.json").exists():
            return
        try:
            workspace = self.resources.open_workspace(state)
        except AdapterUnavailable:
            return  # it was killed before its adapter noted where that is
        workspace.remove(self.resources.trash)

    def _mend_parent(self, state: SessionState) -> None:
        """Finish the handoff of the parent first, if this session waits for the parent's workspace."""
        if state.ended or state.workspace_present or state.lineage is None or state.lineage.relation != "handoff":
            return
        with suppress(SessionNotFound):
            if self.resources.recorder(state.lineage.parent).read().handoff == state.id:
                self._mend(state.lineage.parent)

    def _settle(self, recorder: Recorder, state: SessionState, intent: Intent) -> SessionState:
        """End an open intent: the commit landed if the branch contains it."""
        durable = self.resources.durable_of(state)
        branch = intent.data.get("branch") or intent.ref.removeprefix("refs/heads/")
        proposal = Proposal.of_intent(intent.data)
        # A pull request may have been merged since, and its branch deleted.
        branches = (branch,) if proposal is None else (branch, proposal.base)
        landed = any(durable.contains(one, intent.commit) for one in branches)
        if landed:
            durable.repair(branch, intent.commit, None)
            record_checkouts(recorder, intent.commit, durable.bring_forward(branch, intent.commit))
        durable.repair(branch, intent.commit, intent.data.get("pack"))
        points.reached("recover:repaired")
        if not landed:
            self.report.rolled_back.append(state.id)
            reason = "found unfinished after a crash; the commit is not on the branch"
            return recorder.append("promote.aborted", {"commit": intent.commit, "reason": reason}, commit_point=True)
        done = {"commit": intent.commit, "ref": intent.ref, "branch": branch, "strategy": intent.data.get("strategy", "commit")}
        pull_request = None if proposal is None else self.pull_requests.find_or_open(durable, branch, proposal, intent.commit)
        keep = intent.data.get("keep")
        if keep is not None:
            try:
                self.resources.prepare_baseline(state, durable, intent.commit)
            except AdapterUnavailable:
                keep = None  # its workspace cannot go on, so the promotion ends the session
        state = record_done(recorder, done, pull_request, keep, actor="system")
        self.report.rolled_forward.append(state.id)
        return state

    def _finish(self, recorder: Recorder, state: SessionState) -> None:
        """Finish an interrupted eviction, unless the policy of a promoted session keeps its workspace."""
        if state.state == "promoted" and not state.policy.until_promote:
            return
        time = TimeLimit(self.evictor.budget)
        removed = self.evictor.evict(recorder, state, "promoted", within=time)
        report = self.report.removed if removed.done else self.report.in_use if removed.users else self.report.postponed
        report.append(state.id)

    def _orphans(self) -> None:
        """Directories in which no event was ever stored whole: a start was killed at its very first steps.

        Only what such a start can have left is removed, file by file: other files in the store are kept. The temporary files of a killed
        writer next to a session's log are removed, too, and the spare that a killed start was about to use.
        """
        for name in names_in(self.resources.store.root):
            directory = self.resources.store.root / name
            if not ID.fullmatch(name) or directory.is_symlink() or not directory.is_dir():
                continue
            self._remove_temporaries(name)
            if not self._is_stillborn(name):
                continue
            with suppress(GittrixError, OSError), self.resources.store.lease(name, wait=0):
                if self._is_stillborn(name):
                    for left in _STILLBORN:
                        (directory / left).unlink(missing_ok=True)
                    directory.rmdir()
                    self.report.removed.append(name)

    def _remove_temporaries(self, name: str) -> None:
        directory = self.resources.store.directory(name)
        names = names_in(directory)
        places = [directory] if any(map(is_temporary, names)) else []
        if RESOURCES in names and any(map(is_temporary, names_in(directory / RESOURCES))):
            places.append(directory / RESOURCES)
        if not places and _SPARE not in names:
            return
        with suppress(GittrixError, OSError), self.resources.store.lease(name, wait=0) as lease:
            self.resources.trash.discard(str(directory / _SPARE))
            for place in places:
                remove_left(place, is_temporary)
            if self.resources.recorder(name).read().ended:
                lease.remove()

    def _is_stillborn(self, name: str) -> bool:
        if {*names_in(self.resources.store.directory(name))} - {*_STILLBORN}:
            return False
        with suppress(GittrixError):
            return not self.resources.store.log(name).read()  # of a torn first line nothing counts
        return False
