"""Every sentence of the page on limits is shown: by a small example here, or by a test elsewhere that has to exist.

A sentence that nothing shows fails, unless it is advice or says what is not tested; those are listed by name.
"""

from __future__ import annotations

import ast
import base64
import bz2
import gzip
import json
import os
import re
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import ctime
from typing import Any, Final

import pytest
from support.engine import EXECUTABLE, SUBMODULE, edited, open_site, shell
from support.secret_forms import zipped

from pytest_gittrix import LocalEphemeral
from pytest_gittrix.clock import FrozenClock, process_freeze
from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict, CapabilityMissing, FilteredContent, GittrixError, TurnBusy, WriteRejected
from pytest_gittrix.workspaces.credentials.wrappings import UNPACKED
from pytest_gittrix.workspaces.walk import Limits

TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = (TESTS.parent / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")

NOT_SHOWN: Final = (
    "What this version does not do",
    "Linux first.",
    "Everything is tested there",
    "Windows is not supported.",
    "Use WSL.",
    "Network file systems.",
    "The store needs file locks",
    "Keep the store on a local disk.",
    "A store is for one machine.",
    "The engine recognises a process at work by its file lock",
    "Control groups are not used.",
    "It is there to test systems that work that way.",
    "See [The clock].",
)
"""How sentences begin that say what to do, what is not tested, or what another machine would see."""

Example = Callable[[Path], object]
SHOWN: Final[list[tuple[tuple[str, ...], Example]]] = []


def shows(*beginnings: str) -> Callable[[Example], Example]:
    """Register an example under the beginnings of the sentences that it shows; it asserts what they say."""

    def register(example: Example) -> Example:
        SHOWN.append((beginnings, example))
        return example

    return register


IN_USE: Final = "unit/engine/test_session_in_use.py"
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "Only tests with gittrix fixtures run without": (
        "plugin/test_git_hooks.py::test_an_agent_that_a_hook_tests_commits_in_its_workspace_and_nowhere_else",
        "unit/testing/test_local_variables.py::test_an_open_world_withholds_them_and_a_closed_one_does_not",
    ),
    "In a git hook, other tests have": (
        "plugin/test_git_hooks.py::test_an_agent_that_a_hook_tests_commits_in_its_workspace_and_nowhere_else",
    ),
    "Who changed the checkout of the run": (
        "unit/testing/test_durable_repo_reads.py::test_a_change_in_the_checkout_of_the_run_is_an_assertion_error_in_four_parts",
    ),
    "`unchanged()` also fails if a person": ("unit/testing/test_durable_repo_reads.py::test_both_repositories_are_named_if_both_changed",),
    "What is changed in files alone": (
        "unit/testing/test_durable_repo_reads.py::test_the_checkout_of_the_run_is_left_out_where_asked_and_where_it_is_durables_own",
    ),
    "A process that works in a workspace is seen": (f"{IN_USE}::test_a_sweep_of_another_process_leaves_it_and_says_who_works_there",),
    "Programs of the engine are seen by a lock.": (f"{IN_USE}::test_a_look_at_the_lock_keeps_no_program_from_starting",),
    "Others are seen in `/proc`": (f"{IN_USE}::test_a_sweep_leaves_a_session_in_whose_workspace_a_stranger_works_until_it_has_gone",),
    "Those of other users or containers": (f"{IN_USE}::test_what_a_program_wrote_and_left_while_the_promotion_ran_is_archived_and_named",),
    "A program that another process started hears": (f"{IN_USE}::test_the_programs_of_another_process_hear_of_the_end_by_themselves",),
    "If that process was killed": (f"{IN_USE}::test_a_program_goes_on_whose_attendant_was_killed_and_it_is_still_seen",),
    "What is mounted in a workspace": (
        "unit/engine/test_mounts_in_workspaces.py::test_a_persons_directory_that_is_mounted_in_a_workspace_keeps_its_files",
    ),
    "Nothing in the mount is changed": (
        "unit/engine/test_mounts_in_workspaces.py::test_a_persons_directory_that_is_mounted_in_a_workspace_keeps_its_files",
        "unit/commands/test_cli_quick_look.py::test_a_store_in_which_something_is_to_be_done_is_not_at_rest",
    ),
    "There is no `flock`": ("unit/os_level/test_lease.py::test_a_file_system_without_locks_is_named",),
    "`overlay` needs Linux": ("unit/workspaces/test_overlay_workspace.py::test_where_no_overlay_can_be_mounted_a_start_says_why",),
    "Programs outside of a jail": (
        "unit/workspaces/test_overlay_workspace.py::test_a_program_outside_of_a_jail_is_refused",
        "unit/workspaces/test_overlay_workspace.py::test_where_no_overlay_can_be_mounted_a_start_says_why",
    ),
    "A directory of the baseline cannot be renamed": (
        "unit/workspaces/test_overlay_workspace.py::test_a_directory_of_the_baseline_is_not_renamed_and_can_be_moved_by_copying",
    ),
    "While a program is at work": (
        "unit/workspaces/test_overlay_workspace.py::test_while_a_program_is_at_work_the_session_reads_and_does_not_write",
    ),
    "Without locks the engine refuses": ("unit/os_level/test_lease.py::test_a_file_system_without_locks_is_named",),
    "Shallow and partial clones": ("docs/test_errors.py::test_what_the_page_says_ends_in_that_error",),
    "So is any repository extension": ("docs/test_errors.py::test_what_the_page_says_ends_in_that_error",),
    "What lands is": ("property/test_checkin_as_git_add.py::test_what_lands_is_what_git_add_makes",),
    "Attributes of a user and of a machine count for nothing": (
        "unit/git/test_conversion.py::test_the_configuration_of_the_repository_alone_counts",
    ),
    "No hooks run": (
        "story/test_design_rules.py::test_no_hook_filter_or_signing_program_runs",
        "unit/engine/test_session_commits.py::test_no_hook_of_the_agent_s_runs",
    ),
    "Commits are not signed.": ("story/test_design_rules.py::test_no_hook_filter_or_signing_program_runs",),
    "A checkout whose index is split or sparse": ("docs/test_errors.py::test_what_the_page_says_ends_in_that_error",),
    "A larger file cannot be promoted.": ("unit/engine/test_session_large_files.py::test_by_the_refusal_of_a_promotion",),
    "It is among the touched files": (
        "unit/engine/test_session_large_files.py::test_among_the_touched_files",
        "unit/engine/test_session_large_files.py::test_before_the_diff_which_git_still_applies",
        "unit/engine/test_session_large_files.py::test_where_the_agent_commits_and_where_its_files_are_put_by",
        "unit/engine/test_session_large_files.py::test_when_the_session_ends",
        "unit/engine/test_session_large_files.py::test_as_a_whole_workspace_if_it_is_more_than_is_copied",
    ),
    "In a sweep one session may take": ("unit/engine/test_sweep_budget.py::test_who_takes_too_long_twice_is_kept_whole",),
    "One that takes longer to archive": ("unit/engine/test_sweep_budget.py::test_who_takes_too_long_twice_is_kept_whole",),
    "Whether a session is in use is seen from all its files": (
        "unit/engine/test_sweep_budget.py::test_a_session_whose_files_take_too_long_to_look_at_is_judged_last_and_by_all_of_them",
    ),
    "Only programs that the engine starts are confined": (
        "unit/confine/test_confine_levels.py::test_a_program_is_confined_unless_off_is_named",
    ),
    "Agents that stay, evals and `agent.run`": (
        "unit/confine/test_confine_levels.py::test_a_program_is_confined_unless_off_is_named",
        "unit/confine/test_confine_levels.py::test_auto_takes_the_strongest_there_is_and_says_why_it_is_not_stronger",
    ),
    "Limits of processes, memory, disk": (
        "unit/confine/test_limits.py::test_without_limits_nobody_measures",
        "unit/confine/test_limits.py::test_limits_that_nothing_would_keep_are_refused",
    ),
    "They are polled": (
        "unit/confine/test_limits.py::test_a_program_that_passes_a_limit_is_ended_and_the_limit_is_named",
        "unit/confine/test_limits.py::test_the_kernel_itself_keeps_a_jail_to_300_processes_more_than_its_limit",
    ),
    "What a commit says and the names": (
        "unit/members/test_finalize.py::test_a_commit_whose_words_hold_a_secret_is_not_pushed",
        "unit/members/test_finalize.py::test_a_branch_whose_name_is_a_secret_is_not_pushed_and_not_repeated",
        "unit/engine/test_session_side_work.py::test_a_local_promotion_tells_of_secrets_before_it_lands",
    ),
    "Finalization keeps back files": (
        "unit/members/test_finalize.py::test_of_typical_secrets_none_reaches_the_remote_and_each_is_in_the_report",
    ),
    "A power cut can take the last writes": (
        "quality/test_power_cuts.py::test_a_promotion_is_there_whole_or_can_be_made_again",
        "quality/test_power_cuts.py::test_discarded_work_is_in_its_archive_or_still_there",
        "quality/test_power_cuts.py::test_a_session_that_was_started_is_untouched_and_one_that_was_not_is_gone",
    ),
    "Pull requests are opened at GitHub": ("unit/engine/test_promote_pr.py::test_the_work_is_one_commit_on_a_branch_with_a_pull_request",),
    "With a durable repository on this machine": (
        "unit/engine/test_promote_pr_refused.py::test_a_local_repository_that_is_not_the_forges_is_told_to_be_pushed",
    ),
    "A pull request that was squashed": (
        "unit/engine/test_promote_pr.py::test_after_a_kill_a_squashed_request_whose_branch_is_gone_is_not_seen",
    ),
    "For a remote given by address": ("unit/backends/test_durable_urls.py::test_an_engine_on_an_address_starts_and_promotes_there",),
    "A checkout is brought forward file by file.": ("unit/git/test_checkout_update_edge_cases.py::test_costs_only_that_file",),
    "A disk that fills up in the middle": (
        "unit/engine/test_session_unwritable_checkouts.py::test_a_full_disk_is_told_with_what_mends_it",
    ),
    "A reader may see some files new": ("unit/git/test_checkout_update_edge_cases.py::test_costs_only_that_file",),
    "Two frozen clocks in one process": (
        "unit/clock/test_freeze_neighbours.py::test_a_process_that_freezegun_already_holds_is_refused_and_left_as_it_was",
        "unit/clock/test_freeze_neighbours.py::test_a_process_that_time_machine_already_holds_is_refused",
        "unit/clock/test_freeze_neighbours.py::test_another_library_is_refused_inside_however_it_is_started_and_the_first_goes_on",
    ),
    "With `autojump`": ("unit/clock/test_autojump.py::test_what_is_not_reached_sleeps_for_real_and_moves_nothing",),
    "A confined Python program": ("unit/clock/test_child_clock.py::test_a_confined_program_keeps_the_instant_at_which_it_was_started",),
    "An engine without a clock follows no other library": (
        "unit/engine/test_engine_in_a_frozen_process.py::test_under_another_library_it_stays_on_the_machines_time_and_says_so",
    ),
    "`--gittrix-freeze=none` is the way around.": (
        "plugin/test_process_freeze.py::test_with_freeze_none_only_the_engines_clock_stands_still",
    ),
}
"""Sentences by their beginnings, and the tests that show them."""


