"""Which workspaces of members' sessions are removed, and how: by age, by budget, or because somebody says so (BotMinter, 4.3).

What holds work that is nowhere else goes only by its name. A workspace is moved out of its place first, so that one that cannot be removed
stays retained; then the removal is recorded, and it is thrown away. The record stays. It must not know how work is saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.engine.lineage.member_recovery import clear_away, move_aside, put_back
from pytest_gittrix.engine.operations.operation import typed
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.members.finalize_record import NOTES, Notes
from pytest_gittrix.members.inspection import RepositoryState, look_into
from pytest_gittrix.members.record import MemberRecord, Team
from pytest_gittrix.members.stop import MemberEnd
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import Selector, chosen, selected
from pytest_gittrix.workspaces.rescue import files_below

_BLOCK: Final = 512
_SMALL: Final = 4096
_PUSHED: Final = ("committed", "pushed", "recovered")


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What was cleaned up.

    Attributes:
        removed: ids of the sessions whose workspaces are gone, the longest kept first; in a dry run, those that would be.
        spared: ids of those that would have been, if they did not hold work that is nowhere else.
        failed: why a workspace is still there that should be gone, by id.
        dry_run: whether nothing was done.
    """

    removed: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


class _Changed(Exception):
    """The session is not as it was when it was chosen."""


@dataclass(frozen=True)
class MemberCleanup:
    """Removing workspaces of a team's sessions."""

    team: Team

    def scan(self, lives: Collection[Life]) -> CleanupReport:
        """Remove what the retention policy says of these, now."""
        policy, now = self.team.retention, self.team.engine.clock.now_ns()
        sizes = {} if policy.disk_budget_bytes is None else {life.id: _size(self.team.record(life.id)) for life in lives}

        def pick(held: Collection[str]) -> list[str]:
            return [choice.id for choice in chosen(lives, policy, now, sizes, held=held)]

        spared = frozenset(choice.id for choice in chosen(lives, policy, now, sizes, even_unsaved=True))
        held = self._held(lives, pick)
        picked = pick(held)
        return self._remove_all(lives, picked, [id_ for id_ in _in_order(lives, spared) if id_ not in picked], meant=False)

    def clean(self, lives: Collection[Life], selector: Selector, *, dry_run: bool) -> CleanupReport:
        """Remove what somebody selects of these; raises as ``retention.selected``."""
        now = self.team.engine.clock.now_ns()
        meant = selector.id is not None or selector.even_unsaved
        held = frozenset[str]() if meant else self._held(lives, lambda held: selected(lives, selector, now, held=held).chosen)
        found = selected(lives, selector, now, held=held)
        if dry_run:
            return CleanupReport(found.chosen, found.spared, dry_run=True)
        return self._remove_all(lives, found.chosen, found.spared, meant=meant)

    def _held(self, lives: Iterable[Life], pick: Callable[[Collection[str]], Iterable[str]]) -> frozenset[str]:
        """The sessions that would be picked, but for the work that a look into them finds."""
        by_id = {life.id: life for life in lives}
        held: frozenset[str] = frozenset()
        seen: set[str] = set()
        while fresh := [id_ for id_ in pick(held) if id_ not in seen]:
            seen.update(fresh)
            held |= {id_ for id_ in fresh if self.holds_work(by_id[id_])}
        return held

    def holds_work(self, life: Life) -> bool:
        """Whether a session's workspace may hold work that is nowhere else."""
        if life.unsaved:
            return True
        finalized = life.ended != "killed" and life.result is not None and life.result.exit_status is not None
        try:
            found = looked(self.team.record(life.id))
        except (GittrixError, OSError):
            return True
        # Of what was saved only what somebody did there since can be lost; that a clone is gone by now takes nothing back.
        return any(one.holds_work and not (finalized and one.problem) for one in found)

    def _remove_all(self, lives: Iterable[Life], ids: Iterable[str], spared: Iterable[str], *, meant: bool) -> CleanupReport:
        by_id = {life.id: life for life in lives}
        removed: list[str] = []
        kept = [*spared]
        failed: dict[str, str] = {}
        for id_ in ids:
            try:
                self._remove(by_id[id_], meant=meant)
                removed.append(id_)
            except _Changed:
                kept.append(id_)
            except Exception as problem:  # noqa: BLE001  (one workspace must not keep the others from being removed)
                failed[id_] = problem.fact if isinstance(problem, GittrixError) else str(problem)
        if removed:
            self.team.engine.services.tidy()
        return CleanupReport(tuple(removed), tuple(kept), failed)

    def _remove(self, life: Life, *, meant: bool) -> None:
        record = self.team.record(life.id)
        trash = self.team.engine.services.resources.trash
        with typed(), record.turn() as turn:
            MemberEnd(self.team).bury(record)
            with record.held() as held:
                now = held.life
                if now.state == "removed":
                    turn.remove()
                    return
                if now.state != "retained" or (not meant and (now.retained_ns, now.unsaved) != (life.retained_ns, life.unsaved)):
                    raise _Changed
                os.makedirs(self.team.engine.store.root / ".trash", exist_ok=True)
                apart = move_aside(record.directory)
                points.reached("member:removing")
                try:
                    held.move("removed")
                except BaseException:
                    if apart:
                        with suppress(OSError):  # the next recovery does it
                            put_back(record.directory)
                    raise
                points.reached("member:removed")
                clear_away(record.directory, trash)
                held.add("workspace.removed", {})


def looked(record: MemberRecord) -> tuple[RepositoryState, ...]:
    """What the repositories of a session's workspace hold, by all that its finalizations told. Raises as ``MemberRecord.life``; OSError."""
    told = (event.data for event in record.events() if event.type == "finalize.repository")
    pushed = [data["commit"] for data in told if data["action"] in _PUSHED and "commit" in data]
    return look_into(record.hydrated(), pushed, Notes.at(str(record.finalization / NOTES)).saved)


def _in_order(lives: Iterable[Life], ids: Collection[str]) -> list[str]:
    found = [life for life in lives if life.id in ids]
    return [life.id for life in sorted(found, key=lambda life: (life.retained_ns or life.since_ns, life.id))]


def _size(record: MemberRecord) -> int:
    """Bytes that the files of a workspace take on the disk: of one with holes not those, and of one with several names once."""
    total = 0
    linked: set[tuple[int, int]] = set()
    for file in files_below(str(record.workspace)):
        with suppress(OSError):
            found = os.lstat(file)
            if found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in linked:
                    continue
                linked.add((found.st_dev, found.st_ino))
            # Some file systems keep what is small where no block is counted.
            total += min(found.st_size, max(found.st_blocks * _BLOCK, _SMALL))
    return total
