"""Who goes next: steps of the engine, actors that take turns, and the git commands of other programs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from support.patience import long_enough

from pytest_gittrix import points
from pytest_gittrix.errors import Deadlock, GittrixError, InvalidInput, SessionNotFound
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.testing.schedules.race import Race


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Race]:
    """Makes races in a directory of the test."""
    return lambda **arguments: Race(tmp_path / "race", hermetic_env, **arguments)


def passing(name: str, trace: list[str], steps: int = 2) -> Callable[[], str]:
    """An actor that notes each step it takes and then passes a point."""

    def act() -> str:
        for step in range(steps):
            trace.append(f"{name}{step}")
            points.reached(f"{name}:{step}")
        return name

    return act


class Lock:
    """A lock that is waited for at points, as the engine's are."""

    def __init__(self) -> None:
        self.holder = threading.Lock()

    def __enter__(self) -> None:
        while not self.holder.acquire(blocking=False):
            points.reached("lock:busy")
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self.holder.release()


def test_something_happens_when_the_engine_reaches_a_point(opened: Callable[..., Race]) -> None:
    trace: list[str] = []
    with opened() as race:
        race.before("promote:head-read", lambda: trace.append("rival"))
        passing("A", trace)()
        points.reached("promote:head-read")
        trace.append("A went on")

    assert trace == ["A0", "A1", "rival", "A went on"]


def test_it_happens_once_unless_told_otherwise(opened: Callable[..., Race]) -> None:
    once: list[int] = []
    always: list[int] = []
    with opened() as race:
        race.after("a:b", lambda: once.append(1))
        race.after("a:b", lambda: always.append(1), times=None)
        for _ in range(3):
            points.reached("a:b")

    assert (once, always) == ([1], [1, 1, 1])


def test_points_that_the_intruder_passes_are_nobodys_step(opened: Callable[..., Race]) -> None:
    calls: list[int] = []

    def intrude() -> None:
        calls.append(1)
        points.reached("a:b")

    with opened() as race:
        race.before("a:b", intrude, times=None)
        points.reached("a:b")

    assert calls == [1]


def test_what_is_raised_at_a_point_is_raised_in_the_engine(opened: Callable[..., Race]) -> None:
    def crash() -> None:
        raise OSError("disk full")

    with opened() as race:
        race.before("a:b", crash)
        with pytest.raises(OSError, match="disk full"):
            points.reached("a:b")


def test_a_step_that_was_never_reached_fails_the_race_and_names_those_that_were(opened: Callable[..., Race]) -> None:
    with pytest.raises(GittrixError, match=r"Never reached.*promote:haed-read") as caught, opened() as race:
        race.before("promote:haed-read", lambda: None)
        race.before("never:mind", lambda: None, times=None)
        points.reached("promote:head-read")

    assert "promote:head-read" in caught.value.args[0]
    assert "never:mind" not in caught.value.args[0]


def test_a_git_command_that_was_never_run_is_named_as_one(opened: Callable[..., Race]) -> None:
    with pytest.raises(GittrixError) as caught, opened() as race:
        race.before("nope", lambda: None)
        points.reached("promote:head-read")

    first, *_ = str(caught.value).splitlines()
    assert first == "The git command `nope` was never run."
    assert "A step without a colon is a git command" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_a_failing_test_is_not_hidden_by_a_step_that_was_never_reached(opened: Callable[..., Race]) -> None:
    with pytest.raises(ZeroDivisionError), opened() as race:
        race.before("a:b", lambda: None)
        raise ZeroDivisionError


def test_after_the_race_nobody_listens(opened: Callable[..., Race]) -> None:
    calls: list[int] = []
    with opened() as race:
        race.before("a:b", lambda: calls.append(1), times=None)
    points.reached("a:b")

    assert calls == []


@pytest.mark.parametrize("schedule", sorted({"".join(order) for order in permutations("AABB")}))
def test_a_schedule_says_who_goes_next(schedule: str, opened: Callable[..., Race]) -> None:
    trace: list[str] = []
    with opened() as race:
        outcomes = race.run(schedule, A=passing("A", trace), B=passing("B", trace))

    assert "".join(step[0] for step in trace) == schedule
    assert {name: outcome.value for name, outcome in outcomes.items()} == {"A": "A", "B": "B"}


def test_after_the_schedule_actors_finish_in_turn(opened: Callable[..., Race]) -> None:
    trace: list[str] = []
    with opened() as race:
        race.run("B", A=passing("A", trace, 3), B=passing("B", trace, 3))

    assert trace == ["B0", "A0", "A1", "A2", "B1", "B2"]


def test_a_schedule_may_name_an_actor_that_has_ended(opened: Callable[..., Race]) -> None:
    trace: list[str] = []
    with opened() as race:
        race.run("AAAAAB", A=passing("A", trace, 1), B=passing("B", trace, 1))

    assert trace == ["A0", "B0"]


