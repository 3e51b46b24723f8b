"""The hook that other projects find in ``.pre-commit-hooks.yaml``: what it calls does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from pytest_gittrix.git.environment import hermetic_env

(HOOK,) = yaml.safe_load((Path(__file__).resolve().parents[3] / ".pre-commit-hooks.yaml").read_text())


def git(where: Path, *words: str, home: Path) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *words], cwd=where, env=hermetic_env(home), check=True, capture_output=True)


def test_it_fails_in_a_worktree_with_work_that_is_nowhere_else(tmp_path: Path) -> None:
    main, worktree = tmp_path / "main", tmp_path / "worktree"
    main.mkdir()
    git(main, "init", "-q", "-b", "main", home=tmp_path)
    git(main, "commit", "-q", "--allow-empty", "-m", "Start", home=tmp_path)
    git(main, "worktree", "add", "-q", "-b", "work", str(worktree), home=tmp_path)
    program, *words = HOOK["entry"].split()
    assert (program, HOOK["pass_filenames"], HOOK["stages"]) == ("gittrix", False, ["manual"])

    def hook() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest_gittrix.cli", *words]
        return subprocess.run(command, cwd=worktree, env=hermetic_env(tmp_path), capture_output=True, text=True, check=False)

    assert hook().returncode == 0
    (worktree / "new.py").write_text("x = 1\n")
    found = hook()
    assert found.returncode == 1
    assert "new.py" in found.stdout
