"""ISO: sessions, and durable and sessions, do not affect each other before a promotion (rule 6, docs/explanation/rules.md)."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import NOT_WRITABLE, allowed_to_refuse, lands, personal_things_unchanged, run, set_traps
from pytest_gittrix.testing.oracle import invariant_workspace_stands_alone
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

REPOSITORY: Final = "git init -q 2>/dev/null"
"""Shell commands that make a repository in a workspace which has none, and change nothing in one which has."""
_WORK_THROUGH_GIT: Final = f"""
{REPOSITORY}
echo agent >> app.py; git add --all; git commit -q -m agent
git checkout -q -b side; git tag agent; git notes add -m agent
echo more >> app.py; git stash -q
git pack-refs --all; git reflog expire --expire=now --all; git gc -q --prune=now
git config agent.was here; git config extensions.worktreeConfig true; git config --worktree agent.was here
"""
"""Shell commands that write to each kind of file that git keeps of a repository: configuration, index, references, logs, objects."""
_PRIVATE_DEVICES: Final = """
mkdir "$1"
mount -t tmpfs devices "$1"
mknod -m 666 "$1/null" c 1 3 2>/dev/null || : > "$1/null"
: > "$1/urandom"; mount --bind /dev/urandom "$1/urandom"
if [ -d /dev/shm ]; then mkdir "$1/shm"; mount --rbind /dev/shm "$1/shm"; fi
mount --rbind "$1" /dev
cd "$PWD"
"""
"""Shell commands that give a mount namespace a device directory; its null device is an empty file where no device can be made."""
_ALLOCATED: Final = 4 << 20
_SET_FLAGS: Final = 0x40086602
"""FS_IOC_SETFLAGS of linux/fs.h, by which `chattr` makes a file immutable."""


class IsolationClauses(Clauses):
    """What stays inside, and what stays outside."""

    def test_iso_01_work_in_a_session_changes_no_byte_of_durable(self, stage: Stage) -> None:
        """Otherwise a person finds the agent's work in their repository before they have seen it."""
        session = stage.start()

        with stage.durable.unchanged():
            session.write("app.py", "agent\n")
            session.write("new/file.txt", "agent\n")
            session.read("README.md")
            session.files()
            session.touched_files()

    @protects_work
    def test_iso_02_sessions_do_not_see_each_other(self, stage: Stage) -> None:
        """Otherwise two agents overwrite each other's work, and nobody can tell whose it is."""
        one, two = stage.start("one"), stage.start("two")

        one.write("app.py", "one\n")
        one.write("one.txt", "one\n")

        assert two.read("app.py") == b"one\ntwo\nthree\n"
        assert not two.exists("one.txt")
        assert two.touched_files() == []

    @protects_work
    def test_iso_03_a_promotion_takes_the_work_of_its_session_alone(self, stage: Stage) -> None:
        """A promotion takes only the work of its own session.

        Otherwise the work of an agent that nobody reviewed is committed together with another agent's.
        """
        one, two = stage.start("one"), stage.start("two")
        one.write("one.txt", "one\n")
        two.write("two.txt", "two\n")

        lands(stage, two, {"two.txt": b"two\n"})

    def test_iso_04_a_promotion_does_not_change_what_another_session_sees(self, stage: Stage) -> None:
        """Otherwise files change under an agent that is working on them."""
        one, two = stage.start("one"), stage.start("two")
        two.write("two.txt", "two\n")

        one.write("app.py", "one\n")
        one.promote()

        assert two.read("app.py") == b"one\ntwo\nthree\n"
        assert two.touched_files() == ["two.txt"]

    @protects_work
    def test_iso_05_the_end_of_a_session_harms_neither_durable_nor_another(self, stage: Stage) -> None:
        """Ending a session harms neither durable nor another session.

        Otherwise cleaning up after one agent removes files that another agent, or the person, still needs.
        """
        one, two = stage.start("one"), stage.start("two")
        one.write("app.py", "one\n")
        two.write("app.py", "two\n")

        with personal_things_unchanged(stage):
            one.evict()

        lands(stage, two, {"app.py": b"two\n"})

    def test_iso_06_a_session_starts_from_what_is_committed(self, stage: Stage) -> None:
        """A session starts from committed content only.

        Otherwise the agent builds on a person's half-finished edits, and promotes them.
        """
        stage.durable.dirty({"README.md": "unsaved\n", "notes.txt": "private\n"})
        stage.durable.stage({"lib/util.py": "staged\n"})

        session = stage.start()

        assert session.read("README.md") == b"hello\n"
        assert session.read("lib/util.py") == b"util\n"
        assert not session.exists("notes.txt")
        assert session.touched_files() == []

    @needs(Capability.SHELL)
    def test_iso_07_the_workspace_borrows_nothing_from_durable(self, stage: Stage) -> None:
        """The workspace shares nothing with durable.

        Otherwise the agent pushes to the person's repository, or a gc there removes the agent's files.
        """
        session = stage.start()

        invariant_workspace_stands_alone(_workspace(session), stage.judge, hidden=())

    @needs(Capability.SHELL)
    def test_iso_08_what_is_committed_to_durable_later_is_not_in_the_workspace(self, stage: Stage) -> None:
        """Later commits to durable do not appear in the workspace.

        Otherwise an agent under evaluation can read the answer that a person committed after the start.
        """
        session = stage.start()

        later = stage.rival.commit({"answer.txt": "42\n"})

        invariant_workspace_stands_alone(_workspace(session), stage.judge, hidden=[later])

    @needs(Capability.SHELL)
    def test_iso_09_git_in_the_workspace_does_not_reach_durable(self, stage: Stage) -> None:
        """Otherwise an agent that commits, tags, stashes or pushes moves the person's branches."""
        session = stage.start()

        with stage.durable.unchanged():
            run(
                stage,
                session,
                f"""
                {REPOSITORY}
                echo agent >> app.py
                git add --all && git commit -q -m agent
                git tag agent && git config agent.was here && git update-ref refs/heads/main HEAD
                for remote in $(git remote); do git push -q "$remote" HEAD:refs/heads/pushed || true; done
                echo more >> app.py && git stash -q
                """,
            )

    @needs(Capability.SHELL)
    def test_iso_10_nothing_that_the_agent_configures_runs_at_a_promotion(self, stage: Stage) -> None:
        """Otherwise a program that the agent chose runs with the rights of the person who promotes."""
        session = stage.start()
        mark = _set_traps(stage, session)

        session.write("app.py", "agent\n")
        session.touched_files()
        lands(stage, session, {"app.py": b"agent\n"})

        assert not mark.exists(), mark.read_text()

    @needs(Capability.SHELL)
    def test_iso_11_a_git_directory_that_leads_to_durable_is_not_followed(self, stage: Stage) -> None:
        """Otherwise the agent makes the system itself write to the person's repository."""
        session = stage.start()
        run(stage, session, f"rm -rf .git && echo 'gitdir: {stage.durable.path}/.git' > .git")
        stage.durable.commit({"README.md": "human\n"})

        with stage.durable.unchanged():
            session.write("app.py", "agent\n")
            assert session.touched_files() == ["app.py"]
        lands(stage, session, {"app.py": b"agent\n"})

    @needs(Capability.SHELL)
    @protects_work
    def test_iso_12_a_link_to_a_file_of_durable_is_not_written_through(self, stage: Stage) -> None:
        """The system does not write through a link to a file of durable.

        Otherwise the agent can make the system write to any of the person's files.
        """
        session = stage.start()
        run(stage, session, f"ln -sf '{stage.durable.path}/app.py' app.py && ln -s '{stage.durable.path}/lib' linked")

        with stage.durable.unchanged():
            for path in ("app.py", "linked/util.py"):
                allowed_to_refuse(NOT_WRITABLE, session.write, path, "agent\n")

    @needs(Capability.SHELL)
    @protects_work
    def test_iso_13_a_file_written_in_place_changes_in_one_workspace_only(self, stage: Stage) -> None:
        """Otherwise one agent's editor changes the files of other agents, and of later sessions, through a shared copy."""
        one, two = stage.start("one"), stage.start("two")

        with stage.durable.unchanged():
            run(stage, one, "chmod u+w app.py && echo one >> app.py")

        assert two.read("app.py") == b"one\ntwo\nthree\n"
        assert stage.start("later").read("app.py") == b"one\ntwo\nthree\n"

    @needs(Capability.SHELL)
    def test_iso_14_the_commits_of_the_agent_stay_in_the_workspace(self, stage: Stage) -> None:
        """Otherwise a person's history fills with an agent's steps, messages and authors."""
        session = stage.start()
        run(stage, session, f"{REPOSITORY}; echo agent >> app.py && git add --all && git commit -q -m step")
        run(stage, session, "echo further >> app.py && git commit -q --all -m 'another step'")
        theirs = stage.judge.history(stage.judge.head())

        made = lands(stage, session, {"app.py": b"one\ntwo\nthree\nagent\nfurther\n"})

        assert stage.judge.history(made.sha) == [made.sha, *theirs]

    @needs(Capability.SHELL)
    def test_iso_15_the_files_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """A session that starts when another one has ended finds the files, directories and links of the baseline, and nothing else.

        Otherwise one agent's leftovers change what the next agent's build and tests do.
        """
        fresh = _files(stage.start("fresh"))

        later = _next(
            stage,
            f"""
            {REPOSITORY}
            echo left > left.txt && mkdir -p empty/below && rm -r lib && rm app.py && mkfifo app.py
            ln -s /etc README.tmp && mv -f README.tmp README.md
            echo '*.secret' >> .git/info/exclude 2>/dev/null || true
            echo ignored > kept.secret
            """,
        )

        assert later.touched_files() == []
        assert _files(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_16_the_modes_and_attributes_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """Modes, link counts and attributes are those of a fresh workspace.

        Otherwise the next agent cannot write a file that it has to change, or a file has a name outside its workspace.
        """
        fresh = _files(stage.start("fresh"))
        outside = stage.path / "outside"

        later = _next(
            stage, f"chmod 700 lib && chmod +t . && chmod a-w,a+x README.md && touch -d 2001-01-01 app.py && ln app.py '{outside}'"
        )

        assert _files(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_17_the_git_state_of_an_ended_session_is_not_in_the_next_one(self, stage: Stage) -> None:
        """References, index, configuration, hooks and stash are those of a fresh workspace.

        Otherwise a hook of one agent's runs in the next agent's commits, or a flag in the index hides the next agent's changes.
        """
        fresh = _git_state(stage, stage.start("fresh"))

        later = _next(
            stage,
            f"""
            {REPOSITORY}
            git add --all && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m left
            git branch left && git tag left && git config alias.left status && git checkout -q -b other
            echo x >> app.py && git stash -q && git update-index --assume-unchanged README.md
            mkdir -p .git/hooks .git/info && echo exit 1 > .git/hooks/pre-commit && echo '*' > .git/info/exclude
            """,
        )

        assert _git_state(stage, later) == fresh

    @needs(Capability.SHELL)
    def test_iso_18_the_objects_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """Otherwise the next agent can read what an earlier one wrote, by its id: an answer, or a secret."""
        one = stage.start("one")
        if not (_workspace(one) / ".git").exists():
            pytest.skip("its workspaces have no repository")
        left = run(stage, one, "echo 'an answer' | git hash-object -w --stdin").strip()
        one.evict()

        later = stage.start("later")

        assert left not in run(stage, later, "git cat-file --batch-all-objects --batch-check='%(objectname)'").split()

    @needs(Capability.SHELL)
    def test_iso_19_what_an_ended_session_left_open_changes_nothing_in_the_next_one(self, stage: Stage) -> None:
        """Open files and working directories of an ended session lead to no file of the next one.

        Otherwise a process that outlived its session goes on writing into the next agent's work.
        """
        one = stage.start("one")
        directory = os.open(_workspace(one), os.O_RDONLY)
        file = os.open(_workspace(one) / "app.py", os.O_WRONLY | os.O_APPEND)
        try:
            one.evict()
            later = stage.start("later")
            os.write(file, b"from the past\n")
            with suppress(OSError):  # the directory may be gone
                os.close(os.open("from-the-past.txt", os.O_WRONLY | os.O_CREAT, dir_fd=directory))

            assert later.read("app.py") == b"one\ntwo\nthree\n"
            assert later.touched_files() == []
        finally:
            os.close(file)
            os.close(directory)

    @needs(Capability.SHELL)
    def test_iso_20_the_times_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """Files and directories have the times of a fresh workspace.

        Otherwise a build of the next agent takes a file for older than it is, and does not build it, or git reads every file again.
        """
        one = stage.start("one")
        run(stage, one, "touch -t 200102030405 app.py lib README.md")
        left = os.stat(_workspace(one) / "app.py").st_mtime_ns
        one.evict()

        later = _workspace(stage.start("later"))

        assert left not in {path.lstat().st_mtime_ns for path in later.rglob("*")}

    @needs(Capability.SHELL)
    def test_iso_21_twins_of_the_names_of_the_baseline_are_not_in_the_next_session(self, stage: Stage) -> None:
        """Files of an ended session whose names differ from the baseline's only by case or unicode form are not in the next one.

        Otherwise a system that compares names as some file systems do takes one agent's file for the next one's.
        """
        stage.durable.commit({"caf\u00e9.txt": "composed\n"})
        fresh = _files(stage.start("fresh"))

        later = _next(stage, "echo twin > APP.PY; mkdir -p LIB; echo twin > LIB/util.py; echo twin > 'cafe\u0301.txt'")

        assert later.touched_files() == []
        assert _files(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_22_what_an_ended_session_made_unchangeable_keeps_no_session_from_starting(self, stage: Stage) -> None:
        """Files that are immutable, or without permissions, stop no later session.

        Otherwise one agent keeps all later ones from their work by a single command.
        """
        fresh = _files(stage.start("fresh"))
        one = stage.start("one")
        with _changeable_afterwards(_workspace(one), "README.md", "app.py", "lib"):
            run(stage, one, "chattr +i README.md 2>/dev/null || true; chattr +a app.py 2>/dev/null || true; chmod a-w lib")
            if _is_writable(_workspace(one) / "README.md") and os.access(_workspace(one) / "lib", os.W_OK):
                pytest.skip("nothing can be made unchangeable here")
            with suppress(Exception):  # that this session cannot be cleared away is no harm to others
                one.evict()

            assert _files(stage.start("later")) == fresh

    @needs(Capability.SHELL)
    def test_iso_23_the_disk_space_of_an_ended_session_is_not_taken_in_the_next_one(self, stage: Stage) -> None:
        """A file takes no more of the disk than in a fresh workspace.

        Otherwise what one agent allocated counts against the next one, which cannot see why.
        """
        one = stage.start("one")
        run(stage, one, f"fallocate -n -l {_ALLOCATED} app.py 2>/dev/null || true")
        if _taken(_workspace(one) / "app.py") < _ALLOCATED:
            pytest.skip("no space can be allocated behind the end of a file here")
        one.evict()

        later = stage.start("later")

        assert _taken(_workspace(later) / "app.py") < _ALLOCATED

    @needs(Capability.SHELL)
    def test_iso_24_work_through_git_changes_no_byte_of_another_workspace(self, stage: Stage) -> None:
        """Whatever an agent does through git, it changes no byte of durable, of another workspace or of the person's home directory.

        Otherwise a setting, a branch or a clean-up of one agent changes what git does for another agent, or for the person.
        """
        one, other = stage.start("one"), stage.start("other")
        outside = _workspace(other), Path(stage.env["HOME"])
        before = [_bytes_below(root) for root in outside]

        with stage.durable.unchanged():
            run(stage, one, _WORK_THROUGH_GIT)

        for root, theirs in zip(outside, before, strict=True):
            now = _bytes_below(root)
            changed = sorted(path for path in theirs.keys() | now.keys() if theirs.get(path) != now.get(path))
            assert not changed, f"git in one workspace changed in {root}: {', '.join(changed)}"

    @needs(Capability.SHELL)
    def test_iso_25_work_through_git_leaves_the_null_device_alone(self, stage: Stage) -> None:
        """Whatever an agent does through git, the null device stays what it is.

        Otherwise git, which replaces the files that it writes, puts a file in its place as root, and most programs of the machine fail.
        """
        devices = stage.path / "devices"
        namespace = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        if not _private_devices_work(namespace, stage.path / "tried"):
            pytest.skip("no device directory of its own can be made here")
        session = stage.start()
        watched = f"""
        {_PRIVATE_DEVICES}
        before=$(stat -c '%i %F' /dev/null)
        {_WORK_THROUGH_GIT}
        [ "$(stat -c '%i %F' /dev/null)" = "$before" ] || echo replaced
        """

        printed = run(stage, session, f"{shlex.join(namespace)} sh -euc {shlex.quote(watched)} sh '{devices}'")

        assert "replaced" not in printed.splitlines(), "git replaced the null device"


def _private_devices_work(namespace: list[str], directory: Path) -> bool:
    """Whether a program that is started with ``namespace`` before it can have a device directory of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = [*namespace, "sh", "-euc", _PRIVATE_DEVICES, "sh", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _bytes_below(root: Path) -> dict[str, tuple[str, bytes]]:
    """The target of each link and the bytes of each file below a directory, git's own among them; a link to a file has both."""
    return {
        str(path.relative_to(root)): (os.readlink(path) if path.is_symlink() else "", path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def _next(stage: Stage, script: str) -> DrivenSession:
    """Start a session, run a script of its agent's, end it, and start the next one."""
    one = stage.start("one")
    run(stage, one, script)
    one.evict()
    return stage.start("later")


def _files(session: DrivenSession) -> dict[str, tuple[object, ...]]:
    """What stands at each path of a workspace, but for its repository: mode, attributes, and the number of names and bytes of a file."""
    root = _workspace(session)
    found: dict[str, tuple[object, ...]] = {}
    for parent, directories, names in os.walk(root):
        here = os.path.relpath(parent, root)
        directories[:] = [name for name in directories if (here, name) != (".", ".git")]
        for name in [".", *directories, *names]:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            attributes = tuple(os.listxattr(path, follow_symlinks=False)) if hasattr(os, "listxattr") else ()
            facts: tuple[object, ...] = (status.st_mode, attributes)
            if stat.S_ISREG(status.st_mode):
                facts += (status.st_nlink, Path(path).read_bytes())
            elif stat.S_ISLNK(status.st_mode):
                facts += (os.readlink(path),)
            found[os.path.normpath(os.path.join(here, name))] = facts
    return found


@contextmanager
def _changeable_afterwards(root: Path, *names: str) -> Iterator[None]:
    """A block after which files and directories can be changed and removed again, wherever they are by then."""
    held = [os.open(root / name, os.O_RDONLY) for name in names]
    try:
        yield
    finally:
        for descriptor in held:
            with suppress(OSError, ImportError):  # a system without such flags makes nothing immutable
                import fcntl

                fcntl.ioctl(descriptor, _SET_FLAGS, bytes(8))
            os.fchmod(descriptor, os.fstat(descriptor).st_mode | stat.S_IWUSR)
            os.close(descriptor)


def _is_writable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        return False
    return True


def _taken(path: Path) -> int:
    """The bytes of the disk that a file takes."""
    return path.stat().st_blocks * 512


def _git_state(stage: Stage, session: DrivenSession) -> str:
    """What the repository of a workspace has beside its objects, as git and the directory tell it; empty if there is none."""
    if not (_workspace(session) / ".git").exists():
        return ""
    return run(
        stage,
        session,
        """
        git for-each-ref; cat .git/HEAD; git ls-files -v --stage; git stash list; git status --short; git config --local --list
        cat .git/info/exclude .git/hooks/* .git/logs/HEAD 2>/dev/null || true
        """,
    )


def _workspace(session: DrivenSession) -> Path:
    """The directory in which the agent's programs run."""
    path = session.workspace_path
    assert path is not None
    return path


def _set_traps(stage: Stage, session: DrivenSession) -> Path:
    """Configure the workspace's repository so that git runs programs of the agent in it; gives the file that they write."""
    traps = stage.path / "traps"
    mark = set_traps(traps)
    run(stage, session, f"{REPOSITORY}; cat '{traps}/config' >> \"$(git rev-parse --git-common-dir)/config\"; git status 2>&1 || true")
    assert mark.exists(), "the traps work on git itself"
    mark.unlink()
    return mark
