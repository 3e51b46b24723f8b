"""When the test process's own clock stands still, and that it goes on afterwards. In processes of their own: freezing is process-wide."""

from __future__ import annotations

from textwrap import dedent

import pytest

SOURCE = """
    import time
    from datetime import UTC, datetime
    import pytest

    @pytest.fixture
    def my_clock(gittrix_clock):
        return gittrix_clock

    def year():
        assert datetime.now(UTC).year == time.gmtime().tm_year
        return datetime.now(UTC).year

    @pytest.mark.gittrix(clock_start="2030-12-31T23:00:00Z")
    def test_named(gittrix_clock, gittrix_session):
        assert year() == 2030
        gittrix_clock.advance(hours=1)
        assert year() == 2031

    def test_after(gittrix_session):
        assert year() < 2030
        assert gittrix_session.info().created_at.year == 2030

    @pytest.mark.usefixtures("gittrix_clock")
    def test_named_by_usefixtures():
        assert year() == 2030

    def test_named_by_a_fixture_of_the_user(my_clock):
        assert year() == 2030

    @pytest.mark.gittrix(freeze="wall", clock_start="2033-03-03T00:00:00Z")
    def test_marked(gittrix_durable):
        assert year() == 2033

    @pytest.mark.gittrix(freeze="none")
    def test_marked_none(gittrix_clock):
        assert year() < 2030

    @pytest.mark.gittrix(freeze="all")
    def test_marked_all(gittrix_clock):
        before = time.monotonic()
        gittrix_clock.advance(hours=1)
        assert time.monotonic() - before == pytest.approx(3600)

    def test_worlds(gittrix_worlds):
        with gittrix_worlds.open() as world:
            assert year() < 2030
            assert world.clock.now().year == 2030
"""


def test_the_process_is_frozen_for_tests_that_name_the_clock_or_ask_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOURCE)

    pytester.runpytest_subprocess("--durations=3", "-vv").assert_outcomes(passed=8)


def test_with_freeze_none_only_the_engines_clock_stands_still(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        from datetime import UTC, datetime

        def test_it(gittrix_clock, gittrix_session):
            assert datetime.now(UTC).year < 2030 == gittrix_session.info().created_at.year
            assert "freezegun" not in sys.modules
    """)

    pytester.runpytest_subprocess("--gittrix-freeze=none").assert_outcomes(passed=1)


def test_another_frozen_clock_in_the_test_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import freezegun, pytest

        @pytest.fixture
        def other():
            with freezegun.freeze_time("2020-01-01"):
                yield

        def test_it(other, gittrix_clock): pass
    """)

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*freezegun already holds this process's clock.*"])


def test_another_library_is_refused_inside_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from datetime import UTC, datetime
        import freezegun, pytest, time_machine
        from pytest_gittrix import GittrixError

        @freezegun.freeze_time("2031-01-01")
        def test_decorated(gittrix_clock):
            raise AssertionError("the test was run")

        @pytest.mark.parametrize("freeze", [freezegun.freeze_time, time_machine.travel])
        def test_inside(gittrix_clock, gittrix, freeze):
            with pytest.raises(GittrixError), freeze("2031-01-01"):
                gittrix.start_session("x")
            assert datetime.now(UTC) == gittrix_clock.now() == gittrix.start_session("y").info().created_at

        def test_the_fixture(gittrix_clock, time_machine):
            with pytest.raises(GittrixError):
                time_machine.move_to("2031-01-01")

        @pytest.mark.time_machine("2031-01-01")
        def test_marked(gittrix_clock): pass
    """)

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*freezegun cannot freeze this process: it shows the clock of a test*"])
    result.stdout.fnmatch_lines(["*time-machine already holds this process's clock.*"])


def test_all_tests_of_a_module_or_of_a_project_can_be_on_the_clock(pytester: pytest.Pytester) -> None:
    source = dedent("""
        from datetime import datetime
        import pytest
        def test_without_a_fixture(): assert datetime.now().year == 2030
        def test_with_one(gittrix_session): assert datetime.now().year == 2030
    """)
    pytester.makepyfile(test_project=source, test_module=source + "pytestmark = pytest.mark.gittrix(freeze='wall')")
    pytester.makeini("[pytest]\nusefixtures = gittrix_clock")

    pytester.runpytest_subprocess("test_project.py").assert_outcomes(passed=2)
    pytester.makeini("[pytest]")
    pytester.runpytest_subprocess("test_module.py").assert_outcomes(passed=1, failed=1)


CHILDREN = """
    import os, subprocess, sys
    import pytest

    YEAR = [sys.executable, "-c", "import time; print(time.gmtime().tm_year)"]

    def year(env):
        return int(subprocess.run(YEAR, env=env, stdout=-1, check=True).stdout)

    def test_named_first(gittrix_clock, gittrix_env, gittrix_session):
        assert {year(gittrix_env) == 2030, int(gittrix_session.run(YEAR).stdout) == 2030} == {FOLLOWS}
        gittrix_clock.advance_to(gittrix_clock.now().replace(year=2032), timers="none")
        assert (year(gittrix_env) == 2032) is FOLLOWS
        assert "mine" in gittrix_env["PYTHONPATH"].split(os.pathsep)

    def test_named_last(gittrix_env, gittrix_clock):
        assert (year(gittrix_env) == 2030) is FOLLOWS
        assert year(os.environ) < 2030

    def test_not_named(gittrix_env):
        assert year(gittrix_env) < 2030

    @pytest.mark.gittrix(freeze="wall")
    def test_marked(gittrix_env):
        assert (year(gittrix_env) == 2030) is FOLLOWS
