"""The profile of coding agents: each agent with a planted fault breaks the clause of that fault alone, and a good one keeps all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import coding_agent
from support.frameworks import available

from pytest_gittrix.cli.main import main
from pytest_gittrix.conformance.coding_agents.clauses import AGENT_CLAUSES, page
from pytest_gittrix.conformance.coding_agents.description import read_agent
from pytest_gittrix.conformance.coding_agents.profile import run_agent_profile
from pytest_gittrix.errors import InvalidInput

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/agent-clauses.md"
BREAKS = {
    "litters": "AWRK-01",
    "commits": "AGIT-01",
    "configures": "AGIT-02",
    "stages": "AGIT-03",
    "half": "AFLT-01",
    "lies": "AFLT-02",
    "storms": "AFLT-03",
    "doubles": "AFLT-04",
    "tells": "APRV-01",
    "reads": "APRV-02",
    "peeks": "APRV-03",
    "rolls": "AREP-01",
}
"""The clause that an agent with a fault breaks."""


def described(directory: Path, fault: str, more: str = "") -> Path:
    """The description of an agent with a fault; a good one has none."""
    program = Path(coding_agent.__file__)
    file = directory / "agent.toml"
    command = f"{sys.executable} {program} '{fault}' {{task}}"
    file.write_text(f"[agent]\ncommand = {json.dumps(command)}\nreadable = [{json.dumps(str(program.parent))}]\n{more}")
    return file


def verdicts(file: Path) -> dict[str, str]:
    """The clauses that are not kept, with their status."""
    report = run_agent_profile(read_agent(file))
    assert [one.clause.code for one in report.outcomes] == [one.code for one in AGENT_CLAUSES]
    return {one.clause.code: str(one.status) for one in report.outcomes if str(one.status) != "kept"}


def test_each_clause_has_an_agent_that_breaks_it() -> None:
    assert sorted(BREAKS.values()) == sorted(one.code for one in AGENT_CLAUSES)


def test_a_good_agent_keeps_all(tmp_path: Path) -> None:
    available("jail")

    assert verdicts(described(tmp_path, "")) == {}


@pytest.mark.parametrize(("fault", "code"), BREAKS.items(), ids=BREAKS)
def test_an_agent_with_a_fault_breaks_its_clause_alone(tmp_path: Path, fault: str, code: str) -> None:
    available("jail")
    # One that never gives up does not end, so that nothing can be said of its exit status.
    unjudged = {"AFLT-02": "no verdict"} if fault == "storms" else {}

    assert verdicts(described(tmp_path, fault, "timeout = 20.0\n")) == {code: "broken", **unjudged}


def test_an_agent_that_removes_the_repository_breaks_what_is_promised_of_it(tmp_path: Path) -> None:
    available("jail")

    assert verdicts(described(tmp_path, "unmakes")) == dict.fromkeys(("AGIT-01", "AGIT-02", "AGIT-03"), "broken")


def test_the_command_says_what_is_broken_and_writes_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    available("jail")
    described(tmp_path, "stages")
    monkeypatch.chdir(tmp_path)
    kinds = ("json", "html", "txt", "xml", "sarif", "svg")
    reports = [part for kind in kinds for part in ("--report", f"report.{kind}")]

    status = main(["conform", "--agent", "agent.toml", "--family", "AGIT", "--json", *reports])

    (system,) = json.loads(capsys.readouterr().out)["data"]["systems"]
    assert (status, [one["code"] for one in system["clauses"] if one["status"] == "broken"]) == (1, ["AGIT-03"])
    for kind in kinds[:-1]:
        assert "AGIT-03" in (tmp_path / f"report.{kind}").read_text(), kind
    assert main(["conform", "--agent", "agent.toml", "--family", "AGIT", "--against", "report.json"]) == 0
    assert main(["conform", "--agent", "agent.toml", "--clause", "AGIT-03"]) == 1
    assert "staged otherwise than before: app.py" in capsys.readouterr().out


def test_an_agent_that_does_not_work_has_no_verdict_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    available("jail")
    file = tmp_path / "agent.toml"
    file.write_text('[agent]\ncommand = "true {task}"\n')

    assert main(["conform", "--agent", str(file)]) == 1

    assert "says nothing about the agent" in "".join(capsys.readouterr())


def test_variables_and_files_say_where_the_model_is(tmp_path: Path) -> None:
    available("jail")
    moved = f"sh -c 'export OPENAI_BASE_URL=$WHERE; . ~/.agent/key; exec {sys.executable} {coding_agent.__file__} good \"$1\"' sh {{task}}"
    file = described(tmp_path, "", '[agent.env]\nWHERE = "{url}/v1"\n[agent.files]\n".agent/key" = "test -n {url}"\n')
    file.write_text(
        "\n".join(f"command = {json.dumps(moved)}" if one.startswith("command") else one for one in file.read_text().split("\n"))
    )

    assert verdicts(file) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool]\n", "has no table [agent]"),
        ('[agent]\ncommand = "run"\n', "has no {task}"),
        ('[agent]\ncommand = "run {task}"\nfiles = {"../x" = ""}\n', "is no path below the home"),
        ('[agent]\ncommand = "run {task}"\ncolour = 1\n', "no such key"),
    ],
)
def test_a_description_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)

    with pytest.raises(InvalidInput) as refused:
        read_agent(file)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "more", [["--crash", "1"], ["--waive", "AGIT-01=x"], ["any:system"], ["--clause", "AGIT-99"], ["--report", "x.doc"]]
)
def test_what_has_no_effect_or_does_not_exist_is_misuse(tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--agent", str(described(tmp_path, "")), *more]) == 2
    assert capsys.readouterr().err


def test_the_clauses_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--agent", "any.toml", "--list", "--family", "AGIT", "--json"]) == 0
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["data"]] == ["AGIT-01", "AGIT-02", "AGIT-03"]


def test_the_page_of_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m pytest_gittrix.conformance.coding_agents.clauses > docs/reference/agent-clauses.md"
    )
