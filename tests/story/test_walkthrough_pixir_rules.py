"""Pixir: the twelve edge rules that its code and tests decide; docstrings say where we differ, and why."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site
from support.walkthrough import CALL, LONG

from pytest_gittrix import UserSession
from pytest_gittrix.engine.agents.turns import RUNS, TurnContext
from pytest_gittrix.errors import EvictionRace, LeaseLost, LogDamaged, MetadataVersionUnsupported, SessionExpired, TurnOver, WriteRejected
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.views import pixir

everywhere = pytest.mark.parametrize("runs", RUNS)
HELLO = {"text": "hello"}


def log_of(site: Site, session: UserSession) -> Path:
    """The file of a session's log."""
    return site.directory(session) / "events.jsonl"


def results(session: UserSession) -> list[dict[str, Any]]:
    """The answers of tools."""
    return [dict(event.data) for event in session.history("tool_result")]


def interrupted(site: Site, session: UserSession, runs: str) -> None:
    """Interrupt a turn that called a tool and waits for its answer."""
    called = threading.Event()
    site.engine.on("tool_call", lambda _event: called.set())

    def body(context: TurnContext) -> None:
        context.record("tool_call", CALL)
        threading.Event().wait()

    session.start_turn(body, runs=runs)
    assert called.wait(LONG)
    session.interrupt()


class TestRule01:
    """Rule 1: calls without an answer."""

    def test_rule_01_an_orphan_gets_one_documented_answer(self, session: UserSession) -> None:
        session.record("tool_call", CALL)
        session.start_turn(lambda _context: None, runs="thread").wait(LONG)
        (answer,) = results(session)
        assert (answer["call_id"], answer["ok"], answer["error"]["kind"]) == ("c1", False, "orphan_tool_call")
        assert answer["error"]["details"] == {"call_id": "c1", "tool": "grep", "reason": "before_start_turn"}

    def test_rule_01_several_are_answered_in_the_order_of_their_ids(self, session: UserSession) -> None:
        for call_id in ("b", "c", "a"):
            session.record("tool_call", {**CALL, "call_id": call_id})
        session.interrupt()
        assert [answer["call_id"] for answer in results(session)] == ["a", "b", "c"]

    def test_rule_01_an_answer_before_its_call_does_not_count(self, session: UserSession) -> None:
        session.record("tool_result", {"call_id": "c1", "ok": True})
        session.record("tool_call", CALL)
        assert fold(session.history()).calls == {"c1": "grep"}

    def test_rule_01_an_id_that_is_used_again_is_open_again(self, session: UserSession) -> None:
        for _ in range(2):
            session.record("tool_call", CALL)
            assert fold(session.history()).calls == {"c1": "grep"}
            session.record("tool_result", {"call_id": "c1", "ok": True})

    def test_rule_01_one_answer_is_enough_for_two_calls_of_one_id(self, session: UserSession) -> None:
        session.record("tool_call", CALL)
        session.record("tool_call", CALL)
        session.interrupt()
        session.interrupt()
        assert len(results(session)) == 1


class TestRule02And03:
    """Rules 2 and 3: what a crash and an interrupt leave in the log."""

    @everywhere
    def test_rule_02_a_crash_records_nothing_of_its_own_in_the_conversation(self, session: UserSession, runs: str) -> None:
        """No ``turn_failed``: that is for the turn to say. The engine's own ``turn.ended`` says that it failed, and why."""

        def crash(context: TurnContext) -> None:
            context.record("tool_call", CALL)
            raise RuntimeError("down")

        session.start_turn(crash, runs=runs).wait(LONG)
        assert [event["type"] for event in pixir.history(session.history())] == ["tool_call"]
        assert session.history("turn.ended")[0].data["status"] == "failed"

    def test_rule_02_its_calls_wait_for_the_next_turn_or_interrupt(self, session: UserSession) -> None:
        def crash(context: TurnContext) -> None:
            context.record("tool_call", CALL)
            raise RuntimeError("down")

        session.start_turn(crash, runs="thread").wait(LONG)
        assert fold(session.history()).calls == {"c1": "grep"}
        session.interrupt()
        assert results(session)[0]["error"]["details"]["reason"] == "interrupt_no_turn"

    @everywhere
    def test_rule_03_an_interrupt_leaves_only_answers_in_the_conversation(self, site: Site, session: UserSession, runs: str) -> None:
        """Beside it the engine's ``turn.ended`` says that the turn was interrupted, so that somebody who asks later can know."""
        interrupted(site, session, runs)
        assert [event["type"] for event in pixir.history(session.history())] == ["tool_call", "tool_result"]
        assert results(session)[0]["error"]["details"]["reason"] == "interrupt"
        assert [event.data["status"] for event in session.history("turn.ended")] == ["interrupted"]


