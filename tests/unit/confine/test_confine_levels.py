"""Which level there is, what is said where there is none, and sessions whose programs are confined."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
from support.confined import LONG, available
from support.engine import Site, open_site

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.levels import confinement, missing, strongest
from pytest_gittrix.engine.agents.launch import AgentSettings
from pytest_gittrix.errors import CapabilityMissing, ConfinementMissing, InvalidInput, SessionExpired
from pytest_gittrix.os_level.command import LEVELS, Level

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")

ROOT = Path(__file__).resolve().parents[3]
# What a machine without namespaces or Landlock answers, by the kernel's own filter; and there is no bubblewrap on the search path.
PROGRAM = """
import errno, json, os, sys
from pathlib import Path
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.os_level.linux import gain_nothing_by_exec
from pytest_gittrix.os_level.seccomp import failing, install
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.levels import confinement, strongest
from pytest_gittrix.confine.runner import run

os.environ["PATH"] = sys.argv[2]
gain_nothing_by_exec()
install(failing({name: errno.EPERM if name == "unshare" else errno.ENOSYS for name in sys.argv[3:]}))
answers = {}
for level in ("auto", "off", "guard", "jail"):
    try:
        found = confinement(level)
        answers[level] = [found.level, found.by, found.why]
    except GittrixError as problem:
        answers[level] = [problem.code, str(problem)]
answers["strongest"] = [strongest().level, strongest().by, strongest().why]
for level, by in (("guard", "landlock"), ("jail", "namespaces")):
    try:
        ended = run(["touch", by], Place(Path(sys.argv[1])), Confinement(level, by), environment={"PATH": os.defpath})
        answers[by] = [ended.code]
    except GittrixError as problem:
        answers[by] = [problem.code, str(problem)]
