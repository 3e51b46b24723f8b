"""Gas Town's "Session as First-Class Object", from its integration points to its open questions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from support.engine import Site
from support.gastown import born
from support.walkthrough import CALL, LONG, NUX, TOAST, in_town

from pytest_gittrix import GitTrix
from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.engine.event_stream import follow
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.gastown.files import export, read_town_events
from pytest_gittrix.gastown.runtime_id import resolve
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.store.index import SMALL
from pytest_gittrix.record.store.index_tables import FILE as INDEX
from pytest_gittrix.views import gastown
from pytest_gittrix.views.gastown_names import address_of, name_of

WITNESS = """
import sys
from pytest_gittrix import GitTrix
from pytest_gittrix.engine.event_stream import follow
socket, durable, store = sys.argv[1:]
lines = follow(socket, types=["workspace.removed"])
print("listening", flush=True)
with GitTrix(durable, store=store, sweep_interval=None) as engine:
    print(engine.start_session("again", parent=next(lines)["session"]).id)
"""


def told_by_town(site: Site) -> list[dict[str, Any]]:
    """The town's event log, as an export writes it."""
    export(site.engine.store, site.root / "town")
    return read_town_events(site.root / "town/.events.jsonl")


class TestCurrentState:
    """Background: the four places where sessions were before."""

    def test_1_the_name_of_a_terminal_finds_its_agent(self) -> None:
        prefixes = {"gt-gastown": "gastown"}
        assert address_of("gt-gastown-Toast", prefixes) == TOAST["agent"]
        assert name_of(TOAST["agent"], prefixes) == TOAST["tmux_session"]

    def test_2_the_town_s_events_log_hears_of_starts_and_ends(self, site: Site) -> None:
        site.start(**TOAST).discard("done")
        assert [line["type"] for line in told_by_town(site)] == ["session_start", "session_end"]

    def test_3_the_runtime_s_session_id_is_captured(self) -> None:
        found = resolve({"CLAUDE_SESSION_ID": "abc-123"})
        assert (found.id, found.source) == ("abc-123", "CLAUDE_SESSION_ID")

    @pytest.mark.parametrize(("minutes", "colour"), [(0, "green"), (5, "yellow"), (10, "red")])
    def test_4_activity_is_how_long_ago_an_agent_was_seen(self, site: Site, minutes: int, colour: str) -> None:
        def seen() -> str:
            return gastown.activity(site.state(session.id).last_access_ns, site.clock.now_ns())

        session = site.start()
        site.clock.advance(minutes=minutes)
        assert seen() == colour
        session.for_agent().write("app.py", "v2\n")
        assert seen() == "green"


