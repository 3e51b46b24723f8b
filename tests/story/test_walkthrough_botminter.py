"""BotMinter's "Session Model", from its first sentence to its last table: each property, type, state, policy and scope."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.acp_program import MEMBER, SAVES
from support.members import Crew

from pytest_gittrix.record.state.retention import RetentionPolicy, Selector, age_ns
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.views import view
from pytest_gittrix.workspaces.multi_repo import clone_path

WORKS = (
    "cd projects/app && git checkout -q -b feature && echo code > committed.py && git add committed.py"
    " && git -c user.name=a -c user.email=a@b commit -q -m work && echo more > left.py"
)
"""What an agent does that commits a part of its work, and ends."""
HOURS_48 = RetentionPolicy(loop_brain_ns=age_ns("48h"), interactive_failure_ns=age_ns("48h"))


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew.open(tmp_path, retention=HOURS_48) as opened:
        yield opened


def record(crew: Crew, id_: str) -> dict[str, Any]:
    """The record of a session, in the document's fields."""
    return view(crew.events(id_), "botminter")


def reject(crew: Crew, *, only: str = "*") -> None:
    """Have the remote of ``app`` refuse pushes to branches of a pattern."""
    hook = crew.app.path / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\ncase "$1" in refs/heads/{only}) echo no >&2; exit 1;; esac\n')
    hook.chmod(0o755)


def vanish(crew: Crew) -> None:
    """Have the remote of ``app`` be unreachable."""
    crew.app.path.rename(crew.app.path.with_suffix(".away"))


def come_back(crew: Crew) -> None:
    crew.app.path.with_suffix(".away").rename(crew.app.path)


class TestWhatIsASession:
    """What Is a Session?"""

    def test_each_start_makes_a_fresh_workspace_on_demand(self, crew: Crew) -> None:
        first = crew.chat()
        crew.put(first.id, "left.txt")
        second = crew.chat()

        assert not (crew.repo(second.id) / "left.txt").exists()
        assert crew.git(second.id, "rev-parse", "HEAD") == crew.app.head()

    def test_no_synchronization_step_is_needed(self, crew: Crew) -> None:
        crew.chat()
        newer = crew.app.commit({"a.txt": "newer\n"})
        crew.clock.advance(minutes=6)

        assert crew.git(crew.chat().id, "rev-parse", "HEAD") == newer

    def test_each_start_fetches_so_that_sequential_members_follow_each_other(self, crew: Crew) -> None:
        first = crew.chat()
        crew.commit(first.id, "one.txt")
        crew.git(first.id, "push", "-q", "origin", "HEAD:main")
        second = crew.chat(member="bob")

        assert crew.git(second.id, "rev-parse", "HEAD") == crew.app.head() == crew.git(first.id, "rev-parse", "HEAD")
        crew.commit(second.id, "two.txt")
        crew.git(second.id, "push", "-q", "origin", "HEAD:main")
        crew.members.stop(second.id)
        assert not crew.members.get(second.id).degraded
        assert crew.app.git("branch", "--list", "recovery/*") == b""

    def test_it_is_one_run_of_a_member_s_agent(self, crew: Crew) -> None:
        lives = [crew.ended(crew.script().facts("projects/app/facts.json").exits(0)) for _ in range(2)]
        facts = [json.loads((crew.repo(life.id) / "facts.json").read_text()) for life in lives]
        crew.members.observe()

        assert [one["environment"]["BM_SESSION_ID"] for one in facts] == [life.id for life in lives]
        assert [one["pid"] for one in facts] == [process.pid for process in crew.agents.processes()]
        assert [crew.types(life.id).count("agent.exited") for life in lives] == [1, 1]

    def test_it_has_a_unique_id(self, crew: Crew) -> None:
        ids = [crew.chat().id for _ in range(3)]

        assert len(set(ids)) == 3
        assert [record(crew, id_)["session_id"] for id_ in ids] == ids

    def test_its_workspace_is_isolated_from_those_of_concurrent_sessions(self, crew: Crew) -> None:
        one, other = crew.chat(), crew.chat(member="bob")
        crew.commit(one.id, "mine.txt", branch="feature")

        assert crew.git(other.id, "for-each-ref", "refs/heads") == ""
        assert not (crew.repo(other.id) / "mine.txt").exists()

    def test_it_goes_from_creation_through_finalization_to_cleanup(self, crew: Crew) -> None:
        seen: list[str] = []
        crew.engine.on("workspace.ready", lambda event: seen.append(record(crew, event.stream)["current_state"]))
        crew.engine.on("life.moved", lambda event: seen.append(record(crew, event.stream)["current_state"]))
        life = crew.ended(crew.script().run("sh", "-c", WORKS))
        crew.members.observe()
        crew.clock.advance(hours=48)

        assert crew.members.scan().removed == (life.id,)
        assert seen == ["Creating", "Active", "Finalizing", "Completed", "Retained", "Removed"]
        assert not crew.workspace(life.id).exists()

    def test_its_exit_outcome_is_completed_failed_or_killed(self, crew: Crew) -> None:
        completed, failed, killed = crew.chat(), crew.chat(), crew.chat()
        crew.members.finish(completed.id)
        crew.members.stop(killed.id, force=True)
        crew.commit(failed.id, "new.txt", branch="feature")
        vanish(crew)
        crew.members.finish(failed.id)

        assert [crew.members.get(one.id).ended for one in (completed, failed, killed)] == ["completed", "failed", "killed"]


