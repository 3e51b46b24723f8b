"""``.ci/run``: who runs what, where, and with which variables. A Makefile of the test's own stands for that of the project."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.git import git

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = """\
bytecode:
	@mkdir -p .venv/bin
	@printf '#!/bin/sh\\necho "pytest $$*: user `id -u`, home $$HOME"\\nexit $${ROOTS:-0}\\n' > .venv/bin/pytest
	@chmod +x .venv/bin/pytest
	@exit $${READY:-0}

test:
	@echo "make test: user `id -u`, $$PIP_INDEX_URL, $${XDG_CACHE_HOME:-no cache of root\'s}"
	@echo "has `ls -A | tr '\\n' ' '`: `cat committed new | tr '\\n' ' '`"
	@test -w . && test -w "$$HOME" && echo "may write"
	@case "$$PATH" in *closed*) echo "looks for programs where only root gets";; esac
	@exit $${USERS:-0}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone where only its owner gets, with a committed file that is changed, one that is deleted, a new one and an ignored one."""
    place = tmp_path / "clone"
    place.mkdir(mode=0o700)
    shutil.copytree(ROOT / ".ci", place / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "Makefile").write_text(MAKEFILE)
    (place / ".gitignore").write_text(".venv/\nignored\n")
    for name in ("committed", "deleted"):
        (place / name).write_text("as committed\n")
    git("init", "-q", "-b", "main", cwd=place)
    git("add", "--all", cwd=place)
    git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first", cwd=place)
    (place / "committed").write_text("changed\n")
    (place / "deleted").unlink()
    (place / "new").write_text("new\n")
    (place / "ignored").write_text("ignored\n")
    return place


def run(clone: Path, **variables: str) -> tuple[int, list[str]]:
    """The exit status of ``.ci/run``, and its lines."""
    closed = clone.parent / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python3").symlink_to(sys.executable)
    environment = {
        "PATH": os.pathsep.join([str(closed), os.environ["PATH"]]),
        "HOME": str(clone.parent),
        "XDG_CACHE_HOME": str(clone.parent),
        "PIP_INDEX_URL": "https://packages.example",
        **variables,
    }
    done = subprocess.run([clone / ".ci" / "run"], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.needs_root
def test_root_has_another_user_run_the_tests_in_a_copy_of_a_clone_that_is_closed(clone: Path) -> None:
    status, lines = run(clone, CHECK_USER="nobody")

    user = pwd.getpwnam("nobody").pw_uid
    assert status == 0
    assert lines[1:] == [
        f"pytest -m needs_root -n 2 -p no:cacheprovider: user 0, home {clone.parent}",
        f"make test: user {user}, https://packages.example, no cache of root's",
        "has .ci .git .gitignore .venv Makefile committed new : changed new ",
        "may write",
    ]
    where = re.fullmatch(r"The tests run as nobody in (/.*)/clone, and before .*", lines[0])
    assert where is not None
    assert not Path(where[1]).exists()
    assert not (clone / ".venv").exists()


@pytest.mark.needs_root
@pytest.mark.parametrize(("roots", "users", "status"), [("0", "3", 2), ("5", "0", 5), ("5", "3", 2)])
def test_whatever_fails_makes_it_fail_and_all_the_rest_is_run(clone: Path, roots: str, users: str, status: int) -> None:
    found, lines = run(clone, CHECK_USER="nobody", ROOTS=roots, USERS=users)

    assert (found, len(lines)) == (status, 5)


@pytest.mark.needs_root
def test_where_the_user_cannot_set_up_root_runs_all_tests(clone: Path) -> None:
    status, lines = run(clone, CHECK_USER="nobody", READY="1")

    assert status == 0
    assert [line[:17] for line in lines if line.startswith("make test: user")] == ["make test: user 0"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root has another user run the tests")
def test_an_ordinary_user_runs_the_tests_where_they_are(clone: Path) -> None:
    status, lines = run(clone, USERS="3")

    assert status == 2
    assert lines[0].startswith(f"make test: user {os.geteuid()}, https://packages.example, ")
    assert " ignored " in lines[1]
