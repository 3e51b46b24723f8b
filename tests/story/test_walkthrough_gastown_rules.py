"""Gas Town: what its document leaves open, as it is decided here, and the edge rules of its real code.

Where the two disagree the document counts; each docstring says where we differ, and why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import Site, kill_at
from support.walkthrough import LONG, TOAST, in_town

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, InvalidInput, SessionExpired, SessionNotFound
from pytest_gittrix.gastown.files import export, read_index, read_town_events
from pytest_gittrix.gastown.runtime_id import resolve
from pytest_gittrix.os_level.lease import Lease, Owner


def spaced(site: Site, count: int) -> list[str]:
    """Sessions that start an hour after one another; their ids."""
    ids = []
    for _ in range(count):
        ids.append(site.start().id)
        site.clock.advance(hours=1, timers="none")
    return ids


class TestChoices:
    """What the API leaves open."""

    def test_choice_01_a_start_under_an_id_that_is_taken_is_refused(self, site: Site) -> None:
        site.start(id="abc-123")
        with pytest.raises(InvalidInput, match="There is a session 'abc-123' already"):
            site.start(id="abc-123")

    def test_choice_01_an_agent_may_have_several_open_sessions(self, site: Site) -> None:
        """The document does not forbid it, and who has to be alone has a lock of its own."""
        site.start(**TOAST)
        assert site.start(**TOAST).info().state == "active"

    def test_choice_02_a_second_end_changes_nothing(self, site: Site) -> None:
        """With the same outcome it passes, with another it is refused."""
        session = site.start(**TOAST)
        session.discard("done")
        before = session.history()
        session.discard("done")
        with pytest.raises(SessionExpired) as caught:
            session.discard("crash")
        assert (caught.value.state, session.history()) == ("discarded", before)
        assert in_town(site, session.id)["outcome"] == "done"

    def test_choice_03_who_ended_is_not_handed_on(self, site: Site) -> None:
        session = site.start()
        session.discard("done")
        with pytest.raises(SessionExpired):
            session.handoff()
        assert len(site.engine.list_sessions()) == 1

    def test_choice_03_a_parent_that_is_not_there_is_said_so(self, site: Site) -> None:
        with pytest.raises(SessionNotFound):
            site.start(parent="nobody")
        assert site.engine.list_sessions() == []

    def test_choice_04_a_crashed_one_has_one_successor(self, site: Site) -> None:
        crashed = site.start()
        crashed.discard("crash")
        first = site.start(parent=crashed.id)
        with pytest.raises(SessionExpired, match=f"has the successor {first.id}"):
            site.start(parent=crashed.id)

    @pytest.mark.parametrize("outcome", ["done", "killed", None])
    def test_choice_04_who_did_not_crash_has_none(self, site: Site, outcome: str | None) -> None:
        session = site.start()
        session.discard(outcome)
        with pytest.raises(SessionExpired, match="not crashed"):
            site.start(parent=session.id)

    def test_choice_05_a_query_is_newest_first(self, site: Site) -> None:
        ids = spaced(site, 3)
        assert [one.id for one in site.engine.query()] == ids[::-1]

    def test_choice_06_a_chain_is_oldest_first(self, site: Site) -> None:
        """In the order of its links: here all begin at one instant."""
        line = [site.start()]
        for _ in range(4):
            line.append(line[-1].handoff())
        assert [one.id for one in site.engine.chain(line[0].id)] == [one.id for one in line]

    def test_choice_07_since_is_inclusive_and_until_exclusive_of_the_start(self, site: Site) -> None:
        ids = spaced(site, 3)
        found = site.engine.query(since=CLOCK_START + timedelta(hours=1), until=CLOCK_START + timedelta(hours=2))
        assert [one.id for one in found] == [ids[1]]

    def test_choice_07_a_time_without_a_zone_is_refused(self, site: Site) -> None:
        with pytest.raises(InvalidInput):
            site.engine.query(since=CLOCK_START.replace(tzinfo=None))

    def test_choice_08_limit_0_is_no_limit(self, site: Site) -> None:
        spaced(site, 3)
        assert len(site.engine.query(limit=0)) == 3

    def test_choice_09_an_end_is_an_event_too(self, site: Site) -> None:
        heard: list[str] = []
        site.engine.on("session.ended", lambda event: heard.append(event.data["outcome"]))
        site.start().discard("done")
        assert heard == ["done"]

    def test_choice_10_a_handoff_is_one_step(self, site: Site) -> None:
        """Killed at any of its moments it leaves the old session or the new one, linked both ways, and never both."""
        for point in ("handoff:intent-logged", "handoff:child-created", "handoff:moved", "handoff:child-ready"):
            parent = site.start()
            kill_at(point, parent.handoff)
            site.engine.recover()
            alive = [one.id for one in site.engine.chain(parent.id) if one.state == "active"]
            assert len(alive) == 1, point
            assert in_town(site, parent.id).get("child_id", parent.id) == alive[0], point
            site.engine.evict(alive[0])


class TestRule01:
    """Rule 1: the reader of a town's log."""

    def test_rule_01_a_missing_file_has_no_sessions(self, tmp_path: Path) -> None:
        assert read_index(tmp_path / "index.jsonl") == []
        assert read_town_events(tmp_path / ".events.jsonl") == []

    def test_rule_01_what_is_no_json_is_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "index.jsonl").write_text('not json\n{"id":"a"}\n[1]\n{"no":"id"}\n')
        assert read_index(tmp_path / "index.jsonl") == [{"id": "a"}]

    def test_rule_01_a_line_over_one_megabyte_is_passed_over(self, tmp_path: Path) -> None:
        """The real one gives up the whole list for it; there is nothing to gain by that."""
        (tmp_path / "index.jsonl").write_text(json.dumps({"id": "big", "x": "x" * (1 << 20)}) + '\n{"id":"a"}\n')
        assert read_index(tmp_path / "index.jsonl") == [{"id": "a"}]

    def test_rule_01_a_session_is_one_row_however_often_it_is_named(self, tmp_path: Path) -> None:
        """The real one gives a row for each start. A record is what a list is for; the lines themselves are all there, too."""
        line = '{"type":"session_start","id":"a"}\n'
        (tmp_path / "log").write_text(line * 2)
        assert (len(read_index(tmp_path / "log")), len(read_town_events(tmp_path / "log"))) == (1, 2)

    def test_rule_01_a_filter_is_exact(self, site: Site) -> None:
        """The real one takes part of a name in any case; ``polecats/Toast`` would be two rigs' agents."""
        site.start(**TOAST)
        assert site.engine.query(agent="toast") == []
        assert len(site.engine.query(agent=TOAST["agent"])) == 1

    def test_rule_01_a_limit_below_0_is_no_limit(self, site: Site) -> None:
        spaced(site, 2)
        assert len(site.engine.query(limit=-1)) == 2


