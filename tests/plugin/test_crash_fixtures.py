"""The fixtures that crash a user's own code: what they give, and that they skip with a reason where a machine cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gittrix.testing.faults import crash, powercut, small_disks, supervisor

Run = Callable[..., pytest.RunResult]


def needs(reason: str | None) -> pytest.MarkDecorator:
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def test_a_named_point_kills_a_fork_of_the_test(run: Run) -> None:
    source = """
        from pytest_gittrix import points

        def save(file):
            file.write_text("begun")
            points.reached("save:begun")
            file.write_text("done")

        def test_fork(gittrix_crash, tmp_path):
            assert gittrix_crash.at("save:begun", lambda: save(tmp_path / "x")) == ("save:begun",)
            assert (tmp_path / "x").read_text() == "begun"

        def test_in_process(gittrix_crash, tmp_path):
            with gittrix_crash.in_process("save:begun"):
                save(tmp_path / "x")
            assert (tmp_path / "x").read_text() == "begun"
    """
    run(source).assert_outcomes(passed=2)


def test_a_killed_promotion_is_recovered_by_the_engine_of_the_test(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize(("point", "state"), [("promote:drift-checked", "active"), ("promote:swapped", "promoted")])
        def test_promotion(gittrix_crash, gittrix_session, gittrix, point, state):
            gittrix_session.write("app.py", "agent")
            gittrix_crash.at(point, gittrix_session.promote)
            gittrix.recover()
            assert gittrix.info(gittrix_session.id).state == state
    """
    run(source).assert_outcomes(passed=2)


@needs(supervisor.supported())
def test_a_sweep_fails_the_test_with_a_line_for_each_failure(run: Run) -> None:
    source = """
        def test_sweep(gittrix_crash, tmp_path):
            file = tmp_path / "notes.txt"
            gittrix_crash.sweep(
                lambda: file.write_text("new"),
                lambda: file.write_text("old"),
                lambda run: file.read_text() in ("old", "new"),
                within=tmp_path,
            ).verify()
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*points tried 2, survived 1, failed 1*",
            "*2 kill at write notes.txt (3 bytes): the check says no",
            "*replay: gittrix_crash.at_call(2, run, kind='kill', within=within)",
        ]
    )


def test_hypothesis_may_use_the_crash_fixture(run: Run) -> None:
    source = """
        from hypothesis import given, settings, strategies as st
        from pytest_gittrix import points

        @settings(max_examples=3, deadline=None, database=None)
        @given(st.integers(1, 3))
        def test_nth(gittrix_crash, nth):
            def work():
                while True:
                    points.reached("work:step")
            assert len(gittrix_crash.at("work:step", work, nth=nth)) == nth
    """
    run(source).assert_outcomes(passed=1)


@needs(small_disks.mounting_supported())
def test_a_small_disk_is_gone_after_its_test(run: Run) -> None:
    source = """
        import os

        seen = []

        def test_first(gittrix_small_disk):
            seen.append(gittrix_small_disk("64k"))
            seen.append(gittrix_small_disk())
            assert [os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize for disk in seen] == [65536, 262144]

        def test_second():
            assert not [disk for disk in seen if disk.exists()]
    """
    run(source).assert_outcomes(passed=2)


@needs(powercut.supported())
def test_a_save_without_a_sync_fails_its_power_cuts(run: Run) -> None:
    source = """
        def test_cuts(gittrix_power_cuts):
            gittrix_power_cuts(
                lambda disk: (disk / "x").write_text("new"),
                lambda disk, cut: not cut.finished or (disk / "x").read_text() == "new",
                prepare=lambda disk: (disk / "x").write_text("old"),
            ).verify()
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    replay = "*replay: power_cuts(run, check, prepare=prepare, filesystem='ext4', points=?3?)"
    result.stdout.fnmatch_lines(["*3 power cut at the end:*", replay])


def test_where_a_machine_cannot_the_tests_are_skipped_with_the_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "supported", lambda: "no seccomp here")
    monkeypatch.setattr(powercut, "supported", lambda filesystem: "no loop devices here")
    monkeypatch.setattr(small_disks, "mounting_supported", lambda: "no mounts here")
    source = """
        def test_call(gittrix_crash):
            gittrix_crash.at_call(1, lambda: None)

        def test_cuts(gittrix_power_cuts):
            gittrix_power_cuts(lambda disk: None, lambda disk, cut: None)

        def test_disk(gittrix_small_disk):
            gittrix_small_disk()
    """
    result = run(source, "-rs")

    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(["*no seccomp here*", "*no loop devices here*", "*no mounts here*"])