class TestIntegrationPoints:
    """Integration Points."""

    def test_1_spawn_registers_with_terminal_agent_rig_role_work_and_directory(self, site: Site) -> None:
        facts = {**TOAST, "work_unit": "gt-xyz", "cwd": "/town/toast"}
        assert site.start(**facts).view("gastown").items() >= facts.items()

    def test_1_spawn_sets_the_session_s_id_in_the_agent_s_environment(self, site: Site) -> None:
        session = site.start(**TOAST)
        program = [sys.executable, "-c", "import os; print(os.environ['GT_SESSION_UUID'])"]
        said = subprocess.run(program, env=session.environment(), capture_output=True, text=True, timeout=LONG, check=True)
        assert said.stdout.strip() == session.id

    def test_3_handoff_links_and_the_new_process_gets_the_new_id(self, site: Site) -> None:
        parent = site.start(**TOAST)
        child = site.engine.get_session(resolve(parent.environment({})).id).handoff()
        assert in_town(site, child.id)["parent_id"] == parent.id
        assert resolve(child.environment(parent.environment({}))).id == child.id

    def test_4_a_crash_is_recorded_and_the_respawn_linked_to_it(self, site: Site) -> None:
        crashed = site.start(**TOAST)
        crashed.discard("crash")
        respawned = site.start(parent=crashed.id, **TOAST)
        record = in_town(site, respawned.id)
        assert (record["parent_id"], record["chain_id"]) == (crashed.id, crashed.id)
        assert in_town(site, crashed.id).items() >= {"outcome": "crash", "child_id": respawned.id}.items()

    def test_4_what_a_crashed_agent_left_is_set_aside(self, site: Site) -> None:
        """A respawn begins at durable's head; the document says nothing of the files."""
        crashed = site.start(**TOAST)
        crashed.write("app.py", "half\n")
        crashed.discard("crash")
        assert "+half" in (site.directory(crashed) / "archive.patch").read_text()
        assert site.start(parent=crashed.id).read("app.py") == b"v1\n"

    def test_5_events_are_announced_besides_the_index(self, site: Site) -> None:
        heard: list[Event] = []
        site.engine.on("session.start", heard.append)
        session = site.start(**TOAST)
        assert [event.stream for event in heard] == [session.id]
        assert [one.id for one in site.engine.query(agent=TOAST["agent"])] == [session.id]

    def test_5_session_start_has_the_documented_payload(self, site: Site) -> None:
        session = site.start("fix the bug", **TOAST, work_unit="gt-xyz", cwd="/town/toast")
        (line,) = told_by_town(site)
        assert line == {
            "ts": "2030-01-01T00:00:00Z",
            "source": "gt",
            "type": "session_start",
            "actor": TOAST["agent"],
            "payload": {
                "session_id": session.id,
                "role": "polecat",
                "topic": "fix the bug",
                "work_unit": "gt-xyz",
                "cwd": "/town/toast",
            },
            "visibility": "feed",
        }


class TestChainIdDesign:
    """Chain ID Design."""

    def test_the_first_session_s_chain_id_is_its_own_id(self, site: Site) -> None:
        session = site.start()
        assert session.view("gastown")["chain_id"] == session.id

    def test_later_ones_inherit_it_from_their_parent(self, site: Site) -> None:
        first = site.start()
        second = first.handoff()
        second.discard("crash")
        third = site.start(parent=second.id)
        assert {in_town(site, id_)["chain_id"] for id_ in (first.id, second.id, third.id)} == {first.id}

    def test_all_sessions_that_worked_on_a_unit(self, site: Site) -> None:
        first = site.start(**TOAST, work_unit="gt-xyz")
        site.clock.advance(minutes=1)
        second = first.handoff()
        site.start(**NUX, work_unit="gt-abc")
        assert [one.id for one in site.engine.chain(work_unit="gt-xyz")] == [first.id, second.id]
        assert {one.id for one in site.engine.query(work_unit="gt-xyz")} == {first.id, second.id}

    def test_what_an_issue_cost_is_a_sum_over_its_line(self, site: Site) -> None:
        first = site.start(work_unit="gt-xyz")
        first.record("provider_usage", {"cost_usd": 2})
        second = first.handoff()
        second.record("provider_usage", {"cost_usd": 3})
        logs = [site.events(one.id) for one in site.engine.chain(work_unit="gt-xyz")]
        assert sum(event.data["cost_usd"] for log in logs for event in log if event.type == "provider_usage") == 5

    def test_the_work_is_replayed_from_the_beginning(self, site: Site) -> None:
        first = site.start()
        first.record("user_message", {"text": "one"})
        site.clock.advance(minutes=1)
        second = first.handoff()
        second.record("user_message", {"text": "two"})
        log = [event for one in site.engine.chain(first.id) for event in site.events(one.id)]
        assert [event.data["text"] for event in log if event.type == "user_message"] == ["one", "two"]


class TestSeance:
    """Seance Integration."""

    def test_an_agent_s_predecessors_are_one_query(self, site: Site) -> None:
        site.start(**TOAST)
        site.clock.advance(days=1, hours=1, timers="none")
        lately = site.start(**TOAST)
        site.start(**NUX)
        found = site.engine.query(agent=TOAST["agent"], since=site.clock.now() - timedelta(hours=24))
        assert [one.id for one in found] == [lately.id]

    def test_the_chain_of_the_current_work(self, site: Site) -> None:
        first = site.start()
        current = first.handoff()
        assert {one.id for one in site.engine.chain(current.info().chain)} == {first.id, current.id}


