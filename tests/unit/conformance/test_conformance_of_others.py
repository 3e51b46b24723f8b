"""A family of clauses that another package registers is run, listed and reported as ours are, and changes no level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = """
from pytest_gittrix.conformance import Clauses

class ConflictClauses(Clauses):
    def test_acm_01_a_blank(self, stage):
        '''A name may have a blank. Otherwise half of the files of Acme cannot be written.'''
        session = stage.start()
        session.write("a file", "x")
        assert session.exists("a file")

    def test_acm_02_sessions_are_purple(self, stage):
        '''Otherwise they are not.'''
        assert stage.start().state == "purple"

    def test_acm_03_sessions_are_green(self, stage):
        '''Otherwise they are not.'''
        assert stage.start().state == "green"
"""


@pytest.fixture
def conform(tmp_path: Path) -> Any:
    (tmp_path / "house.py").write_text(
        "def gittrix_clauses(): return {'ACM': ('house_clauses', 'rules of Acme'), 'GON': ('no_such_module', 'gone')}\n"
    )
    (tmp_path / "house_clauses.py").write_text(MODULE)
    (tmp_path / "house-1.dist-info").mkdir()
    (tmp_path / "house-1.dist-info" / "METADATA").write_text("Name: house\nVersion: 1\n")
    (tmp_path / "house-1.dist-info" / "entry_points.txt").write_text("[gittrix]\nhouse = house\n")

    def run(*arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_gittrix.cli", "conform", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert "The clauses of the family GON are missing: The extension no_such_module cannot be loaded" in done.stderr
        return done.returncode, json.loads(done.stdout)["data"]

    return run


def test_it_is_listed_after_ours_with_its_promises(conform: Any) -> None:
    status, listed = conform("--list")

    assert status == 0
    assert [(one["code"], one["promise"]) for one in listed[-3:-1]] == [
        ("ACM-01", "a name may have a blank"),
        ("ACM-02", "sessions are purple"),
    ]
    assert listed[0]["code"] == "ISO-01"


def test_it_is_run_reported_with_its_title_and_waived(conform: Any) -> None:
    status, report = conform("--family", "ACM", "--waive", "ACM-03=no colours here")

    (system,) = report["systems"]
    told = {one["code"]: one["status"] for one in system["clauses"] if one["status"] != "not run"}
    assert (status, told) == (1, {"ACM-01": "kept", "ACM-02": "broken", "ACM-03": "waived"})
    assert next(one["title"] for one in system["families"] if one["family"] == "ACM") == "rules of Acme"
    assert "purple" in next(one["reason"] for one in system["clauses"] if one["code"] == "ACM-02")