class TestRule04:
    """Rule 4: lines that cannot be read."""

    def test_rule_04_damage_before_the_last_line_fails_the_whole_history(self, site: Site, session: UserSession) -> None:
        session.record("user_message", HELLO)
        session.record("user_message", HELLO)
        damaged = log_of(site, session).read_bytes().splitlines(keepends=True)
        log_of(site, session).write_bytes(b"".join([*damaged[:2], b"garbage\n", damaged[3]]))
        for read in (session.history, lambda: site.another().get_session(session.id)):
            with pytest.raises(LogDamaged, match=r"events\.jsonl is damaged in line 3"):
                read()
        site.engine.store.lease(session.id, wait=0).acquire().release()

    def test_rule_04_a_torn_last_line_is_cut_off_by_the_next_writer(self, site: Site, session: UserSession) -> None:
        """Pixir refuses the session. A kill in the middle of a write leaves just that, and nothing of it was ever published."""
        whole = session.history()
        with log_of(site, session).open("ab") as file:
            file.write(encode(Event(2, 0, session.id, "user_message", "human", HELLO))[:-9])
        assert session.history() == whole
        session.record("user_message", HELLO)
        assert [event.type for event in session.history()[2:]] == ["log.recovered", "user_message"]

    def test_rule_04_read_strictly_a_torn_last_line_is_damage(self, site: Site, session: UserSession) -> None:
        """The switch for Pixir's own rule."""
        with log_of(site, session).open("ab") as file:
            file.write(b'{"v":1')
        with pytest.raises(LogDamaged, match="cut short"):
            site.engine.store.log(session.id).read("strict")

    def test_rule_04_an_unknown_type_is_refused(self, site: Site, session: UserSession) -> None:
        """As of a newer version and not as damage: ``history`` shows it, and nothing is written after what is not understood."""
        with log_of(site, session).open("ab") as file:
            file.write(encode(Event(2, 0, session.id, "from_the_future", "agent", {})) + b"\n")
        with pytest.raises(MetadataVersionUnsupported, match="from_the_future"):
            site.another().get_session(session.id)
        with pytest.raises(MetadataVersionUnsupported):
            session.record("user_message", HELLO)

    def test_rule_04_a_blank_line_is_damage(self, site: Site, session: UserSession) -> None:
        """Pixir skips it. Our writer never leaves one, so somebody else wrote."""
        log_of(site, session).write_bytes(log_of(site, session).read_bytes().replace(b"\n", b"\n\n", 1))
        with pytest.raises(LogDamaged):
            session.history()

    def test_rule_04_a_missing_file_is_an_empty_history(self, site: Site) -> None:
        assert site.engine.store.log("nobody").read() == []

    def test_rule_04_what_is_left_of_a_damaged_log_can_be_seen(self, site: Site, session: UserSession) -> None:
        session.record("user_message", HELLO)
        log_of(site, session).write_bytes(log_of(site, session).read_bytes().replace(b"workspace.ready", b"workspace.reedy"))
        assert [event.type for event in site.engine.store.log(session.id).read("skip")] == ["session.created", "user_message"]