class TestMigrationPath:
    """Migration Path: its three phases."""

    def test_phase_1_the_index_makes_itself(self, site: Site) -> None:
        """Below 64 sessions it is made in memory each time; the document's ``index.jsonl`` is written by an export."""
        for number in range(SMALL):
            born(site.engine.store, f"s{number}")
        assert len(site.engine.query(agent="gastown/polecats/Toast")) == SMALL
        assert (site.store / INDEX).exists()

    def test_phase_2_steps_are_events(self, site: Site) -> None:
        session = site.start(**TOAST, molecule_id="mol-1")
        with session.step("build"):
            pass
        with pytest.raises(RuntimeError), session.step("test"):
            raise RuntimeError("red")
        lines = [(line["type"], line["payload"].get("outcome")) for line in told_by_town(site)[1:]]
        started, completed = "session_step_started", "session_step_completed"
        assert lines == [(started, None), (completed, "done"), (started, None), (completed, "failed")]

    def test_phase_2_the_history_of_steps_is_in_the_session_s_file(self, site: Site) -> None:
        session = site.start(**TOAST)
        for name in ("build", "test"):
            with session.step(name, molecule_id="mol-1"):
                site.clock.advance(minutes=1)
        export(site.engine.store, site.root / "town")
        steps = json.loads((site.root / f"town/.sessions/{session.id}.json").read_text())["steps"]
        assert [(step["step"], step["molecule_id"], step["started_at"], step["ended_at"]) for step in steps] == [
            ("build", "mol-1", "2030-01-01T00:00:00Z", "2030-01-01T00:01:00Z"),
            ("test", "mol-1", "2030-01-01T00:01:00Z", "2030-01-01T00:02:00Z"),
        ]

    def test_phase_2_a_step_is_replayed_by_itself(self, site: Site) -> None:
        session = site.start(**TOAST)
        session.write("app.py", "before\n")
        with session.step("build"):
            session.record("tool_call", CALL)
            session.record("tool_result", {"call_id": "c1", "ok": True})
        session.write("app.py", "after\n")
        (step,) = gastown.steps(session.history())
        replayed = [event.type for event in gastown.step_events(session.history(), step)]
        assert replayed == ["step.started", "tool_call", "tool_result", "step.completed"]

    def test_phase_3_events_are_told_on_a_unix_socket(self, site: Site) -> None:
        with site.engine.stream(site.root / "town.sock"):
            lines = follow(site.root / "town.sock")
            session = site.start(**TOAST)
            line = next(lines)
        assert (line["session"], line["type"], line["seq"]) == (session.id, "session.created", 0)

    def test_phase_3_a_dashboard_subscribes_to_what_it_shows(self, site: Site) -> None:
        shown, other = site.start(**TOAST), site.start(**NUX)
        with site.engine.stream(site.root / "town.sock"):
            lines = follow(site.root / "town.sock", session=shown.id, types=["status", "session.ended"])
            other.emit("status", {"status": "thinking"})
            shown.emit("status", {"status": "done"})
            shown.discard()
        assert [line["type"] for line in lines] == ["status", "session.ended"]

    def test_phase_3_a_witness_reacts_without_polling(self, site: Site) -> None:
        """A program of its own, which waits for one line of the socket."""
        crashed = site.start(**TOAST)
        with site.engine.stream(site.root / "town.sock"):
            told = [str(site.root / "town.sock"), str(site.durable.path), str(site.store)]
            with subprocess.Popen([sys.executable, "-c", WITNESS, *told], stdout=subprocess.PIPE, text=True) as witness:
                assert witness.stdout is not None
                assert witness.stdout.readline() == "listening\n"
                crashed.discard("crash")
                respawned, _ = witness.communicate(timeout=LONG)
        assert in_town(site, crashed.id)["child_id"] == respawned.strip()


