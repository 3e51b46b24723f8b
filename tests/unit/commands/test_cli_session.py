"""What people see of a session: each verb on real repositories, from wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import FILES, SPREAD, Cli

from pytest_gittrix.backends import protocol
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Ephemeral
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.workspace import Workspace


class OfAnotherPackage(Ephemeral):
    """Makes workspaces as a package of somebody else's would."""

    @property
    def kind(self) -> str:
        return "clone"

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> Workspace:
        return LocalEphemeral().create(path, state_dir, seed, branch=branch, durable_objects=durable_objects, name=name)

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> Workspace:
        return LocalEphemeral().open(path, state_dir, seeds)


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


@pytest.mark.parametrize("kind", ["clone", "lazy", "copy", "worktree", "overlay"])
def test_every_kind_of_workspace_reads_and_promotes(cli: Cli, kind: str, tmp_path: Path) -> None:
    if kind == "overlay" and (why := missing_layers(str(tmp_path))):
        pytest.skip(why)
    id_ = cli.start("--workspace", kind)

    cli.ok("session", "write", id_, "app.py", stdin="hello\n")
    cli.ok("promote", id_, "-m", kind)

    assert cli.git("log", "-1", "--format=%s") == f"{kind}\n"
    assert cli.git("show", "HEAD:app.py") == "hello\n"


def test_history_is_what_the_agent_may_see(cli: Cli) -> None:
    cli.commit({"app.py": "v2\n"})
    cli.commit({"app.py": "v3\n"})

    seen = {
        history: cli.git("rev-list", "--count", "HEAD", cwd=cli.workspace(cli.start("--history", history)))
        for history in ("none", "1", "full")
    }

    assert seen == {"none": "1\n", "1": "2\n", "full": "3\n"}


def test_sessions_are_listed_in_a_table(cli: Cli) -> None:
    clock = cli.freeze()
    ended = cli.start()
    cli.ok("session", "discard", ended)
    clock.advance(minutes=30)
    live = cli.start("--ttl", "2d")
    clock.advance(hours=1)

    heading, first, second = cli.ok("session", "list").lines

    assert heading.split() == ["ID", "STATE", "TASK", "BRANCH", "AGE", "EXPIRES", "IN", "TOUCHED"]
    assert first.split() == [ended, "discarded", "say", "hello", "trunk", "1h30m", "0"]
    assert second.split() == [live, "active", "say", "hello", "trunk", "1h", "1d23h", "0"]


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


@pytest.mark.parametrize("path", ["../escape.py", "/etc/passwd", ".git/config", "src/../../x"])
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


def test_a_file_over_the_limit_is_named_by_touched_and_by_diff(cli: Cli) -> None:
    id_, workspace = cli.ok("session", "start", "--task", "say hello").lines
    with Path(workspace, "large").open("wb") as file:
        file.truncate((100 << 20) + 1)
    reason = f"it has {(100 << 20) + 1} bytes; the limit is {100 << 20}"

    touched, diff, of_it = (cli("session", *words) for words in (("touched", id_), ("diff", id_), ("diff", id_, "large")))

    assert [(ran.status, ran.err) for ran in (touched, diff, of_it)] == [(0, f"gittrix: large: {reason}\n")] * 3
    assert touched.lines == ["large"]
    assert diff.lines == of_it.lines == [f"Not in this patch: 'large': {reason}."]
    assert cli.data("session", "touched", id_) == ["large"]
    assert cli.data("session", "diff", id_)["refused"] == {"large": reason}


def test_a_diff_can_be_of_some_paths(cli: Cli) -> None:
    id_ = cli.start()
    for path in ("app.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="x\n")

    shown = cli.ok("session", "diff", id_, "app.py").text

    assert "b/app.py" in shown
    assert "README.md" not in shown
    assert "'src/util.py' does not differ" in cli.refused("session", "diff", id_, "src/util.py")


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


def test_the_beginning_of_an_id_is_enough(cli: Cli) -> None:
    id_ = cli.start()

    assert cli.ok("session", "info", id_[:6]).lines[0] == f"id          {id_}"
    assert cli.ok("session", "discard", "sess").lines == [id_]


def test_the_beginning_of_several_ids_names_them(cli: Cli) -> None:
    ids = sorted([cli.start(), cli.start()])

    refusal = cli.refused("session", "read", "sess_", "app.py")

    assert ", ".join(ids) in refusal


@pytest.mark.parametrize(
    ("text", "message"), [("sess_nobody", "no session 'sess_nobody'"), ("../x", "'../x' is not a session id"), ("", "''")]
)
def test_an_id_of_nobody_is_named(cli: Cli, text: str, message: str) -> None:
    cli.start()

    assert message in cli.refused("session", "info", text)


def test_ignored_files_of_the_checkout_are_included_and_named(cli: Cli) -> None:
    cli.commit({".gitignore": ".env\n*.key\n", ".worktreeinclude": ".env\n"})
    (cli.project / ".env").write_text("TOKEN=1\n")
    (cli.project / "a.key").write_text("k\n")
    (cli.project / "notes.local").write_text("mine\n")

    ran = cli("session", "start", "--task", "x", "--include", "*.key", "--include", "notes.local")

    id_, workspace = ran.lines
    assert Path(workspace, ".env").read_text() == "TOKEN=1\n"
    assert Path(workspace, "a.key").read_text() == "k\n"
    assert "Included from durable's checkout: '.env' (8 bytes)" in ran.err
    assert "Not included: 'notes.local': the baseline's .gitignore does not ignore it" in ran.err
    assert cli.data("session", "touched", id_) == []
    assert "nothing to promote" in cli.refused("promote", id_)
    assert cli.data("session", "discard", id_)["archives"] == []


def test_a_kind_of_workspace_that_gets_no_ignored_files_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def registered(*_: object) -> OfAnotherPackage:
        return OfAnotherPackage()

    monkeypatch.setattr(protocol, "registered_ephemeral", registered)
    refusal = cli.refused("session", "start", "--task", "x", "--include", ".env")
    assert "A workspace of the kind 'clone' gets no files of durable's checkout." in refusal
    assert "Leave --include out" in refusal
    (cli.project / ".worktreeinclude").write_text(".env\n")
    (cli.project / ".env").write_text("TOKEN=1\n")
    assert not Path(cli.ok("session", "start", "--task", "x").lines[1], ".env").exists()
