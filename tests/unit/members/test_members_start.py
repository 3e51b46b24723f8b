"""How a member's session comes to be: its record, its workspace, its agent; and nothing left behind where one of them cannot be."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support.git import link
from support.members import Crew

from pytest_gittrix import points
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, SessionNotFound, WorkItemHeld
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.workspaces.multi_repo import RepositorySpec

# What a start makes ------------------------------------------------------------------------------------------------------------


def test_a_session_is_active_with_its_workspace_and_its_agent(crew: Crew) -> None:
    life = crew.start(crew.script().facts().at("up").polite().hang(), task="mend the login", work_item="app#1", rig="north")
    crew.agents.step("up")

    assert (life.state, life.kind, life.member, life.team, life.task) == ("active", "loop", "alice", "crew", "mend the login")
    assert crew.members.get(life.id) == life
    assert [event.type for event in crew.events(life.id)] == [
        "session.opened",
        "work.locked",
        "workspace.ready",
        "life.moved",
        "agent.launched",
    ]
    assert crew.git(life.id, "rev-parse", "HEAD") == crew.app.head()
    assert (crew.workspace(life.id) / "team" / "README.md").read_text() == "the team\n"
    assert (crew.workspace(life.id) / ".botminter.workspace").read_text().splitlines()[1:] == [f"session_id: {life.id}", "member: alice"]
    process = crew.members.process(life.id)
    assert process is not None
    assert process.observe().state == "alive"
    assert life.agent is not None
    assert process.owner is not None
    assert (life.agent.pid, life.agent.start_time) == (process.owner.pid, process.owner.start_time)
    assert crew.engine.info(life.id).identity["rig"] == "north"


def test_an_agent_is_told_its_session_and_sees_nothing_of_the_persons_own_configuration(crew: Crew, monkeypatch: Any) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "The person")
    monkeypatch.setenv("GITTRIX_SESSION_ID", "another")
    members = crew.manager(environment={"COLOUR": "red", "SHAPE": "round"})
    script = crew.script().facts().exits(0)
    life = members.start("alice", command=script.command, environment={"SHAPE": "square"})
    crew.wait_gone(life.id)

    facts = json.loads((crew.workspace(life.id) / "facts.json").read_text())
    variables = facts["environment"]
    assert facts["directory"] == str(crew.workspace(life.id))
    assert (variables["BM_SESSION_ID"], variables["BM_TEAM_NAME"], variables["GITTRIX_SESSION_ID"]) == (life.id, "crew", life.id)
    assert (variables["COLOUR"], variables["SHAPE"]) == ("red", "square")
    assert variables["HOME"] == str(crew.directory(life.id) / "home")
    assert "GIT_AUTHOR_NAME" not in variables
    assert variables["GIT_AUTHOR_DATE"].startswith("1893456000")


def test_members_have_commands_of_their_own_and_others_the_common_one(crew: Crew) -> None:
    script = crew.script("bobs").exits(0)
    members = crew.manager(commands={"bob": script.command, "": crew.script("common").exits(0).command})

    for member in ("bob", "carol"):
        crew.wait_gone(members.start(member).id)

    assert [one.name for one in crew.agents.processes()] == ["bobs", "common"]


def test_an_interactive_session_has_no_process_and_needs_no_command(crew: Crew) -> None:
    members = crew.manager(commands={"": crew.script().exits(0).command})
    life = members.start("alice", "interactive")

    assert (life.state, life.kind, life.agent) == ("active", "interactive", None)
    assert members.process(life.id) is None
    assert crew.agents.processes() == []


@pytest.mark.parametrize(
    ("path", "kind", "becomes"),
    [
        ("brain-prompt.md", "loop", "brain"),
        ("members/alice/brain-prompt.md", "loop", "brain"),
        ("members/bob/brain-prompt.md", "loop", "loop"),
        ("members/alice/brain-prompt.md", "interactive", "interactive"),
        ("brain-prompt.md/notes", "loop", "loop"),
    ],
)
def test_a_loop_becomes_a_brain_where_the_team_says_so(crew: Crew, path: str, kind: str, becomes: str) -> None:
    crew.team.commit({path: "think\n"})
    assert crew.start(kind=kind).kind == becomes


def test_a_prompt_in_a_project_makes_no_brain(crew: Crew) -> None:
    crew.app.commit({"brain-prompt.md": "think\n"})
    assert crew.start().kind == "loop"


def test_a_session_can_have_other_repositories_than_the_team_and_an_id_of_its_own(crew: Crew) -> None:
    crew.app.git("branch", "next", "main")
    steps: list[tuple[str, str]] = []

    life = crew.chat(
        id="chat-1", repositories=[RepositorySpec("org/app", str(crew.app.path), "next")], progress=lambda *step: steps.append(step)
    )

    assert life.id == "chat-1"
    assert crew.git("chat-1", "rev-parse", "HEAD", place="projects/org/app") == crew.app.head("next")
    assert not (crew.workspace("chat-1") / "team").exists()
    assert steps == [("org/app", "clone"), ("org/app", "checkout"), ("org/app", "ready")]


def test_a_later_session_starts_where_the_remote_is_by_then(crew: Crew) -> None:
    crew.chat()
    commit = crew.app.commit({"later.txt": "later\n"})
    crew.clock.advance(timedelta(minutes=6))
    assert crew.git(crew.chat().id, "rev-parse", "HEAD") == commit


def test_a_member_can_have_several_sessions_at_once(crew: Crew) -> None:
    first = crew.chat()
    crew.clock.advance(timedelta(seconds=1))
    second = crew.chat()
    crew.commit(first.id, "mine.txt")
    assert not (crew.repo(second.id) / "mine.txt").exists()
    assert [life.id for life in crew.members.list(member="alice")] == [first.id, second.id]


def test_a_remote_that_wants_credentials_is_read_and_pushed_to_and_the_agent_is_not_told_them(crew: Crew) -> None:
    with BareRemote(crew.app.path) as remote, ForgeServer(remote, tokens={"hush-4711"}) as forge:
        members = crew.manager(credentials=lambda url: ("git", "hush-4711") if url == forge.git_url else None)
        spec = RepositorySpec("app", forge.git_url)
        with pytest.raises(AdapterUnavailable):
            crew.chat(repositories=[spec])

        life = members.start("alice", "interactive", repositories=[spec])
        commit = crew.commit(life.id, "mine.txt", branch="mine")
        assert members.stop(life.id).ended == "completed"

    assert crew.branches()["mine"] == commit
    for path in [path for path in crew.directory(life.id).rglob("*") if path.is_file()]:
        assert b"hush-4711" not in path.read_bytes()


# What is refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "Loop"}, "loop, interactive, brain"),
        ({"kind": "loop", "command": None}, "Nothing says what alice runs"),
        ({"member": "al\nice"}, "member"),
        ({"member": ""}, "member"),
        ({"task": "half \ud800"}, "surrogate"),
        ({"command": ["agent\0"]}, "null bytes"),
        ({"command": "agent --go"}, "is no command"),
        ({"environment": {"A=B": "c"}}, "name of a variable"),
        ({"id": "../up"}, "../up"),
        ({"id": "nul\0"}, "session"),
        ({"work_item": " app"}, "work item"),
        ({"colour": "red"}, "colour"),
        ({"repositories": [RepositorySpec("app", "ext::sh -c date")]}, "address"),
        ({"repositories": [RepositorySpec("../app", "/r")]}, "app"),
        ({"repositories": [RepositorySpec("app", "https://me:hush@forge/app.git")]}, "https://forge/app.git"),
        ({"repositories": [RepositorySpec("ap\ud800p", "/r")]}, "surrogate"),
    ],
)
def test_bad_input_is_refused_by_name_and_nothing_is_left(crew: Crew, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GittrixError) as refused:
        crew.members.start(**{"member": "alice", "command": ["true"], **options})

    assert type(refused.value).__name__ in ("InvalidInput", "WriteRejected")
    assert message in str(refused.value)
    assert (crew.sessions(), crew.members.list(), crew.held()) == ([], [], {})


def test_an_id_that_is_taken_is_refused_and_its_session_stays(crew: Crew) -> None:
    life = crew.chat(id="mine")
    with pytest.raises(InvalidInput, match="already"):
        crew.chat(id="mine", work_item="app#1")
    assert crew.members.get("mine") == life
    assert crew.held() == {}


def test_an_item_that_another_session_works_on_is_refused_with_its_name(crew: Crew) -> None:
    life = crew.chat(work_item="app#1")
    with pytest.raises(WorkItemHeld) as refused:
        crew.chat(member="bob", work_item="app#1")
    assert refused.value.holder == life.id
    assert crew.sessions() == [life.id]


def test_of_many_who_ask_for_one_item_exactly_one_gets_a_session(crew: Crew) -> None:
    def ask(number: int) -> str | None:
        try:
            return crew.chat(member=f"m{number}", work_item="app#1").id
        except WorkItemHeld:
            return None

    crew.chat()  # the clones are made, so that all of them meet at the lock
    with ThreadPoolExecutor(4) as pool:
        got = [id_ for id_ in pool.map(ask, range(8)) if id_ is not None]

    assert len(got) == 1
    assert crew.held() == {"app#1": got[0]}
    assert len(crew.sessions()) == 2


# What fails on the way ---------------------------------------------------------------------------------------------------------


def test_a_remote_that_is_not_there_leaves_no_session_no_lock_and_no_directory(crew: Crew) -> None:
    gone = [*crew.specs, RepositorySpec("gone", str(crew.world.path / "gone.git"))]
    with pytest.raises(AdapterUnavailable, match=r"gone\.git"):
        crew.chat(repositories=gone, work_item="app#1")
    assert (crew.sessions(), crew.held(), crew.members.list()) == ([], {}, [])


@pytest.mark.parametrize("point", ["member:claimed", "member:planned", "member:hydrated", "member:active"])
def test_whatever_fails_before_there_is_an_agent_leaves_nothing(crew: Crew, point: str) -> None:
    def fail(name: str) -> None:
        if name == point:
            raise OSError(28, "No space left on device")

    with points.listening(fail), pytest.raises(AdapterUnavailable, match="No space left"):
        crew.start(work_item="app#1")

    assert (crew.sessions(), crew.held(), crew.members.list(), crew.agents.processes()) == ([], {}, [], [])
    assert crew.chat(work_item="app#1").state == "active"


def test_an_agent_that_is_no_program_leaves_a_session_that_failed_and_says_so(crew: Crew) -> None:
    with pytest.raises(InvalidInput, match="no-such-program") as refused:
        crew.start(command=["no-such-program"], work_item="app#1")

    (life,) = crew.members.list()
    assert life.id in str(refused.value)
    assert crew.states(life.id) == ["active", "failed", "retained"]
    assert (life.ended, life.agent, life.locks, crew.held()) == ("failed", None, (), {})
    assert not life.unsaved
    assert crew.members.exited() == []
    reason = next(event.data.get("reason") for event in crew.events(life.id) if event.data.get("to") == "failed")
    assert "no-such-program" in str(reason)


def test_a_launch_that_cannot_be_recorded_starts_nothing(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gittrix.record.eventlog.log import EventLog

    stored = EventLog.append

    def refuse(self: EventLog, type: str, *rest: Any, **options: Any) -> Any:
        if type == "agent.launched":
            raise AdapterUnavailable("The disk is full.")
        return stored(self, type, *rest, **options)

    monkeypatch.setattr(EventLog, "append", refuse)
    with pytest.raises(AdapterUnavailable, match="The disk is full"):
        crew.start(crew.script().write("trace", "ran\n").hang())

    (life,) = crew.members.list()
    assert crew.states(life.id) == ["active", "failed", "retained"]
    assert crew.agents.processes() == []
    assert not (crew.workspace(life.id) / "trace").exists()


# What a start that dies leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["member:claimed", "member:planned", "member:hydrated"])
def test_a_start_that_was_killed_is_ended_by_the_next_engine(crew: Crew, point: str) -> None:
    Crash().at(point, lambda: crew.chat(work_item="app#1"))

    with crew.restarted() as members:
        members.recover()
        assert members.list() == []
        assert members._team.locks.held() == []
        for id_ in crew.sessions():
            assert crew.engine.info(id_).state == "discarded"
            assert {path.name for path in crew.directory(id_).iterdir()} == {"events.jsonl", "metadata.json"}
            with pytest.raises(SessionNotFound, match="never finished"):
                members.get(id_)


def test_another_engine_leaves_a_start_alone_that_is_under_way(crew: Crew) -> None:
    seen: list[str] = []

    def look(name: str) -> None:
        if name == "member:planned" and not seen:
            with GitTrix(None, store=crew.engine.store.root, home=crew.engine.home, clock=crew.clock) as other:
                life = other.store.load(crew.sessions()[0]).life
                seen.append(life.state if life is not None else "")

    with points.listening(look):
        life = crew.chat()

    assert seen == ["creating"]
    assert crew.members.get(life.id).state == "active"


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        ({"PERSONA.md": "all", "members/alice/PERSONA.md": "al\nice"}, ["al\nice", "team/members/alice/PERSONA.md"]),
        ({"PERSONA.md": "all", "members/bob/PERSONA.md": "bob"}, ["all", "team/PERSONA.md"]),
    ],
)
def test_a_command_gets_the_persona_of_its_member(crew: Crew, files: dict[str, str], seen: list[str]) -> None:
    crew.team.commit(files)
    writes = "import json, sys; json.dump([sys.argv[1][2:-1], sys.argv[2], open(sys.argv[2]).read()], open('seen', 'w'))"
    life = crew.start(command=[sys.executable, "-c", writes, "<<{persona}>", "{persona_file}"])
    crew.wait_gone(life.id)

    assert json.loads((crew.workspace(life.id) / "seen").read_text()) == [*seen, seen[0]]
    assert "{persona_file}" in next(event.data["command"] for event in crew.events(life.id) if event.type == "agent.launched")


@pytest.mark.parametrize("files", [{}, {"members/bob/PERSONA.md": "bob"}])
def test_a_command_whose_member_has_no_persona_is_refused_and_leaves_nothing(crew: Crew, files: dict[str, str]) -> None:
    if files:
        crew.team.commit(files)
    with pytest.raises(InvalidInput, match="no persona of alice"):
        crew.start(command=["cat", "{persona}"])
    assert crew.members.list() == []


def test_a_persona_that_is_a_link_is_none(crew: Crew) -> None:
    crew.team.commit({"PERSONA.md": link("/etc/passwd")})
    with pytest.raises(InvalidInput, match="no persona of alice"):
        crew.start(command=["cat", "{persona}"])


def test_a_program_of_the_protocol_gets_no_terminal(crew: Crew) -> None:
    with pytest.raises(InvalidInput, match="no person could read that"):
        crew.start(kind="interactive", command=["acp:cat"], task="go", terminal=0)
    with pytest.raises(InvalidInput, match="Nothing says what alice runs"):
        crew.start(kind="interactive", terminal=0)
