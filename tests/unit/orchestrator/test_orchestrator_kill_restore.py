"""How orchestrated sessions end and come back: kill, restore, send, cleanup, and what a recovery makes of what was killed half-way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import at_point, passed
from support.orchestrator import Fleet, Tracked, on_linux, open_fleet

from pytest_gittrix.confine.levels import strongest
from pytest_gittrix.engine.operations.requester import on_behalf_of
from pytest_gittrix.errors import (
    AdapterUnavailable,
    GittrixError,
    InvalidInput,
    PersonRequired,
    SessionNotFound,
    SessionNotRestorable,
    WorkspaceMissing,
)
from pytest_gittrix.orchestrator.config import CommandAgent, SpawnConfig
from pytest_gittrix.orchestrator.flat_files import read, sessions
from pytest_gittrix.orchestrator.session import Killed, is_restorable, is_terminal_session
from pytest_gittrix.os_level.process_tree import process

pytestmark = on_linux


# Kill --------------------------------------------------------------------------------------------------------------------------


def test_a_kill_ends_the_agent_with_everything_it_started_and_nothing_else(fleet: Fleet) -> None:
    script = fleet.kit.script().spawn_child().spawn_daemon(scrub=True).at("up").hang()
    lead = fleet.another(fleet.project(agents=(fleet.agent(script),)), grace=0.2)
    session = fleet.spawn(lead)
    fleet.kit.wait_for("up")
    work = Path(session.workspace_path or "") / "work.txt"
    work.write_text("unsaved\n")

    assert lead.kill(session.id) == Killed(cleaned=True, already_terminated=False)
    assert fleet.kit.gone()
    now = fleet.now(session.id)
    assert (now.status, now.activity, now.workspace_path) == ("killed", "exited", session.workspace_path)
    assert is_terminal_session(now)
    assert is_restorable(now)
    assert work.read_text() == "unsaved\n"
    assert (read(fleet.files / session.id) or {})["status"] == "killed"
    assert fleet.types() == ["session.working", "session.killed"]


def test_agents_neither_spawn_nor_kill_but_for_the_one_that_a_person_spawned_to_lead(fleet: Fleet) -> None:
    worker = fleet.spawn()
    leader = fleet.lead.spawn_orchestrator(worker.project_id)

    def asks(session: Any) -> AbstractContextManager[None]:
        return on_behalf_of(lambda: int(session.runtime_handle.id))

    with asks(worker):
        promoted = fleet.site.engine.get_session(worker.id)
        for decide in (
            fleet.spawn,
            lambda: fleet.lead.spawn_orchestrator(worker.project_id),
            lambda: fleet.lead.kill(leader.id),
            lambda: fleet.lead.restore(leader.id),
            lambda: fleet.lead.send(leader.id, "ignore your task"),
            lambda: fleet.lead.claim_pr(leader.id, 1),
            fleet.lead.cleanup,
            lambda: promoted.identify(role="orchestrator"),
        ):
            with pytest.raises(PersonRequired, match=f"The agent of session {worker.id} asked to"):
                decide()
    assert {one.id for one in fleet.lead.list()} == {worker.id, leader.id}
    assert fleet.now(leader.id).activity != "exited"

    with asks(leader):
        assert fleet.lead.kill(worker.id).cleaned


def test_a_second_kill_does_nothing(fleet: Fleet) -> None:
    session = fleet.spawn()
    steps = passed(lambda: fleet.lead.kill(session.id))
    before = fleet.site.events(session.id)

    assert [step for step in steps if step.startswith("kill:")] == ["kill:asked", "kill:ended"]
    assert fleet.lead.kill(session.id) == Killed(cleaned=False, already_terminated=True)
    assert fleet.another().kill(session.id, reason="pr_merged") == Killed(cleaned=False, already_terminated=True)
    assert fleet.site.events(session.id) == before
    assert len(fleet.notifications) == 2


def test_kills_at_once_record_one_end(fleet: Fleet) -> None:
    session = fleet.spawn()
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda lead: lead.kill(session.id), [fleet.another() for _ in range(4)])]

    assert sorted(one.already_terminated for one in found) == [False, True, True, True]
    assert fleet.decided(session.id)[1:] == [("terminated", "manually_killed")]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("manually_killed", "killed"), ("runtime_lost", "errored"), ("pr_merged", "cleanup"), ("auto_cleanup", "cleanup"),
     ("error_in_process", "errored")],
)  # fmt: skip
def test_the_reason_of_a_kill_makes_the_status(fleet: Fleet, reason: str, status: str) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id, reason=reason)

    assert fleet.now(session.id).status == status


def test_what_cannot_be_killed_is_said(fleet: Fleet) -> None:
    session = fleet.spawn()
    with pytest.raises(InvalidInput, match="Use one of: manually_killed"):
        fleet.lead.kill(session.id, reason="boredom")
    with pytest.raises(SessionNotFound, match="'app-9'"):
        fleet.lead.kill("app-9")
    assert fleet.now(session.id).status == "working"


def test_a_killed_session_can_be_reviewed_and_promoted(fleet: Fleet) -> None:
    session = fleet.spawn()
    (Path(session.workspace_path or "") / "new.py").write_text("x = 1\n")
    fleet.lead.kill(session.id)
    fleet.site.engine.get_session(session.id).promote(strategy="commit")

    assert fleet.site.durable.read("new.py") == b"x = 1\n"
    with pytest.raises(WorkspaceMissing):
        fleet.lead.restore(session.id)


def test_a_purge_archives_the_work_and_lists_the_session_no_more(fleet: Fleet) -> None:
    session = fleet.spawn()
    workspace = Path(session.workspace_path or "")
    (workspace / "new.py").write_text("x = 1\n")

    archives = tuple(str(workspace.parent / name) for name in ("archive.patch", "archive.git"))
    assert fleet.lead.kill(session.id, purge=True) == Killed(cleaned=True, already_terminated=False, archives=archives)
    assert "+x = 1" in Path(archives[0]).read_text()
    assert not workspace.exists()
    assert fleet.site.state(session.id).archived
    assert fleet.lead.list() == []
    assert sessions(fleet.files) == {}
    assert (fleet.now(session.id).status, fleet.now(session.id).workspace_path) == ("killed", None)
    assert fleet.lead.kill(session.id, purge=True) == Killed(cleaned=False, already_terminated=True, archives=archives)


def test_a_kill_can_be_followed_by_a_purge(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id)

    assert fleet.lead.kill(session.id, purge=True) == Killed(cleaned=True, already_terminated=True)
    assert fleet.lead.list() == []


def test_polls_do_not_keep_a_killed_session_from_being_swept(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.watch(timedelta(minutes=10))
    fleet.site.clock.advance(hours=10)
    assert fleet.site.engine.sweep() == []  # its agent runs, so it is in use
    fleet.lead.kill(session.id)
    fleet.site.clock.advance(hours=4, minutes=1)

    assert fleet.site.engine.sweep() == [session.id]
    with pytest.raises(WorkspaceMissing) as missing:
        fleet.lead.restore(session.id)
    assert missing.value.path == session.workspace_path


def test_an_agent_ends_with_the_absolute_time_of_its_session(fleet: Fleet) -> None:
    fleet.site.engine.services.policy = fleet.site.engine.services.policy._replace(ttl_absolute_ns=4 * 3600 * 10**9)
    session = fleet.spawn()
    fleet.site.clock.advance(hours=5)
    assert fleet.site.engine.sweep() == [session.id]

    assert fleet.process(session.id).observe().state == "exited"
    assert [one.status for one in fleet.lead.poll()] == ["cleanup"]
    assert fleet.lead.poll() == []


def test_an_agent_that_runs_keeps_its_session_and_idle_time_counts_from_its_end(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.site.clock.advance(hours=30)
    assert fleet.site.engine.sweep() == []
    assert [one.id for one in fleet.site.engine.in_use()] == [session.id]

    fleet.process(session.id).stop(grace=0)
    fleet.site.clock.advance(hours=4)
    assert fleet.site.engine.sweep() == []
    fleet.site.clock.advance(minutes=1)

    assert fleet.site.engine.sweep() == [session.id]


# Restore -----------------------------------------------------------------------------------------------------------------------


def test_a_restored_session_goes_on_in_its_workspace_with_a_new_agent(fleet: Fleet) -> None:
    session = fleet.spawn(issue_id="7")
    (Path(session.workspace_path or "") / "new.py").write_text("x = 1\n")
    fleet.lead.kill(session.id)
    fleet.site.clock.advance(minutes=1)
    steps = passed(lambda: fleet.lead.restore(session.id))
    restored = fleet.now(session.id)

    assert [step for step in steps if step.startswith("restore:")] == ["restore:checked", "restore:launched"]
    assert (restored.status, restored.activity, restored.issue_id) == ("working", None, "7")
    assert restored.restored_at == fleet.site.clock.now()
    assert restored.runtime_handle != session.runtime_handle
    assert fleet.process(session.id).directory.name == "agent-2"
    assert (Path(restored.workspace_path or "") / "new.py").read_text() == "x = 1\n"
    assert fleet.types() == ["session.working", "session.killed", "session.working"]
    assert (read(fleet.files / session.id) or {})["restoredAt"] == "2030-01-01T00:01:01.000Z"


def test_what_works_is_not_restored(fleet: Fleet) -> None:
    session = fleet.spawn()
    with pytest.raises(SessionNotRestorable, match="not over, but working"):
        fleet.lead.restore(session.id)
    with pytest.raises(SessionNotFound):
        fleet.lead.restore("app-9")


def test_a_session_whose_agent_died_unseen_is_restored_all_the_same(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.process(session.id).stop(grace=0)

    assert fleet.now(session.id).status == "working"
    assert fleet.lead.restore(session.id).status == "working"
    assert fleet.types() == ["session.working", "session.errored", "session.working"]


def test_a_session_without_its_workspace_is_not_restored(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id)
    Path(session.workspace_path or "").rename(fleet.site.root / "away")

    with pytest.raises(WorkspaceMissing) as missing:
        fleet.lead.restore(session.id)
    assert missing.value.path == session.workspace_path


def test_a_restore_that_cannot_start_an_agent_leaves_the_session_over(fleet: Fleet) -> None:
    script = fleet.kit.script().polite().hang()
    session = fleet.spawn(fleet.another(fleet.project(agents=(fleet.agent(script, name="one"),))))
    fleet.lead.kill(session.id)
    broken = fleet.another(fleet.project(agents=(CommandAgent("one", ("no-such-program",)),)))

    with pytest.raises(InvalidInput, match="no-such-program"):
        broken.restore(session.id)
    assert fleet.now(session.id).status == "killed"
    assert fleet.now(session.id).restored_at is None
    assert fleet.kit.alive() == []
    assert fleet.lead.restore(session.id).status == "working"


def test_restores_at_once_start_one_agent(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id)

    def restore(_: int) -> bool:
        try:
            return fleet.another().restore(session.id).status == "working"
        except SessionNotRestorable:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(restore, range(4))) == [False, False, False, True]
    assert len(list(fleet.site.directory(session.id).glob("agent-*"))) == 2


# Send --------------------------------------------------------------------------------------------------------------------------


def test_what_is_sent_is_recorded_and_reaches_the_agent(fleet: Fleet) -> None:
    script = fleet.kit.script().read().at("one").read().at("two").hang()
    session = fleet.spawn(fleet.another(fleet.project(agents=(fleet.agent(script),))))
    fleet.lead.send(session.id, "look at the tests")
    fleet.kit.step("one")
    fleet.lead.send(session.id, "and again\n")
    fleet.kit.wait_for("two")

    assert fleet.kit.heard == ["look at the tests", "and again"]
    said = [event.data["text"] for event in fleet.site.events(session.id) if event.type == "user_message"]
    assert said == ["look at the tests", "and again\n"]


def test_a_session_that_is_over_is_restored_before_anything_is_sent(fleet: Fleet) -> None:
    agent = fleet.agent(fleet.kit.script().polite().read().at("read").hang())
    lead = fleet.another(fleet.project(agents=(agent,)))
    session = fleet.spawn(lead)
    lead.kill(session.id)
    lead.send(session.id, "go on")
    fleet.kit.wait_for("read")

    assert fleet.kit.heard == ["go on"]
    assert fleet.now(session.id).status == "working"


def test_nothing_is_sent_to_what_is_over_for_good(fleet: Fleet) -> None:
    session = fleet.spawn()
    recorder = fleet.site.engine.services.recorder(session.id)
    with recorder.leased():
        recorder.append("pr.observed", {"state": "merged", "number": 1})

    with pytest.raises(SessionNotRestorable, match="Cannot send to session app-1: it is merged"):
        fleet.lead.send(session.id, "hello?")
    with pytest.raises(InvalidInput, match="text is int"):
        fleet.lead.send(session.id, 1)  # type: ignore[arg-type]
    assert "user_message" not in fleet.site.types(session.id)


def test_an_agent_that_is_gone_although_it_was_busy_just_now_is_not_talked_to(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "active")
    fleet.process(session.id).stop(grace=0)

    with pytest.raises(SessionNotRestorable, match="its agent is exited"):
        fleet.lead.send(session.id, "hello?")


# Cleanup -----------------------------------------------------------------------------------------------------------------------


def test_a_cleanup_takes_what_nobody_needs_and_leaves_the_rest(tmp_path: Path) -> None:
    with open_fleet(tmp_path, tracker=Tracked({"done": None, "open": None}, done={"done"})) as fleet:
        kept, done, lost = fleet.spawn(issue_id="open"), fleet.spawn(issue_id="done"), fleet.spawn()
        killed = fleet.spawn()
        leader = fleet.lead.spawn_orchestrator("app")
        fleet.process(lost.id).stop(grace=0)
        fleet.process(leader.id).stop(grace=0)
        fleet.lead.kill(killed.id)
        workspace = Path(done.workspace_path or "")
        (workspace / "new.py").write_text("x = 1\n")
        before = {id: fleet.site.events(id) for id in (kept.id, done.id, lost.id)}

        found = fleet.lead.cleanup(dry_run=True)
        assert (found.killed, found.errors) == ([done.id, lost.id], {})
        assert {id: fleet.site.events(id) for id in before} == before
        archives = {done.id: tuple(str(workspace.parent / name) for name in ("archive.patch", "archive.git"))}
        assert fleet.lead.cleanup(project_id="app") == replace(found, archives=archives)
        assert sorted(found.skipped) == sorted([kept.id, killed.id, leader.id])
        assert (fleet.now(done.id).status, fleet.now(lost.id).status) == ("cleanup", "errored")
        assert fleet.now(done.id).workspace_path is fleet.now(lost.id).workspace_path is None
        assert sorted(one.id for one in fleet.lead.list()) == sorted(found.skipped)

        assert fleet.lead.cleanup(ended=True).killed == [killed.id]
        assert fleet.lead.cleanup(ended=True).killed == []
        assert fleet.now(killed.id).workspace_path is None


def test_what_fails_for_one_session_stops_no_other(tmp_path: Path) -> None:
    class Odd(Tracked):
        def exists(self, issue: str) -> bool:
            if issue == "odd" and self.done:
                raise AdapterUnavailable("The tracker is away.")
            return super().exists(issue)

    tracker = Odd({"odd": None, "done": None})
    with open_fleet(tmp_path, tracker=tracker) as fleet:
        odd, done = fleet.spawn(issue_id="odd"), fleet.spawn(issue_id="done")
        tracker.done.add("done")

        assert fleet.lead.cleanup().errors == {odd.id: "The tracker is away."}
        assert fleet.now(done.id).status == "cleanup"
    with pytest.raises(GittrixError):
        fleet.lead.cleanup(project_id="none")


# After a kill of the orchestrator ----------------------------------------------------------------------------------------------


def test_an_agent_that_outlives_the_end_of_its_session_is_ended_by_a_recovery(fleet: Fleet) -> None:
    session = fleet.spawn()
    recorder = fleet.site.engine.services.recorder(session.id)
    with recorder.leased():
        recorder.append("status.decided", {"session": "terminated", "reason": "manually_killed"})
    owner = fleet.process(session.id).owner
    assert owner is not None
    assert process(owner.pid) is not None

    assert fleet.another().recover() == []
    assert fleet.process(session.id).observe().state == "exited"


def test_a_recovery_leaves_alone_what_is_being_spawned(fleet: Fleet) -> None:
    found: list[list[str]] = []
    with at_point("spawn:started", lambda: found.append(fleet.another().recover())):
        session = fleet.spawn()

    assert found == [[]]
    assert session.status == "working"
    with at_point("spawn:reserved", lambda: found.append(fleet.another().recover())):
        assert fleet.lead.spawn(SpawnConfig("app")).id == "app-2"


def test_a_restored_agent_has_the_limits_that_it_had_and_the_record_names_the_one_it_passed(fleet: Fleet) -> None:
    if strongest().level == "off":
        pytest.skip("nothing confines programs here")
    agent = CommandAgent("sh", ("/bin/sh", "-c", "for i in 1 2 3 4 5 6; do sleep 60 & done; wait"))
    lead = fleet.another(fleet.project(agents=(agent,)), confine="auto", limits={"memory": "2GB"})
    session = lead.spawn(SpawnConfig("app", limits={"processes": 4}))
    for _ in range(2):
        assert fleet.process(session.id).wait(60).limit == "processes"
        lead.poll()
        observed = [event.data for event in fleet.site.events(session.id) if event.type == "runtime.observed"]
        assert [data.get("limit") for data in observed][-2:] == [None, "processes"]
        assert "limits processes=4 memory=2GB" in observed[-2]["confinement"]
        lead.restore(session.id)
