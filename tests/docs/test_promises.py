"""Every sentence of the five documents has a verdict, tests that there are, and its reason on the system's page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.docs.promises import DATA, ORDER, PAGE, ROOT, Document, Promise, documents, page

READ = pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)


def names_in(module: str) -> set[str]:
    """The names of the tests of a module of the suite, which must be the only one of that name."""
    (path,) = (path for path in (ROOT / "tests").rglob(f"{module}.py") if "tools" not in path.parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_page_is_made_from_the_data() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.docs.promises --page"


def test_every_file_of_the_data_is_on_the_page() -> None:
    assert sorted(path.stem for path in Path(DATA).iterdir()) == sorted(ORDER)


@READ
def test_the_sentences_are_in_the_order_of_the_document(document: Document) -> None:
    lines = [promise.line for promise in document.promise]

    assert len(lines) > 40
    assert lines == sorted(lines)


@READ
def test_every_sentence_is_shown_by_tests_that_there_are(document: Document) -> None:
    named = {tuple(test.split("::")) for promise in document.promise for test in promise.tests}
    there = {(module, test) for module in {module for module, _test in named} for test in names_in(module)}

    assert sorted(named - there) == []


@READ
def test_every_difference_is_a_row_under_where_we_differ(document: Document) -> None:
    assert {promise.differs for promise in document.promise if promise.differs} <= document.differences().keys()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"tests": ()}, "no test"),
        ({"tests": ("test_a::test_b", "test_a::test_b")}, "twice"),
        ({"tests": ("test_a::test_b",), "differs": "a", "not_ours": "b"}, "two verdicts"),
        ({"tests": ("test_a::test_b",), "why": "b"}, "why"),
    ],
)
def test_a_sentence_without_one_verdict_is_refused(data: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Promise.model_validate({"line": 1, "says": "x", **data})
