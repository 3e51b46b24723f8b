"""Gas Town's "Session as First-Class Object", from its overview to its API: each requirement, field, state, file and call."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.engine import Site, kill_at, shell
from support.gastown import born
from support.walkthrough import NUX, TOAST, in_town

from pytest_gittrix import UserSession
from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.errors import InvalidInput, SessionExpired, SessionNotFound
from pytest_gittrix.gastown import files
from pytest_gittrix.gastown.runtime_id import resolve
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.store.index import SMALL
from pytest_gittrix.record.store.index_tables import FILE
from pytest_gittrix.views import gastown, state_in


def ended_as(site: Site, outcome: str, **identity: str) -> str:
    """A session of Toast that ended so; its id."""
    session = site.start(**{**TOAST, **identity})
    if outcome == "handoff":
        session.handoff()
    else:
        site.engine.evict(session.id, "discarded", outcome=outcome)
    return session.id


class TestRequirements:
    """Requirements."""

    def test_identity_is_one_id_with_agent_rig_start_time_and_work(self, site: Site) -> None:
        one, other = site.start(**TOAST, work_unit="gt-xyz"), site.start(**TOAST)
        record = one.view("gastown")
        assert one.id != other.id
        assert (record["agent"], record["rig"], record["work_unit"]) == (TOAST["agent"], "gastown", "gt-xyz")
        assert record["started_at"] == "2030-01-01T00:00:00Z"

    @pytest.mark.parametrize("end", ["handoff", "done", "crash"])
    @pytest.mark.parametrize("start", ["spawn", "handoff"])
    def test_boundaries_are_events_a_start_and_an_end(self, site: Site, start: str, end: str) -> None:
        session = site.start(**TOAST) if start == "spawn" else site.start(**TOAST).handoff()
        if end == "handoff":
            session.handoff()
        else:
            session.discard(end)
        types = site.types(session.id)
        assert (types[0], types.count("session.created"), types.count("workspace.ready")) == ("session.created", 1, 1)
        assert [event.data["outcome"] for event in site.events(session.id) if event.type == "session.ended"] == [end]

    def test_persistence_survives_a_restart_and_leaves_everything_to_replay(self, site: Site) -> None:
        session = site.start(**TOAST)
        session.record("user_message", {"text": "hello"})
        before = session.history()
        site.engine.close()
        with site.another() as restarted:
            assert restarted.get_session(session.id).history() == before
            restarted.evict(session.id, outcome="killed")
            assert restarted.store.log(session.id).read()[: len(before)] == before

    def test_querying_by_agent_time_range_outcome_and_work_unit(self, site: Site) -> None:
        site.start(**NUX, work_unit="gt-xyz")
        site.clock.advance(hours=1)
        wanted = ended_as(site, "done", work_unit="gt-xyz")
        site.clock.advance(hours=1)
        ended_as(site, "done", work_unit="gt-xyz")
        since, until = (CLOCK_START + timedelta(minutes=minutes) for minutes in (30, 90))
        found = site.engine.query(agent=TOAST["agent"], since=since, until=until, outcome="done", work_unit="gt-xyz")
        assert [one.id for one in found] == [wanted]

    def test_linking_is_kept_on_both_sides_of_a_handoff(self, site: Site) -> None:
        parent = site.start(**TOAST)
        child = parent.handoff()
        assert in_town(site, parent.id)["child_id"] == child.id
        assert in_town(site, child.id)["parent_id"] == parent.id


class TestTheSessionObject:
    """Data Model, Session Object."""

    def test_id_is_the_runtime_s_uuid_where_it_has_one(self, site: Site) -> None:
        given = str(uuid4())
        session = site.start(id=resolve({"CLAUDE_SESSION_ID": given}).id)
        assert session.view("gastown")["id"] == session.id == given

    def test_id_is_made_up_where_nobody_tells_one(self, site: Site) -> None:
        """Ours begin with ``sess_``; whoever wants UUIDs has them made by ``resolve``, or gives the engine ``ids=``."""
        assert site.start().id.startswith("sess_")
        assert UUID(site.start(id=resolve({}).id).id).version == 4

    @pytest.mark.parametrize("name", ["tmux_session", "agent", "rig", "role", "work_unit", "molecule_id", "step_ref", "cwd"])
    def test_what_is_told_at_the_start_is_a_field(self, site: Site, name: str) -> None:
        assert site.start(**{name: "told"}).view("gastown")[name] == "told"

    def test_what_an_agent_is_is_told_anew_when_it_changes(self, site: Site) -> None:
        session = site.start(**TOAST, work_unit="gt-1")
        session.identify(work_unit="gt-2")
        assert session.view("gastown")["work_unit"] == "gt-2"

    def test_started_at_and_ended_at_are_the_clock_s(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(minutes=90)
        session.discard()
        record = in_town(site, session.id)
        assert (record["started_at"], record["ended_at"]) == ("2030-01-01T00:00:00Z", "2030-01-01T01:30:00Z")

    @pytest.mark.parametrize("outcome", ["handoff", "done", "crash", "killed"])
    def test_outcome_is_one_of_four(self, site: Site, outcome: str) -> None:
        assert in_town(site, ended_as(site, outcome))["outcome"] == outcome

    def test_outcome_of_another_name_is_refused_and_ends_nothing(self, site: Site) -> None:
        session = site.start()
        with pytest.raises(InvalidInput, match="cannot have ended as 'fine'"):
            session.discard("fine")
        assert session.info().state == "active"

    def test_step_ref_is_the_step_that_runs(self, site: Site) -> None:
        session = site.start(**TOAST, molecule_id="mol-1")
        with session.for_agent().step("build", molecule_id="mol-2"):
            running = session.view("gastown")
        assert (running["step_ref"], running["molecule_id"]) == ("build", "mol-2")
        assert "step_ref" not in session.view("gastown")

    def test_parent_id_and_child_id_are_the_neighbours_in_the_line(self, site: Site) -> None:
        first = site.start()
        second = first.handoff()
        third = second.handoff()
        record = in_town(site, second.id)
        assert (record["parent_id"], record["child_id"]) == (first.id, third.id)

    def test_chain_id_is_shared_by_the_line(self, site: Site) -> None:
        first = site.start()
        second = first.handoff()
        assert in_town(site, first.id)["chain_id"] == in_town(site, second.id)["chain_id"]

    def test_cwd_and_branch_are_the_workspace_and_durable_s_branch_unless_told(self, site: Site) -> None:
        session = site.start()
        record = session.view("gastown")
        assert (record["cwd"], record["branch"]) == (str(session.workspace_path), "main")
        record = site.start(cwd="toast", topic_branch="fix/it").view("gastown")
        assert (record["cwd"], record["branch"]) == ("toast", "fix/it")

    def test_commits_are_those_made_in_the_session(self, site: Site) -> None:
        agent = site.start().for_agent()
        shas = [agent.write_and_commit({"app.py": f"v{number}\n"}, "step") for number in (2, 3)]
        shell(agent, "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m 'in a shell'")
        assert in_town(site, agent.id)["commits"] == shas
        assert [one.message.strip() for one in agent.log()][:3] == ["in a shell", "step", "step"]

    def test_what_is_not_known_is_left_out(self, site: Site) -> None:
        """A session that nobody names still has the five fields of an identity, empty as Go writes them."""
        record = site.start().view("gastown")
        omitted = {"ended_at", "outcome", "work_unit", "molecule_id", "step_ref", "parent_id", "child_id", "commits"}
        assert not omitted & record.keys()
        assert [record[name] for name in ("tmux_session", "agent", "rig", "role")] == [""] * 4


class TestSessionStates:
    """Session States."""

    def test_spawn_is_a_session_whose_workspace_is_not_there_yet(self, site: Site) -> None:
        site.engine.init()
        kill_at("start:created", lambda: site.start(id="s1"))
        assert state_in(site.events("s1"), "gastown") == "spawn"

    def test_active_is_a_session_that_started(self, site: Site) -> None:
        assert state_in(site.start().history(), "gastown") == "active"

    def test_handoff_spawns_a_child_that_is_active(self, site: Site) -> None:
        parent = site.start()
        child = parent.handoff()
        assert [state_in(site.events(id_), "gastown") for id_ in (parent.id, child.id)] == ["handoff", "active"]

    def test_done_is_work_that_is_complete_and_promoted(self, site: Site) -> None:
        """Where Gas Town submits to its merge queue, a person promotes here: work that is in durable is done."""
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        assert state_in(site.events(session.id), "gastown") == "done"

    def test_done_can_be_said_without_a_promotion(self, site: Site) -> None:
        assert state_in(site.events(ended_as(site, "done")), "gastown") == "done"

    def test_crash_is_said_by_who_finds_it(self, site: Site) -> None:
        assert state_in(site.events(ended_as(site, "crash")), "gastown") == "crash"

    def test_killed_is_an_end_on_purpose(self, site: Site) -> None:
        session = site.start()
        session.discard()
        assert state_in(site.events(session.id), "gastown") == "killed"

    def test_the_table_is_that_of_the_diagram(self) -> None:
        ends = {"handoff", "done", "crash", "killed"}
        assert {"spawn": {"active"}, "active": ends, **{end: set() for end in ends}} == gastown.LEGAL

    @pytest.mark.parametrize("outcome", ["handoff", "done", "crash", "killed"])
    def test_terminal_is_for_ever(self, site: Site, outcome: str) -> None:
        id_ = ended_as(site, outcome)
        with pytest.raises(SessionExpired):
            site.engine.get_session(id_)
        with pytest.raises(SessionExpired):
            site.engine.evict(id_, outcome="done")


class TestStorage:
    """Storage Mechanism: events, an index, a file for each session."""

    def test_the_events_log_is_only_appended_to(self, site: Site) -> None:
        session = site.start(**TOAST)
        log = site.directory(session) / "events.jsonl"
        seen = [log.read_bytes()]
        session.write("app.py", "v2\n")
        seen.append(log.read_bytes())
        session.handoff()
        seen.append(log.read_bytes())
        assert all(later.startswith(earlier) and later != earlier for earlier, later in pairwise(seen))

    def test_the_town_s_events_log_is_only_appended_to(self, site: Site) -> None:
        log = site.root / "town/.events.jsonl"
        session = site.start(**TOAST)
        files.export(site.engine.store, site.root / "town")
        before, file = log.read_bytes(), log.stat().st_ino
        session.discard("done")
        files.export(site.engine.store, site.root / "town")
        added = log.read_bytes().removeprefix(before)
        assert (log.stat().st_ino, log.read_bytes()) == (file, before + added)
        assert [json.loads(line)["type"] for line in added.splitlines()] == ["session_end"]

    def test_events_are_the_truth_and_the_index_is_derived(self, site: Site) -> None:
        ids = [ended_as(site, "done"), site.start(**TOAST).id, *(born(site.engine.store, f"s{number}") for number in range(SMALL))]
        before = site.engine.query(agent=TOAST["agent"])
        assert {one.id for one in before} == {*ids}
        site.engine.close()
        (site.store / FILE).unlink()
        for id_ in ids[:2]:
            (site.directory(id_) / "metadata.json").unlink()
        with site.another() as engine:
            assert engine.query(agent=TOAST["agent"]) == before
        assert (site.store / FILE).exists()

    def test_a_lookup_is_the_index_s_and_reads_no_log(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(SMALL):
            born(site.engine.store, f"s{number}")
        wanted = ended_as(site, "crash", work_unit="gt-xyz")
        site.engine.query()
        read: list[str] = []
        reading = EventLog.read

        def note(log: EventLog, *options: Any) -> Any:
            read.append(str(log.path))
            return reading(log, *options)

        monkeypatch.setattr(EventLog, "read", note)
        monkeypatch.setattr(type(site.engine.store), "load", lambda _store, id_: read.append(id_))
        assert len(site.engine.list_sessions()) == SMALL + 1
        assert [one.id for one in site.engine.query(work_unit="gt-xyz", outcome="crash")] == [wanted]
        assert read == []

    def test_the_index_file_has_the_documented_lines(self, site: Site, tmp_path: Path) -> None:
        first = site.start(**TOAST, work_unit="gt-xyz", id="abc-123")
        site.clock.advance(hours=1)
        second = first.handoff()
        files.export(site.engine.store, tmp_path / "town")
        lines = [json.loads(line) for line in (tmp_path / "town/.sessions/index.jsonl").read_text().splitlines()]
        common = {"agent": TOAST["agent"], "work_unit": "gt-xyz", "chain_id": "abc-123"}
        assert lines == [
            {"id": "abc-123", **common, "started_at": "2030-01-01T00:00:00Z"},
            {"id": second.id, **common, "started_at": "2030-01-01T01:00:00Z", "parent_id": "abc-123"},
        ]

    def test_a_session_s_own_file_has_its_record_and_its_steps(self, site: Site, tmp_path: Path) -> None:
        session = site.start(**TOAST)
        with session.step("build"):
            pass
        files.export(site.engine.store, tmp_path / "town")
        stored = json.loads((tmp_path / f"town/.sessions/{session.id}.json").read_text())
        (step,) = stored.pop("steps")
        assert stored == session.view("gastown")
        assert (step["step"], step["outcome"]) == ("build", "done")

    def test_old_sessions_are_archived(self, site: Site, tmp_path: Path) -> None:
        old = ended_as(site, "done")
        site.clock.advance(days=1)
        young = ended_as(site, "done")
        files.export(site.engine.store, tmp_path / "town", archive_before=site.clock.now() - timedelta(hours=1))
        sessions = tmp_path / "town/.sessions"
        assert os.listdir(sessions / "archive") == [f"{old}.json"]
        assert f"{young}.json" in os.listdir(sessions)

    def test_session_data_is_operational_state_that_git_never_sees(self, site: Site) -> None:
        before = site.durable.fingerprint()
        ended_as(site, "handoff")
        ended_as(site, "done")
        assert site.durable.fingerprint() == before
        assert not (site.store / ".git").exists()


class TestTheApi:
    """API Design, and the Query interface."""

    def test_start_records_a_session_and_gives_its_id(self, site: Site) -> None:
        session = site.start(**TOAST)
        assert [one.id for one in site.engine.list_sessions()] == [session.id]

    def test_end_records_how_it_ended(self, site: Site) -> None:
        session = site.start(**TOAST)
        site.engine.evict(session.id, "discarded", outcome="done")
        assert site.engine.info(session.id).outcome == "done"

    def test_handoff_links_parent_and_child_and_gives_the_new_one(self, site: Site) -> None:
        parent = site.start(**TOAST, work_unit="gt-1")
        parent.write("app.py", "half\n")
        child = parent.handoff("the second half", work_unit="gt-2")
        assert isinstance(child, UserSession)
        assert child.read("app.py") == b"half\n"
        assert (child.info().parent, child.info().relation, child.info().task) == (parent.id, "handoff", "the second half")
        assert child.view("gastown").items() >= {**TOAST, "work_unit": "gt-2"}.items()

    def test_get_gives_a_session_by_its_id_also_once_it_ended(self, site: Site) -> None:
        """``get_session`` gives one to work with and so only live ones; ``info`` and the log know all."""
        live, ended = site.start(), ended_as(site, "done")
        assert site.engine.get_session(live.id).id == live.id
        assert site.engine.info(ended).outcome == in_town(site, ended)["outcome"] == "done"

    def test_get_of_what_is_not_there_says_so(self, site: Site) -> None:
        with pytest.raises(SessionNotFound):
            site.engine.get_session("nobody")

    def test_query_without_criteria_finds_all(self, site: Site) -> None:
        ids = {ended_as(site, "done"), site.start().id}
        assert {one.id for one in site.engine.query()} == ids

    @pytest.mark.parametrize(
        ("criterion", "value"),
        [("agent", NUX["agent"]), ("rig", "beads"), ("work_unit", "gt-2"), ("chain", "wanted"), ("outcome", "crash")],
    )
    def test_query_by_one_criterion(self, site: Site, criterion: str, value: str) -> None:
        ended_as(site, "done", work_unit="gt-1")
        wanted = site.start(id="wanted", **{**NUX, "rig": "beads"}, work_unit="gt-2")
        wanted.discard("crash")
        asked: dict[str, Any] = {criterion: value}
        assert [one.id for one in site.engine.query(**asked)] == ["wanted"]

    @pytest.mark.parametrize(("end", "outcome"), [("promoted", "done"), ("discarded", "killed"), ("expired", "killed")])
    def test_query_by_outcome_finds_what_became_of_the_work_where_nobody_said(self, site: Site, end: str, outcome: str) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        if end == "promoted":
            session.promote()
        else:
            site.engine.evict(session.id, end)
        assert [one.id for one in site.engine.query(outcome=outcome)] == [session.id]

    def test_query_since_and_until(self, site: Site) -> None:
        ids = []
        for _ in range(3):
            ids.append(site.start().id)
            site.clock.advance(hours=1)
        found = site.engine.query(since=CLOCK_START + timedelta(minutes=30), until=CLOCK_START + timedelta(minutes=90))
        assert [one.id for one in found] == [ids[1]]

    def test_query_limit(self, site: Site) -> None:
        for _ in range(3):
            site.start()
        assert len(site.engine.query(limit=2)) == 2

    def test_query_of_several_criteria_finds_what_fits_them_all(self, site: Site) -> None:
        wanted = ended_as(site, "crash", work_unit="gt-1")
        ended_as(site, "done", work_unit="gt-1")
        ended_as(site, "crash", work_unit="gt-2")
        assert [one.id for one in site.engine.query(outcome="crash", work_unit="gt-1", rig="gastown")] == [wanted]

    def test_get_chain_gives_all_sessions_of_a_line(self, site: Site) -> None:
        line = [site.start()]
        for _ in range(2):
            site.clock.advance(minutes=1)
            line.append(line[-1].handoff())
        site.start()
        assert [one.id for one in site.engine.chain(line[0].id)] == [one.id for one in line]

    def test_get_chain_of_a_line_that_is_none_is_empty(self, site: Site) -> None:
        site.start()
        assert site.engine.chain("nobody") == []
