"""Each fixture, as somebody uses it who has only read the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytest_gittrix
from pytest_gittrix import (
    AgentSession,
    BaselineConflict,
    DurableRepo,
    FrozenClock,
    GitTrix,
    PromoteFailed,
    Rival,
    SessionExpired,
    UserSession,
    World,
)
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model import ModelServer, call, stop
from pytest_gittrix.plugin.worlds import Ephemeral, Worlds
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.powercut import PowerCuts
from pytest_gittrix.testing.faults.small_disks import SmallDisks
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.history import Contents
from pytest_gittrix.testing.repos.remote_kit import Remotes
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit
from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit
from pytest_gittrix.testing.scenarios.log_kit import LogKit
from pytest_gittrix.testing.scenarios.session_in import SessionsIn
from pytest_gittrix.testing.scenarios.timeline import Timeline
from pytest_gittrix.testing.scenarios.turn_kit import TurnKit
from pytest_gittrix.testing.schedules.race import Race

INSTALLED = Path(os.environ["INSTALLED"])


def test_the_package_is_the_installed_one(pytestconfig: pytest.Config, gittrix: GitTrix) -> None:
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pytest_gittrix"}
    assert [name for name, module in modules.items() if not Path(str(module.__file__)).is_relative_to(INSTALLED)] == []
    assert pytest_gittrix.__file__ == str(INSTALLED / "pytest_gittrix" / "__init__.py")

    (entry,) = entry_points(group="pytest11", name="gittrix")
    assert entry.dist is not None
    assert Path(str(entry.dist.locate_file(""))) == INSTALLED
    assert pytestconfig.pluginmanager.get_plugin("gittrix") is entry.load()


def test_model(gittrix_model: ModelServer, gittrix_session: UserSession) -> None:
    gittrix_model.script(call("bash", command="echo v2 > app.py"), stop())
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Improve it"}]}'
    for _ in range(2):
        with urllib.request.urlopen(f"{gittrix_model.url}/v1/chat/completions", body) as answer:
            message = json.load(answer)["choices"][0]["message"]
        for one in message.get("tool_calls", ()):
            subprocess.run(
                ["sh", "-c", json.loads(one["function"]["arguments"])["command"]], cwd=gittrix_session.workspace_path, check=True
            )
    assert (message["content"], gittrix_session.touched_files()) == ("Done.", ["app.py"])


def test_an_agent_works_and_a_person_promotes(
    gittrix_session: UserSession, gittrix_agent: AgentSession, gittrix_durable: DurableRepo, gittrix: GitTrix
) -> None:
    with gittrix_durable.unchanged():
        gittrix_agent.write("app.py", "print('agent')\n")
        gittrix_agent.write_and_commit({"notes/plan.md": "first the parser\n"}, "Plan")
    assert gittrix_agent.touched_files() == ["app.py", "notes/plan.md"]
    assert [entry.message for entry in gittrix_agent.log()] == ["Plan"]
    assert not hasattr(gittrix_agent, "promote")

    review = gittrix_session.review(["app.py"])
    gittrix_agent.write("app.py", "print('later')\n")
    result = gittrix_session.promote(review, message="Greet")

    assert gittrix_durable.head() == result.sha
    assert gittrix_durable.read("app.py") == b"print('agent')\n"
    assert "notes/plan.md" not in gittrix_durable.tree()
    assert gittrix_durable.repo.head.commit.message.strip() == "Greet"
    assert [metadata.state for metadata in gittrix.list_sessions()] == ["promoted"]


def test_a_rivals_commit_is_not_overwritten(gittrix_session: UserSession, gittrix_rival: Rival, gittrix_durable: DurableRepo) -> None:
    gittrix_session.write("app.py", "agent\n")
    theirs = gittrix_rival.commit({"app.py": "rival\n"}, message="Hot fix")
    with pytest.raises(BaselineConflict) as caught:
        gittrix_session.promote()
    assert caught.value.conflicting_files == ["app.py"]
    assert gittrix_durable.head() == theirs


def test_four_idle_hours_end_a_session(gittrix: GitTrix, gittrix_session: UserSession, gittrix_clock: FrozenClock) -> None:
    ended = []
    gittrix.on("session.evict", lambda event: ended.append(event.stream))
    gittrix_clock.advance(hours=4)
    assert ended == []
    gittrix_clock.advance(minutes=5)
    assert ended == [gittrix_session.id]
    assert datetime.now(UTC) == gittrix_clock.now()
    with pytest.raises(SessionExpired):
        gittrix_session.read("app.py")


def test_a_workspace_without_a_session(gittrix_ephemeral: Ephemeral, gittrix_durable: DurableRepo, gittrix: GitTrix) -> None:
    assert gittrix_ephemeral.baseline == gittrix_durable.head()
    (gittrix_ephemeral.path / "new.txt").write_text("new\n", encoding="utf-8")
    assert gittrix_ephemeral.touched_files() == ["new.txt"]
    assert gittrix.list_sessions() == []


def test_my_own_programs_are_hermetic(gittrix_env: Mapping[str, str], gittrix_session: UserSession, gittrix_durable: DurableRepo) -> None:
    assert gittrix_env["HOUSE"] == "acme"
    commit = ["git", "commit", "--quiet", "--allow-empty", "--message=mine"]
    subprocess.run(commit, cwd=gittrix_durable.path, env=gittrix_env, check=True, timeout=60)
    assert gittrix_durable.log()[0].author.when == gittrix_durable.log()[0].committer.when == datetime(2030, 1, 1, tzinfo=UTC)

    command = [str(Path(sys.executable).with_name("gittrix")), "session", "list"]
    listed = subprocess.run(command, env=gittrix_env, check=True, timeout=60, capture_output=True, text=True)
    assert gittrix_session.id in listed.stdout


def test_a_rival_between_check_and_swap(
    gittrix_session: UserSession, gittrix_rival: Rival, gittrix_race: Race, gittrix_durable: DurableRepo
) -> None:
    gittrix_session.write("app.py", "agent\n")
    gittrix_race.before("promote:drift-checked", lambda: gittrix_rival.commit({"app.py": "rival\n"}, message="Hot fix"))
    with pytest.raises(BaselineConflict):
        gittrix_session.promote()
    assert gittrix_durable.read("app.py") == b"rival\n"


@settings(deadline=None, max_examples=5)
@given(data=st.binary(max_size=16))
def test_one_world_for_each_example(gittrix_worlds: Worlds, data: bytes) -> None:
    with gittrix_worlds.open(files={"data": b"baseline"}) as world:
        session = world.start(task="rewrite")
        session.write("data", data + b"!")
        session.promote()
        assert world.durable.read("data") == data + b"!"


class TestFilesOfTheClassItself:
    @pytest.fixture
    def gittrix_files(self, gittrix_files: Contents | None) -> Contents:
        assert gittrix_files is None
        return {"house.py": "v1\n"}

    @pytest.fixture
    def gittrix_world_options(self, gittrix_world_options: Mapping[str, Any]) -> Mapping[str, object]:
        return {**gittrix_world_options, "workspace": "copy"}

    @pytest.fixture
    def gittrix_durable(self, gittrix_durable: DurableRepo) -> DurableRepo:
        gittrix_durable.commit({"rules.md": "be kind\n"})
        return gittrix_durable

    def test_it(self, gittrix_agent: AgentSession) -> None:
        assert [entry.path for entry in gittrix_agent.list()] == ["OWNERS", "house.py", "rules.md"]
        assert gittrix_agent.info().workspace_kind == "copy"


def test_against_the_system_under_test(gittrix_system: Callable[..., AbstractContextManager[World]]) -> None:
    with gittrix_system(files={"app.py": "v1\n"}) as world:
        world.start(task="look").discard()
        assert world.durable.read("OWNERS") == b"* ada@example.org\n"
        assert [metadata.state for metadata in world.gittrix.list_sessions()] == ["discarded"]


def test_a_crash_at_a_named_step(gittrix_session: UserSession, gittrix: GitTrix, gittrix_crash: Crash) -> None:
    gittrix_session.write("app.py", "agent\n")
    with gittrix_crash.in_process("promote:intent-logged"):
        gittrix_session.promote()
    assert gittrix.recover().rolled_back == [gittrix_session.id]


def test_power_cuts_and_small_disks_say_what_they_can_play(gittrix_power_cuts: PowerCuts, gittrix_small_disk: SmallDisks) -> None:
    with pytest.raises(InvalidInput, match="ext4"):
        gittrix_power_cuts(["true"], lambda _directory, _cut: True, filesystem="fat")
    with pytest.raises(InvalidInput, match="lots"):
        gittrix_small_disk("lots")


def test_a_log_is_built_and_damaged(gittrix_log: LogKit, gittrix_session: UserSession) -> None:
    gittrix_log.build(20)
    assert gittrix_log.invariants() == []
    gittrix_log.drop(7)
    assert gittrix_log.invariants() != []
    assert "session.created" in gittrix_log.of(gittrix_session).golden()


def test_an_interrupt_inside_a_tool(gittrix_session: UserSession, gittrix_turns: TurnKit) -> None:
    gittrix_session.start_turn(gittrix_turns.script().call("c1").at("inside").result("c1"))
    gittrix_turns.wait_for("inside")
    assert gittrix_session.interrupt()
    assert [event.data["ok"] for event in gittrix_session.history("tool_result")] == [False]


def test_a_line_of_sessions(gittrix_chain: ChainKit, gittrix: GitTrix) -> None:
    line = gittrix_chain("toast", ["handoff", "crash", "done"], work_unit="gt-1")
    gittrix_chain.check(line)
    assert [record.id for record in gittrix.chain(work_unit="gt-1")] == [session.id for session in line]


def test_a_session_that_failed_yesterday(gittrix_session_in: SessionsIn, gittrix: GitTrix) -> None:
    made = gittrix_session_in("retained", outcome="failed", age="25h")
    assert made.life is not None
    assert (made.life.ended, made.path.is_dir(), gittrix.view(made.id, "botminter")["current_state"]) == ("failed", True, "Retained")


def test_an_agent_that_falls_silent(gittrix_timeline: Callable[..., Timeline]) -> None:
    assert gittrix_timeline().at("0", runtime="alive", activity="active").at("10m", activity="idle").play().statuses == ["working", "stuck"]


def test_a_remote_refuses(gittrix_remote: Remotes, tmp_path: Path) -> None:
    remote = gittrix_remote(files={"app.py": "v1\n"}, name="app")
    with GitTrix(remote.url, home=tmp_path) as gittrix:
        session = gittrix.start_session("fix the bug")
        session.write("app.py", "v2\n")
        remote.reject("not today")
        with pytest.raises(PromoteFailed, match="not today"):
            session.promote()
        remote.accept()
        assert session.promote().sha == remote.repo.head()


def test_a_pull_request_is_opened(gittrix_forge: ForgeServer, tmp_path: Path) -> None:
    with GitTrix(gittrix_forge.git_url, home=tmp_path, forge=gittrix_forge.forge()) as gittrix:
        session = gittrix.start_session("fix the bug")
        session.write("app.py", "v2\n")
        assert session.promote(strategy="pr").pr_url == f"{gittrix_forge.web}/acme/app/pull/1"
    assert gittrix_forge.state.pulls[1].title == "gittrix: fix the bug"


def test_an_agent_is_a_real_process(gittrix_agent_process: AgentKit) -> None:
    agent = gittrix_agent_process.start(gittrix_agent_process.script().say("hello").exits(3))
    assert agent.wait(60).code == 3
    assert agent.capture() == "hello\n"
