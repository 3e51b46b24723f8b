"""Messages at the command line speak of flags and commands, where those of the engine speak of arguments and calls."""

from __future__ import annotations

import argparse
import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli

import pytest_gittrix
from pytest_gittrix.cli.verbs import command_line
from pytest_gittrix.errors import Advice, InvalidInput, did_you_mean

PACKAGE = Path(pytest_gittrix.__file__).parent
# Nobody comes to these rooms by the command line, or they have messages of their own.
ELSEWHERE = {"cli", "clock", "conformance", "integrations", "mcp", "model", "plugin", "report", "server", "testing"}
# Advice that nobody gets by a command, and why.
ONLY_IN_PYTHON = {
    "Use one of: ...; or hand the session on with handoff().": "the outcomes that a command takes are choices",
    "Use one of: ...; or store it with record().": "commands announce nothing",
    'Give a mapping, such as hunks={"app.py": [1, 3]}.': "a command makes the mapping",
    'Give names, such as pass_env=["ANTHROPIC_API_KEY"].': "a team file has names",
    "Give the id of a chain, or work_unit=.": "a command gives one id",
    'Give an EvictionPolicy(ttl_idle=, ttl_absolute=, until_promote=, manual=), or the idle TTL by itself, such as "4h".': (
        "a command takes a duration"
    ),
    "Give one in Place(home=).": "a command makes the home of its programs",
    "Pass ids= that makes new ones.": "a command takes the ids of the engine",
    "Use one of ..., or kill().": "a command sends no signals to programs",
    "Look at tree() for those there are.": "a function of a suite looks into its repository",
}


def arguments_and_calls(parser: argparse.ArgumentParser) -> tuple[set[str], set[str]]:
    """The names of all flags, as arguments are named, and those of all verbs, as functions are."""
    flags, verbs = set(), {parser.prog.rpartition(" ")[2].replace("-", "_")}
    for action in parser._actions:
        flags |= {name.removeprefix("--").replace("-", "_") for name in action.option_strings}
        for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            of_verb = arguments_and_calls(verb)
            flags, verbs = flags | of_verb[0], verbs | of_verb[1]
    return flags, verbs


def advice_in_python(path: Path) -> Iterator[tuple[int, str]]:
    """The texts given as ``fix=`` or ``opt_out=`` in a module that have no wording for the command line, with their lines."""
    source = path.read_text(encoding="utf-8")
    for call in ast.walk(ast.parse(source)) if "fix=" in source else ():
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            value = keyword.value
            parts = value.values if isinstance(value, ast.JoinedStr) else [value]
            if keyword.arg in ("fix", "opt_out") and isinstance(value, ast.Constant | ast.JoinedStr):
                yield value.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts)


def test_advice_that_names_what_the_command_line_has_too_is_worded_for_it() -> None:
    flags, verbs = arguments_and_calls(command_line())
    flags |= {f"{flag}s" for flag in flags}  # allow_secrets= is --allow-secret, given several times
    named = re.compile(rf"\b(?:{'|'.join(flags)})=|\b(?<!\.)(?:{'|'.join(verbs)})\(")
    found = {
        text: f"{path.relative_to(PACKAGE).as_posix()}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE
        for line, text in advice_in_python(path)
        if named.search(text)
    }

    assert {text: where for text, where in found.items() if text not in ONLY_IN_PYTHON} == {}
    assert [text for text in ONLY_IN_PYTHON if text not in found] == []


def test_an_error_has_both_wordings_and_keeps_them_where_it_is_copied() -> None:
    error = InvalidInput("No.", why="It matters.", fix=Advice("Use a=1.", "Use --a 1."), opt_out="Or not.")
    copied = pickle.loads(pickle.dumps(error))

    assert str(error) == str(copied) == "No.\nIt matters.\nUse a=1.\nOr not."
    assert error.command_message() == copied.command_message() == "No.\nIt matters.\nUse --a 1.\nOr not."


def test_a_question_is_asked_only_for_what_resembles() -> None:
    assert did_you_mean("sesion", ["session", "sweep"]) == "Did you mean session? "
    assert did_you_mean("xyz", ["session", "sweep"]) == ""


def test_refusals_at_the_command_line_speak_of_flags(cli: Cli) -> None:
    cli.commit({"list.txt": "1\n2\n3\n4\n5\n"})
    id_ = cli.start()
    cli.ok("session", "write", id_, "list.txt", stdin="ours\n2\n3\n4\n5\n")
    cli.commit({"list.txt": "1\n2\n3\n4\ntheirs\n"})

    overlap = cli.refused("promote", id_, "--strategy", "commit")
    title = cli.refused("promote", id_, "--title", "x", "--strategy", "commit")
    forge = cli.refused("promote", id_, "--strategy", "pr")

    assert "Or promote with --on-overlap merge, which merges them as text." in overlap
    assert "Promote with --strategy pr, or leave it out." in title
    assert "Name its repository with --forge-repo OWNER/NAME" in forge
    assert "=" not in overlap + title + forge
    assert cli.error("promote", id_, "--strategy", "pr")["message"].replace("\n", "\n  ") in forge


def test_what_is_mistyped_is_answered_with_what_is_there(cli: Cli) -> None:
    id_ = cli.start()
    assert "No file was touched." in cli.refused("promote", id_, "note.txt")
    assert f"Session '{id_}' was not spawned: no project is configured." in cli.refused("session", "kill", id_)
    assert "path 'app.py/' is refused: it ends in a slash, and only names" in cli.refused("session", "read", id_, "app.py/")
    cli.ok("session", "write", id_, "notes.txt", stdin="new\n")
    mistyped = f"{id_[:-1]}{'a' if id_[-1] != 'a' else 'b'}"

    assert f"Did you mean {id_}? `gittrix session list` shows" in cli.refused("session", "info", mistyped)
    assert "Did you mean" not in cli.refused("session", "info", "sess_zzzz!"[:-1])
    assert "Did you mean app.py? `gittrix session list-files`" in cli.refused("session", "read", id_, "apps.py")
    assert "Did you mean notes.txt? Touched: notes.txt." in cli.refused("promote", id_, "note.txt")
    assert "Did you mean notes.txt? `gittrix session touched`" in cli.refused("session", "diff", id_, "note.txt")
    assert "Did you mean session.write? Known events: " in cli.refused("session", "history", id_, "--types", "session.wrte")
    assert "Did you mean agent? Use: agent, rig," in cli.refused("session", "identify", id_, "agnt=x")


@pytest.mark.parametrize("command", [("session", "list"), ("sweep",), ("serve", "--port", "0"), ("member", "list")])
@pytest.mark.parametrize("below", ["", "/sessions"])
def test_a_store_that_cannot_be_a_directory_is_refused_before_anything_starts(cli: Cli, command: tuple[str, ...], below: str) -> None:
    file = cli.root / "file"
    file.write_text("mine\n", encoding="utf-8")

    refused = cli.error(*command, "--store", f"{file}{below}")

    assert refused["code"] == "INVALID_INPUT"
    assert refused["message"].startswith(f"{file}{below} cannot be a store: {file if below else 'it'} is a file.\n")
    assert file.read_text(encoding="utf-8") == "mine\n"