class TestSessionTypes:
    """Session Types"""

    @pytest.mark.parametrize("kind", ["loop", "interactive", "brain"])
    def test_a_session_has_one_of_three_types(self, crew: Crew, kind: str) -> None:
        life = crew.start(kind=kind)

        assert (life.kind, record(crew, life.id)["session_type"]) == (kind, kind.capitalize())

    def test_a_loop_is_an_agent_by_itself(self, crew: Crew) -> None:
        life = crew.start(kind="loop")
        process = crew.members.process(life.id)

        assert process is not None
        assert (process.observe().state, record(crew, life.id)["agent_pid"]) == ("alive", life.agent.pid if life.agent else None)

    def test_a_loop_may_run_its_agent_again_and_again_until_it_is_done(self, crew: Crew) -> None:
        agent = 'echo "iteration $n" >> work.txt; [ "$n" -lt 3 ] || touch done'
        loop = f"cd projects/app; git checkout -q -b loop; n=0; until [ -e done ]; do n=$((n + 1)); export n; sh -c '{agent}'; done"
        life = crew.ended(crew.script().run("sh", "-c", loop))
        crew.members.observe()

        assert crew.app.text("show", "loop:work.txt") == "iteration 1\niteration 2\niteration 3"
        assert (crew.types(life.id).count("agent.exited"), crew.members.get(life.id).ended) == (1, "completed")

    def test_an_interactive_one_is_talked_to_by_a_person(self, crew: Crew) -> None:
        life = crew.start(kind="interactive")

        assert (crew.members.process(life.id), record(crew, life.id)["agent_pid"]) == (None, None)

    def test_a_brain_is_started_where_the_member_is_chat_first(self, crew: Crew) -> None:
        crew.team.commit({"brain-prompt.md": "You multiplex.\n"})

        assert crew.start(kind="loop").kind == "brain"

    def test_a_brain_is_an_acp_session_that_gets_events_and_is_finalized_when_it_is_killed(self, crew: Crew) -> None:
        crew.team.commit({"brain-prompt.md": "You multiplex.\n"})
        life = crew.start(command=MEMBER, task=f"{SAVES}\nsay('begun')")
        process = crew.members.process(life.id)
        assert process is not None
        crew.wait_for(life.id, "workflow_event")
        process.send("""update("tool_call", toolCallId="c1", title="Think", status="in_progress"); receive()\n""")
        crew.wait_for(life.id, "tool_call")
        os.kill(life.agent.pid if life.agent else 0, signal.SIGKILL)
        crew.wait_gone(life.id)
        [ended] = crew.members.observe()

        assert (ended.kind, ended.state, ended.ended, ended.unsaved) == ("brain", "retained", "failed", False)
        assert ended.agent is not None
        assert (ended.agent.signal, ended.agent.stop_reason) == (signal.SIGKILL, "lost")
        assert crew.app.text("show", "feature:new.py") == "code"
        assert [event.data["text"] for event in crew.events(life.id) if event.type == "assistant_message"] == ["begun"]
        assert process.stop(grace=0).idle, "a process of the agent is left"


