"""A run on disk: whole samples or none, made once, written by one process at a time, and refused where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.evals import SOLVES, agent_file, edit_json, options, ran, suite, write

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, MetadataVersionUnsupported
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Record, decode
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.run import Progress, run_suite

RECORD = Record(
    key="0" * 32,
    id="one",
    epoch=0,
    seed="1" * 64,
    case="sha256:aa",
    session="sess_x",
    outcome="conflict",
    files=("a", "b\udcff"),
    conflict={"a": "text"},
    exit=None,
    checks=(CheckResult("command", False, "status 1"),),
)


def test_a_record_reads_back_as_it_was_and_is_the_same_bytes_again() -> None:
    again = decode(RECORD.encode(), Path("x"))

    assert again == RECORD
    assert again.encode() == RECORD.encode()


def test_a_record_that_was_changed_or_cut_is_damaged() -> None:
    whole = RECORD.encode()
    for damaged in (
        b"",
        whole[: len(whole) // 2],
        whole.replace(b"conflict", b"pass"),
        b"[]",
        b"null",
        b'{"digest":1}',
        whole.replace(b"schema", b"scheme"),
    ):
        with pytest.raises(InvalidInput, match="is damaged"):
            decode(damaged, Path("x"))


def test_a_record_of_another_version_is_told_as_that() -> None:
    body = json.loads(RECORD.encode())
    with pytest.raises(MetadataVersionUnsupported, match="version 2"):
        decode(json.dumps({**body, "schema": 2}).encode(), Path("x"))


def test_a_run_is_made_once_and_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    place = suite(tmp_path, "one", "two")
    first = ran(place, tmp_path, SOLVES)
    with pytest.raises(InvalidInput, match="holds a run already"):
        ran(place, tmp_path, SOLVES)
    progress: list[Progress] = []

    again = run_suite(Suite.load(place), options(tmp_path, SOLVES, resume=True, trust_agent=True), watch=progress.append)

    assert (again.already, again.digest) == (2, first.digest)
    assert [(one.done, one.total, one.last) for one in progress] == [(2, 2, None)]


def test_resuming_does_only_what_is_missing_damaged_or_was_nobodys_fault(tmp_path: Path) -> None:
    place = suite(tmp_path, "a", "b", "c", "d")
    first = ran(place, tmp_path, SOLVES)
    files = {record.id: first.store.path / "samples" / f"{record.key}.json" for record in first.records}
    files["a"].unlink()
    files["b"].write_bytes(files["b"].read_bytes()[:50])
    records = {record.id: record for record in first.records}
    files["c"].write_bytes(Record(**{**_fields(records["c"]), "outcome": "infra_error"}).encode())
    progress: list[Progress] = []

    again = run_suite(Suite.load(place), options(tmp_path, SOLVES, resume=True, trust_agent=True), watch=progress.append)

    assert [one.last.id for one in progress if one.last] == ["a", "b", "c"]
    assert again.digest == first.digest
    assert files["b"].with_name(files["b"].name + ".aside").exists()


def _fields(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_resuming_with_other_inputs_is_refused_and_names_them(tmp_path: Path) -> None:
    place = suite(tmp_path)
    ran(place, tmp_path, SOLVES)
    write(place / "cases" / "one", {"check.py": "def check(result):\n    pass\n"})

    with pytest.raises(InvalidInput) as refused:
        ran(place, tmp_path, "nop", seed=1, resume=True)

    assert refused.value.fact.endswith("setting.seed differ.")
    assert "samples.one, setting.agent.argv, setting.agent.files, setting.agent.installed" in refused.value.fact
    assert "--from" in refused.value.fix


def test_two_processes_do_not_write_to_one_run(tmp_path: Path) -> None:
    place = suite(tmp_path)
    with RunStore(tmp_path / "run").locked(), pytest.raises(AdapterUnavailable, match="Another process writes"):
        ran(place, tmp_path, SOLVES)

    assert ran(place, tmp_path, SOLVES).counts["pass"] == 1


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {"run/notes.txt": "mine"})

    with pytest.raises(InvalidInput, match="is not empty"):
        ran(suite(tmp_path), tmp_path, SOLVES)

    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "notes.txt"]


@pytest.mark.parametrize("path", ["", "a\0b", "nowhere"])
def test_what_is_no_run_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        RunStore.open(path)


@pytest.mark.parametrize("key", ["", "../manifest", "0" * 31, "0" * 33, "G" * 32, "a" * 31 + "\0"])
def test_what_is_no_key_leads_nowhere(tmp_path: Path, key: str) -> None:
    summary = ran(suite(tmp_path), tmp_path, SOLVES)

    with pytest.raises(InvalidInput):
        summary.store.record(key)


def test_a_damaged_manifest_or_log_is_told(tmp_path: Path) -> None:
    summary = ran(suite(tmp_path), tmp_path, SOLVES)
    (record,) = summary.records
    write(summary.store.path, {f"events/{record.key}.jsonl": "{"})
    with pytest.raises(InvalidInput, match="events"):
        summary.store.lines("events", record.key)

    edit_json(summary.store.path / "manifest.json", digest="sha256:00")
    with pytest.raises(InvalidInput, match="manifest"):
        summary.store.manifest()


def test_the_manifest_tells_what_counts_apart_from_what_does_not(tmp_path: Path) -> None:
    place = suite(tmp_path)
    one = ran(place, tmp_path, SOLVES).manifest
    other = ran(place, tmp_path, SOLVES, out=tmp_path / "elsewhere", workers=2).manifest

    assert one.digest == other.digest
    assert one.host != other.host
    assert one.core["setting"]["confine"] == "off"
    assert one.core["setting"]["system"]["python"]
    assert Manifest.decode(one.encode()) == one


def test_a_disk_that_refuses_leaves_no_record(tmp_path: Path) -> None:
    place = suite(tmp_path, "one")
    summary = ran(place, tmp_path, SOLVES)
    (record,) = summary.records
    summary.store.set_aside(record.key)
    events = summary.store.path / "events"
    for file in events.iterdir():
        file.unlink()
    events.rmdir()
    events.write_text("in the way")

    with pytest.raises(AdapterUnavailable, match="cannot be used"):
        ran(place, tmp_path, SOLVES, resume=True, trust_agent=True)

    assert not summary.store.has(record.key)


def test_progress_counts_every_sample_once(tmp_path: Path) -> None:
    progress: list[Progress] = []
    agent = agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")

    run_suite(Suite.load(suite(tmp_path, "a", "b")), options(tmp_path, agent, epochs=2), watch=progress.append)

    assert [(one.done, one.total) for one in progress] == [(n, 4) for n in range(5)]
    assert [(one.last.id, one.last.epoch) for one in progress if one.last] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    "changed", [{"epochs": 0}, {"workers": 0}, {"retries": -1}, {"only": ("nothing-fits",)}, {"agent": ""}, {"confine": "airtight"}]
)
def test_options_that_make_no_sense_are_refused_before_anything_is_made(tmp_path: Path, changed: dict[str, object]) -> None:
    agent = str(changed.pop("agent", SOLVES))
    with pytest.raises(InvalidInput):
        ran(suite(tmp_path), tmp_path, agent, **changed)

    assert not (tmp_path / "run" / "samples").exists() or changed.get("only")
