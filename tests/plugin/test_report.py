"""What a failing test's report shows, what stays on disk, and what is put aside."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gittrix.plugin.examples import example_lines

Run = Callable[..., pytest.RunResult]

FAILING = """
    import pytest

    @pytest.mark.gittrix(files={"app.py": "v1\\n"}, task="mend")
    def test_it(gittrix_session, gittrix_rival, gittrix_clock):
        gittrix_clock.advance(minutes=3)
        gittrix_session.write("app.py", "v2\\n")
        gittrix_rival.commit({"other.py": "x"}, message="hot fix")
        assert False, "on purpose"
"""
PASSING = """
    def test_it(gittrix_session):
        gittrix_session.write("app.py", "v2")
"""


def sections(result: pytest.RunResult) -> list[str]:
    """Titles of the gittrix sections, in the order they are shown."""
    return re.findall(r"^-+ (gittrix [a-z ]+?) -+$", result.stdout.str(), re.MULTILINE)


def world_of(result: pytest.RunResult) -> Path:
    """The directory a report says that a world was kept in."""
    found = re.search(r"^kept in (.+)$", result.stdout.str(), re.MULTILINE)
    assert found, result.stdout.str()
    return Path(found[1])


def worlds(pytester: pytest.Pytester) -> Path:
    """Where the worlds of a run are."""
    return pytester.path.parent / f"{pytester.path.name}-base" / "gittrix"


def left_over(pytester: pytest.Pytester) -> list[str]:
    """Worlds that are still on disk."""
    return sorted(path.name for path in worlds(pytester).glob("[0-9]*"))


def test_a_failing_test_shows_its_world(run: Run) -> None:
    result = run(FAILING, "--gittrix-freeze=none")

    result.assert_outcomes(failed=1)
    assert sections(result) == [
        "gittrix durable log",
        "gittrix session events",
        "gittrix sessions",
        "gittrix clock",
        "gittrix diff",
        "gittrix world",
    ]
    result.stdout.fnmatch_lines(
        [
            "*gittrix durable log*",
            "*2030-01-01T00:03:00.000Z*: hot fix",
            "*gittrix session events*",
            "*session.created (*)*task=mend*",
            "*session.write (*)*path=app.py op=write",
            "*gittrix clock*",
            "2030-01-01T00:03:00.000Z",
            "*advanced by 180.*",
            "*gittrix diff*",
            "diff --git a/app.py b/app.py",
            "-v1",
            "+v2",
        ]
    )


def test_a_section_with_nothing_in_it_is_left_out(run: Run) -> None:
    result = run("def test_it(gittrix_durable): assert False")

    result.assert_outcomes(failed=1)
    assert sections(result) == ["gittrix durable log", "gittrix world"]


def test_the_deadlines_of_sessions_and_lost_commits_are_shown(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(eviction="30m")
        def test_late(gittrix, gittrix_clock):
            kept, expired, forever = (gittrix.start_session(name) for name in ("kept", "expired", "forever"))
            gittrix.evict(forever.id, "discarded")
            gittrix_clock.advance("20m")
            (kept.workspace_path / "new").touch()
            gittrix_clock.advance("11m")
            assert gittrix.sweep() == []

        @pytest.mark.gittrix(bare=True)
        def test_lost_without_a_reflog(gittrix_session, gittrix_durable):
            before = gittrix_durable.head()
            gittrix_session.write("new", "x")
            gittrix_session.promote(strategy="commit")
            gittrix_durable.git("update-ref", "refs/heads/main", before)
            assert "new" in gittrix_durable.tree()

        @pytest.mark.gittrix(eviction="30m")
        def test_not_swept(gittrix_session, gittrix_clock):
            gittrix_clock.advance("20m")
            (gittrix_session.workspace_path / "new").touch()
            gittrix_clock.skew("11m")
            assert False
    """
    result = run(source, "--gittrix-freeze=none")

    result.assert_outcomes(failed=3)
    shown = result.stdout.str()
    day = "2030-01-01T"
    for line in (
        rf"now {day}00:31:00\.000Z; a session expires once that is past its deadline",
        rf"sess_\w+ expired at {day}00:31:00\.000Z, swept by sweep\(\), 1m after its deadline {day}00:30:00\.000Z; "
        rf"last used {day}00:00:00\.000Z",
        rf"sess_\w+ active, deadline {day}00:50:00\.000Z is 19m from now; last used {day}00:20:00\.000Z",
        rf"sess_\w+ discarded at {day}00:00:00\.000Z, 30m before its deadline {day}00:30:00\.000Z; last used {day}00:00:00\.000Z",
        rf"sess_\w+ active, deadline {day}00:50:00\.000Z is 19m from now; last used {day}00:20:00\.000Z by a change of its files",
        r"no longer on main:\n[0-9a-f]{10}  .* Human: gittrix: test_lost_without_a_reflog \(promoted by sess_\w+\)",
    ):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line


