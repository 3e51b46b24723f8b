"""Whose failure a sample is: a machine that fails counts for nothing, and an agent that harms its own sandbox has failed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.confined import LONG, available
from support.evals import SOLVES, agent_file, case, command_file, left_in, options, ran, suite

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.evals.failures import machine
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.runs.run import Summary, run_suite
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.proc import children
from pytest_gittrix.testing.faults.small_disks import run_on_small_disk, supported

STAYS = """
import os
goes_on = ": > up; sleep 600" if os.path.exists({file!r}) else "echo VERSION = 2 > app.py"
toolbox.run(["sh", "-c", goes_on])
"""
"""An agent whose program stays as long as there is a file when it begins."""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


def only(summary: Summary) -> Record:
    (record,) = summary.records
    return record


def struck(tmp_path: Path, whom: Callable[[int], int]) -> tuple[Summary, str]:
    """A run whose agent has begun when a process of its sandbox is killed by its number, which its attendant's leads to; and the agent."""
    found: list[Summary] = []
    (tmp_path / "stay").touch()
    agent = agent_file(tmp_path, STAYS.format(file=str(tmp_path / "stay")))
    wanted = options(tmp_path, agent, confine="jail", retries=0)
    before = _attendants()
    running = threading.Thread(target=lambda: found.append(run_suite(Suite.load(suite(tmp_path)), wanted)))
    running.start()
    deadline = real_seconds() + LONG
    while not [*(tmp_path / "scratch").glob("*/sample/world/**/up")]:
        assert real_seconds() < deadline, "the agent does not begin"
        pause(0.01)
    (attendant,) = _attendants() - before
    os.kill(whom(attendant), signal.SIGKILL)
    running.join(LONG)
    return found[0], agent


def _attendants() -> set[int]:
    found = set()
    for zygote in children(os.getpid()):
        with suppress(OSError):
            if b"confine.zygote" in Path(f"/proc/{zygote}/cmdline").read_bytes():
                found |= children(zygote)
    return found


@pytest.mark.parametrize(
    ("whom", "what"),
    [
        (lambda attendant: attendant, "the process that attends it was killed"),
        (lambda attendant: min(children(attendant)), "the first process of its jail was ended by signal 9"),
    ],
    ids=["attendant", "first process"],
)
def test_a_sandbox_that_is_killed_from_outside_is_an_infra_error_and_a_resumed_run_does_the_sample_again(
    tmp_path: Path, whom: Callable[[int], int], what: str
) -> None:
    available("jail by namespaces")

    summary, agent = struck(tmp_path, whom)

    assert (only(summary).outcome, only(summary).reason) == ("infra_error", f"The sandbox of a program died: {what}.")
    assert left_in(tmp_path / "scratch") == []
    (tmp_path / "stay").unlink()
    again = run_suite(Suite.load(tmp_path / "suite"), options(tmp_path, agent, confine="jail", retries=0, resume=True))
    assert (only(again).outcome, only(again).reason) == ("pass", "")


@pytest.mark.parametrize("script", ["kill -9 $$", "kill -9 1; kill -9 0", "sh -c 'kill -9 -1'; exit 0"])
def test_an_agent_that_kills_its_own_processes_has_failed(tmp_path: Path, script: str) -> None:
    available("jail by namespaces")

    record = only(ran(suite(tmp_path), tmp_path, f'sh -c "{script}"', confine="jail"))

    assert (record.outcome, record.reason) == ("agent_error", "the agent ended with signal 9")


def test_a_check_whose_program_is_not_on_this_machine_cannot_run(tmp_path: Path) -> None:
    missing = only(ran(suite(tmp_path, more='[check]\ncommand = ["no-such-tool-here"]\n'), tmp_path, SOLVES))
    own = only(ran(suite(tmp_path / "b", more='[check]\ncommand = ["sh", "-c", "exit 127"]\n'), tmp_path / "b", SOLVES))

    assert missing.outcome == "infra_error"
    assert missing.reason == "A check cannot run: there is no program 'no-such-tool-here' on its PATH."
    assert (own.outcome, own.reason) == ("fail", "command: status 127")