# Examples ----------------------------------------------------------------------------------------------------------------------------


def _site(path: Path, files: dict[str, Any] | None = None, **options: Any) -> Any:
    return open_site(path, files or {"app.py": "v1\n", "README.md": "# A project\n"}, **options)


def _root(session: UserSession) -> Path:
    assert session.workspace_path is not None
    return session.workspace_path


@shows("Durable should be on one too")
def _a_lock_of_durable_is_a_hard_link(path: Path) -> None:
    linked: list[str] = []
    real = os.link
    with pytest.MonkeyPatch.context() as patch, _site(path) as site:
        session = site.start()
        session.write("app.py", "v2\n")

        def link(source: Any, target: Any, **where: Any) -> None:
            linked.append(os.fspath(target))
            real(source, target, **where)

        patch.setattr(os, "link", link)
        session.promote()
    assert {"main.lock", "index.lock"} <= {os.path.basename(name) for name in linked}


@shows("sha256 is slower.")
def _objects_of_sha256_come_from_one_git(path: Path) -> None:
    started: list[object] = []
    with pytest.MonkeyPatch.context() as patch, _site(path, object_format="sha256") as site:
        real = subprocess.Popen

        def start(command: list[str], *arguments: Any, **settings: Any) -> Any:
            started.extend([command] * ("cat-file" in command))
            return real(command, *arguments, **settings)

        patch.setattr(subprocess, "Popen", start)
        session = site.start()
        session.write("app.py", "v2\n")
        assert "-v1" in session.diff()
        opened = len(started)
        assert opened in (1, 2)  # of durable, and of the baseline
        session.write("README.md", "another\n")
        assert "-# A project" in session.diff()
        assert len(started) == opened


