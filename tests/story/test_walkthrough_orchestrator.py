"""agent-orchestrator's "Session" page, from its interface to its notes: each property, status, activity, example and rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from support.engine import shell
from support.orchestrator import Fleet, on_linux, open_fleet

from pytest_gittrix.errors import GittrixError, SessionNotRestorable
from pytest_gittrix.orchestrator.config import SpawnConfig
from pytest_gittrix.orchestrator.end import REASONS
from pytest_gittrix.orchestrator.flat_files import read
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.orchestrator.session import Session, is_restorable, is_terminal_session
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.observations import ACTIVITIES
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.views.orchestrator_status import NON_RESTORABLE_STATUSES, STATUSES, TERMINAL_ACTIVITIES, TERMINAL_STATUSES

pytestmark = on_linux


@pytest.fixture(name="forge")
def forge_fixture(tmp_path: Path) -> Iterator[ForgeServer]:
    with BareRemote.make(tmp_path / "forge.git", files={"app.py": "v1\n"}) as remote, ForgeServer(remote) as server:
        yield server


@pytest.fixture(name="forged")
def forged_fixture(tmp_path: Path, forge: ForgeServer) -> Iterator[Fleet]:
    """An orchestrator whose project has its pull requests at ``forge``."""
    with forge.forge() as client, open_fleet(tmp_path, forge=client) as fleet:
        yield fleet


def opened(fleet: Fleet, forge: ForgeServer) -> tuple[str, int]:
    """A session, and the pull request that its branch has at the forge: its id and its number."""
    session = fleet.spawn(branch="feat/login")
    if "refs/heads/feat/login" not in forge.remote.repo.git("for-each-ref", "--format=%(refname)"):
        forge.remote.repo.git("branch", "feat/login", "main")
        forge.remote.repo.git("update-ref", "refs/heads/feat/login", committed(forge))
    with forge.forge() as client:
        number = client.open_pr("feat/login", "main", "Mend the login").number
    return session.id, number


def committed(forge: ForgeServer) -> str:
    """A commit on top of the remote's branch, which is not moved."""
    repo = forge.remote.repo
    return repo.git("commit-tree", "main^{tree}", "-p", "main", "-m", "Mend the login").strip()


def status(fleet: Fleet, id: str) -> str:
    """The status of a session at its next look."""
    fleet.lead.poll()
    return fleet.now(id).status


