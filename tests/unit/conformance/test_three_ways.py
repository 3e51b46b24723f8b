"""A clause that is played in three ways ends as the worst of them did, and tells in which way that was."""

from __future__ import annotations

import pytest

from fixtures.broken_systems.plain import PlainEngine, PlainSystem
from fixtures.broken_systems.plain_git import Changes, Tree
from fixtures.broken_systems.plain_records import Record
from pytest_gittrix.conformance.base.outcome import ClauseEnd, ClauseFailure, Status
from pytest_gittrix.conformance.base.ways import PlayedWay, Way, in_three_ways
from pytest_gittrix.conformance.families.conflict import ConflictClauses
from pytest_gittrix.errors import WorktreeDirty
from pytest_gittrix.testing.systems.driver import Stage

FILES = {"app.py": "one\n", "README.md": "hello\n"}


class KeepsToItsCheckout(PlainEngine):
    """Overlooks drift, and refuses to touch a checkout that is behind its branch: so a push hides the fault."""

    def drift(self, record: Record, head: str) -> set[str]:
        return set()

    def land(self, record: Record, sha: str, head: str, theirs: Tree, changes: Changes) -> str | None:
        for checkout in self.git.checkouts(self.branch):
            if not all(checkout.stands(path, theirs.get(path)) for path in changes):
                raise WorktreeDirty(f"{checkout.path} is behind.", stage="apply")
        return super().land(record, sha, head, theirs, changes)


class NeverPromotesAtAPush(KeepsToItsCheckout):
    """Judges drift rightly, and refuses where a checkout is behind before it looks."""

    drift = PlainEngine.drift

    def refuse_overlap(self, record: Record, changes: Changes, drift: set[str], head: str) -> None:
        self.land_nothing_on_what_is_behind(head, changes)
        super().refuse_overlap(record, changes, drift, head)

    def land_nothing_on_what_is_behind(self, head: str, changes: Changes) -> None:
        """Refuse for a checkout that is behind."""
        theirs = self.git.tree(head)
        for checkout in self.git.checkouts(self.branch):
            if not all(checkout.stands(path, theirs.get(path)) for path in changes):
                raise WorktreeDirty(f"{checkout.path} is behind.", stage="apply")


@pytest.mark.parametrize(
    "clause", ["test_cnf_01_an_edit_of_the_same_file_is_a_conflict", "test_cnf_12_the_same_edit_on_both_sides_is_a_conflict"]
)
def test_a_person_whose_bytes_are_replaced_is_not_hidden_by_a_refusal_for_a_checkout(clause: str) -> None:
    suite = ConflictClauses()
    with Stage.open(PlainSystem("hides it", KeepsToItsCheckout), files=suite.files()) as stage:
        with pytest.raises(ClauseFailure, match="expected BASELINE_CONFLICT, but it was done") as failure:
            getattr(suite, clause)(stage)

        assert failure.value.status is Status.BROKEN
        assert failure.value.lost == ("01" in clause)
        assert stage.journal.setting == Way.DESK


def test_a_refusal_for_the_checkout_that_a_push_left_behind_says_nothing() -> None:
    suite = ConflictClauses()
    with Stage.open(PlainSystem("careful", NeverPromotesAtAPush), files=suite.files()) as stage:
        suite.test_cnf_01_an_edit_of_the_same_file_is_a_conflict(stage)

        assert "promote: BASELINE_CONFLICT" in stage.journal.refusals()


def test_it_is_played_in_a_place_of_its_own_each_time() -> None:
    seen = []

    def play(scene: PlayedWay) -> None:
        seen.append((scene.way, (scene.stage.durable.path / ".git").exists(), scene.person.head() == scene.stage.durable.head()))
        scene.person.commit({"app.py": "human\n"})
        assert scene.stage.judge.tree(scene.stage.judge.head())["app.py"] == b"human\n"

    with Stage.open(PlainSystem(), files=FILES) as stage:
        in_three_ways(stage, FILES, play)

    assert seen == [(Way.PUSH, True, True), (Way.DESK, True, True), (Way.BARE, False, True)]


def test_the_worst_end_counts_and_no_verdict_only_where_no_way_has_one() -> None:
    ends = {
        Way.PUSH: ClauseEnd(Status.NO_VERDICT, "nothing"),
        Way.DESK: ClauseFailure("incomplete", Status.INCOMPLETE_REFUSAL),
        Way.BARE: AssertionError("broken"),
    }

    def play(scene: PlayedWay) -> None:
        if scene.way in ends:
            raise ends[scene.way]

    for expected in (Way.BARE, Way.DESK):
        with Stage.open(PlainSystem(), files=FILES) as stage:
            with pytest.raises(type(ends[expected]), match=str(ends[expected])):
                in_three_ways(stage, FILES, play)
            assert stage.journal.setting == expected
        del ends[expected]
    with Stage.open(PlainSystem(), files=FILES) as stage:
        in_three_ways(stage, FILES, play)
    ends |= dict.fromkeys(Way, ends[Way.PUSH])
    with Stage.open(PlainSystem(), files=FILES) as stage, pytest.raises(ClauseEnd, match="nothing"):
        in_three_ways(stage, FILES, play)
