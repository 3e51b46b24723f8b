"""Lines of sessions: linked as asked, at the times asked for; and a check that finds each fault that is planted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.scenarios.lineage_kit import ENDS, ChainKit, Link, check_line, line_problems, stored_links
from pytest_gittrix.testing.scenarios.log_kit import LogKit
from pytest_gittrix.testing.world import World

MINUTE = 60 * 10**9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world."""
    with World.open(tmp_path / "world", files={"app.py": "v1\n"}) as opened:
        yield opened


@pytest.fixture
def chain(world: World) -> ChainKit:
    """On that world."""
    return ChainKit(world.gittrix, world.clock)


def links() -> list[Link]:
    """A sound line of four: handed on, crashed, handed on, done."""
    return [
        Link("a", "a", 0, None, "b", 10 * MINUTE, "handoff"),
        Link("b", "a", 10 * MINUTE, "a", "c", 20 * MINUTE, "crash"),
        Link("c", "a", 25 * MINUTE, "b", "d", 30 * MINUTE, "handoff"),
        Link("d", "a", 30 * MINUTE, "c", None, 40 * MINUTE, "done"),
    ]


def changed(at: int, **facts: Any) -> list[Link]:
    """That line with one session changed."""
    line = links()
    line[at] = replace(line[at], **facts)
    return line


class TestMaking:
    @pytest.mark.parametrize("last", ["done", "killed", "crash", "active"])
    def test_a_line_ends_as_told(self, world: World, chain: ChainKit, last: str) -> None:
        line = chain("toast", ["handoff", "handoff", "crash", last], work_unit="gt-1")

        chain.check(line)
        assert [link.outcome for link in chain.links(line)] == ["handoff", "handoff", "crash", None if last == "active" else last]
        assert [record.id for record in world.gittrix.chain(line[0].id)] == [session.id for session in line]
        assert [record.id for record in world.gittrix.query(agent="toast", work_unit="gt-1")] == [session.id for session in line[::-1]]
        assert [LogKit.of(session).invariants() for session in line] == [[]] * 4

    def test_its_times_are_those_of_the_clock(self, world: World, chain: ChainKit) -> None:
        found = chain.links(chain("toast", ["crash", "handoff", "active"], every=timedelta(hours=30)))

        assert [link.started_ns - ns_of(CLOCK_START) for link in found] == [0, 30 * 60 * MINUTE, 60 * 60 * MINUTE]
        assert [earlier.stopped_ns for earlier, _ in pairwise(found)] == [later.started_ns for _, later in pairwise(found)]
        assert world.clock.now() == CLOCK_START + timedelta(hours=60)

    def test_ten_minutes_each_unless_told(self, world: World, chain: ChainKit) -> None:
        chain("toast", ["handoff", "done"])

        assert world.clock.now() == CLOCK_START + timedelta(minutes=20)

    def test_its_last_session_can_go_on_if_it_is_active(self, chain: ChainKit) -> None:
        session = chain("toast", ["handoff", "active"], rig="r")[-1]
        session.write("app.py", "v2\n")

        assert session.promote().sha
        chain.check([session.metadata()["lineage"]["parent"], session.id])

    def test_what_is_passed_on_reaches_all(self, world: World, chain: ChainKit) -> None:
        line = chain("toast", ["crash", "handoff", "done"], task="mend", rig="r", workspace="lazy")

        assert [(record.id, record.task) for record in world.gittrix.query(rig="r")] == [(one.id, "mend") for one in line[::-1]]
        assert {record.workspace_kind for record in world.gittrix.list_sessions()} == {"lazy"}

    @pytest.mark.parametrize(
        ("ends", "fact"),
        [
            ([], "is no line"),
            ("done", "is no line"),
            (["handoff"], "cannot end as a handoff"),
            (["done", "done"], "that is 'done' has no successor"),
            (["active", "done"], "that is 'active' has no successor"),
            (["promoted"], "cannot end as 'promoted'"),
        ],
    )
    def test_what_is_no_line_is_refused_before_anything_is_made(self, world: World, chain: ChainKit, ends: Any, fact: str) -> None:
        with pytest.raises(InvalidInput, match=fact):
            chain("toast", ends)
        assert world.gittrix.list_sessions() == []

    def test_every_end_is_one_that_can_be_asked_for(self, chain: ChainKit) -> None:
        for end in ENDS:
            line = chain("toast", [end, "active"] if end in ("handoff", "crash") else [end])
            chain.check(line)


