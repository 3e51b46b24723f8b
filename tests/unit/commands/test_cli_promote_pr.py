"""The command line opens pull requests and takes remotes by address; the token comes by the environment and goes to its forge only."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli import Cli
from support.engine import Site, kill_at, open_site
from support.extending import install_package
from support.remote import TOKEN

from pytest_gittrix.backends import GitHubForge
from pytest_gittrix.commands.forge_options import ForgeSettings
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path / "person", monkeypatch, capsysbinary)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, bare=True) as opened:
        yield opened


@pytest.fixture
def server(site: Site) -> Iterator[ForgeServer]:
    with BareRemote(site.durable.path) as remote, ForgeServer(remote, tokens={TOKEN}) as served:
        yield served


@pytest.fixture
def named_forge(server: ForgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("REPO", "acme/app"), ("URL", server.url), ("TOKEN", TOKEN)):
        monkeypatch.setenv(f"GITTRIX_FORGE_{name}", value)


def begun(cli: Cli, site: Site) -> str:
    id_ = cli.start("--durable", str(site.durable.path))
    cli.ok("session", "write", id_, "app.py", stdin="print('v2')\n")
    return id_


@pytest.mark.usefixtures("named_forge")
def test_the_command_opens_one_as_it_is_told(cli: Cli, site: Site, server: ForgeServer) -> None:
    data = cli.data("promote", begun(cli, site), "--strategy", "pr", "--title", "Fix", "--body", "See.", "--draft", "--base", "main")

    (pull,) = server.state.pulls.values()
    assert (pull.title, pull.body, pull.draft, pull.base) == ("Fix", "See.", True, "main")
    assert data == {
        "sha": pull.head_sha,
        "branch": "gittrix/say-hello",
        "prUrl": f"{server.web}/acme/app/pull/1",
        "warnings": [],
        "secrets": {},
    }


@pytest.mark.usefixtures("named_forge")
def test_people_are_shown_where_it_is(cli: Cli, site: Site, server: ForgeServer) -> None:
    assert cli.ok("promote", begun(cli, site), "--strategy", "pr").lines[1] == f"{server.web}/acme/app/pull/1"


def test_flags_stand_in_for_variables_but_not_for_the_token(
    cli: Cli, site: Site, server: ForgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITTRIX_FORGE_TOKEN", TOKEN)
    flags = ("--forge-repo", "acme/app", "--forge-url", server.url)

    assert cli.data("promote", begun(cli, site), "--strategy", "pr", *flags)["prUrl"]
    monkeypatch.delenv("GITTRIX_FORGE_TOKEN")
    second = cli.data("promote", begun(cli, site), "--strategy", "pr", *flags)
    assert "prUrl" not in second
    assert "No token" in second["warnings"][0] or "401" in second["warnings"][0]


def test_the_command_without_a_forge_says_so(cli: Cli, site: Site) -> None:
    assert cli.error("promote", begun(cli, site), "--strategy", "pr")["code"] == "CAPABILITY_MISSING"


# Remotes by address --------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("named_forge")
def test_a_private_remote_is_worked_on_with_the_token_of_its_forge(cli: Cli, site: Site, server: ForgeServer) -> None:
    id_ = cli.start("--durable", f"{server.git_url}#main")
    cli.ok("session", "write", id_, "app.py", stdin="print('v2')\n")

    data = cli.data("promote", id_, "--strategy", "pr")

    assert data["prUrl"] == f"{server.web}/acme/app/pull/1"
    assert site.durable.head("gittrix/say-hello") == data["sha"]
    stored = b"".join(path.read_bytes() for path in cli.home.rglob("*") if path.is_file())
    assert TOKEN.encode() not in stored


def test_a_private_remote_without_a_token_is_refused(cli: Cli, server: ForgeServer) -> None:
    assert cli.error("session", "start", "--task", "look", "--durable", server.git_url)["code"] == "AUTH_FAILED"


def test_a_remote_is_named_by_address_and_branch_and_found_again(cli: Cli, site: Site) -> None:
    site.durable.commit({"next.txt": "next\n"}, branch="next", onto=site.durable.head())
    url = site.durable.path.as_uri()

    here = cli.start()
    first = cli.start("--durable", f"{url}#next")
    second = cli.start("--durable", url, "--branch", "next")
    third = cli.start("-d", url)

    found = cli.data("session", "list", "--durable", url)
    assert {one["id"]: one["durableRef"] for one in found} == {first: f"{url}#next", second: f"{url}#next", third: f"{url}#main"}
    assert here not in {one["id"] for one in found}
    assert cli.ok("session", "read", first, "next.txt").out == b"next\n"


def test_a_branch_that_is_named_twice_must_be_the_same(cli: Cli, site: Site) -> None:
    asked = ("session", "start", "--task", "x", "-d", f"{site.durable.path.as_uri()}#next", "-b", "main")
    assert "Two branches" in cli.error(*asked)["message"]


@pytest.mark.usefixtures("named_forge")
def test_after_a_kill_the_next_command_opens_what_was_not_opened(cli: Cli, site: Site, server: ForgeServer) -> None:
    id_ = begun(cli, site)
    kill_at("pr:opening", lambda: cli("promote", id_, "--strategy", "pr"))

    cli.ok("session", "list")

    (record,) = json.loads(cli.ok("session", "list", "--json").out)["data"]
    assert record["promote"]["result"]["prUrl"] == f"{server.web}/acme/app/pull/1"


# Forges of other packages ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("named_forge")
def test_a_forge_that_a_package_registers_is_used_by_its_name(cli: Cli, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def acme(repo: str, **options: Any) -> GitHubForge:
        made.append({"repo": repo, **options})
        return GitHubForge(repo, **options)

    install_package(monkeypatch, acme=acme, gittrix_forges=lambda: {"acme": ("acme_extends:acme",)})
    url = os.environ["GITTRIX_FORGE_URL"]
    id_ = begun(cli, site)

    cli.ok("promote", id_, "--strategy", "pr", "--forge", "acme")
    assert {"repo": "acme/app", "base_url": url, "token": TOKEN} in made
    assert "invalid choice: 'gitlab'" in cli("promote", id_, "--forge", "gitlab").err


def test_a_forge_without_an_address_has_its_own_and_git_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(monkeypatch, acme=lambda repo, token: (repo, token), gittrix_forges=lambda: {"acme": ("acme_extends:acme",)})
    one = ForgeSettings.of(Namespace(), {"GITTRIX_FORGE": "acme", "GITTRIX_FORGE_REPO": "acme/app", "GITTRIX_FORGE_TOKEN": TOKEN})

    opened: object = one.open(SimpleNamespace())  # type: ignore[arg-type]
    assert opened == ("acme/app", TOKEN)
    assert (one.credentials("https://acme.example/acme/app"), one.credentials("acme/app")) == (None, None)


# Where the token goes ------------------------------------------------------------------------------------------------------------------


def settings(url: str = "https://api.github.com", repo: str | None = "acme/app", token: str | None = TOKEN) -> ForgeSettings:
    found = {"GITTRIX_FORGE_URL": url, "GITTRIX_FORGE_REPO": repo, "GITTRIX_FORGE_TOKEN": token}
    return ForgeSettings.of(Namespace(), {name: value for name, value in found.items() if value is not None})


@pytest.mark.parametrize(
    ("api", "address"),
    [
        ("https://api.github.com", "https://github.com/acme/app.git"),
        ("https://api.github.com", "https://github.com/Acme/App"),
        ("https://forge.example.com/api/v3", "https://forge.example.com/acme/app.git"),
        ("http://127.0.0.1:81/api/v3", "http://127.0.0.1:81/acme/app.git/"),
    ],
)
def test_git_gets_the_token_for_the_forges_own_repository(api: str, address: str) -> None:
    assert settings(api).credentials(address) == ("x-access-token", TOKEN)


@pytest.mark.parametrize(
    ("api", "address"),
    [
        ("https://api.github.com", "https://github.com/acme/another.git"),
        ("https://api.github.com", "https://github.com/notacme/app.git"),
        ("https://api.github.com", "https://github.com/mirrors/acme/app.git"),
        ("https://api.github.com", "https://evil.example.com/acme/app.git"),
        ("https://api.github.com", "https://github.com.evil.example/acme/app.git"),
        ("https://api.github.com", "http://github.com/acme/app.git"),
        ("https://forge.example.com/api/v3", "https://forge.example.com:444/acme/app.git"),
        ("https://api.github.com", "git@github.com:acme/app.git"),
        ("https://api.github.com", "file:///srv/acme/app.git"),
    ],
)
def test_nobody_else_gets_it(api: str, address: str) -> None:
    assert settings(api).credentials(address) is None


def test_without_a_token_or_a_repository_nobody_gets_anything() -> None:
    assert settings(token=None).credentials("https://github.com/acme/app.git") is None
    assert settings(repo=None).credentials("https://github.com/acme/app.git") is None
    assert TOKEN not in repr(settings())
