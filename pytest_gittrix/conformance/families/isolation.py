"""ISO: sessions, and durable and sessions, do not affect each other before a promotion (rule 6, docs/explanation/rules.md)."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import NOT_WRITABLE, allowed_to_refuse, beyond_a_script, lands, personal_things_unchanged, run
from pytest_gittrix.conformance.base.workspace_facts import (
    PRIVATE_DEVICES,
    REPOSITORY,
    bytes_below,
    bytes_taken,
    changeable_afterwards,
    files_of,
    git_state,
    is_writable,
    next_after,
    private_devices_work,
    set_traps_in,
    workspace_of,
)
from pytest_gittrix.testing.oracle import invariant_workspace_stands_alone
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

_WORK_THROUGH_GIT: Final = f"""
{REPOSITORY}
echo agent >> app.py; git add --all; git commit -q -m agent
git checkout -q -b side; git tag agent; git notes add -m agent
echo more >> app.py; git stash -q
git pack-refs --all; git reflog expire --expire=now --all; git gc -q --prune=now
git config agent.was here; git config extensions.worktreeConfig true; git config --worktree agent.was here
"""
"""Shell commands that write to each kind of file that git keeps of a repository: configuration, index, references, logs, objects."""
_ALLOCATED: Final = 4 << 20


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
        """Otherwise two agents overwrite each other's work, and its author is unknown."""
        one, two = stage.start("one"), stage.start("two")

        one.write("app.py", "one\n")
        one.write("one.txt", "one\n")

        assert two.read("app.py") == b"one\ntwo\nthree\n"
        assert not two.exists("one.txt")
        assert two.touched_files() == []

    @protects_work
    def test_iso_03_a_promotion_takes_the_work_of_its_session_alone(self, stage: Stage) -> None:
        """A promotion takes only the work of its own session.

        Otherwise unreviewed work of one agent is committed together with another agent's.
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
        """A session starts from committed content only. Otherwise the agent builds on a person's half-finished edits, and promotes them."""
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

        invariant_workspace_stands_alone(workspace_of(session), stage.judge, hidden=())

    @needs(Capability.SHELL)
    def test_iso_08_what_is_committed_to_durable_later_is_not_in_the_workspace(self, stage: Stage) -> None:
        """Later commits to durable do not appear in the workspace.

        Otherwise an agent under evaluation can read the answer that a person committed after the start.
        """
        session = stage.start()

        later = stage.rival.commit({"answer.txt": "42\n"})

        invariant_workspace_stands_alone(workspace_of(session), stage.judge, hidden=[later])

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
        mark = set_traps_in(stage, session)

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
        fresh = files_of(stage.start("fresh"))

        later = next_after(
            stage,
            f"""
            {REPOSITORY}
            echo left > left.txt && mkdir -p empty/below && rm -r lib && rm app.py && mkfifo app.py
            ln -s /etc README.tmp && mv -f README.tmp README.md
            if [ -d .git ]; then mkdir -p .git/info; echo '*.secret' >> .git/info/exclude; fi
            echo ignored > kept.secret
            """,
        )

        assert later.touched_files() == []
        assert files_of(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_16_the_modes_and_attributes_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """Modes, link counts and attributes are those of a fresh workspace.

        Otherwise the next agent cannot write a file that it has to change, or a file has a name outside its workspace.
        """
        fresh = files_of(stage.start("fresh"))
        outside = stage.path / "outside"

        later = next_after(
            stage, f"chmod 700 lib && chmod +t . && chmod a-w,a+x README.md && touch -d 2001-01-01 app.py && ln app.py '{outside}'"
        )

        assert files_of(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_17_the_git_state_of_an_ended_session_is_not_in_the_next_one(self, stage: Stage) -> None:
        """References, index, configuration, hooks and stash are those of a fresh workspace.

        Otherwise a hook of one agent's runs in the next agent's commits, or a flag in the index hides the next agent's changes.
        """
        fresh = git_state(stage, stage.start("fresh"))

        later = next_after(
            stage,
            f"""
            {REPOSITORY}
            git add --all && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m left
            git branch left && git tag left && git config alias.left status && git checkout -q -b other
            echo x >> app.py && git stash -q && git update-index --assume-unchanged README.md
            if [ -d .git ]; then mkdir -p .git/hooks .git/info; echo exit 1 > .git/hooks/pre-commit; echo '*' > .git/info/exclude; fi
            """,
        )

        assert git_state(stage, later) == fresh

    @needs(Capability.SHELL)
    def test_iso_18_the_objects_of_an_ended_session_are_not_in_the_next_one(self, stage: Stage) -> None:
        """Otherwise the next agent can read what an earlier one wrote, by its id: an answer, or a secret."""
        one = stage.start("one")
        if not (workspace_of(one) / ".git").exists():
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
        beyond_a_script(stage, "A program holds files of the ended session open.")
        one = stage.start("one")
        directory = os.open(workspace_of(one), os.O_RDONLY)
        file = os.open(workspace_of(one) / "app.py", os.O_WRONLY | os.O_APPEND)
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
        left = os.stat(workspace_of(one) / "app.py").st_mtime_ns
        one.evict()

        later = workspace_of(stage.start("later"))

        assert left not in {path.lstat().st_mtime_ns for path in later.rglob("*")}

    @needs(Capability.SHELL)
    def test_iso_21_twins_of_the_names_of_the_baseline_are_not_in_the_next_session(self, stage: Stage) -> None:
        """Files of an ended session whose names differ from the baseline's only by case or unicode form are not in the next one.

        Otherwise a system that compares names as some file systems do takes one agent's file for the next one's.
        """
        stage.durable.commit({"caf\u00e9.txt": "composed\n"})
        fresh = files_of(stage.start("fresh"))

        later = next_after(stage, "echo twin > APP.PY; mkdir -p LIB; echo twin > LIB/util.py; echo twin > 'cafe\u0301.txt'")

        assert later.touched_files() == []
        assert files_of(later) == fresh

    @needs(Capability.SHELL)
    def test_iso_22_what_an_ended_session_made_unchangeable_keeps_no_session_from_starting(self, stage: Stage) -> None:
        """Files that are immutable, or without permissions, stop no later session.

        Otherwise one agent keeps all later ones from their work by a single command.
        """
        fresh = files_of(stage.start("fresh"))
        one = stage.start("one")
        with changeable_afterwards(workspace_of(one), "README.md", "app.py", "lib"):
            run(stage, one, "chattr +i README.md 2>/dev/null || true; chattr +a app.py 2>/dev/null || true; chmod a-w lib")
            if is_writable(workspace_of(one) / "README.md") and os.access(workspace_of(one) / "lib", os.W_OK):
                pytest.skip("nothing can be made unchangeable here")
            with suppress(Exception):  # that this session cannot be cleared away is no harm to others
                one.evict()

            assert files_of(stage.start("later")) == fresh

    @needs(Capability.SHELL)
    def test_iso_23_the_disk_space_of_an_ended_session_is_not_taken_in_the_next_one(self, stage: Stage) -> None:
        """A file takes no more of the disk than in a fresh workspace.

        Otherwise what one agent allocated counts against the next one, which cannot see why.
        """
        one = stage.start("one")
        run(stage, one, f"fallocate -n -l {_ALLOCATED} app.py 2>/dev/null || true")
        if bytes_taken(workspace_of(one) / "app.py") < _ALLOCATED:
            pytest.skip("no space can be allocated behind the end of a file here")
        one.evict()

        later = stage.start("later")

        assert bytes_taken(workspace_of(later) / "app.py") < _ALLOCATED

    @needs(Capability.SHELL)
    def test_iso_24_work_through_git_changes_no_byte_of_another_workspace(self, stage: Stage) -> None:
        """Whatever an agent does through git, it changes no byte of durable, of another workspace or of the person's home directory.

        Otherwise a setting, a branch or a clean-up of one agent changes what git does for another agent, or for the person.
        """
        one, other = stage.start("one"), stage.start("other")
        outside = workspace_of(other), Path(stage.env["HOME"])
        before = [bytes_below(root) for root in outside]

        with stage.durable.unchanged():
            run(stage, one, _WORK_THROUGH_GIT)

        for root, theirs in zip(outside, before, strict=True):
            now = bytes_below(root)
            changed = sorted(path for path in theirs.keys() | now.keys() if theirs.get(path) != now.get(path))
            assert not changed, f"git in one workspace changed in {root}: {', '.join(changed)}"

    @needs(Capability.SHELL)
    def test_iso_25_work_through_git_leaves_the_null_device_alone(self, stage: Stage) -> None:
        """Whatever an agent does through git, the null device stays what it is.

        Otherwise git, which replaces the files that it writes, puts a file in its place as root, and most programs of the machine fail.
        """
        devices = stage.path / "devices"
        namespace = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        if not private_devices_work(namespace, stage.path / "tried"):
            pytest.skip("no device directory of its own can be made here")
        session = stage.start()
        watched = f"""
        {PRIVATE_DEVICES}
        before=$(stat -c '%i %F' /dev/null)
        {_WORK_THROUGH_GIT}
        [ "$(stat -c '%i %F' /dev/null)" = "$before" ] || echo replaced
        """

        printed = run(stage, session, f"{shlex.join(namespace)} sh -euc {shlex.quote(watched)} sh '{devices}'")

        assert "replaced" not in printed.splitlines(), "git replaced the null device"
