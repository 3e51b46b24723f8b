"""Lives and collections nobody thought of: legal and illegal steps in any order, and workspaces of any age, size and kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.life import HOUR, NOW, Lived

from pytest_gittrix.errors import InvalidInput, LogDamaged
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.record.state.lifecycle import ACTIONS, KINDS, LEGAL, STATES, STATUSES, FinalizationResult, Life, require_legal
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector, chosen, expired, over_budget, selected
from pytest_gittrix.views.botminter import history_row, record

# A life under a state machine --------------------------------------------------------------------------------------------------

# What a session may do next, said in another way than the table does: by what has to be true of it.
MAY_GO_TO: Final[dict[str, Callable[[str], bool]]] = {
    "creating": lambda _now: False,
    "active": lambda now: now == "creating",
    "finalizing": lambda now: now in ("active", "retained"),
    "completed": lambda now: now in ("active", "finalizing"),
    "failed": lambda now: now in ("active", "finalizing"),
    "killed": lambda now: now in ("active", "finalizing"),
    "retained": lambda now: now in ("completed", "failed", "killed"),
    "removed": lambda now: now == "retained",
}
OVER: Final = ("removed", "undone")


class LifeMachine(RuleBasedStateMachine):
    """One session, told whatever comes to mind. What cannot be is refused and leaves no trace; the rest adds up as a short model says."""

    def __init__(self) -> None:
        super().__init__()
        self.lived = Lived(kind="interactive")
        self.now = "creating"
        self.hour = 0
        self.unsaved = False
        self.left: set[str] = set()
        self.locks: list[str] = []
        self.before = self.lived.state

    def _tell(self, possible: bool, type: str, **data: Any) -> None:
        self.hour += 1
        self.before = self.lived.state
        self.lived.tell(self.hour, type, **data)
        if possible:
            assert fold(self.lived.events[-1:], self.before) == self.lived.state
            return
        with pytest.raises(LogDamaged, match="cannot happen"):
            fold(self.lived.events)
        self.lived.events.pop()
        assert self.lived.state == self.before

    @rule(to=st.sampled_from(STATES), result=st.none() | st.sampled_from((*STATUSES, "Perfect")))
    def move(self, to: str, result: str | None) -> None:
        """Go on to any state there is."""
        legal = self.now != "undone" and MAY_GO_TO[to](self.now)
        if self.now != "undone":
            with nullcontext() if legal else pytest.raises(InvalidInput, match="Cannot transition"):
                require_legal(self.now, to)
        possible = legal and result != "Perfect"
        self._tell(possible, "life.moved", to=to, **({} if result is None else {"result": result}))
        if possible:
            self.unsaved |= to == "failed" or (to in ("completed", "killed") and result == "Failed")
            self.locks = [] if to == "removed" else self.locks
            self.now = to

    @rule(to=st.sampled_from(STATES))
    def go_on(self, to: str) -> None:
        """Go on to a state that may follow, so that lives get somewhere."""
        if self.now != "undone" and to in LEGAL[self.now]:
            self.move(to, None)

    @rule(state=st.sampled_from(("discarded", "expired")))
    def end(self, state: str) -> None:
        """End it as a session without a life ends."""
        possible = self.now == "creating"
        self._tell(possible, "session.ended", state=state)
        self.now = "undone" if possible else self.now

    @rule()
    def launch(self) -> None:
        """Start a process."""
        self._tell(self.now in ("active", "finalizing"), "agent.launched", pid=self.hour)

    @rule(code=st.integers(0, 2))
    def exit(self, code: int) -> None:
        """See one gone."""
        self._tell(True, "agent.exited", code=code)

    @rule(force=st.booleans())
    def stop(self, force: bool) -> None:
        """Ask it to stop."""
        self._tell(self.now not in OVER, "stop.requested", force=force)

    @rule()
    def begin(self) -> None:
        """Begin to save its work."""
        self._tell(self.now == "finalizing", "finalize.started", attempt=self.lived.life.attempts + 1)
        self.left = set() if self.now == "finalizing" else self.left

    @rule(name=st.sampled_from(("app", "team")), action=st.sampled_from((*ACTIONS, "lost")), branch=st.none() | st.just("fix"))
    def save(self, name: str, action: str, branch: str | None) -> None:
        """Do something about a repository."""
        possible = self.now == "finalizing" and action != "lost"
        self._tell(possible, "finalize.repository", name=name, action=action, **({} if branch is None else {"branch": branch}))
        if possible and action in ("left", "failed"):
            self.left.add(name)
            self.unsaved = True

    @rule(status=st.sampled_from((*STATUSES, "Perfect")))
    def finish(self, status: str) -> None:
        """Be done with saving."""
        possible = self.now == "finalizing" and status != "Perfect"
        self._tell(possible, "finalize.finished", status=status)
        self.unsaved = (status == "Failed" or bool(self.left)) if possible else self.unsaved

    @rule(item=st.sampled_from(("#1", "#2")))
    def lock(self, item: str) -> None:
        """Take a work item."""
        possible = self.now not in OVER
        self._tell(possible, "work.locked", item=item)
        if possible and item not in self.locks:
            self.locks.append(item)

    @rule(item=st.sampled_from(("#1", "#2")))
    def release(self, item: str) -> None:
        """Give one back."""
        self._tell(True, "work.released", item=item)
        self.locks = [held for held in self.locks if held != item]

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        """State, work and locks are those of the model, however they are folded, and every reader copes with them."""
        state = self.lived.state
        life = state.life
        assert life is not None
        shown = "creating" if self.now == "undone" else self.now
        assert (life.state, state.ended) == (shown, self.now in OVER)
        assert (life.unsaved, set(life.left), list(life.locks)) == (self.unsaved, self.left, self.locks)
        assert (life.retained_ns is not None) == (self.now == "retained")
        assert record(self.lived.events)["current_state"] == shown.capitalize()
        assert history_row(self.lived.events)["session_id"] == life.id

    @invariant()
    def what_is_not_retained_or_not_saved_is_not_collected(self) -> None:
        """Whatever the time and however small the disk."""
        found = chosen([self.lived.life], RetentionPolicy(0, 0, 0, disk_budget_bytes=0), NOW + 9000 * HOUR, {self.lived.id: 1})
        assert bool(found) == (self.now == "retained" and not self.unsaved)


TestLives = LifeMachine.TestCase


# What is collected -------------------------------------------------------------------------------------------------------------

hours = st.integers(0, 60)


@st.composite
def members(draw: st.DrawFn) -> list[Life]:
    """Sessions in any states, retained at any time, with or without unsaved work."""
    lives = []
    for number in range(draw(st.integers(0, 8))):
        state = draw(st.sampled_from((*STATES, "retained", "retained", "retained")))
        since = NOW + draw(hours) * HOUR
        lives.append(
            replace(
                Lived(id=f"s{number}").life,
                kind=draw(st.sampled_from(KINDS)),
                member=draw(st.sampled_from(("alice", "bob"))),
                created_ns=NOW + draw(hours) * HOUR,
                state=state,
                since_ns=since,
                retained_ns=since if state == "retained" else None,
                ended=draw(st.sampled_from(("completed", "failed", "killed"))),
                result=draw(st.none() | st.builds(FinalizationResult, st.sampled_from(STATUSES))),
                unsaved=draw(st.booleans()),
            )
        )
    return lives


policies = st.builds(
    RetentionPolicy,
    *(hours.map(lambda hour: hour * HOUR) for _ in range(3)),
    disk_budget_bytes=st.none() | st.integers(0, 200),
    as_code=st.booleans(),
)
times = hours.map(lambda hour: NOW + hour * HOUR)
disks = st.dictionaries(st.integers(0, 7).map(lambda number: f"s{number}"), st.integers(0, 100))
holders = st.sets(st.integers(0, 7).map(lambda number: f"s{number}"), max_size=2)


@given(members(), policies, times, disks, holders)
def test_nothing_that_lives_or_is_not_saved_is_ever_chosen(
    lives: list[Life], policy: RetentionPolicy, now: int, sizes: dict[str, int], held: set[str]
) -> None:
    by_id = {life.id: life for life in lives}
    found = [one.id for one in chosen(lives, policy, now, sizes, held=held)]
    found += expired(lives, policy, now, held=held) + over_budget(lives, sizes, policy.disk_budget_bytes, held=held)
    for selector in (Selector(all=True), Selector(member="bob"), Selector(older_than_ns=0)):
        selection = selected(lives, selector, now, held=held)
        found += selection.chosen
        assert all(by_id[id].state == "retained" and (by_id[id].unsaved or id in held) for id in selection.spared)
    assert all(by_id[id].state == "retained" and not by_id[id].unsaved and id not in held for id in found)


@given(members(), policies, times, disks, st.booleans())
def test_what_is_chosen_is_all_that_has_to_go_and_no_more(
    lives: list[Life], policy: RetentionPolicy, now: int, sizes: dict[str, int], even_unsaved: bool
) -> None:
    found = chosen(lives, policy, now, sizes, even_unsaved=even_unsaved)
    reasons = {one.id: one.reason for one in found}
    kept = sorted((life for life in lives if life.state == "retained"), key=lambda life: (life.since_ns, life.id))
    free = [life for life in kept if even_unsaved or not life.unsaved]
    past = {life.id for life in free if max(now - life.since_ns, 0) >= policy.keeps_ns(life)}

    assert [one.id for one in found] == [life.id for life in kept if life.id in reasons]
    assert {id for id, reason in reasons.items() if reason == "expired"} == past
    for_room = [life for life in free if reasons.get(life.id) == "budget"]
    assert for_room == [life for life in free if life.id not in past][: len(for_room)]

    budget = policy.disk_budget_bytes
    taken = sum(sizes.get(life.id, 0) for life in kept if life.id not in reasons)
    if budget is None:
        assert not for_room
    else:
        assert taken <= budget or len(reasons) == len(free)
        assert not for_room or taken + sizes.get(for_room[-1].id, 0) > budget


@given(members(), policies, times, disks, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter_and_a_second_look_finds_nothing_more(
    lives: list[Life], policy: RetentionPolicy, now: int, sizes: dict[str, int], random: Any
) -> None:
    found = chosen(lives, policy, now, sizes)
    mixed = [*lives]
    random.shuffle(mixed)
    assert chosen(mixed, policy, now, sizes) == found
    gone = {one.id for one in found}
    rest = [replace(life, state="removed", retained_ns=None) if life.id in gone else life for life in lives]
    assert chosen(rest, policy, now, sizes) == []
