"""The hermetic environment in which git runs, and the function that runs git.

A leaked ``GIT_DIR`` from a hook, a user's signing or hooks configuration, a template or a credential helper must change nothing
(rule 19, docs/explanation/rules.md). What starts git is loaded when git is started, which most sessions do without.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import GitFailed
from pytest_gittrix.os_level.files import whole_directory, write_file

OLDEST_GIT: Final = (2, 32)

_DROPPED: Final = (
    "SSH_AUTH_SOCK",
    "SSH_ASKPASS",
    "GPG_AGENT_INFO",
    "GNUPGHOME",
    "XDG_CONFIG_HOME",
    "EMAIL",
    "PREFIX",
    "LANGUAGE",
    "LC_MESSAGES",
)

LOCAL_VARIABLES: Final = frozenset(
    {
        # What `git rev-parse --local-env-vars` lists: git itself withholds these from a git that it starts in another repository.
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
        # What git gives to a hook or to the commands of a rebase, and what its options (`git --literal-pathspecs commit`) hand on to them.
        "GIT_ATTR_SOURCE",
        "GIT_CHERRY_PICK_HELP",
        "GIT_GLOB_PATHSPECS",
        "GIT_ICASE_PATHSPECS",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NAMESPACE",
        "GIT_NOGLOB_PATHSPECS",
        "GIT_QUARANTINE_PATH",
        "GIT_REFLOG_ACTION",
    }
)
"""Git's variables that hold for one repository, or for one command in it. Where they leak, git works there, whatever its directory.

Those that a person sets for every repository are none of them: whose configuration is read, who commits, how git asks and connects.
"""
_LOCAL_FAMILIES: Final = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_PUSH_CERT", "GIT_PUSH_OPTION_")

_GLOBAL_FILE: Final = ".gitconfig"
_SYSTEM_FILE: Final = ".gitconfig-system"

_SETTINGS: Final = """\
[init]
	defaultBranch = main
[user]
	name = gittrix
	email = gittrix@localhost
	useConfigOnly = true
[core]
	hooksPath = /dev/null
	autocrlf = false
	fsmonitor = false
	untrackedCache = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	pager = cat
	protectHFS = true
	protectNTFS = true
[commit]
	gpgSign = false
[tag]
	gpgSign = false
[push]
	gpgSign = false
[gc]
	auto = 0
	autoDetach = false
[maintenance]
	auto = false
	autoDetach = false
[credential]
	helper =
[safe]
	directory = *
[advice]
	detachedHead = false
[protocol "file"]
	allow = always
"""


@lru_cache(maxsize=1)
def git_binary() -> str:
    """The absolute path of the git binary, looked up once.

    Raises:
        GitFailed: no git is on PATH, or ``PYTEST_GITTRIX_GIT`` names no program.
    """
    name = os.environ.get("PYTEST_GITTRIX_GIT") or "git"
    found = shutil.which(name)
    if found is None:
        raise GitFailed(
            f"No git binary was found as {name!r}.",
            why="Some steps (merge of a work tree, sha256 objects, your own git calls) need git's own word.",
            fix="Install git, or name it with --gittrix-git, the ini value gittrix_git or PYTEST_GITTRIX_GIT.",
        )
    return os.path.abspath(found)


@lru_cache(maxsize=1)
def git_version() -> tuple[int, ...]:
    """The version of the git binary, as numbers.

    Raises:
        GitFailed: git is missing, or older than the hermetic environment needs (2.32, for GIT_CONFIG_GLOBAL).
    """
    import subprocess

    text = subprocess.run([git_binary(), "version"], capture_output=True, check=True, timeout=30).stdout.decode()
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    if version < OLDEST_GIT:
        raise GitFailed(
            f"{git_binary()} is git {'.'.join(map(str, version))}.",
            why="Before 2.32 git has no setting that leaves the user's own configuration out.",
            fix="Install git 2.32 or newer, or name another with PYTEST_GITTRIX_GIT.",
        )
    return version


HOME: Final = "gittrix-home-"
"""How the names of the directories begin that are the home of git for one process."""
HOME_OWNER: Final = ".owner.json"
"""The file in such a directory that names its process."""


@lru_cache(maxsize=1)
def _shared_home() -> str:
    import atexit
    import json
    import tempfile

    from pytest_gittrix.os_level.lock_owner import Owner

    path = tempfile.mkdtemp(prefix=HOME)
    _write_settings(path)
    # A sweep finds by this note that the process was killed, and removes the home.
    write_file(os.path.join(path, HOME_OWNER), json.dumps(Owner.current().to_json()).encode())
    atexit.register(shutil.rmtree, path, True)
    return path


def _write_settings(home: str) -> None:
    # Git changes a configuration file by renaming a new file over it. If the system's file were the null device, which reads as empty too,
    # `git config --system`, run as root, would replace the machine's null device by a regular file.
    # Whole files, the one that is looked for last: programs that start at once in one home find both, or make both.
    for name, text in ((_SYSTEM_FILE, ""), (_GLOBAL_FILE, _SETTINGS)):
        write_file(os.path.join(home, name), text.encode())


@lru_cache(maxsize=4)
def empty_repository(format_name: str) -> str:
    """An empty bare repository of an object format, in which git can read another object directory without that one's configuration."""
    path = os.path.join(_shared_home(), f"empty-{format_name}.git")
    building = f"{path}.{os.urandom(8).hex()}"
    try:
        with whole_directory(path, building):
            run_git(["init", "-q", "--bare", f"--object-format={format_name}", building])
    except OSError:
        if not os.path.isdir(path):  # otherwise a process that was forked from this one, and has the same home, was faster
            raise
    return path


