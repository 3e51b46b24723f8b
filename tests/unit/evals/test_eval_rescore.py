"""A run's kept results are judged again by changed checks: no agent runs, the old verdicts stay, and nothing stale is judged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli import Cli
from support.evals import agent_file, case, options, ran, suite, write

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals import Rescoring, RunStore, Suite, rescore_run
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.report.eval_report import page_of

LENIENT = "def check(result):\n    assert b'VERSION = ' in result.read('app.py')\n    assert (result.path / '.git').is_dir()\n"
STRICT = "def check(result):\n    assert b'VERSION = 2' in result.read('app.py'), 'it is not 2'\n    assert result.before != ''\n"
DRIFT = '[drift]\nfiles = "drift"\n'
WORK = """
    if toolbox.case == "fails":
        raise ValueError("it was too hard")
    if toolbox.case != "idle":
        toolbox.write("app.py", "VERSION = 2\\n" if toolbox.case == "right" else "VERSION = 3\\n")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A suite whose check is too lenient: it lets a wrong result pass, and one of doing nothing next to a drift."""
    made = suite(tmp_path, "right", "wrong", "fails")
    case(made, "idle", more=DRIFT, extra={"drift/README.md": "# Drifted\n"})
    for one in (made / "cases").iterdir():
        (one / "check.py").write_text(LENIENT)
    return made


@pytest.fixture
def run(place: Path, tmp_path: Path) -> RunStore:
    """A run of it, made with the lenient check, which is strict afterwards."""
    made = ran(place, tmp_path, agent_file(tmp_path, WORK), epochs=2).store
    for one in (place / "cases").iterdir():
        (one / "check.py").write_text(STRICT)
    return made


def rescored(run: RunStore, place: Path, root: Path, **changed: object) -> Rescoring:
    return rescore_run(run.path, Suite.load(place), options(root, "", out=root / "again", **changed))


def outcomes(store: RunStore) -> dict[str, str]:
    return {f"{one.id} #{one.epoch}": one.outcome for one in store.records()}


def test_results_are_judged_by_the_changed_checks_and_no_agent_runs(run: RunStore, place: Path, tmp_path: Path) -> None:
    before = outcomes(run)
    (tmp_path / "agent.py").unlink()

    found = rescored(run, place, tmp_path)

    assert outcomes(run) == before
    assert [(one.id, one.epoch, one.before, one.after) for one in found.changes] == [
        (id_, epoch, "pass", "fail") for id_ in ("idle", "wrong") for epoch in (0, 1)
    ]
    after = found.summary.store
    assert outcomes(after) == {**before, **{f"{id_} #{epoch}": "fail" for id_ in ("idle", "wrong") for epoch in (0, 1)}}
    record = after.sample("wrong")
    assert record.reason == "function: AssertionError: it is not 2"
    assert after.verdict_before(record.key)["outcome"] == "pass"  # type: ignore[index]
    assert [line["kind"] for line in after.lines("events", record.key)] == [
        line["kind"] for line in run.lines("events", run.sample("wrong").key)
    ]
    assert after.objects.file(record.promoted, "app.py") == b"VERSION = 3\n"
    assert after.part("patches", record.key) == run.part("patches", run.sample("wrong").key)


def test_a_result_judged_by_the_same_checks_is_the_same_record(run: RunStore, place: Path, tmp_path: Path) -> None:
    fresh = ran(place, tmp_path, agent_file(tmp_path, WORK), epochs=2, out=tmp_path / "fresh")
    found = rescored(run, place, tmp_path)

    compared = compare(fresh.store, found.summary.store)
    assert {pair.difference for pair in compared.pairs} == {"same"}
    assert [replace(one, key="") for one in found.summary.records] == [replace(one, key="") for one in fresh.records]
    assert compared.inputs == ("setting.rescored",)
    twice = rescore_run(found.summary.store.path, Suite.load(place), options(tmp_path, "", out=tmp_path / "twice"))
    assert twice.changes == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"repo/app.py": "VERSION = 0\n"}, "right #0: the agent worked on something else"),
        ({"case.toml": 'task = "Another"\n[durable]\nfiles = "repo"\n[check]\nfunction = "check.py:check"\n'}, "the agent worked on"),
    ],
    ids=["repository", "task"],
)
def test_nothing_is_judged_where_the_agent_worked_on_something_else(
    run: RunStore, place: Path, tmp_path: Path, change: dict[str, str], why: str
) -> None:
    write(place / "cases" / "right", change)

    with pytest.raises(InvalidInput, match=why):
        rescored(run, place, tmp_path)
    assert not (tmp_path / "again").exists()
    assert rescored(run, place, tmp_path, only=("wrong",)).summary.counts["fail"] == 2


def test_a_result_that_is_not_kept_and_a_case_that_is_gone_are_refused(run: RunStore, place: Path, tmp_path: Path) -> None:
    shutil.rmtree(place / "cases" / "fails")
    with pytest.raises(InvalidInput, match="2 of 8 results cannot be judged again: fails #0: the suite has no such case"):
        rescored(run, place, tmp_path)
    objects = run.path / "objects.git" / "objects"
    for one in objects.iterdir():
        if len(one.name) == 2:
            shutil.rmtree(one)

    with pytest.raises(InvalidInput, match="its result is not kept in the run"):
        rescored(run, place, tmp_path, only=("right",))
    with pytest.raises(InvalidInput, match="has no sample to judge again"):
        rescored(run, place, tmp_path, only=("elsewhere",))


def test_a_run_of_an_earlier_version_is_refused_and_a_variable_with_another_value_too(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAVOUR", "sweet")
    store = ran(place, tmp_path, "gold", only=("right",), passed=("FLAVOUR",)).store
    monkeypatch.setenv("FLAVOUR", "sour")
    with pytest.raises(InvalidInput, match="FLAVOUR had other values"):
        rescored(store, place, tmp_path)
    manifest = store.manifest()
    samples = [{"digest": one["digest"], "id": one["id"]} for one in manifest.core["samples"]]
    store.write_manifest(Manifest({**manifest.core, "samples": samples}, manifest.host))
    with pytest.raises(InvalidInput, match="its run is of an earlier version"):
        rescored(store, place, tmp_path)


def test_the_command_lists_what_changed_and_shows_the_verdicts_before(
    run: RunStore, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = Cli(tmp_path, monkeypatch, capfdbinary)
    line = ("eval", "rescore", str(run.path), "--suite", str(place), "--scratch", str(tmp_path / "scratch"))

    text = cli.ok(*line).text
    out = run.path.with_name("run-rescored")
    shown, one = cli("eval", "show", str(out)), cli.ok("eval", "show", str(out), "wrong").text
    data = cli.data(*line, "--out", str(tmp_path / "other"), "--filter", "idle")

    assert text.splitlines()[:2] == [
        f"4 of 8 verdicts of {run.path} changed",
        "  idle #0  pass -> fail  function: AssertionError: it is not 2",
    ]
    assert f"Judged again, from {run.path}: 4 of 8 verdicts changed." in shown.err
    assert "wrong #1 was pass, and is fail" in shown.err
    assert "The result was judged again. Before: pass" in one
    assert [(change["id"], change["before"], change["after"]) for change in data["changes"]] == [("idle", "pass", "fail")] * 2
    page = page_of(RunStore.open(out))
    assert "judged again" in page
    assert "The result was judged again. Before:" in page
    assert "holds a run already" in cli(*line).err
    assert "4 of 8 verdicts" in cli.ok(*line, "--resume").text