def test_a_passing_test_shows_nothing(run: Run) -> None:
    assert sections(run(PASSING, "-rA")) == []


def test_a_failure_in_set_up_shows_the_world_too(run: Run) -> None:
    source = """
        import pytest

        @pytest.fixture
        def broken(gittrix_session):
            raise ValueError

        def test_it(broken): pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    assert "gittrix session events" in sections(result)


def test_a_failure_in_tear_down_shows_and_keeps_the_world(run: Run) -> None:
    source = """
        import pytest

        @pytest.fixture
        def broken():
            yield
            raise ValueError

        def test_it(broken, gittrix_session): pass
    """
    result = run(source)

    result.assert_outcomes(passed=1, errors=1)
    assert "gittrix session events" in sections(result)
    assert (world_of(result)).is_dir()


def test_an_expected_failure_shows_nothing(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.xfail
        def test_it(gittrix_session):
            assert False
    """
    result = run(source, "-rA")

    result.assert_outcomes(xfailed=1)
    assert sections(result) == []


def test_a_test_without_fixtures_of_ours_shows_nothing(run: Run) -> None:
    source = """
        def test_ours(gittrix_durable): pass
        def test_theirs(): assert False
    """
    assert sections(run(source)) == []


def test_sections_are_short_and_say_how_much_they_leave_out(run: Run) -> None:
    source = """
        def test_it(gittrix_session):
            gittrix_session.write("long.txt", "\\n".join(map(str, range(500))))
            gittrix_session.write("wide.txt", "x" * 5000)
            for number in range(60):
                gittrix_session.write("app.py", f"{number}")
            assert False
    """
    result = run(source)

    result.stdout.fnmatch_lines(["... * earlier lines", "*gittrix diff*", "... * more lines"])
    assert max(map(len, result.outlines)) < 400


def test_hostile_contents_are_made_harmless(run: Run) -> None:
    source = r"""
        def test_it(gittrix_session):
            gittrix_session.write("a.txt", b"\x1b[2Jcleared\n\xff\xfe\n")
            gittrix_session.write("b.txt", b"\x1b[2Jcleared\n")
            assert False
    """
    result = run(source)

    result.stdout.fnmatch_lines([r"+\x1b*cleared"])
    assert "\x1b[2J" not in result.stdout.str()


def test_evidence_that_cannot_be_read_does_not_hide_the_failure(run: Run) -> None:
    source = """
        import shutil

        def test_it(gittrix_durable):
            shutil.rmtree(gittrix_durable.path)
            assert False, "the reason"
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the reason*", "*gittrix durable log*", "cannot be read: *"])


def test_by_default_the_worlds_of_failed_tests_stay(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        def test_good(gittrix_session): pass
        def test_bad(gittrix_session): assert False
    """
    result = run(source)

    assert left_over(pytester) == ["0001-test_bad"]
    assert world_of(result).name == "0001-test_bad"
    assert not list(worlds(pytester).glob("trash/*"))


@pytest.mark.parametrize(("keep", "left"), [("all", ["0000-test_good", "0001-test_bad"]), ("none", [])])
def test_keep_decides_which_worlds_stay(keep: str, left: list[str], run: Run, pytester: pytest.Pytester) -> None:
    source = """
        def test_good(gittrix_session): pass
        def test_bad(gittrix_session): assert False
    """
    result = run(source, f"--gittrix-keep={keep}")

    assert left_over(pytester) == left
    result.stdout.fnmatch_lines(["kept in *" if left else "not kept; --gittrix-keep=failed *"])


