"""What an agent consists of: what it imports, names and carries counts; results of another agent are never taken for its own."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.evals import FILES, agent_file, command_file, ran, suite, write

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.agent_code import UNKNOWN
from pytest_gittrix.evals.inputs.agent_values import bound_values, digest_of_values
from pytest_gittrix.evals.runs.agents import ProgramAgent

SOLVES = "open('app.py', 'w').write('VERSION = 2\\n')\n"


def test_a_program_of_the_search_path_counts_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write(tmp_path, {"my-agent": "#!/bin/sh\nsed -i s/1/2/ app.py\n"}) / "my-agent"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    before = ProgramAgent.of("my-agent --yes").identity
    program.write_text("#!/bin/sh\nsed -i s/1/3/ app.py\n")
    after = ProgramAgent.of("my-agent --yes").identity

    assert UNKNOWN not in before
    assert before["programs"]["my-agent"] != after["programs"]["my-agent"]
    assert before["installed"]["pytest"] == pytest.__version__


def test_the_values_that_a_function_carries_count() -> None:
    def made(model: str, client: object = None) -> Callable[..., object]:
        return lambda toolbox, k=3: (toolbox, model, client, k)

    assert bound_values(made("a")) == ({"model": "'a'", "client": "None", "k": "3"}, [])
    assert bound_values(made("a")) != bound_values(made("b"))
    assert bound_values(made("a", object()))[1] == ["client is object, whose content cannot be known."]
    assert bound_values(functools.partial(made, "a"))[0]["argument 0"] == "'a'"


def test_values_of_variables_are_digested_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret-value")
    place = suite(tmp_path)
    ran(place, tmp_path, f'python -c "{SOLVES.strip()}"', passed=("MY_KEY", "UNSET"))
    manifest = (tmp_path / "run" / "manifest.json").read_text()

    assert "s3cret" not in manifest
    values = json.loads(manifest)["core"]["setting"]["passed_values"]
    assert values == digest_of_values(["MY_KEY"], {"MY_KEY": "s3cret-value"}) | {"UNSET": None}
    monkeypatch.setenv("MY_KEY", "another")
    with pytest.raises(InvalidInput, match=r"setting\.passed_values\.MY_KEY differ"):
        ran(place, tmp_path, f'python -c "{SOLVES.strip()}"', passed=("MY_KEY", "UNSET"), resume=True, trust_agent=True)


def test_results_of_an_agent_whose_helper_changed_are_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    place = suite(tmp_path)
    write(tmp_path, {"evals_helper_one.py": "TEXT = 'VERSION = 2\\n'\n"})
    agent = agent_file(tmp_path, "import evals_helper_one\ntoolbox.write('app.py', evals_helper_one.TEXT)")
    assert ran(place, tmp_path, agent).counts["pass"] == 1
    same = ran(place, tmp_path, agent, out=tmp_path / "same", reuse=tmp_path / "run")
    write(tmp_path, {"evals_helper_one.py": "TEXT = 'VERSION = 33\\n'\n"})
    sys.modules.pop("evals_helper_one")  # the change is seen by a new process; this is one

    changed = ran(place, tmp_path, agent, out=tmp_path / "changed", reuse=tmp_path / "run")

    assert (same.taken_over, same.to_json()["reused"], same.store.taken_over) == (1, 1, 1)
    assert changed.taken_over == changed.counts["pass"] == 0
    assert changed.reused["one", 0].why == "the agent read file evals_helper_one.py, changed since"
    with pytest.raises(InvalidInput, match=r"the agent read file evals_helper_one\.py, changed since"):
        ran(place, tmp_path, agent, resume=True)


def test_results_of_a_program_that_cannot_be_known_are_taken_over_only_on_trust(tmp_path: Path) -> None:
    place = suite(tmp_path)
    agent = f'python -c "{SOLVES.strip()}"'
    assert ran(place, tmp_path, agent).counts["pass"] == 1

    for changed in ({"resume": True}, {"out": tmp_path / "b", "reuse": tmp_path / "run"}):
        with pytest.raises(InvalidInput, match="not confined may read any file") as refused:
            ran(place, tmp_path, agent, **changed)
        assert "--trust-agent" in str(refused.value)
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        assert ran(place, tmp_path, agent, **changed, trust_agent=True).counts["pass"] == 1


def test_a_run_whose_agent_changed_meanwhile_is_of_no_agent(tmp_path: Path) -> None:
    place = suite(tmp_path)
    agent = command_file(tmp_path, f"{SOLVES}open({str(tmp_path / 'agent_program.py')!r}, 'a').write('# changed\\n')\n")
    summary = ran(place, tmp_path, agent)

    assert summary.store.is_mixed
    assert summary.to_json()["mixed"] is True
    with pytest.raises(InvalidInput, match="The agent changed while the run"):
        ran(place, tmp_path, agent, out=tmp_path / "b", reuse=tmp_path / "run", trust_agent=True)


def test_an_agent_that_raises_leaves_its_traceback_and_a_program_its_output(tmp_path: Path) -> None:
    from pytest_gittrix.evals.results.failure_output import failure_lines

    place = suite(tmp_path, files={**FILES})
    texts = []
    for number, agent in enumerate(
        (agent_file(tmp_path, "import not_there_at_all"), "python -c 'import sys; sys.exit(\"no key\\x1b]52;\")'")
    ):
        summary = ran(place, tmp_path, agent, out=tmp_path / f"run{number}")
        texts.append("\n".join(failure_lines(summary.store, summary.records[0])))

    assert "agent, traceback:" in texts[0]
    assert "line 2, in work" in texts[0]
    assert "agent, stderr:\n  no key\\x1b]52;" in texts[1]
