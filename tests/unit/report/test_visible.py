"""Text of an agent's making is shown so that it steers no terminal and reorders nothing around it."""

from __future__ import annotations

import json

from pytest_gittrix.plugin.evals.github import SampleRow, errors_of, summary
from pytest_gittrix.report.side_by_side import file_diffs
from pytest_gittrix.safe_text import in_script, visible, visible_line

HOSTILE = "a\x1b]52;c;cm0gLXJm\x07\u202egnp.exe\u2066\r"
STEERING = ("\x1b", "\x07", "\u202e", "\u2066", "\r")


def test_characters_that_steer_are_escapes_and_lines_stay_lines() -> None:
    assert visible("one\n\ttwo\x1b[2J\udce9") == "one\n\ttwo\\x1b[2J\\xe9"
    assert visible_line("one\ntwo\u202e") == "one\\ntwo\\u202e"


def test_neither_annotations_nor_summaries_nor_diffs_on_pages_hold_them() -> None:
    row = SampleRow(HOSTILE, "fail", HOSTILE, "test_it.py", 1)
    patch = f"diff --git a/x.txt b/x.txt\n--- a/x.txt\n+++ b/x.txt\n@@ -1 +1 @@\n-old\n+{HOSTILE.rstrip()}\n".encode()
    cells = [side.html for file in file_diffs(patch, most_lines=10) for one in file.rows for side in (one.left, one.right)]
    shown = "".join([*errors_of([row]), summary("runs", [HOSTILE], [row], 10_000), *cells])

    assert "gnp.exe" in shown
    assert [sign for sign in STEERING if sign in shown] == []


def test_data_in_a_script_element_neither_ends_it_nor_begins_a_comment() -> None:
    texts = ["</script><script>", "<!-- <script>", "\\</script>", "a < b </b>"]
    data = in_script(json.dumps(texts))

    assert "</" not in data
    assert "<!" not in data
    assert json.loads(data) == texts