@shows("Submodules are pointers.", "They are not checked out", "Files in that directory are not looked at")
def _a_submodule_is_an_empty_directory(path: Path) -> None:
    pointer = "1" * 40
    with _site(path, {"app.py": "v1\n", "lib": (SUBMODULE, pointer)}) as site:
        session = site.start()
        assert os.listdir(_root(session) / "lib") == []
        session.write("app.py", "v2\n")
        (_root(session) / "lib" / "file").write_text("lost?\n")
        assert session.touched_files() == ["app.py", "lib"]
        with pytest.raises(WriteRejected, match="what is inside it is not looked at"):
            session.promote()
        session.promote(["app.py"])
        assert site.durable.tree()["lib"] == (SUBMODULE, pointer)


@shows("A nested repository's files elsewhere")
def _a_nested_repository_is_files(path: Path) -> None:
    with _site(path) as site:
        session = site.start()
        shell(session, "mkdir nested; cd nested; git init -q; echo x > file; git add file")
        assert session.touched_files() == ["nested/file"]
        session.promote()
        assert [name for name in site.durable.tree() if name.startswith("nested")] == ["nested/file"]


@shows(
    "Filters are not run.",
    "Workspaces hold the bytes that are in the repository",
    "In a checkout that is brought forward a filtered file",
    "`core.safecrlf` refuses nothing.",
)
def _bytes_are_bytes(path: Path) -> None:
    attributes = "*.txt text eol=crlf\n*.c ident\n*.bin filter=lfs\n"
    files = {".gitattributes": attributes, "a.txt": "one\n", "b.c": "$Id$\n", "c.bin": "version https://git-lfs.github.com/spec/v1\n"}
    with _site(path, files) as site:
        session = site.start()
        assert {name: (_root(session) / name).read_bytes().decode() for name in files} == files
        site.durable.git("config", "core.safecrlf", "true")
        session.write("a.txt", b"one\r\ntwo\n")
        session.write("c.bin", "model\n")
        with pytest.raises(FilteredContent):
            session.promote()
        session.promote(allow_filtered=True)
        assert site.durable.read("a.txt") == b"one\ntwo\n"
        assert site.durable.read("c.bin") == (site.durable.path / "c.bin").read_bytes() == b"model\n"


