"""The description of a worktree manager: what may be left out, and what is said about a wrong one."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool, fill, line_of, read_tool
from pytest_gittrix.conformance.worktrees.first_description import first_description
from pytest_gittrix.errors import InvalidInput


def written(tmp_path: Path, text: str, name: str = "tool.toml") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def test_one_line_is_enough(tmp_path: Path) -> None:
    tool = read_tool(written(tmp_path, '[worktree]\ncreate = "tool new {name} --no-term"\n'))

    assert (tool.title, tool.cwd, tool.origin, tool.base, tool.timeout, tool.unnamed) == ("tool", "repo", "none", "main", 20.0, False)
    assert [command for command in ("create", "delete", "clean", "finish", "list") if tool.has(command)] == ["create"]


def test_a_project_can_keep_it_in_its_own_file(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\n[tool.gittrix.worktree]\ncreate = "x new {name}"\nsetup = "x init"\n'

    assert read_tool(written(tmp_path, text, "pyproject.toml")).setup == ("x init",)


def test_what_stands_in_braces_is_quoted_for_the_shell() -> None:
    assert fill("tool new {name} in {repo} ${HOME}", {"name": "a; rm b"}) == "tool new 'a; rm b' in {repo} ${HOME}"
    assert fill("{repo}/it's", {"repo": "/a b"}, str) == "/a b/it's"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[worktree]\n\nremove = 'x'\ncreate = 'x'\n", ["line 3", "remove: no such key", "create", "finish_cwd", "waive"]),
        ("[worktree]\ndelete = 'x'\n", ["line 1", "worktree.create: must be given"]),
        ("[worktree]\ncreate = 'x {branch}'\n", ["line 2", "{branch} is no placeholder", "{name}", "{world}"]),
        ("[worktree]\ncreate = 'x'\ntimeout = 0\n", ["line 3", "timeout"]),
        ("[worktree]\ncreate = 'x'\norigin = 'ssh'\n", ["line 3", "'file', 'bare' or 'none'"]),
        (
            "[worktree]\ncreate = 'x'\n[worktree.waive]\nWREM-01 = {quote = 'removes by default'}\n",
            ["line 4", "quote and help, or not_yet"],
        ),
        ("[worktree]\ncreate = 'x'\n[worktree.waive]\nREM = {quote = 'removes by default', help = 'x'}\n", ["'REM' is no code"]),
        ("[worktree\n", ["is not TOML"]),
        ("[tool]\n", ["has no table [worktree]"]),
    ],
)
def test_a_wrong_description_is_refused_with_its_line_and_what_would_be_right(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_tool(written(tmp_path, text))

    assert [words for words in said if words not in str(refused.value)] == []


def test_a_description_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_tool(tmp_path / "tool.toml")


def test_the_model_can_be_made_without_a_file() -> None:
    assert WorktreeTool(create="x new {name}", name="ours").title == "ours"


HELP = """usage: tool [-h] {new,rm,prune,ls} ...

Commands:
  new   Create a worktree.
  rm    Remove one.
  sync  DISCARD local changes, and begin again from the base branch.
│ merge      Finish one.      │
"""


def made_by(tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str) -> tuple[WorktreeTool, str]:
    """The first description of a tool, whose program is given, and its text."""
    tool = written(tmp_path, f"#!/bin/sh\n{program}", "tool")
    tool.chmod(0o755)
    assert main(["conform", "--worktree-init", str(tool)]) == 0
    text = capsys.readouterr().out
    return read_tool(written(tmp_path, text.replace(str(tool), "tool"))), text


def test_a_first_description_is_made_from_the_help_and_says_what_did_not_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, text = made_by(tmp_path, capsys, f"cat <<'E'\n{HELP}E\n")

    assert (made.create, made.delete) == ("tool new {name}", "tool rm {name}")
    assert (made.clean, made.finish, made.list) == ("tool prune", "tool merge {name}", "tool ls")
    assert f"# This did not work: `{tmp_path}/tool new demo` ended with 0 and made no worktree" in text


def test_what_discards_work_is_never_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = made_by(tmp_path, capsys, f"cat <<'E'\n{HELP}E\n")

    assert made.sync == ""


WITH_DOMAINS = """case "$*" in
*--help) cat <<'E'
USAGE:
    tool <domain> <action>

    tool ws new [base-branch]
        Create a worktree.
    tool ws clean [--id ID]
        Remove the worktree after it was merged.
    tool task add <id>
        Add a task (not yet implemented).
E
;;
"ws new") git worktree add -q -b agent-7 ../agent-7;;
"ws clean") git worktree remove ../agent-7;;
*) exit 2;;
esac
"""
OF_A_POOL = """case "$*" in
*--help) cat <<'E'
usage: tool [-h] {init,fill,take,release} ...

A pool of worktrees.

  init     write a configuration
  fill     create slots
  take     claim a slot for a branch
  release  return a slot to the pool
