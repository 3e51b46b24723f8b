"""What was recorded is done again to the same bytes; whatever differs is told with both sides, and nothing recorded is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.evals import SOLVES, agent_file, command_file, ran, suite, write

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.runs.run import Summary
from pytest_gittrix.evals.runs.transcript import ExpectedTranscript, Mismatch, data_fields, data_of
from pytest_gittrix.evals.verification.rerun import keep_files, replay_sample

STEPS = """
toolbox.run(['sh', '-c', 'cat > made.txt'], stdin='by hand')
toolbox.write('app.py', 'VERSION = 2\\n')
toolbox.run(['chmod', '+x', 'app.py'])
toolbox.write('raw.bin', b'\\xff\\x00')
toolbox.delete('README.md')
"""


def replayed(tmp_path: Path, agent: str = "", **changed: Any) -> Summary:
    return ran(tmp_path / "suite", tmp_path, agent, out=tmp_path / "again", replay=tmp_path / "run", **changed)


@pytest.mark.parametrize("kind", ["function", "command", "links", "fails", "late", "raises"])
def test_a_replay_comes_to_the_same_digest_without_the_agent(tmp_path: Path, kind: str) -> None:
    agents = {
        "function": lambda: agent_file(tmp_path / "agent", STEPS),
        "command": lambda: SOLVES,
        "links": lambda: "sh -c 'ln -s app.py link; mkdir -p d; mv README.md d/; echo \"#!/bin/sh\" > run.sh; chmod +x run.sh'",
        "fails": lambda: "sh -c 'echo half > app.py; exit 4'",
        "late": lambda: command_file(tmp_path / "agent", "import time\nopen('app.py', 'w').write('slow')\ntime.sleep(600)\n"),
        "raises": lambda: agent_file(tmp_path / "agent", "toolbox.write('app.py', 'x')\nraise KeyError('gone')"),
    }
    first = ran(suite(tmp_path), tmp_path, agents[kind](), record=True, timeout_ms=2000 if kind == "late" else None)
    for file in (tmp_path / "agent").glob("*"):
        file.unlink()

    again = replayed(tmp_path, timeout_ms=2000 if kind == "late" else None)

    assert again.digest == first.digest
    assert again.manifest.digest == first.manifest.digest
    assert compare(first.store, again.store).code == 0


def test_a_step_that_comes_out_otherwise_stops_a_strict_replay_with_both_sides(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    write(tmp_path, {"marker": "one"})
    agent = agent_file(tmp_path, f"toolbox.run(['cat', '{marker}'])\ntoolbox.write('app.py', 'VERSION = 2\\n')")
    first = ran(suite(tmp_path), tmp_path, agent, record=True)
    marker.write_text("two")

    (strict,) = replayed(tmp_path).records
    (lenient,) = ran(tmp_path / "suite", tmp_path, "", out=tmp_path / "lenient", replay=tmp_path / "run", lenient=True).records

    assert first.records[0].outcome == "pass"
    assert strict.outcome == "agent_error"
    assert "step 1 (do 'run'" in strict.reason
    assert strict.reason.count("sha256:") == 2
    assert strict.files == ()
    assert lenient.outcome == "pass"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("toolbox.write('app.py', 'VERSION = 9')", "data is 'VERSION = 9', and 'VERSION = 2\\n' was recorded"),
        ("toolbox.write('other.py', '')", "path is 'other.py'"),
        ("toolbox.run(['true'])", "do is 'run', and 'write' was recorded"),
        ("toolbox.write('app.py', 'VERSION = 2\\n')\ntoolbox.delete('app.py')", "no further step was recorded"),
        ("pass", "1 recorded steps were not done"),
    ],
)
def test_an_agent_is_held_against_what_was_recorded(tmp_path: Path, body: str, message: str) -> None:
    agent = agent_file(tmp_path / "agent", "toolbox.write('app.py', 'VERSION = 2\\n')")
    assert ran(suite(tmp_path), tmp_path, agent, record=True).records[0].outcome == "pass"

    (record,) = replayed(tmp_path, agent_file(tmp_path / "agent", body)).records

    assert record.outcome == "agent_error"
    assert message in record.reason


def test_an_agent_that_does_as_recorded_passes(tmp_path: Path) -> None:
    agent = agent_file(tmp_path, STEPS)
    first = ran(suite(tmp_path), tmp_path, agent, record=True)

    assert replayed(tmp_path, agent).digest == first.digest


def test_a_case_that_changed_is_not_what_was_recorded(tmp_path: Path) -> None:
    ran(suite(tmp_path), tmp_path, SOLVES, record=True)
    write(tmp_path / "suite" / "cases" / "one", {"repo/README.md": "# Another\n"})

    (record,) = replayed(tmp_path).records

    assert record.outcome == "infra_error" or "the base is" in record.reason
    with pytest.raises(InvalidInput, match="not as it was"):
        replay_sample(ran_store(tmp_path), "one", 0, tmp_path / "one-sample")


def ran_store(tmp_path: Path) -> Any:
    from pytest_gittrix.evals.results.store import RunStore

    return RunStore.open(tmp_path / "run")


def test_what_was_not_recorded_cannot_be_replayed(tmp_path: Path) -> None:
    ran(suite(tmp_path, "one", "two"), tmp_path, SOLVES, only=("one",))

    records = {record.id: record for record in replayed(tmp_path).records}

    assert records["one"].outcome == "pass"
    assert records["two"].outcome == "infra_error"
    assert "no transcript of 'two'" in records["two"].reason


def test_one_sample_is_replayed_and_its_files_kept(tmp_path: Path) -> None:
    ran(suite(tmp_path), tmp_path, "sh -c 'echo hi > new; chmod +x new; ln -s new link'", epochs=2)

    again, pair = replay_sample(ran_store(tmp_path), "one", 1, tmp_path / "scratch")
    keep_files(again, pair.b, tmp_path / "kept")

    assert pair.difference == "same"
    assert (tmp_path / "kept" / "link").read_text() == "hi\n"
    assert (tmp_path / "kept" / "new").stat().st_mode & 0o100
    assert (tmp_path / "kept" / "README.md").read_text() == "# App\n"
    with pytest.raises(InvalidInput, match="cannot be made"):
        keep_files(again, pair.b, tmp_path / "kept")


def test_a_replay_is_done_as_the_run_was_that_it_replays(tmp_path: Path) -> None:
    first = ran(suite(tmp_path), tmp_path, SOLVES, seed=5, epochs=2, timeout_ms=7000, passed=("LANG",))

    again = replayed(tmp_path, confine=None)

    assert again.manifest.digest == first.manifest.digest
    assert again.digest == first.digest
    assert len(again.records) == 2


def test_a_script_compares_trees_only_where_both_sides_have_one() -> None:
    recorded = [{"do": "begin", "base": "b", "task": "t"}, {"do": "run", "argv": ["x"], "exit": 0, "output": "o", "tree": None}]
    expected = ExpectedTranscript(recorded)

    step = {"do": "run", "argv": ["x"], "exit": 0, "output": "o", "tree": "123"}
    expected.check_action(step)
    expected.check_result(step)
    expected.check_end()
    with pytest.raises(Mismatch, match="the task is u"):
        ExpectedTranscript(recorded).check_start({"do": "begin", "base": "b", "task": "u"})


@pytest.mark.parametrize("data", [b"", b"text", "ü".encode(), b"\xff\x00"])
def test_bytes_of_a_step_read_back(data: bytes) -> None:
    assert data_of(data_fields(data)) == data