class TestLifecycle:
    """Session Lifecycle"""

    def test_creating_is_a_workspace_that_is_being_hydrated(self, crew: Crew) -> None:
        seen: list[str] = []

        def progress(_name: str, step: str) -> None:
            if step == "checkout":
                seen.extend(record(crew, id_)["current_state"] for id_ in crew.sessions())

        crew.chat(progress=progress)

        assert set(seen) == {"Creating"}

    def test_active_is_an_agent_that_runs_in_the_workspace(self, crew: Crew) -> None:
        life = crew.start(crew.script().facts().at("up").hang())
        crew.agents.wait_for("up")

        assert record(crew, life.id)["current_state"] == "Active"
        assert (crew.workspace(life.id) / "facts.json").exists()

    def test_finalizing_is_work_that_is_being_committed_and_pushed(self, crew: Crew) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        seen: list[str] = []
        crew.engine.on("finalize.repository", lambda _event: seen.append(record(crew, life.id)["current_state"]))
        crew.members.finish(life.id)

        assert set(seen) == {"Finalizing"}
        assert "feature" in crew.branches()

    def test_completed_is_a_finalization_that_succeeded_and_enters_retention(self, crew: Crew) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        crew.members.finish(life.id)

        assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]

    def test_completed_is_a_clean_exit_too_with_nothing_to_save(self, crew: Crew) -> None:
        before = crew.branches()
        life = crew.ended(crew.script().exits(0))
        [ended] = crew.members.observe()

        assert (ended.id, ended.ended, ended.state, ended.degraded) == (life.id, "completed", "retained", False)
        assert crew.branches() == before

    def test_failed_is_remote_preservation_that_was_impossible(self, crew: Crew) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        vanish(crew)
        crew.members.finish(life.id)

        assert crew.states(life.id) == ["active", "finalizing", "failed", "retained"]

    def test_killed_is_a_forced_stop_that_skips_finalization(self, crew: Crew) -> None:
        life = crew.start(crew.script().at("up").hang())
        crew.agents.wait_for("up")
        crew.put(life.id, "half.txt")
        crew.members.stop(life.id, force=True)

        assert crew.states(life.id) == ["active", "killed", "retained"]
        assert (crew.repo(life.id) / "half.txt").exists()
        assert crew.agents.gone()

    def test_retained_is_a_workspace_that_is_kept_for_inspection(self, crew: Crew) -> None:
        life = crew.start()
        crew.members.stop(life.id, force=True)

        assert record(crew, life.id)["current_state"] == "Retained"
        assert record(crew, life.id)["workspace_path"] == str(crew.workspace(life.id))
        assert crew.workspace(life.id).is_dir()

    @pytest.mark.parametrize("ending", ["failed", "killed"])
    def test_from_retained_finalization_is_triggered_again(self, crew: Crew, ending: str) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        if ending == "killed":
            crew.members.stop(life.id, force=True)
        else:
            vanish(crew)
            crew.members.finish(life.id)
            come_back(crew)
        crew.members.finalize(life.id)

        assert crew.states(life.id)[-3:] == ["finalizing", "completed", "retained"]
        assert "feature" in crew.branches()


class TestDaemon:
    """The Session Daemon: what it manages. That it is a process is in the walk through its commands."""

    def test_workspaces_are_hydrated_from_shared_bare_clones(self, crew: Crew) -> None:
        ids = [crew.chat().id, crew.chat().id]
        clone = Path(clone_path(crew.engine.home / "clones", str(crew.app.path)))

        assert [path.name for path in clone.parent.iterdir() if path.is_dir()].count(clone.name) == 1
        for id_ in ids:
            assert (crew.repo(id_) / ".git/objects/info/alternates").read_text().startswith(str(clone))

    def test_the_registry_knows_every_session(self, crew: Crew) -> None:
        ids = [crew.chat().id]
        crew.clock.advance(seconds=1)
        ids.append(crew.chat(member="bob").id)

        assert [life.id for life in crew.members.list()] == ids
        with crew.restarted() as members:
            assert [life.id for life in members.list()] == ids

    def test_finalization_is_observed_after_the_agent_exits(self, crew: Crew) -> None:
        life = crew.ended(crew.script().run("sh", "-c", WORKS), task="work")

        assert crew.members.exited() == [life.id]
        assert "feature" not in crew.branches()
        assert [one.state for one in crew.members.observe()] == ["retained"]
        assert crew.members.exited() == []
        assert crew.app.text("show", "feature:committed.py") == "code"
        assert crew.app.text("show", "feature:left.py") == "more"

    def test_the_retention_engine_runs_in_the_background(self, crew: Crew) -> None:
        crew.members.watch()
        life = crew.chat()
        crew.members.finish(life.id)
        crew.clock.advance(minutes=5)

        assert crew.members.get(life.id).state == "removed"

    def test_stopping_members_ends_no_record(self, crew: Crew) -> None:
        life = crew.start()
        crew.members.stop_all()

        assert [one.id for one in crew.members.list(states=["retained"])] == [life.id]


