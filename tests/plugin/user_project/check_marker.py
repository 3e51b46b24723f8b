"""Each argument of the marker. The project's own repository serves as the real one."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pytest_gittrix import DurableRepo, EvictionPolicy, FrozenClock, GitTrix, LocalEphemeral, UserSession
from pytest_gittrix.model import ModelServer

PROJECT = Path(__file__).resolve().parent


@pytest.mark.gittrix(files={"src/app.py": "v1\n", "logo.bin": b"\0\xff"})
def test_files(gittrix_durable: DurableRepo) -> None:
    assert [*gittrix_durable.tree()] == ["OWNERS", "logo.bin", "src/app.py"]
    assert gittrix_durable.read("logo.bin") == b"\0\xff"


@pytest.mark.gittrix(history=[{"app.py": "v1\n", "old.py": "\n"}, {"app.py": "v2\n", "old.py": None}])
def test_history(gittrix_durable: DurableRepo) -> None:
    _, second, first = gittrix_durable.log()
    assert gittrix_durable.read("app.py", at=first.id) == b"v1\n"
    assert [*gittrix_durable.tree(second.id)] == ["app.py"]


@pytest.mark.gittrix(repository=PROJECT)
def test_repository(gittrix_durable: DurableRepo, gittrix_session: UserSession) -> None:
    real = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, check=True, timeout=60, capture_output=True, text=True).stdout.strip()
    assert real in [commit.id for commit in gittrix_durable.log()]
    gittrix_session.write("pytest.ini", "[pytest]\n")
    assert gittrix_session.promote().sha == gittrix_durable.head()
    assert (PROJECT / "pytest.ini").read_text(encoding="utf-8") != "[pytest]\n"


@pytest.mark.gittrix(branch="trunk")
def test_branch(gittrix_durable: DurableRepo, gittrix_session: UserSession) -> None:
    assert gittrix_durable.git("symbolic-ref", "HEAD") == "refs/heads/trunk"
    assert gittrix_session.info().durable_branch == "trunk"


@pytest.mark.gittrix(bare=True)
def test_bare(gittrix_durable: DurableRepo, gittrix_session: UserSession) -> None:
    assert gittrix_durable.git("rev-parse", "--is-bare-repository") == "true"
    gittrix_session.write("new.txt", "x")
    assert gittrix_session.promote().sha == gittrix_durable.head()


@pytest.mark.gittrix(object_format="sha256", files={"app.py": "v1\n"})
def test_object_format(gittrix_durable: DurableRepo, gittrix_session: UserSession) -> None:
    gittrix_session.write("app.py", "v2\n")
    assert len(gittrix_session.promote().sha) == 64
    assert gittrix_durable.git("fsck", "--strict") == ""


@pytest.mark.gittrix(model="tape")
def test_model(gittrix_model: ModelServer) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'
    with urllib.request.urlopen(f"{gittrix_model.url}/v1/chat/completions", body) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == "from the tape"


@pytest.mark.gittrix(workspace="lazy")
def test_workspace_by_its_kind(gittrix_session: UserSession) -> None:
    assert gittrix_session.info().workspace_kind == "lazy"
    assert gittrix_session.workspace_path is None


@pytest.mark.gittrix(workspace=LocalEphemeral(history="full"), history=[{"a": "1"}, {"a": "2"}])
def test_workspace_in_full(gittrix_session: UserSession) -> None:
    shown = subprocess.run(
        ["git", "log", "--format=%s"], cwd=gittrix_session.workspace_path, check=True, timeout=60, capture_output=True, text=True
    )
    assert shown.stdout.split("\n") == ["Say who owns what", "Step 2", "Step 1", ""]


@pytest.mark.gittrix(eviction=EvictionPolicy(ttl_idle="30m"))
def test_eviction(gittrix: GitTrix, gittrix_session: UserSession, gittrix_clock: FrozenClock) -> None:
    assert gittrix_session.info().deadline == gittrix_clock.now() + timedelta(minutes=30)


@pytest.mark.gittrix(clock_start=datetime(2040, 5, 6, tzinfo=UTC))
def test_clock_start(gittrix_clock: FrozenClock) -> None:
    assert gittrix_clock.now() == datetime(2040, 5, 6, tzinfo=UTC)


@pytest.mark.gittrix(clock_start="2040-05-06T07:00:00+07:00")
def test_clock_start_as_text(gittrix_clock: FrozenClock) -> None:
    assert gittrix_clock.now() == datetime(2040, 5, 6, tzinfo=UTC)


@pytest.mark.gittrix(freeze="all")
def test_freeze(gittrix_clock: FrozenClock) -> None:
    before = time.monotonic()
    gittrix_clock.advance(hours=1)
    assert time.monotonic() - before == pytest.approx(3600)


@pytest.mark.gittrix(autojump=True)
def test_autojump(gittrix_session: UserSession) -> None:
    before = datetime.now(UTC)
    time.sleep(3600)
    assert datetime.now(UTC) - before == timedelta(hours=1)


@pytest.mark.gittrix(freeze="none")
def test_freeze_not(gittrix_clock: FrozenClock) -> None:
    assert datetime.now(UTC) != gittrix_clock.now()


@pytest.mark.gittrix(task="Fix the bug!")
def test_task(gittrix_session: UserSession) -> None:
    gittrix_session.write("fix.py", "\n")
    assert gittrix_session.info().task == "Fix the bug!"
    assert gittrix_session.promote(strategy="branch").branch == "gittrix/fix-the-bug"


@pytest.mark.gittrix(max_seconds=600, max_files=1, max_tokens=1_000_000)
def test_budgets(gittrix_session: UserSession) -> None:
    gittrix_session.write("fix.py", "\n")
    assert gittrix_session.touched_files() == ["fix.py"]
