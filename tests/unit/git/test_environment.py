"""The hermetic environment, under a user's configuration that would change everything if it were seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_gittrix.errors import GitFailed
from pytest_gittrix.git import environment
from pytest_gittrix.git.environment import (
    LOCAL_VARIABLES,
    OLDEST_GIT,
    empty_repository,
    git_binary,
    git_version,
    hermetic_env,
    local_variables,
    run_git,
    without_local_variables,
)

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose settings sign, hook, convert and fill in everything; ``tmp_path/ran`` appears if one of their programs runs."""
    home, ran = tmp_path / "user", tmp_path / "ran"
    (home / "template/hooks").mkdir(parents=True)
    (home / "hooks").mkdir()
    for hook in (home / "template/hooks/pre-commit", home / "hooks/pre-commit", home / "hooks/post-checkout", home / "program"):
        hook.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
        hook.chmod(0o755)
    (home / ".gitconfig").write_text(
        f"""[user]
    name = Real User
    email = real@example.com
    signingKey = 1234
[commit]
    gpgSign = true
    template = {home}/nowhere
[gpg]
    program = {home}/program
[core]
    hooksPath = {home}/hooks
    autocrlf = true
    fsmonitor = {home}/program
    editor = {home}/program
    pager = {home}/program
    excludesFile = {home}/excludes
    attributesFile = {home}/attributes
[init]
    templateDir = {home}/template
    defaultBranch = theirs
[alias]
    status = !{home}/program
[credential]
    helper = !{home}/program
"""
    )
    (home / "excludes").write_text("*\n")
    (home / "attributes").write_text("* text eol=crlf filter=x\n")
    outer = tmp_path / "outer"
    subprocess.run([git_binary(), "init", "-q", str(outer)], check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_SYSTEM": str(home / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": str(home / "hooks"),
        "GIT_DIR": str(outer / ".git"),
        "GIT_WORK_TREE": str(outer),
        "GIT_INDEX_FILE": str(outer / ".git/index.lock"),
        "GIT_OBJECT_DIRECTORY": str(outer / ".git/objects"),
        "GIT_TEMPLATE_DIR": str(home / "template"),
        "GIT_EDITOR": str(home / "program"),
        "GIT_PAGER": str(home / "program"),
        "GIT_ASKPASS": str(home / "program"),
        "GIT_TRACE": str(ran),
        "GIT_AUTHOR_NAME": "Real User",
        "GIT_COMMITTER_DATE": "1 +0000",
        "GIT_NAMESPACE": "elsewhere",
        "EMAIL": "real@example.com",
        "LANGUAGE": "de",
        "SSH_ASKPASS": str(home / "program"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_nothing_of_a_hostile_user_is_seen(hostile: Path) -> None:
    before = sorted(path for path in (hostile / "outer").rglob("*"))
    repo = hostile / "repo"
    environment = hermetic_env(hostile / "own", when=WHEN)

    def git(*arguments: str) -> str:
        return run_git(arguments, cwd=repo, env=environment).decode().strip()

    run_git(["init", "-q", str(repo)], env=environment)
    (repo / "file").write_bytes(b"one\r\ntwo\n")
    git("add", "file")
    git("commit", "-q", "-m", "first")

    assert git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert (
        git("log", "--format=%an <%ae> %at %cn %ct %G?")
        == f"gittrix <gittrix@localhost> {int(WHEN.timestamp())} gittrix {int(WHEN.timestamp())} N"
    )
    assert run_git(["cat-file", "blob", "HEAD:file"], cwd=repo, env=environment) == b"one\r\ntwo\n"
    assert git("status", "--porcelain") == ""
    assert not (repo / ".git/hooks").exists()
    assert not (hostile / "ran").exists()
    assert sorted(path for path in (hostile / "outer").rglob("*")) == before


def test_the_same_commands_give_the_same_commit_for_every_user(hostile: Path) -> None:
    def commit(name: str, environment: dict[str, str]) -> bytes:
        path = hostile / name
        run_git(["init", "-q", str(path)], env=environment)
        run_git(["commit", "-q", "--allow-empty", "-m", "x"], cwd=path, env=environment)
        return run_git(["rev-parse", "HEAD"], cwd=path, env=environment)

    user = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "de_DE.UTF-8", "TZ": "Asia/Tokyo"}
    assert commit("one", hermetic_env(when=WHEN)) == commit("two", hermetic_env(base=user, when=WHEN))


def test_every_variable_git_would_heed_is_dropped_or_set_here(hostile: Path) -> None:
    environment = hermetic_env(hostile / "own")

    local = run_git(["rev-parse", "--local-env-vars"]).decode().split()
    assert set(local) & set(environment) == {"GIT_NO_REPLACE_OBJECTS"}
    assert not [value for name, value in environment.items() if "user" in value and name.startswith("GIT_")]
    assert environment["HOME"] == str(hostile / "own")
    assert environment["PATH"] == os.environ["PATH"]


def test_a_base_is_taken_instead_of_this_processs_variables() -> None:
    environment = hermetic_env(base={"PATH": "/bin", "MINE": "1", "GIT_DIR": "/x", "EMAIL": "e"})

    assert (environment["PATH"], environment["MINE"]) == ("/bin", "1")
    assert "GIT_DIR" not in environment
    assert "EMAIL" not in environment
    assert "GIT_AUTHOR_DATE" not in environment


def test_a_home_is_set_up_once_and_then_left_alone(tmp_path: Path) -> None:
    hermetic_env(tmp_path / "home")
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = kept\n")

    hermetic_env(tmp_path / "home")

    assert "kept" in (tmp_path / "home/.gitconfig").read_text()


def test_commands_that_start_at_once_in_a_fresh_home_all_find_whole_settings(tmp_path: Path) -> None:
    def name(home: Path) -> bytes:
        return run_git(["config", "--global", "user.name"], env=hermetic_env(home))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(name, [tmp_path / str(number // 4) for number in range(80)])] == [b"gittrix\n"] * 80


def test_a_process_whose_home_cannot_be_written_still_has_one(tmp_path: Path) -> None:
    code = "from pytest_gittrix.git.environment import run_git; print(run_git(['config', '--get', 'user.name']).decode().strip())"
    variables = {"PATH": os.environ["PATH"], "HOME": "/proc/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout.strip(), done.stderr) == ("gittrix", "")


def test_a_process_leaves_no_home_of_its_own_behind(tmp_path: Path) -> None:
    code = "from pytest_gittrix.git.environment import empty_repository; print(empty_repository('sha256'))"
    variables = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_processes_that_share_a_home_make_the_empty_repository_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_shared_home", lambda: str(tmp_path))
    hermetic_env(tmp_path)
    make = empty_repository.__wrapped__

    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(make, ["sha1"] * 4)]

    assert {*made} == {str(tmp_path / "empty-sha1.git")}
    assert [path.name for path in tmp_path.glob("empty-*")] == ["empty-sha1.git"]
    assert run_git(["rev-parse", "--is-bare-repository"], cwd=Path(made[0])) == b"true\n"


def fails(tmp_path: Path) -> None:
    run_git(["rev-parse", "--verify", "nothing"], cwd=tmp_path)


def takes_too_long(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run_git(["hash-object", "--no-filters", "--", "pipe"], cwd=tmp_path, timeout=0.05)


@pytest.mark.parametrize(
    ("run", "message"),
    [(fails, r"`git rev-parse --verify nothing` failed with status 128: fatal"), (takes_too_long, "took longer than 0.05 s")],
)
def test_a_git_that_fails_or_hangs_is_a_typed_error_with_its_words(tmp_path: Path, run: Callable[[Path], None], message: str) -> None:
    with pytest.raises(GitFailed, match=message):
        run(tmp_path)


def test_input_reaches_git_and_without_any_it_does_not_wait() -> None:
    assert run_git(["hash-object", "--stdin"], stdin=b"1\n") == run_git(["hash-object", "--stdin"], stdin=b"1\n")
    assert run_git(["hash-object", "--stdin"]).decode().strip() == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_without_a_directory_no_repository_is_found_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git(["init", "-q", str(tmp_path / "here")])
    monkeypatch.chdir(tmp_path / "here")

    with pytest.raises(GitFailed, match="not a git repository"):
        run_git(["rev-parse", "--git-dir"])


def test_the_binary_is_one_absolute_path_of_a_git_new_enough() -> None:
    assert os.path.isabs(git_binary())
    assert git_version() >= OLDEST_GIT


def fresh(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has looked for no git yet."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_another_git_can_be_named_and_its_absence_and_age_are_typed_errors(tmp_path: Path) -> None:
    old = tmp_path / "old-git"
    old.write_text("#!/bin/sh\necho git version 2.31.9\n")
    old.chmod(0o755)
    ask = "from pytest_gittrix.git.environment import git_binary, git_version\nprint(git_binary())\nprint(git_version())"

    assert fresh(ask, PYTEST_GITTRIX_GIT=str(old)).stdout == f"{old}\n"
    assert f"{old} is git 2.31.9" in fresh(ask, PYTEST_GITTRIX_GIT=str(old)).stderr
    assert "No git binary was found as 'no-such-git'" in fresh(ask, PYTEST_GITTRIX_GIT="no-such-git").stderr


def test_gits_own_list_of_local_variables_is_known_whole() -> None:
    listed = run_git(["rev-parse", "--local-env-vars"]).decode().split()

    assert "GIT_DIR" in listed
    assert set(listed) <= LOCAL_VARIABLES


def test_a_copy_without_local_variables_keeps_what_a_person_sets_for_every_repository() -> None:
    persons = dict.fromkeys(
        ("GIT_CEILING_DIRECTORIES", "GIT_CONFIG_GLOBAL", "GIT_AUTHOR_NAME", "GIT_SSH_COMMAND", "GIT_EXEC_PATH", "PATH"), "x"
    )
    local = dict.fromkeys((*LOCAL_VARIABLES, "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_12", "GIT_PUSH_OPTION_COUNT", "GIT_PUSH_OPTION_0"), "y")

    assert without_local_variables({**persons, **local}) == persons
    assert sorted(local_variables({**persons, **local})) == sorted(local)
