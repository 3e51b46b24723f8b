"""Pixir's document of ``Pixir.Session``, from top to bottom: each paragraph, function and type."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from support.daemon import wait_until
from support.engine import Site
from support.orchestrator import on_linux
from support.walkthrough import CALL, LONG

from pytest_gittrix import GitTrix, UserSession
from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.engine.agents.turns import RUNS, TurnContext
from pytest_gittrix.engine.operations.conversation import ANNOUNCED
from pytest_gittrix.engine.operations.ids import seeded_ids, sortable_id
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, LogDamaged, SessionExpired, SessionNotFound, TurnBusy
from pytest_gittrix.os_level.lock_owner import owner_of
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, LIVE
from pytest_gittrix.views import pixir, state_in

WRITER = """
import os, sys
from pytest_gittrix import GitTrix
with GitTrix(None, store=sys.argv[1], sweep_interval=None) as engine:
    session = engine.get_session(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.read()
    for _ in range(10):
        session.record("user_message", {"text": str(os.getpid())})
"""
everywhere = pytest.mark.parametrize("runs", RUNS)
HELLO = {"text": "hello"}


def hang(context: TurnContext) -> None:
    """Call a tool, and wait for ever."""
    context.record("tool_call", CALL)
    threading.Event().wait()


def hanging(site: Site, session: UserSession, runs: str) -> Any:
    """A turn that has called a tool and waits."""
    called = threading.Event()
    site.engine.on("tool_call", lambda _event: called.set())
    turn = session.start_turn(hang, runs=runs)
    assert called.wait(LONG)
    return turn


class TestTheUnitOfAgency:
    """The unit of agency: one conversation with its role, its counter and its log."""

    def test_a_session_has_a_role(self, site: Site) -> None:
        assert site.start().view("pixir")["role"] == pixir.ROLE == "build"
        assert site.start(role="review").view("pixir")["role"] == "review"

    def test_its_counter_goes_up_by_one(self, session: UserSession) -> None:
        """Files and promotions have their places in our log too; in Pixir's view a conversation is numbered from 0."""
        ours = [session.record("user_message", HELLO).seq for _ in range(3)]
        assert ours == [ours[0], ours[0] + 1, ours[0] + 2]
        assert [event["seq"] for event in pixir.history(session.history())] == [0, 1, 2]

    def test_there_is_one_writer_at_a_time_whoever_holds_the_session(self, site: Site, session: UserSession) -> None:
        """Pixir has one process for each session. Here any process may hold one: the session's lease serialises them."""
        handles = [session, site.engine.get_session(session.id), site.another().get_session(session.id)]
        gate = threading.Barrier(len(handles))

        def talk(handle: UserSession) -> None:
            gate.wait(LONG)
            for _ in range(10):
                handle.record("user_message", HELLO)

        threads = [threading.Thread(target=talk, args=(handle,)) for handle in handles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert [event.seq for event in session.history()] == list(range(2 + 30))

    def test_there_is_one_writer_at_a_time_of_several_processes(self, site: Site, session: UserSession) -> None:
        told = [sys.executable, "-c", WRITER, str(site.store), session.id]
        writers = [subprocess.Popen(told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert [writer.stdout.readline() for writer in writers if writer.stdout] == ["ready\n"] * 3
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
        assert [writer.wait(LONG) for writer in writers] == [0] * 3
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.close()
        assert [event.seq for event in session.history()] == list(range(len(session.history())))
        assert sorted(Counter(event.data["text"] for event in session.history("user_message")).values()) == [10] * 3

    def test_a_session_never_ends_as_pixir_sees_it(self, session: UserSession) -> None:
        """Here it does end, when its workspace is promoted or discarded. Its history stays, and can be forked."""
        session.record("user_message", HELLO)
        session.discard()
        assert state_in(session.history(), "pixir") == "idle"
        assert [event["type"] for event in pixir.history(session.history())] == ["user_message"]
        assert session.fork().history("user_message")[0].data == HELLO


class TestRecordingEvents:
    """Recording events."""

    def test_an_event_is_stamped_then_stored_then_published(self, site: Site, session: UserSession) -> None:
        seen: list[tuple[Event, bool]] = []
        session.subscribe(lambda event: seen.append((event, event in site.events(session.id))))
        stored = session.record("user_message", HELLO)
        assert seen == [(stored, True)]

    def test_what_could_not_be_stored_is_not_published_and_takes_no_number(self, site: Site, session: UserSession) -> None:
        seen: list[Event] = []
        session.subscribe(seen.append)
        log = site.directory(session) / "events.jsonl"
        kept = log.rename(log.with_name("away"))
        log.mkdir()
        with pytest.raises(AdapterUnavailable):
            session.record("user_message", HELLO)
        log.rmdir()
        kept.rename(log)
        assert seen == []
        assert session.record("user_message", HELLO).seq == 2

    def test_an_ephemeral_event_is_published_only(self, session: UserSession) -> None:
        seen: list[Event] = []
        session.subscribe(seen.append)
        before = session.history()
        session.emit("text_delta", {"chunk": "he"})
        assert [(event.type, event.seq) for event in seen] == [("text_delta", -1)]
        assert session.history() == before

    def test_the_vocabulary_is_closed_and_the_two_kinds_are_apart(self) -> None:
        """Fourteen kinds are stored; the first event of a fork is ``session_fork`` in the view, and nobody records it by hand."""
        assert len({*CONVERSATION, "session_fork"}) == 14
        assert {"text_delta", "reasoning_delta", "status", "plan", "context_pressure"} == ANNOUNCED
        assert not CONVERSATION.keys() & LIVE.keys()

    def test_the_envelope_is_pixir_s(self, session: UserSession) -> None:
        session.record("user_message", HELLO)
        (event,) = pixir.history(session.history())
        assert re.fullmatch("[0-9a-f]{16}", event.pop("id"))
        assert event == {
            "session_id": session.id,
            "seq": 0,
            "ts": "2030-01-01T00:00:00.000Z",
            "type": "user_message",
            "data": HELLO,
        }


class TestTurnsAsSupervisedTasks:
    """Turns as supervised Tasks."""

    def test_a_turn_runs_beside_the_program(self, session: UserSession) -> None:
        turn = session.start_turn(lambda _context: os.getpid())
        assert turn.wait(LONG)
        assert turn.value != os.getpid()

    @everywhere
    def test_a_turn_that_crashes_does_not_take_the_session_down(self, session: UserSession, runs: str) -> None:
        def crash(_context: TurnContext) -> None:
            raise SystemExit("down")

        turn = session.start_turn(crash, runs=runs)
        assert turn.wait(LONG)
        assert turn.status == "failed"
        assert session.record("user_message", HELLO)

    @everywhere
    def test_an_interrupt_ends_the_turn_and_not_the_session(self, site: Site, session: UserSession, runs: str) -> None:
        turn = hanging(site, session, runs)
        session.interrupt()
        assert turn.status == "interrupted"
        assert session.info().state == "active"
        assert session.record("user_message", HELLO)
        again = session.start_turn(lambda _context: "well", runs=runs)
        assert again.wait(LONG)
        assert again.value == "well"

    @on_linux
    def test_an_interrupt_kills_the_process_of_the_turn_and_what_it_started(self, site: Site, session: UserSession) -> None:
        def body(context: TurnContext) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "600"])
            context.record("tool_call", {**CALL, "args": {"pids": [os.getpid(), child.pid]}})
            threading.Event().wait()

        called: list[Event] = []
        recorded = threading.Event()
        site.engine.on("tool_call", lambda event: (called.append(event), recorded.set()))
        session.start_turn(body)
        assert recorded.wait(LONG)
        processes = [owner_of(pid) for pid in called[0].data["args"]["pids"]]
        assert [process.alive() for process in processes] == [True, True]
        session.interrupt()
        wait_until(lambda: not any(process.alive() for process in processes), "the end of both")

    @everywhere
    def test_the_body_takes_one_context(self, session: UserSession, runs: str) -> None:
        def body(context: TurnContext) -> tuple[str, str, str, str]:
            return context.session_id, str(context.workspace), context.role, context.fork_root_session_id

        turn = session.start_turn(body, runs=runs, role="review")
        assert turn.wait(LONG)
        assert turn.value == (session.id, str(session.workspace_path), "review", session.id)


class TestResume:
    """Resume."""

    def test_the_log_is_folded_and_the_sequence_goes_on(self, site: Site, session: UserSession) -> None:
        last = session.record("user_message", HELLO).seq
        site.engine.close()
        with site.another() as engine:
            assert engine.get_session(session.id).record("user_message", HELLO).seq == last + 1

    def test_history_is_derived_from_the_log_each_time(self, site: Site, session: UserSession) -> None:
        site.another().get_session(session.id).record("user_message", HELLO)
        assert session.history()[-1].data == HELLO


class TestChildSpecStartLinkAndVia:
    """``child_spec``, ``start_link``, ``via``: what Elixir's supervision needs. Here an engine is opened, and sessions have ids."""

    def test_child_spec_an_engine_is_opened_and_closed_as_a_context(self, site: Site) -> None:
        with GitTrix(site.durable.path, store=site.store, clock=site.clock, durability="fast") as engine:
            turn = engine.start_session("x").start_turn(lambda _context: threading.Event().wait())
        assert turn.status == "interrupted"

    def test_start_link_starts_under_an_id_that_the_caller_chose(self, site: Site) -> None:
        assert site.start(id="20300101T000000-abc123").id == "20300101T000000-abc123"

    def test_start_link_of_an_id_that_exists_gives_the_same_session(self, site: Site, session: UserSession) -> None:
        """By ``get_session``. ``start_session`` makes new ones, and refuses an id that is taken."""
        session.record("user_message", HELLO)
        assert site.engine.get_session(session.id).history() == session.history()
        with pytest.raises(InvalidInput):
            site.start(id=session.id)

    @pytest.mark.parametrize("id_", ["", "a/b", "..", ".hidden", "a.b", "é", "x" * 129])
    def test_start_link_of_an_id_that_is_none_is_refused(self, site: Site, id_: str) -> None:
        """Ids are 1 to 128 ASCII letters, digits, ``_`` and ``-``: fewer than Pixir's, since here they are also parts of ref names."""
        with pytest.raises(InvalidInput, match="is not a session id"):
            site.start(id=id_)

    def test_via_finds_a_session_by_its_id_from_anywhere(self, site: Site, session: UserSession) -> None:
        assert site.another().get_session(session.id).id == session.id
        with pytest.raises(SessionNotFound):
            site.engine.get_session("nobody")


class TestEmit:
    """``emit``."""

    def test_emit_gives_nothing_and_stores_nothing(self, site: Site, session: UserSession) -> None:
        before = (site.directory(session) / "events.jsonl").read_bytes()
        seen: list[Event] = []
        session.subscribe(seen.append)
        for type_ in sorted(ANNOUNCED):
            assert session.emit(type_, dict.fromkeys(LIVE[type_].required, "x")) is None  # type: ignore[func-returns-value]
        assert [event.type for event in seen] == sorted(ANNOUNCED)
        assert (site.directory(session) / "events.jsonl").read_bytes() == before

    def test_emit_takes_stored_kinds_too_and_puts_in_the_session_s_id(self, session: UserSession) -> None:
        seen: list[Event] = []
        session.subscribe(seen.append)
        session.emit("assistant_message", HELLO)
        assert [(event.stream, event.seq) for event in seen] == [(session.id, -1)]


class TestGenId:
    """``gen_id``."""

    def test_gen_id_is_in_order_of_time(self, site: Site) -> None:
        first = sortable_id(site.clock.now())
        site.clock.advance(seconds=1)
        assert first < sortable_id(site.clock.now())

    def test_gen_id_is_in_order_within_one_second_of_the_frozen_clock(self, site: Site) -> None:
        made = [site.engine.gen_id() for _ in range(50)]
        site.clock.advance(microseconds=1)
        made += [site.engine.gen_id() for _ in range(50)]
        assert made == sorted(set(made))
        assert {id_[:15] for id_ in made} == {"20300101T000000"}
        site.clock.skew(hours=-1)
        assert site.engine.gen_id() < made[0]

    def test_gen_id_is_the_same_for_the_same_seed(self, site: Site) -> None:
        first, again, other = (GitTrix(None, store=site.root / "ids", clock=site.clock, ids=seeded_ids(seed)) for seed in (7, 7, 8))
        assert [first.gen_id(), first.gen_id()] == [again.gen_id(), again.gen_id()]
        assert first.gen_id() != other.gen_id()

    def test_gen_id_is_safe_for_files_and_fit_for_the_engine(self, site: Site) -> None:
        assert re.fullmatch(r"20300101T000000-[0-9a-f]{11}", sortable_id(CLOCK_START))
        engine = site.another(ids=lambda: sortable_id(site.clock.now()))
        assert engine.start_session("x").id.startswith("20300101T000000-")


class TestHistory:
    """``history``."""

    def test_history_is_what_the_log_has(self, site: Site, session: UserSession) -> None:
        assert session.history() == site.events(session.id)

    def test_history_of_some_types(self, session: UserSession) -> None:
        session.record("user_message", HELLO)
        session.record("assistant_message", HELLO)
        assert [event.type for event in session.history(["assistant_message"])] == ["assistant_message"]

    def test_history_that_cannot_be_read_says_why(self, site: Site, session: UserSession) -> None:
        log = site.directory(session) / "events.jsonl"
        log.write_bytes(log.read_bytes().replace(b"session.created", b"session.creatad"))
        with pytest.raises(LogDamaged, match="in line 1, at byte 0"):
            session.history()


class TestInfo:
    """``info``."""

    def test_info_has_id_workspace_role_next_seq_and_turn(self, site: Site, session: UserSession) -> None:
        session.record("user_message", HELLO)
        info = session.info()
        assert (info.session_id, info.workspace_path) == (session.id, str(session.workspace_path))
        assert (info.role, info.next_seq, info.turn, info.fork_root) == ("build", 1, None, session.id)
        session.write("app.py", "beside the conversation\n")
        assert session.info().next_seq == 1
        session.record("assistant_message", HELLO)
        assert session.info().next_seq == len(pixir.history(session.history())) == session.view("pixir")["seq"] == 2
        assert site.start(role="reviewer").info().role == "reviewer"
        turn = hanging(site, session, "thread")
        assert session.info().turn == turn.ref

    def test_info_in_pixir_s_own_keys(self, session: UserSession) -> None:
        session.record("user_message", HELLO)
        assert session.view("pixir") == {
            "id": session.id,
            "workspace": str(session.workspace_path),
            "role": "build",
            "seq": 1,
            "fork_root_session_id": session.id,
            "turn_running?": False,
        }


class TestInterrupt:
    """``interrupt``."""

    @everywhere
    def test_interrupt_kills_the_running_turn(self, site: Site, session: UserSession, runs: str) -> None:
        heard: list[Event] = []
        session.subscribe(heard.append, ["status"])
        hanging(site, session, runs)
        assert session.interrupt() is True
        assert not session.turn_running
        assert [event.data["status"] for event in heard] == ["interrupted"]

    def test_interrupt_without_a_turn_says_so(self, session: UserSession) -> None:
        assert session.interrupt() is False

    def test_interrupt_of_an_ended_session_is_an_error(self, session: UserSession) -> None:
        session.discard()
        with pytest.raises(SessionExpired):
            session.interrupt()


class TestRecord:
    """``record``."""

    def test_record_gives_the_stamped_event(self, session: UserSession) -> None:
        stored = session.record("user_message", HELLO)
        assert (stored.seq, stored.stream, stored.type, stored.data) == (2, session.id, "user_message", HELLO)

    @pytest.mark.parametrize("type_", [*sorted(ANNOUNCED), "no_such_type", "session_fork", "session.ended"])
    def test_record_of_what_is_not_canonical_is_a_structured_error(self, session: UserSession, type_: str) -> None:
        before = session.history()
        with pytest.raises(InvalidInput) as caught:
            session.record(type_, {"chunk": "x"})
        assert caught.value.code == "INVALID_INPUT"
        assert session.history() == before


class TestRegisterPressureWarning:
    """``register_pressure_warning``."""

    def test_pressure_warns_once_for_a_pair(self, session: UserSession) -> None:
        given = [session.register_pressure_warning(12, "warning") for _ in range(3)]
        assert given == ["warn", "already_warned", "already_warned"]

    @pytest.mark.parametrize("pair", [(13, "warning"), (None, "warning"), (12, "critical")])
    def test_pressure_is_armed_anew_by_another_checkpoint_or_tier(self, session: UserSession, pair: tuple[int | None, str]) -> None:
        session.register_pressure_warning(12, "warning")
        assert session.register_pressure_warning(*pair) == "warn"

    def test_pressure_is_remembered_over_turns(self, session: UserSession) -> None:
        for expected in ("warn", "already_warned"):
            turn = session.start_turn(lambda context: context.register_pressure_warning(None, "advisory"))
            assert turn.wait(LONG)
            assert turn.value == expected

    def test_pressure_is_never_logged_and_a_new_engine_warns_again(self, site: Site, session: UserSession) -> None:
        before = session.history()
        session.register_pressure_warning(12, "warning")
        assert session.history() == before
        assert site.another().get_session(session.id).register_pressure_warning(12, "warning") == "warn"


class TestStartTurn:
    """``start_turn`` and ``turn_running?``."""

    @everywhere
    def test_start_turn_gives_a_reference(self, session: UserSession, runs: str) -> None:
        turn = session.start_turn(lambda context: context.turn, runs=runs)
        assert turn.wait(LONG)
        assert turn.value == turn.ref == session.history("turn.started")[0].data["turn"]

    @everywhere
    def test_start_turn_is_busy_while_one_runs(self, site: Site, session: UserSession, runs: str) -> None:
        hanging(site, session, runs)
        with pytest.raises(TurnBusy):
            session.start_turn(hang, runs=runs)

    def test_start_turn_on_an_ended_session_is_an_error(self, session: UserSession) -> None:
        session.discard()
        with pytest.raises(SessionExpired):
            session.start_turn(hang)

    @everywhere
    def test_start_turn_first_answers_the_calls_that_an_earlier_turn_left(self, session: UserSession, runs: str) -> None:
        def forget(context: TurnContext) -> None:
            context.record("tool_call", CALL)

        session.start_turn(forget, runs=runs).wait(LONG)
        session.start_turn(lambda _context: None, runs=runs).wait(LONG)
        types = [event.type for event in session.history(["turn.started", "tool_call", "tool_result"])]
        assert types == ["turn.started", "tool_call", "tool_result", "turn.started"]
        assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "before_start_turn"

    @everywhere
    def test_turn_running(self, site: Site, session: UserSession, runs: str) -> None:
        assert not session.turn_running
        hanging(site, session, runs)
        assert session.turn_running
        assert state_in(session.history(), "pixir") == "turn running"


class TestTypes:
    """Types: ``ctx`` and ``role``."""

    def test_ctx_has_the_four_keys(self, session: UserSession) -> None:
        names = ("session_id", "workspace", "role", "fork_root_session_id")
        fork = session.fork()
        turn = fork.start_turn(lambda context: [str(getattr(context, name)) for name in names], runs="thread")
        assert turn.wait(LONG)
        assert turn.value == [fork.id, str(fork.workspace_path), "build", session.id]

    def test_role_is_a_name(self, session: UserSession) -> None:
        """An atom in Elixir, a text here. A turn's role is told at its start, the session's own is a fact of its identity."""
        session.identify(role="review")
        assert session.view("pixir")["role"] == "review"

    def test_the_legal_table_is_that_of_a_turn(self) -> None:
        assert {"idle": {"turn running"}, "turn running": {"idle"}} == pixir.LEGAL
