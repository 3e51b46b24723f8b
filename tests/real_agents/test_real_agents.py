"""Published coding agents, unchanged, do one script alike: in a jail, offline, again, and from tapes elsewhere and by somebody else."""

from __future__ import annotations

import os
import pwd
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import available

from pytest_gittrix import UserSession
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.model import call_any, stop
from pytest_gittrix.model.tapes.matching import first_difference
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.testing.world import World
from tests.real_agents.table import AGENTS, FILES, RESULT, ROOT, SCRIPT, TASK, Agent


@dataclass(frozen=True)
class Run:
    """What an agent did: how it ended, the tape of it, its exchanges and those in the log, and its work as promoted."""

    ended: Finished
    tape: Path
    exchanges: list[tuple[int, str]]
    logged: list[tuple[int, str]]
    promoted: tuple[Mapping[str, str], str]


def promoted(session: UserSession, world: World) -> tuple[Mapping[str, str], str]:
    """The files of durable and its commit, after all of a session's work is promoted."""
    commit = session.promote().sha
    return {path: (world.durable.path / path).read_text() for path in RESULT}, commit


@cache
def run(agent: Agent, tape: Path) -> Run:
    """One run, in a world of its own, which records a tape; the same tape is the same run."""
    with World.open(files=FILES) as world:
        session = world.start(TASK)
        world.model.script(*SCRIPT)
        world.model.tape(tape, "rewrite")
        ended = agent.run(session.for_agent(), world.model)
        world.model.check()
        return Run(
            ended,
            tape,
            [(one.number, one.request.protocol) for one in world.model.exchanges],
            [(one.data["number"], one.data["protocol"]) for one in session.history(["model.exchange"])],
            promoted(session, world),
        )


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.program)
def agent(request: pytest.FixtureRequest) -> Agent:
    """Each agent of the table, where it is installed and can be jailed."""
    found: Agent = request.param
    if found.missing is not None:
        pytest.skip(found.missing)
    available("jail")
    return found


@pytest.fixture
def first(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the agent, which the tests of a process share."""
    return run(agent, tmp_path_factory.getbasetemp() / f"{agent.program}.jsonl")


def test_its_work_is_that_of_a_hand(first: Run) -> None:
    with World.open(files=FILES) as world:
        session = world.start(TASK)
        for path, text in RESULT.items():
            session.for_agent().write(path, text)
        by_hand = promoted(session, world)

    assert (first.ended.code, first.promoted) == (0, by_hand), first.ended.stderr


def test_it_asks_the_same_again(agent: Agent, first: Run, tmp_path: Path) -> None:
    again = run(agent, tmp_path / "again.jsonl")

    one, other = ([exchange.form for exchange in Tape.read(each.tape).exchanges] for each in (first, again))
    assert len(one) >= 3
    assert first_difference(one, other) is None


def test_what_it_asks_is_in_the_log_of_its_session(first: Run) -> None:
    assert len(first.logged) >= 3
    assert first.logged == first.exchanges


def test_its_run_goes_another_way_from_an_exchange(agent: Agent) -> None:
    with World.open(files=FILES) as world:
        world.model.keep_content = True
        world.model.script(*SCRIPT)
        first = world.start(TASK)
        agent.run(first.for_agent(), world.model)
        world.model.check()
        second_exchange = [event.seq for event in first.history(["model.exchange"]) if "side" not in event.data][1]
        world.model.script(call_any(shell="cat new.py > seen"), stop("Another way."))
        other = world.model.fork(first, second_exchange)

        ended = agent.run(other.for_agent(), world.model)
        world.model.check()

        assert ended.code == 0, ended.stderr
        assert {path: other.read(path) for path in other.touched_files()} == {"new.py": b"x = 1\n", "seen": b"x = 1\n"}
        origins = [event.data.get("origin") for event in other.history(["model.exchange"]) if "side" not in event.data]
        assert origins == ["tape", None, None]


def suite_of(tape: Path, directory: Path) -> Path:
    """A directory with the suite and a tape."""
    directory.mkdir()
    shutil.copyfile(Path(__file__).with_name("taped.py"), directory / "test_taped.py")
    shutil.copyfile(tape, directory / "tape.jsonl")
    return directory


def replayed(directory: Path, agent: Agent, python: str = sys.executable, user: str | None = None) -> tuple[int, str]:
    """Run the suite in a directory from its tape; gives pytest's exit status and what it printed."""
    options = ["-q", "-p", "pytest_gittrix.plugin", "-p", "no:cacheprovider", f"--rootdir={directory}", "--gittrix-model=replay"]
    return ended([python, "-m", "pytest", *options, str(directory)], directory, agent, user)


def ended(command: Sequence[str], directory: Path, agent: Agent, user: str | None) -> tuple[int, str]:
    """Run a command in a directory, as another user if one is given; gives its exit status and what it printed."""
    whose: dict[str, Any] = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    variables = environment(directory, agent)
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=540, check=False, **whose)
    return done.returncode, done.stdout + done.stderr


def environment(directory: Path, agent: Agent) -> dict[str, str]:
    """The variables of a run of the suite, by any user and any Python that loads what this one does."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *site.getsitepackages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "AGENT": agent.program,
    }


def test_its_tape_is_replayed_in_another_directory(agent: Agent, first: Run, tmp_path: Path) -> None:
    status, said = replayed(suite_of(first.tape, tmp_path / "a directory elsewhere"), agent)

    assert status == 0, said


def test_another_question_is_not_answered_from_its_tape(agent: Agent, first: Run, tmp_path: Path) -> None:
    suite = suite_of(first.tape, tmp_path / "suite")
    (suite / "tape.jsonl").write_text(first.tape.read_text().replace(TASK, "Make nothing"))

    status, said = replayed(suite, agent)

    assert status == 1
    assert "The agent asks what the tape tape.jsonl does not have" in said


@pytest.mark.needs_root
def test_its_tape_is_replayed_by_another_user(agent: Agent, first: Run) -> None:
    with tempfile.TemporaryDirectory() as name:  # others may not enter what pytest makes for tests
        place = Path(name)
        place.chmod(0o755)
        suite = suite_of(first.tape, place / "suite")
        for path in (suite, *suite.iterdir()):
            shutil.chown(path, "nobody")

        status, said = replayed(suite, agent, python_of_nobody(suite, agent), "nobody")

    assert status == 0, said


def python_of_nobody(suite: Path, agent: Agent) -> str:
    """This Python, or the distribution's of the same version, if another user can run it and the agent; else the test is skipped."""
    look = f"import pytest, pygit2, sys; from tests.real_agents.table import named; sys.exit(named({agent.program!r}).missing)"
    found = "there is no such Python"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            status, found = ended([python, "-c", look], suite, agent, "nobody")
        except OSError as problem:
            found = str(problem)
        else:
            if status == 0:
                return python
    pytest.skip(f"another user cannot run Python and {agent.name} here: {found.strip().splitlines()[-1]}")
