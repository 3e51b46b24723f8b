"""What a daemon does by itself: agents that are gone are noticed whatever goes wrong, and its timers run on the engine's clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.daemon import Staff, wait_until

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.commands.managers import start_member
from pytest_gittrix.commands.team_file import read_team
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.orchestrator.config import SpawnConfig
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.server import state
from pytest_gittrix.server.state import Daemon

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        yield opened


def test_agents_are_noticed_after_the_store_could_not_be_read_though_nobody_hears_that(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "PATIENCE", 0.05)
    staff.hires(bob=staff.commits("b.txt").at("up"))
    complaints: list[str] = []

    def nobody_reads(line: str) -> None:
        complaints.append(line)
        raise BrokenPipeError

    store = staff.home / "sessions"
    with Daemon(read_team(staff.home), store=store, complain=nobody_reads) as daemon:
        life = start_member(daemon.members, daemon.team, "bob")
        staff.agents.wait_for("up")
        store.rename(staff.home / "away")
        store.write_text("no directory")
        wait_until(lambda: bool(complaints), "the complaint")
        store.unlink()
        (staff.home / "away").rename(store)
        staff.agents.go("up")
        wait_until(lambda: daemon.members.get(life.id).state == "retained", "the end")

    assert "b.txt" in staff.saved()


def test_retention_the_sweep_and_the_poll_go_by_the_engines_clock(staff: Staff) -> None:
    agents = '[projects.agents]\nstub = ["true"]\n'
    staff.hires(f'[[projects]]\nid = "parser"\ndurable = "{staff.app.path}"\n{agents}')
    clock = FrozenClock(NOON)
    store = staff.home / "sessions"
    with Daemon(read_team(staff.home), store=store, clock=clock) as daemon:
        chat = start_member(daemon.members, daemon.team, "eve", "interactive").id
        daemon.members.stop(chat)
        with GitTrix(str(staff.app.path), store=store, clock=clock, sweep_interval=None) as other:
            idle = other.start_session("lies idle", eviction=EvictionPolicy(ttl_idle=timedelta(minutes=1))).id
        spawned = daemon.orchestrator.spawn(SpawnConfig("parser"))
        assert daemon.members.get(chat).state == "retained"

        clock.advance(timedelta(minutes=10))

        assert daemon.members.get(chat).state == "removed"
        assert daemon.engine.info(idle).state == "expired"
        found = daemon.orchestrator.get(spawned.id)
        assert found is not None
        assert found.status != spawned.status


def test_what_goes_wrong_is_told_in_one_line_that_steers_no_terminal(staff: Staff, capfd: pytest.CaptureFixture[str]) -> None:
    with Daemon(read_team(staff.home), store=staff.home / "sessions") as daemon:
        daemon._complain("stop member \x1b[31mada\rx: no")

    assert capfd.readouterr().err == "gittrix: stop member \\x1b[31mada\n  x: no\n"
