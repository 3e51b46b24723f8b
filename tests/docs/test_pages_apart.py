"""Pages that are followed one after the other in one directory do not meet, and name the versions that are really needed."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_two_pages_make_a_repository_of_the_same_name() -> None:
    made = Counter(
        name
        for page in (ROOT / "docs").rglob("*.md")
        for name in {*re.findall(r"^git init .*?([\w.-]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}
    )

    assert len(made) > 5
    assert [name for name, pages in made.items() if pages > 1] == []


def test_the_page_on_mcp_names_the_versions_of_its_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "how-to" / "use-with-mcp.md").read_text(encoding="utf-8")

    assert re.findall(r"`(mcp[<>=].*?)`", page) == extras["mcp"]