@shows("Where an encoding is declared, the agent's own git fails", "The session's commits and promotions take it.")
def _an_encoding_of_the_repository(path: Path) -> None:
    with _site(path, {".gitattributes": "*.rc working-tree-encoding=UTF-16\n", "a.rc": "1\n"}) as site:
        session = site.start()
        session.write("a.rc", "2\n")
        assert "fatal" in shell(session, "git add a.rc 2>&1 || true")
        session.commit("mine")
        session.promote()
        assert site.durable.read("a.rc") == b"2\n"


@shows("References that are symbolic")
def _a_branch_that_stands_for_another(path: Path) -> None:
    with _site(path) as site:
        site.durable.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
        with pytest.raises(GittrixError, match="alias"):
            session = site.start(durable_branch="alias")
            session.write("app.py", "v2\n")
            session.promote()
        assert site.durable.read("app.py") == b"v1\n"


@shows(
    "`lazy` sees deletions only through the session.", "An absent file may never have been written", "Programs find only what was written."
)
def _a_lazy_workspace_holds_what_was_written(path: Path) -> None:
    with _site(path) as site:
        session = site.start(workspace="lazy")
        session.write("app.py", "v2\n")
        workspace = site.directory(session) / "workspace"
        assert os.listdir(workspace) == ["app.py"]
        (workspace / "app.py").unlink()
        assert session.touched_files() == []
        session.delete("README.md")
        assert session.touched_files() == ["README.md"]


