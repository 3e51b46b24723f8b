"""What was done on a stage becomes a shell script that does it again, with git and the program's own commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gittrix.conformance.base.transcript import printf_of, shell_script
from pytest_gittrix.conformance.command_system import CommandSystem
from pytest_gittrix.testing.repos.history import Executable, Symlink
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem

PROGRAM = """\
import json, os, sys
what = sys.argv[1:3]
if what == ["session", "start"]:
    home = os.environ["GITTRIX_HOME"]
    os.makedirs(home + "/w", exist_ok=True)
    print(json.dumps({"ok": True, "data": {"id": f"made-{os.getpid()}", "workspacePath": home + "/w"}}))
else:
    print(json.dumps({"ok": True, "data": sys.argv[1:]}), file=open("said", "a"))
    print(json.dumps({"ok": True, "data": sys.stdin.read()}))
"""


def ran(script: str, directory: Path) -> Path:
    """Run a script; gives the directory that it made."""
    done = subprocess.run(
        ["sh", "-c", script], cwd=directory, env=os.environ | {"TMPDIR": str(directory)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return Path(done.stdout.partition("everything is in ")[2].splitlines()[0])


@pytest.mark.parametrize("data", [b"", b"100% 'quoted' \\n\n", bytes(range(256))])
def test_bytes_are_printed_as_they_are(data: bytes) -> None:
    assert subprocess.run(["sh", "-c", printf_of(data)], capture_output=True, check=True).stdout == data


def test_the_script_repeats_what_people_and_the_program_did(tmp_path: Path) -> None:
    system = CommandSystem([sys.executable, "-c", PROGRAM], name="fake")
    with Stage.open(system, files={"a.txt": "a\n", "run.sh": Executable("x\n")}) as stage:
        session = stage.start("it's a task")
        session.write("b c.txt", "bytes\n")
        stage.durable.commit({"a.txt": "owner\n", "link": Symlink("a.txt")})
        stage.rival.commit({"deep/b.txt": "rival\n"})
        stage.rival.rename("run.sh", "go.sh")
        stage.durable.stage({"staged.txt": "staged\n"})
        stage.durable.git("tag", "v1")
        expected = stage.judge.tree(stage.judge.head())
        script = shell_script(stage.journal)

    root = ran(script, tmp_path)
    git = ["git", "-C", str(root / "durable")]
    files = subprocess.run([*git, "ls-tree", "-r", "--name-only", "main"], capture_output=True, text=True, check=True).stdout.split()
    staged = subprocess.run([*git, "diff", "--cached", "--name-only", "v1"], capture_output=True, text=True, check=True).stdout

    assert sorted(files) == sorted(expected)
    assert "staged.txt" in staged
    assert "made-" in (root / "durable" / "said").read_text(encoding="utf-8")
    assert f"program() {{ {shlex.quote(system.command[0])}" in script
    assert "COMMIT1=" not in script


def test_a_system_without_commands_is_shown_by_its_verbs(tmp_path: Path) -> None:
    with Stage.open(GitTrixSystem("lazy"), files={"a.txt": "a\n"}) as stage:
        session = stage.start()
        session.write("a.txt", "agent\n")
        with pytest.raises(Exception, match=r"missing\.txt"):
            session.read("missing.txt")
        refusals, script = stage.journal.refusals(), shell_script(stage.journal)

    assert refusals == ["read: PATH_NOT_FOUND"]
    assert "# the system: write(SESSION1, 'a.txt', b'agent\\n') returned" in script
    assert ran(script, tmp_path).is_dir()
