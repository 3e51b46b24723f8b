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
            eviction=EvictionPolicy(ttl_idle=timedelta(minutes=1)), epoch="2031-02-03T04:05:06Z", freeze="none",
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("fils={}", "*has no argument 'fils'.|Did you mean 'files'[?] Arguments: files, history, *"),
        ("colour='red'", "*has no argument 'colour'.|Arguments: files, *"),
        ("{'a': 'b'}", "*takes keyword arguments only, and was given {'a': 'b'}.|*"),
        ("files='app.py'", "*was given files='app.py'.|It takes a mapping of path to contents."),
        ("bare='yes'", "*was given bare='yes'.|It takes True or False."),
        ("workspace='zip'", "*was given workspace='zip'.|Valid values: clone, worktree, copy, lazy."),
        ("freeze='walls'", "*was given freeze='walls'.|Valid values: wall, all, none."),
        ("object_format='md5'", "*was given object_format='md5'.|Valid values: sha1, sha256."),
        ("epoch='soon'", "*was given epoch='soon'.|*It takes an aware datetime, or ISO 8601 with a time zone."),
        ("epoch=__import__('datetime').datetime(2030, 1, 1)", "*was given epoch=datetime*|*has no time zone*"),
    ],
)
def test_a_wrong_argument_is_an_error_at_the_test(arguments: str, said: str, run: Run) -> None:
    source = f"""
        import pytest

        @pytest.mark.gittrix({arguments})
        def test_it(gittrix_durable): pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    first, second = said.split("|")
    result.stdout.fnmatch_lines([f"*test_it.py:3: the gittrix marker of test_it {first}", second])
    result.stdout.no_fnmatch_line("*config.py*")