@shows(
    "Untracked files that both sets of ignore rules ignore",
    "One set is the baseline's `.gitignore` files; the other is those of the workspace",
    "What only the second set ignores is touched, and promoted if it is named.",
    "The user's own rules (`core.excludesFile`) count for nothing.",
)
def _ignored_files_are_not_touched_files(path: Path) -> None:
    with _site(path, {".gitignore": "*.log\n"}) as site:
        session = site.start()
        shell(session, "echo x > a.log; echo x > b.log; echo x > d.log; git add -f d.log; mkdir .git/info; echo '*.py' > .git/info/exclude")
        shell(session, "echo x > c.py; echo '*.txt' > ../own; git config core.excludesFile ../own; echo x > e.txt")
        session.write("b.log", "named\n")
        assert session.touched_files() == ["b.log", "c.py", "d.log", "e.txt"]
        assert [*site.durable.changed(session.promote(["c.py"]).sha)] == ["c.py"]
        assert "+named" in (site.directory(session) / "archive.patch").read_text()


@shows("An archive holds ignored files up to 32 MiB and 2,000 in all", "What is over the limit goes with its workspace;")
def _large_ignored_files_are_named(path: Path) -> None:
    with _site(path, {".gitignore": "*.log\nout/\n__pycache__/\n"}) as site:
        session = site.start()
        shell(session, "mkdir out __pycache__; truncate -s 33M out/a; echo x > b.log; echo x > __pycache__/c.pyc; echo x > new.py")
        (warning,) = session.promote().warnings
        assert "'out/' (1 file, 34603008 bytes)" in warning
        archive, ref = str(site.directory(session) / "archive.git"), f"refs/gittrix/archive/{session.id}"
        listed = site.durable.git("--git-dir", archive, "ls-tree", "-r", "--name-only", ref)
        assert {"b.log", "out/a", "__pycache__/c.pyc"} & {*listed.splitlines()} == {"b.log"}


@shows("Empty directories, sockets, pipes and times", "Only the executable bit of a mode is kept.")
def _what_git_does_not_keep_is_no_change(path: Path) -> None:
    with _site(path) as site:
        session = site.start()
        shell(session, "mkdir empty; mkfifo pipe; touch -d 2001-01-01 app.py; chmod 640 README.md; echo x > run; chmod 711 run")
        assert session.touched_files() == ["run"]
        session.promote()
        assert site.durable.tree()["run"][0] == EXECUTABLE


@shows("Renames are not guessed.", "A rename is a deletion and an addition.")
def _a_rename_is_two_changes(path: Path) -> None:
    with _site(path) as site:
        session = site.start()
        shell(session, "git mv app.py main.py")
        review = session.review()
        assert {name: entry is None for name, entry in review.changes.items()} == {"app.py": True, "main.py": False}


@shows("A snapshot is held in memory.", "By default a file may have 100 MiB")
def _a_snapshot_has_limits(path: Path) -> None:
    assert Limits() == Limits(max_file=100 << 20, max_total=1 << 30, max_files=100_000)
    for limits in (Limits(max_total=8), Limits(max_files=1)):
        with _site(path / repr(limits), ephemeral=LocalEphemeral(limits=limits)) as site:
            session = site.start()
            shell(session, "echo 12345 > a; echo 12345 > b")
            with pytest.raises(WriteRejected, match="A snapshot is held in memory"):
                session.touched_files()


