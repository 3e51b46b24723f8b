"""A brain and its event watcher: people, other members, a forge and an inbox are heard, in order and once, over kills of the daemon."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.acp_program import agent_that
from support.cli import Cli
from support.daemon import DaemonProcess, wait_until
from support.git import GitRepo
from support.orchestrator import on_linux

from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

pytestmark = on_linux


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capfdbinary)
    made.home.mkdir()
    return made


@pytest.fixture
def forge(cli: Cli, tmp_path: Path) -> Iterator[ForgeServer]:
    """The forge of a team with a brain, ada, that repeats what it hears, and with bob, who ends at once."""
    app = GitRepo.make(tmp_path / "app.git", {"a.txt": "one\n"}, bare=True)
    with BareRemote.make(tmp_path / "forge.git", files={"app.py": "v1\n"}) as remote, ForgeServer(remote) as forge:
        with forge.forge() as client:
            client.create_issue("An old one")
        (cli.home / "team.toml").write_text(
            f"""
            confine = "off"
            forge = {{repo = "acme/app", base_url = "{forge.url}"}}
            [[repositories]]
            name = "app"
            url = {json.dumps(str(app.path))}
            [members.ada]
            kind = "brain"
            command = {json.dumps([f"acp:{sys.executable}", "-I", "-S", "-c", agent_that("say(task)")])}
            [members.bob]
            command = ["true"]
            """
        )
        yield forge


def heard(cli: Cli, id_: str) -> list[str]:
    """The first lines of the prompts that a session's agent has answered."""
    told = [one["data"]["text"] for one in cli.data("session", "history", id_) if one["type"] == "assistant_message"]
    return [text.partition("\n")[0] for text in told]


def drop(cli: Cli, name: str, text: str) -> None:
    """Put a file into ada's inbox, as a program does that writes it in pieces."""
    inbox = cli.home / "inbox/ada"
    inbox.mkdir(parents=True, exist_ok=True)
    (inbox / f".{name}").write_text(text)
    os.replace(inbox / f".{name}", inbox / name)


def test_a_brain_hears_people_members_the_forge_and_its_inbox_in_order_and_once_over_kills_of_the_daemon(
    cli: Cli, forge: ForgeServer, tmp_path: Path
) -> None:
    clock = cli.freeze()

    def daemon() -> DaemonProcess:
        return DaemonProcess(cli.home, environment={"PYTEST_GITTRIX_CLOCK": str(tmp_path / "clock")})

    def hears(*more: str) -> None:
        expected.extend(more)

        def later() -> bool:
            clock.advance(seconds=30)
            return heard(cli, ada) == expected

        wait_until(later, f"{expected}")

    expected: list[str] = []
    with daemon() as first:
        ada = cli.data("member", "start", "ada")["session_id"]
        cli.ok("member", "send", ada, "hello\nto you")
        hears("hello")
        first.ok("POST", f"/api/sessions/{ada}/send", {"text": "over HTTP"})
        hears("over HTTP")
        wait_until(lambda: "hearing.began" in [one["type"] for one in cli.data("session", "history", ada)], "a look at the forge")
        drop(cli, "note.txt", "from the inbox")
        hears("from the inbox")
        bob = cli.data("member", "start", "bob", "--task", "nothing")["session_id"]
        hears(f"Session {bob} of bob ended: completed. Its task: nothing")
        with forge.forge() as client:
            client.create_issue("It is broken", "Badly.")
        hears("Issue 2 is open: It is broken")
        first.kill()

    repo = forge.remote.repo
    repo.git("update-ref", "refs/heads/fix", repo.git("commit-tree", "main^{tree}", "-p", "main", "-m", "Mend it").strip())
    with forge.forge() as client:
        client.open_pr("fix", "main", "Mend it")
    drop(cli, "note.txt", "while nobody ran")
    cli.ok("member", "send", ada, "without a daemon")
    hears("without a daemon")
    with daemon() as second:
        hears("Pull request 3 is open: Mend it", "while nobody ran")
        second.kill()
    with daemon() as third:
        forge.state.merge(3)
        hears("Pull request 3 is merged: Mend it")
        cli.ok("member", "send", ada, "enough")
        hears("enough")
        cli.ok("member", "stop", ada)
        third.end()

    assert heard(cli, ada) == expected
    assert sorted(path.name.partition("-")[2] for path in (cli.home / "inbox/ada/taken").iterdir()) == ["note.txt", "note.txt"]
    assert cli.error("member", "send", ada, "too late")["code"] == "INVALID_INPUT"
