"""The tutorial on tapes, step by step as it is shown: recorded, replayed, broken, and recorded again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gittrix.confine import strongest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "record-a-model.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+\n# file: (\S+)\n(.*?)```", TEXT, re.DOTALL))
(BROKEN,) = re.findall(r"```python\n(PROMPT = .*\n)```", TEXT)
(DRIFT,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)

pytestmark = pytest.mark.skipif(strongest().level == "off", reason="nothing to confine with")


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith(("PYTEST_", "GITTRIX_"))}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q", *arguments]
    return subprocess.run(argv, cwd=directory, env=variables, capture_output=True, text=True, timeout=120, check=False)


def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    (tape,) = [name for name in FILES if name.startswith("tapes/")]
    for name, body in FILES.items():
        if name != tape:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(body, encoding="utf-8")

    recorded = run(tmp_path)
    assert recorded.returncode == 0, recorded.stdout
    assert (tmp_path / tape).read_text(encoding="utf-8") == FILES[tape]

    test = tmp_path / "test_fixer.py"
    test.write_text(re.sub(r"    gittrix_model\.script.*\n", "", test.read_text()))
    replayed = run(tmp_path)
    assert replayed.returncode == 0, "nobody is needed who answers: " + replayed.stdout

    fixer = tmp_path / "agent" / "fixer.py"
    fixer.write_text(re.sub(r"PROMPT = .*\n", lambda _: BROKEN, fixer.read_text()))
    broken = run(tmp_path)
    assert broken.returncode == 1
    assert DRIFT in broken.stdout

    test.write_text(FILES["test_fixer.py"])
    again = run(tmp_path, "--gittrix-model=rewrite")
    assert again.returncode == 0, again.stdout
    before, after = FILES[tape].splitlines(), (tmp_path / tape).read_text(encoding="utf-8").splitlines()
    assert [number for number, lines in enumerate(zip(before, after, strict=True)) if lines[0] != lines[1]] == [1]
