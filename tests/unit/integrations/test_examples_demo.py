"""The demonstration of ``make demo``: it says why it cannot run, and its verdict tells what is broken from what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.git import git

from examples.demo import verdict, why_not


def test_a_shallow_clone_gets_a_sentence(tmp_path: Path) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    git("init", "--quiet", str(whole))
    for message in ("first", "second"):
        git("commit", "--quiet", "--allow-empty", "--message", message, cwd=whole)
    git("clone", "--quiet", "--depth=1", whole.as_uri(), str(shallow))

    assert why_not(whole) is None
    assert "git fetch --unshallow" in (why_not(shallow) or "")
    assert "no git clone" in (why_not(tmp_path) or "")


def test_the_verdict_tells_the_broken_clauses_from_the_kept_ones(capsys: pytest.CaptureFixture[str]) -> None:
    verdict()

    judged = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:])
    assert judged == {"ISO-01": "kept", "PRM-01": "kept", "CNF-01": "kept", "CNF-02": "broken", "CNF-14": "broken"}