class TestProperties:
    """Properties"""

    def test_id_is_the_project_s_prefix_and_a_number(self, fleet: Fleet) -> None:
        assert [fleet.spawn().id, fleet.spawn().id] == ["app-1", "app-2"]

    def test_project_id_is_that_of_the_configuration(self, fleet: Fleet) -> None:
        assert fleet.spawn().project_id == "app"

    def test_activity_is_none_until_it_is_determined(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        assert session.activity is None
        fleet.does(session, "active")
        fleet.lead.poll()
        assert fleet.now(session.id).activity == "active"

    def test_branch_is_told_or_made(self, fleet: Fleet) -> None:
        assert [fleet.spawn(branch="mine").branch, fleet.spawn(issue_id="#42").branch, fleet.spawn().branch] == [
            "mine",
            "feat/42",
            "session/app-3",
        ]

    def test_branch_is_named_before_the_workspace_is_there(self, fleet: Fleet) -> None:
        seen: list[tuple[str, str | None, str | None]] = []

        def look(event: Event) -> None:
            found = fleet.now(event.stream)
            seen.append((found.status, found.branch, found.workspace_path))

        fleet.site.engine.on("session.created", look)
        fleet.spawn(branch="mine")
        assert seen == [("spawning", "mine", None)]

    def test_branch_is_that_of_the_workspace_and_of_the_promotion(self, forged: Fleet) -> None:
        session = forged.spawn(issue_id="#42")
        held = forged.site.engine.get_session(session.id)
        assert shell(held, "git symbolic-ref --short HEAD; git rev-parse feat/42") == f"feat/42\n{held.info().baseline_sha}\n"
        shell(held, "echo mended > app.py; git add app.py; git -c user.name=a -c user.email=a@b commit -qm mend")
        assert held.log()[0].message.strip() == "mend"
        assert held.promote(strategy="branch").branch == session.branch == "feat/42"

    def test_issue_id_is_none_if_it_is_not_issue_based(self, fleet: Fleet) -> None:
        assert [fleet.spawn(issue_id="INT-7").issue_id, fleet.spawn().issue_id] == ["INT-7", None]

    def test_pr_is_none_until_it_is_opened(self, forged: Fleet, forge: ForgeServer) -> None:
        session = forged.spawn()
        assert session.pr is None
        id, number = opened(forged, forge)
        forged.lead.poll()
        pr = forged.now(id).pr
        assert pr is not None
        assert (pr.number, pr.title, pr.branch, pr.base_branch, pr.is_draft) == (number, "Mend the login", "feat/login", "main", False)

    def test_workspace_path_is_absolute_and_on_the_disk(self, fleet: Fleet) -> None:
        path = Path(fleet.spawn().workspace_path or "")
        assert path.is_absolute()
        assert path.is_dir()

    def test_runtime_handle_is_the_process(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        handle, owner = session.runtime_handle, fleet.process(session.id).owner
        assert handle is not None
        assert owner is not None
        assert (handle.runtime_name, handle.id) == ("process", str(owner.pid))

    def test_agent_info_is_what_is_known_of_its_conversation(self, fleet: Fleet) -> None:
        silent, prompted = fleet.spawn(), fleet.spawn(prompt="Fix the authentication bug")
        assert silent.agent_info is None
        assert prompted.agent_info is not None
        assert (prompted.agent_info.summary, prompted.agent_info.summary_is_fallback) == ("Fix the authentication bug", True)
        held = fleet.site.engine.get_session(silent.id)
        held.identify(agent_session="6f1c")
        for _ in range(2):
            held.record("provider_usage", {"input_tokens": 10, "output_tokens": 20, "cost_usd": 0.5})
        told = fleet.now(silent.id).agent_info
        assert told is not None
        assert (told.agent_session_id, told.cost) == ("6f1c", {"inputTokens": 20, "outputTokens": 40, "estimatedCostUsd": 1.0})

    def test_created_at_is_the_clock_s(self, fleet: Fleet) -> None:
        assert fleet.spawn().created_at == fleet.site.clock.now()

    def test_last_activity_at_follows_the_agent(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.site.clock.advance(minutes=3)
        fleet.does(session, "active")
        fleet.lead.poll()
        assert fleet.now(session.id).last_activity_at == fleet.site.clock.now()

    def test_restored_at_is_undefined_unless_it_was_restored(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        assert "restoredAt" not in session.to_wire()
        fleet.lead.kill(session.id)
        fleet.site.clock.advance(minutes=1)
        assert fleet.lead.restore(session.id).restored_at == fleet.site.clock.now()

    def test_metadata_is_texts(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.lead.report(session.id, "working", "halfway")
        assert fleet.now(session.id).metadata["agentReportedNote"] == "halfway"

    def test_the_record_has_the_documented_fields_and_no_other(self, fleet: Fleet) -> None:
        wire = fleet.spawn().to_wire()
        documented = "id projectId status activity branch issueId pr workspacePath runtimeHandle agentInfo createdAt"
        assert {*wire} == {*documented.split(), "lastActivityAt", "metadata"}
        assert datetime.fromisoformat(wire["createdAt"]).tzinfo is not None
        assert json.loads(json.dumps(wire)) == wire


class TestStatus:
    """status, one of"""

    def test_there_are_sixteen(self) -> None:
        documented = """spawning working pr_open ci_failed review_pending changes_requested approved mergeable merged cleanup needs_input
            stuck errored killed done terminated"""
        assert sorted(STATUSES) == sorted(documented.split())
        assert len(STATUSES) == 16

    def test_spawning_is_being_created(self, fleet: Fleet) -> None:
        seen: list[str] = []
        fleet.site.engine.on("workspace.ready", lambda event: seen.append(fleet.now(event.stream).status))
        fleet.spawn()
        assert seen == ["spawning"]

    def test_working_is_an_agent_at_work(self, fleet: Fleet) -> None:
        assert fleet.spawn().status == "working"

    def test_pr_open_is_a_pull_request_that_was_created(self, forged: Fleet, forge: ForgeServer) -> None:
        id, _ = opened(forged, forge)
        forge.state.checks("feat/login", {"build": "in_progress"})
        assert status(forged, id) == "pr_open"

    def test_ci_failed_is_checks_that_failed(self, forged: Fleet, forge: ForgeServer) -> None:
        id, _ = opened(forged, forge)
        forge.state.checks("feat/login", {"build": "failure"})
        assert status(forged, id) == "ci_failed"

    def test_review_pending_awaits_a_review(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forge.state.request_review(number, "ada")
        assert status(forged, id) == "review_pending"

    def test_changes_requested_is_a_reviewer_s_word(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forge.state.review(number, "ada", "changes_requested")
        assert status(forged, id) == "changes_requested"

    def test_approved_is_a_reviewer_s_word_too(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forge.state.review(number, "ada", "approved")
        forge.state.checks("feat/login", {"build": "in_progress"})
        assert status(forged, id) == "approved"

    def test_mergeable_is_ready_to_merge(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forge.state.review(number, "ada", "approved")
        forge.state.checks("feat/login", {"build": "success"})
        assert status(forged, id) == "mergeable"

    def test_merged_is_a_merged_pull_request(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forged.lead.poll()
        forge.state.merge(number)
        assert status(forged, id) == "merged"

    def test_cleanup_is_resources_that_are_cleaned_up(self, forged: Fleet, forge: ForgeServer) -> None:
        id, number = opened(forged, forge)
        forged.lead.poll()
        forge.state.merge(number)
        forged.lead.poll()
        workspace = Path(forged.now(id).workspace_path or "")
        assert workspace.is_dir()
        assert len(forged.kit.alive()) == 1
        assert forged.lead.cleanup().killed == [id]
        assert forged.now(id).status == "cleanup"
        assert is_terminal_session(forged.now(id))
        assert forged.kit.gone()
        assert not workspace.exists()

    def test_needs_input_waits_for_a_person(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "waiting_input")
        assert status(fleet, session.id) == "needs_input"

    def test_stuck_is_an_agent_that_rests_for_too_long(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "idle")
        assert status(fleet, session.id) == "working"
        fleet.site.clock.advance(minutes=10)
        assert status(fleet, session.id) == "stuck"

    def test_errored_is_an_error_of_its_process(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.lead.kill(session.id, reason="error_in_process")
        assert fleet.now(session.id).status == "errored"

    def test_killed_is_killed_by_hand(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.lead.kill(session.id)
        assert fleet.now(session.id).status == "killed"

    def test_done_is_completed_successfully(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        held = fleet.site.engine.get_session(session.id)
        held.write("new.py", "x = 1\n")
        held.promote(strategy="commit")
        assert fleet.now(session.id).status == "done"

    @pytest.mark.parametrize(("code", "ended"), [(0, "done"), (3, "errored")])
    def test_an_agent_that_exits_by_itself_ends_by_its_status(self, fleet: Fleet, code: int, ended: str) -> None:
        session = fleet.spawn(fleet.another(fleet.project(agents=(fleet.agent(fleet.kit.script().at("up").exits(code)),))))
        fleet.kit.step("up")
        assert fleet.kit.gone()
        assert status(fleet, session.id) == ended
        assert is_terminal_session(fleet.now(session.id))
        assert fleet.now(session.id).activity == "exited"

    def test_a_question_stays_a_question_however_long_nobody_answers(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "waiting_input")
        assert status(fleet, session.id) == "needs_input"
        fleet.does(session, "idle")
        fleet.site.clock.advance(hours=1)
        assert status(fleet, session.id) == "needs_input"
        fleet.does(session, "active")
        assert status(fleet, session.id) == "working"

    def test_blocked_is_shown_when_it_is_known(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "blocked")
        assert status(fleet, session.id) == "stuck"
        assert fleet.now(session.id).activity == "blocked"
        fleet.does(session, "active")
        assert status(fleet, session.id) == "working"

    def test_terminated_is_an_end_of_no_other_name(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        recorder = fleet.site.engine.services.recorder(session.id)
        with recorder.leased():
            recorder.append("status.decided", {"session": "terminated", "reason": "agent_process_exited"})
        assert fleet.now(session.id).status == "terminated"
        assert is_terminal_session(fleet.now(session.id))

    def test_an_end_of_ours_has_a_name_that_says_more_than_terminated(self, fleet: Fleet) -> None:
        said = {}
        for reason in REASONS:
            session = fleet.spawn()
            fleet.lead.kill(session.id, reason=reason)
            said[reason] = fleet.now(session.id).status
        assert said == {
            "manually_killed": "killed",
            "pr_merged": "cleanup",
            "auto_cleanup": "cleanup",
            "runtime_lost": "errored",
            "error_in_process": "errored",
        }


class TestActivity:
    """activity, one of"""

    def test_there_are_six(self) -> None:
        assert sorted(ACTIVITIES) == ["active", "blocked", "exited", "idle", "ready", "waiting_input"]

    @pytest.mark.parametrize("state", ["active", "ready", "idle", "waiting_input", "blocked"])
    def test_it_is_what_the_agent_s_own_log_tells(self, fleet: Fleet, state: str) -> None:
        session = fleet.spawn()
        fleet.does(session, state)
        fleet.lead.poll()
        assert fleet.now(session.id).activity == state

    def test_idle_is_what_active_becomes_after_a_while(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "active")
        fleet.lead.poll()
        fleet.site.clock.advance(minutes=6)
        assert fleet.now(session.id).activity == "idle"

    def test_exited_is_a_process_that_is_gone(self, tmp_path: Path) -> None:
        with open_fleet(tmp_path) as fleet:
            agent = fleet.agent(fleet.kit.script().at("up").exits(0))
            session = fleet.spawn(fleet.another(fleet.project(agents=(agent,))))
            fleet.kit.step("up")
            assert fleet.kit.gone()
            fleet.lead.poll()
            assert fleet.now(session.id).activity == "exited"


class TestUsage:
    """SessionSpawnConfig, and the usage examples"""

    def test_spawn_takes_project_issue_branch_prompt_and_agent(self, fleet: Fleet) -> None:
        other = fleet.agent(fleet.kit.script("other").polite().at("up").hang(), name="other")
        lead = fleet.another(fleet.project(agents=(fleet.agent(), other)))
        config = SpawnConfig(project_id="app", issue_id="#42", branch="mine", prompt="Fix the authentication bug", agent="other")
        session = lead.spawn(config)
        assert (session.project_id, session.issue_id, session.branch, session.metadata["agent"]) == ("app", "#42", "mine", "other")
        assert session.agent_info is not None
        assert session.agent_info.summary == "Fix the authentication bug"
        fleet.kit.wait_for("up")
        assert [len(fleet.kit.processes(name)) for name in ("agent", "other")] == [0, 1], "the program of the other agent runs"

    def test_a_created_session_says_its_id_and_branch(self, fleet: Fleet) -> None:
        session = fleet.spawn(issue_id="#42", prompt="Fix the authentication bug")
        assert f"Session {session.id} created on branch {session.branch}" == "Session app-1 created on branch feat/42"

    def test_what_has_finished_is_restored_if_it_can_be(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.lead.kill(session.id)
        found = fleet.now(session.id)
        assert is_terminal_session(found)
        assert is_restorable(found)
        assert fleet.lead.restore(session.id).status == "working"

    def test_what_is_restorable_is_restored(self, fleet: Fleet) -> None:
        killed, purged = fleet.spawn(), fleet.spawn()
        fleet.lead.kill(killed.id)
        fleet.lead.kill(purged.id, purge=True)
        for id in (killed.id, purged.id):
            if is_restorable(fleet.now(id)):
                assert fleet.lead.restore(id).status == "working"
            else:
                with pytest.raises(GittrixError):
                    fleet.lead.restore(id)
        assert [is_restorable(fleet.now(id)) for id in (killed.id, purged.id)] == [False, False]
        assert [is_terminal_session(fleet.now(id)) for id in (killed.id, purged.id)] == [False, True]

    def test_a_session_that_is_kept_is_restored_and_one_that_is_promoted_for_good_is_not(self, fleet: Fleet) -> None:
        lead = Orchestrator(fleet.site.another(eviction=EvictionPolicy(until_promote=False)), [fleet.project()], confine="off")
        for strategy, restorable in (("branch", True), ("commit", False)):
            session = lead.spawn(SpawnConfig("app"))
            (Path(str(session.workspace_path)) / "app.py").write_text(f"{strategy}\n")
            fleet.site.engine.get_session(session.id).promote(strategy=strategy, keep=restorable)
            lead.kill(session.id)
            found = lead.get(session.id)
            assert found is not None
            assert fleet.site.state(session.id).workspace_present
            assert is_restorable(found) == restorable
            if restorable:
                assert lead.restore(session.id).status == "working"
            else:
                with pytest.raises(SessionNotRestorable):
                    lead.restore(session.id)

    def test_whoever_waits_for_input_is_told_of(self, fleet: Fleet) -> None:
        session = fleet.spawn()
        fleet.does(session, "waiting_input")
        fleet.lead.poll()
        asked = [event for event in fleet.notifications if event["type"] == "session.needs_input"]
        assert [(event["sessionId"], event["priority"]) for event in asked] == [(session.id, "urgent")]


class TestNotes:
    """Implementation notes"""

    def test_terminal_statuses_are_those_of_the_document(self) -> None:
        assert {"killed", "terminated", "done", "cleanup", "errored", "merged"} == TERMINAL_STATUSES
        assert {"exited"} == TERMINAL_ACTIVITIES

    def test_merged_alone_is_not_restorable(self) -> None:
        assert NON_RESTORABLE_STATUSES["document"] == {"merged"}

    @pytest.mark.parametrize("one", STATUSES)
    @pytest.mark.parametrize("activity", [None, "active", "exited"])
    def test_a_session_is_terminal_and_restorable_as_documented(self, fleet: Fleet, one: str, activity: str | None) -> None:
        base = fleet.spawn().to_wire()
        session = shown(base, one, activity)
        terminal = one in TERMINAL_STATUSES or activity == "exited"
        assert is_terminal_session(session) == terminal
        assert is_restorable(session) == (terminal and one != "merged")

    def test_activity_comes_from_the_agent_s_own_files_and_not_from_its_terminal(self, fleet: Fleet) -> None:
        agent = fleet.agent(fleet.kit.script().say("waiting for input?").at("said").hang())
        session = fleet.spawn(fleet.another(fleet.project(agents=(agent,))))
        fleet.kit.wait_for("said")
        fleet.lead.poll()
        assert fleet.now(session.id).activity is None

    def test_state_is_persisted_to_flat_files(self, fleet: Fleet) -> None:
        session = fleet.spawn(issue_id="#42", branch="mine")
        values = read(fleet.files / session.id) or {}
        assert (values["project"], values["branch"], values["issue"], values["status"]) == ("app", "mine", "#42", "working")
        assert values["worktree"] == session.workspace_path

    def test_a_file_of_the_original_script_is_read(self, fleet: Fleet) -> None:
        fleet.files.mkdir(parents=True, exist_ok=True)
        (fleet.files / "app-7").write_text("# by hand\nstatus=starting\nissue=#7\nbranch=feat/7\npr=https://forge/acme/app/pull/12\n")
        found = fleet.now("app-7")
        assert (found.status, found.issue_id, found.branch, found.pr.number if found.pr else None) == ("working", "#7", "feat/7", 12)


def shown(wire: dict[str, object], status: str, activity: str | None) -> Session:
    """A session as it would be shown with another status."""
    from pytest_gittrix.orchestrator.session import session_from

    return session_from({**wire, "status": status, "activity": activity})