def test_a_schedule_that_names_nobody_is_refused(opened: Callable[..., Race]) -> None:
    with opened() as race, pytest.raises(InvalidInput, match="no actor 'C'") as caught:
        race.run("C", A=lambda: None, B=lambda: None)

    assert "A, B" in str(caught.value)


def test_a_refusal_is_an_outcome_and_a_bug_is_raised(opened: Callable[..., Race]) -> None:
    def refuse() -> None:
        raise SessionNotFound("gone")

    def break_down() -> None:
        raise ZeroDivisionError

    with opened() as race:
        outcome = race.run("", A=refuse)["A"]
        assert isinstance(outcome.error, SessionNotFound)
        with pytest.raises(ZeroDivisionError):
            race.run("", A=break_down, B=passing("B", []))


@pytest.mark.parametrize("schedule", ["AAB", "BBA", "ABAB", "ABBBBB", "BAAAAA"])
def test_who_waits_for_a_lock_lets_the_holder_go_on(schedule: str, opened: Callable[..., Race]) -> None:
    lock, order = Lock(), []

    def hold(name: str) -> Callable[[], None]:
        def act() -> None:
            points.reached("hold:before")
            with lock:
                points.reached("hold:inside")
                order.append(name)

        return act

    with opened() as race:
        race.run(schedule, A=hold("A"), B=hold("B"))

    assert sorted(order) == ["A", "B"]


def test_actors_that_wait_for_each_other_are_told_where_they_stand(opened: Callable[..., Race]) -> None:
    first, second = Lock(), Lock()

    def take(outer: Lock, inner: Lock) -> Callable[[], None]:
        def act() -> None:
            with outer:
                points.reached("take:one")
                with inner:
                    pass

        return act

    def story(seconds: float) -> str:
        with opened(timeout=seconds) as race, pytest.raises(GittrixError) as caught:
            race.run("AB", A=take(first, second), B=take(second, first))
        return str(caught.value)

    both = "A is at 'lock:busy'; B is at 'lock:busy'"
    assert both in long_enough(story, lambda found: both in found)


def test_an_actor_that_is_stuck_where_no_point_is_passed_is_named(opened: Callable[..., Race]) -> None:
    held = threading.Lock()

    def wait() -> None:
        with held:
            points.reached("a:b")

    def story(seconds: float) -> tuple[str, str]:
        with opened(timeout=seconds) as race, pytest.raises(GittrixError) as caught:
            race.run("AB", A=wait, B=wait)
        return f"B did not go on within {seconds:g} s: A is at 'a:b'", str(caught.value)

    wanted, found = long_enough(story, lambda pair: pair[0] in pair[1])
    assert wanted in found
    assert "B is in wait" in found


def test_an_actor_can_be_taken_to_a_point(opened: Callable[..., Race]) -> None:
    trace: list[str] = []
    with opened() as race, race.actors(A=passing("A", trace, 4), B=passing("B", trace)) as actors:
        assert actors.step("A", to="A:2") == "A:2"
        actors.finish("B")
        assert trace == ["A0", "A1", "A2", "B0", "B1"]
        assert actors.step("A") == "A:3"
        assert actors.step("A") is None

    assert set(actors.outcomes) == {"A", "B"}


def test_a_point_that_an_actor_never_comes_to_is_an_error_that_lists_its_own(opened: Callable[..., Race]) -> None:
    with (
        opened() as race,
        pytest.raises(GittrixError, match=r"A ended without having reached 'A:9'.*\n.*\n.*A:0, A:1"),
        race.actors(A=passing("A", [])) as actors,
    ):
        actors.step("A", to="A:9")


def test_threads_that_are_no_actors_are_left_alone(opened: Callable[..., Race]) -> None:
    def start_another() -> str:
        thread = threading.Thread(target=points.reached, args=("other:thread",))
        thread.start()
        thread.join(60)
        return "alive" if thread.is_alive() else "ended"

    with opened() as race:
        assert race.run("", A=start_another)["A"].value == "ended"


@pytest.mark.parametrize("options", [(), ("-C", "."), ("-c", "core.abbrev=7"), ("--no-pager", "--git-dir", ".")], ids=" ".join)
def test_a_git_command_of_another_program_is_a_step(options: tuple[str, ...], opened: Callable[..., Race], tmp_path: Path) -> None:
    trace: list[str] = []
    with opened() as race:
        race.before("rev-parse", lambda: trace.append("before"))
        race.after("rev-parse", lambda: trace.append("after"))
        done = git(race, *options, "rev-parse", "--local-env-vars", cwd=tmp_path)

    assert trace == ["before", "after"]
    assert "GIT_DIR" in done.stdout.split()


def test_a_shimmed_git_keeps_input_output_and_status(opened: Callable[..., Race], tmp_path: Path) -> None:
    with opened() as race:
        race.after("hash-object", lambda: None, times=None)
        hashed = git(race, "hash-object", "--stdin", cwd=tmp_path, stdin="it's $HOME\n")
        failed = git(race, "hash-object", "no such file", cwd=tmp_path)

    assert hashed.stdout == git_itself("hash-object", "--stdin", cwd=tmp_path, stdin="it's $HOME\n").stdout
    assert failed.returncode == 128
    assert "no such file" in failed.stderr


