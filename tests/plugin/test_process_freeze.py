"""When the test process's own clock stands still, and that it goes on afterwards. In processes of their own: freezing is process-wide."""

from __future__ import annotations

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
