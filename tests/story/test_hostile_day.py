"""A day with hostile and careless agents, at the terminal: no work goes away without a word, and nothing foreign is believed."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli

from pytest_gittrix import points
from pytest_gittrix.os_level import monotonic

AGENT = ("-c", "user.name=agent", "-c", "user.email=agent@localhost")


def discarded(cli: Cli, id_: str) -> list[Path]:
    return [Path(path) for path in cli.data("session", "discard", id_)["archives"]]


def of_agent(cli: Cli, id_: str, *arguments: str) -> None:
    cli.git(*AGENT, *arguments, cwd=cli.workspace(id_))


def test_at_nine_an_agent_tidies_its_work_away_and_its_session_is_discarded(cli: Cli) -> None:
    id_ = cli.start()
    workspace = cli.workspace(id_)
    (workspace / "feature.py").write_text("on a side branch\n")
    of_agent(cli, id_, "checkout", "-q", "-b", "feature")
    of_agent(cli, id_, "add", "feature.py")
    of_agent(cli, id_, "commit", "-q", "-m", "a feature")
    of_agent(cli, id_, "checkout", "-q", "-")
    (workspace / "app.py").write_text("in a stash\n")
    of_agent(cli, id_, "stash")
    (workspace / "staged.py").write_text("in the index\n")
    of_agent(cli, id_, "add", "staged.py")
    (workspace / "staged.py").unlink()

    assert cli.data("session", "touched", id_) == []
    beside = cli.data("session", "info", id_)["beside"]
    assert [line.split(" is ")[0] for line in beside] == ["branch 'feature'", "stash 0", "'staged.py'"]
    listed = cli("session", "list", "--beside").err.splitlines()
    assert [line.partition(" is ")[0] for line in listed] == [f"gittrix: Not part of {id_}: {line.partition(' is ')[0]}" for line in beside]
    (archive,) = discarded(cli, id_)

    assert not workspace.exists()
    assert cli.git("show", "refs/gittrix/agent/heads/feature:feature.py", cwd=archive) == "on a side branch\n"
    assert cli.git("show", "refs/gittrix/agent/stash/0:app.py", cwd=archive) == "in a stash\n"
    assert cli.git("show", ":staged.py", cwd=archive) == "in the index\n"


def test_at_ten_work_on_a_side_branch_of_a_nested_repository_is_kept(cli: Cli) -> None:
    id_ = cli.start()
    nested = cli.workspace(id_) / "vendor"
    nested.mkdir()
    cli.git("init", "-q", cwd=nested)
    for branch in ("main", "aside"):
        cli.git("checkout", "-q", "-b", branch, cwd=nested)
        (nested / f"{branch}.txt").write_text(f"on {branch}\n")
        cli.git("add", "--all", cwd=nested)
        cli.git(*AGENT, "commit", "-q", "-m", branch, cwd=nested)
    cli.git("checkout", "-q", "main", cwd=nested)

    assert cli.data("session", "info", id_)["beside"] == ["'vendor' has a repository and a history of its own"]
    _, _, whole = discarded(cli, id_)

    assert cli.git("show", "aside:aside.txt", cwd=whole / "vendor") == "on aside\n"


def test_at_eleven_somebody_looks_into_a_backup_of_the_store(cli: Cli, tmp_path: Path) -> None:
    clock = cli.freeze()
    id_ = cli.start()
    (cli.workspace(id_) / "app.py").write_text("live\n")
    workspace = cli.workspace(id_)
    shutil.copytree(cli.home, tmp_path / "backup", symlinks=True)
    store = ("--store", str(tmp_path / "backup" / "sessions"))
    clock.advance(hours=3)
    cli.ok("session", "touched", id_)
    clock.advance(hours=2)

    cli.ok("session", "list", *store)
    in_copy = cli.data("session", "info", id_, *store)
    cli.ok("session", "write", id_, "new.txt", stdin="of the original\n")

    assert in_copy["state"] == "expired"
    assert cli.data("session", "info", id_)["state"] == "active"
    assert (workspace / "app.py").read_text() == "live\n"
    assert (workspace / "new.txt").read_text() == "of the original\n"


def test_at_noon_the_store_moves_to_another_disk(cli: Cli, tmp_path: Path) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="moved\n")
    shutil.move(cli.home, tmp_path / "elsewhere")
    store = ("--store", str(tmp_path / "elsewhere" / "sessions"))

    assert cli.ok("session", "read", id_, "app.py", *store).out == b"moved\n"
    cli.ok("promote", id_, *store)
    assert cli.git("show", "HEAD:app.py") == "moved\n"


def test_at_one_a_line_of_an_ignore_file_is_made_to_stop_everything(cli: Cli) -> None:
    cli.commit({".gitignore": "*a" * 30 + "b\n"})
    id_, other = cli.start(), cli.start()
    (cli.workspace(id_) / ("a" * 200)).write_text("x")

    assert cli.data("session", "touched", id_) == ["a" * 200]
    assert len(cli.data("sweep")["evicted"]) == 0
    cli.ok("promote", id_)
    cli.ok("session", "discard", other)


def test_at_half_past_one_a_workspace_takes_an_hour_to_archive(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = cli.freeze()
    hostile = cli.start()
    cli.ok("session", "write", hostile, "work.txt", stdin="the work\n")
    clock.advance(minutes=1)
    others = [cli.start(), cli.start()]
    clock.advance(hours=5)
    real, late = monotonic.real_seconds, 0

    def stall(point: str) -> None:
        nonlocal late
        late += 3600 * (point == "evict:apart" and not late)

    with monkeypatch.context() as slow, points.listening(stall):
        slow.setattr(monotonic, "real_seconds", lambda: real() + late)
        swept = cli("sweep", "--json").envelope["data"]

    assert (sorted(swept["evicted"]), swept["postponed"]) == (sorted(others), [hostile])
    assert cli.data("session", "info", hostile)["state"] == "expired"
    assert "the work" in (cli.home / "sessions" / hostile / "archive.patch").read_text()


@pytest.mark.parametrize("name", [".gitmodules ", ".gitmodules.", "GITMOD~1", "gi7eba~1", ".gitmodules::$DATA", ".git\u200cmodules"])
def test_at_two_a_link_has_a_name_that_git_would_refuse(cli: Cli, name: str) -> None:
    id_ = cli.start()
    (cli.workspace(id_) / name).symlink_to("app.py")
    (cli.workspace(id_) / "good.txt").write_text("good\n")

    assert cli("promote", id_).status == 1
    cli.ok("promote", id_, "good.txt")
    cli.git("clone", "-q", str(cli.project), str(cli.root / "clone"))
    assert (cli.root / "clone" / "good.txt").read_text() == "good\n"


def test_at_three_two_people_share_a_repository(cli: Cli) -> None:
    cli.git("config", "core.sharedRepository", "group")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="for both\n")
    cli.ok("promote", id_)

    made = [*(cli.project / ".git" / "objects" / "pack").iterdir()]
    made.append(cli.project / ".git" / "refs" / "heads" / "trunk")
    assert {path.name: bool(path.stat().st_mode & stat.S_IRGRP) for path in made} == dict.fromkeys((path.name for path in made), True)
    assert made[-1].stat().st_mode & stat.S_IWGRP


def test_until_midnight_somebody_polls_a_session_that_nobody_uses(cli: Cli) -> None:
    clock = cli.freeze()
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="idle\n")
    seen: list[Any] = []
    for _ in range(18):
        clock.advance(minutes=30)
        seen.append(cli.data("session", "info", id_)["state"])

    assert (seen[0], seen[-1]) == ("active", "expired")
    assert seen == sorted(seen)