class TestFileStructure:
    """File Structure."""

    def test_is_that_of_the_document(self, site: Site) -> None:
        old = site.start(**TOAST)
        old.discard("done")
        site.clock.advance(days=30)
        young = site.start(**TOAST)
        export(site.engine.store, site.root / "town", archive_before=site.clock.now())
        town = site.root / "town"
        files = {path.relative_to(town).as_posix() for path in town.rglob("*") if path.is_file()}
        assert files - {".gittrix-export"} == {
            ".events.jsonl",
            ".sessions/index.jsonl",
            f".sessions/{young.id}.json",
            f".sessions/archive/{old.id}.json",
        }


class TestBackwardCompatibility:
    """Backward Compatibility."""

    def test_the_claude_variable_counts_where_the_town_s_own_is_not_set(self) -> None:
        assert resolve({"CLAUDE_SESSION_ID": "c", "GT_SESSION_UUID": "g"}).id == "g"
        assert resolve({"CLAUDE_SESSION_ID": "c", "GT_SESSION_UUID": ""}).id == "c"

    def test_the_events_log_continues_to_receive_session_events(self, site: Site) -> None:
        session = site.start(**TOAST)
        before = told_by_town(site)
        session.handoff()
        later = told_by_town(site)
        assert [line in later for line in before] == [True]
        assert {line["type"] for line in later} == {"session_start", "handoff", "session_end"}

    def test_a_town_s_own_log_is_never_replaced(self, site: Site) -> None:
        town = site.root / "town"
        town.mkdir()
        own = '{"ts":"2026-01-17T01:00:00Z","source":"gt","type":"sling","actor":"mayor","visibility":"feed"}\n'
        (town / ".events.jsonl").write_text(own)
        with pytest.raises(InvalidInput, match="no export made it"):
            export(site.engine.store, town)
        assert (town / ".events.jsonl").read_text() == own

    def test_beads_are_not_touched(self, site: Site) -> None:
        beads = site.durable.path / ".beads"
        beads.mkdir()
        (beads / "issues.jsonl").write_text('{"id":"gt-xyz"}\n')
        before = site.durable.fingerprint()
        site.start(**TOAST, work_unit="gt-xyz").handoff()
        export(site.engine.store, site.root / "town")
        assert site.durable.fingerprint() == before


class TestOpenQuestions:
    """Open Questions."""

    def test_1_retention_is_a_date_that_whoever_exports_chooses(self, site: Site) -> None:
        """Logs stay; what ended before that date is in the archive and not beside it."""
        session = site.start(**TOAST)
        session.discard("done")
        done = export(site.engine.store, site.root / "town", archive_before=CLOCK_START + timedelta(days=1))
        assert (done.sessions, done.archived) == (1, 1)
        assert site.events(session.id)[-1].type == "workspace.removed"

    def test_2_sessions_of_another_machine_are_read_from_a_copy_of_its_store(self, site: Site) -> None:
        """There is no index over machines. A store is plain files, so a copied one can be queried."""
        session = site.start(**TOAST)
        session.discard("done")
        shutil.copytree(site.store, site.root / "elsewhere/sessions")
        elsewhere = GitTrix(None, store=site.root / "elsewhere/sessions", clock=site.clock)
        assert [one.id for one in elsewhere.query(agent=TOAST["agent"])] == [session.id]
        elsewhere.close()

    def test_3_cost_is_an_event_of_the_session_like_any_other(self, site: Site) -> None:
        session = site.start(**TOAST)
        usage = {"input_tokens": 10, "output_tokens": 20, "cost_usd": 0.5}
        session.record("provider_usage", usage)
        assert [event.data for event in session.history("provider_usage")] == [usage]


def test_nothing_of_it_is_written_below_the_person_s_home(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Location: the town's directory is the caller's choice, never ``~/gt`` by itself."""
    home = site.root / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    site.start(**TOAST).discard("done")
    told_by_town(site)
    assert os.listdir(home) == []
