"""Tests that are run by a git hook: no program of theirs works in the repository of the hook, and the run says what it did about that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from support.git import GitRepo

from pytest_gittrix.git.environment import hermetic_env, local_variables
from pytest_gittrix.testing.repos.fingerprint import Fingerprint

Run = Callable[..., pytest.RunResult]

AGENT: Final = """\
import json, os, subprocess
from pytest_gittrix.git.environment import local_variables

def my_agent(workspace):
    (workspace / "app.py").write_text("v2\\n")
    subprocess.run("git add -A && git commit -qm agent", shell=True, cwd=workspace, check=True)

def note(name):
    with open(os.environ["NOTES"] + name, "w") as file:
        json.dump(local_variables(os.environ), file)

def test_before():
    note("before")

def test_it_works(gittrix_agent, gittrix_env):
    note("inside")
    assert local_variables(gittrix_env) == ["GIT_NO_REPLACE_OBJECTS"]
    ran = gittrix_agent.run(["sh", "-c", "env | grep ^GIT_DIR; git rev-parse --show-toplevel"], confine="off")
    assert ran.stdout.decode().strip() == str(gittrix_agent.workspace_path)
    my_agent(gittrix_agent.workspace_path)
    assert [entry.message for entry in gittrix_agent.log()] == ["agent"]

def test_after():
    note("after")
