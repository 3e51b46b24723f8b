"""A day of two coding agents: small programs write what Claude Code and pi write, and a daemon on a frozen clock sees every status.

All of it is what a person types: the team file, ``gittrix session spawn``, ``list``, ``restore``, ``kill`` and ``retire``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from support.agent_records import AgentFiles, Puppet, write_program
from support.cli import Cli
from support.daemon import DaemonProcess, wait_until
from support.orchestrator import on_linux

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.durations import ns_of
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.views.orchestrator import state_in
from pytest_gittrix.views.orchestrator_status import STATUSES

pytestmark = on_linux


@dataclass
class Day:
    """A project with two agents, a forge, and a clock that both the commands and the daemon go by."""

    cli: Cli
    clock: FrozenClock
    forge: ForgeServer

    def spawn(self, agent: str) -> Session:
        """Start a session with an agent that waits for the test."""
        record = self.cli.data("session", "spawn", "parser", "--agent", agent, "--branch", f"feat/{agent}")
        home = self.cli.home / "sessions" / record["id"] / "private-home"
        session = Session(self, record["id"], Puppet(home), AgentFiles(agent, record["workspacePath"], Puppet(home).carry))
        session.wait()
        return session


@dataclass
class Session:
    """One session of the day."""

    day: Day
    id: str
    puppet: Puppet
    files: AgentFiles

    def wait(self) -> None:
        """Wait until its agent waits for the test."""
        wait_until(lambda: self.puppet.ready, "the agent")

    def does(self, name: str, **changes: object) -> None:
        """Have its agent write a record."""
        self.files.write(name, ns_of(self.day.clock.now()), **changes)

    @property
    def now(self) -> tuple[str, str | None]:
        """Its status and activity, as the command line shows them."""
        (found,) = [one for one in self.day.cli.data("session", "list", "--as", "orchestrator") if one["id"] == self.id]
        return found["status"], found["activity"]

    def comes_to(self, status: str, activity: str | None, **later: float) -> None:
        """Let time pass; a poll then finds this."""
        self.day.clock.advance(**(later or {"seconds": 30}))
        wait_until(lambda: self.now == (status, activity), f"{status} and {activity}, in the place of {self.now},")

    def back(self) -> None:
        """Restore it, and see its new agent at work."""
        (self.puppet.home / "ready").unlink(missing_ok=True)
        self.day.cli.ok("session", "restore", self.id)
        self.wait()
        self.does("prompt")
        self.comes_to("working", "active", seconds=30)


@pytest.fixture(name="day")
def day_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Day]:
    if confinement().level == "off":
        pytest.skip(confinement().why)
    cli = Cli(tmp_path, monkeypatch, capfdbinary)
    cli.home.mkdir()
    command = write_program(tmp_path)
    with BareRemote.make(tmp_path / "forge.git", files={"app.py": "v1\n"}) as remote, ForgeServer(remote) as forge:
        (cli.home / "team.toml").write_text(
            f"""
            readable = {json.dumps(command[1:])}
            [[projects]]
            id = "parser"
            durable = {json.dumps(str(cli.project))}
            branch = "trunk"
            prefix = "par"
            forge = {{repo = "acme/app", base_url = "{forge.url}"}}
            [projects.agents]
            claude = {json.dumps(command)}
            pi = {json.dumps(command)}
            """
        )
        clock = cli.freeze()
        with DaemonProcess(cli.home, environment={"PYTEST_GITTRIX_CLOCK": str(tmp_path / "clock")}) as daemon:
            day = Day(cli, clock, forge)
            try:
                yield day
            finally:
                for id_ in (one["id"] for one in cli.data("session", "list", "--as", "orchestrator")):
                    cli("session", "kill", id_)
                daemon.end()


def statuses(day: Day, id_: str) -> list[str]:
    """Each status that a session had, one after the other, by its log."""
    with GitTrix(None, store=day.cli.home / "sessions", sweep_interval=None) as engine:
        events = engine.history(id_)
    return [status for status, _ in groupby(state_in(events[:count]) for count in range(1, len(events) + 1))]


def test_a_turn_a_question_a_permission_an_error_and_every_end_are_seen(day: Day) -> None:
    ada = day.spawn("claude")
    ada.does("prompt")
    ada.comes_to("working", "active")
    ada.does("end")
    ada.comes_to("working", "ready")
    ada.comes_to("working", "idle", minutes=6)
    ada.comes_to("stuck", "idle", minutes=5)

    ada.does("prompt")
    ada.comes_to("working", "active")
    ada.does("question")
    ada.comes_to("needs_input", "waiting_input")
    ada.comes_to("needs_input", "waiting_input", hours=2)
    ada.does("answer")
    ada.comes_to("working", "active")

    ada.does("call")
    ada.comes_to("working", "active", minutes=4)
    ada.comes_to("needs_input", "waiting_input", minutes=2)
    ada.does("result")
    ada.comes_to("working", "active")

    ada.does("error")
    ada.comes_to("stuck", "blocked", minutes=1)
    ada.does("prompt")
    ada.comes_to("working", "active")

    ada.puppet.exit(0)
    ada.comes_to("done", "exited", minutes=10)
    ada.back()
    ada.puppet.exit(3)
    ada.comes_to("errored", "exited", minutes=10)
    ada.back()
    day.cli.ok("session", "kill", ada.id)
    assert ada.now == ("killed", "exited")
    ada.back()

    seen = statuses(day, ada.id)
    assert seen[0] == "spawning"
    assert {"working", "needs_input", "stuck", "done", "errored", "killed"} <= {*seen[:-1]}, "each is reached, and left"
    assert seen[-1] == "working"


def test_a_pull_request_is_followed_until_it_is_merged_and_its_session_is_retired(day: Day) -> None:
    bob = day.spawn("pi")
    bob.does("prompt")
    bob.does("end")
    forge, repo = day.forge, day.forge.remote.repo
    repo.git("branch", "feat/pi", "main")
    repo.git("update-ref", "refs/heads/feat/pi", repo.git("commit-tree", "main^{tree}", "-p", "main", "-m", "Mend it").strip())
    forge.state.checks("feat/pi", {"build": "in_progress"})
    with forge.forge() as client:
        number = client.open_pr("feat/pi", "main", "Mend it").number
    bob.comes_to("pr_open", "ready")
    forge.state.checks("feat/pi", {"build": "failure"})
    bob.comes_to("ci_failed", "ready")
    forge.state.checks("feat/pi", {"build": "in_progress"})
    forge.state.request_review(number, "ada")
    bob.comes_to("review_pending", "ready")
    forge.state.review(number, "ada", "changes_requested")
    bob.comes_to("changes_requested", "ready")
    forge.state.review(number, "ada", "approved")
    bob.comes_to("approved", "ready")
    forge.state.checks("feat/pi", {"build": "success"})
    bob.comes_to("mergeable", "ready")
    forge.state.merge(number)
    bob.comes_to("merged", "ready")

    assert day.cli.ok("session", "retire", "--dry-run").lines == [f"{bob.id} would be retired"]
    assert day.cli.ok("session", "retire").lines == [f"{bob.id} is retired"]
    assert bob.now == ("cleanup", "exited")
    assert not Path(bob.files.workspace).exists()
    of_pr = ("pr_open", "ci_failed", "review_pending", "changes_requested", "approved", "mergeable", "merged", "cleanup")
    assert [status for status in statuses(day, bob.id) if status in of_pr] == [*of_pr]
    # The rest are those of the other test; `terminated` is for an end that no observation has.
    assert {*STATUSES} - {*of_pr} == {"spawning", "working", "needs_input", "stuck", "errored", "killed", "done", "terminated"}


def test_the_list_for_people_says_what_each_agent_does_and_since_when(day: Day) -> None:
    ada, bob = day.spawn("claude"), day.spawn("pi")
    ada.does("question")
    bob.does("prompt")
    bob.does("end")
    ada.comes_to("needs_input", "waiting_input")
    ada.comes_to("needs_input", "waiting_input", minutes=25)
    bob.comes_to("stuck", "idle")
    heading, *rows = day.cli.ok("session", "list", "--as", "orchestrator").lines

    assert heading.split()[:5] == ["ID", "PROJECT", "STATUS", "ACTIVITY", "SINCE"]
    assert [row.split()[:5] for row in rows] == [
        [ada.id, "parser", "needs_input", "waiting_input", "26m"],
        [bob.id, "parser", "stuck", "idle", "26m"],
    ]
