"""A chat with a member: its persona, its terminal, its jail, and what is left of it, as a person at tmux has them."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.cli import Cli
from support.daemon import wait_until
from support.git import GitRepo
from support.orchestrator import on_linux
from support.tmux import Tmux, needs_tmux

from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.git.environment import hermetic_env

pytestmark = [on_linux, needs_tmux]

PROGRAM = textwrap.dedent(
    """
    import os, subprocess, sys
    print("I am", sys.argv[1], "on", *os.get_terminal_size(), [os.isatty(fd) for fd in (0, 1, 2)], flush=True)
    try:
        found = open(sys.argv[3]).read()
    except OSError:
        found = "closed"
    print("The file:", repr(open(sys.argv[2]).read()), "the host:", found, flush=True)
    while True:
        try:
            said = input("you> ")
        except KeyboardInterrupt:
            print("heard an interrupt", flush=True)
            continue
        if said == "bye":
            sys.exit(3)
        if said == "work":
            git = ["git", "-C", "projects/app"]
            subprocess.run([*git, "checkout", "-q", "-b", "chat"], check=True)
            open("projects/app/made.py", "w").write("x = 1")
        print(f"ada: {said}!", flush=True)
    """
)
Chats = Callable[..., AbstractContextManager[Tmux]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capfdbinary)
    made.home.mkdir()
    return made


@pytest.fixture
def app(cli: Cli, tmp_path: Path) -> GitRepo:
    """The remote of a team with a member, ada, whose persona is in the team's repository."""
    program = tmp_path / "chat.py"
    program.write_text(PROGRAM)
    (tmp_path / "secret").write_text("of the host")
    app = GitRepo.make(tmp_path / "app.git", {"a.txt": "one\n"}, bare=True)
    crew = GitRepo.make(tmp_path / "crew.git", {"members/ada/PERSONA.md": "ada, the terse", "PERSONA.md": "somebody"}, bare=True)
    command = [sys.executable, "-I", str(program), "{persona}", "{persona_file}", str(tmp_path / "secret")]
    (cli.home / "team.toml").write_text(
        f"""
        readable = [{json.dumps(str(program))}]
        [[repositories]]
        name = "app"
        url = {json.dumps(str(app.path))}
        [[repositories]]
        name = "crew"
        url = {json.dumps(str(crew.path))}
        team = true
        [members.ada]
        kind = "interactive"
        command = {json.dumps(command)}
        [retention]
        interactive_success = "1h"
        """
    )
    return app


@pytest.fixture
def chats(cli: Cli, tmp_path: Path) -> Chats:
    """Opens a terminal in which a person talks to a member."""

    def opened(*arguments: str) -> AbstractContextManager[Tmux]:
        argv = [sys.executable, "-m", "pytest_gittrix.cli", "member", "chat", *arguments]
        environment = {**hermetic_env(tmp_path / "person"), "GITTRIX_HOME": str(cli.home), "TERM": "xterm"}
        return Tmux.running(tmp_path / "tmux", argv, environment, cli.project)

    return opened


@pytest.mark.parametrize("level", ["jail", "guard", "off"])
def test_bm_chat_is_a_talk_with_a_persona_on_this_terminal_confined_and_its_work_is_saved(
    cli: Cli, app: GitRepo, chats: Chats, level: str
) -> None:
    if level != "off" and confinement(level).level != level:
        pytest.skip(f"there is no {level} here")
    with chats("ada", "--confine", level) as tmux:
        tmux.see("I am ada, the terse on 100 30 [True, True, True]")
        tmux.see(f"The file: 'ada, the terse' the host: {'of the host' if level == 'off' else 'closed'}")
        tmux.see("you>")
        tmux.type("hello", "Enter")
        tmux.see("ada: hello!")
        tmux.type("C-c")
        tmux.see("heard an interrupt")
        (row,) = cli.data("member", "status")
        assert (row["session_type"], row["current_state"], row["agent_confinement"].partition("(")[0]) == ("Interactive", "Active", level)
        tmux.type("work", "Enter")
        tmux.see("ada: work!")
        tmux.type("bye", "Enter")
        tmux.see("ended with 3")

        assert f"{row['session_id']} is retained" in tmux.screen
    assert app.text("show", "chat:made.py") == "x = 1"
    (ended,) = cli.data("member", "history")
    assert (ended["session_id"], ended["finalization_status"]) == (row["session_id"], "completed")


def test_a_chat_whose_terminal_is_closed_ends_and_its_work_is_saved(cli: Cli, app: GitRepo, chats: Chats) -> None:
    with chats("ada", "--confine", "off") as tmux:
        tmux.see("you>")
        tmux.type("work", "Enter")
        tmux.see("ada: work!")
        tmux("kill-server")
    wait_until(lambda: cli.data("member", "status") == [], "the end")

    assert app.text("show", "chat:made.py") == "x = 1"


def test_a_terminal_has_the_size_of_the_persons(app: GitRepo, chats: Chats) -> None:
    asks = "import os; [input() and print('size', *os.get_terminal_size(), flush=True) for _ in range(3)]"
    with chats("ada", "--confine", "off", "--", sys.executable, "-c", asks) as tmux:
        tmux.type("a", "Enter")
        tmux.see("size 100 30")
        tmux("resize-window", "-x", "70", "-y", "20")
        tmux.type("b", "Enter")
        tmux.see("size 70 20")