class TestRetentionPolicy:
    """Retention Policy"""

    @pytest.mark.parametrize("kind", ["loop", "brain"])
    def test_loop_and_brain_are_kept_as_configured(self, crew: Crew, kind: str) -> None:
        life = crew.start(kind=kind)
        crew.members.stop(life.id)
        crew.clock.advance(hours=48, microseconds=-1)
        assert crew.members.scan().removed == ()
        assert crew.workspace(life.id).is_dir()
        crew.clock.advance(microseconds=1)
        assert crew.members.scan().removed == (life.id,)
        assert not crew.workspace(life.id).exists()

    def test_interactive_that_succeeded_is_not_kept(self, crew: Crew) -> None:
        life = crew.chat()
        crew.members.finish(life.id)

        assert crew.members.scan().removed == (life.id,)

    def test_interactive_that_was_killed_is_kept_as_configured(self, crew: Crew) -> None:
        life = crew.chat()
        crew.members.stop(life.id, force=True)
        assert crew.members.scan().removed == ()
        crew.clock.advance(hours=48)
        assert crew.members.scan().removed == (life.id,)

    def test_what_it_holds_that_is_nowhere_else_is_kept_for_ever(self, crew: Crew) -> None:
        life = crew.chat()
        crew.put(life.id, "half.txt")
        crew.members.stop(life.id, force=True)
        crew.clock.advance(days=20, timers="once")

        assert crew.members.scan().spared == (life.id,)

    def test_a_cleanup_by_hand_does_not_wait(self, crew: Crew) -> None:
        life = crew.start()
        crew.members.stop(life.id)

        assert crew.members.cleanup(Selector(id=life.id)).removed == (life.id,)
        assert not crew.workspace(life.id).exists()


class TestFinalization:
    """Finalization"""

    def test_commit_and_push_uncommitted_changes_on_other_branches_than_the_default(self, crew: Crew) -> None:
        life = crew.chat()
        crew.git(life.id, "checkout", "-q", "-b", "feature")
        crew.put(life.id, "src/new.py", "code\n")
        crew.members.finish(life.id)

        assert crew.app.text("show", "feature:src/new.py") == "code"

    @pytest.mark.parametrize("path", ["specs/login.md", "knowledge/parser.md"])
    def test_commit_and_push_files_of_the_team_below_specs_and_knowledge(self, crew: Crew, path: str) -> None:
        life = crew.chat()
        crew.put(life.id, path, "known\n", place="team")
        crew.members.finish(life.id)

        assert crew.team.text("show", f"main:{path}") == "known"

    def test_push_only_branches_that_are_committed_and_not_pushed(self, crew: Crew) -> None:
        life = crew.chat()
        commit = crew.commit(life.id, "new.txt", branch="feature")
        crew.members.finish(life.id)

        assert crew.branches()["feature"] == commit

    @pytest.mark.parametrize("path", [".env", ".env.local", "token.txt", ".config/gh/hosts.yml"])
    def test_never_touch_credential_files_and_tokens(self, crew: Crew, path: str) -> None:
        life = crew.chat()
        crew.git(life.id, "checkout", "-q", "-b", "feature")
        crew.put(life.id, path, "secret\n")
        crew.put(life.id, "code.py", "code\n")
        crew.members.finish(life.id)

        assert path not in crew.app.text("ls-tree", "-r", "--name-only", "feature").splitlines()
        assert (crew.repo(life.id) / path).read_text() == "secret\n"

    @pytest.mark.parametrize("path", ["logs/agent.log", "locks/run.lock", "diagnostics/heap.txt", "app.lock", "agent.pid", "pkg/logs/x"])
    def test_leave_runtime_state_in_place(self, crew: Crew, path: str) -> None:
        life = crew.chat()
        crew.git(life.id, "checkout", "-q", "-b", "feature")
        crew.put(life.id, path)
        ended = crew.members.finish(life.id)

        assert (crew.repo(life.id) / path).exists()
        assert (ended.result.exit_status if ended.result else None) == "Skipped"

    def test_what_cannot_be_pushed_gets_a_recovery_branch_and_an_issue(self, crew: Crew, tmp_path: Path) -> None:
        with BareRemote.make(tmp_path / "forge.git") as remote, ForgeServer(remote) as server, server.forge() as forge:
            members = crew.manager(forge=forge)
            life = crew.chat()
            commit = crew.commit(life.id, "new.txt", branch="feature")
            reject(crew, only="feature")
            members.finish(life.id)
            (issue,) = server.state.issues.values()
            assert f"recovery/{life.id}/feature" in str(issue)
            assert record(crew, life.id)["finalization_result"]["github_issue_urls"] == [one.url for one in forge.topics()]

        assert crew.branches()[f"recovery/{life.id}/feature"] == commit

    def test_then_it_is_completed_degraded_and_not_failed(self, crew: Crew) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        reject(crew, only="feature")
        ended = crew.members.finish(life.id)

        assert (ended.ended, ended.degraded) == ("completed", True)
        assert record(crew, life.id)["finalization_result"]["exit_status"] == "CompletedDegraded"

    def test_if_the_remote_is_unreachable_it_is_failed_and_stays_retained(self, crew: Crew) -> None:
        life = crew.chat()
        crew.commit(life.id, "new.txt", branch="feature")
        vanish(crew)
        ended = crew.members.finish(life.id)
        crew.clock.advance(days=20, timers="once")

        assert (ended.ended, ended.state, ended.unsaved) == ("failed", "retained", True)
        assert crew.members.scan().spared == (life.id,)