class TestChecking:
    def test_a_sound_line_has_no_problems(self) -> None:
        assert line_problems(links()) == []
        assert line_problems([Link("x", "x", 0)]) == []

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (changed(2, parent=None), "there are 2 roots, not one: a, c"),
            (changed(0, parent="d", started_ns=50 * MINUTE), "there is a cycle: a came from d came from c came from b came from a"),
            (changed(0, parent="a"), "there is a cycle: a came from a"),
            (changed(0, parent="z"), "there are 0 roots, not one"),
            (
                changed(1, started_ns=9 * MINUTE),
                "a ended at 1970-01-01T00:10:00.000Z, after its child b started at 1970-01-01T00:09:00.000Z",
            ),
            (changed(0, stopped_ns=None, outcome=None), "a has not ended, and its child b has started"),
            (changed(2, chain="c"), "they do not share one chain id: a, c"),
            ([replace(link, chain="d") for link in links()], "the chain id is d, and the first session is a"),
            (changed(1, parent="z"), "b is an orphan: its parent z is not in the line"),
            (changed(0, successor=None), "b is an orphan: its parent a names no session as its successor"),
            (changed(0, successor=None), "a was handed on without a successor"),
            (changed(0, outcome="done"), "a ended as done, and b goes on with it"),
            (changed(3, successor="e"), "d names e as its successor, which is not in the line"),
            (changed(3, successor="b"), "d names b as its successor, which came from a"),
            (changed(2, parent="a"), "a has two children: b, c"),
            ([*links(), links()[2]], "c is there 2 times"),
            (links()[1:], "b is an orphan: its parent a is not in the line"),
            (links()[:-1], "c names d as its successor, which is not in the line"),
        ],
    )
    def test_a_planted_fault_is_named(self, line: list[Link], problem: str) -> None:
        assert problem in line_problems(line)
        with pytest.raises(AssertionError, match="sessions are not one line:") as caught:
            check_line(line)
        assert problem in str(caught.value)

    def test_a_second_child_outside_the_line_is_found(self) -> None:
        assert line_problems(links(), others=[Link("x", "a", 11 * MINUTE, "b")]) == ["b has two children: c, x"]
        assert line_problems(links(), others=[Link("x", "x", 0), Link("y", "x", 0, "x")]) == []

    def test_a_second_child_in_the_store_is_found(self, world: World, chain: ChainKit) -> None:
        line = chain("toast", ["handoff", "done"])
        planted = LogKit(world.gittrix.store.root, "sess_planted")
        lineage = {"parent": line[0].id, "relation": "handoff", "chain": line[0].id, "root": line[0].id}
        planted.append("session.created", lineage=lineage)

        with pytest.raises(AssertionError, match=f"{line[0].id} has two children: .*sess_planted"):
            chain.check(line)

    def test_a_parent_that_was_lost_is_found(self, world: World, chain: ChainKit) -> None:
        first, second = chain("toast", ["handoff", "done"])
        LogKit.of(first).truncate(0)

        with pytest.raises(AssertionError, match=f"{second.id} is an orphan: its parent {first.id} is not in the line"):
            chain.check([second.id])

    def test_sessions_beside_the_line_are_nothing_to_it(self, world: World, chain: ChainKit) -> None:
        line = chain("toast", ["handoff", "active"])
        fork = line[-1].fork()
        damaged = world.start()
        LogKit.of(damaged).flip(5)

        chain.check(line)
        chain.check([fork])
        with pytest.raises(AssertionError, match="2 roots"):
            chain.check([line[0], fork])

    def test_what_another_system_knows_of_its_sessions_is_checked_without_the_store(self, chain: ChainKit) -> None:
        chain.check(links())
        with pytest.raises(AssertionError, match="orphan"):
            chain.check(links()[1:])

    def test_a_handed_on_session_gives_its_work_up_before_its_child_is(self, tmp_path: Path) -> None:
        log = LogKit(tmp_path, "sess_a")
        log.append("handoff.intent", child="sess_b")
        log.append("session.ended", state="discarded", outcome="handoff", successor="sess_b")

        link = Link.of(log.events())
        assert (link.stopped_ns, link.successor) == (log.events()[2].ts, "sess_b")
        assert stored_links(log.store) == [link]
