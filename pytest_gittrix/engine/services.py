"""The parts of one engine that its sessions, and the systems built on it, share.

``GitTrix`` makes them once; ``UserSession``, members and orchestrators work with them and never with an engine's private names.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Final, Literal, NamedTuple

from pytest_gittrix.engine.agents.turns import Turns
from pytest_gittrix.engine.eviction.evictor import Evictor
from pytest_gittrix.engine.lineage.member_recovery import interrupted_removals
from pytest_gittrix.engine.lineage.recovery import Recovery, RecoveryReport
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.promotion.promotion import PromotionParts
from pytest_gittrix.engine.promotion.pull_requests import PullRequests
from pytest_gittrix.engine.promotion.strategy import Ask, Preferences, Strategy, StrategyPolicy
from pytest_gittrix.engine.queries import Records
from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.record.state.fold import Policy
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.workspaces.seeds.prepare import SPARE_SEEDS, prune_seeds

_MOST_SWEPT: Final = 1000

Sweeper = Literal["the timer", "the start of the engine", "sweep()"]
"""What sweeps."""


class SweptSession(NamedTuple):
    """A session that a sweep evicted.

    Attributes:
        id: its id.
        at_ns: when the sweep began, in nanoseconds since 1970.
        by: what swept.
    """

    id: str
    at_ns: int
    by: Sweeper


class EngineServices:
    """The parts that the sessions of one engine share.

    Args:
        resources: the engine's directories, repositories, clock and ids.
        policy: the default eviction policy of sessions.
        sweep_budget: the real time that one session may take in a sweep; None for as long as it takes.
        pull_requests: opens pull requests.
        strategy: the default strategy; ``auto`` leaves it to the contributor heuristic.
        ask: how to ask a person for a strategy.

    Attributes:
        swept: the sessions that sweeps of this engine evicted last, in order.
        index: what is derived from the store, for finding sessions.
        records: lists and queries of sessions.
        emitter: the engine's listeners.
        turns: the turns that agents take.
        evictor: ends sessions.
        promoting: what promotions share.
    """

    def __init__(
        self,
        resources: Resources,
        *,
        policy: Policy,
        sweep_budget: timedelta | None,
        pull_requests: PullRequests,
        strategy: Strategy,
        ask: Ask | None,
    ) -> None:
        self.resources = resources
        self.store = resources.store
        self.clock = resources.clock
        self.emitter = resources.emitter
        self.policy = policy
        self._most_seeds = 2 * SPARE_SEEDS
        self.swept: deque[SweptSession] = deque(maxlen=_MOST_SWEPT)
        self.index = Index(self.store)
        self.records = Records(self.index)
        self.turns = Turns(self.emitter.on)
        limits = resources.ephemeral.limits
        self.evictor = Evictor(resources.open_workspace, resources.durable_of, resources.trash, limits, sweep_budget)
        strategies = StrategyPolicy(strategy, Preferences(resources.home / "preferences.json"), ask)
        self.promoting = PromotionParts(resources, self.evictor, strategies, pull_requests, self.settle_promotion)

    def recorder(self, id_: str) -> Recorder:
        """A recorder of a session, which may not be in the store. Raises InvalidInput for a malformed id."""
        return self.resources.recorder(id_)

    def settled(self, recorder: Recorder) -> Recorder:
        """The recorder of a session, once a promotion or a handoff that a kill left open is finished or undone.

        Raises:
            AdapterUnavailable: it cannot be settled now.
        """
        state = recorder.read()
        if state.intent is not None or state.handoff is not None:
            for problem in self.recovery().run([recorder.id]).problems:
                raise AdapterUnavailable(
                    f"The killed promotion of session {recorder.id} cannot be settled: {problem.message.partition(chr(10))[0]}",
                    why="Until then it is unknown whether the session is promoted.",
                    fix="Restore its durable repository, then try again.",
                )
        return recorder

    def recovery(self) -> Recovery:
        """A recovery of the store."""
        return Recovery(self.resources, self.evictor, self.promoting.pull_requests)

    def recover(self) -> RecoveryReport:
        """Finish or undo every interrupted operation in the store, then remove what no session needs."""
        self.index.sync()
        members = interrupted_removals(self.store, self.index.lives(("retained",)))
        report = self.recovery().run([*self.index.unsettled(), *members])
        self.index.sync()
        report.problems.extend(self.index.problems())
        if not report.problems:
            self.prune_seeds()
        self.resources.spares.prune()
        self.resources.trash.empty_soon()
        return report

    def settle_promotion(self, commit: str) -> bool:
        """Mend the promotion of this store that a commit is of, if its process is gone.

        Args:
            commit: the id of the commit, which is what the lock of a promotion contains.

        Returns:
            Whether it was mended, so that its locks are gone.
        """
        self.index.sync()
        for id_ in self.index.unsettled():
            try:
                intent = self.recorder(id_).read().intent
            except GittrixError:
                continue
            if intent is not None and intent.commit == commit:
                # It holds its session's lease for as long as it lives, and a recovery breaks no lease.
                report = self.recovery().run([id_])
                return id_ in (*report.rolled_forward, *report.rolled_back)
        return False

    def complain(self, id_: str, problem: Exception) -> None:
        """Announce a failure of background work on a session, which has no caller to raise to."""
        self.emitter.complain(id_, problem, ts=self.clock.now_ns())

    def prune_seeds(self) -> None:
        """Remove the seeds that no live session needs, but for a few. None is removed while a record cannot be read, which may need one."""
        is_known = False

        def needed() -> set[str] | None:
            nonlocal is_known
            self.index.sync()
            is_known = not self.index.problems()
            return self.records.baselines() if is_known else None

        prune_seeds(str(self.resources.seeds_path), needed, remove=self.resources.trash.discard)
        if is_known:  # not while a seed was being made, so that none could be removed
            self._most_seeds = 2 * max(SPARE_SEEDS, len(names_in(self.resources.seeds_path)))

    def tidy(self) -> None:
        """Remove seeds when there are many; in the background make spares, and empty the trash if the store is written to the disk."""
        if len(names_in(self.resources.seeds_path)) > self._most_seeds:
            self.prune_seeds()
        if self.store.durability == "full":
            self.resources.trash.empty_soon()
        self.resources.spares.refill()

    def close(self) -> None:
        """End the turns and release descriptors and processes."""
        self.turns.close()
        self.index.close()
        self.resources.trash.wait()
        if self.store.durability == "full":
            self.resources.trash.empty()
        self.resources.close()
