"""The budgets of the marker: a test that passes fails if it took longer, touched more files or used more tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]


def test_a_test_within_its_budgets_passes_although_its_frozen_clock_went_on_for_hours(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(max_seconds=3600, max_files=1, max_tokens=0, freeze="all")
        def test_it(gittrix_session, gittrix_clock, gittrix_model):
            gittrix_session.write("a", "1")
            gittrix_clock.advance(hours=2)
            assert gittrix_session.promote().sha
    """
    run(source).assert_outcomes(passed=1)


def test_real_seconds_count_with_and_without_fixtures_of_ours(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(max_seconds=0)
        def test_with(gittrix_session): pass

        @pytest.mark.gittrix(max_seconds=0)
        def test_without(): pass
    """
    result = run(source)

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_it.py:3: test_with passed, but went over the budget of its gittrix marker.",
            "It took * real seconds, and max_seconds is 0.",
            "Let the agent do less, or set a higher budget.",
        ]
    )
    result.stdout.no_fnmatch_line("*marker.py*")


def test_each_session_counts_by_itself_and_by_what_differs_in_the_end_or_at_its_end(run: Run) -> None:
    source = """
        import pytest

        def write(session, *paths):
            for path in paths:
                session.write(path, "1")

        @pytest.mark.gittrix(max_files=2)
        def test_two_sessions_of_two(gittrix):
            write(gittrix.start_session("one"), "a", "b")
            write(gittrix.start_session("two"), "c", "d")

        @pytest.mark.gittrix(max_files=2)
        def test_what_was_taken_back(gittrix_session):
            write(gittrix_session, "a", "b", "c")
            gittrix_session.delete("c")

        @pytest.mark.gittrix(max_files=2)
        def test_live_by_a_program(gittrix_session):
            for name in "abc":
                (gittrix_session.workspace_path / name).write_text("1")

        @pytest.mark.gittrix(max_files=2)
        def test_promoted(gittrix_session):
            write(gittrix_session, "a", "b", "c")
            gittrix_session.promote()

        @pytest.mark.gittrix(max_files=2)
        def test_discarded(gittrix_session):
            write(gittrix_session, "a", "b", "c")
            gittrix_session.discard()
    """
    result = run(source)

    result.assert_outcomes(passed=2, failed=3)
    shown = "\n".join(result.outlines).partition("short test summary")[0]  # which has all of it once more, where it is not cut
    assert shown.count(" touched 3 files, and max_files is 2: 'a', 'b', 'c'.") == 3


def test_tokens_of_requests_and_answers_count(run: Run) -> None:
    source = """
        import json, pytest, urllib.request

        def use(model):
            model.script("Hello")
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
            with urllib.request.urlopen(model.url + "/v1/chat/completions", body) as answer:
                tokens = json.load(answer)["usage"]["total_tokens"]
            assert tokens > 1
            return tokens

        @pytest.mark.gittrix(max_tokens=1)
        def test_more(gittrix_model):
            use(gittrix_model)

        @pytest.mark.gittrix(max_tokens=100)
        def test_fewer(gittrix_model):
            assert use(gittrix_model) < 100
    """
    result = run(source)

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Its agents used * tokens of gittrix_model, and max_tokens is 1."])


def test_the_nearer_marker_sets_the_budget_and_none_takes_it_away(run: Run) -> None:
    source = """
        import pytest
        pytestmark = pytest.mark.gittrix(max_seconds=0)

        def test_of_the_module(): pass

        @pytest.mark.gittrix(max_seconds=3600)
        def test_its_own(): pass

        @pytest.mark.gittrix(max_seconds=None)
        def test_none(): pass
    """
    run(source).assert_outcomes(passed=2, failed=1)


def test_a_test_that_fails_shows_its_own_failure_alone(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(max_seconds=0)
        def test_it(gittrix_session):
            assert "mine" == "theirs"
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 'mine' == 'theirs'"])
    result.stdout.no_fnmatch_line("*max_seconds is*")
