"""What five documents of sessions promise, sentence by sentence: the data of ``documents/``, and the page that is made from it.

``python -m tests.docs.promises --page`` writes the page.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "reference/conformance-to-documents.md"
DATA = Path(__file__).parent / "documents"
ORDER = ("gittrix", "gas-town", "pixir", "botminter", "agent-orchestrator")

WORKS = "works as written"
DIFFERS = "differs"
NOT_OURS = "not ours"

_INTRODUCTION = f"""\
# Conformance to the documents

Five documents describe what a session is. This page goes through each of them from top to bottom. A sentence has one row, in short words,
with the line it is in, and one of three verdicts:

- **{WORKS}**: the tests in the last column show it.
- **{DIFFERS}**: the reason is the one in the same words under "Where we differ" of the system's page. The tests show what happens instead.
- **{NOT_OURS}**: the sentence is of something that this package is not for, and the row says why.

The page is made by `python -m tests.docs.promises --page` from the data in `tests/docs/documents/`; a test compares them.
"""


class Promise(BaseModel):
    """One sentence of a document.

    Attributes:
        line: the line of the document that it is in.
        says: what it says, in short words.
        differs: the first cell of the row under "Where we differ" that gives the reason, if it does not work as written.
        not_ours: why it is of something that this package is not for.
        tests: the tests that show it, as ``module::test``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    line: int = Field(gt=0)
    says: str = Field(min_length=1)
    differs: str | None = None
    not_ours: str | None = None
    tests: tuple[str, ...]

    @model_validator(mode="after")
    def _has_one_verdict(self) -> Self:
        if self.differs and self.not_ours:
            raise ValueError(f"{self.says!r} has two verdicts")
        if len({*self.tests}) < len(self.tests):
            raise ValueError(f"{self.says!r} names a test twice")
        if not self.tests and not self.not_ours:
            raise ValueError(f"{self.says!r} is shown by no test")
        return self

    @property
    def verdict(self) -> str:
        """One of the three verdicts."""
        return DIFFERS if self.differs else NOT_OURS if self.not_ours else WORKS


class Document(BaseModel):
    """One document.

    Attributes:
        name: the system it is of.
        title: its title.
        page: the page for people who know the system, below ``docs/``.
        promise: its sentences, from top to bottom.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    page: str
    promise: tuple[Promise, ...]

    def differences(self) -> dict[str, str]:
        """The reason of each row under "Where we differ" of its page, by the row's first cell."""
        text = (DOCS / self.page).read_text(encoding="utf-8").partition("\n## Where we differ\n")[2].partition("\n## ")[0]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
        return {row[0]: row[-1] for row in rows[1:]}

    def counts(self) -> Counter[str]:
        """How many of its sentences have each verdict."""
        return Counter(promise.verdict for promise in self.promise)


def documents() -> list[Document]:
    """The five documents. Raises pydantic's ``ValidationError`` for data that is none."""
    return [Document.model_validate(tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))) for name in ORDER]


def _cell(promise: Promise, differences: dict[str, str]) -> str:
    if promise.differs:
        return f"{DIFFERS}: {differences[promise.differs]}"
    return f"{NOT_OURS}: {promise.not_ours}" if promise.not_ours else WORKS


def _section(document: Document) -> str:
    differences = document.differences()
    rows = [
        f"| {promise.line} | {promise.says} | {_cell(promise, differences)} | {', '.join(f'`{test}`' for test in promise.tests)} |"
        for promise in document.promise
    ]
    link = f"[You know {document.name}](../{document.page})"
    table = "\n".join(["| line | the document | verdict | shown by |", "|---|---|---|---|", *rows])
    return f'## {document.name}: "{document.title}"\n\nIts page is {link}.\n\n{table}\n'


def page() -> str:
    """The page, made from the data."""
    read = documents()
    rows = []
    for document in read:
        counts = document.counts()
        rows.append(f"| {document.name} | {len(document.promise)} | {counts[WORKS]} | {counts[DIFFERS]} | {counts[NOT_OURS]} |")
    totals = "\n".join([f"| document | sentences | {WORKS} | {DIFFERS} | {NOT_OURS} |", "|---|---|---|---|---|", *rows])
    return re.sub(r" +\|", " |", "\n".join([_INTRODUCTION, f"{totals}\n", *map(_section, read)]))


if __name__ == "__main__":
    if "--page" not in sys.argv:
        sys.exit("Say --page to write the page.")
    PAGE.write_text(page(), encoding="utf-8")