class TestRule05:
    """Rule 5: numbers that are there twice, or missing."""

    @pytest.mark.parametrize("change", ["twice", "missing"])
    def test_rule_05_a_number_twice_or_missing_is_damage(self, site: Site, session: UserSession, change: str) -> None:
        """Pixir keeps both, and tolerates the gap. Here a number is a promise that nothing is missing."""
        for _ in range(3):
            session.record("user_message", HELLO)
        lines = log_of(site, session).read_bytes().splitlines(keepends=True)
        lines[3:4] = lines[3:4] * 2 if change == "twice" else []
        log_of(site, session).write_bytes(b"".join(lines))
        with pytest.raises(LogDamaged, match="comes next"):
            site.engine.store.log(session.id).read()

    def test_rule_05_the_next_number_is_the_last_and_one(self, session: UserSession) -> None:
        assert session.record("user_message", HELLO).seq == session.history()[-1].seq
        assert session.info().next_event == session.history()[-1].seq + 1


class TestRule06:
    """Rule 6: who may write."""

    def test_rule_06_one_of_many_gets_the_lease(self, tmp_path: Path) -> None:
        leases = [Lease(tmp_path / ".lock", wait=0) for _ in range(8)]
        gate, won = threading.Barrier(len(leases)), []

        def ask(lease: Lease) -> None:
            gate.wait(LONG)
            try:
                won.append(lease.acquire())
            except EvictionRace:
                return

        threads = [threading.Thread(target=ask, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert len(won) == 1
        won[0].release()

    def test_rule_06_a_stale_owner_blocks_until_somebody_takes_it_away_with_evidence(self, tmp_path: Path) -> None:
        owner = Lease(tmp_path / ".lock", stale_after=5).acquire()
        later = owner.path.stat().st_mtime + 60
        other = Lease(tmp_path / ".lock", wait=0, stale_after=5, on_stale="block", now=lambda: later)
        with pytest.raises(EvictionRace, match="is stale"):
            other.acquire()
        evidence = other.force_release("it hangs", tmp_path / "releases")
        assert evidence is not None
        assert json.loads(evidence.read_text())["reason"] == "it hangs"
        other.acquire()
        with pytest.raises(LeaseLost):
            owner.check()
        other.release()
        owner.release()

    def test_rule_06_an_active_owner_cannot_be_robbed(self, tmp_path: Path) -> None:
        with Lease(tmp_path / ".lock", stale_after=5):
            other = Lease(tmp_path / ".lock", wait=0, stale_after=5)
            assert other.state() == "active"
            with pytest.raises(EvictionRace, match="is active"):
                other.force_release("impatience", tmp_path / "releases")

    def test_rule_06_whose_note_cannot_be_read_is_ambiguous(self, tmp_path: Path) -> None:
        with Lease(tmp_path / ".lock", stale_after=5) as owner:
            owner.path.write_text("?")
            assert Lease(tmp_path / ".lock", wait=0, stale_after=5).state() == "ambiguous"

    def test_rule_06_a_session_s_own_lease_has_no_heartbeat_to_lose(self, site: Site, session: UserSession) -> None:
        """It is held for one operation, and the system ends it with its holder: no crash leaves one that a person must release."""
        with site.engine.store.lease(session.id) as lease:
            assert lease.state() == "active"
        assert lease.state() == "available"


class TestRule07:
    """Rule 7: symbolic links."""

    def test_rule_07_nothing_is_written_through_a_link_of_the_agent_s(self, site: Site, session: UserSession) -> None:
        """What Pixir keeps in the workspace lies beside it here, where no path of the agent's leads."""
        (site.root / "outside").mkdir()
        assert session.workspace_path is not None
        (session.workspace_path / "out").symlink_to(site.root / "outside")
        with pytest.raises(WriteRejected):
            session.write("out/file", "x")
        assert os.listdir(site.root / "outside") == []

    def test_rule_07_no_path_of_the_agent_s_leads_to_its_log(self, session: UserSession) -> None:
        before = session.history()
        with pytest.raises(WriteRejected):
            session.write("../events.jsonl", "x")
        assert session.history() == before


class TestRule08And09:
    """Rules 8 and 9: what a fork takes along, and what is shown to a model."""

    def test_rule_08_a_fork_between_call_and_answer_has_an_orphan_until_its_first_turn(self, session: UserSession) -> None:
        session.record("tool_call", CALL)
        at = session.history()[-1].seq
        session.record("tool_result", {"call_id": "c1", "ok": True})
        child = session.fork(at)
        assert fold(child.history()).calls == {"c1": "grep"}
        child.start_turn(lambda _context: None, runs="thread").wait(LONG)
        assert results(child)[0]["error"]["kind"] == "orphan_tool_call"
        assert [answer["ok"] for answer in results(session)] == [True]

    def test_rule_08_a_fork_s_log_begins_with_where_it_comes_from(self, session: UserSession) -> None:
        session.record("user_message", HELLO)
        child = session.fork(summary="the rest")
        grandchild = child.fork()
        first, *rest = pixir.history(child.history())
        assert (first["seq"], first["type"], first["data"]["forked_to_seq"]) == (0, "session_fork", 0)
        assert [event["type"] for event in rest] == ["user_message", "branch_summary"]
        assert grandchild.view("pixir")["fork_root_session_id"] == session.id

    def test_rule_08_what_is_attached_comes_along(self, session: UserSession) -> None:
        name = session.attach(b"a picture")
        session.record("user_message", {**HELLO, "resources": [name]})
        assert session.fork().attached(name) == b"a picture"

    def test_rule_09_costs_and_failures_are_not_replayed(self, session: UserSession) -> None:
        """What a fork takes along is what can be shown to a model. Which model a reasoning is of is for the caller to look at."""
        session.record("user_message", HELLO)
        session.record("provider_usage", {"tokens": 3})
        session.record("turn_failed", {"terminal_status": "provider_error", "error_kind": "timeout", "error_message": "late"})
        session.record("history_compaction", {"range": {"from_seq": 0, "to_seq": 2}, "summary": "hello"})
        assert [event["type"] for event in pixir.history(session.fork().history())] == ["session_fork", "user_message"]


class TestRule10To12:
    """Rules 10 to 12: rights, ends, and answers that come late."""

    def test_rule_10_what_an_agent_may_do_cannot_be_widened_by_going_on(self, site: Site, session: UserSession) -> None:
        """Pixir records a posture and compares it. Here a right is an object: the agent's has no decisions, before and after."""
        posture = {"permission_mode": "read_only"}
        session.record("subagent_event", posture)
        resumed = site.another().get_session(session.id)
        for agent in (session.for_agent(), resumed.for_agent(), resumed.fork().for_agent()):
            assert not any(hasattr(agent, verb) for verb in ("promote", "discard", "handoff", "fork", "identify", "start_turn"))
            assert agent.history("subagent_event")[0].data == posture

    def test_rule_11_to_record_in_a_session_that_is_over_is_an_error_value(self, session: UserSession) -> None:
        """In Pixir the caller exits. Here it is an exception that says how the session ended."""
        session.discard()
        with pytest.raises(SessionExpired) as caught:
            session.record("user_message", HELLO)
        assert caught.value.state == "discarded"

    def test_rule_11_what_is_emitted_when_nobody_listens_is_lost_without_a_word(self, site: Site, session: UserSession) -> None:
        heard: list[Event] = []
        session.subscribe(heard.append)()
        site.engine.close()
        session.emit("status", {"status": "done"})
        assert heard == session.history("status") == []

    def test_rule_12_a_late_genuine_answer_is_kept_and_changes_nothing(self, site: Site, session: UserSession) -> None:
        interrupted(site, session, "thread")
        session.record("tool_result", {"call_id": "c1", "ok": True, "output": "late"})
        assert [answer["ok"] for answer in results(session)] == [False, True]
        assert fold(session.history()).calls == {}

    def test_rule_12_the_turn_itself_cannot_give_it_any_more(self, site: Site, session: UserSession) -> None:
        """In Pixir it can be queued already. Here whoever was interrupted can do nothing to the session."""
        called, refused = threading.Event(), threading.Event()
        session.subscribe(lambda _event: called.set(), ["tool_call"])

        def body(context: TurnContext) -> None:
            context.record("tool_call", CALL)
            context.cancelled.wait()
            try:
                context.record("tool_result", {"call_id": "c1", "ok": True})
            except TurnOver:
                refused.set()

        session.start_turn(body, runs="thread")
        assert called.wait(LONG)
        session.interrupt()
        assert refused.wait(LONG)
        assert [answer["ok"] for answer in results(session)] == [False]