def local_variables(environment: Iterable[str]) -> list[str]:
    """The names among those of an environment that are git's local variables."""
    of_git = [name for name in environment if name.startswith("GIT_")]
    return [name for name in of_git if name in LOCAL_VARIABLES or name.startswith(_LOCAL_FAMILIES)]


def without_local_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment without git's local variables, for a program that works in another repository."""
    return {name: value for name, value in environment.items() if name not in local_variables([name])}


def hermetic_env(home: Path | None = None, *, base: Mapping[str, str] | None = None, when: datetime | None = None) -> dict[str, str]:
    """Environment variables for a git that sees nothing of the user's configuration and never prompts.

    Args:
        home: directory that serves as HOME and holds the configuration files that git reads and changes; by default one for this process.
        base: variables to start from, ``os.environ`` by default. Every ``GIT_*`` variable is dropped.
        when: date of authors and committers, and git's current time; the real time by default.
    """
    home_dir = str(home) if home is not None else _shared_home()
    if home is not None and not os.path.exists(os.path.join(home_dir, _GLOBAL_FILE)):
        os.makedirs(home_dir, exist_ok=True)
        _write_settings(home_dir)
    source = os.environ if base is None else base
    environment = {name: value for name, value in source.items() if not name.startswith("GIT_") and name not in _DROPPED}
    environment.update(
        HOME=home_dir,
        USERPROFILE=home_dir,
        XDG_CONFIG_HOME=os.path.join(home_dir, ".config"),
        GNUPGHOME=os.path.join(home_dir, ".gnupg"),
        GIT_CONFIG_GLOBAL=os.path.join(home_dir, _GLOBAL_FILE),
        GIT_CONFIG_SYSTEM=os.path.join(home_dir, _SYSTEM_FILE),
        GIT_CONFIG_NOSYSTEM="1",
        GIT_ATTR_NOSYSTEM="1",
        GIT_TEMPLATE_DIR="",
        GIT_CEILING_DIRECTORIES=os.path.dirname(home_dir),
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_NO_LAZY_FETCH="1",
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
        GIT_ASKPASS="true",
        GIT_EDITOR=":",
        GIT_SEQUENCE_EDITOR=":",
        GIT_PAGER="cat",
        GIT_MERGE_AUTOEDIT="no",
        GIT_ALLOW_PROTOCOL="file",
        LC_ALL="C",
        TZ="UTC",
    )
    if when is not None:
        seconds = int(when.timestamp())
        environment.update(GIT_AUTHOR_DATE=f"{seconds} +0000", GIT_COMMITTER_DATE=f"{seconds} +0000", GIT_TEST_DATE_NOW=str(seconds))
    return environment


def run_git(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float = 120.0,
) -> bytes:
    """Run git once and return its standard output.

    Args:
        arguments: constant options first; values only after ``--end-of-options`` or ``--``, or through ``stdin``.
        cwd: working directory; ``/`` by default, so that no repository is discovered by accident.
        env: environment variables; ``hermetic_env()`` by default.
        stdin: bytes of its standard input; empty by default.
        timeout: seconds after which git is killed.

    Raises:
        GitFailed: git is missing, failed (its standard error is in the message) or took too long.
    """
    import subprocess

    command = [git_binary(), *arguments]
    shown = " ".join(["git", *arguments])
    try:
        done = subprocess.run(
            command,
            cwd=cwd or "/",
            env=dict(env) if env is not None else hermetic_env(),
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"`{shown}` took longer than {timeout:g} s and was ended.", why="The engine does not wait for ever.") from error
    if done.returncode != 0:
        raise GitFailed(
            f"`{shown}` failed with status {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
            why="The engine needs git's own word for this step, and does not guess.",
        )
    return done.stdout


def quote_config(value: str) -> str:
    """Quote a value for a git configuration file."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
