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

FILES: Final = (
    "unit/clock/test_freeze.py",
    "unit/clock/test_freeze_neighbours.py",
    "unit/clock/test_captured_clocks.py",
    "unit/engine/test_engine_in_a_frozen_process.py",
    "unit/clock/test_autojump.py",
    "plugin/test_process_freeze.py",
    "unit/clock/test_child_clock.py",
)
SHOWN: Final = {
    "Code that reads `time.time()`": "every_reading_follows_the_clock_whatever_the_module_is_called",
    "`process_freeze` does it with": "another_library_is_refused_inside_however_it_is_started_and_the_first_goes_on",
    "Every reference is reached": "every_captured_reference_follows_the_clock_and_is_real_again_afterwards",
    "So is every module and every thread.": "every_reading_follows_the_clock_whatever_the_module_is_called",
    "Classes stay what they are.": "the_classes_stay_those_that_they_are",
    "`datetime` is the real one": "the_classes_stay_those_that_they_are",
    "Monotonic time stays real.": "wall_mode_leaves_the_monotonic_functions_alone",
    "Where it stands still, no timeout": "waits_with_a_timeout_still_end",
    "Hypothesis' deadlines": "pytest_and_hypothesis_measure_real_durations",
    "Local time is UTC": "local_time_is_utc_unless_a_zone_was_chosen",
    "If the variable `TZ`": "local_time_is_utc_unless_a_zone_was_chosen",
    "pytest stamps its reports": "pytest_and_hypothesis_measure_real_durations",
    "GitPython's `BlockingLockFile`": "gitpythons_wait_for_a_lock_ends",
    "`freezegun.configure": "modules_the_user_exempted_keep_real_time",
    "Records of `logging`": "ids_and_log_records_have_the_clocks_time",
    'In mode `"all"`': "all_mode_moves_monotonic_time_with_the_clock_but_not_with_a_skew waits_with_a_timeout_still_end",
    "There freezegun replaces": "all_mode_moves_monotonic_time_with_the_clock_but_not_with_a_skew",
    "At the start of each freeze": "a_process_that_something_else_holds_in_part_is_refused_and_given_back",
    "If one reading is wrong": "a_process_that_something_else_holds_in_part_is_refused_and_given_back",
    "The same error says": (
        "a_process_that_freezegun_already_holds_is_refused_and_left_as_it_was "
        "another_library_is_refused_inside_however_it_is_started_and_the_first_goes_on"
    ),
    "An engine that code under test makes": "it_runs_on_the_clock_of_the_test_and_leaves_it_open",
    "Two exceptions keep": (
        "on_the_persons_own_store_it_stays_on_the_machines_time_and_says_so under_another_library_it_stays_on_the_machines_time_and_says_so"
    ),
    "An engine that exists already": "one_that_was_made_before_keeps_its_clock",
    "What the engine judges by the times of files": "what_the_engine_judges_by_times_of_files_is_judged_by_the_machines_time",
    "Code that sleeps between two looks": "without_autojump_sleeps_are_real_and_the_clock_stands",
    "With `autojump` its sleeps": "sleeps_move_the_clock_where_the_test_or_the_run_asks_for_it",
    "`time.sleep` moves the clock": "a_sleep_moves_the_clock_by_what_was_slept_however_it_was_imported",
    "Where asyncio or trio has nothing": (
        "tasks_of_asyncio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way "
        "tasks_of_trio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way"
    ),
    "The sleeps of anyio": "sleeps_and_threads_of_anyio_are_those_of_its_backend",
    "Timeouts are such timers": "a_timeout_of_what_only_sleeps_is_over_at_its_instant",
    "The clock's own timers run": "a_task_that_a_timer_wakes_goes_on_at_the_timers_instant",
    "While another thread or a program": (
        "while_real_work_goes_on_a_sleep_is_real_so_that_nobody_gives_up_too_early "
        "a_timeout_of_real_work_is_not_over_early_and_the_clock_does_not_move "
        "a_deadline_of_trio_is_not_over_early_for_real_work"
    ),
    "The clock moves by whole sleeps": "a_timeout_of_real_work_is_not_over_early_and_the_clock_does_not_move",
    "`autojump=0.05` jumps": "with_a_number_it_waits_for_real_work_only_so_long",
    "Only the thread that froze": "a_sleep_in_another_thread_is_real_and_moves_nothing",
    "Other threads and their loops": "a_loop_of_another_thread_keeps_real_time",
    "Waits for locks, queues": "locks_and_programs_are_waited_for_as_before",
    "A `time.sleep` that code keeps": "what_is_not_reached_sleeps_for_real_and_moves_nothing",
    "A Python program that a test starts": "programs_of_a_world_see_what_the_process_sees",
    "While the process shows a test's clock": (
        "programs_of_a_world_see_what_the_process_sees python_programs_see_what_the_process_sees_unless_they_are_left_out"
    ),
    "The program loads a `sitecustomize`": "a_program_that_runs_follows_each_move_to_the_microsecond",
    "It needs nothing installed": "a_python_of_any_version_follows_or_is_left_alone",
    "So do its own children": "its_own_children_follow_too_unless_they_are_isolated",
    "`datetime` stays the class": "functions_and_classes_behave_as_before",
    "A freezegun or time-machine of the program's own": "time_libraries_of_the_program_work_and_time_stands_where_it_did_afterwards",
    "A `sitecustomize` of yours": "a_sitecustomize_of_the_users_own_is_loaded_and_sees_the_clock",
    "Without a clock file": "without_a_usable_file_a_program_runs_on_real_time a_file_that_is_lost_leaves_the_last_instant",
    "A program in a jail, or guarded": "a_confined_program_keeps_the_instant_at_which_it_was_started",
    "A program that is started with `-I`": (
        "its_own_children_follow_too_unless_they_are_isolated python_programs_see_what_the_process_sees_unless_they_are_left_out"
    ),
    "So does `uuid.uuid1()`.": "an_id_made_from_the_time_has_the_machines",
    "`--gittrix-freeze-children=no`": (
        "python_programs_see_what_the_process_sees_unless_they_are_left_out programs_of_a_world_see_what_the_process_sees"
    ),
    "No freeze inside Python reaches": "what_is_not_reached_keeps_real_time",
    "A forked child keeps": "a_forked_child_keeps_the_instant_of_the_fork_and_one_of_its_own_has_real_time",
}
"""Sentences by their beginnings, and the tests in ``FILES`` that show them, without ``test_``."""


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


@pytest.mark.parametrize("test", sorted({test for tests in SHOWN.values() for test in tests.split()}))
def test_what_shows_it_exists(test: str) -> None:
    assert f"test_{test}" in _tests()


@cache
def _tests() -> set[str]:
    trees = [ast.parse((TESTS / file).read_text(encoding="utf-8")) for file in FILES]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    keys = [key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if isinstance(key, ast.Constant)]
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | {f"test_{key}".replace(" ", "_") for key in keys}
