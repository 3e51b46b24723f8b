"""Which workspaces of ended sessions go, when, and in which order; and which never go by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.life import HOUR, SECOND, WAYS, Lived, at

from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.record.state.lifecycle import STATES, Life
from pytest_gittrix.record.state.retention import (
    Choice,
    CleanupSelection,
    RetentionPolicy,
    Selector,
    age_ns,
    chosen,
    elapsed_text,
    expired,
    over_budget,
    selected,
)

MINUTE = 60 * SECOND
DAY = 24 * HOUR
KEPT_FROM = 3  # the hour in which a session of ``ended`` is retained
ROOMY = RetentionPolicy(loop_brain_ns=1000 * DAY, interactive_success_ns=1000 * DAY, interactive_failure_ns=1000 * DAY)


def ended(ending: str = "completed", kind: str = "loop", id: str = "s", **opened: Any) -> Life:
    """A session that was retained three hours after it was opened."""
    return Lived("active", ending, "retained", id=id, kind=kind, **opened).life


def kept(id: str, hour: float, *, unsaved: bool = False, member: str = "alice") -> Life:
    """A session that was retained at an hour."""
    return replace(ended(id=id, member=member), retained_ns=at(hour), unsaved=unsaved)


# By age ------------------------------------------------------------------------------------------------------------------------


def test_the_policy_is_the_documented_one() -> None:
    assert RetentionPolicy() == RetentionPolicy(
        loop_brain_ns=DAY, interactive_success_ns=0, interactive_failure_ns=DAY, disk_budget_bytes=None, scan_interval_ns=300 * SECOND
    )


@pytest.mark.parametrize(
    ("kind", "ending", "keeps"),
    [
        *(("loop", "completed", 48 * HOUR), ("loop", "failed", 48 * HOUR), ("loop", "killed", 48 * HOUR)),
        *(("brain", "completed", 48 * HOUR), ("brain", "failed", 48 * HOUR), ("brain", "killed", 48 * HOUR)),
        *(("interactive", "completed", 0), ("interactive", "failed", 24 * HOUR), ("interactive", "killed", 24 * HOUR)),
    ],
)
@pytest.mark.parametrize(("late", "goes"), [(-1000, False), (0, True), (1000, True)])
def test_a_workspace_is_kept_for_as_long_as_its_kind_and_its_end_say(kind: str, ending: str, keeps: int, late: int, goes: bool) -> None:
    policy, life = RetentionPolicy(loop_brain_ns=48 * HOUR), ended(ending, kind)
    assert policy.keeps_ns(life) == keeps
    # Of nothing there is no moment before: what need not be kept goes at once.
    now = at(KEPT_FROM) + keeps + late
    assert expired([life], policy, now, even_unsaved=True) == (["s"] if goes or not keeps else [])


def test_a_finalization_that_failed_makes_a_chat_a_failure_however_it_ended() -> None:
    lived = Lived("active", kind="interactive").move(2, "completed", result="Failed").move(3, "retained")
    assert RetentionPolicy().keeps_ns(lived.life) == DAY


def test_as_the_code_has_it_a_chat_that_was_killed_counts_as_a_success() -> None:
    killed = ended("killed", "interactive")
    assert RetentionPolicy(as_code=True).keeps_ns(killed) == 0
    assert expired([killed], RetentionPolicy(as_code=True), at(KEPT_FROM)) == ["s"]
    assert expired([killed], RetentionPolicy(), at(KEPT_FROM)) == []


@pytest.mark.parametrize("state", STATES)
def test_only_what_is_retained_is_ever_collected(state: str) -> None:
    life = Lived(*WAYS[state]).life
    found = ["a1b2c3d4"] if state == "retained" else []
    policy = replace(RetentionPolicy(), loop_brain_ns=0, disk_budget_bytes=0)
    assert expired([life], policy, at(9000)) == found
    assert over_budget([life], {"a1b2c3d4": 5}, 0) == found
    assert [one.id for one in chosen([life], policy, at(9000), {"a1b2c3d4": 5})] == found
    assert selected([life], Selector(all=True), at(9000)).chosen == tuple(found)


def test_the_time_counts_from_the_last_time_it_was_retained() -> None:
    lived = Lived("active", "killed", "retained", "finalizing", "completed", "retained")
    assert expired([lived.life], RetentionPolicy(), at(6 + 24) - 1000) == []
    assert expired([lived.life], RetentionPolicy(), at(6 + 24)) == ["a1b2c3d4"]


def test_a_clock_that_was_set_back_keeps_what_is_kept_and_not_what_is_not() -> None:
    lives = [ended("completed", "loop", "a"), ended("completed", "interactive", "b")]
    assert expired(lives, RetentionPolicy(), at(0)) == ["b"]


def test_the_longest_kept_comes_first() -> None:
    lives = [kept("c", 5), kept("a", 7), kept("b", 5), kept("d", 1)]
    assert expired(lives, RetentionPolicy(loop_brain_ns=0), at(9)) == ["d", "b", "c", "a"]


def test_work_that_is_nowhere_else_is_not_collected_by_age_unless_that_is_said() -> None:
    lives = [ended("failed", id="a"), ended("killed", id="b"), ended(id="c"), ended(id="d")]
    late = at(9000)
    assert expired(lives, RetentionPolicy(), late, held={"c"}) == ["b", "d"]
    assert expired(lives, RetentionPolicy(), late, held={"c"}, even_unsaved=True) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "values", [{"loop_brain_ns": -1}, {"interactive_success_ns": -1}, {"interactive_failure_ns": -1}, {"disk_budget_bytes": -1}]
)
def test_a_policy_that_cannot_be_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        RetentionPolicy(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["24h", 1.5, float("nan"), float("inf"), True, None, 10**40])
@pytest.mark.parametrize("name", ["loop_brain_ns", "interactive_failure_ns", "scan_interval_ns"])
def test_a_time_is_a_whole_number_and_no_longer_than_a_calendar_has(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        RetentionPolicy(**{name: value})


def test_a_budget_is_a_whole_number_of_any_size() -> None:
    assert RetentionPolicy(disk_budget_bytes=10**40).disk_budget_bytes == 10**40
    with pytest.raises(InvalidInput, match="disk_budget_bytes"):
        RetentionPolicy(disk_budget_bytes="1G")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"id": 5}, {"member": 5}, {"older_than_ns": -1}, {"older_than_ns": "48h"}, {"older_than_ns": True}])
def test_a_selector_of_the_wrong_kind_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="which workspaces"):
        Selector(**given)


@pytest.mark.parametrize("interval", [0, -1])
def test_a_scan_needs_time_between_it_and_the_next(interval: int) -> None:
    with pytest.raises(InvalidInput, match="scan_interval_ns"):
        RetentionPolicy(scan_interval_ns=interval)


# By budget ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "gone"), [(None, []), (60, []), (59, ["d"]), (50, ["d"]), (49, ["d", "b"]), (0, ["d", "b", "c", "a"])])
def test_the_longest_kept_go_until_the_rest_fits(budget: int | None, gone: list[str]) -> None:
    lives = [kept("c", 5), kept("a", 7), kept("b", 5), kept("d", 1)]
    assert over_budget(lives, {"a": 20, "b": 20, "c": 10, "d": 10}, budget) == gone


def test_what_must_stay_takes_room_and_what_has_no_size_takes_none() -> None:
    lives = [kept("a", 1, unsaved=True), kept("b", 2), kept("c", 3), kept("d", 4)]
    sizes = {"a": 50, "c": 10, "d": 10}
    assert over_budget(lives, sizes, 69) == ["b", "c"]
    assert over_budget(lives, sizes, 60) == ["b", "c"]
    assert over_budget(lives, sizes, 60, held={"c"}) == ["b", "d"]
    assert over_budget(lives, sizes, 40) == ["b", "c", "d"]
    assert over_budget(lives, sizes, 60, even_unsaved=True) == ["a"]


# Both --------------------------------------------------------------------------------------------------------------------------


def test_what_is_past_its_time_makes_room_before_anything_else_has_to_go() -> None:
    lives = [kept("a", 1), kept("b", 2), replace(kept("c", 3), kind="interactive"), kept("d", 4)]
    sizes = {"a": 10, "b": 10, "c": 10, "d": 10}
    policy = replace(ROOMY, interactive_success_ns=0)
    assert chosen(lives, replace(policy, disk_budget_bytes=30), at(9), sizes) == [Choice("c", "expired")]
    assert chosen(lives, replace(policy, disk_budget_bytes=20), at(9), sizes) == [Choice("a", "budget"), Choice("c", "expired")]
    assert chosen(lives, policy, at(9), sizes) == [Choice("c", "expired")]
    assert chosen(lives, replace(policy, disk_budget_bytes=0), at(9), sizes, held={"c", "b"}) == [
        Choice("a", "budget"),
        Choice("d", "budget"),
    ]
    assert chosen([kept("e", 1, unsaved=True)], RetentionPolicy(), at(99), {}) == []
    assert chosen([kept("e", 1, unsaved=True)], RetentionPolicy(), at(99), {}, even_unsaved=True) == [Choice("e", "expired")]
    everything = chosen(lives, replace(policy, disk_budget_bytes=0), at(9), sizes, held={"c", "b"}, even_unsaved=True)
    assert [one.id for one in everything] == ["a", "b", "c", "d"]


# Chosen by a person ------------------------------------------------------------------------------------------------------------

LIVES = [kept("a", 1), kept("b", 2, unsaved=True), kept("c", 3, member="bob"), Lived("active", id="d", member="alice").life]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (Selector(all=True), CleanupSelection(("a", "c"), ("b",))),
        (Selector(all=True, even_unsaved=True), CleanupSelection(("a", "b", "c"))),
        (Selector(member="alice"), CleanupSelection(("a",), ("b",))),
        (Selector(member="alice", even_unsaved=True), CleanupSelection(("a", "b"))),
        (Selector(member="carol"), CleanupSelection(())),
        (Selector(id="a"), CleanupSelection(("a",))),
        (Selector(id="b"), CleanupSelection(("b",))),
    ],
)
def test_a_person_says_which_by_id_by_member_or_all(selector: Selector, found: CleanupSelection) -> None:
    assert selected(LIVES, selector, at(9)) == found


def test_what_was_seen_to_hold_work_is_spared_like_what_says_so() -> None:
    assert selected(LIVES, Selector(all=True), at(9), held={"c"}) == CleanupSelection(("a",), ("b", "c"))
    assert selected(LIVES, Selector(id="c"), at(9), held={"c"}) == CleanupSelection(("c",))


@pytest.mark.parametrize(("late", "found"), [(-1000, ()), (0, ()), (1000, ("s",))])
def test_an_age_counts_from_the_creation_and_is_exceeded_by_more_than_it(late: int, found: tuple[str, ...]) -> None:
    assert selected([ended()], Selector(older_than_ns=age_ns("48h")), at(48) + late).chosen == found


def test_an_age_spares_work_that_is_nowhere_else() -> None:
    assert selected(LIVES, Selector(older_than_ns=0), at(9)) == CleanupSelection(("a", "c"), ("b",))


def test_an_id_that_is_not_that_of_a_retained_session_is_refused() -> None:
    with pytest.raises(SessionNotFound, match="'nobody'"):
        selected(LIVES, Selector(id="nobody"), at(9))
    with pytest.raises(InvalidInput, match="Session d is active"):
        selected(LIVES, Selector(id="d"), at(9))
    with pytest.raises(InvalidInput, match="nothing left to clean up"):
        selected([Lived(*WAYS["removed"], id="e").life], Selector(id="e"), at(9))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Nothing says which"),
        ({"even_unsaved": True}, "Nothing says which"),
        ({"id": "a", "all": True}, "Several things say"),
        ({"member": "alice", "older_than_ns": 0}, "Several things say"),
    ],
)
def test_exactly_one_thing_says_what_to_clean_up(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Selector(**given)


# Text --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "ns"), [("0s", 0), ("90s", 90 * SECOND), ("30m", 30 * MINUTE), ("48h", 48 * HOUR), ("2d", 2 * DAY)])
def test_an_age_is_a_number_with_a_unit(text: str, ns: int) -> None:
    assert age_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "h", "48", "1w", "-1h", "1.5h", "1h30m", "250ms", " 1h", "1h ", "1 h", "1H", "٣h", "x", None, "9" * 30 + "d"]
)
def test_an_age_written_otherwise_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput):
        age_ns(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        *((-1, "<1m"), (0, "<1m"), (MINUTE - 1, "<1m"), (MINUTE, "1m"), (45 * MINUTE, "45m"), (HOUR - 1, "59m"), (HOUR, "1h 0m")),
        *((2 * HOUR + 15 * MINUTE, "2h 15m"), (DAY - 1, "23h 59m"), (DAY, "1d 0h"), (DAY + 3 * HOUR + 59 * MINUTE, "1d 3h")),
    ],
)
def test_elapsed_time_is_told_in_its_two_largest_units(ns: int, text: str) -> None:
    assert elapsed_text(ns) == text