def test_after_means_that_git_has_done_its_work(opened: Callable[..., Race], tmp_path: Path) -> None:
    seen: list[bool] = []
    with opened() as race:
        race.before("init", lambda: seen.append((tmp_path / ".git").exists()))
        race.after("init", lambda: seen.append((tmp_path / ".git").exists()))
        git(race, "init", "--quiet", cwd=tmp_path)

    assert seen == [False, True]


def test_a_program_in_another_language_is_raced_too(opened: Callable[..., Race], tmp_path: Path) -> None:
    program = "import subprocess; subprocess.run(['git', 'version']); subprocess.run(['git', 'version'])"
    trace: list[int] = []
    with opened() as race:
        race.before("version", lambda: trace.append(1), times=2)
        done = subprocess.run([sys.executable, "-c", program], env=race.env, capture_output=True, text=True, timeout=60, check=True)

    assert trace == [1, 1]
    assert done.stdout.count("git version") == 2


def test_commands_at_the_same_time_are_served_one_after_the_other(opened: Callable[..., Race], tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def act() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    with opened() as race:
        race.before("version", act, times=4)
        running = [subprocess.Popen(["git", "version"], env=race.env, stdout=subprocess.PIPE) for _ in range(4)]
        codes = [child.communicate(timeout=60) and child.returncode for child in running]

    assert codes == [0] * 4
    assert most == [1] * 4


def test_what_is_raised_at_a_git_command_is_raised_when_the_race_ends(opened: Callable[..., Race], tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), opened() as race:
        race.before("version", fail)
        assert git(race, "version", cwd=tmp_path).returncode == 0


def test_a_step_that_is_neither_point_nor_command_is_refused(opened: Callable[..., Race]) -> None:
    with opened() as race, pytest.raises(InvalidInput, match="'head read' is neither a point"):
        race.before("head read", lambda: None)


def git(race: Race, *arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Git as another program finds it."""
    return subprocess.run(["git", *arguments], env=race.env, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def git_itself(*arguments: str, cwd: Path, stdin: str) -> subprocess.CompletedProcess[str]:
    """Git without a shim."""
    return subprocess.run(
        [git_binary(), *arguments], env=hermetic_env(), cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_helper_thread_of_an_actor_is_not_taken_for_one_that_has_ended(opened: Callable[..., Race]) -> None:
    passed = threading.Event()

    def with_a_helper() -> None:
        def help_out() -> None:
            points.reached("helper:one")
            passed.set()

        helper = threading.Thread(target=help_out)
        helper.start()
        helper.join(60)
        points.reached("B:one")

    with opened() as race, race.actors(A=lambda: None, B=with_a_helper) as actors:
        assert actors.step("A") is None
        assert actors.step("B") == "B:one"
        assert passed.is_set()


def test_an_actor_that_was_stuck_is_not_taken_for_the_one_that_frees_it(opened: Callable[..., Race]) -> None:
    def steps(seconds: float) -> list[str | None]:
        lock, waiting = threading.Lock(), threading.Event()

        def hold() -> None:
            with lock:
                points.reached("B:holds")
            waiting.wait(60)
            points.reached("B:let-go")

        def wait() -> None:
            with lock:
                points.reached("A:has-it")
                waiting.set()

        found: list[str | None] = []
        with opened(timeout=seconds) as race, race.actors(A=wait, B=hold) as actors:
            for actor in "BABAAB":
                try:
                    found.append(actors.step(actor))
                except Deadlock:
                    found.append("stuck")
        return found

    # The second time B waits for A, which stands at the point it came to meanwhile.
    wanted = ["B:holds", "stuck", "stuck", "A:has-it", None, "B:let-go"]
    assert long_enough(steps, lambda found: found == wanted) == wanted


def test_the_story_says_who_passed_what_and_what_was_done_there(opened: Callable[..., Race]) -> None:
    trace: list[str] = []

    def intrude() -> str:
        return "intruded"

    def refuse() -> None:
        raise SessionNotFound("No such session.", fix="Name another.")

    with opened() as race:
        assert race.story() == []
        passing("alone", trace, 1)()
        assert race.story() == []
        race.before("A:1", intrude)
        race.run("ABA", A=passing("A", trace, 3), B=refuse)
        race.before("C:0", print, times=None)

    place = f"(test_race.py:{intrude.__code__.co_firstlineno})"
    assert race.story() == [
        "test: alone:0",
        "A: A:0",
        f"A: A:1: intrude {place} returned 'intruded'",
        "A: A:2",
        "C:0 was never reached",
        "A returned 'A'",
        "B raised SESSION_NOT_FOUND: No such session.",
    ]
