"""A patch as two columns: every line of it is on its side, at its number, and what is shown is text and never markup."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.git.patch import FileChange, Side, patch_bytes
from pytest_gittrix.report.side_by_side import DiffCell, file_diffs

CHANGED = b"""\
diff --git a/app.py b/app.py
index 1111111..2222222 100644
--- a/app.py
+++ b/app.py
@@ -1,4 +1,4 @@ def main():
 one
-two words here
+two other here
 three
+four
-five
"""


def text_of(cell: DiffCell) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", cell.html))


def lines_of(text: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.text(alphabet=text, max_size=6), max_size=8)


def test_changed_lines_stand_beside_each_other_with_their_numbers() -> None:
    (one,) = file_diffs(CHANGED)
    shown = [(row.left.number, text_of(row.left), row.right.number, text_of(row.right)) for row in one.rows if not row.title]

    assert (one.path, one.what, one.added, one.removed) == ("app.py", "changed", 2, 2)
    assert shown == [
        (1, "one", 1, "one"),
        (2, "two words here", 2, "two other here"),
        (3, "three", 3, "three"),
        (4, "five", 4, "four"),
    ]
    assert [row.title for row in one.rows if row.title] == ["@@ -1,4 +1,4 @@ def main():"]
    assert [row.change for row in one.rows if not row.title] == ["", "changed", "", "changed"]


def test_the_words_that_differ_are_marked() -> None:
    row = file_diffs(CHANGED)[0].rows[2]

    assert re.findall("<mark>(.*?)</mark>", row.left.html) == ["words"]
    assert re.findall("<mark>(.*?)</mark>", row.right.html) == ["other"]


def test_lines_that_have_nothing_in_common_are_not_marked_all_over() -> None:
    patch = CHANGED.replace(b"two other here", b"0123456789")

    assert "<mark>" not in "".join(row.left.html + row.right.html for row in file_diffs(patch)[0].rows)


def test_code_has_the_colours_of_its_language_and_other_text_has_none() -> None:
    python = CHANGED.replace(b"one\n", b"def one(): pass\n")

    assert '<span class="k">def</span>' in file_diffs(python)[0].rows[1].left.html
    assert file_diffs(python.replace(b"app.py", b"app.unknown"))[0].rows[1].left.html == "def one(): pass"


@pytest.mark.parametrize("name", ["app.py", "app.html", "app.md", "notes"])
def test_markup_is_shown_and_not_obeyed(name: str) -> None:
    hostile = b"<script>alert('x')</script><img src=x onerror=alert(1)> &amp;"
    patch = CHANGED.replace(b"app.py", name.encode()).replace(b"two words here", hostile).replace(b"two other here", hostile + b"!")
    row = file_diffs(patch)[0].rows[2]

    for cell in (row.left, row.right):
        assert re.sub(r"</?(span|mark)( class=\"[\w ]+\")?>", "", cell.html).count("<") == 0
        assert text_of(cell).startswith("<script>alert('x')</script><img")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"new file mode 100644\n--- /dev/null\n+++ b/app.py\n@@ -0,0 +1,1 @@\n+x\n", "added"),
        (b"deleted file mode 100644\n--- a/app.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n", "deleted"),
        (b"similarity index 90%\nrename from old.py\nrename to app.py\n", "renamed"),
        (b"Binary files a/app.py and b/app.py differ\n", "binary"),
        (b"old mode 100644\nnew mode 100755\n", "mode"),
    ],
)
def test_what_is_done_to_a_file_is_said(head: bytes, what: str) -> None:
    (one,) = file_diffs(b"diff --git a/app.py b/app.py\n" + head)

    assert (one.path, one.what) == ("app.py", what)


def test_a_long_patch_is_cut_and_says_so() -> None:
    body = b"".join(b"+line %d\n" % number for number in range(50))
    patch = b"diff --git a/a b/a\nnew file mode 100644\n--- /dev/null\n+++ b/a\n@@ -0,0 +1,50 @@\n" + body
    (one, other) = file_diffs(patch + patch.replace(b"/a", b"/b"), most_lines=20)

    assert (one.added, len([row for row in one.rows if not row.title]), one.left_out > 0) == (50, 19, True)
    assert (other.added, other.rows, other.left_out > 0) == (50, (), True)


def test_a_long_line_is_cut_and_says_so() -> None:
    (one,) = file_diffs(CHANGED.replace(b"two words here", b"x" * 5_000))

    assert "4000 more" in one.rows[2].left.html


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    (one,) = file_diffs(CHANGED.replace(b"two words here", b"\xff\xfe"))

    assert text_of(one.rows[2].left) == "\ufffd\ufffd"


@given(lines_of("ab<&"), lines_of("ab<&"))
def test_both_sides_of_any_patch_of_ours_are_whole(before: list[str], after: list[str]) -> None:
    sides = [Side(0o100644, "".join(f"{line}\n" for line in lines).encode(), "1" * 40) for lines in (before, after)]
    patch = patch_bytes([FileChange("notes", *sides)])
    if before == after:
        assert [one for one in file_diffs(patch) if one.added or one.removed] == []
        return
    (one,) = file_diffs(patch)
    left = {row.left.number: text_of(row.left) for row in one.rows if row.left.number is not None}
    right = {row.right.number: text_of(row.right) for row in one.rows if row.right.number is not None}

    assert all(before[number - 1] == text for number, text in left.items())
    assert all(after[number - 1] == text for number, text in right.items())
    assert sum(row.left.kind == "gone" for row in one.rows) == one.removed
    assert sum(row.right.kind == "new" for row in one.rows) == one.added