class TestRule02:
    """Rule 2: an id by its beginning."""

    def test_rule_02_a_beginning_that_is_one_id_s_stands_for_it(self, site: Site) -> None:
        site.start(id="abc-123")
        site.start(id="def-789")
        assert site.engine.records.resolve("abc") == "abc-123"

    def test_rule_02_one_that_is_nobody_s_says_so(self, site: Site) -> None:
        """Of whatever length: an id of 36 characters is looked for, too."""
        for beginning in ("abc", "7c9e6679-7425-40de-944b-e07fc1f90ae7"):
            with pytest.raises(SessionNotFound, match="There is no session"):
                site.engine.records.resolve(beginning)

    def test_rule_02_one_that_is_several_s_names_the_first_three(self, site: Site) -> None:
        for number in range(4):
            site.start(id=f"abc-{number}")
        with pytest.raises(InvalidInput, match=r"'abc' is ambiguous: abc-0, abc-1, abc-2 and more\."):
            site.engine.records.resolve("abc")


class TestRule03And04:
    """Rules 3 and 4: who is dead, and who is not."""

    def test_rule_03_a_process_that_is_gone_is_found_dead_whatever_is_written(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        owner = Owner.here(process.pid, start_time(process.pid))
        assert owner.alive()
        process.communicate(b"", timeout=LONG)
        assert owner.alive() is False

    def test_rule_03_silence_alone_is_no_death(self, tmp_path: Path) -> None:
        owner = Lease(tmp_path / ".lock", stale_after=5).acquire()
        late = Lease(tmp_path / ".lock", wait=0, stale_after=5, now=lambda: owner.path.stat().st_mtime + 60)
        assert late.state() == "stale"
        with pytest.raises(EvictionRace, match="is stale"):
            late.acquire()
        owner.check()
        owner.release()

    def test_rule_04_a_note_that_is_damaged_names_nobody(self, tmp_path: Path) -> None:
        """The real one removes such a file. Here its contents never counted: who has it locked does."""
        (tmp_path / ".lock").write_text("not a process")
        lease = Lease(tmp_path / ".lock", wait=0)
        assert (lease.owner(), lease.state()) == (None, "available")
        lease.acquire().release()

    def test_rule_04_a_number_with_another_start_time_is_another_process(self) -> None:
        here = Owner.current()
        assert here.start_time is not None
        assert here.alive()
        assert replace(here, start_time=here.start_time + 1).alive() is False


def start_time(pid: int) -> int:
    """When a process started, in ticks, as its stat file says."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


class TestRule05And06:
    """Rules 5 and 6: a handoff happens once or not at all."""

    def test_rule_05_a_handoff_that_is_refused_leaves_nothing(self, site: Site) -> None:
        parent = site.start(**TOAST)
        before = parent.history()
        with pytest.raises(InvalidInput):
            parent.handoff(colour="red")
        assert parent.history() == before
        assert [one.id for one in site.engine.list_sessions()] == [parent.id]

    def test_rule_05_a_handoff_that_is_killed_before_the_child_is_born_never_was(self, site: Site) -> None:
        """The real one writes a mail first, and nothing happens without it. Here it is an intent in the parent's log."""
        parent = site.start(**TOAST)
        kill_at("handoff:intent-logged", parent.handoff)
        site.engine.recover()
        export(site.engine.store, site.root / "town")
        assert [line["type"] for line in read_town_events(site.root / "town/.events.jsonl")] == ["session_start"]
        assert parent.handoff().info().parent == parent.id

    def test_rule_06_what_was_handed_on_is_not_handed_on_again(self, site: Site) -> None:
        parent = site.start()
        child = parent.handoff()
        with pytest.raises(SessionExpired):
            parent.handoff()
        assert in_town(site, parent.id)["child_id"] == child.id

    def test_rule_06_a_start_that_is_told_of_no_parent_is_a_line_of_its_own(self, site: Site) -> None:
        site.start(**TOAST).discard("crash")
        record = site.start(**TOAST).view("gastown")
        assert "parent_id" not in record
        assert record["chain_id"] == record["id"]


class TestRule07To10:
    """Rules 7 to 10: files with several writers, and the mistakes of the sketch."""

    def test_rule_07_what_cannot_be_logged_does_not_happen(self, site: Site) -> None:
        """The real one does it and loses the event. Here the log is the truth, so that would be a lie."""
        session = site.start()
        log = site.directory(session) / "events.jsonl"
        kept = log.rename(log.with_name("away"))
        log.mkdir()
        with pytest.raises(AdapterUnavailable):
            session.record("user_message", {"text": "lost"})
        log.rmdir()
        kept.rename(log)
        assert session.history("user_message") == []

    def test_rule_07_writers_of_one_session_wait_for_one_another(self, site: Site) -> None:
        one = site.start()
        other = site.another().get_session(one.id)
        for session in (one, other) * 3:
            session.record("user_message", {"text": "hello"})
        assert [event.seq for event in one.history()] == list(range(8))

    def test_rule_08_a_torn_line_costs_itself_and_not_the_next(self, site: Site) -> None:
        """The real one goes on in the same line and loses both; here it is cut off, and the log says so."""
        session = site.start()
        with (site.directory(session) / "events.jsonl").open("ab") as file:
            file.write(b'{"v":1,"seq":2')
        session.record("user_message", {"text": "next"})
        assert site.types(session.id)[2:] == ["log.recovered", "user_message"]

    def test_rule_09_of_several_lines_of_an_index_the_last_counts(self, tmp_path: Path) -> None:
        ended = {"id": "a", "outcome": "done"}
        (tmp_path / "index.jsonl").write_text('{"id":"a"}\n{"id":"b"}\n' + json.dumps(ended) + "\n")
        assert read_index(tmp_path / "index.jsonl") == [ended, {"id": "b"}]

    def test_rule_09_an_end_at_the_zero_instant_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "index.jsonl").write_text('{"id":"a","ended_at":"0001-01-01T00:00:00Z"}\n')
        assert read_index(tmp_path / "index.jsonl") == [{"id": "a"}]

    def test_rule_09_an_export_writes_each_session_s_line_anew(self, site: Site) -> None:
        session = site.start(**TOAST)
        export(site.engine.store, site.root / "town")
        session.handoff(work_unit="gt-2")
        export(site.engine.store, site.root / "town")
        assert len((site.root / "town/.sessions/index.jsonl").read_text().splitlines()) == 2

    def test_rule_10_the_terminal_s_name_and_the_id_are_two_things(self, site: Site) -> None:
        record = site.start(**TOAST).view("gastown")
        assert record["tmux_session"] == TOAST["tmux_session"] != record["id"]

    def test_rule_10_a_child_is_told_its_own_id(self, site: Site) -> None:
        parent = site.start()
        child = parent.handoff()
        inherited = child.environment(parent.environment({}))
        assert (inherited["GT_SESSION_UUID"], resolve(inherited).id) == (child.id, child.id)

    def test_rule_10_the_link_to_a_crashed_one_is_made_with_the_start(self, site: Site) -> None:
        """Killed between the two logs, it is taken back, and the crashed one may have another successor."""
        crashed = site.start()
        crashed.discard("crash")
        kill_at("start:filled", lambda: site.start(parent=crashed.id))
        site.engine.recover()
        assert "child_id" not in in_town(site, crashed.id)
        assert site.start(parent=crashed.id).info().parent == crashed.id