"""
QUICK: Final = ("-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:anyio", "-p", "no:asyncio", "-p", "no:benchmark")
COMMIT: Final = ["commit", "-q", "--allow-empty", "-m", "mine"]
PERSON: Final = {f"GIT_{role}_{what}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
HOOKS: Final[Mapping[str, list[str]]] = {
    "pre-commit": COMMIT,
    "pre-push": ["push", "-q", "origin", "HEAD:refs/heads/pushed"],
    "post-checkout": ["checkout", "-q", "-b", "other"],
}
"""What a person does that runs each hook."""


class Project:
    """A person's project with a hook that runs its tests, and what these noted."""

    def __init__(self, root: Path, hook: str, *, linked: bool, source: str = AGENT) -> None:
        main = GitRepo.make(root / "project", {"mine.txt": "mine\n", "test_my_agent.py": source})
        GitRepo.make(root / "origin", bare=True)
        main.git("remote", "add", "origin", str(root / "origin"))
        if linked:
            main.git("worktree", "add", "-q", "-b", "w", str(root / "linked"))
        self.path, self.hook, self._notes = root / "linked" if linked else main.path, hook, root / "note-"
        self._home = root / "home"
        pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK]
        script = f"#!/bin/sh\nenv | grep ^GIT_ > '{self._notes}hook'\nexec {' '.join(pytest_)}\n"
        (main.git_dir / "hooks").mkdir(exist_ok=True)
        (main.git_dir / "hooks" / hook).write_text(script)
        (main.git_dir / "hooks" / hook).chmod(0o755)

    def act(self, **variables: str) -> str:
        """Do what runs the hook; gives the output of the tests."""
        environment = {
            **hermetic_env(self._home),
            **PERSON,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONDONTWRITEBYTECODE": "1",
            "NOTES": str(self._notes),
        }
        del environment["GIT_NO_REPLACE_OBJECTS"]
        done = subprocess.run(
            ["git", *HOOKS[self.hook]], cwd=self.path, env=environment | variables, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout + done.stderr

    def noted(self, name: str) -> Any:
        return json.loads(Path(f"{self._notes}{name}").read_text())

    @property
    def given_to_the_hook(self) -> list[str]:
        """The local variables that git gave to the hook."""
        return local_variables(line.partition("=")[0] for line in Path(f"{self._notes}hook").read_text().splitlines())

    def git(self, *arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=self.path, env=hermetic_env(), text=True).strip()


@pytest.mark.parametrize("linked", [False, True], ids=["main", "linked"])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_agent_that_a_hook_tests_commits_in_its_workspace_and_nowhere_else(hook: str, linked: bool, tmp_path: Path) -> None:
    project = Project(tmp_path, hook, linked=linked)
    before, files = project.git("rev-list", "--all", "--count"), project.git("ls-tree", "-r", "--name-only", "HEAD")

    said = project.act()

    assert "3 passed" in said
    assert project.git("ls-tree", "-r", "--name-only", "HEAD") == files
    assert int(project.git("rev-list", "--all", "--count")) - int(before) == (hook == "pre-commit")
    assert project.git("status", "--porcelain") == ""
    given = project.given_to_the_hook
    assert given or not linked
    assert project.noted("inside") == []
    assert sorted(project.noted("before")) == sorted(project.noted("after")) == sorted(given)
    assert ("Tests with gittrix fixtures ran without" in said) is bool(given)


def test_the_option_lets_the_variables_through(tmp_path: Path) -> None:
    source = """\
import os

def test_it(gittrix_session, gittrix_env):
    assert os.environ["GIT_DIR"].endswith("/worktrees/linked")
    assert "GIT_DIR" not in gittrix_env
    assert gittrix_session.run(["sh", "-c", "test -z $GIT_DIR"], confine="off").code == 0
"""
    project = Project(tmp_path, "pre-push", linked=True, source=source)

    said = project.act(PYTEST_GITTRIX_GIT_VARIABLES="keep")

    assert "1 passed" in said
    assert "gittrix: this run was started with GIT_DIR" in said
    assert "and --gittrix-git-variables=keep let it through" in said
    assert "1 failed" in project.act()


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "workers"])
def test_a_run_with_variables_of_a_hook_touches_no_other_repository(
    processes: list[str], pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = GitRepo.make(tmp_path / "mine")
    before = Fingerprint.of(mine.path, objects=True)
    monkeypatch.setenv("GIT_DIR", str(mine.git_dir))
    monkeypatch.setenv("GIT_INDEX_FILE", str(mine.git_dir / "index"))
    pytester.makepyfile("""
        import subprocess
        import pytest

        AGENT = "git commit -q --allow-empty -m agent"

        @pytest.mark.parametrize("turn", [1, 2])
        def test_fixtures(gittrix_session, gittrix_durable, gittrix_rival, turn):
            gittrix_rival.commit({"r.txt": "x"}, message="rival")
            gittrix_durable.git("commit", "--quiet", "--allow-empty", "--message=mine")
            gittrix_durable.repo.index.add(["app.py"])
            gittrix_durable.repo.git.commit("--allow-empty", "--message=by GitPython")
            gittrix_session.write("a.txt", "x")
            gittrix_session.promote(keep=True)
            subprocess.run(AGENT, shell=True, cwd=gittrix_session.workspace_path, check=True)

        def test_a_world_for_each_example(gittrix_worlds):
            for _ in range(2):
                with gittrix_worlds.open() as world:
                    subprocess.run(AGENT, shell=True, cwd=world.start().workspace_path, check=True)

        @pytest.fixture(scope="class")
        def shared(request, gittrix_worlds):
            with gittrix_worlds.open() as world:
                yield world
                subprocess.run(AGENT, shell=True, cwd=world.start().workspace_path, check=True)

        class TestClass:
            def test_first(self, shared):
                subprocess.run(AGENT, shell=True, cwd=shared.start().workspace_path, check=True)

            def test_last_has_no_fixture(self):
                pass

        def test_by_name(request):
            session = request.getfixturevalue("gittrix_session")
            subprocess.run(AGENT, shell=True, cwd=session.workspace_path, check=True)
    """)

    result = pytester.runpytest_subprocess(*processes, *QUICK)

    result.assert_outcomes(passed=6)
    assert before.diff(Fingerprint.of(mine.path, objects=True)) == []
    (note,) = [line for line in result.outlines if line.startswith("gittrix: ")]
    assert note.startswith("gittrix: this run was started with GIT_DIR, GIT_INDEX_FILE set, perhaps from a git hook. Tests with gittrix")


def test_variables_come_back_after_each_test_whatever_it_did_to_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/of/the/hook")
    source = """
        import os
        import pytest

        def test_set_and_left(gittrix_durable):
            os.environ["GIT_DIR"] = "/left"

        def test_set_by_monkeypatch(monkeypatch, gittrix_durable):
            monkeypatch.setenv("GIT_DIR", "/patched")

        def test_worlds(gittrix_worlds):
            with gittrix_worlds.open():
                assert "GIT_DIR" not in os.environ
            assert "GIT_DIR" not in os.environ

        def test_a_fixture_alone_is_enough(gittrix_crash):
            assert "GIT_DIR" not in os.environ

        @pytest.mark.parametrize("turn", [1, 2])
        def test_without(turn):
            assert os.environ["GIT_DIR"] == "/of/the/hook"
    """
    run(source).assert_outcomes(passed=6)
    assert os.environ["GIT_DIR"] == "/of/the/hook"


def test_the_note_about_a_hook_is_only_for_runs_with_fixtures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    run("def test_it(): pass").stdout.no_fnmatch_line("gittrix: *")


ASTRAY: Final = """
    import subprocess

    COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m agent"

    def test_watched(gittrix_durable):
        with gittrix_durable.unchanged():
            subprocess.run(COMMIT, shell=True, check=True)

    def test_not_watched(gittrix_durable):
        subprocess.run(COMMIT, shell=True, check=True)

    def test_other():
        subprocess.run(COMMIT, shell=True, check=True)

    def test_nothing(gittrix_durable):
        with gittrix_durable.unchanged():
            pass
"""


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "workers"])
def test_a_test_that_changes_the_checkout_of_the_run_fails_or_is_named(processes: list[str], pytester: pytest.Pytester) -> None:
    GitRepo.make(pytester.path)
    pytester.makepyfile(ASTRAY)

    result = pytester.runpytest_subprocess(*processes, *QUICK, "--dist=loadfile" if processes else "-v")

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"E *AssertionError: {pytester.path}, where this test run was started, changed:",
            "E *HEAD: main at no commit -> main at * (commit (initial): agent)",
            "E *Nothing in a world works there: *",
            "E *unchanged(elsewhere=False) watches the durable repository alone.",
        ]
    )
    notes = [line for line in result.outlines if line.startswith("gittrix: the checkout")]
    assert [
        name for name in ("test_watched", "test_not_watched", "test_other", "test_nothing") for note in notes if f"::{name} " in note
    ] == [
        "test_watched",
        "test_not_watched",
    ]


def test_a_copy_below_the_project_whose_agent_finds_the_projects_git_is_noticed(pytester: pytest.Pytester) -> None:
    GitRepo.make(pytester.path)
    pytester.makepyfile("""
        import pytest, subprocess

        @pytest.mark.gittrix(workspace="copy")
        def test_it(gittrix_session, gittrix_durable):
            with gittrix_durable.unchanged():
                subprocess.run(["git", "add", "--force", "."], cwd=gittrix_session.workspace_path, check=True)
    """)

    result = pytester.runpytest_inprocess("-p", "no:schemathesis", "-p", "no:cacheprovider", f"--basetemp={pytester.path / 'tmp'}")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *index: tmp/gittrix/*"])