@shows(
    "A secret without a shape is not found.",
    "A password has 12 characters or more there",
    "A password that is made of words",
    "The same rules are behind `Review.secrets`.",
)
def _secrets_are_known_by_their_shape(path: Path) -> None:
    found = {
        "id_rsa": "anything\n",
        "issuer.py": f"x = 'ghp_{'0aB1cD2eF3' * 3}123456'\n",
        "private.txt": "-----BEGIN RSA PRIVATE KEY-----\n",
        "address.txt": "postgres://user:gB7kq2Zx9w@db.example.com/app\n",
        "named.py": "token = 'q8Zt4Vn1xK7bR2mW9cLp'\n",
        "bearer.sh": "curl -H 'Authorization: Bearer q8Zt4Vn1xK7bR2mW9cLp'\n",
        "flag.sh": "tool --token q8Zt4Vn1xK7bR2mW9cLp\n",
        "mysql.sh": "mysql -pq8Zt4Vn1xK7b app\n",
        "key.jwk": '{"d": "q8Zt4Vn1xK7bR2mW9cLpq8Zt4Vn1xK7bR2mW9cLp"}\n',
        "short.py": "password = 'q8Zt4Vn1xK7b'\n",
    }
    passed = {
        "words.py": "password = 'correct horse battery staple'\n",
        "shorter.py": "password = 'q8Zt4Vn1xK7'\n",
        "short.sh": "tool --token q8Zt4Vn1xK7bR2m\n",
    }
    with _site(path) as site:
        session = site.start()
        for name, text in (found | passed).items():
            session.write(name, text)
        assert sorted(session.review().secrets) == sorted(found)


@shows("Secrets are looked for one level deep.", "Text in UTF-16, a zip", "Nothing is found in a zip", "In bytes that are no text")
def _secrets_are_looked_for_one_level_deep(path: Path) -> None:
    line = f"x = 'ghp_{'0aB1cD2eF3' * 3}123456'\n"
    inner = zipped("a.txt", line)
    once = {
        "utf16.txt": line.encode("utf-16"),
        "a.jar": inner,
        "log.gz": gzip.compress(line.encode()),
        "word.txt": base64.b64encode(line.encode()),
        "program": b"\x7fELF\0\1\2" + line.encode(),
    }
    deeper = {
        "outer.zip": zipped("inner.zip", inner.decode("latin-1")),
        "log.bz2": bz2.compress(line.encode()),
        "lines.txt": b"\n".join(base64.b64encode(line.encode())[at : at + 20] for at in range(0, 68, 20)),
        "large.gz": gzip.compress(b"x\n" * UNPACKED + line.encode()),
        "password": b"\x7fELF\0\1\2password = 'q8Zt4Vn1xK7b'\n",
    }
    with _site(path) as site:
        session = site.start()
        for name, data in (once | deeper).items():
            (_root(session) / name).write_bytes(data)
        assert sorted(session.review().secrets) == sorted(once)


@shows("`worktree` isolates nothing.")
def _a_worktree_shares_durables_references(path: Path) -> None:
    with _site(path) as site:
        shell(site.start(workspace="worktree"), "git branch from-the-agent")
        assert "from-the-agent" in site.durable.branches()


# Promotion ---------------------------------------------------------------------------------------------------------------------------


@shows("Overlap is judged by file.", "Edits far apart in one file overlap")
def _edits_far_apart_overlap(path: Path) -> None:
    with open_site(path) as site:
        session = site.start()
        session.write("src/util.py", edited(2))
        site.durable.commit({"src/util.py": edited(39)})
        with pytest.raises(BaselineConflict):
            session.promote()
        session.promote(on_overlap="merge")
        assert site.durable.read("src/util.py").decode() == edited(2, 39)


@shows("Merging is a little stricter than git's")
def _what_git_merges_and_the_engine_does_not(path: Path) -> None:
    base, ours, theirs = "a\na\nb\nb\n", "b\na\na\na\nb\n", "a\na\nb\n"
    with _site(path, {"a.txt": base}) as site:
        session = site.start()
        session.write("a.txt", ours)
        site.durable.commit({"a.txt": theirs})
        with pytest.raises(BaselineConflict):
            session.promote(on_overlap="merge")
        for name, text in {"base": base, "ours": ours, "theirs": theirs}.items():
            (path / name).write_text(text)
        assert site.durable.git("merge-file", "-p", *(str(path / name) for name in ("ours", "base", "theirs"))) == ours.rstrip()


# Time and turns ----------------------------------------------------------------------------------------------------------------------


@shows("A frozen clock does not reach")
def _the_systems_own_clock_goes_on(path: Path) -> None:
    with process_freeze(FrozenClock()):
        assert time.time() == FrozenClock().now().timestamp()
        assert sqlite3.connect(":memory:").execute("select strftime('%Y')").fetchone() != ("2030",)
        assert time.clock_gettime(time.CLOCK_TAI) != time.time()
        assert not ctime().endswith("2030")
        path.joinpath("file").touch()
        assert path.joinpath("file").stat().st_mtime != time.time()
        out = subprocess.run(["date", "+%Y"], capture_output=True, check=True, env={"PATH": os.environ["PATH"]}).stdout
    assert int(out) != FrozenClock().now().year