def test_of_a_failing_property_the_smallest_world_stays(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        from hypothesis import assume, given, settings, strategies as st

        @settings(max_examples=30, deadline=None, database=None, derandomize=True)
        @given(number=st.integers(0, 1000))
        def test_property(gittrix_worlds, number):
            with gittrix_worlds.open(files={"n.txt": f"{number}"}, workspace="lazy") as world:
                assume(number != 7)
                world.start(task="look").write("n.txt", f"changed {number}")
                assert number < 10
    """
    result = run(source)

    result.assert_outcomes(failed=1)
    assert len(left_over(pytester)) == 1
    result.stdout.fnmatch_lines(
        [
            "*gittrix example*",
            "To run this example alone, put above @given: @example(number=10)",
            "*gittrix diff*",
            "-10",
            "+changed 10",
        ]
    )
    result.stdout.no_fnmatch_line("*<pytest_gittrix.plugin*")


class FailedHealthCheck(Exception):
    """As Hypothesis raises it."""


def noted(*notes: str, error: BaseException | None = None) -> BaseException:
    """An exception as Hypothesis leaves it."""
    error = error if error is not None else AssertionError("no")
    for note in notes:
        error.add_note(note)
    return error


CALL = "Failing test case: test_it(\n    gittrix_worlds=gittrix_worlds,\n    text='a)\\n',  # or any other\n    number=3,\n)"
PER_TEST = FailedHealthCheck("'test_it' uses a function-scoped fixture 'gittrix_session'.")


@pytest.mark.parametrize(
    ("failure", "lines"),
    [
        (noted(CALL), ["To run this example alone, put above @given: @example(text='a)\\n', number=3)"]),
        (noted("Falsifying example: test_it(number=(1, 2))"), ["To run this example alone, put above @given: @example(number=(1, 2))"]),
        (
            ExceptionGroup("two", [ValueError(), noted(CALL)]),
            ["To run this example alone, put above @given: @example(text='a)\\n', number=3)"],
        ),
        (noted("Falsifying example: test_it(data=data(...), number=1)"), []),
        (noted("Falsifying example: test_it(thing=<object at 0x7f>)"), []),
        (noted("a note of the user's about test_it(3)"), []),
        (
            PER_TEST,
            [
                "gittrix_session is made once for each test, and Hypothesis runs the test once for each example.",
                "Open a world for each example instead: with gittrix_worlds.open() as world: session = world.start()",
            ],
        ),
    ],
)
def test_a_failing_example_can_be_run_alone(failure: BaseException, lines: list[str]) -> None:
    fixtures = ["gittrix_worlds", "gittrix_session", "tmp_path"]

    def item(**attributes: object) -> pytest.Item:
        found: Any = SimpleNamespace(name="test_it", fixturenames=fixtures, obj=SimpleNamespace(**attributes))
        return found

    assert example_lines(failure, item(is_hypothesis_test=True)) == lines
    assert example_lines(failure, item()) == []


def test_keep_all_keeps_every_example(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        def test_it(gittrix_worlds):
            for number in range(3):
                with gittrix_worlds.open(files={"n": f"{number}"}):
                    pass
    """
    run(source, "--gittrix-keep=all").assert_outcomes(passed=1)

    assert left_over(pytester) == ["0000-example", "0001-example", "0002-example"]


def test_a_property_that_passes_leaves_nothing(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        def test_it(gittrix_worlds):
            with pytest.raises(ZeroDivisionError), gittrix_worlds.open() as world:
                1 / 0
            with gittrix_worlds.open() as world:
                pass
    """
    run(source).assert_outcomes(passed=1)

    assert left_over(pytester) == []


def test_artifacts_of_a_failed_test_can_be_read_without_us(run: Run, pytester: pytest.Pytester) -> None:
    result = run(FAILING, "--gittrix-artifacts=kept", "--gittrix-keep=none", "--gittrix-freeze=none")
    result.assert_outcomes(failed=1)

    bundle = pytester.path / "kept" / "test_it.py-test_it"
    session = next(path for path in bundle.iterdir() if path.is_dir())
    assert "hot fix" in (bundle / "durable.log").read_text()
    assert "2030-01-01T00:03:00.000Z" in (bundle / "clock.txt").read_text()
    assert f"{session.name} active, deadline 2030-01-01T04:03:00.000Z" in (bundle / "sessions.txt").read_text()
    assert not (bundle / "race.txt").exists()
    page = (bundle / "page.html").read_text()
    assert f"page in {bundle / 'page.html'}" in result.stdout.str()
    assert "<h1>test_it.py::test_it</h1>" in page
    assert session.name in page
    assert "hot fix" in page
    assert "2030-01-01T00:03:00.000Z" in page
    events = [json.loads(line) for line in (session / "events.jsonl").read_text().splitlines()]
    assert events[0]["type"] == "session.created"
    (pytester.path / "app.py").write_text("v1\n")
    subprocess.run(["git", "apply", str(session / "changes.patch")], cwd=pytester.path, check=True, timeout=60)
    assert (pytester.path / "app.py").read_text() == "v2\n"


def test_no_artifacts_of_a_test_that_passes(run: Run, pytester: pytest.Pytester) -> None:
    run(PASSING, "--gittrix-artifacts=kept").assert_outcomes(passed=1)

    assert not (pytester.path / "kept").exists()


def test_artifacts_of_parametrised_tests_are_kept_apart(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("path", ["a/b", "a-b", "x" * 300])
        def test_it(gittrix_durable, path):
            assert False
    """
    run(source, "--gittrix-artifacts=kept").assert_outcomes(failed=3)

    assert len(list((pytester.path / "kept").iterdir())) == 3


def test_a_rerun_of_a_failed_test_starts_afresh(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from _pytest.runner import runtestprotocol

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, nextitem=None, log=False)
            item._initrequest()
    """)
    source = """
        tries = []

        def test_flaky(gittrix_session):
            tries.append(1)
            assert len(tries) > 1
    """
    run(source).assert_outcomes(passed=1)

    assert left_over(pytester) == ["0000-test_flaky"]
