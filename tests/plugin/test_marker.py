"""The marker: what it sets, how markers merge, and how a wrong one is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gittrix.testing.world import World

Run = Callable[..., pytest.RunResult]


def test_files_are_the_first_commit(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(files={"app.py": "v1\\n", "docs/a.md": b"\\xff"})
        def test_files(gittrix_durable):
            assert sorted(gittrix_durable.tree()) == ["app.py", "docs/a.md"]
            assert gittrix_durable.read("docs/a.md") == b"\\xff"
    """
    run(source, "--strict-markers").assert_outcomes(passed=1)


def test_every_argument_reaches_the_fixtures(run: Run) -> None:
    source = """
        from datetime import UTC, datetime, timedelta
        import pytest
        from pytest_gittrix import EvictionPolicy

        @pytest.mark.gittrix(
            files={"a": "1"}, branch="trunk", bare=True, workspace="copy", task="mend the fence", object_format="sha256",
            eviction=EvictionPolicy(ttl_idle=timedelta(minutes=1)), clock_start="2031-02-03T04:05:06Z", freeze="none",
        )
        def test_all(gittrix_session, gittrix_durable, gittrix_clock, gittrix):
            info = gittrix_session.info()
            assert (info.task, info.workspace_kind, info.durable_branch) == ("mend the fence", "copy", "trunk")
            assert len(gittrix_durable.head()) == 64
            assert gittrix_durable.git("rev-parse", "--is-bare-repository") == "true"
            assert gittrix_clock.now() == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
            assert datetime.now(UTC).year != 2031
            gittrix_clock.advance(minutes=1, seconds=1)
            assert gittrix.sweep() == [gittrix_session.id]
    """
    run(source).assert_outcomes(passed=1)


def test_the_nearest_marker_wins_for_each_argument(run: Run) -> None:
    source = """
        import pytest
        pytestmark = pytest.mark.gittrix(files={"module": ""}, task="of the module", branch="trunk")

        @pytest.mark.gittrix(files={"class": ""}, task="of the class")
        class TestMerge:
            @pytest.mark.gittrix(files={"test": ""})
            def test_merge(self, gittrix_session, gittrix_durable):
                assert list(gittrix_durable.tree()) == ["test"]
                assert gittrix_session.info().task == "of the class"
                assert gittrix_durable.branch == "trunk"
    """
    run(source).assert_outcomes(passed=1)


def test_what_durable_is_made_from_is_one_choice(run: Run) -> None:
    source = """
        import pytest
        pytestmark = pytest.mark.gittrix(files={"module": ""})

        @pytest.mark.gittrix(history=[{"a": "1"}, {"b": "2"}])
        def test_history(gittrix_durable):
            assert (sorted(gittrix_durable.tree()), len(gittrix_durable.log())) == (["a", "b"], 2)

        @pytest.mark.gittrix(repository="mine")
        def test_repository(gittrix_durable):
            assert list(gittrix_durable.tree()) == ["c"]
    """
    with World.open(files={"c": "3"}) as mine:
        run(source.replace("mine", str(mine.durable.path))).assert_outcomes(passed=2)


def test_the_task_is_the_tests_name_by_default(run: Run) -> None:
    source = """
        def test_named_so(gittrix_session):
            assert gittrix_session.info().task == "test_named_so"
    """
    run(source).assert_outcomes(passed=1)


