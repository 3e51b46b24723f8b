"""What a failed comparison of trees or fingerprints says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix.engine.services import SweptSession
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, Entry
from pytest_gittrix.plugin.assertions import explain, explain_swept
from pytest_gittrix.testing.repos.fingerprint import Fingerprint

Run = Callable[..., pytest.RunResult]

A, B = "a" * 40, "b" * 40


def test_trees_are_compared_path_by_path() -> None:
    left = {"same": Entry(FILE, A), "edited": Entry(FILE, A), "mode": Entry(FILE, A), "gone": Entry(SYMLINK, B)}
    right = {"same": Entry(FILE, A), "edited": Entry(FILE, B), "mode": Entry(EXECUTABLE, A), "new": Entry(FILE, B)}

    assert explain("==", left, right) == [
        "trees differ at 4 of 5 paths",
        "'edited': file 100644 aaaaaaaaaa != file 100644 bbbbbbbbbb",
        "'gone': only on the left (symlink 120000 bbbbbbbbbb)",
        "'mode': file 100644 aaaaaaaaaa != executable 100755 aaaaaaaaaa (same bytes, other mode)",
        "'new': only on the right (file 100644 bbbbbbbbbb)",
    ]


def test_a_file_that_moved_is_one_difference() -> None:
    assert explain("==", {"old name": Entry(FILE, A)}, {"new name": Entry(FILE, A)}) == [
        "trees differ at 2 of 2 paths",
        "'old name': is 'new name' on the right (file 100644 aaaaaaaaaa)",
    ]


def test_a_deletion_in_a_set_of_changes_is_shown() -> None:
    assert explain("==", {"a": None}, {"a": Entry(FILE, A)}) == ["trees differ at 1 of 1 path", "'a': deleted != file 100644 aaaaaaaaaa"]


def test_a_path_that_is_not_in_a_tree_is_shown_with_those_that_are() -> None:
    assert explain("in", "new", {"b": Entry(FILE, A), "a": None}) == ["'new' in a tree of 2 paths", "'a'", "'b'"]
    assert explain("not in", "a", {"a": Entry(FILE, A)}) == ["'a' not in a tree of 1 path", "'a'"]


def test_a_tree_compared_with_nothing_is_a_tree() -> None:
    assert explain("==", {}, {"a": Entry(FILE, A)}) == ["trees differ at 1 of 1 path", "'a': only on the right (file 100644 aaaaaaaaaa)"]


def test_many_differences_are_counted() -> None:
    lines = explain("==", {}, {f"{n:03}": Entry(FILE, A) for n in range(100)})

    assert lines is not None
    assert (len(lines), lines[0], lines[-1]) == (42, "trees differ at 100 of 100 paths", "... 60 more")


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("!=", {"a": Entry(FILE, A)}, {"a": Entry(FILE, A)}),
        ("in", "a", {"b": 1}),
        ("in", "a", {}),
        ("in", "a", "b"),
        ("==", {"a": 1}, {"a": 2}),
        ("==", {}, {}),
        ("==", {"a": None}, {"a": None}),
        ("==", {"a": Entry(FILE, A)}, {"a": "text"}),
        ("==", Entry(FILE, A), Entry(FILE, B)),
        ("==", "a", "b"),
    ],
)
def test_other_comparisons_are_left_to_pytest(operator: str, left: object, right: object) -> None:
    assert explain(operator, left, right) is None


def test_fingerprints_say_what_changed(tmp_path: Path) -> None:
    for path in (".git/HEAD", "app.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("ref: refs/heads/main\n")
    before = Fingerprint.of(tmp_path)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/other\n")

    assert explain("==", before, Fingerprint.of(tmp_path)) == [
        "fingerprints differ in 1 place, left != right",
        "HEAD: HEAD: ref: refs/heads/main != ref: refs/heads/other",
    ]
    (tmp_path / "new").touch()
    after = Fingerprint.of(tmp_path)
    assert explain("==", after, before) == [
        "fingerprints differ in 2 places, left != right",
        "HEAD: HEAD: ref: refs/heads/other != ref: refs/heads/main",
        f"work tree: new: only on the left ({after.sections['work tree']['new']})",
    ]


def test_a_failed_assertion_shows_the_explanation(run: Run) -> None:
    source = """
        def test_tree(gittrix_durable, gittrix_rival):
            before = gittrix_durable.tree()
            gittrix_rival.commit({"new.txt": "x"}, message="new")
            assert gittrix_durable.tree() == before
    """
    run(source).stdout.fnmatch_lines(
        ["*AssertionError: assert trees differ at 1 of * paths*", "*'new.txt': only on the left (file 100644*"]
    )


NIGHT = 1893470700 * 10**9
SWEPT = [SweptSession("a", NIGHT, "the timer"), SweptSession("b", NIGHT, "sweep()")]
LINES = {"a": "a was swept by the timer at 2030-01-01T04:05:00.000Z", "b": "b was swept by sweep() at 2030-01-01T04:05:00.000Z"}


@pytest.mark.parametrize(
    ("operator", "left", "right", "told"),
    [
        ("==", [], ["a"], "a"),
        ("==", [], ["b", "a"], "ab"),
        ("==", {"c"}, {"a", "c"}, "a"),
        ("==", ["a"], [], "a"),
        ("in", "a", [], "a"),
        ("in", "b", ["c"], "b"),
        ("==", ["b"], [], ""),  # what sweep() has just evicted
        ("==", [], ["c"], ""),
        ("in", "c", ["a"], ""),
        ("not in", "a", ["a"], ""),
        ("!=", ["a"], ["a"], ""),
        ("==", "a", ["a"], ""),
        ("==", [["a"]], [3], ""),
        ("in", ["a"], [], ""),
    ],
)
def test_an_id_that_is_missing_because_its_session_was_swept_before(operator: str, left: object, right: object, told: str) -> None:
    lines = explain_swept(operator, left, right, SWEPT)

    if not told:
        assert lines is None
        return
    assert lines is not None
    first, *said, last = lines
    assert first == f"{left!r} {operator} {right!r}"
    assert said == [LINES[id_] for id_ in told]
    assert last.startswith("sweep() gives the sessions that it evicts itself")


def test_nothing_is_said_of_sweeps_where_none_was() -> None:
    assert explain_swept("==", [], ["a"], []) is None


def test_the_failure_of_a_test_with_a_stray_process_in_the_workspace_names_it(run: Run) -> None:
    source = """
        import subprocess

        def test_forgotten(gittrix, gittrix_session, gittrix_clock):
            with subprocess.Popen(["sleep", "600"], cwd=gittrix_session.workspace_path) as stray:
                try:
                    gittrix_clock.advance(hours=5)
                    assert gittrix.swept() == [gittrix_session.id]
                finally:
                    stray.kill()
    """
    result = run(source, "--gittrix-freeze=none")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E  *sess_W02oASyhum51 is in use by sleep (*), so a sweep leaves it until they have ended"])


def test_long_lists_of_ids_are_cut_short() -> None:
    lines = explain_swept(
        "==", [], [f"{number:012}" for number in range(99)], [SweptSession(f"{number:012}", 0, "the timer") for number in range(99)]
    )

    assert lines is not None
    assert (len(lines), lines[-2]) == (43, "... 59 more")
    assert len(lines[0]) < 200


def test_the_failure_of_a_test_that_sweeps_after_the_timer_says_who_swept_and_when(run: Run) -> None:
    source = """
        import pytest

        def test_forgotten(gittrix, gittrix_session, gittrix_clock):
            gittrix_clock.advance(days=3)
            assert gittrix.swept() == [gittrix_session.id]
            assert gittrix.sweep() == [gittrix_session.id]

        def test_without_worlds():
            assert [] == ["sess_W02oASyhum51"]
    """
    result = run(source, "--gittrix-freeze=none")

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *assert [[][]] == [[]'sess_W02oASyhum51'[]]",
            "E  *sess_W02oASyhum51 was swept by the timer at 2030-01-01T04:05:00.000Z",
            "sess_W02oASyhum51 expired at 2030-01-01T04:05:00.000Z, swept by the timer, 5m after its deadline *",
        ]
    )
    failures = result.stdout.str().partition("short test summary info")[0]  # on CI, pytest says each failure twice
    assert failures.count("was swept by") == 1