"""


@pytest.mark.parametrize("options", [(), ("--gittrix-freeze-children=no",)])
def test_python_programs_see_what_the_process_sees_unless_they_are_left_out(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makeconftest("def pytest_gittrix_git_env(env): env['PYTHONPATH'] = 'mine'")
    pytester.makepyfile(CHILDREN.replace("FOLLOWS", str(not options)))

    pytester.runpytest_subprocess(*options).assert_outcomes(passed=4)


def test_in_an_unfrozen_process_python_programs_have_real_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import subprocess, sys

        def test_it(gittrix_clock, gittrix_env):
            command = [sys.executable, "-c", "import time; print(time.gmtime().tm_year)"]
            assert int(subprocess.run(command, env=gittrix_env, stdout=-1, check=True).stdout) < 2030
    """)

    pytester.runpytest_subprocess("--gittrix-freeze=none").assert_outcomes(passed=1)


JUMPING = """
    import asyncio, time
    from datetime import UTC, datetime
    import pytest

    def hours():
        return (datetime.now(UTC) - datetime(2030, 1, 1, tzinfo=UTC)).total_seconds() / 3600

    @pytest.mark.gittrix(autojump=True, eviction="4h")
    def test_marked(gittrix, gittrix_session):
        async def forgotten():
            await asyncio.sleep(5 * 3600)
        asyncio.run(forgotten())
        assert hours() == 5
        assert [one.state for one in gittrix.list_sessions()] == ["expired"]

    @pytest.mark.gittrix(autojump=0)
    def test_marked_with_a_number(gittrix_clock):
        time.sleep(3600)
        assert hours() == 1

    def test_not_marked(gittrix_clock):
        time.sleep(0.01)
        assert (hours() > 0) is OPTION

    @pytest.mark.gittrix(autojump=False)
    def test_marked_not(gittrix_clock):
        time.sleep(0.01)
        assert hours() == 0

    def test_not_frozen(gittrix_session):
        time.sleep(0.01)
        assert datetime.now(UTC).year < 2030
"""


@pytest.mark.parametrize("options", [(), ("--gittrix-autojump",)])
def test_sleeps_move_the_clock_where_the_test_or_the_run_asks_for_it(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(JUMPING.replace("OPTION", str(bool(options))))

    pytester.runpytest_subprocess(*options, "--durations=1").assert_outcomes(passed=5)


def test_autojump_without_a_frozen_process_is_refused_at_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gittrix(autojump=True, freeze="none")
        def test_none(gittrix_session): pass

        @pytest.mark.gittrix(autojump=-1)
        def test_negative(gittrix_session): pass
    """)

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*was given autojump=True where freeze is 'none'*", "*use freeze='wall'*"])
    result.stdout.fnmatch_lines(["*was given autojump=-1*", "*not below 0*"])
