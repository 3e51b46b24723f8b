"""What agents get and what they are: their task, their environment, and an identity that does not know where they are."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.acp_program import agent_that
from support.evals import agent_file, command_file, ran, suite, write
from support.patience import long_enough

from pytest_gittrix.confine.levels import confinement, strongest
from pytest_gittrix.confine.limits import ResourceLimits
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.results.manifest import PINNED
from pytest_gittrix.evals.runs.agents import GoldAgent, NopAgent, ProgramAgent, agent_of
from pytest_gittrix.evals.runs.run import Summary

TELLS = """
import json, os, sys
given = {"stdin": sys.stdin.read(), "file": open(os.environ["GITTRIX_TASK_FILE"]).read(), "cwd": sorted(os.listdir(".")),
        "environment": dict(os.environ)}
json.dump(given, open("told.json", "w"))
"""


def told_by(place: Path, root: Path, **changed: object) -> dict[str, object]:
    summary = ran(place, root, command_file(root, TELLS), **changed)
    (record,) = summary.records
    found: dict[str, object] = json.loads(summary.store.objects.file(record.final, "told.json"))
    return {**found, "record": record}


def test_a_command_gets_the_task_twice_and_works_in_the_workspace(tmp_path: Path) -> None:
    found = told_by(suite(tmp_path), tmp_path)

    assert found["stdin"] == found["file"] == "Make the version 2."
    assert set(found["cwd"]) >= {"README.md", "app.py", "tests"}  # type: ignore[call-overload]


def test_its_environment_is_hermetic_pinned_and_tells_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("PYTHONHASHSEED", "17")

    found = told_by(suite(tmp_path), tmp_path, passed=("WANTED", "NOT_THERE"), seed=3)
    environment = found["environment"]
    assert isinstance(environment, dict)

    assert "SECRET_TOKEN" not in environment
    assert "NOT_THERE" not in environment
    assert environment["WANTED"] == "yes"
    assert {name: environment[name] for name in PINNED} == dict(PINNED)
    assert environment["SOURCE_DATE_EPOCH"] == "1893456000"
    assert environment["GIT_AUTHOR_DATE"] == "1893456000 +0000"
    assert environment["GITTRIX_CASE"] == "one"
    assert environment["GITTRIX_EPOCH"] == "0"
    assert environment["GITTRIX_SEED"] == found["record"].seed  # type: ignore[attr-defined]
    assert environment["GITTRIX_SESSION_ID"] == found["record"].session  # type: ignore[attr-defined]
    assert environment["HOME"] != os.environ.get("HOME")


def test_the_python_that_runs_the_suite_is_found_first(tmp_path: Path) -> None:
    agent = "python -c \"import sys; open('which', 'w').write(sys.prefix)\""

    summary = ran(suite(tmp_path), tmp_path, agent)

    assert summary.store.objects.file(summary.records[0].final, "which").decode() == sys.prefix


def test_two_samples_do_not_see_each_other(tmp_path: Path) -> None:
    body = """
    import os, pathlib
    home = pathlib.Path(os.environ["HOME"])
    seen = sorted(path.name for path in home.iterdir() if not path.name.startswith("."))
    (home / "left-behind").write_text("x")
    pathlib.Path("seen").write_text(repr(seen))
    """
    summary = ran(suite(tmp_path, "a", "b"), tmp_path, command_file(tmp_path, body))

    assert [summary.store.objects.file(record.final, "seen") for record in summary.records] == [b"[]", b"[]"]


@pytest.mark.parametrize("level", ["guard", "jail"])
def test_a_confined_agent_sees_neither_the_solution_nor_durable_nor_the_run(tmp_path: Path, level: str) -> None:
    if level not in (strongest().level, "guard") or strongest().level == "off":
        pytest.skip(f"there is no {level} here: {confinement('auto').why}")
    place = suite(tmp_path, more='gold = "gold.patch"\n', extra={"gold.patch": "secret"})
    body = f"""
    import os
    from pathlib import Path
    seen = []
    for path in {[str(place), str(tmp_path / "run"), "../../../../durable", "/etc/shadow"]!r}:
        try:
            seen.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
        except OSError:
            pass
    Path("seen").write_text(repr(seen))
    Path("app.py").write_text("VERSION = 2\\n")
    """
    agent = command_file(tmp_path, body)  # beside the suite and the run, where most people keep it

    summary = ran(place, tmp_path, agent, confine=level)

    assert summary.records[0].outcome == "pass"
    assert summary.store.objects.file(summary.records[0].final, "seen") == b"[]"
    assert summary.manifest.core["setting"]["confine"] == level


def test_a_function_gets_task_seed_files_and_programs(tmp_path: Path) -> None:
    body = """
    done = toolbox.run(['sh', '-c', 'cat; echo $GITTRIX_CASE; cat app.py'], stdin='hello ')
    toolbox.note('assistant', 'thinking')
    toolbox.write('out.txt', f'{toolbox.task}|{toolbox.case}|{toolbox.epoch}|{len(toolbox.seed)}|{done.stdout.decode()}|{done.code}')
    toolbox.delete('README.md')
    """
    summary = ran(suite(tmp_path), tmp_path, agent_file(tmp_path, body))
    (record,) = summary.records

    assert summary.store.objects.file(record.final, "out.txt").decode() == "Make the version 2.|one|0|64|hello one\nVERSION = 1\n|0"
    assert record.files == ("README.md", "out.txt")
    steps = [step["do"] for step in summary.store.lines("transcripts", record.key)]
    assert steps == ["begin", "run", "note", "write", "delete"]


def turns_of(summary: Summary) -> list[tuple[str, str]]:
    """The messages and turns of the only sample, in order, and how the turns ended."""
    wanted = ("turn.started", "user_message", "assistant_message", "turn.ended")
    lines = summary.store.lines("events", summary.records[0].key)
    return [(line["kind"], line["data"].get("status", "")) for line in lines if line["kind"] in wanted]


def test_an_agent_that_speaks_the_protocol_gets_the_task_as_its_prompt(tmp_path: Path) -> None:
    work = """
