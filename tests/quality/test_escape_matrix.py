"""What a program of an agent can reach at each level of confinement: tried, and compared with what is promised."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import escapes
from support.engine import open_site
from support.escapes import CONFINEMENTS, EXPECTED, LEVELS, Target, open_host

from pytest_gittrix.confine.command_line import Confinement, wrapped
from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.levels import lets_signals_out, missing
from pytest_gittrix.confine.runner import run
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.launch import AgentSettings
from pytest_gittrix.evals.runs.launch import ProgramLauncher

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/confinement.md"
NOBODY = 65534
OTHER_PYTHON = "/usr/bin/python3"


def expected(name: str, *, as_root: bool) -> dict[str, bool]:
    """What gets out at a level, as this kernel has it."""
    column = LEVELS.index(CONFINEMENTS[name].level)
    promised = {escape: row[column] for escape, row in EXPECTED.items()}
    if CONFINEMENTS[name].level == "guard" and lets_signals_out():
        # What Confinement.why says then.
        promised |= {"signal a host process": True}
    if CONFINEMENTS[name].level == "guard" and as_root:
        # Root's programs keep no capabilities there, and root's other processes have them all.
        promised |= {"choose the processors of a host process": False, "set the I/O priority of a host process": False}
    return promised


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("name", CONFINEMENTS)
def test_a_level_lets_out_what_is_promised_and_nothing_else(name: str, stays: bool, tmp_path: Path) -> None:
    confinement = CONFINEMENTS[name]
    if why := missing(confinement.by):
        pytest.skip(f"{name}: {why}")
    with open_site(tmp_path, {"app.py": "text of durable\n"}) as site:
        session, other = site.start(), site.start()
        other.write("app.py", "text of another session\n")
        store = site.directory(session) / "events.jsonl"
        target = Target(
            workspace=Path(str(session.workspace_path)),
            durable=site.durable.path,
            durable_text="text of durable",
            store=store,
            store_text="session.created",
            other=Path(str(other.workspace_path)) / "app.py",
            other_text="text of another session",
        )
        assert "session.created" in store.read_text()
        with open_host(tmp_path, target) as host:
            found = {escape: host.attempt(escape, confinement, stays=stays) for escape in EXPECTED}

    assert found == expected(name, as_root=os.geteuid() == 0)


PLANTED = """
cd; for name in .tmp .beside-0 ../agent.tmp ../agent.beside-0 "$TMPDIR" /beside
do [ "$name" = /tmp ] || mv "$name" moved; rmdir "$name"; ln -sn "$1" "$name"; done
echo kept > "$TMPDIR/kept"
"""
FOLLOWED = (
    """for directory in /tmp "$TMPDIR" /beside; do cat "$directory/secret"; echo out > "$directory/written"; done; cat "$TMPDIR/kept" """
)


def launchers(root: Path, session: AgentSession, confinement: Confinement) -> Iterator[tuple[str, Callable[[list[str]], bytes]]]:
    """All that run one program after another in a home that stays, and give what a program wrote."""
    workspace, path = session.workspace_path or root, {"PATH": os.environ["PATH"]}
    (root / "home").mkdir()
    place = Place(workspace, root / "home", toolchain())
    yield "run", lambda argv: run(argv, place, confinement, environment=path, timeout=60).stdout

    def wait(argv: list[str]) -> bytes:
        launch = wrapped(argv, place, confinement, environment=path)
        done = subprocess.run(launch.argv, cwd=launch.directory, env=launch.environment, capture_output=True, timeout=60, check=False)
        return done.stdout

    yield "wrapped", wait
    beside = ["/beside"] if confinement.level == "jail" else []
    with session.programs(confine=confinement.level, beside=beside) as programs:
        yield "programs of a session", lambda argv: programs.run(argv, timeout=60).stdout
    launcher = ProgramLauncher(workspace, root / "eval", confinement)
    (root / "eval").mkdir()
    yield "sample of an eval", lambda argv: launcher(argv, environment=path, timeout=60, most_output=1000).stdout
    settings, count = AgentSettings(confinement.level), itertools.count()

    def agent(argv: list[str]) -> bytes:
        files = root / f"agent-{next(count)}"
        started = settings.start(
            argv, directory=files, workspace=workspace, home=root / "private", environment=path, confirm=lambda *_: None, mark="ab" * 8
        )
        started.wait(60)
        return (files / "output").read_bytes()

    yield "agents of an orchestrator", agent


@pytest.mark.parametrize("name", [name for name in CONFINEMENTS if name != "off"])
def test_a_link_in_a_home_that_stays_leads_the_next_program_nowhere(name: str, tmp_path: Path) -> None:
    confinement = CONFINEMENTS[name]
    if why := missing(confinement.by):
        pytest.skip(f"{name}: {why}")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("of the host")
    with open_site(tmp_path, {"app.py": "v1\n"}) as site:
        for launcher, program in launchers(tmp_path, site.start().for_agent(), confinement):
            program(["sh", "-c", PLANTED, "sh", str(victim)])
            said = program(["sh", "-c", FOLLOWED])

            assert (b"of the host" in said, os.listdir(victim)) == (False, ["secret"]), launcher
            assert said.endswith(b"kept\n"), (launcher, said)


def test_everything_gets_out_of_no_confinement_so_that_each_attempt_is_known_to_work() -> None:
    assert {row[0] for row in EXPECTED.values()} == {True}
    assert {row[2] for row in EXPECTED.values()} == {False}


@pytest.mark.needs_root
def test_an_ordinary_user_has_the_same_levels(tmp_path: Path) -> None:
    can = shutil.which("setpriv") and os.access(OTHER_PYTHON, os.X_OK)
    newest = subprocess.run([OTHER_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False).returncode if can else 1
    if newest != 0:
        pytest.skip(f"no setpriv, or no {OTHER_PYTHON} of 3.11 that an ordinary user may run")
    with tempfile.TemporaryDirectory(prefix="gx-user-") as root:
        source, place = Path(root, "source"), Path(root, "place")
        shutil.copytree(ROOT / "pytest_gittrix", source / "pytest_gittrix", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(escapes.__file__, source / "escapes.py")
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        Path(root).chmod(0o755)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(place)}
        done = subprocess.run(
            [*user, OTHER_PYTHON, str(source / "escapes.py"), str(place)],
            env=environment,
            cwd=place,
            capture_output=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    # A machine may keep namespaces from ordinary users; then it says so, and that is no way out.
    tried = {name: out for name, out in found.items() if isinstance(out, dict)}
    assert "off" in tried
    assert tried == {name: expected(name, as_root=False) for name in tried}
    assert all(isinstance(found[name], str) and found[name] for name in found.keys() - tried.keys())


def test_the_table_of_the_reference_is_the_one_that_is_tested() -> None:
    below = PAGE.read_text(encoding="utf-8").partition("\n## What gets out\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in below.splitlines() if re.match(r"\| \w", line)]
    documented = {row[0]: tuple(cell.startswith("**yes**") for cell in row[1:]) for row in cells}

    assert documented.pop("the agent can") == (False, False, False)
    assert documented == EXPECTED


def test_the_launcher_is_the_python_that_runs_this() -> None:
    """What is tried above is what users get: nothing of a launcher is taken from the search path."""
    with tempfile.TemporaryDirectory() as root:
        workspace, home = Path(root, "workspace"), Path(root, "home")
        workspace.mkdir()
        home.mkdir()
        argv = wrapped(["true"], Place(workspace, home), Confinement("guard", "landlock"), environment={"PATH": root}).argv

    assert argv[:3] == [sys.executable, "-I", "-S"]
