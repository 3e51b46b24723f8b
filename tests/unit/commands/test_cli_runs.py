"""`gittrix session run`, `tape` and `fork --model`, and `gittrix tape script`: an agent and its model on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support import coding_agent
from support.cli import Cli
from support.frameworks import available

AGENT = (sys.executable, coding_agent.__file__)
FIRST = """
from pytest_gittrix.model import call, stop
SCRIPT = (call("bash", command="echo one >> app.py"), call("bash", command="echo two > new.py"), stop())
"""
SECOND = """
from pytest_gittrix.model import call, say
SCRIPT = (call("bash", command="tail -n 1 app.py > way"), say("Another way."))
"""


@pytest.fixture(params=["off", "guard", "jail"])
def level(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def scripts(tmp_path: Path) -> tuple[str, str]:
    """The paths of two scripts."""
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(FIRST)
    second.write_text(SECOND)
    return str(first), str(second)


def line(*options: str, level: str = "off") -> list[str]:
    """The end of a command line: its options, and the agent."""
    return [*options, "--confine", level, "--readable", str(Path(coding_agent.__file__).parent), "--", *AGENT]


def run(cli: Cli, *words: str) -> dict[str, Any]:
    """What a run came to; it has to succeed, and tells people where to look."""
    ran = cli("--json", *words)
    assert ran.status == 0, ran.err
    data: dict[str, Any] = ran.envelope["data"]
    return data


def exchanges(cli: Cli, id_: str) -> list[int]:
    return [event["seq"] for event in cli.data("session", "history", id_, "--types", "model.exchange")]


def test_a_run_is_kept_and_goes_another_way_from_an_exchange(cli: Cli, id_: str, scripts: tuple[str, str], level: str) -> None:
    first = run(cli, "session", "run", id_, *line("--model", scripts[0], level=level))
    at = exchanges(cli, id_)[1]
    second = run(cli, "session", "fork", id_, "--at", str(at), *line("--model", scripts[1], level=level))

    assert (first["status"], first["exchanges"], first["touched"], first["problem"]) == (0, 3, ["app.py", "new.py"], None)
    assert (second["status"], second["exchanges"], second["replayed"], second["touched"]) == (0, 3, 1, ["app.py", "way"])
    assert (second["parent"], second["at"], second["problem"]) == (id_, at, None)
    assert cli.ok("session", "read", second["id"], "way").out == b"one\n"
    told = cli.ok("session", "log", second["id"], "--timeline").text
    assert f"as in {id_} up to event {at}, from there on with {scripts[1]}" in told
    assert "exchange 1 called bash" in told
    assert "(as recorded)" in told
    assert "ended with 0" in told


def test_what_an_agent_prints_comes_as_it_is(cli: Cli, id_: str, scripts: tuple[str, str]) -> None:
    ran = cli("session", "run", id_, *line("--model", scripts[0]))

    assert ran.text == "Done.\n"
    assert f"session {id_}: 3 exchanges" in ran.err


def test_a_printed_script_gives_the_same_files_and_so_does_the_tape(cli: Cli, id_: str, scripts: tuple[str, str], tmp_path: Path) -> None:
    run(cli, "session", "run", id_, *line("--model", scripts[0]))
    tape, printed = tmp_path / "tape.jsonl", tmp_path / "printed.py"
    tape.write_bytes(cli.ok("session", "tape", id_).out)
    printed.write_bytes(cli.ok("tape", "script", str(tape)).out)

    diffs = set()
    for model in (str(printed), str(tape)):
        other = cli.start()
        assert run(cli, "session", "run", other, *line("--model", model))["problem"] is None
        diffs.add(cli.ok("session", "diff", other).out)

    assert diffs == {cli.ok("session", "diff", id_).out}


def test_a_script_that_is_not_used_up_fails(cli: Cli, id_: str, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(FIRST.replace("stop()", "stop(), stop()"))

    ran = cli("session", "run", id_, *line("--model", str(tmp_path / "long.py")))

    assert ran.status == 1
    assert "1 step of the model's script was not asked for." in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "0", "--model", "live", "--", "true"], "Event 0 of session {} is no exchange with a model."),
        (["--model", "nothing", "--", "true"], "'nothing' is no model."),
        (["--model", "{}", "--", "no-such-program"], "no-such-program"),
        (["--model", "live"], "No program is named."),
        (["--", "true"], "A program is named, and no model."),
        (["--model", "live", "--files", "now", "--", "true"], "--model does not go with --files or --summary."),
        (["--model", "live", "--home", "/nowhere", "--", "true"], "There is no directory /nowhere."),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_what_cannot_be_run_again_is_refused_and_leaves_no_session(
    cli: Cli, id_: str, scripts: tuple[str, str], words: list[str], said: str
) -> None:
    run(cli, "session", "run", id_, *line("--model", scripts[0]))

    refused = cli("session", "fork", id_, *(scripts[1] if word == "{}" else word for word in words))

    assert refused.status == 1
    assert said.format(id_) in refused.err
    live: list[dict[str, Any]] = cli.data("session", "list")
    assert [one["id"] for one in live if one["state"] == "active"] == [id_]


@pytest.mark.parametrize(("contents", "said"), [("SCRIPT =", "cannot be loaded: SyntaxError"), ("x = 1", "has no SCRIPT")])
def test_a_file_that_is_no_script_is_named(cli: Cli, id_: str, tmp_path: Path, contents: str, said: str) -> None:
    (tmp_path / "bad.py").write_text(contents)

    refused = cli("session", "run", id_, *line("--model", str(tmp_path / "bad.py")))

    assert refused.status == 1
    assert said in refused.err


def test_a_session_without_kept_exchanges_has_no_tape(cli: Cli, id_: str) -> None:
    refused = cli("session", "tape", id_)

    assert refused.status == 1
    assert f"No exchange of session {id_} was kept." in refused.err


def test_two_runs_in_one_session_are_told_apart(cli: Cli, id_: str, scripts: tuple[str, str]) -> None:
    run(cli, "session", "run", id_, *line("--model", scripts[0]))
    run(cli, "session", "run", id_, *line("--model", scripts[1]))
    events = cli.data("session", "history", id_, "--types", "model.exchange")
    assert [event["data"]["run"] == events[0]["data"]["run"] for event in events] == [True] * 3 + [False] * 2

    again = run(cli, "session", "fork", id_, "--at", str(events[4]["seq"]), *line("--model", scripts[1], "--lenient"))

    assert (again["exchanges"], again["replayed"], again["problem"]) == (3, 1, None)
    assert len(cli.ok("session", "tape", id_).lines) == 6


def test_a_fork_needs_the_home_that_the_run_began_with(cli: Cli, id_: str, scripts: tuple[str, str], tmp_path: Path) -> None:
    home, other = tmp_path / "settings", tmp_path / "other"
    for directory, text in ((home, "one"), (other, "two")):
        (directory / ".agent").mkdir(parents=True)
        (directory / ".agent" / "settings").write_text(text)
    run(cli, "session", "run", id_, *line("--model", scripts[0], "--home", str(home)))
    fork = ("session", "fork", id_, "--at", str(exchanges(cli, id_)[1]))

    without = cli(*fork, *line("--model", scripts[1]))
    changed = cli(*fork, *line("--model", scripts[1], "--home", str(other)))
    states = [one["state"] for one in cli.data("session", "list") if one["id"] != id_]
    again = run(cli, *fork, *line("--model", scripts[1], "--home", str(home)))
    leniently = run(cli, *fork, *line("--model", scripts[1], "--lenient"))

    for refused, now in ((without, "none"), (changed, "others")):
        assert refused.status == 1
        assert f"The run of session {id_} began with files in its home, and this one is given {now}." in refused.err
        assert "it would not do the same again up to the exchange" in refused.err
        assert "Give --home the directory as it was then" in refused.err
        assert "--lenient goes on all the same." in refused.err
    assert states == ["discarded"] * 2
    assert [one["replayed"] for one in (again, leniently)] == [1, 1]


def test_a_fork_of_a_run_with_an_empty_home_is_given_none(cli: Cli, id_: str, scripts: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    run(cli, "session", "run", id_, *line("--model", scripts[0]))

    refused = cli(
        "session", "fork", id_, "--at", str(exchanges(cli, id_)[1]), *line("--model", scripts[1], "--home", str(tmp_path / "settings"))
    )

    assert f"The run of session {id_} began with an empty home, and this one is given some." in refused.err
    assert "Leave --home out." in refused.err