@shows('With `freeze="all"`, monotonic time')
def _a_monotonic_function_that_is_kept(_: Path) -> None:
    kept = [time.monotonic]
    with process_freeze(clock := FrozenClock(), "all"):
        before = kept[0](), time.monotonic()
        clock.advance(hours=1)
        assert kept[0]() - before[0] < 3600 <= time.monotonic() - before[1]


@shows("A promotion does not wait for a running turn", "The turn ends with the session", "Call `interrupt()` first", "Only a handoff")
def _a_promotion_beside_a_turn(path: Path) -> None:
    with _site(path) as site:
        session = site.start()
        session.write("app.py", "v2\n")
        over = threading.Event()
        turn = session.start_turn(lambda _: over.wait(60), runs="thread")
        with pytest.raises(TurnBusy):
            session.handoff()
        with pytest.raises(TurnBusy):
            session.start_turn(lambda _: None, runs="thread")
        session.promote(keep=True)
        assert session.turn_running
        session.write("app.py", "v3\n")
        session.promote()
        assert turn.wait(60)
        over.set()
        assert (turn.status, site.durable.read("app.py")) == ("interrupted", b"v3\n")
        other = site.start()
        other.start_turn(lambda _: over.wait(60), runs="thread")
        other.interrupt()
        assert not other.turn_running


@shows("A turn in a thread cannot be ended")
def _a_turn_in_a_thread_writes_on(path: Path) -> None:
    with _site(path) as site:
        session = site.start()
        begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

        def work(_: TurnContext) -> None:
            begun.set()
            go_on.wait(60)
            (_root(session) / "late.txt").write_text("after the interrupt\n")
            over.set()

        session.start_turn(work, runs="thread")
        begun.wait(60)
        assert session.interrupt()
        go_on.set()
        over.wait(60)
        assert session.touched_files() == ["late.txt"]


@shows("A `worktree` cannot be handed on")
def _what_cannot_be_handed_on(path: Path) -> None:
    with _site(path) as site:
        linked, foreign = site.start(workspace="worktree"), site.start()
        with pytest.raises(CapabilityMissing, match="worktree"):
            linked.handoff()
        record = site.directory(foreign) / "metadata.json"
        assert foreign.info().state == "active"
        record.write_text(json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "log"}))
        record.with_name("events.jsonl").unlink()
        with pytest.raises(CapabilityMissing, match="another system"):
            site.another().get_session(foreign.id).handoff()


# The page ----------------------------------------------------------------------------------------------------------------------------


def _sentences() -> Iterator[str]:
    for block in re.split(r"\n(?=- |\n|#)", PAGE):
        text = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()).removeprefix("- ")).replace("**", "")
        if text and not text.startswith("#"):
            yield from re.split(r"(?<=[.!?]) (?=[A-Z`])", text)


BEGINNINGS: Final = (*NOT_SHOWN, *ELSEWHERE, *(beginning for beginnings, _ in SHOWN for beginning in beginnings))


def test_every_sentence_is_shown_or_says_what_nobody_can_show() -> None:
    shown = {sentence: [words for words in BEGINNINGS if sentence.startswith(words)] for sentence in _sentences()}

    assert [sentence for sentence, found in shown.items() if len(found) != 1] == []


def test_nothing_is_shown_that_the_page_does_not_say() -> None:
    assert [words for words in BEGINNINGS if sum(sentence.startswith(words) for sentence in _sentences()) != 1] == []


@pytest.mark.parametrize("example", [example for _, example in SHOWN], ids=lambda example: example.__name__.strip("_"))
def test_what_the_page_says_is_so(example: Example, tmp_path: Path) -> None:
    example(tmp_path)


def test_the_tests_that_show_a_sentence_elsewhere_exist() -> None:
    named = [test.partition("::") for tests in ELSEWHERE.values() for test in tests]

    assert [f"{file}::{name}" for file, _, name in named if name not in _tests_of(file)] == []


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
