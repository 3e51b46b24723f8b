"""Evals as tests whose agents reach a model: recorded, replayed, priced and limited; and samples that could not be run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.confined import available
from support.eval_tests import EvalTests, properties
from support.evals import SOLVES, command_file

from pytest_gittrix.model import Answer, ModelServer, Text
from pytest_gittrix.model.protocols.values import Usage

ASKS = """
import json, os, urllib.request
body = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "What is right?"}]}
for _ in range(2):
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(), {"content-type": "a/b"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = json.load(answer)["content"][0]["text"]
    body["messages"].append({"role": "user", "content": text})
open("app.py", "w").write(text)
"""
PRICES = "schema = 1\n[models.m-1]\ninput = 10\noutput = 20\n"


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.answer_with(lambda _: Answer((Text("VERSION = 2\n"),), usage=Usage(100, 50)))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
        yield server


def project(evals: EvalTests, more: str = "") -> None:
    evals.suite("one", "two")
    (evals.root / "prices.toml").write_text(PRICES)
    evals.tests(command_file(evals.root, ASKS), f'confine="off", {more}')


def test_a_marker_records_and_an_option_replays_what_it_recorded(evals: EvalTests, upstream: ModelServer) -> None:
    project(evals, 'tape="record", prices="prices.toml"')

    recorded = evals.run("--junitxml=junit.xml")
    upstream.close()
    replayed = evals.run("--gittrix-eval-tape=replay runs/suite")

    recorded.assert_outcomes(passed=2)
    replayed.assert_outcomes(passed=2)
    line = "model 4 exchanges, 400 tokens in, 200 out, 0.0080 USD"
    recorded.stdout.fnmatch_lines([line])
    replayed.stdout.fnmatch_lines([line])
    first, again = evals.store("suite"), evals.store("suite-2")
    assert first.manifest().digest == again.manifest().digest
    assert [record.row for record in first.records()] == [record.row for record in again.records()]
    whole, _ = properties(evals.root / "junit.xml")
    kept = {name.removeprefix("gittrix_eval.suite.model_"): value for name, value in whole.items() if ".model_" in name}
    counted = {"exchanges": "4", "input": "400", "output": "200", "cached": "0", "estimated": "0", "uncounted": "0"}
    assert kept == {**counted, "cost": "0.008", "currency": "USD"}


def test_processes_that_share_a_run_record_into_one(evals: EvalTests, upstream: ModelServer) -> None:
    project(evals, 'tape="record"')

    evals.run_apart("-n", "2").assert_outcomes(passed=2)

    assert evals.runs() == ["suite"]
    assert "tape" in evals.store().manifest().core


@pytest.mark.parametrize("how", ['confine="off", tape="live"', 'confine="jail", network="model:anthropic"'])
def test_a_limit_of_the_marker_fails_the_test_in_its_own_words(evals: EvalTests, upstream: ModelServer, how: str) -> None:
    available("off" if '"off"' in how else "jail by namespaces")
    evals.suite("one", "two")
    evals.tests(command_file(evals.root, ASKS), f"{how}, max_exchanges=1")

    result = evals.run()

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*one #0 ended in limit: max_exchanges: it asked its model once more than 1 times*"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('tape="recrod"', "'recrod' is not a mode of tapes."),
        ('tape="replay"', "There is no run to replay the tapes of."),
        ('tape="replay nowhere"', "holds no run"),
        ("tape=3", "tape was given 3."),
        ('tape="live", max_tokens=0', "max_tokens=0 is no limit."),
    ],
)
def test_what_a_marker_cannot_mean_is_told_at_the_test(evals: EvalTests, more: str, said: str) -> None:
    project(evals, more)

    result = evals.run()

    assert said in result.stdout.str()
    assert result.ret != pytest.ExitCode.OK


def test_an_option_that_cannot_be_meant_is_told_before_any_test(evals: EvalTests) -> None:
    project(evals)

    result = evals.run("--gittrix-eval-tape=replay")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'replay' is not a valid gittrix eval-tape*"])


def test_a_sample_that_could_not_be_run_is_an_error_and_counts_if_the_run_says_so(evals: EvalTests) -> None:
    evals.suite("one", more='[check]\ncommand = ["no-such-tool-here"]\n')
    evals.tests(SOLVES)

    result = evals.run("--gittrix-eval-count-infra-errors", "--junitxml=junit.xml")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*1 in infra_error count as not passed*", "pass rate 0.0%*"])
    whole, _ = properties(evals.root / "junit.xml")
    assert (whole["gittrix_eval.suite.counts_infra_errors"], whole["gittrix_eval.suite.infra_error"]) == ("true", "1")
    (case,) = ET.parse(Path(evals.root, "junit.xml")).getroot().iter("testcase")
    assert ([one.tag for one in case if one.tag in ("error", "failure")]) == ["error"]
