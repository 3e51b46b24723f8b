"""``gittrix eval``: each verb as people and programs use it, its exit statuses, and what is wrong with what was typed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli, Terminal
from support.evals import SOLVES, agent_file, suite, write

from pytest_gittrix.cli.evals_output import watching
from pytest_gittrix.evals.runs.run import Progress
from pytest_gittrix.evals.runs.worker import JobResult


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capfdbinary)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return made


def run(cli: Cli, place: Path, name: str = "a", *more: str, agent: str = SOLVES) -> tuple[str, ...]:
    return ("eval", "run", str(place), "--agent", agent, "--out", str(cli.root / name), "--confine", "off", *more)


def test_a_run_tells_its_outcomes_and_where_it_is(cli: Cli) -> None:
    place = suite(cli.root, "one", "two")

    output = cli.ok(*run(cli, place, "a", "--epochs", "2")).text
    data = cli.data(*run(cli, place, "b", "--epochs", "2"))

    assert output.splitlines()[0].startswith("suite: 4 samples, manifest ")
    assert "  pass             4" in output
    assert "pass^2" in output
    assert f"result {data['digest'].removeprefix('sha256:')[:8]} in {cli.root / 'a'}" in output
    assert (data["samples"], data["outcomes"]["pass"], data["confine"]) == (4, 4, "off")


def test_the_python_of_the_run_is_found_without_one_on_the_path(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "programs").mkdir()
    for program in ("git", "sh"):
        (cli.root / "programs" / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(cli.root / "programs"))

    assert cli.data(*run(cli, suite(cli.root), agent=SOLVES))["outcomes"]["pass"] == 1
    assert "There is no program 'pythons' on PATH" in cli(*run(cli, suite(cli.root), agent="pythons agent.py")).err


def test_a_run_goes_where_the_suite_is_called_unless_told(cli: Cli) -> None:
    place = suite(cli.root)

    assert cli.data("eval", "run", str(place), "--agent", "nop", "--confine", "off")["run"] == str(cli.project / "runs" / "suite")


def test_samples_that_did_not_pass_are_told_with_their_reasons(cli: Cli) -> None:
    output = cli.ok(*run(cli, suite(cli.root), agent="nop")).text

    assert "  fail        one #0  function: AssertionError: the version is not 2" in output


@pytest.mark.parametrize(("least", "status"), [("50", 0), ("51", 1)])
def test_too_few_passes_end_with_one(cli: Cli, least: str, status: int) -> None:
    agent = agent_file(cli.root, "toolbox.write('app.py', 'VERSION = 2\\n' if toolbox.case == 'one' else '')")

    ran = cli(*run(cli, suite(cli.root, "one", "two"), "a", "--fail-under", least, agent=agent))

    assert ran.status == status
    assert ("fewer than 51 % passed" in ran.err) == bool(status)


def test_a_sample_says_what_judged_its_hidden_tests(cli: Cli) -> None:
    test = "import app\n\n\ndef test_it():\n    assert app.VERSION == 2\n"
    cli.ok(*run(cli, suite(cli.root, more='[check]\npytest = "test_it.py"\n', extra={"test_it.py": test})))

    assert "  ok  pytest 1 by subject\n" in cli.ok("eval", "show", str(cli.root / "a"), "one").text
    assert cli.data("eval", "show", str(cli.root / "a"), "one")["checks"][0]["judges"] == {"test_it": "subject"}


def test_a_broken_agent_ends_the_run_with_one_and_is_shown_at_once(cli: Cli) -> None:
    ran = cli(*run(cli, suite(cli.root, "one", "two"), agent="sh -c 'echo no model >&2; exit 127'"))

    assert ran.status == 1
    assert ran.err.count("no model") == 1
    assert "The agent failed in every sample" in ran.err
    assert "no model" in cli.ok("eval", "show", str(cli.root / "a"), "one").text


def test_a_run_says_how_many_samples_were_taken_over_and_compare_what_differs(cli: Cli) -> None:
    place = suite(cli.root, "one", "two")
    agent = agent_file(cli.root, "import told_words\ntoolbox.write('app.py', told_words.TEXT)")
    write(cli.root, {"told_words.py": "TEXT = 'VERSION = 2\\n'\n"})
    cli.ok(*run(cli, place, "a", "--filter", "one", agent=agent))
    taken = cli.ok(*run(cli, place, "b", "--from", str(cli.root / "a"), agent=agent)).text
    write(cli.root, {"told_words.py": "TEXT = 'VERSION = 22\\n'\n"})
    sys.modules.pop("told_words", None)  # the change is seen by a new process
    changed = cli.ok(*run(cli, place, "c", "--from", str(cli.root / "b"), agent=agent)).text

    assert "1 of 2 taken over\n" in taken
    assert "0 of 2 taken over\n" in changed
    assert "1 of 2 taken over from another run." in cli("eval", "show", str(cli.root / "b")).err
    assert "<dt>taken over</dt><dd>1 of 2</dd>" in (cli.root / "b" / "report.html").read_text()
    compared = cli("eval", "compare", str(cli.root / "b"), str(cli.root / "c"))
    assert compared.status == 3
    assert "inputs: differ: read.file told_words.py " in compared.text


def test_an_infra_error_ends_with_one_and_says_what_to_do(cli: Cli) -> None:
    place = suite(cli.root, more='[check]\ndiff = "bad.diff"\n', extra={"bad.diff": "no diff\n"})

    ran = cli(*run(cli, place))

    assert ran.status == 1
    assert "1 samples ended in infra_error" in ran.err
    assert "--resume" in ran.err


def test_a_filter_a_shard_and_a_resume_do_what_they_say(cli: Cli) -> None:
    place = suite(cli.root, "fix-a", "fix-b", "other")

    assert cli.data(*run(cli, place, "a", "--filter", "fix-*"))["samples"] == 2
    assert cli.data(*run(cli, place, "a", "--resume", "--trust-agent"))["already"] == 2
    parts = [cli.data(*run(cli, place, f"part-{n}", "--shard", f"{n}/2"))["samples"] for n in (1, 2)]
    assert sum(parts) == 3
    merged = cli.data("eval", "merge", str(cli.root / "part-1"), str(cli.root / "part-2"), "--out", str(cli.root / "merged"))
    assert merged["digest"] == cli.data(*run(cli, place, "a", "--resume", "--trust-agent"))["digest"]
    assert cli.data(*run(cli, place, "again", "--from", str(cli.root / "a"), "--trust-agent"))["reused"] == 3


def test_show_tells_a_run_and_a_sample(cli: Cli) -> None:
    cli.ok(*run(cli, suite(cli.root)))
    table = cli.ok("eval", "show", str(cli.root / "a")).lines
    output = cli.ok("eval", "show", str(cli.root / "a"), "one").text
    data = cli.data("eval", "show", str(cli.root / "a"), "one")

    assert table[0].split() == ["CASE", "EPOCH", "OUTCOME", "TESTS", "FILES", "PROMOTED", "REASON"]
    assert table[1].split()[:4] == ["one", "0", "pass", "1"]
    for part in ("one #0: pass", "session.created", "promote.done", "ok  function", "+VERSION = 2", "again: gittrix eval replay"):
        assert part in output
    assert data["outcome"] == "pass"
    assert [event["seq"] for event in data["events"]] == list(range(len(data["events"])))
    assert "+VERSION = 2" in data["patch"]
    assert cli.data("eval", "show", str(cli.root / "a"))["samples"][0]["id"] == "one"


def test_show_tells_a_conflict(cli: Cli) -> None:
    cli.ok(*run(cli, suite(cli.root, more='[drift]\nfiles = "drift"\n', extra={"drift/app.py": "VERSION = 7\n"})))

    output = cli.ok("eval", "show", str(cli.root / "a"), "one").text

    assert "one #0: conflict" in output
    assert output.split("conflict\n")[2].split()[1] == "app.py"


@pytest.mark.parametrize(("other", "status"), [("same", 0), ("flips", 1), ("tree", 2), ("seed", 3)])
def test_compare_ends_as_the_runs_compare(cli: Cli, other: str, status: int) -> None:
    place = suite(cli.root, "one", "two")
    body = f"""
    import os
    way = ("same", "flips", "tree", "seed")[int(os.stat({str(cli.root / "way")!r}).st_mtime)]
    toolbox.write("app.py", "VERSION = 2\\n" if way != "flips" else "")
    toolbox.write("way", way if way == "tree" else "")
    """
    agent = agent_file(cli.root, body)
    write(cli.root, {"way": ""})
    os.utime(cli.root / "way", (0, 0))
    cli.ok(*run(cli, place, "a", agent=agent))
    os.utime(cli.root / "way", (status, status))
    cli.ok(*run(cli, place, "b", *(["--seed", "9"] if other == "seed" else []), agent=agent))

    ran = cli("eval", "compare", str(cli.root / "a"), str(cli.root / "b"))
    data = cli("eval", "compare", str(cli.root / "a"), str(cli.root / "b"), "--json").envelope["data"]

    assert ran.status == data["code"] == status
    assert ran.err == ""
    words = {"same": "inputs: same", "flips": "0 better, 2 worse", "tree": "same outcome, different tree", "seed": "differ: setting.seed"}
    assert words[other] in ran.text


def test_a_replay_ends_with_zero_and_keeps_the_files(cli: Cli) -> None:
    cli.ok(*run(cli, suite(cli.root), "a", "--record"))

    output = cli.ok("eval", "replay", str(cli.root / "a"), "one", "--keep", str(cli.root / "kept")).text

    assert output == "one #0: the same, pass\n"
    assert (cli.root / "kept" / "app.py").read_text() == "VERSION = 2\n"
    again = cli.data(
        "eval", "run", str(cli.root / "suite"), "--replay", str(cli.root / "a"), "--out", str(cli.root / "b"), "--confine", "off"
    )
    assert again["digest"] == cli.data("eval", "show", str(cli.root / "a"))["digest"]


def test_a_suite_is_found_deterministic_or_not(cli: Cli) -> None:
    place = suite(cli.root)
    random = agent_file(cli.root, "import os\ntoolbox.write('app.py', os.urandom(4).hex())")

    assert cli("eval", "check-determinism", str(place), "--agent", SOLVES, "--confine", "off").status == 0
    hashes = "python -c \"open('x', 'w').write(str(hash('a')))\""
    assert cli("eval", "check-determinism", str(place), "--agent", hashes, "--confine", "off").status == 1
    ran = cli("eval", "check-determinism", str(place), "--agent", random, "--confine", "off")
    assert ran.status == 1
    assert "first difference: event " in ran.text


def test_what_could_not_be_run_is_not_found_deterministic(cli: Cli) -> None:
    place = suite(cli.root, more='[check]\ndiff = "expected.diff"\n', extra={"expected.diff": "no diff\n"})

    ran = cli("eval", "check-determinism", str(place), "--agent", SOLVES, "--confine", "off", "--retries", "0")

    assert ran.status == 1
    assert "1 samples ended in infra_error" in ran.err


def test_a_part_of_a_run_says_that_it_is_one(cli: Cli) -> None:
    cli.ok(*run(cli, suite(cli.root, "one", "two"), "a", "--filter", "one"))

    shown = cli("eval", "show", str(cli.root / "a"))
    merged = cli("eval", "merge", str(cli.root / "a"), "--out", str(cli.root / "merged"))

    assert (shown.status, merged.status) == (0, 0)
    assert "1 of 2 samples have a record" in shown.err
    assert "1 of 2 samples have a record" in merged.err
    assert cli.data("eval", "show", str(cli.root / "merged"))["planned"] == 2


def test_du_and_prune_tell_sizes_and_remove_what_is_old(cli: Cli) -> None:
    cli.ok(*run(cli, suite(cli.root), "runs/a"))
    used: Any = cli.data("eval", "du", str(cli.root / "runs"))

    assert [(Path(one["run"]).name, one["samples"]) for one in used] == [("a", 1)]
    assert used[0]["bytes"] == sum(used[0]["parts"].values()) > 0
    assert "objects.git" in cli.ok("eval", "du", str(cli.root / "runs" / "a")).text

    prune = ("eval", "prune", str(cli.root / "runs"), "--older")
    assert cli.data(*prune, "1h")["removed"] == []
    from pytest_gittrix.evals.results.manifest import Manifest
    from pytest_gittrix.evals.results.store import RunStore

    store = RunStore(cli.root / "runs" / "a")
    store.write_manifest(Manifest(store.manifest().core, {**store.manifest().host, "began": "2020-01-01T00:00:00Z"}))
    assert cli.data(*prune, "7d", "--dry-run")["removed"] == [str(store.path)]
    with store.locked():
        assert cli.data(*prune, "7d")["removed"] == []
    (cli.root / "runs" / "link").symlink_to(store.path)
    write(store.path, {"notes.txt": "mine"})
    assert cli.data(*prune, "7d")["removed"] == [str(store.path)]
    assert [path.name for path in store.path.iterdir()] == ["notes.txt"]
    assert cli.data(*prune, "7d")["removed"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "suite", "--seed", "-1"),
        ("run", "suite", "--epochs", "0"),
        ("run", "suite", "--shard", "4/3"),
        ("run", "suite", "--timeout", "soon"),
        ("run", "suite", "--confine", "airtight"),
        ("run", "suite", "--fail-under", "101"),
        ("compare", "a"),
        ("prune", "runs"),
        ("merge", "a"),
    ],
)
def test_what_is_no_command_is_misuse(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("eval", *arguments).status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere", "--agent", "nop"), "A suite is a directory with a suite.toml."),
        (("run", "siute", "--agent", "nop"), "Did you mean suite? Give the path of one."),
        (("run", "suite", "--agent", "gould"), "Did you mean gold? Give a command, gold, nop or python:module:function."),
        (("run", "suite"), "There is no agent"),
        (("run", "suite", "--agent", "nop", "--executor", "cloud"), "There is no executor 'cloud'"),
        (("run", "suite", "--agent", "nop", "--filter", "x*"), "No sample fits x*"),
        (("run", "suite", "--replay", "nowhere"), "holds no run"),
        (("show", "nowhere"), "holds no run"),
        (("compare", "nowhere", "nowhere"), "holds no run"),
        (("du", "nowhere"), "There is no directory nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    suite(cli.root)
    monkeypatch.chdir(cli.root)

    assert message in cli.refused("eval", *arguments)


def test_on_a_terminal_a_live_table_shows_what_was_done_last(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with watching("puzzles", quiet=False) as watch:
        watch(Progress(0, 2))
        watch(Progress(1, 2, JobResult("k", "fix-it", 0, "pass", "", 12.3)))
        watch(Progress(2, 2, JobResult("k", "[red]odd", 1, "agent_error", "", 4)))

    for part in ("puzzles", "fix-it #0", "pass 1", "[red]odd #1", "agent_error 1", "2/2"):
        assert part in terminal.shown


def test_nobody_watching_gets_no_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with watching("puzzles", quiet=True) as watch:
        watch(Progress(1, 2, JobResult("k", "fix-it", 0, "pass", "", 12.3)))

    assert terminal.shown == ""