print(json.dumps(answers))
"""


def answers_without(directory: Path, *calls: str) -> dict[str, list[Any]]:
    """What a process says whose kernel refuses some calls, and that finds no bubblewrap."""
    nothing, work = directory / "nothing", directory / "work"
    nothing.mkdir()
    work.mkdir()
    argv = [sys.executable, "-c", PROGRAM, str(work), str(nothing), *calls]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answers: dict[str, list[Any]] = json.loads(done.stdout)
    return answers


def test_auto_takes_the_strongest_there_is_and_says_why_it_is_not_stronger() -> None:
    found = strongest()

    means = [by for by in ("bwrap", "namespaces", "landlock") if not missing(by)]  # type: ignore[arg-type]
    assert found.by == (means[0] if means else "none")
    assert found.level == {"bwrap": "jail", "namespaces": "jail", "landlock": "guard", "none": "off"}[found.by]
    assert bool(found.why) == (found.level != "jail")
    if means:
        assert confinement() == confinement("auto") == found


def test_off_is_there_in_any_case_and_says_that_it_was_asked_for() -> None:
    assert confinement("off") == Confinement("off", "none", "off was asked for")
    assert [str(confinement("off")), str(Confinement("jail", "bwrap"))] == ["off", "jail(bwrap)"]


def test_a_variable_names_the_level_that_auto_stands_for_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITTRIX_CONFINE", "off")
    assert confinement() == confinement("auto") == Confinement("off", "none", "off was asked for")
    if strongest().level == "jail":
        assert confinement("jail").level == "jail"
    monkeypatch.setenv("GITTRIX_CONFINE", "jail")
    monkeypatch.setattr("pytest_gittrix.confine.levels.missing", lambda means: "" if means == "landlock" else "no namespaces")
    assert confinement("guard").level == "guard"
    with pytest.raises(ConfinementMissing, match="'jail' is not available"):
        confinement()
    monkeypatch.undo()
    monkeypatch.setenv("GITTRIX_CONFINE", "auto")
    assert strongest().level in ("off", strongest().level)
    monkeypatch.setenv("GITTRIX_CONFINE", "none")
    with pytest.raises(InvalidInput, match="GITTRIX_CONFINE='none' is no level"):
        confinement()


@pytest.mark.parametrize("level", ["", "JAIL", "bwrap", "none", True, 1])
def test_what_is_no_level_is_refused_with_those_there_are(level: Any) -> None:
    with pytest.raises(InvalidInput, match="auto, off, guard, jail"):
        confinement(level)
    with pytest.raises(InvalidInput, match="auto, off, guard, jail"):
        LocalEphemeral(confine=level)
    with pytest.raises(InvalidInput, match="auto, off, guard, jail"):
        AgentSettings(confine=level)


def test_the_levels_are_those_of_the_contract() -> None:
    assert get_args(Level) == LEVELS == ("auto", "off", "guard", "jail")
    assert [LocalEphemeral(confine=level).confine for level in LEVELS] == [*LEVELS]


def test_without_namespaces_auto_is_weaker_and_says_why_and_a_jail_is_an_error(tmp_path: Path) -> None:
    available("guard by landlock")
    answers = answers_without(tmp_path, "unshare")

    assert answers["auto"][:2] == ["guard", "landlock"]
    assert "no jail by bubblewrap: it is not installed; none by namespaces: unshare: Operation not permitted" in answers["auto"][2]
    code, message = answers["jail"]
    assert code == "CAPABILITY_MISSING"
    assert "Operation not permitted" in message
    assert "confine='auto'" in message
    assert answers["guard"][:2] == ["guard", "landlock"]
    assert answers["off"][:2] == ["off", "none"]


def test_what_cannot_be_confined_is_an_error_and_is_not_run(tmp_path: Path) -> None:
    answers = answers_without(tmp_path, "unshare", "landlock_create_ruleset")

    assert [answers["landlock"][0], answers["namespaces"][0]] == ["ADAPTER_UNAVAILABLE", "ADAPTER_UNAVAILABLE"]
    assert "could not be confined: landlock_create_ruleset: Function not implemented" in answers["landlock"][1]
    assert [path.name for path in (tmp_path / "work").iterdir()] == []


def test_without_anything_every_level_is_an_error_that_says_why_but_for_off(tmp_path: Path) -> None:
    answers = answers_without(tmp_path, "unshare", "landlock_create_ruleset")

    assert [answers[level][0] for level in ("auto", "guard", "jail")] == ["CAPABILITY_MISSING"] * 3
    fact, why, cure, opt_out = answers["auto"][1].splitlines()
    assert "no jail by bubblewrap" in fact
    assert "no guard by Landlock: this kernel has no Landlock, or refuses it: " in fact
    assert "read secrets" in why
    assert "Landlock" in cure
    assert "confine='off'" in opt_out
    assert "GITTRIX_CONFINE=off" in opt_out
    assert answers["off"] == ["off", "none", "off was asked for"]
    assert answers["strongest"][:2] == ["off", "none"]
    assert answers["strongest"][2] in fact


# Sessions ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["off", "guard by landlock", "jail by namespaces"])
@pytest.mark.parametrize("kind", ["clone", "copy"])
def test_an_agent_runs_programs_in_its_workspace(site: Site, name: str, kind: str) -> None:
    level = available(name).level
    agent = site.start(workspace=kind).for_agent()

    ended = agent.run(["sh", "-c", "cat app.py; cat > made; exit 3"], confine=level, timeout=LONG, stdin=b"by a program\n")

    assert (ended.code, ended.stdout, ended.stderr) == (3, b"print('v1')\n", b"")
    assert agent.touched_files() == ["made"]
    assert agent.read("made") == b"by a program\n"


@pytest.mark.parametrize("level", ["off", "auto"])
def test_a_program_has_git_s_hermetic_environment_and_the_engine_s_time(site: Site, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of this process")
    agent = site.start().for_agent()
    script = "echo new > new; git add new; git commit -qm said; git log -1 --format='%an %ad' --date=iso; env"

    shown = agent.run(["sh", "-c", script], confine=level, environment={"GIVEN": "yes"}, timeout=LONG).stdout.decode()

    assert shown.startswith("agent 2030-01-01 00:00:00 +0000\n"), shown
    lines = shown.splitlines()
    assert {"GIVEN=yes", f"GITTRIX_SESSION_ID={agent.id}", "GIT_CONFIG_NOSYSTEM=1", "TZ=UTC"} <= {*lines}
    assert "A_SECRET" not in shown
    home = next(line.partition("=")[2] for line in lines if line.startswith("HOME="))
    assert home != os.environ.get("HOME")
    assert not Path(home, ".gitconfig").exists()


def test_programs_are_confined_as_the_engine_s_workspaces_are(tmp_path: Path) -> None:
    available("guard by landlock")
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    with open_site(tmp_path, ephemeral=LocalEphemeral(confine="guard")) as site:
        session = site.start()
        again = site.another().get_session(session.id)
        for one in (session, session.for_agent(), again):
            assert one.run(["cat", str(secret)], timeout=LONG).stdout == b""
        assert session.run(["cat", str(secret)], confine="off", timeout=LONG).stdout == b"secret\n"


def test_a_program_has_the_limits_that_are_named(site: Site) -> None:
    available("guard by landlock")
    agent = site.start().for_agent()
    too_many = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 60 & done; wait"]

    assert agent.run(too_many, confine="auto", limits={"processes": 4}, timeout=LONG).limit == "processes"
    with pytest.raises(CapabilityMissing, match="level off"):
        agent.run(["true"], confine="off", limits={"processes": 4})


def test_a_program_sees_the_clock_file_of_a_test(site: Site, tmp_path: Path) -> None:
    file = site.clock.attach_file(tmp_path / "clock")
    agent = site.start().for_agent()

    shown = agent.run(["sh", "-c", "cat $PYTEST_GITTRIX_CLOCK"], confine="auto", timeout=LONG)

    assert shown.stdout.decode() == file.read_text() != ""


def test_a_program_is_confined_unless_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    read = ["cat", str(tmp_path / "secret")]
    with open_site(tmp_path / "site") as site, open_site(tmp_path / "free", ephemeral=LocalEphemeral(confine="off")) as free:
        agent = site.start().for_agent()

        if strongest().level == "off":
            with pytest.raises(ConfinementMissing):
                agent.run(read, timeout=LONG)
        else:
            assert agent.run(read, timeout=LONG).stdout == b""
        assert agent.run(read, confine="off", timeout=LONG).stdout == b"secret\n"
        assert free.start().for_agent().run(read, timeout=LONG).stdout == b"secret\n"


def test_where_there_are_no_files_no_program_runs(site: Site) -> None:
    agent = site.start(workspace="lazy").for_agent()

    with pytest.raises(CapabilityMissing, match="lazy"):
        agent.run(["true"])


def test_what_is_no_level_or_no_command_is_refused(site: Site) -> None:
    agent = site.start().for_agent()

    with pytest.raises(InvalidInput, match="auto, off, guard, jail"):
        agent.run(["true"], confine="vm")
    with pytest.raises(InvalidInput):
        agent.run([])
    assert agent.run(["no-such-program"]).code == 127


def test_no_program_runs_in_a_session_that_has_ended(site: Site) -> None:
    session = site.start()
    agent = session.for_agent()
    session.discard()

    with pytest.raises(SessionExpired):
        agent.run(["true"])


def test_a_program_slides_the_session_s_deadline(site: Site) -> None:
    agent = site.start().for_agent()
    site.clock.advance(minutes=5)

    agent.run(["true"])

    assert site.state(agent.id).last_access_ns == site.clock.now_ns()


def test_a_program_keeps_nobody_from_the_session(site: Site) -> None:
    session = site.start()
    workspace = Path(str(session.workspace_path))
    os.mkfifo(workspace / ".git/asked")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.for_agent().run, ["sh", "-c", "cat .git/asked; cat said"], timeout=LONG)
        asked = None
        while asked is None and not running.done():
            with suppress(OSError):  # until the program reads
                asked = os.open(workspace / ".git/asked", os.O_WRONLY | os.O_NONBLOCK)
        session.write("said", "while it ran\n")
        if asked is not None:
            os.close(asked)

    assert running.result().stdout == b"while it ran\n"
