"""A suite of one test, which is copied to where it runs: an agent works for the tape beside it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.real_agents.table import FILES, RESULT, named


@pytest.mark.gittrix(model="tape.jsonl", files=FILES)
def test_it_works(gittrix_agent: Any, gittrix_model: Any) -> None:
    ended = named(os.environ["AGENT"]).run(gittrix_agent, gittrix_model)

    assert ended.code == 0, ended.stderr
    assert {path: (gittrix_agent.workspace_path / path).read_text() for path in gittrix_agent.touched_files()} == RESULT
