"""The fixtures for authors of session systems: what they give, and that what a test left hanging ends with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]


def test_every_test_has_a_log_of_its_own(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("turn", [1, 2])
        def test_fresh(gittrix_log, turn):
            assert gittrix_log.events() == []
            assert len(gittrix_log.build(20)) == 20
            assert gittrix_log.invariants() == []
    """
    run(source).assert_outcomes(passed=2)


def test_a_log_needs_no_world(run: Run) -> None:
    source = """
        def test_it(gittrix_log, gittrix_turns, request):
            assert "_gittrix_world" not in request.fixturenames
    """
    run(source).assert_outcomes(passed=1)


def test_a_golden_text_is_the_same_in_the_next_test(run: Run) -> None:
    source = """
        import pytest
        seen = set()

        @pytest.mark.parametrize("turn", [1, 2, 3])
        @pytest.mark.gittrix(task="same")
        def test_same(gittrix_session, gittrix_log, gittrix_clock, turn):
            gittrix_clock.advance(minutes=turn)
            gittrix_session.record("user_message", {"text": f"in {gittrix_session.workspace_path}"})
            seen.add(gittrix_log.of(gittrix_session).golden())
            assert len(seen) == 1
    """
    run(source, "--gittrix-freeze=none").assert_outcomes(passed=3)


def test_a_difference_of_golden_texts_is_shown_line_by_line(run: Run) -> None:
    source = """
        def test_golden(gittrix_log):
            gittrix_log.append("user_message", text="hello")
            before = gittrix_log.golden()
            gittrix_log.append("assistant_message", text="well, hello")
            assert gittrix_log.golden() == before
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*3 <time-4> agent assistant_message*well, hello*"])


@pytest.mark.parametrize("runs", ["process", "thread"])
def test_an_interrupt_comes_exactly_inside_the_tool(run: Run, runs: str) -> None:
    source = f"""
        def test_turn(gittrix_session, gittrix_turns):
            script = gittrix_turns.script().call("c1").at("inside").result("c1")
            turn = gittrix_session.start_turn(script, runs={runs!r})
            gittrix_turns.wait_for("inside")
            gittrix_session.interrupt()
            assert turn.status == "interrupted"
            assert [event.data["ok"] for event in gittrix_session.history("tool_result")] == [False]
    """
    run(source).assert_outcomes(passed=1)


@pytest.mark.parametrize("runs", ["process", "thread"])
def test_what_a_test_leaves_hanging_ends_with_it(run: Run, runs: str) -> None:
    source = f"""
        left = []

        def test_left(gittrix_session, gittrix_turns):
            script = gittrix_turns.script().spawn_child().at("started").ignore_interrupt()
            left.append((gittrix_turns, gittrix_session.start_turn(script, runs={runs!r})))
            gittrix_turns.step("started")
            assert gittrix_turns.alive()

        def test_gone():
            turns, turn = left[0]
            assert turn.wait(60)
            assert turns.gone()
    """
    run(source).assert_outcomes(passed=2)


def test_a_point_that_is_never_reached_fails_the_test_and_says_what_was(run: Run) -> None:
    source = """
        def test_turn(gittrix_session, gittrix_turns):
            script = gittrix_turns.script().at("here").at("there")
            gittrix_session.start_turn(script)
            gittrix_turns.wait_for("here")
            gittrix_turns.wait_for("there", timeout=0.05)
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'there' was not reached.", "*1 turns began, 0 ended; the last that was heard: it stood at 'here'."])


def test_a_line_is_made_in_the_world_of_the_test(run: Run) -> None:
    source = """
        from datetime import timedelta

        def test_line(gittrix, gittrix_chain, gittrix_clock):
            before = gittrix_clock.now()
            line = gittrix_chain("toast", ["handoff", "handoff", "crash", "done"], every=timedelta(hours=9), work_unit="gt-1")
            gittrix_chain.check(line)
            gittrix_chain.check([session.id for session in line])
            assert [record.id for record in gittrix.chain(work_unit="gt-1")] == [session.id for session in line]
            assert gittrix_clock.now() - before == timedelta(hours=36)
    """
    run(source).assert_outcomes(passed=1)


def test_a_broken_line_fails_the_test_with_a_line_for_each_fault(run: Run) -> None:
    source = """
        def test_line(gittrix_chain):
            line = gittrix_chain("toast", ["handoff", "handoff", "done"])
            gittrix_chain.check(line[1:])
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*These 2 sessions are not one line:", "*there are 0 roots, not one", "*is an orphan: its parent * is not in the line"]
    )


def test_they_work_in_parallel(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("turn", range(6))
        def test_all(gittrix_session, gittrix_log, gittrix_turns, gittrix_chain, turn):
            gittrix_log.build(5)
            gittrix_session.start_turn(gittrix_turns.script().at("here").hang())
            gittrix_turns.step("here")
            gittrix_chain.check(gittrix_chain("toast", ["crash", "done"]))
    """
    run(source, "-n2").assert_outcomes(passed=6)
