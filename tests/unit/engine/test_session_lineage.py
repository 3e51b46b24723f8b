"""Sessions that come from sessions: handed on whole, once, and found again by line, agent and work."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from datetime import timedelta

import pytest
from support.engine import Site, in_child, shell

from pytest_gittrix import points
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput, SessionExpired, SessionNotFound, TurnBusy
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.state.records import EvictionPolicy

FILES = {"app.py": "v1\n", ".gitignore": "*.log\n"}
STEPS = ("handoff:intent-logged", "handoff:child-created", "handoff:moved", "handoff:child-ready")


@pytest.fixture
def session(site: Site) -> UserSession:
    """With a file that it was given, work in it, and somebody who does it."""
    started = site.start(agent="gastown/polecats/Toast", rig="gastown", work_unit="gt-1", seed_files={"NOTES.md": "begin here\n"})
    started.write("app.py", "v2\n")
    started.write("kept.log", "named, though ignored\n")
    return started


class TestAHandoff:
    def test_ends_the_parent_and_gives_the_child_its_workspace_as_it_is(self, site: Site, session: UserSession) -> None:
        shell(session, "git add -A && git commit -qm mine && echo scratch > note.log && mkdir empty")
        inode = os.stat(session.workspace_path or "").st_ino

        child = session.handoff()

        assert child.workspace_path is not None
        assert os.stat(child.workspace_path).st_ino == inode
        assert (child.workspace_path / "note.log").read_text() == "scratch\n"
        assert "mine" in shell(child, "git log --format=%s")
        assert child.touched_files() == ["app.py", "kept.log"]
        assert child.diff() != ""

    @pytest.mark.parametrize(
        ("changes", "left"),
        [
            ({"agent": "Nux"}, {"agent": "Nux", "rig": "gastown"}),
            ({"agent": "Nux", "tmux_session": "gt-Nux"}, {"agent": "Nux", "rig": "gastown", "tmux_session": "gt-Nux"}),
            ({"agent": "Toast"}, {"agent": "Toast", "rig": "gastown", "tmux_session": "gt-Toast", "cwd": "toast"}),
            ({}, {"agent": "Toast", "rig": "gastown", "tmux_session": "gt-Toast", "cwd": "toast"}),
            ({"agent": None}, {"rig": "gastown", "tmux_session": "gt-Toast", "cwd": "toast"}),
        ],
    )
    def test_to_another_agent_leaves_terminal_and_directory_behind(self, site: Site, changes: dict[str, str], left: dict[str, str]) -> None:
        session = site.start(agent="Toast", rig="gastown", tmux_session="gt-Toast", cwd="toast")
        child = session.handoff(**changes)
        assert child.info().identity == left
        assert site.state(session.id).identity["tmux_session"] == "gt-Toast"

    def test_links_the_two_in_one_line(self, site: Site, session: UserSession) -> None:
        child = session.handoff("go on", agent="gastown/polecats/Fig")
        grandchild = child.handoff()
        states = [site.state(one.id) for one in (session, child, grandchild)]

        assert [state.successor for state in states] == [child.id, grandchild.id, None]
        assert [state.lineage and state.lineage.parent for state in states] == [None, session.id, child.id]
        assert {state.chain for state in states} == {session.id}
        assert [(state.state, state.outcome) for state in states] == [("discarded", "handoff"), ("discarded", "handoff"), ("active", None)]

    def test_passes_on_who_works_on_what_unless_it_is_told_anew(self, site: Site, session: UserSession) -> None:
        child = session.handoff("go on", agent="gastown/polecats/Fig")

        assert site.state(child.id).task == "go on"
        assert site.state(child.id).identity == {"agent": "gastown/polecats/Fig", "rig": "gastown", "work_unit": "gt-1"}

    def test_leaves_a_child_that_can_be_promoted_and_a_parent_that_cannot(self, site: Site, session: UserSession) -> None:
        child = session.handoff()

        with pytest.raises(SessionExpired):
            session.promote()
        with pytest.raises(SessionExpired):
            session.handoff()
        assert [*site.durable.changed(child.promote().sha)] == ["app.py", "kept.log"]

    def test_keeps_the_baseline_so_that_drift_since_then_is_still_a_conflict(self, site: Site, session: UserSession) -> None:
        child = session.handoff()

        assert site.state(child.id).baseline == site.state(session.id).baseline

    def test_of_a_lazy_workspace_keeps_what_was_deleted_deleted(self, site: Site) -> None:
        lazy = site.start(workspace="lazy")
        lazy.delete("app.py")

        child = lazy.handoff()

        assert not child.exists("app.py")
        assert child.touched_files() == ["app.py"]

    def test_can_change_when_the_child_expires(self, site: Site, session: UserSession) -> None:
        child = session.handoff(eviction=EvictionPolicy(ttl_idle=timedelta(minutes=1)))
        site.clock.advance(minutes=2)

        assert site.engine.sweep() == [child.id]

    def test_waits_for_no_turn(self, session: UserSession) -> None:
        session.start_turn(lambda context: context.cancelled.wait(), runs="thread")

        with pytest.raises(TurnBusy):
            session.handoff()
        session.interrupt()
        assert session.handoff().read("app.py") == b"v2\n"

    def test_of_a_worktree_is_refused_and_changes_nothing(self, site: Site) -> None:
        tree = site.start(workspace="worktree")
        before = tree.history()

        with pytest.raises(CapabilityMissing, match="cannot be handed on"):
            tree.handoff()

        assert tree.history() == before
        assert [record.id for record in site.engine.list_sessions()] == [tree.id]

    def test_tells_only_what_there_is_to_tell(self, session: UserSession) -> None:
        with pytest.raises(InvalidInput, match="Unknown identity field 'colour'"):
            session.handoff(colour="red")
        assert session.read("app.py") == b"v2\n"


@pytest.mark.parametrize("step", STEPS)
def test_a_handoff_that_was_killed_is_ended_by_a_recovery(site: Site, session: UserSession, step: str) -> None:
    pid = os.fork()
    if pid == 0:
        with points.listening(lambda name: os._exit(9) if name == step else None):
            session.handoff()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    with site.another() as engine:
        assert engine.recover().problems == []
        live = [record for record in engine.list_sessions() if record.state == "active"]

        assert len(live) == 1
        heir = engine.get_session(live[0].id)
        assert (heir.id == session.id) == (step == "handoff:intent-logged")
        assert heir.touched_files() == ["app.py", "kept.log"]
        assert heir.fork(files="baseline").read("NOTES.md") == b"begin here\n"
        assert engine.recover().removed == []
        assert heir.promote().sha


def test_a_handoff_that_was_killed_while_the_child_inherited_writes_passes_on_each_once(site: Site, session: UserSession) -> None:
    def hand_on() -> None:
        site.engine.on("session.write", lambda _event: os.kill(os.getpid(), signal.SIGKILL))
        session.handoff(id="child")

    assert in_child(hand_on) == -signal.SIGKILL
    with site.another() as engine:
        assert [event.data["path"] for event in engine.get_session("child").history(["session.write"])] == ["app.py", "kept.log"]


def test_a_handoff_that_the_disk_stops_names_the_child_that_a_recovery_may_finish(
    site: Site, session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def full(source: str, target: str, **where: int) -> None:
        if os.path.basename(target) == "workspace":
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target, **where)

    with monkeypatch.context() as filling, pytest.raises(AdapterUnavailable) as refused:
        filling.setattr(os, "rename", full)
        session.handoff(id="child")
    assert (refused.value.outcome, refused.value.session) == ("unknown", "child")
    assert "No space left" in str(refused.value)
    assert "session child has the workspace" in str(refused.value)
    assert site.engine.recover().problems == []
    assert site.engine.get_session("child").touched_files() == ["app.py", "kept.log"]


def test_a_handoff_that_did_not_begin_leaves_nothing_open(site: Site, session: UserSession) -> None:
    with pytest.raises(InvalidInput) as refused:
        session.handoff(id="no id")
    assert (refused.value.outcome, refused.value.session) == (None, None)


class TestAfterACrash:
    def test_one_successor_goes_on_in_the_line(self, site: Site, session: UserSession) -> None:
        session.discard("crash")

        heir = site.start(parent=session.id, agent="gastown/polecats/Fig")

        assert site.state(heir.id).chain == session.id
        assert site.state(session.id).successor == heir.id
        with pytest.raises(SessionExpired, match="has the successor"):
            site.start(parent=session.id)
        assert len(site.engine.list_sessions()) == 2

    @pytest.mark.parametrize("outcome", ["done", "killed", None])
    def test_and_only_then(self, site: Site, session: UserSession, outcome: str | None) -> None:
        session.discard(outcome)

        with pytest.raises(SessionExpired, match="not crashed"):
            site.start(parent=session.id)

    def test_of_a_session_that_there_is(self, site: Site) -> None:
        with pytest.raises(SessionNotFound):
            site.start(parent="sess_nobody")

    def test_an_outcome_is_one_of_few(self, session: UserSession) -> None:
        with pytest.raises(InvalidInput, match="An agent cannot have ended as 'exploded'") as caught:
            session.discard("exploded")
        assert caught.value.fix == "Use one of: done, crash, killed; or hand the session on with handoff()."
        assert session.read("app.py") == b"v2\n"

    def test_an_outcome_that_nobody_told_is_not_recorded(self, site: Site, session: UserSession) -> None:
        session.discard()
        assert [event.data for event in site.events(session.id) if event.type == "session.ended"] == [{"state": "discarded"}]


class TestAQuery:
    @pytest.fixture
    def ids(self, site: Site) -> list[str]:
        """Three sessions, an hour apart; the second and third are of one line."""
        first = site.start(agent="a", rig="r", work_unit="gt-1")
        site.clock.advance(hours=1)
        second = site.start(agent="b", rig="r", work_unit="gt-2")
        site.clock.advance(hours=1)
        return [first.id, second.id, second.handoff(agent="c").id]

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ({}, [2, 1, 0]),
            ({"rig": "r"}, [2, 1, 0]),
            ({"agent": "a"}, [0]),
            ({"agent": "nobody"}, []),
            ({"work_unit": "gt-2"}, [2, 1]),
            ({"work_unit": "gt-2", "agent": "c"}, [2]),
            ({"outcome": "handoff"}, [1]),
            ({"limit": 2}, [2, 1]),
        ],
    )
    def test_finds_what_fits_newest_first(self, site: Site, ids: list[str], wanted: dict[str, str], found: list[int]) -> None:
        assert [record.id for record in site.engine.query(**wanted)] == [ids[number] for number in found]

    def test_finds_sessions_by_the_outcome_that_follows_from_what_became_of_them(self, site: Site, session: UserSession) -> None:
        session.promote()
        other = site.start()
        other.discard()

        assert [record.id for record in site.engine.query(outcome="done")] == [session.id]
        assert [record.id for record in site.engine.query(outcome="killed")] == [other.id]

    def test_takes_those_that_started_then_or_later_and_before(self, site: Site, ids: list[str]) -> None:
        now = site.clock.now()

        assert [record.id for record in site.engine.query(since=now - timedelta(hours=1))] == [ids[2], ids[1]]
        assert [record.id for record in site.engine.query(until=now - timedelta(hours=1))] == [ids[0]]

    def test_of_a_line_goes_from_its_first_to_its_last(self, site: Site, ids: list[str]) -> None:
        assert [record.id for record in site.engine.chain(ids[1])] == [ids[1], ids[2]]
        assert site.engine.chain("sess_nobody") == []

    def test_is_the_same_once_the_index_is_built_anew(self, site: Site, ids: list[str]) -> None:
        before = site.engine.query(rig="r")
        site.engine.services.index.rebuild()

        assert site.engine.query(rig="r") == before


@pytest.mark.parametrize("step", ["start:created", "start:filled"])
def test_a_successor_that_was_killed_at_birth_leaves_its_parent_free(site: Site, session: UserSession, step: str) -> None:
    session.discard("crash")
    pid = os.fork()
    if pid == 0:
        with points.listening(lambda name: os._exit(9) if name == step else None):
            site.start(parent=session.id)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    with site.another() as engine:
        assert engine.recover().problems == []
        heir = engine.start_session("again", parent=session.id)
        assert site.state(session.id).successor == heir.id


def test_a_successor_that_fails_at_birth_leaves_its_parent_free(site: Site, session: UserSession) -> None:
    session.discard("crash")

    def fail(name: str) -> None:
        if name == "start:filled":
            raise OSError(28, "No space left on device")

    with points.listening(fail), pytest.raises(AdapterUnavailable):
        site.start(parent=session.id)
    assert site.state(session.id).successor is None
    assert site.start(parent=session.id).info().chain == session.id


class TestWhatIsToldOfASession:
    def test_can_be_told_anew_and_taken_away(self, site: Site, session: UserSession) -> None:
        session.identify(agent="gastown/polecats/Fig", work_unit=None, molecule_id="mol-1")

        assert session.info().identity == {"agent": "gastown/polecats/Fig", "rig": "gastown", "molecule_id": "mol-1"}
        assert [record.id for record in site.engine.query(agent="gastown/polecats/Fig")] == [session.id]
        assert site.engine.query(work_unit="gt-1") == []
        with pytest.raises(InvalidInput, match="Unknown identity field 'colour'"):
            session.identify(colour="red")

    def test_names_its_step_while_that_lasts(self, session: UserSession) -> None:
        with session.for_agent().step("build", molecule_id="mol-1"):
            assert session.info().identity["step_ref"] == "build"
        with pytest.raises(RuntimeError), session.step("test"):
            raise RuntimeError
        assert "step_ref" not in session.info().identity
        assert [(event.type, event.data) for event in session.history(["step.started", "step.completed"])] == [
            ("step.started", {"step": "build", "molecule_id": "mol-1"}),
            ("step.completed", {"step": "build", "outcome": "done"}),
            ("step.started", {"step": "test"}),
            ("step.completed", {"step": "test", "outcome": "failed"}),
        ]

    def test_is_in_the_environment_of_its_programs_and_turns(self, session: UserSession) -> None:
        assert session.environment({"A": "1"}) == {"A": "1", "GITTRIX_SESSION_ID": session.id, "GT_SESSION_UUID": session.id}
        turn = session.start_turn(lambda context: os.environ["GT_SESSION_UUID"])
        assert turn.wait(60)
        assert (turn.value, "GT_SESSION_UUID" in os.environ) == (session.id, False)

    def test_its_id_can_be_chosen_once(self, site: Site) -> None:
        chosen = "6f0f5a4e-9d2f-4f0e-9a53-0f6f2b1d7c11"
        assert site.start(id=chosen).id == chosen
        with pytest.raises(InvalidInput, match="There is a session"):
            site.start(id=chosen)
        with pytest.raises(InvalidInput, match="is not a session id"):
            site.start(id="../elsewhere")
        assert len(site.engine.list_sessions()) == 1


class TestALineAndATree:
    def test_of_a_work_unit_is_every_line_that_worked_on_it_whole(self, site: Site, session: UserSession) -> None:
        site.clock.advance(hours=1)
        other = site.start(work_unit="gt-2")
        site.clock.advance(hours=1)
        heir = session.handoff(work_unit="gt-2")

        assert [record.id for record in site.engine.chain(work_unit="gt-2")] == [session.id, other.id, heir.id]
        assert site.engine.chain(work_unit="nothing") == []
        with pytest.raises(InvalidInput, match="Exactly one of"):
            site.engine.chain()

    def test_goes_by_who_came_from_whom_though_all_started_at_one_moment_or_the_clock_was_set_back(self, site: Site) -> None:
        line = [site.start(id="z")]
        for _ in range(6):
            line.append(line[-1].handoff())

        assert [record.id for record in site.engine.chain("z")] == [one.id for one in line]

    def test_shows_what_came_of_a_session(self, site: Site, session: UserSession) -> None:
        site.clock.advance(hours=1)
        last_event = session.history()[-1].seq
        fork = session.fork()
        site.clock.advance(hours=1)
        heir = session.handoff()
        heir.discard("crash")
        last = site.start(parent=heir.id)
        tree = site.engine.tree(session.id)

        assert (tree.id, tree.relation, tree.outcome) == (session.id, None, "handoff")
        assert [(node.id, node.relation) for node in tree.children] == [(fork.id, "fork"), (heir.id, "handoff")]
        assert [(node.id, node.relation, node.state) for node in tree.children[1].children] == [(last.id, "crash", "active")]
        assert tree.children[0].at_seq == last_event

    def test_says_where_it_was_cut_off_and_what_is_missing(self, site: Site, session: UserSession) -> None:
        heir = session.handoff()
        third = heir.handoff()
        assert site.engine.tree(session.id, depth=1).children[0].mark == "truncated"
        assert site.engine.tree(third.id, depth=0).mark == ""

        shutil.rmtree(site.directory(heir))
        tree = site.engine.tree(session.id)
        assert [(node.id, node.mark) for node in tree.children] == [(heir.id, "missing")]
        assert site.engine.tree(third.id).parent_missing == heir.id
        with pytest.raises(SessionNotFound):
            site.engine.tree(heir.id)
        with pytest.raises(InvalidInput, match="out of bounds"):
            site.engine.tree(session.id, depth=201)

    def test_sees_a_line_that_bites_its_own_tail(self, site: Site, session: UserSession) -> None:
        heir = session.handoff()
        raw = heir.history()[0]
        forged = {**site.events(session.id)[0].data, "lineage": {"parent": heir.id, "relation": "handoff", "chain": "x", "root": "x"}}
        log = site.directory(session) / "events.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        first = encode(Event(0, raw.ts, session.id, "session.created", "human", forged)) + b"\n"
        log.write_bytes(b"".join([first, *lines[1:]]))

        tree = site.engine.tree(session.id)
        assert tree.children[0].children[0].mark == "cycle"

    def test_an_id_is_found_by_how_it_begins(self, site: Site) -> None:
        for id_ in ("abc-1", "abc-2", "abc-3", "abc-4", "b"):
            site.start(id=id_)
        resolve = site.engine.records.resolve
        assert (resolve("b"), resolve("abc-2")) == ("b", "abc-2")
        with pytest.raises(InvalidInput, match="'abc' is ambiguous: abc-1, abc-2, abc-3 and more"):
            resolve("abc")
        with pytest.raises(SessionNotFound):
            resolve("c")


class TestListeningToASession:
    def test_hears_its_events_and_no_others_once_they_are_stored(self, site: Site, session: UserSession) -> None:
        other, seen = site.start(), list[tuple[str, bool]]()

        def listen(event: Event) -> None:
            seen.append((event.type, event.seq < 0 or event in session.history()))

        stop = session.subscribe(listen, ["user_message", "text_delta"])
        for speaker in (session, other):
            speaker.emit("text_delta", {"chunk": "h"})
            speaker.record("user_message", {"text": "hi"})
            speaker.record("assistant_message", {"text": "hi"})
        stop()
        session.record("user_message", {"text": "unheard"})

        assert seen == [("text_delta", True), ("user_message", True)]
        with pytest.raises(InvalidInput, match="There is no event 'nonsense'"):
            session.subscribe(listen, ["nonsense"])

    @pytest.mark.parametrize("runs", ["process", "thread"])
    def test_a_warning_of_pressure_is_given_once_for_a_checkpoint_and_a_tier(self, site: Site, session: UserSession, runs: str) -> None:
        asked = [(None, "warning"), (None, "warning"), (7, "warning"), (7, "critical"), (7, "critical")]
        turn = session.start_turn(lambda context: [context.register_pressure_warning(*one) for one in asked], runs=runs)

        assert turn.wait(60)
        assert turn.value == ["warn", "already_warned", "warn", "warn", "already_warned"]
        assert session.register_pressure_warning(7, "critical") == "already_warned"
        with site.another() as engine:
            assert engine.get_session(session.id).register_pressure_warning(7, "critical") == "warn"
        with pytest.raises(InvalidInput, match="is no event's number"):
            session.register_pressure_warning("7", "critical")  # type: ignore[arg-type]


def test_a_handoff_whose_new_session_cannot_be_opened_is_done_and_names_it(
    site: Site, session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> UserSession:
        raise AdapterUnavailable("There are too many open files.")

    with monkeypatch.context() as refusing, pytest.raises(AdapterUnavailable) as failed:
        refusing.setattr("pytest_gittrix.engine.user_session.open_session", refused)
        session.handoff(id="child")

    assert (failed.value.outcome, failed.value.session) == (None, "child")
    assert site.engine.get_session("child").info().parent == session.id
