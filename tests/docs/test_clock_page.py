"""What the page on the clock says of frozen processes is shown: each of its sentences by a test elsewhere that has to exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = (TESTS.parent / "docs" / "explanation" / "clock.md").read_text(encoding="utf-8")
SECTIONS: Final = ("The test process", "Sleeps that move the clock", "Python programs of a test", "What is not reached")

CAPTURED, FREEZE, NEIGHBOURS = (f"unit/clock/test_{name}.py" for name in ("captured_clocks", "freeze", "freeze_neighbours"))
JUMPS, CHILDREN, PLUGIN = "unit/clock/test_autojump.py", "unit/clock/test_child_clock.py", "plugin/test_process_freeze.py"
ENGINE = "unit/engine/test_engine_in_a_frozen_process.py"

REFUSED = f"{NEIGHBOURS}::test_another_library_is_refused_inside_however_it_is_started_and_the_first_goes_on"
SHOWN: Final = {
    "Code that reads `time.time()`": (f"{FREEZE}::test_every_reading_follows_the_clock_whatever_the_module_is_called",),
    "`process_freeze` does it with": (REFUSED,),
    "Every reference is reached": (f"{CAPTURED}::test_every_captured_reference_follows_the_clock_and_is_real_again_afterwards",),
    "So is every module and every thread.": (f"{FREEZE}::test_every_reading_follows_the_clock_whatever_the_module_is_called",),
    "Classes stay what they are.": (f"{CAPTURED}::test_the_classes_stay_those_that_they_are",),
    "`datetime` is the real one": (f"{CAPTURED}::test_the_classes_stay_those_that_they_are",),
    "Monotonic time stays real.": (f"{FREEZE}::test_wall_mode_leaves_the_monotonic_functions_alone",),
    "Where it stands still, no timeout": (f"{FREEZE}::test_waits_with_a_timeout_still_end",),
    "Hypothesis' deadlines": (f"{FREEZE}::test_pytest_and_hypothesis_measure_real_durations",),
    "Local time is UTC": (f"{CAPTURED}::test_local_time_is_utc_unless_a_zone_was_chosen",),
    "If the variable `TZ`": (f"{CAPTURED}::test_local_time_is_utc_unless_a_zone_was_chosen",),
    "pytest stamps its reports": (f"{FREEZE}::test_pytest_and_hypothesis_measure_real_durations",),
    "GitPython's `BlockingLockFile`": (f"{CAPTURED}::test_gitpythons_wait_for_a_lock_ends",),
    "`freezegun.configure": (f"{NEIGHBOURS}::test_modules_the_user_exempted_keep_real_time",),
    "Records of `logging`": (f"{CAPTURED}::test_ids_and_log_records_have_the_clocks_time",),
    'In mode `"all"`': (
        f"{FREEZE}::test_all_mode_moves_monotonic_time_with_the_clock_but_not_with_a_skew",
        f"{FREEZE}::test_waits_with_a_timeout_still_end",
    ),
    "There freezegun replaces": (f"{FREEZE}::test_all_mode_moves_monotonic_time_with_the_clock_but_not_with_a_skew",),
    "At the start of each freeze": (f"{NEIGHBOURS}::test_a_process_that_something_else_holds_in_part_is_refused_and_given_back",),
    "If one reading is wrong": (f"{NEIGHBOURS}::test_a_process_that_something_else_holds_in_part_is_refused_and_given_back",),
    "The same error says": (f"{NEIGHBOURS}::test_a_process_that_freezegun_already_holds_is_refused_and_left_as_it_was", REFUSED),
    "An engine that code under test makes": (f"{ENGINE}::test_it_runs_on_the_clock_of_the_test_and_leaves_it_open",),
    "Two exceptions keep": (
        f"{ENGINE}::test_on_the_persons_own_store_it_stays_on_the_machines_time_and_says_so",
        f"{ENGINE}::test_under_another_library_it_stays_on_the_machines_time_and_says_so",
    ),
    "An engine that exists already": (f"{ENGINE}::test_one_that_was_made_before_keeps_its_clock",),
    "What the engine judges by the times of files": (
        f"{NEIGHBOURS}::test_what_the_engine_judges_by_times_of_files_is_judged_by_the_machines_time",
    ),
    "Code that sleeps between two looks": (f"{JUMPS}::test_without_autojump_sleeps_are_real_and_the_clock_stands",),
    "With `autojump` its sleeps": (f"{PLUGIN}::test_sleeps_move_the_clock_where_the_test_or_the_run_asks_for_it",),
    "`time.sleep` moves the clock": (f"{JUMPS}::test_a_sleep_moves_the_clock_by_what_was_slept_however_it_was_imported",),
    "Where asyncio or trio has nothing": (
        f"{JUMPS}::test_tasks_of_asyncio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way",
        f"{JUMPS}::test_tasks_of_trio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way",
    ),
    "The sleeps of anyio": (f"{JUMPS}::test_sleeps_and_threads_of_anyio_are_those_of_its_backend",),
    "Timeouts are such timers": (f"{JUMPS}::test_a_timeout_of_what_only_sleeps_is_over_at_its_instant",),
    "The clock's own timers run": (f"{JUMPS}::test_a_task_that_a_timer_wakes_goes_on_at_the_timers_instant",),
    "While another thread or a program": (
        f"{JUMPS}::test_while_real_work_goes_on_a_sleep_is_real_so_that_nobody_gives_up_too_early",
        f"{JUMPS}::test_a_timeout_of_real_work_is_not_over_early_and_the_clock_does_not_move",
        f"{JUMPS}::test_a_deadline_of_trio_is_not_over_early_for_real_work",
    ),
    "The clock moves by whole sleeps": (f"{JUMPS}::test_a_timeout_of_real_work_is_not_over_early_and_the_clock_does_not_move",),
    "`autojump=0.05` jumps": (f"{JUMPS}::test_with_a_number_it_waits_for_real_work_only_so_long",),
    "Only the thread that froze": (f"{JUMPS}::test_a_sleep_in_another_thread_is_real_and_moves_nothing",),
    "Other threads and their loops": (f"{JUMPS}::test_a_loop_of_another_thread_keeps_real_time",),
    "Waits for locks, queues": (f"{JUMPS}::test_locks_and_programs_are_waited_for_as_before",),
    "A `time.sleep` that code keeps": (f"{JUMPS}::test_what_is_not_reached_sleeps_for_real_and_moves_nothing",),
    "A Python program that a test starts": (f"{CHILDREN}::test_programs_of_a_world_see_what_the_process_sees",),
    "While the process shows a test's clock": (
        f"{CHILDREN}::test_programs_of_a_world_see_what_the_process_sees",
        f"{PLUGIN}::test_python_programs_see_what_the_process_sees_unless_they_are_left_out",
    ),
    "The program loads a `sitecustomize`": (f"{CHILDREN}::test_a_program_that_runs_follows_each_move_to_the_microsecond",),
    "It needs nothing installed": (f"{CHILDREN}::test_a_python_of_any_version_follows_or_is_left_alone",),
    "So do its own children": (f"{CHILDREN}::test_its_own_children_follow_too_unless_they_are_isolated",),
    "`datetime` stays the class": (f"{CHILDREN}::test_functions_and_classes_behave_as_before",),
    "A freezegun or time-machine of the program's own": (
        f"{CHILDREN}::test_time_libraries_of_the_program_work_and_time_stands_where_it_did_afterwards",
    ),
    "A `sitecustomize` of yours": (f"{CHILDREN}::test_a_sitecustomize_of_the_users_own_is_loaded_and_sees_the_clock",),
    "Without a clock file": (
        f"{CHILDREN}::test_without_a_usable_file_a_program_runs_on_real_time",
        f"{CHILDREN}::test_a_file_that_is_lost_leaves_the_last_instant",
    ),
    "A program in a jail, or guarded": (f"{CHILDREN}::test_a_confined_program_keeps_the_instant_at_which_it_was_started",),
    "A program that is started with `-I`": (
        f"{CHILDREN}::test_its_own_children_follow_too_unless_they_are_isolated",
        f"{PLUGIN}::test_python_programs_see_what_the_process_sees_unless_they_are_left_out",
    ),
    "So does `uuid.uuid1()`.": (f"{CHILDREN}::test_an_id_made_from_the_time_has_the_machines",),
    "`--gittrix-freeze-children=no`": (
        f"{PLUGIN}::test_python_programs_see_what_the_process_sees_unless_they_are_left_out",
        f"{CHILDREN}::test_programs_of_a_world_see_what_the_process_sees",
    ),
    "No freeze inside Python reaches": (f"{CAPTURED}::test_what_is_not_reached_keeps_real_time",),
    "A forked child keeps": (f"{CAPTURED}::test_a_forked_child_keeps_the_instant_of_the_fork_and_one_of_its_own_has_real_time",),
}
"""Sentences by their beginnings, and the tests that show them."""


def sentences() -> list[str]:
    """The sentences of the sections, code left out."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title not in SECTIONS:
            continue
        for block in re.split(r"\n(?=\* |\n)", re.sub(r"```.*?```", "", body, flags=re.DOTALL)):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(block.split()).removeprefix("* ")).replace("**", "")
            found += [sentence for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`])", text) if sentence]
    return found


def test_every_sentence_is_shown() -> None:
    found = {sentence: [words for words in SHOWN if sentence.startswith(words)] for sentence in sentences()}

    assert [sentence for sentence, words in found.items() if len(words) != 1] == []
    assert [words for words in SHOWN if not any(sentence.startswith(words) for sentence in found)] == []


@pytest.mark.parametrize("test", sorted({test for tests in SHOWN.values() for test in tests}))
def test_what_shows_it_exists(test: str) -> None:
    file, _, name = test.partition("::")

    assert name in _tests_of(file)


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