class TestViewing:
    """Viewing Sessions"""

    def test_status_shows_active_members_with_their_session_ids(self, crew: Crew) -> None:
        alice, bob = crew.start(), crew.start(member="bob")
        crew.members.stop(bob.id)

        assert [(life.member, life.id) for life in crew.members.list(states=["active"])] == [("alice", alice.id)]

    def test_list_shows_active_and_terminal_sessions(self, crew: Crew) -> None:
        alice, bob = crew.start(), crew.start(member="bob")
        crew.members.stop(bob.id)

        assert {life.id: life.state for life in crew.members.list()} == {alice.id: "active", bob.id: "retained"}

    def test_inspect_shows_full_details_of_one(self, crew: Crew) -> None:
        life = crew.chat()
        crew.put(life.id, "half.txt")
        crew.commit(life.id, "new.txt", branch="feature")
        seen = crew.members.inspect(life.id)

        app = next(one for one in seen.repositories if one.name == "app")
        assert (seen.life, app.branch, app.uncommitted, app.unpushed) == (life, "feature", ("half.txt",), ("feature",))

    def test_inspect_tells_pushed_files_from_uncommitted_ones(self, crew: Crew) -> None:
        life = crew.start()
        crew.git(life.id, "checkout", "-q", "-b", "feature")
        crew.put(life.id, "saved.txt")
        crew.members.stop(life.id)
        crew.put(life.id, "later.txt")

        app = next(one for one in crew.members.inspect(life.id).repositories if one.name == "app")
        assert (app.uncommitted, app.pushed) == (("later.txt", "saved.txt"), ("saved.txt",))


class TestCleaningUp:
    """Cleaning Up Sessions"""

    def three(self, crew: Crew) -> list[str]:
        """Three retained sessions, an hour apart, of two members."""
        ids = []
        for member in ("alice", "alice", "bob"):
            ids.append(crew.start(member=member).id)
            crew.members.stop(ids[-1])
            crew.clock.advance(hours=1)
        return ids

    @pytest.mark.parametrize(
        ("selector", "gone"),
        [
            (Selector(all=True), [0, 1, 2]),
            (Selector(member="alice"), [0, 1]),
            (Selector(older_than_ns=age_ns("90m")), [0, 1]),
            (Selector(older_than_ns=age_ns("48h")), []),
        ],
        ids=["all", "member", "older than", "none is older"],
    )
    def test_cleanup_removes_what_is_selected(self, crew: Crew, selector: Selector, gone: list[int]) -> None:
        ids = self.three(crew)

        assert sorted(crew.members.cleanup(selector).removed) == sorted(ids[number] for number in gone)
        assert [crew.workspace(id_).exists() for id_ in ids] == [number not in gone for number in range(3)]

    def test_cleanup_of_one_removes_that_one(self, crew: Crew) -> None:
        ids = self.three(crew)

        assert crew.members.cleanup(Selector(id=ids[1])).removed == (ids[1],)
        assert [crew.members.get(id_).state for id_ in ids] == ["retained", "removed", "retained"]

    def test_a_record_stays_when_its_workspace_is_gone(self, crew: Crew) -> None:
        ids = self.three(crew)
        crew.members.cleanup(Selector(all=True))

        assert [row["session_id"] for row in crew.members.history()] == ids[::-1]
        assert record(crew, ids[0])["workspace_path"] is None