def test_a_program_that_the_kernel_killed_for_want_of_memory_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "oom_kills", lambda: 3)
    killed = Finished(None, signal.SIGKILL, b"", b"")

    machine.require_sandbox(killed, "jail", 3)
    machine.require_sandbox(Finished(1, None, b"", b""), "jail", 2)
    machine.require_sandbox(Finished(None, signal.SIGKILL, b"", b"", limit="memory"), "jail", 2)
    machine.require_sandbox(Finished(137, None, b"", b""), "jail", 3)
    for end in (killed, Finished(137, None, b"", b"")):
        with pytest.raises(AdapterUnavailable, match="ran out of memory"):
            machine.require_sandbox(end, "jail", 2)


FILLS = """
import os
try:
    with open("big", "wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
except OSError:
    pass
"""


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
@pytest.mark.parametrize("body", [FILLS, FILLS + "raise SystemExit(3)"], ids=["fills", "fills and fails"])
def test_an_agent_that_fills_its_disk_has_failed_and_its_record_is_written(tmp_path: Path, body: str) -> None:
    def use(disk: Path) -> tuple[str, str, list[str]]:
        agent = command_file(tmp_path, body)
        record = only(run_suite(Suite.load(suite(tmp_path)), options(disk, agent)))
        return record.outcome, record.reason, left_in(disk / "scratch")

    assert run_on_small_disk(use, "12m") == ("agent_error", "the agent filled the disk that it works on", [])


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_a_disk_that_something_else_filled_is_an_infra_error(tmp_path: Path) -> None:
    def use(disk: Path) -> tuple[str, str]:
        writes = "    while True:\n        file.write(bytes(4096))\n        file.flush()\n"
        body = f"with open({str(disk / 'other')!r}, 'wb') as file:\n{writes}"
        agent = command_file(tmp_path, body)
        record = only(run_suite(Suite.load(suite(tmp_path)), options(disk, agent, out=tmp_path / "run")))
        return record.outcome, record.reason.rpartition(": ")[2]

    assert run_on_small_disk(use, "12m") == ("infra_error", "No space left on device.")


def test_an_agent_that_removes_its_repository_has_failed(tmp_path: Path) -> None:
    record = only(ran(suite(tmp_path), tmp_path, agent_file(tmp_path, "import shutil; shutil.rmtree(toolbox.path / '.git')")))

    assert record.outcome in ("fail", "agent_error"), record.reason


def failing_machine(root: Path) -> Path:
    """A suite of two cases that are solved, of which the machine fails in the check of one."""
    place = suite(root, "fine")
    case(place, "lost", more='[check]\ncommand = ["no-such-tool-here"]\n')
    return place


def test_samples_that_could_not_be_run_count_if_the_run_says_so_and_every_account_says_which(tmp_path: Path, cli: Cli) -> None:
    place = failing_machine(tmp_path)

    def did(name: str, *more: str) -> dict[str, Any]:
        done = cli("eval", "run", str(place), "--agent", SOLVES, "--confine", "off", "--retries", "0", "--out", name, "--json", *more)
        assert done.status == 1
        rates: dict[str, Any] = done.envelope["data"]["rates"]
        return rates

    found = [did("a"), did("b", "--count-infra-errors"), cli.data("eval", "show", "b")["rates"], did("b", "--resume", "--trust-agent")]
    text = cli("eval", "run", str(place), "--agent", SOLVES, "--confine", "off", "--out", "c", "--count-infra-errors").text

    assert [(one["pass_rate"]["value"], one["samples"]) for one in found] == [(1.0, 1), (0.5, 2), (0.5, 2), (1.0, 1)]
    assert [one["counts_infra_errors"] for one in found] == [False, True, True, False]
    assert "1 in infra_error count as not passed" in text
    assert "1 that could not be run count as not passed" in (cli.project / "c" / "report.html").read_text()


@pytest.mark.parametrize("confine", ["off", "jail"])
def test_an_agent_that_locks_its_workspace_is_told_so_whoever_runs_it(tmp_path: Path, confine: str) -> None:
    if confine == "jail":
        available("jail by namespaces")

    record = only(ran(suite(tmp_path), tmp_path, "sh -c 'echo VERSION = 2 > app.py; chmod 000 .'", confine=confine))

    assert (record.outcome, record.reason) == ("agent_error", "the agent locked its workspace (chmod 000 .)")
    assert left_in(tmp_path / "scratch") == []