E
;;
init) touch pool.toml;;
fill) test -e pool.toml && git worktree add -q --detach ../slot-1;;
take*) git worktree add -q --detach ../slot-2; git -C ../slot-1 checkout -q -b "$2";;
release*) git -C ../slot-1 checkout -q --detach && git branch -q -d "$2";;
*) exit 2;;
esac
"""
WITH_A_BARE_REPOSITORY = """case "$*" in
--help) cat <<'E'
usage: tool [-h] ...

  convert  make the clone a bare repository with worktrees
  create   create a worktree
  rm       remove one
E
;;
"create --help") cat <<'E'
usage: tool create [-h] kind [kind ...]

  tool create temp <name> --from main
E
;;
*--help) exit 2;;
convert) mv .git .bare; git --git-dir .bare config core.bare true; rm file.txt other.txt .gitignore
    git --git-dir .bare worktree add -q main main; echo "gitdir: ./.bare" > .git;;
"create temp"*) test -e ../.bare && git worktree add -q -b "$3" "../$3" "$5";;
rm*) git worktree remove "../$2" && git branch -q -d "$2";;
*) exit 2;;
esac
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (WITH_DOMAINS, {"unnamed": True, "create": "tool ws new", "delete": "tool ws clean"}),
        (OF_A_POOL, {"setup": ("tool init", "tool fill"), "pool": True, "create": "tool take {name}", "delete": "tool release {name}"}),
        (
            WITH_A_BARE_REPOSITORY,
            {
                "setup": ("tool convert",),
                "main": "{repo}/main",
                "create": "tool create temp {name} --from {base}",
                "delete": "tool rm {name}",
            },
        ),
    ],
    ids=["with domains", "of a pool", "with a bare repository"],
)
def test_lines_are_tried_until_they_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, expected: dict[str, object]
) -> None:
    made, text = made_by(tmp_path, capsys, program)

    assert made.model_dump(exclude_defaults=True) == expected, text
    assert "did not work" not in text


def test_setup_may_be_several_commands(tmp_path: Path) -> None:
    text = '[worktree]\ncreate = "x new {name}"\nsetup = ["x init", "x fill"]\n'

    assert read_tool(written(tmp_path, text)).setup == ("x init", "x fill")


def test_five_questions_make_a_description_whose_defaults_are_from_the_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = written(tmp_path, f"#!/bin/sh\ncat <<'E'\n{HELP}E\n", "tool")
    tool.chmod(0o755)
    monkeypatch.setattr("sys.stdin", io.StringIO('\ntool rm "{name}" --yes\n-\n'))  # the last two are not answered

    assert main(["conform", "--worktree-init", str(tool), "--ask"]) == 0

    shown = capsys.readouterr()
    made = read_tool(written(tmp_path, shown.out))
    assert shown.err.count("? ") == 5
    assert f"How are they listed? [{tool} ls] " in shown.err
    assert (made.create, made.delete) == (f"{tool} new {{name}}", 'tool rm "{name}" --yes')
    assert (made.clean, made.finish, made.list) == ("", f"{tool} merge {{name}}", f"{tool} ls")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals")
def test_a_person_at_a_terminal_is_asked_where_the_help_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard, screen = os.openpty()
    os.write(keyboard, b"\n\n\n\n/no/such/tool list\n")
    with os.fdopen(keyboard, "wb"), os.fdopen(screen) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert main(["conform", "--worktree-init", "/no/such/tool"]) == 0

    made = read_tool(written(tmp_path, capsys.readouterr().out))
    assert (made.create, made.delete, made.list) == ("/no/such/tool new {name}", "", "/no/such/tool list")


@pytest.mark.parametrize(("tool", "said"), [("true", "lists no command that makes a worktree"), ("/no/such/tool", "cannot be run")])
def test_a_tool_without_a_help_gets_no_description(tool: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        first_description(tool)


@pytest.mark.parametrize("waiver", ["{}", '{ quote = "removes it, with changes" }', '{ not_yet = "issue 12", help = "tool --help" }'])
def test_a_waiver_has_one_kind_of_reason(waiver: str, tmp_path: Path) -> None:
    file = tmp_path / "tool.toml"
    file.write_text(f'[worktree]\ncreate = "tool new {{name}}"\n[worktree.waive]\nWREM-01 = {waiver}\n', encoding="utf-8")

    with pytest.raises(InvalidInput, match="a waiver has quote and help, or not_yet"):
        read_tool(file)


def test_the_line_of_a_command_is_in_the_table_of_the_description() -> None:
    text = '[tool.other]\ncreate = 1\n[tool.gittrix.worktree]\ncreate = "new"\n# delete = "no"\n  delete = "rm"\n'

    assert [line_of(text, command) for command in ("create", "delete", "clean")] == [4, 6, 3]
    assert line_of("", "create") == 1
