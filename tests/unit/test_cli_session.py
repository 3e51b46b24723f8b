"""What people see: each verb on real repositories, from wherever they stand, in words and exit statuses a shell can work with."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import FILES, Cli, Terminal

from pytest_gittrix.cli import commands
from pytest_gittrix.cli.output import working

SPREAD = FILES["src/util.py"].replace("line 2\n", "line two\n").replace("line 15\n", "line fifteen\n").replace("line 29\n", "line 29!\n")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsysbinary)


# Starting -----------------------------------------------------------------------------------------------------------------------


def test_start_prints_the_id_then_the_workspace(cli: Cli) -> None:
    id_, workspace = cli.ok("session", "start", "--task", "say hello").lines

    assert id_.startswith("sess_")
    assert {path: Path(workspace, path).read_text() for path in FILES} == FILES


def test_a_session_starts_on_the_branch_the_repository_is_on(cli: Cli) -> None:
    cli.git("switch", "-q", "-c", "feature")
    head = cli.commit({"app.py": "feature\n"})

    info = cli.data("session", "info", cli.start())

    assert (info["durableBranch"], info["baselineSha"]) == ("feature", head)


def test_a_branch_can_be_named(cli: Cli) -> None:
    cli.git("switch", "-q", "-c", "feature")

    assert cli.data("session", "start", "x", "-b", "trunk")["durableBranch"] == "trunk"
    assert "trunk" in cli.refused("session", "start", "x", "--branch", "gone")


def test_a_detached_head_needs_a_branch(cli: Cli) -> None:
    cli.git("switch", "-q", "--detach")

    assert "--branch" in cli.refused("session", "start", "x")
    assert cli.start("--branch", "trunk")


def test_a_session_starts_from_any_subdirectory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.project / "src")

    id_ = cli.start()

    assert cli.data("session", "info", id_)["durablePath"] == str(cli.project)
    assert cli.ok("session", "read", id_, "app.py").text == FILES["app.py"]


@pytest.mark.parametrize("place", [["--durable", "../other"], ["-d", "../other/src"]])
def test_another_repository_can_be_named(cli: Cli, place: list[str]) -> None:
    other = cli.repository("other", branch="main")
    head = cli.git("rev-parse", "HEAD", cwd=cli.project)

    id_ = cli.start(*place)
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")
    cli.ok("promote", id_)

    assert cli.git("show", "main:app.py", cwd=other) == "hello\n"
    assert cli.git("rev-parse", "HEAD", cwd=cli.project) == head


def test_a_linked_work_tree_starts_on_its_own_branch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.git("worktree", "add", "-q", "-b", "linked", "../linked")
    monkeypatch.chdir(cli.root / "linked")

    assert cli.data("session", "start", "x")["durableBranch"] == "linked"


def test_a_bare_repository_is_durable_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = cli.root / "bare.git"
    cli.git("clone", "-q", "--bare", str(cli.project), str(bare))
    monkeypatch.chdir(bare)

    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")
    cli.ok("promote", id_)

    assert cli.git("show", "trunk:app.py", cwd=bare) == "hello\n"


def test_outside_of_a_repository_nothing_starts(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "elsewhere").mkdir()
    monkeypatch.chdir(cli.root / "elsewhere")

    assert "is not in a git repository" in cli.refused("session", "start", "x")
    assert cli.data("session", "list") == []


@pytest.mark.parametrize("kind", ["clone", "lazy", "copy", "worktree"])
def test_every_kind_of_workspace_reads_and_promotes(cli: Cli, kind: str) -> None:
    id_ = cli.start("--workspace", kind)

    cli.ok("session", "write", id_, "app.py", stdin="hello\n")
    cli.ok("promote", id_, "-m", kind)

    assert cli.git("log", "-1", "--format=%s") == f"{kind}\n"
    assert cli.git("show", "HEAD:app.py") == "hello\n"


def test_history_is_what_the_agent_may_see(cli: Cli) -> None:
    cli.commit({"app.py": "v2\n"})
    cli.commit({"app.py": "v3\n"})

    seen = {
        history: cli.git("rev-list", "--count", "HEAD", cwd=cli.workspace(cli.start("--history", history))) for history in ("none", "1", "full")
    }

    assert seen == {"none": "1\n", "1": "2\n", "full": "3\n"}


# Looking ------------------------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_in_a_table(cli: Cli) -> None:
    clock = cli.freeze()
    ended, live = cli.start(), cli.start("--ttl", "2d")
    cli.ok("session", "discard", ended)
    clock.advance(minutes=90)

    heading, first, second = cli.ok("session", "list").lines

    assert heading.split() == ["ID", "STATE", "TASK", "BRANCH", "AGE", "EXPIRES", "IN", "TOUCHED"]
    assert first.split() == [ended, "discarded", "say", "hello", "trunk", "1h30m", "0"]
    assert second.split() == [live, "active", "say", "hello", "trunk", "1h30m", "1d22h", "0"]


def test_a_list_is_narrowed_by_state_and_repository(cli: Cli) -> None:
    here, gone = cli.start(), cli.start()
    cli.ok("session", "discard", gone)
    cli.repository("other")
    there = cli.start("-d", "../other")

    def listed(*arguments: str) -> list[str]:
        return [one["id"] for one in cli.data("session", "list", *arguments)]

    assert sorted(listed()) == sorted([here, gone, there])
    assert sorted(listed("--status", "active")) == sorted([here, there])
    assert listed("discarded") == [gone]
    assert sorted(listed("all", "-d", "src")) == sorted([here, gone])
    assert listed("-s", "active", "-d", "../other") == [there]


def test_an_empty_list_says_so(cli: Cli) -> None:
    assert cli.ok("session", "ls").text == "There are no sessions.\n"


def test_a_list_goes_on_past_a_damaged_record_and_names_it(cli: Cli) -> None:
    good, bad = cli.start(), cli.start()
    (cli.home / "sessions" / bad / "events.jsonl").write_text("not an event\nnor this\n")

    ran = cli("session", "list")

    assert ran.status == 0
    assert good in ran.text
    assert bad not in ran.text
    assert bad in ran.err


def test_info_shows_how_a_session_stands(cli: Cli) -> None:
    cli.freeze()
    id_ = cli.start("--ttl", "30m")
    cli.ok("session", "write", id_, "new.py", stdin="x\n")
    cli.ok("session", "delete", id_, "app.py")

    shown = cli.ok("session", "info", id_).lines

    assert f"id          {id_}" in shown
    assert "state       active" in shown
    assert "expires in  30m" in shown
    assert shown[-2:] == ["touched     app.py", "            new.py"]


def test_reading_and_writing_are_exact_to_the_byte(cli: Cli) -> None:
    contents = bytes(range(256)) * 3 + b"no newline"
    id_ = cli.start()

    assert cli.ok("session", "write", id_, "data/raw.bin", stdin=contents).out == b""
    assert cli.ok("session", "read", id_, "data/raw.bin").out == contents


def test_a_deleted_file_is_gone(cli: Cli) -> None:
    id_ = cli.start()

    cli.ok("session", "delete", id_, "app.py")

    assert "app.py" in cli.refused("session", "read", id_, "app.py")
    assert cli.ok("session", "list-files", id_).lines == ["README.md", "src/", "src/util.py"]


def test_files_are_listed_below_a_directory(cli: Cli) -> None:
    id_ = cli.start()

    assert cli.ok("session", "list-files", id_, "src").lines == ["src/util.py"]
    assert "'nowhere'" in cli.refused("session", "list-files", id_, "nowhere")


@pytest.mark.parametrize("path", ["../escape.py", "/etc/passwd", ".git/config", "a//b"])
def test_a_path_out_of_the_workspace_is_refused(cli: Cli, path: str) -> None:
    id_ = cli.start()

    assert cli.error("session", "write", id_, path, stdin="x")["code"] == "WRITE_REJECTED"
    assert cli.ok("session", "touched", id_).text == ""


def test_touched_counts_what_the_agent_did_in_a_shell(cli: Cli) -> None:
    id_ = cli.start()
    (cli.workspace(id_) / "shell.txt").write_text("by hand\n")
    cli.ok("session", "write", id_, "app.py", stdin="x\n")

    assert cli.ok("session", "touched", id_).lines == ["app.py", "shell.txt"]


def test_a_diff_is_a_patch_that_git_applies(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin=b"caf\xe9\n")
    cli.ok("session", "delete", id_, "README.md")

    cli.git("apply", stdin=cli.ok("session", "diff", id_).out)

    assert (cli.project / "app.py").read_bytes() == b"caf\xe9\n"
    assert not (cli.project / "README.md").exists()


def test_a_diff_can_be_of_some_paths(cli: Cli) -> None:
    id_ = cli.start()
    for path in ("app.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="x\n")

    shown = cli.ok("session", "diff", id_, "app.py").text

    assert "b/app.py" in shown
    assert "README.md" not in shown
    assert "'nothing.py'" in cli.refused("session", "diff", id_, "nothing.py")


def test_hunks_are_shown_under_the_names_that_promote_takes(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "src/util.py", stdin=SPREAD)
    cli.ok("session", "write", id_, "new.py", stdin="x\n")

    shown = cli.ok("session", "diff", id_, "--hunks").lines

    assert [line for line in shown if line.startswith(("src/util.py:", "new.py"))] == [
        "new.py (only as a whole)",
        "src/util.py:1",
        "src/util.py:2",
        "src/util.py:3",
    ]
    assert "+line fifteen" in shown


def test_the_agents_commits_are_logged_newest_first(cli: Cli) -> None:
    id_ = cli.start()
    shas = []
    for message in ("one", "two\n\nwith a body"):
        cli.ok("session", "write", id_, "app.py", stdin=message)
        shas += cli.ok("session", "commit", id_, "--message", message).lines

    second, first = cli.ok("session", "log", id_).lines

    assert second.startswith(shas[1][:12])
    assert second.endswith("  agent  two")
    assert first.startswith(shas[0][:12])


def test_an_empty_commit_message_is_refused(cli: Cli) -> None:
    assert "message is empty" in cli.refused("session", "commit", cli.start(), "-m", "  ")


# Ids ----------------------------------------------------------------------------------------------------------------------------


def test_the_beginning_of_an_id_is_enough(cli: Cli) -> None:
    id_ = cli.start()

    assert cli.ok("session", "info", id_[:6]).lines[0] == f"id          {id_}"
    assert cli.ok("session", "discard", "sess").lines == [id_]


def test_the_beginning_of_several_ids_names_them(cli: Cli) -> None:
    ids = sorted([cli.start(), cli.start()])

    told = cli.refused("session", "read", "sess_", "app.py")

    assert ", ".join(ids) in told


@pytest.mark.parametrize(("text", "told"), [("sess_nobody", "no session 'sess_nobody'"), ("../x", "'../x' is not a session id"), ("", "''")])
def test_an_id_of_nobody_is_named(cli: Cli, text: str, told: str) -> None:
    cli.start()

    assert told in cli.refused("session", "info", text)


# Ending -------------------------------------------------------------------------------------------------------------------------


def test_a_promotion_is_one_commit_and_ends_the_session(cli: Cli) -> None:
    before = cli.git("rev-parse", "HEAD")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    sha, branch = cli.ok("promote", id_).text.split()

    assert (sha, branch) == (cli.git("rev-parse", "HEAD").strip(), "trunk")
    assert cli.git("rev-parse", "HEAD^") == before
    assert cli.git("log", "-1", "--format=%s %an") == "gittrix: say hello Ada\n"
    assert (cli.project / "app.py").read_text() == "hello\n"
    assert cli.git("status", "--porcelain") == ""
    assert "was promoted" in cli.refused("session", "read", id_, "app.py")
    assert "state       promoted" in cli.ok("session", "info", id_).lines


@pytest.mark.parametrize("selection", [["--files", "app.py, new.py"], ["-f", "app.py", "-f", "new.py"], ["app.py", "new.py"], ["app.py", "--files=new.py"]])
def test_only_selected_files_are_promoted(cli: Cli, selection: list[str]) -> None:
    id_ = cli.start()
    for path in ("app.py", "new.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="x\n")

    cli.ok("promote", id_, *selection, "--message", "some")

    assert cli.git("diff", "--name-only", "HEAD^", "HEAD").split() == ["app.py", "new.py"]


def test_only_selected_hunks_are_promoted(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "src/util.py", stdin=SPREAD)
    cli.ok("session", "write", id_, "app.py", stdin="x\n")

    cli.ok("promote", id_, "--hunks", "src/util.py:1", "--hunks", "src/util.py:3")

    changed = [line for line in cli.git("diff", "-U0", "HEAD^", "HEAD").splitlines() if line.startswith("+")]
    assert changed == ["+++ b/src/util.py", "+line two", "+line 29!"]


def test_files_and_hunks_are_promoted_together(cli: Cli) -> None:
    id_ = cli.start()
    for path, contents in {"src/util.py": SPREAD, "app.py": "x\n", "README.md": "y\n"}.items():
        cli.ok("session", "write", id_, path, stdin=contents)

    cli.ok("promote", id_, "app.py", "--hunks", "src/util.py:2")

    assert cli.git("diff", "--name-only", "HEAD^", "HEAD").split() == ["app.py", "src/util.py"]
    assert "line fifteen" in cli.git("show", "HEAD:src/util.py")
    assert "line two" not in cli.git("show", "HEAD:src/util.py")


def test_a_conflict_names_the_paths_and_leaves_the_session_as_it_was(cli: Cli) -> None:
    id_ = cli.start()
    for path in ("app.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="ours\n")
    head = cli.commit({"app.py": "theirs\n"})

    told = cli.refused("promote", id_)

    assert "'app.py'" in told
    assert "README.md" not in told
    assert cli.git("rev-parse", "HEAD").strip() == head
    assert cli.ok("session", "touched", id_).lines == ["README.md", "app.py"]
    cli.ok("promote", id_, "README.md")


def test_overlap_can_be_merged(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "src/util.py", stdin=FILES["src/util.py"].replace("line 29\n", "ours\n"))
    cli.commit({"src/util.py": FILES["src/util.py"].replace("line 2\n", "theirs\n")})

    assert cli("promote", id_, "--on-overlap", "allow-identical").status == 1
    cli.ok("promote", id_, "--on-overlap", "merge")

    merged = cli.git("show", "HEAD:src/util.py").splitlines()
    assert (merged[1], merged[28]) == ("theirs", "ours")


def test_uncommitted_work_in_the_way_is_refused(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="ours\n")
    (cli.project / "app.py").write_text("the person's\n")

    assert cli.error("promote", id_)["code"] == "WORKTREE_DIRTY"
    assert (cli.project / "app.py").read_text() == "the person's\n"


def test_the_strategy_branch_leaves_the_branch_alone(cli: Cli) -> None:
    head = cli.git("rev-parse", "trunk")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    sha, branch = cli.ok("promote", id_, "-s", "branch").text.split()

    assert branch == "gittrix/say-hello"
    assert cli.git("rev-parse", branch).strip() == sha
    assert cli.git("rev-parse", "trunk") == head


def test_the_strategy_patch_prints_a_patch_and_moves_nothing(cli: Cli) -> None:
    head = cli.git("rev-parse", "HEAD")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin=b"caf\xe9\n")

    patch = cli.ok("promote", id_, "--strategy", "patch").out

    assert cli.git("rev-parse", "HEAD") == head
    cli.git("apply", stdin=patch)
    assert (cli.project / "app.py").read_bytes() == b"caf\xe9\n"


def test_a_workspace_can_be_kept_after_the_promotion(cli: Cli) -> None:
    kept, gone = cli.start("--keep-after-promote"), cli.start()
    places = {id_: cli.workspace(id_) for id_ in (kept, gone)}
    for id_, path in ((kept, "a"), (gone, "b")):
        cli.ok("session", "write", id_, path, stdin="x\n")
        cli.ok("promote", id_)

    assert places[kept].is_dir()
    assert not places[gone].exists()


def test_discard_ends_a_session_and_keeps_its_work_aside(cli: Cli) -> None:
    id_ = cli.start()
    place = cli.workspace(id_)
    cli.ok("session", "write", id_, "app.py", stdin="unpromoted\n")

    assert cli.ok("session", "discard", id_).lines == [id_]

    assert not place.exists()
    assert "+unpromoted" in (cli.home / "sessions" / id_ / "archive.patch").read_text()
    assert "was discarded" in cli.refused("session", "discard", id_)


@pytest.mark.parametrize(("arguments", "state"), [([], "expired"), (["--state", "discarded"], "discarded")])
def test_evict_ends_a_session_as_told(cli: Cli, arguments: list[str], state: str) -> None:
    id_ = cli.start()

    assert cli.ok("session", "evict", id_, *arguments).lines == [id_]

    assert cli.data("session", "info", id_)["state"] == state
    assert cli.error("session", "evict", id_)["code"] == "SESSION_EXPIRED"


def test_a_sweep_evicts_what_is_past_its_time(cli: Cli) -> None:
    clock = cli.freeze()
    default, manual = cli.start(), cli.start("--manual")
    clock.advance(hours=4)

    assert cli.ok("sweep").lines == []
    clock.advance(microseconds=1)
    assert cli.ok("sweep").lines == [default]
    assert cli.ok("sweep").lines == []

    assert cli.data("session", "info", default)["state"] == "expired"
    assert cli.data("session", "info", manual)["state"] == "active"


def test_any_command_sweeps_first(cli: Cli) -> None:
    clock = cli.freeze()
    id_ = cli.start("--ttl-absolute", "30m", "--ttl", "none")
    clock.advance(minutes=31)

    assert "has expired" in cli.refused("session", "read", id_, "app.py")


def test_extend_replaces_the_idle_time(cli: Cli) -> None:
    clock = cli.freeze()
    id_ = cli.start()

    assert cli.ok("session", "extend", id_, "2h").text == f"{id_} may now lie idle for 2h\n"

    clock.advance(hours=2)
    assert cli.ok("sweep").lines == []
    clock.advance(seconds=1)
    assert cli.ok("sweep").lines == [id_]


def test_recover_has_nothing_to_do_in_a_store_in_order(cli: Cli) -> None:
    cli.start()

    assert cli.ok("recover").text == "Everything was in order.\n"


def test_recover_removes_a_start_that_was_killed_and_reports_what_it_cannot_mend(cli: Cli) -> None:
    damaged = cli.start()
    (cli.home / "sessions" / "sess_halfastarted").mkdir()
    (cli.home / "sessions" / damaged / "events.jsonl").write_text("not an event\nnor this\n")

    ran = cli("recover")

    assert ran.status == 0
    assert ran.lines == ["removed         sess_halfastarted"]
    assert damaged in ran.err


def test_another_store_has_other_sessions(cli: Cli) -> None:
    here = cli.start()
    there = cli.ok("--store", "../elsewhere/sessions", "session", "start", "x").lines[0]

    assert [one["id"] for one in cli.data("session", "list")] == [here]
    assert [one["id"] for one in cli.data("session", "list", "--store", "../elsewhere/sessions")] == [there]


def test_several_people_are_asked_once_where_work_shall_land(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.git("-c", "user.email=bob@example.org", "commit", "-q", "--allow-empty", "--message=Bob's")
    first, second = cli.start(), cli.start()
    cli.ok("session", "write", first, "app.py", stdin="one\n")
    cli.ok("session", "write", second, "README.md", stdin="two\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(b"nonsense\ncommit\n"))
    monkeypatch.setattr(sys, "stderr", terminal)

    assert commands.promote(_options("promote", first)).data["branch"] == "trunk"  # type: ignore[index]
    assert terminal.shown.count("commit, branch, patch [branch]: ") == 2
    assert "2 people wrote 'trunk'" in terminal.shown
    assert cli.ok("promote", second).text.split()[1] == "trunk"


def test_nobody_is_asked_without_a_terminal(cli: Cli) -> None:
    cli.git("-c", "user.email=bob@example.org", "commit", "-q", "--allow-empty", "--message=Bob's")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="one\n")

    assert cli.ok("promote", id_).text.split()[1] == "gittrix/say-hello"


def _options(*arguments: str):  # type: ignore[no-untyped-def]
    from pytest_gittrix.cli.parser import parser

    return parser().parse_args(arguments)


# Standard output, standard error, signals ----------------------------------------------------------------------------------------


def test_names_that_are_not_utf8_come_out_as_they_are(cli: Cli) -> None:
    id_ = cli.start()
    name = os.fsdecode(b"caf\xe9.txt")
    cli.ok("session", "write", id_, name, stdin="x\n")

    assert cli.ok("session", "touched", id_).out == b"caf\xe9.txt\n"
    assert cli.ok("session", "read", id_, name).out == b"x\n"
    assert cli.data("session", "touched", id_) == [name]
    cli.ok("promote", id_, name)
    assert cli.git("diff", "--name-only", "-z", "HEAD^", "HEAD") != ""


def test_what_would_steer_a_terminal_is_made_visible_there_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "a\x1b[2Jb", stdin="x\n")
    terminal = Terminal()

    assert cli.ok("session", "touched", id_).out == b"a\x1b[2Jb\n"
    monkeypatch.setattr(sys, "stdout", terminal)
    cli("session", "touched", id_)

    assert terminal.shown == "a\\x1b[2Jb\n"


def test_a_task_cannot_draw_in_the_table(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = cli.ok("session", "start", "[bold]one[/]\nsess_fake  active \x1b[1m").lines[0]

    heading, row = cli.ok("session", "list").lines

    assert "[bold]one[/]\\nsess_fake  active \\x1b[1m" in row
    assert row.startswith(id_)


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("NO_COLOR", False), ("TERM", False)])
def test_colour_is_for_terminals_and_for_nobody_who_said_no(
    cli: Cli, variable: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="x\n")
    if variable:
        monkeypatch.setenv(variable, "dumb")
    shown = {}
    for verb in (("session", "list"), ("session", "diff", id_)):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            cli(*verb)
        shown[verb[1]] = terminal.shown

    assert {verb: "\x1b[" in text for verb, text in shown.items()} == {"list": coloured, "diff": coloured}
    assert "active" in shown["list"]
    assert "+x" in shown["diff"]


def test_a_list_is_cut_to_a_terminal_and_never_to_a_pipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    task = "long " * 60
    id_ = cli.ok("session", "start", task).lines[0]
    terminal = Terminal()

    assert task.strip() in cli.ok("session", "list").text
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    cli("session", "list")

    heading, row = terminal.shown.splitlines()
    assert max(len(heading), len(row)) <= 100
    assert row.startswith(f"{id_}  active  long ")
    assert row.endswith(" 0")


def test_a_real_terminal_gets_colour_and_a_pipe_gets_none(cli: Cli) -> None:
    cli.start()
    controller, terminal = pty.openpty()

    piped = cli.process("session", "list")
    shown = cli.process("session", "list", stdout=terminal)
    os.close(terminal)
    plain, _ = piped.communicate(timeout=60)
    shown.communicate(timeout=60)

    assert b"\x1b[" in os.read(controller, 65536)
    assert b"\x1b[" not in plain
    os.close(controller)


def test_long_work_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    monkeypatch.setattr(sys, "stderr", os.fdopen(terminal, "w"))

    with working("Sweeping", after=0):
        seen = b""
        while b"Sweeping ..." not in seen:
            seen += os.read(controller, 4096)

    sys.stderr.close()
    os.close(controller)


def test_short_work_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with working("Sweeping", after=3600):
        pass

    assert terminal.shown == ""


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "big.txt", stdin="line\n" * 1_000_000)

    command = f'"{sys.executable}" -m pytest_gittrix.cli session read {id_} big.txt | head -1; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["session", "list"], ["session", "list", "--json"], ["--help"]])
def test_a_full_disk_is_told_in_a_sentence(cli: Cli, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        process = cli.process(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert err.startswith(b"gittrix: ")
    assert b"No space left" in err
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_an_interrupt_ends_quietly(cli: Cli) -> None:
    id_ = cli.start()
    process = cli.process("session", "write", id_, "app.py")
    assert process.stdin
    process.stdin.write(b"half")
    process.stdin.flush()
    _wait_until_reading(process.pid)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert cli.ok("session", "touched", id_).text == ""


def _wait_until_reading(pid: int) -> None:
    """Until the process has emptied its standard input, and so has its handlers in place."""
    import fcntl
    import termios

    descriptor = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4), sys.byteorder):
            os.sched_yield()
    finally:
        os.close(descriptor)


def test_closed_standard_streams_are_told_and_not_fallen_over(cli: Cli) -> None:
    id_ = cli.start()
    command = f'"{sys.executable}" -m pytest_gittrix.cli session'

    unread = subprocess.run(["sh", "-c", f"{command} write {id_} app.py <&-"], capture_output=True, timeout=60, check=False)
    unheard = subprocess.run(["sh", "-c", f"{command} touched {id_} >&-"], capture_output=True, timeout=60, check=False)

    assert (unread.returncode, unread.stderr.splitlines()[0]) == (1, b"gittrix: Standard input is closed.")
    assert (unheard.returncode, unheard.stderr) == (0, b"")


def test_an_unexpected_error_is_a_sentence_unless_debugging(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("the engine is broken")

    monkeypatch.setattr(commands, "sweep", broken)

    assert cli.refused("sweep") == "gittrix: ZeroDivisionError: the engine is broken\n"
    monkeypatch.setenv("GITTRIX_DEBUG", "1")
    ran = cli("sweep")
    assert ran.status == 1
    assert "Traceback (most recent call last)" in ran.err


def test_an_error_puts_the_fact_first_and_the_rest_below(cli: Cli) -> None:
    fact, *rest = cli.refused("session", "info", "sess_nobody").splitlines()

    assert fact.startswith("gittrix: There is no session 'sess_nobody' in ")
    assert rest == ["  `gittrix session list` shows those there are."]
