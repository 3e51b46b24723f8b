"""Evals as tests: a sample that passes, and one that a test judges for itself."""

from __future__ import annotations

import pytest

from pytest_gittrix.plugin.evals.outcome import EvalSample


@pytest.mark.gittrix_eval(suite="words", agent="sh -c 'echo hello > hello.txt'", confine="off")
def test_each_case_is_solved(gittrix_eval: EvalSample) -> None:
    assert gittrix_eval.passed
    assert gittrix_eval.record.files == ("hello.txt",)


@pytest.mark.gittrix_eval(suite="words", agent="nop", seed=1)
def test_an_agent_that_does_nothing_fails(gittrix_eval: EvalSample) -> None:
    assert gittrix_eval.outcome == "fail"
