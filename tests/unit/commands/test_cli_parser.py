"""The command line is read as documented, and what is none is misuse with a line that shows how it is meant."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_gittrix import __version__
from pytest_gittrix.cli.main import main
from pytest_gittrix.cli.verbs import ALL, command_line
from pytest_gittrix.commands.parser import Misuse
from pytest_gittrix.commands.verbs import find, lineage
from pytest_gittrix.commands.verbs.catalogue import SESSION
from pytest_gittrix.commands.verbs.find import STATES
from pytest_gittrix.commands.verbs.sessions import MANY_FILES, ON_HAZARD, ON_OVERLAP, OUTCOMES, STRATEGIES
from pytest_gittrix.engine.lineage.fork import FILES
from pytest_gittrix.engine.promotion import request
from pytest_gittrix.engine.promotion.conflicts import OnOverlap
from pytest_gittrix.engine.promotion.strategy import Strategy
from pytest_gittrix.extensions import OURS, hooks, registered
from pytest_gittrix.record.state import values
from pytest_gittrix.record.state.fold import StateName
from pytest_gittrix.workspaces.kinds import KINDS

OF_A_SESSION = (
    "overlaps",
    "start",
    "list",
    "find",
    "chain",
    "tree",
    "show",
    "handoff",
    "fork",
    "identify",
    "history",
    "record",
    "export",
    "info",
    "read",
    "write",
    "delete",
    "list-files",
    "touched",
    "diff",
    "log",
    "commit",
    "discard",
    "extend",
    "rebase",
    "relocate",
    "evict",
)
VERBS = [*(f"session {verb}" for verb in OF_A_SESSION), "promote", "sweep", "recover"]
HEAVY = ("git", "pygit2", "pydantic", "rich", "jinja2", "hypothesis", "freezegun", "time_machine", "pytest", "pytest_gittrix.engine")


def parsed(line: str) -> Namespace:
    words = shlex.split(line)
    return command_line(words).parse_args(words)


def below(of: ArgumentParser) -> list[ArgumentParser]:
    """The parsers below a parser that were made, aliases once."""
    made = [verb for action in of._actions if isinstance(action.choices, dict) for verb in action.choices.values()]
    return [*{id(verb): verb for verb in made if isinstance(verb, ArgumentParser)}.values()]


def parsers(of: ArgumentParser) -> list[str]:
    """The names of a parser and of those below it that were made."""
    return [of.prog, *(name for verb in below(of) for name in parsers(verb))]


def test_the_flags_of_verbs_that_the_line_does_not_name_are_not_made() -> None:
    assert parsers(command_line(["s", "ls", "--json"])) == ["gittrix", "gittrix session", "gittrix session list"]
    assert len(parsers(command_line())) > len(VERBS)


@pytest.mark.parametrize("line", [["--help"], ["session", "--help"], ["eval", "--help"]])
def test_the_help_lists_every_verb_all_the_same(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line().parse_args(line)
    everything = capsys.readouterr().out
    with pytest.raises(SystemExit):
        command_line(line).parse_args(line)

    assert capsys.readouterr().out == everything


def test_argparse_of_python_3_14_can_check_the_help_without_a_look_at_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    add_parser, add_argument = argparse._SubParsersAction.add_parser, argparse._ActionsContainer.add_argument

    def checking_parser(verbs: Any, name: str, **settings: Any) -> Any:
        made = add_parser(verbs, name, **settings)
        if not isinstance(made, ArgumentParser):
            made._check_help(verbs._choices_actions[-1])
        return made

    def checking_argument(container: Any, *names: str, **settings: Any) -> Any:
        action = add_argument(container, *names, **settings)
        if "%" in (action.help or "") and action.choices is not None:
            assert all(map(str, action.choices))
        return action

    monkeypatch.setattr(argparse._SubParsersAction, "add_parser", checking_parser)
    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", checking_argument)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("other packages were looked at"))
    registered.cache_clear()
    hooks.cache_clear()

    assert command_line(["session", "list", "show"]).parse_args(["session", "list"]).verb.name == "list"


def reaching(line: str) -> tuple[str, dict[str, Any]]:
    """Which command a line runs, and with what."""
    options = parsed(line)
    return options.run.__name__, vars(options)


def test_the_values_offered_are_those_the_engine_takes() -> None:
    assert set(OURS["workspaces"]) == set(KINDS)
    assert set(STRATEGIES) == set(get_args(Strategy))
    assert set(ON_OVERLAP) == set(get_args(OnOverlap))
    assert ON_HAZARD == request.ON_HAZARD
    assert MANY_FILES == request.MANY_FILES
    assert set(STATES) == set(get_args(StateName))
    assert OUTCOMES == values.OUTCOMES
    assert set(find.OUTCOMES) == {*values.OUTCOMES, "handoff"}
    assert lineage.FILES == FILES
    assert set(lineage.IDENTITY) <= set(values.IDENTITY)


@pytest.mark.parametrize(("alias", "full"), [("s ls", "session list"), ("s info X", "session info X"), ("p X", "promote X")])
def test_an_alias_runs_what_it_stands_for(alias: str, full: str) -> None:
    assert vars(parsed(alias)).keys() == vars(parsed(full)).keys()
    assert parsed(alias).run.__qualname__ == parsed(full).run.__qualname__


@pytest.mark.parametrize("line", ["--json session list", "session --json list", "session list --json", "session list -j", "-j s ls"])
def test_json_may_stand_anywhere(line: str) -> None:
    assert parsed(line).json is True


def test_without_it_there_is_no_json_and_the_default_store() -> None:
    options = parsed("session list")

    assert (options.json, options.store) == (False, None)


@pytest.mark.parametrize("line", ["--store X session list", "session --store X list", "session list --store=X"])
def test_the_store_may_stand_anywhere(line: str) -> None:
    assert parsed(line).store == "X"


@pytest.mark.parametrize(
    "line",
    [
        "session start -t task -d place -b main",
        "session start --task task --durable place --branch main",
        "session start task place main",
        "session start task -d place -b main",
        "session start task -j place main",
    ],
)
def test_a_session_is_started_by_flags_or_by_place(line: str) -> None:
    command, options = reaching(line)

    assert command == "start"
    assert (options["task"], options["durable"], options["branch"]) == ("task", "place", "main")


@pytest.mark.parametrize(
    ("line", "status"),
    [("session list active", "active"), ("session list -s promoted", "promoted"), ("s ls -j all", "all"), ("s ls", None)],
)
def test_sessions_are_listed_by_status(line: str, status: str | None) -> None:
    command, options = reaching(line)

    assert (command, options["status"]) == ("list_sessions", status)


@pytest.mark.parametrize(
    "line",
    [
        "promote ID -s commit -- -x --json",
        "promote -s commit ID -- -x --json",
        "promote -s commit -- ID -x --json",
        "promote -- ID -x --json",
    ],
)
def test_what_follows_two_dashes_is_a_place_wherever_they_stand(line: str) -> None:
    options = parsed(line)

    assert (options.id, options.paths, options.json) == ("ID", ["-x", "--json"], False)


def test_two_dashes_after_two_dashes_are_a_name() -> None:
    assert parsed("session read -j -- ID --").path == "--"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("session extend -- ID -2h", "'-2h' is not a duration"),
        ("session list -- -a", "invalid choice: '-a'"),
        ("session read -- ID -a -b", "-b is one argument too many."),
        ("promote --message -- ID", "--message needs a value."),
    ],
)
def test_misuse_after_two_dashes_is_told_as_it_was_typed(line: str, message: str) -> None:
    with pytest.raises(Misuse) as caught:
        parsed(line)

    assert message in str(caught.value)
    assert "\0" not in str(caught.value)


def test_a_start_hands_over_only_the_limits_that_were_given() -> None:
    plain, full = parsed("s start x"), parsed("s start x --ttl 30m --ttl-absolute 2d --manual --keep-after-promote")

    assert not {"ttl_idle", "ttl_absolute", "manual", "until_promote"} & vars(plain).keys()
    assert (full.ttl_idle, full.ttl_absolute) == (timedelta(minutes=30), timedelta(days=2))
    assert (full.manual, full.until_promote) == (True, False)
    assert parsed("s start x --ttl none").ttl_idle is None


@pytest.mark.parametrize(
    ("text", "then"),
    [("24h", timedelta(hours=24)), ("2d", timedelta(days=2)), ("2030-01-01T01:00+01:00", datetime(2030, 1, 1, tzinfo=UTC))],
)
def test_a_point_in_time_is_an_instant_or_how_long_ago_it_is(text: str, then: object) -> None:
    assert parsed(f"session list --since {text}").since == then


def test_facts_are_names_and_values_and_an_empty_one_takes_a_fact_away() -> None:
    options = parsed("session identify X agent=a=b work-unit= -- role=-r")

    assert options.facts == [("agent", "a=b"), ("work_unit", None), ("role", "-r")]


@pytest.mark.parametrize(("text", "history"), [("none", "none"), ("full", "full"), ("0", 0), ("12", 12)])
def test_history_is_a_word_or_a_number(text: str, history: object) -> None:
    assert parsed(f"session start x --history {text}").history == history


def test_files_are_given_by_place_by_comma_and_again() -> None:
    options = parsed("promote X one.py -f 'a.py, b.py,' --files=c.py two.py")

    assert options.paths == ["one.py", "two.py"]
    assert options.files == ["a.py", "b.py", "c.py"]


def test_hunks_are_numbers_after_the_last_colon() -> None:
    options = parsed("promote X --hunks app.py:1,3 --hunks 'a:b:2'")

    assert options.hunks == [("app.py", (1, 3)), ("a:b", (2,))]


def test_s_is_the_strategy_of_a_promotion() -> None:
    options = parsed("promote X -s branch -m text --on-overlap merge")

    assert (options.strategy, options.message, options.on_overlap) == ("branch", "text", "merge")


def test_what_follows_two_dashes_is_a_path() -> None:
    assert parsed("session write X -- -strange").path == "-strange"
    assert parsed("promote X -m text -- --json").paths == ["--json"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("session --no-daemon", "VERB is missing."),
        (
            "nonsense",
            "There is no command 'nonsense'.\n  There are: session, promote, sweep, recover, agent, acp,",
        ),
        ("session start", "gittrix: --task is missing."),
        ("session start x -t y", "TASK is given twice"),
        ("session list active -s active", "STATUS is given twice"),
        ("session start x --ttl 4", "'4' is not a duration"),
        ("session start x --ttl-absolute -1h", "--ttl-absolute needs a value."),
        ("session start x --workspace vm", "invalid choice: 'vm'"),
        ("session start x --history some", "'some' is not a history"),
        ("session list --status gone", "invalid choice: 'gone'"),
        ("session read X", "PATH is missing."),
        ("session commit X", "--message is missing."),
        ("session extend X soon", "'soon' is not a duration"),
        ("session evict X --state promoted", "invalid choice: 'promoted'"),
        ("session list --as beads", "invalid choice: 'beads'"),
        ("session list --outcome gone", "invalid choice: 'gone'"),
        ("session list --since soon", "'soon' is no point in time"),
        ("session list --until 2030-01-01T00:00", "'2030-01-01T00:00' is no point in time"),
        ("session list --limit=-1", "'-1' is not a whole number"),
        ("session find", "--agent is missing."),
        ("session chain", "ID is missing."),
        ("session read", "ID and PATH are missing."),
        ("sweep -x", "There is no flag -x."),
        ("session tree X --depth 201", "201 generations are more than 200"),
        ("session show X --as beads", "invalid choice: 'beads'"),
        ("session fork X --files some", "invalid choice: 'some'"),
        ("session fork X --at last", "'last' is not a whole number"),
        ("session fork X --summary text --summarize", "not allowed with argument"),
        ("session identify X", "NAME=VALUE is missing."),
        ("session identify X agent", "'agent' tells nothing"),
        ("session identify X -- =-x", "'=-x' tells nothing"),
        ("session history X --types ,", "',' names no event"),
        ("session record X", "TYPE is missing."),
        ("session export", "DIRECTORY is missing."),
        ("session discard X --outcome handoff", "invalid choice: 'handoff'"),
        ("promote", "ID is missing."),
        ("promote X --files ''", "'' names no file"),
        ("promote X --files ,", "',' names no file"),
        ("promote X --hunks app.py", "'app.py' names no hunks"),
        ("promote X --hunks app.py:0", "'app.py:0' names no hunks"),
        ("promote X --hunks :1", "':1' names no hunks"),
        ("promote X --strat commit", "There is no flag --strat.\n  Did you mean --strategy?"),
        ("sweep now", "now is one argument too many."),
    ],
)
def test_what_is_no_command_line_is_misuse(line: str, message: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    status = main(shlex.split(line))

    out, err = capsysbinary.readouterr()
    assert (status, out) == (2, b"")
    first, *_, usage, help_ = err.decode().splitlines()
    assert message in err.decode()
    assert first.startswith("gittrix: ")
    assert usage.startswith("  usage: gittrix ")
    assert help_.endswith(" --help` shows all of it.")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("sesion list", "session"),
        ("session lst", "list"),
        ("start", "`gittrix session start`"),
        ("session sweep", "`gittrix sweep`"),
        ("strt", "`gittrix session start`"),
        ("--stor X session list", "--store"),
        ("session start x --ttl-idle 4h", "--ttl"),
        ("session start x --eviction 4h", "--ttl"),
        ("session start --tsk x", "--task"),
        ("session commit X --mesage=text", "--message"),
        ("session list --status promted", "promoted"),
        ("session start x --workspace clon", "clone"),
        ("eval rn", "run"),
        ("eval run suite --agnt nop", "--agent"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_was_meant(line: str, meant: str) -> None:
    words = shlex.split(line)

    with pytest.raises(Misuse) as caught:
        command_line(words).parse_args(words)

    assert f"\nDid you mean {meant}?" in str(caught.value)


def test_every_command_stands_in_one_section_of_the_help_and_everyday_work_first() -> None:
    for sections in (ALL, SESSION.sections):
        listed = [entry.name for entries in sections.values() for entry in entries]

        assert sorted({*listed}) == sorted(listed)
    everyday, *_ = SESSION.sections.values()
    assert len(everyday) == 12
    assert {"start", "list", "diff", "discard"} <= {verb.name for verb in everyday}
    assert {"Gas Town", "Pixir", "agent-orchestrator"} < {*SESSION.sections}


@pytest.mark.parametrize("line", ["--json", "promote -j", "session start --json", "session list --json gone"])
def test_misuse_is_told_in_the_envelope_too(line: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    status = main(shlex.split(line))

    out, err = capsysbinary.readouterr()
    assert (status, err) == (2, b"")
    assert out.startswith(b'{"ok": false, "error": {"code": "USAGE", "message": "')
    assert out.count(b"\n") == 1


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself_with_an_example_that_parses(verb: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    status = main([*verb.split(), "--help"])

    out, err = capsysbinary.readouterr()
    assert (status, err) == (0, b"")
    _, _, examples = out.decode().partition("examples:\n")
    commands_shown = [line.split(" > ")[0].split(" < ")[0].split(" | ")[0].strip() for line in examples.splitlines()]
    assert commands_shown
    for command in commands_shown:
        assert parsed(command.removeprefix("id=$(").removeprefix("gittrix ")).run


def test_alone_it_prints_what_there_is(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    alone = main([]), capsysbinary.readouterr().out
    asked = main(["--help"]), capsysbinary.readouterr().out

    assert alone == asked
    assert alone[0] == 0
    assert all(word in alone[1].decode() for word in ("session", "promote", "sweep", "recover"))


@pytest.mark.parametrize("group", ["session", "member", "eval"])
def test_a_command_alone_prints_its_verbs(group: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    alone = main([group]), capsysbinary.readouterr()

    assert alone == (main([group, "--help"]), capsysbinary.readouterr())
    assert alone[0] == 0


@pytest.mark.parametrize("flag", ["--verbose", "--all", "--x"])
def test_the_dashes_of_a_flag_are_no_likeness(flag: str) -> None:
    with pytest.raises(Misuse) as caught:
        parsed(f"promote X {flag}")

    assert str(caught.value) == f"There is no flag {flag}."


def test_it_tells_its_version(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["--version"]) == 0
    assert capsysbinary.readouterr().out.decode() == f"gittrix {__version__}\n"


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ("session read X", "session read [FLAGS] ID PATH"),
        ("session commit X", "session commit [FLAGS] -m TEXT ID"),
        ("session start --tsk x", "session start [FLAGS] [TASK] [DURABLE] [BRANCH]"),
        ("session list --status gone", "session list [FLAGS] [STATUS]"),
    ],
)
def test_misuse_carries_the_usage_of_the_verb_in_one_line(line: str, usage: str) -> None:
    with pytest.raises(Misuse) as misuse:
        parsed(line)

    verb = " ".join(usage.split()[:2])
    assert misuse.value.usage == f"usage: gittrix {usage}\n`gittrix {verb} --help` shows all of it."


@pytest.mark.parametrize("line", ["--help", "session --help", "promote --help", "--version", "session start"])
def test_what_needs_no_engine_loads_none(line: str, tmp_path: Path) -> None:
    program = f"""
import sys
from pytest_gittrix.cli.main import main
main({shlex.split(line)!r})
print("loaded:", *sorted({set(HEAVY)!r} & set(sys.modules)))
"""

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines()[-1] == "loaded:"
