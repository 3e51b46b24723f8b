"""Spawning sessions of a project: what comes to be, in which order, and that a failure on the way leaves nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine import at_point, passed
from support.orchestrator import ENVIRONMENT, NOTHING, Fleet, Tracked, on_linux, open_fleet

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine.levels import missing_layers, strongest
from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, CapabilityMissing, GittrixError, InvalidInput, SessionNotRestorable
from pytest_gittrix.orchestrator.config import CommandAgent, Project, SpawnConfig, slug_of
from pytest_gittrix.orchestrator.flat_files import read
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.orchestrator.session import is_restorable, is_terminal_session
from pytest_gittrix.views import view

pytestmark = on_linux
FORK = multiprocessing.get_context("fork")


# What comes to be --------------------------------------------------------------------------------------------------------------


def test_a_spawned_session_works_and_has_every_documented_field(fleet: Fleet) -> None:
    session = fleet.spawn(issue_id="#42", prompt="Mend the login")

    assert (session.id, session.project_id, session.status, session.activity) == ("app-1", "app", "working", None)
    assert (session.branch, session.issue_id, session.pr) == ("feat/42", "#42", None)
    assert session.workspace_path == str(fleet.site.directory("app-1") / "workspace")
    assert session.runtime_handle is not None
    assert session.runtime_handle.id == str(fleet.process("app-1").owner.pid)  # type: ignore[union-attr]
    assert session.agent_info is not None
    assert session.agent_info.summary == "Mend the login"
    assert session.created_at == session.last_activity_at == fleet.site.clock.now()
    assert session.restored_at is None
    assert session.metadata == {"agent": "agent", "role": "worker"}
    assert not is_terminal_session(session)
    assert not is_restorable(session)


def test_on_the_wire_it_is_the_documents_record(fleet: Fleet) -> None:
    session = fleet.spawn(prompt="Mend the login")
    wire = session.to_wire()

    assert wire == view(fleet.site.events(session.id), "orchestrator")
    assert json.loads(json.dumps(wire)) == wire


def test_the_log_tells_the_steps_in_order(fleet: Fleet) -> None:
    steps = passed(lambda: fleet.spawn(prompt="Mend the login"))

    assert [step for step in steps if step.startswith("spawn:")] == ["spawn:reserved", "spawn:started", "spawn:launched", "spawn:ready"]
    assert fleet.site.types("app-1") == [
        *("session.created", "workspace.ready", "runtime.observed", "status.decided", "user_message"),
    ]
    assert fleet.decided("app-1") == [("working", "task_in_progress")]
    assert fleet.types() == ["session.working"]


def test_its_agent_runs_in_the_workspace_and_knows_what_it_is_for(fleet: Fleet) -> None:
    agent = fleet.agent(fleet.kit.script().facts("facts.json").at("up").hang(), variables={"MODEL": "x"})
    session = fleet.spawn(fleet.another(fleet.project(agents=(agent,))), issue_id="#42", prompt="Mend the login")
    fleet.kit.wait_for("up")
    facts = json.loads((Path(session.workspace_path or "") / "facts.json").read_text())

    assert facts["directory"] == session.workspace_path
    assert facts["arguments"][-1] == "Mend the login"
    expected = {"AO_SESSION": "app-1", "AO_PROJECT_ID": "app", "AO_ISSUE_ID": "#42", "GITTRIX_SESSION_ID": "app-1", "MODEL": "x"}
    assert expected.items() <= facts["environment"].items()


@pytest.mark.skipif(strongest().level == "off", reason=strongest().why)
def test_where_workspaces_are_confined_its_agent_is_too(tmp_path: Path) -> None:
    with open_fleet(tmp_path) as fleet:
        (fleet.site.durable.path / "secret.txt").write_text("hunter2")
        engine = fleet.site.another(ephemeral=LocalEphemeral(confine="auto"))
        script = f'cat "{fleet.site.durable.path}/secret.txt" > seen.txt; echo note > "$HOME/note"; read line; echo "$line" > heard.txt'
        project = fleet.project(agents=(CommandAgent("sh", ("/bin/sh", "-c", script), prompt_as="input"),))
        lead = Orchestrator(engine, [project], environment=ENVIRONMENT)
        session = lead.spawn(SpawnConfig("app", prompt="go"))
        workspace = Path(session.workspace_path or "")

        assert fleet.process(session.id).wait(60).code == 0
        assert ((workspace / "seen.txt").read_bytes(), (workspace / "heard.txt").read_text()) == (b"", "go\n")
        home = fleet.site.directory(session.id) / "private-home"
        assert (home / "note").exists()
        lead.kill(session.id, purge=True)
        assert not [path for path in home.parent.iterdir() if path.name.startswith("private-home")]


def test_an_agent_in_an_overlay_finds_all_files_and_has_the_workspace_for_itself(tmp_path: Path) -> None:
    if why := missing_layers(str(tmp_path)):
        pytest.skip(why)
    with open_fleet(tmp_path) as fleet:
        script = "cat app.py > copied.txt; rm README.md; git status --short > status.txt; read line"
        agent = CommandAgent("sh", ("/bin/sh", "-c", script), prompt_as="input")
        lead = fleet.another(fleet.project(agents=(agent,), workspace="overlay"), confine="jail")
        held = fleet.spawn(lead, prompt="go")
        assert fleet.process(held.id).wait(60).code == 0

        session = fleet.site.engine.get_session(held.id)
        assert session.touched_files() == ["README.md", "copied.txt", "status.txt"]
        assert session.read("copied.txt") == session.read("app.py")
        assert session.read("status.txt") == b" D README.md\n?? copied.txt\n?? status.txt\n"
        with pytest.raises(CapabilityMissing, match="need a jail by namespaces"):
            fleet.spawn(fleet.another(fleet.project(agents=(agent,), workspace="overlay"), confine="off"), prompt="go")


def test_an_agent_that_reads_its_prompt_gets_it_once_it_runs(fleet: Fleet) -> None:
    agent = fleet.agent(fleet.kit.script().read().at("read").hang(), prompt_as="input")
    fleet.spawn(fleet.another(fleet.project(agents=(agent,))), prompt="Mend the login")
    fleet.kit.wait_for("read")

    assert fleet.kit.heard == ["Mend the login"]


def test_a_prompt_that_a_program_would_take_for_an_option_is_refused_and_nothing_is_left(fleet: Fleet) -> None:
    before = fleet.site.engine.store.ids()
    with pytest.raises(InvalidInput, match="hyphen"):
        fleet.spawn(prompt="--dangerously-skip-permissions")

    assert fleet.site.engine.store.ids() == before
    read = CommandAgent("reads", ("cat",), prompt_as="input")
    assert read.command("--fine", Path("/")) == ("cat",)
    knows = CommandAgent("knows", ("cat", "--"))
    assert knows.command("--fine", Path("/")) == ("cat", "--", "--fine")


def test_nor_may_a_plugin_put_it_where_options_are(fleet: Fleet) -> None:
    class Careless(CommandAgent):
        def command(self, prompt: str | None, workspace: Path) -> list[str]:
            return [*self.argv, "--prompt", prompt or "", "--", "more"]

    lead = fleet.another(fleet.project(agents=(Careless("careless", ("cat",)),)))
    with pytest.raises(InvalidInput, match="hyphen"):
        fleet.spawn(lead, prompt="--dangerously-skip-permissions")

    assert fleet.left() == NOTHING


def test_a_prompt_that_nobody_reads_leaves_the_session_as_it_is(fleet: Fleet) -> None:
    agent = fleet.agent(fleet.kit.script().exits(0), prompt_as="input")
    lead = fleet.another(fleet.project(agents=(agent,)))
    with at_point("spawn:ready", fleet.kit.gone):
        session = fleet.spawn(lead, prompt="Mend the login")

    assert session.status == "working"
    assert "reads nothing any more" in fleet.errors[0]


def test_its_work_can_be_reviewed_and_promoted_as_any_other(fleet: Fleet) -> None:
    session = fleet.spawn()
    held = fleet.site.engine.get_session(session.id)
    held.write("new.py", "x = 1\n")
    held.promote(strategy="commit")

    assert fleet.site.durable.read("new.py") == b"x = 1\n"
    assert fleet.now(session.id).status == "done"
    assert [one.id for one in fleet.lead.poll()] == ["app-1"]
    assert fleet.process("app-1").observe().state == "exited"


def test_the_file_says_what_the_log_says_and_keeps_what_others_say(fleet: Fleet) -> None:
    session = fleet.spawn(issue_id="#42")
    file = fleet.files / session.id
    values = read(file)

    assert values is not None
    assert (values["project"], values["status"], values["branch"], values["issue"]) == ("app", "working", "feat/42", "#42")
    file.write_text(file.read_text() + "tag=mine\nprompt=theirs\n")
    fleet.lead.kill(session.id)
    assert read(file) == {**values, "status": "killed", "tag": "mine", "prompt": "theirs", "lastActivityAt": values["lastActivityAt"]}
    assert fleet.now(session.id).metadata == {"agent": "agent", "role": "worker", "tag": "mine", "prompt": "theirs"}


def test_a_session_of_which_there_is_only_a_file_is_listed(fleet: Fleet) -> None:
    fleet.files.mkdir(parents=True, exist_ok=True)
    (fleet.files / "app-7").write_text("status=starting\nissue=#7\nworktree=/elsewhere\nruntimeHandle={}\n")
    session = fleet.spawn()

    assert session.id == "app-8"
    assert [(one.id, one.status, one.issue_id) for one in fleet.lead.list()] == [("app-8", "working", None), ("app-7", "working", "#7")]
    assert fleet.now("app-7").workspace_path == "/elsewhere"
    assert fleet.lead.list("app") == fleet.lead.list()


# Names -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "branch"),
    [
        ({"branch": "mine", "issue_id": "1"}, "mine"),
        ({"issue_id": "LIN-7"}, "team/lin-7"),
        ({"issue_id": "LIN-8"}, "feat/LIN-8"),
        ({"issue_id": "Fix the, Login!"}, "feat/fix-the-login"),
        ({"issue_id": "x" * 59 + "-y" * 40}, "feat/" + "x" * 59),
        ({"issue_id": "日本"}, "session/app-1"),
        ({}, "session/app-1"),
    ],
)
def test_the_work_is_called_as_told_as_tracked_after_the_issue_or_after_the_session(
    tmp_path: Path, config: dict[str, Any], branch: str
) -> None:
    with open_fleet(tmp_path, tracker=Tracked({"LIN-7": "team/lin-7", "LIN-8": None})) as fleet:
        assert fleet.spawn(**config).branch == branch


@pytest.mark.parametrize("issue", ["a..b", "a.lock", "a.", "-a", ".a", "a b", "a/b"])
def test_what_git_would_not_take_is_made_fit_for_a_branch(issue: str) -> None:
    assert slug_of(issue) in ("a-b", "a-lock", "a")


def test_numbers_go_on_after_branches_of_sessions_and_never_come_back(fleet: Fleet) -> None:
    fleet.site.durable.git("update-ref", "refs/heads/session/app-7", "HEAD")
    first = fleet.spawn()
    fleet.lead.kill(first.id, purge=True)

    assert (first.id, fleet.spawn().id) == ("app-8", "app-9")


def test_prefixes_follow_from_the_name_and_can_be_told(fleet: Fleet) -> None:
    named = fleet.project(id="my.web")
    lead = fleet.another(named, fleet.project(id="other", prefix="web-2"))

    assert lead.spawn(SpawnConfig("my.web")).id == "mw-1"
    assert lead.spawn(SpawnConfig("other")).id == "web-2-1"


# What is refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"project_id": "none"}, "The projects are: app"),
        ({"agent": "codex"}, "Use one of: agent"),
        ({"branch": "a..b"}, "not a branch name"),
        ({"prompt": "a\0b"}, "null byte"),
        ({"issue_id": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(fleet: Fleet, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fleet.lead.spawn(SpawnConfig(**{"project_id": "app", **config}))
    assert fleet.left() == NOTHING


def test_projects_that_would_share_ids_are_refused(fleet: Fleet) -> None:
    with pytest.raises(InvalidInput, match="share the id or the prefix 'app'"):
        fleet.another(fleet.project(), fleet.project(id="a-p-p"))
    with pytest.raises(InvalidInput, match="agents none"):
        Project("app", fleet.site.durable.path)
    with pytest.raises(InvalidInput, match="'lazy'"):
        fleet.project(workspace="lazy")


@pytest.mark.parametrize("problem", [AuthFailed("no"), AdapterUnavailable("down")])
def test_a_tracker_that_cannot_be_asked_ends_the_spawn(tmp_path: Path, problem: GittrixError) -> None:
    with open_fleet(tmp_path, tracker=Tracked(problem=problem)) as fleet:
        with pytest.raises(type(problem)):
            fleet.spawn(issue_id="1")
        assert fleet.left() == NOTHING


# Failures --------------------------------------------------------------------------------------------------------------------------


class Broken(CommandAgent):
    """A plugin that raises what a stranger may raise."""

    def command(self, prompt: str | None, workspace: Path) -> list[str]:
        raise RuntimeError("no command today")


@pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
@pytest.mark.parametrize("point", ["spawn:reserved", "start:created", "start:ready", "spawn:started", "spawn:launched"])
def test_a_failure_before_the_agent_works_leaves_nothing(tmp_path: Path, point: str, kind: str) -> None:
    def fail(name: str) -> None:
        if name == point:
            raise ZeroDivisionError

    with open_fleet(tmp_path, workspace=kind) as fleet:
        with points.listening(fail), pytest.raises(ZeroDivisionError):
            fleet.spawn(prompt="x")
        assert fleet.left() == NOTHING
        assert fleet.site.engine.problems() == []
        assert fleet.lead.list() == []
        assert fleet.spawn().id == "app-1"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"agents": (CommandAgent("gone", ("no-such-program",)),)}, InvalidInput),
        ({"agents": (CommandAgent("bad", ("/etc/passwd",)),)}, InvalidInput),
        ({"agents": (Broken("broken", ("x",)),)}, RuntimeError),
        ({"branch": "nowhere"}, InvalidInput),
    ],
)
def test_what_cannot_be_started_leaves_nothing(fleet: Fleet, options: dict[str, Any], error: type[Exception]) -> None:
    lead = fleet.another(fleet.project(**options))
    with pytest.raises(error):
        fleet.spawn(lead)

    assert fleet.left() == NOTHING
    assert fleet.notifications == []


def test_a_repository_that_is_none_leaves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(AdapterUnavailable):
        fleet.spawn(fleet.another(fleet.project(durable=tmp_path / "none")))
    assert fleet.left() == NOTHING


def test_a_file_that_cannot_be_written_is_announced_and_written_at_the_next_look(fleet: Fleet) -> None:
    def block() -> None:
        (fleet.files / "app-1").unlink()
        (fleet.files / "app-1").mkdir()

    with at_point("spawn:launched", block):
        session = fleet.spawn()
    assert (session.status, len(fleet.errors)) == ("working", 1)
    (fleet.files / "app-1").rmdir()
    fleet.lead.poll()
    assert (read(fleet.files / "app-1") or {})["status"] == "working"


def test_a_session_that_a_person_named_like_ours_is_left_alone(fleet: Fleet) -> None:
    fleet.site.start(id="app-1", project="app")

    assert fleet.another().recover() == []
    assert fleet.site.state("app-1").state == "active"
    assert fleet.lead.list() == []
    assert fleet.spawn().id == "app-2"


# Several at once ---------------------------------------------------------------------------------------------------------------


def test_threads_that_spawn_at_once_get_ids_of_their_own(fleet: Fleet) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: fleet.spawn().id, range(8))]

    assert sorted(found) == [f"app-{number}" for number in range(1, 9)]
    assert {one.status for one in fleet.lead.list()} == {"working"}


def _spawn_two(fleet: Fleet, results: Any) -> None:
    lead = fleet.another(fleet.project(agents=(CommandAgent("sleep", ("sleep", "60")),)))
    results.put([fleet.spawn(lead).id for _ in range(2)])
    results.close()
    results.join_thread()
    os._exit(0)


def test_processes_that_spawn_at_once_get_ids_of_their_own(fleet: Fleet) -> None:
    results = FORK.Queue()
    children = [FORK.Process(target=_spawn_two, args=(fleet, results)) for _ in range(4)]
    for child in children:
        child.start()
    found = [id for _ in children for id in results.get(timeout=60)]
    for child in children:
        child.join(60)

    # A recovery beside a spawn may let go of a number before it is used; none is used twice.
    assert len(set(found)) == 8
    assert sorted(one.id for one in fleet.lead.list()) == sorted(found)


# The one that leads the others -------------------------------------------------------------------------------------------------


def test_a_project_has_one_orchestrator_whoever_asks_at_once(fleet: Fleet) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda lead: lead.spawn_orchestrator("app", system_prompt="Lead"), [fleet.another() for _ in range(4)])]

    assert {one.id for one in found} == {"app-orchestrator"}
    assert found[0].status == "working"
    assert found[0].metadata["role"] == "orchestrator"
    assert len(list(fleet.site.store.glob("*/agent-*"))) == 1
    assert fleet.spawn().id == "app-1"


def test_an_orchestrator_that_was_killed_is_restored_and_one_that_is_purged_has_a_successor(fleet: Fleet) -> None:
    first = fleet.lead.spawn_orchestrator("app")
    fleet.lead.kill(first.id)
    again = fleet.lead.spawn_orchestrator("app")
    assert (again.id, again.status, again.restored_at is not None) == (first.id, "working", True)
    fleet.lead.kill(first.id, purge=True)

    assert fleet.lead.spawn_orchestrator("app").id == "app-orchestrator-2"
    assert fleet.lead.spawn_orchestrator("app").id == "app-orchestrator-2"


def test_an_orchestrator_that_is_done_is_not_begun_again(fleet: Fleet) -> None:
    first = fleet.lead.spawn_orchestrator("app")
    with fleet.site.engine.services.recorder(first.id).leased():
        pass
    recorder = fleet.site.engine.services.recorder(first.id)
    with recorder.leased():
        recorder.append("status.decided", {"session": "done", "reason": "research_complete"})

    with pytest.raises(SessionNotRestorable, match="is done"):
        fleet.lead.spawn_orchestrator("app")
    assert replace(fleet.lead.restore(first.id), metadata={}).status == "working"