WRONG = {
    "fils={}": ["has no argument 'fils'.", "Did you mean 'files'? Arguments: files, history, "],
    "colour='red'": ["has no argument 'colour'.", "Arguments: files, "],
    "{'a': 'b'}": ["takes keyword arguments only, and was given {'a': 'b'}.", ""],
    "files='app.py'": ["was given files='app.py'.", "It takes a mapping of path to contents, such as "],
    "files={'a': 1}": ["has a wrong value for files=.", "The content of 'a' is int: 1."],
    "files={'../a': ''}": ["has a wrong value for files=.", "path '../a' is refused: it has the component '..'"],
    "history='x'": ["has a wrong value for history=.", "history= is a text, 'x'; it must be a list of steps."],
    "history={'a': 'b'}": ["has a wrong value for history=.", "history= is dict: {'a': 'b'}."],
    "history=3": ["has a wrong value for history=.", "history= is int: 3."],
    "history=[], files={}": ["has a wrong value for history= or files=.", "Both files= and history= were given."],
    "repository='/nowhere'": ["has a wrong value for repository=.", "/nowhere is not a directory."],
    "branch='a b'": ["has a wrong value for branch=.", "'a b' is not a branch name."],
    "eviction='4 hours'": ["has a wrong value for eviction=.", "'4 hours' is not a duration."],
    "eviction=4": ["has a wrong value for eviction=.", "eviction=4 is not an eviction policy."],
    "bare='yes'": ["was given bare='yes'.", "It takes True or False."],
    "task=3": ["was given task=3.", "It takes a text."],
    "workspace='zip'": ["was given workspace='zip'.", "Valid values: clone, lazy, copy, worktree, overlay."],
    "workspace='clon'": ["was given workspace='clon'.", "Did you mean clone? Valid values: "],
    "workspace=3": ["has a wrong value for workspace=.", "workspace=3 is not a kind of workspace."],
    "freeze='walls'": ["was given freeze='walls'.", "Did you mean wall? Valid values: wall, all, none."],
    "max_seconds=-1": ["was given max_seconds=-1.", "It takes real seconds, not below 0."],
    "max_seconds=float('nan')": ["was given max_seconds=nan.", "It takes real seconds, not below 0."],
    "max_files=1.5": ["was given max_files=1.5.", "It takes a whole number of files, not below 0."],
    "max_tokens=True": ["was given max_tokens=True.", "It takes a whole number of tokens, not below 0."],
    "object_format='md5'": ["was given object_format='md5'.", "Valid values: sha1, sha256."],
    "clock_start='soon'": ["was given clock_start='soon'.", "clock_start takes an aware datetime, or ISO 8601 with a time zone."],
    "clock_start=__import__('datetime').datetime(2030, 1, 1)": ["was given clock_start=datetime.datetime(2030, 1, 1, 0, 0).", ""],
    "clock_start='1960-01-01T00:00:00Z'": ["has a wrong value for clock_start=.", "The clock cannot stand at 1960-01-01"],
}


def test_a_wrong_argument_is_an_error_at_the_test(run: Run) -> None:
    tests = [f"@pytest.mark.gittrix({arguments})\ndef test_{number}(gittrix): raise ValueError" for number, arguments in enumerate(WRONG)]
    result = run("\n".join(["import pytest", *tests]))

    result.assert_outcomes(errors=len(WRONG))
    shown = result.outlines
    for number, (arguments, (first, second)) in enumerate(WRONG.items()):
        line = f"test_it.py:{2 + 2 * number}: the gittrix marker of test_{number} {first}"
        assert line in shown, f"{arguments}\n{result.stdout}"
        assert shown[shown.index(line) + 1].startswith(second), arguments
        assert "ERROR at setup of" in shown[shown.index(line) - 1]
    result.stdout.no_fnmatch_line("*pytest_gittrix*")


def test_an_idle_ttl_can_be_a_text(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(eviction="4h")
        def test_eviction(gittrix, gittrix_clock):
            idle, short = gittrix.start_session("idle"), gittrix.start_session("short", eviction="90s")
            gittrix_clock.advance("2m")
            assert gittrix.sweep() == [short.id]
            idle.extend("30m")
            gittrix_clock.advance("30m")
            assert gittrix.sweep() == []
            gittrix_clock.skew("1h")
            assert gittrix.sweep() == [idle.id]
    """
    run(source).assert_outcomes(passed=1)
