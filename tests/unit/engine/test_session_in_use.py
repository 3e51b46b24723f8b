"""No workspace is removed under a running program: sweeps leave it, a promotion leaves it for later, an end by hand wants to be forced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.at_work import LONG, at_work, stranger
from support.daemon import DaemonProcess, wait_until
from support.engine import Site, open_site

from pytest_gittrix import EvictionPolicy, points
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.engine.operations import in_use
from pytest_gittrix.engine.operations.in_use import ProgramLock, runs_program
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import CapabilityMissing, SessionExpired, SessionInUse
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.os_level.proc import program_of

ABSOLUTE = EvictionPolicy(ttl_idle=None, ttl_absolute="4h")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, sweep_interval=timedelta(minutes=5)) as site:
        site.clock.attach_file(tmp_path / "clock")
        site.engine.init()
        yield site


def workspace(session: UserSession) -> Path:
    assert session.workspace_path is not None
    return session.workspace_path


def archived(site: Site, session: UserSession) -> str:
    return (site.directory(session) / "archive.patch").read_text()


def environment(site: Site) -> Mapping[str, str]:
    """What another process on the site's store needs: its clock, and a home of its own."""
    return {**hermetic_env(site.root / "nobody"), **site.clock.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}


def command(site: Site, *words: str, cwd: Path | None = None) -> dict[str, Any]:
    """What ``gittrix`` says in a process of its own."""
    argv = [sys.executable, "-m", "pytest_gittrix.cli", *words, "--json", "--store", str(site.store)]
    done = subprocess.run(argv, cwd=cwd or site.root, env=environment(site), capture_output=True, timeout=LONG, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def in_use_now(site: Site) -> dict[str, str]:
    return {one.id: str(one.users) for one in site.engine.in_use()}


# Sweeps ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "guard", "jail"])
def test_the_timer_leaves_a_session_in_which_a_program_runs_and_idle_time_counts_from_its_end(site: Site, level: str) -> None:
    try:
        confinement(level)
    except CapabilityMissing as problem:
        pytest.skip(problem.fact)
    session = site.start()
    with at_work(session, confine=level) as work:
        site.clock.advance(hours=10)

        assert site.engine.swept() == []
        assert [*in_use_now(site)] == [session.id]
        done = work.finish()
    assert (done.code, done.stderr, done.ended, done.timed_out) == (0, b"", None, False)
    site.clock.advance(hours=4)
    assert site.engine.info(session.id).state == "active"
    assert in_use_now(site) == {}

    site.clock.advance(minutes=6)

    assert site.engine.swept() == [session.id]
    assert "+ok" in archived(site, session)
    assert not {".use", ".lock", "workspace"} & {*os.listdir(site.directory(session))}


def test_a_sweep_of_another_process_leaves_it_and_says_who_works_there(site: Site) -> None:
    session = site.start()
    with at_work(session) as work:
        site.clock.advance(hours=5)

        data = command(site, "sweep")["data"]

        assert (data["evicted"], data["postponed"]) == ([], [])
        (one,) = data["inUse"]
        assert one["id"] == session.id
        assert "sh" in {process["program"] for process in one["processes"]}
        assert work.finish().code == 0
    site.clock.advance(hours=5)
    assert session.id in site.engine.swept()


def test_a_daemon_leaves_it(site: Site, tmp_path: Path) -> None:
    session = site.start()
    home = site.store.parent
    with at_work(session) as work, DaemonProcess(home, environment=environment(site)) as daemon:
        site.clock.advance(hours=5)

        data = daemon.command("sweep", cwd=tmp_path).json["answer"]["data"]

        assert (data["evicted"], [one["id"] for one in data["inUse"]]) == ([], [session.id])
        assert work.finish().code == 0
    assert site.engine.info(session.id).state == "active"


def by_its_directory(place: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return stranger(cwd=place / "src")


@contextmanager
def by_an_open_file(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(place / "src" / "log.txt", "ab") as log, stranger(cwd="/", stdout=log) as process:
        yield process


def by_its_program(place: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    (place / "src" / "tool").write_bytes(Path("/bin/sleep").resolve().read_bytes())
    (place / "src" / "tool").chmod(0o755)
    return stranger(str(place / "src" / "tool"), "600", cwd="/")


@pytest.mark.parametrize("where", [by_its_directory, by_an_open_file, by_its_program])
def test_a_sweep_leaves_a_session_in_whose_workspace_a_stranger_works_until_it_has_gone(
    site: Site, where: Callable[[Path], AbstractContextManager[subprocess.Popen[bytes]]]
) -> None:
    session, other = site.start(), site.start()
    with where(workspace(session)) as process:
        site.clock.advance(hours=5)

        assert site.engine.swept() == [other.id]
        assert in_use_now(site) == {session.id: f"{program_of(process.pid)} ({process.pid})"}
    site.clock.advance(minutes=5)

    assert site.engine.swept() == [other.id, session.id]


def test_a_directory_that_a_process_only_has_open_is_no_work_in_it(site: Site) -> None:
    session = site.start()
    descriptor = os.open(workspace(session), os.O_RDONLY | os.O_DIRECTORY)
    with stranger(cwd="/", stdin=descriptor):
        os.close(descriptor)
        site.clock.advance(hours=5)

        assert site.engine.swept() == [session.id]


def test_a_sweep_that_a_shell_in_the_workspace_starts_leaves_that_session(site: Site) -> None:
    session = site.start()
    script = f"cd '{workspace(session)}' && '{sys.executable}' -m pytest_gittrix.cli sweep --json --store '{site.store}'; exit $?"
    site.engine.close()  # its timer would sweep first
    site.clock.advance(hours=5)

    done = subprocess.run(["sh", "-c", script], env=environment(site), capture_output=True, timeout=LONG, check=True)

    assert [one["id"] for one in json.loads(done.stdout)["data"]["inUse"]] == [session.id]


def test_a_program_goes_on_whose_attendant_was_killed_and_it_is_still_seen(site: Site) -> None:
    session = site.start()
    os.mkfifo(workspace(session) / "up")
    script = f"""
from pytest_gittrix import GitTrix
GitTrix(None, store={str(site.store)!r}).get_session({session.id!r}).run(["sh", "-c", "echo $$ > up; exec sleep 600"], confine="off")
"""
    with stranger(sys.executable, "-c", script, cwd="/", env=environment(site)) as attendant:
        pid = int((workspace(session) / "up").read_text())
        assert runs_program(site.directory(session))
        attendant.kill()
        attendant.wait()
        try:
            assert not runs_program(site.directory(session))
            site.clock.advance(hours=5)
            assert in_use_now(site) == {session.id: f"sleep ({pid})"}
        finally:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not in_use_now(site))
    site.clock.advance(minutes=5)

    assert site.engine.swept() == [session.id]


def test_a_turn_that_runs_is_use(site: Site) -> None:
    session = site.start()
    with session.turn():
        site.clock.advance(hours=5)
        assert site.engine.swept() == []
        assert in_use_now(site) == {session.id: "a program or a turn that the engine runs"}
    site.clock.advance(hours=4, minutes=6)

    assert site.engine.swept() == [session.id]


def test_a_look_at_the_lock_keeps_no_program_from_starting(site: Site) -> None:
    session = site.start()
    with ProgramLock(site.directory(session)), ProgramLock(site.directory(session)) as second:
        assert runs_program(site.directory(session))
    second.close()

    assert not runs_program(site.directory(session))


# Past the idle time ------------------------------------------------------------------------------------------------------------


def test_a_session_that_outlasts_its_idle_time_can_be_worked_in_and_promoted(site: Site) -> None:
    session = site.start()
    with stranger(cwd=workspace(session)):
        site.clock.advance(hours=5)
        session.write("app.py", "v2\n")
        site.clock.advance(hours=5)

        assert session.promote().sha


def test_a_program_is_no_reason_by_itself_to_start_in_a_session_whose_time_has_passed(site: Site) -> None:
    session = site.start()
    site.engine.close()
    site.clock.advance(hours=5)

    with pytest.raises(SessionExpired, match="TTL"):
        session.run(["true"], confine="off")
    assert not runs_program(site.directory(session))


# The absolute time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "auto"])
def test_past_its_absolute_time_a_program_is_told_and_its_last_work_is_archived(site: Site, level: str) -> None:
    session = site.start(eviction=ABSOLUTE)
    with at_work(session, first="trap 'echo told > told.txt; exit 3' TERM", confine=level) as work:
        site.clock.advance(hours=4)
        assert site.engine.info(session.id).state == "active"
        site.clock.advance(minutes=5)

        assert site.engine.swept() == [session.id]
        done = work.result.result(LONG)
    assert (done.code, done.ended, done.timed_out) == (3, "expired", False)
    assert "+told" in archived(site, session)


def test_a_program_that_is_deaf_is_killed_with_everything_it_started(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "GRACE", 0.1)
    session = site.start(eviction=ABSOLUTE)
    with at_work(session, first="trap '' TERM; sleep 600 & echo late > late.txt") as work:
        site.clock.advance(hours=5)
        done = work.result.result(LONG)

    assert (done.signal, done.ended, done.timed_out) == (signal.SIGKILL, "expired", False)
    assert site.engine.swept() == [session.id]
    assert "+late" in archived(site, session)


def test_the_programs_of_another_process_hear_of_the_end_by_themselves(site: Site) -> None:
    session = site.start(eviction=ABSOLUTE)
    with at_work(session, first="trap 'echo told > told.txt; exit 3' TERM") as work:
        site.engine.close()
        site.clock.advance(hours=5)

        assert command(site, "sweep")["data"]["evicted"] == [session.id]

        done = work.result.result(LONG)
    assert (done.code, done.ended) == (3, "expired")
    assert "+told" in archived(site, session)


def test_past_the_absolute_time_the_workspace_stays_as_long_as_a_stranger_is_there(site: Site) -> None:
    session = site.start(eviction=ABSOLUTE)
    with stranger(cwd=workspace(session)) as process:
        site.clock.advance(hours=5)

        assert site.engine.info(session.id).state == "expired"
        assert site.engine.swept() == []
        assert in_use_now(site) == {session.id: f"sleep ({process.pid})"}
        (workspace(session) / "late.txt").write_text("late\n")
        assert [event.data for event in site.events(session.id) if event.type == "eviction.postponed"] == [
            {"budget_ns": None, "in_use": [f"sleep ({process.pid})"]}
        ]
    site.clock.advance(minutes=5)

    assert site.engine.swept() == [session.id]
    assert "+late" in archived(site, session)


# A promotion -------------------------------------------------------------------------------------------------------------------


def test_a_promotion_lands_and_what_is_written_after_it_is_archived(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    with at_work(session, "echo late > late.txt") as work:
        result = session.promote()

        (warning,) = result.warnings
        assert warning.startswith("the workspace stays until those who work in it have ended: sh (")
        assert site.durable.read("app.py") == b"v2\n"
        assert site.engine.recover().in_use == [session.id]
        assert command(site, "recover")["data"]["inUse"] == [session.id]
        assert site.engine.sweep() == []
        done = work.finish()
    assert (done.code, done.ended) == (0, None)
    assert (workspace(session) / "late.txt").exists()

    assert site.engine.sweep() == [session.id]

    assert "+late" in archived(site, session)
    assert "v2" not in archived(site, session)
    assert (site.engine.recover().in_use, site.engine.postponed(), in_use_now(site)) == ([], [], {})
    assert site.state(session.id).state == "promoted"


@pytest.mark.parametrize("files", [None, ["app.py"]])
def test_what_a_program_wrote_and_left_while_the_promotion_ran_is_archived_and_named(site: Site, files: list[str] | None) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    session.write("other.py", "o\n")

    def write(step: str) -> None:
        if step == "promote:selected":
            (workspace(session) / "late.txt").write_text("late\n")
            (workspace(session) / "app.py").write_text("v3\n")

    with points.listening(write):
        result = session.promote(files)

    assert result.warnings == tuple(
        f"not promoted, but archived: {path}, which was written after the workspace had been read" for path in ("app.py", "late.txt")
    )
    assert site.durable.read("app.py") == b"v2\n"
    assert {"+late", "+v3"} <= {*archived(site, session).splitlines()}


def test_work_beside_the_files_is_named_too_if_the_workspace_stays(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    run_git(["stash"], cwd=workspace(session), env=environment(site))
    session.write("app.py", "v3\n")
    with stranger(cwd=workspace(session)):
        stays, stash = session.promote().warnings

    assert stays.startswith("the workspace stays")
    assert stash.startswith("not promoted, and still in the workspace: ")


def test_a_recovery_removes_the_workspace_of_a_promotion_once_nobody_works_there(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    with at_work(session):
        session.promote()

    assert site.engine.recover().removed == [session.id]
    assert "+ok" in archived(site, session)


# Ends by hand ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["discard", "evict"])
def test_an_end_by_hand_is_refused_with_the_processes_and_changes_nothing(site: Site, verb: str) -> None:
    session = site.start()
    end = session.discard if verb == "discard" else lambda: site.engine.evict(session.id)
    with stranger(cwd=workspace(session)) as process, at_work(session) as work:
        before = site.types(session.id)

        with pytest.raises(SessionInUse, match=rf"in use: .*sleep \({process.pid}\)") as refused:
            end()

        assert (process.pid, "sleep") in refused.value.processes
        assert refused.value.code == "SESSION_IN_USE"
        assert f"To {verb} it" in str(refused.value)
        assert (site.types(session.id), work.result.done()) == (before, False)
        work.finish()
    end()
    assert "+ok" in archived(site, session)


@pytest.mark.parametrize("verb", ["discard", "evict"])
def test_an_end_that_is_forced_tells_the_engines_programs_and_leaves_no_workspace(site: Site, verb: str) -> None:
    session = site.start()
    with stranger(cwd=workspace(session)) as process, at_work(session, first="trap 'echo told > told.txt; exit 3' TERM") as work:
        if verb == "discard":
            session.discard(force=True)
        else:
            site.engine.evict(session.id, "discarded", force=True)

        done = work.result.result(LONG)
        assert process.poll() is None
    assert (done.code, done.signal, done.ended, done.timed_out) == (3, None, "discarded", False)
    assert "+told" in archived(site, session)
    assert not workspace(session).exists()


def test_the_command_line_asks_for_force(site: Site) -> None:
    session = site.start()
    with at_work(session) as work:
        refused = command(site, "session", "discard", session.id)["error"]
        assert refused["code"] == "SESSION_IN_USE"
        assert "--force" in refused["message"]

        assert command(site, "session", "discard", session.id, "--force")["ok"]

        assert work.result.result(LONG).ended == "discarded"


def test_a_person_may_discard_a_session_from_a_shell_in_its_workspace(site: Site) -> None:
    session = site.start()
    words = f"-m pytest_gittrix.cli session discard {session.id} --store '{site.store}'"
    script = f"cd '{workspace(session)}' && '{sys.executable}' {words}; exit $?"

    subprocess.run(["sh", "-c", script], env=environment(site), capture_output=True, timeout=LONG, check=True)

    assert site.state(session.id).state == "discarded"


def test_a_promoted_session_that_waits_can_be_evicted_by_force(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    with at_work(session) as work:
        session.promote()
        with pytest.raises(SessionInUse):
            site.engine.evict(session.id)

        site.engine.evict(session.id, force=True)

        assert work.result.result(LONG).ended == "promoted"
    assert site.state(session.id).state == "promoted"
    assert not workspace(session).exists()


# Handoff -----------------------------------------------------------------------------------------------------------------------


def test_a_program_goes_on_in_the_session_that_the_workspace_was_handed_to(site: Site) -> None:
    session = site.start()
    with at_work(session) as work:
        child = session.handoff()
        site.clock.advance(hours=5)

        assert site.engine.swept() == []
        assert [*in_use_now(site)] == [child.id]
        (workspace(child) / "go").touch()
        assert work.finish().ended is None
    assert ".use" not in os.listdir(site.directory(session))
    assert child.read("result.txt") == b"ok\n"
    site.clock.advance(hours=4)
    assert site.engine.info(child.id).state == "active"


def test_a_program_that_was_handed_on_ends_with_the_session_that_has_it(site: Site) -> None:
    session = site.start()
    with at_work(session) as work:
        child = session.handoff()
        child.discard(force=True)

        assert work.result.result(LONG).ended == "discarded"
    assert not workspace(child).exists()
