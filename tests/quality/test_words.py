"""Pages, messages and docstrings say who does what to what: words that hide it are counted, and stay rare.

Each of them has good uses, such as a clock that stands still, so the limit is a number and not none. Code counts in no page and in no
source: spans in backticks, names, and flags.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*sorted((ROOT / "pytest_gittrix").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

LIMITS: Mapping[str, int] = {"beside": 38, "nobody": 27, "what it has": 0, "anew": 5, "led": 1, "told": 11, "stands": 12}
"""How often each may be said in all pages and sources together."""
CODE = re.compile(r"``.+?``|`[^`\n]+`|--?\w[\w-]*|\w+=|\w*_\w*|\.\w+")


def said(text: str) -> Counter[str]:
    """How often a text says each of the words, outside of code."""
    prose = CODE.sub(" ", text).lower()
    return Counter({word: len(re.findall(rf"\b{word}\b", prose)) for word in LIMITS})


def prose(source: str) -> Iterator[str]:
    """The comments and strings of a Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.string


def test_words_that_hide_who_does_what_are_rare() -> None:
    places = {path: said("\n".join(prose(path.read_text(encoding="utf-8")))) for path in SOURCES}
    places |= {path: said(re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)) for path in PAGES}
    total = sum(places.values(), Counter())

    over = {word: total[word] for word, limit in LIMITS.items() if total[word] > limit}
    where = [f"{path.relative_to(ROOT)}: {counts[word]} x {word}" for path, counts in places.items() for word in over if counts[word]]
    assert not over, "\n".join([f"{over}, of {dict(LIMITS)}", *where])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It stands beside the log, and nobody was told.", {"beside": 1, "nobody": 1, "told": 1, "stands": 1}),
        ("`list --beside` and beside=() and review.beside and is_told", {}),
        ("Make it anew; what it has is led away.", {"anew": 1, "what it has": 1, "led": 1}),
    ],
)
def test_the_count_takes_prose_and_no_code(text: str, words: dict[str, int]) -> None:
    assert +said(text) == words