one = ask("terminal/create", command="sh", args=["-c", "echo $GITTRIX_CASE"], cwd=cwd)["terminalId"]
ask("terminal/wait_for_exit", terminalId=one)
seen = ask("terminal/output", terminalId=one)["output"]
ask("fs/write_text_file", path=cwd + "/out.txt", content=task + "|" + seen)
ask("fs/write_text_file", path=cwd + "/app.py", content="VERSION = 2\\n")
say("done")
"""
    (tmp_path / "agent.py").write_text(agent_that(work))

    summary = ran(suite(tmp_path), tmp_path, f"acp:{sys.executable} {tmp_path / 'agent.py'}", confine="auto")
    (record,) = summary.records

    assert record.outcome == "pass", record.reason
    assert summary.store.objects.file(record.final, "out.txt") == b"Make the version 2.|one\n"
    assert turns_of(summary) == [("turn.started", ""), ("user_message", ""), ("assistant_message", ""), ("turn.ended", "done")]
    broken = ran(suite(tmp_path / "again"), tmp_path / "again", "acp:true")
    assert broken.records[0].outcome == "agent_error"
    assert turns_of(broken)[-1] == ("turn.ended", "failed")


def test_the_turn_of_an_agent_that_speaks_the_protocol_is_interrupted_when_its_time_is_up(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(agent_that("receive()"))
    agent = f"acp:{sys.executable} {tmp_path / 'agent.py'}"

    def run_for(seconds: float) -> Summary:
        return ran(suite(tmp_path / str(seconds)), tmp_path / str(seconds), agent, timeout_ms=round(seconds * 1000))

    summary = long_enough(run_for, turns_of)

    assert summary.records[0].outcome == "timeout"
    assert turns_of(summary)[-1] == ("turn.ended", "interrupted")


def test_agents_are_told_as_text(tmp_path: Path) -> None:
    assert agent_of("gold") == GoldAgent()
    assert agent_of("nop") == NopAgent()
    assert agent_of("make 'all of it'") == ProgramAgent(("make", "all of it"))


@pytest.mark.parametrize(
    "spec", ["", "   ", "make 'all", "python:", "python:no_such_module:work", "python:os:no_such", "python:os.py:f", "python:os:sep"]
)
def test_what_is_no_agent_is_refused(spec: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        agent_of(spec)

    assert refused.value.fix


def test_an_agent_is_the_same_wherever_it_is_and_another_when_it_changes(tmp_path: Path) -> None:
    command, function = command_file(tmp_path / "a", "pass\n"), agent_file(tmp_path / "a", "pass")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = [spec.replace(f"{tmp_path}/a", f"{tmp_path}/b") for spec in (command, function)]

    assert [agent_of(spec).identity for spec in moved] == [agent_of(spec).identity for spec in (command, function)]

    before = [agent_of(spec).identity for spec in moved]
    write(tmp_path / "b", {"agent_program.py": "pass  # now\n", "agent.py": "def work(toolbox):\n    return 1\n"})
    assert all(agent_of(spec).identity != old for spec, old in zip(moved, before, strict=True))


def test_a_word_that_is_no_path_stays_as_it_is_for_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"app.py": "", "bin/agent.sh": ""})
    monkeypatch.chdir(tmp_path)

    agent = ProgramAgent.of("./bin/agent.sh app.py")

    assert agent.argv == (str(tmp_path / "bin" / "agent.sh"), "app.py")
    assert agent.identity["argv"] == ["agent.sh", "app.py"]
    assert agent.readable == (tmp_path / "bin" / "agent.sh",)


def test_an_agent_that_passes_a_limit_of_the_run_fails_and_its_record_says_why(tmp_path: Path) -> None:
    if strongest().level == "off":
        pytest.skip("nothing confines programs here")
    hog = command_file(tmp_path, "while True: pass")
    summary = ran(suite(tmp_path), tmp_path, hog, confine="auto", limits=ResourceLimits(cpu_seconds=0.5))
    (record,) = summary.records

    assert record.outcome == "agent_error"
    assert "passed its limit of cpu" in record.reason
    assert summary.store.manifest().core["setting"]["limits"] == ["cpu_seconds=0.5"]
