"""The machine finds what it is for: engines broken on purpose, each in one place, are caught, and shrunk to a few readable steps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.backends.protocol import Drift
from pytest_gittrix.engine import sweep
from pytest_gittrix.engine.eviction import archiver
from pytest_gittrix.engine.operations import recorder
from pytest_gittrix.engine.operations.review import Review
from pytest_gittrix.engine.promotion import conflicts, plan, promotion
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, Changes, Entry
from pytest_gittrix.record.state.fold import deadline_ns
from pytest_gittrix.testing.machines.machine_base import steps_of
from pytest_gittrix.testing.machines.session_machine import SandboxMachine, machine_for
from pytest_gittrix.testing.profiles import profile
from pytest_gittrix.testing.world import World
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace
from tests.quality.machine_rates import RATES, rates

Defect = Callable[[], AbstractContextManager[object]]

SOAK = pytest.mark.skipif(not os.environ.get("PYTEST_GITTRIX_SOAK"), reason="takes minutes: PYTEST_GITTRIX_SOAK=1")
MOST_STEPS = 4
MUTANTS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "mutation.md"


# Snapshots -----------------------------------------------------------------------------------------------------------------------


def snapshots(keep: Callable[[Snapshot, str, Entry | None], bool]) -> AbstractContextManager[object]:
    """Snapshots without some of the changes."""
    whole = Workspace.snapshot

    def snapshot(self: Workspace, **options: Any) -> Snapshot:
        taken = whole(self, **options)
        return replace(taken, changes={path: new for path, new in taken.changes.items() if keep(taken, path, new)})

    return patch.object(Workspace, "snapshot", snapshot)


def forgets_deletions() -> AbstractContextManager[object]:
    """Touched is what was written, and a deletion is none."""
    return snapshots(lambda _taken, _path, new: new is not None)


def overlooks_modes() -> AbstractContextManager[object]:
    """A file of the same bytes is the same file."""

    def differs(taken: Snapshot, path: str, new: Entry | None) -> bool:
        old = taken.seed.entries.get(path)
        return old is None or new is None or old.id != new.id

    return snapshots(differs)


# Drift ---------------------------------------------------------------------------------------------------------------------------


def drifts(keep: Callable[[Drift, Entry | None, Entry | None], bool]) -> AbstractContextManager[object]:
    """Drift without some of the differences."""
    exact = LocalDurable.drift

    def drift(self: LocalDurable, *arguments: Any) -> Drift:
        found = exact(self, *arguments)
        return {path: (old, new) for path, (old, new) in found.items() if keep(found, old, new)}

    return patch.object(LocalDurable, "drift", drift)


def follows_renames() -> AbstractContextManager[object]:
    """Drift as a diff with rename detection has it: a file that was renamed is not gone."""

    def stays(found: Drift, old: Entry | None, new: Entry | None) -> bool:
        arrived = {after.id for before, after in found.values() if before is None and after is not None}
        return new is not None or old is None or old.id not in arrived

    return drifts(stays)


def misses_links() -> AbstractContextManager[object]:
    """A file that became a symbolic link is as it was."""
    return drifts(lambda _found, _old, new: new is None or new.mode != SYMLINK)


def misses_mode_drift() -> AbstractContextManager[object]:
    """A file that became executable is as it was."""
    return drifts(lambda _found, old, new: old is None or new is None or old.id != new.id)


def misses_additions() -> AbstractContextManager[object]:
    """What is new in durable is in no one's way."""
    return drifts(lambda _found, old, _new: old is not None)


def compares_paths_only() -> AbstractContextManager[object]:
    """A file and a directory of one name are two things."""
    return patch.object(conflicts, "overlap", lambda selected, drift: {*selected} & {*drift})


def tolerates_the_same_edit() -> AbstractContextManager[object]:
    """Equal bytes are never a conflict, whatever was asked for."""
    exact = plan.reconcile

    def reconcile(*arguments: Any, on_overlap: str, **options: Any) -> Any:
        return exact(*arguments, on_overlap="merge" if on_overlap == "merge" else "allow-identical", **options)

    return patch.object(plan, "reconcile", reconcile)


# Promotion -----------------------------------------------------------------------------------------------------------------------


def loses_modes() -> AbstractContextManager[object]:
    """What is promoted is a plain file, whatever it was."""
    exact = LocalDurable.build

    def build(self: LocalDurable, parent: str, changes: Changes, blobs: Mapping[str, bytes], **options: Any) -> BuiltCommit:
        plain = {path: Entry(FILE, new.id) if new is not None and new.mode == EXECUTABLE else new for path, new in changes.items()}
        return exact(self, parent, plain, blobs, **options)

    return patch.object(LocalDurable, "build", build)


def promotes_everything() -> AbstractContextManager[object]:
    """Whatever was selected."""
    exact = promotion.select
    return patch.object(promotion, "select", lambda snapshot, _files, _hunks, beside: exact(snapshot, None, None, beside))


def passes_over_unknown_names() -> AbstractContextManager[object]:
    """A selection is of those that were touched, if any was."""
    exact = promotion.select

    def select(snapshot: Snapshot, files: Any, hunks: Any, beside: Any) -> Any:
        known = None if files is None else [path for path in files if path in snapshot.changes]
        return exact(snapshot, known or files, hunks, beside)

    return patch.object(promotion, "select", select)


def promotes_live_bytes() -> AbstractContextManager[object]:
    """A review only says what to look at."""
    exact = UserSession.promote

    def promote(self: UserSession, what: Any = None, **options: Any) -> Any:
        return exact(self, None if isinstance(what, Review) else what, **options)

    return patch.object(UserSession, "promote", promote)


# Ends ----------------------------------------------------------------------------------------------------------------------------


@contextmanager
def expires_at_the_deadline() -> Iterator[None]:
    """A TTL that has passed when it is reached."""

    def is_past(state: Any, clock: Any) -> bool:
        deadline = deadline_ns(state)
        return deadline is not None and clock.now_ns() >= deadline

    with patch.object(recorder, "is_past", is_past), patch.object(sweep, "is_past", is_past):
        yield


def ignores_file_changes() -> AbstractContextManager[object]:
    """Only what goes through the session is use of it."""
    return patch.object(recorder, "unseen_activity", lambda *_: None)


def forgets_archives() -> AbstractContextManager[object]:
    """What was not promoted is gone."""
    return patch.object(archiver, "unpromoted", lambda *_: {})


def lets_time_run_out_unseen() -> AbstractContextManager[object]:
    """Who holds a session may use it until a sweep comes by."""
    return patch.object(recorder, "require_in_time", lambda *_: None)


MISSED_DRIFT = "must answer (BASELINE_CONFLICT|PROMOTE_FAILED)|conflicts exactly where"
OTHER_SELECTION = f"changes exactly its selection|{MISSED_DRIFT}"


def moves_the_branch_without_looking() -> AbstractContextManager[object]:
    """The branch is moved from wherever it is by then, so that a commit which came in since the head was read is lost."""
    careful = References.compare_and_swap

    def push(self: References, ref: str, new: str, *, expected: str | None, **options: Any) -> None:
        careful(self, ref, new, expected=self.read(ref) if expected is not None else None, **options)

    return patch.object(References, "compare_and_swap", push)


NOT_TOUCHED = (
    "must answer BASELINE_CONFLICT|PROMOTE_FAILED|differs from the baseline|could be promoted|is missing from .*archive"
    "|changes exactly its selection"
)

# Each defect shows in several ways, and the first one that is met decides which.
SHRUNK: list[tuple[Defect, str]] = [(forgets_deletions, NOT_TOUCHED)]
FOUND: list[tuple[Defect, str]] = [
    (overlooks_modes, NOT_TOUCHED),
    (expires_at_the_deadline, "SESSION_EXPIRED|exactly the sessions past their deadline"),
    (promotes_live_bytes, "PROMOTE_FAILED|PATH_COLLISION|changes exactly its selection"),
    (loses_modes, "changes exactly its selection"),
    (promotes_everything, OTHER_SELECTION),
    (ignores_file_changes, "exactly the sessions past their deadline|SESSION_EXPIRED|counts from the last use"),
    (forgets_archives, "is missing from"),
]
RIVALS: list[tuple[Defect, str]] = [(moves_the_branch_without_looking, f"{MISSED_DRIFT}|is one commit|No commit is lost")]
# In a long walk by all rules, a name that is known and one that is not rarely come together; so only the rule that draws both is played.
NAMED: list[tuple[Defect, str]] = [(passes_over_unknown_names, OTHER_SELECTION)]
# In a long walk by all rules, two edits rarely meet in the one way that matters here; so only the rule that makes them meet is played.
DRIFT: list[tuple[Defect, str]] = [
    (follows_renames, MISSED_DRIFT),
    (tolerates_the_same_edit, MISSED_DRIFT),
    (misses_mode_drift, MISSED_DRIFT),
    (misses_links, MISSED_DRIFT),
    (misses_additions, MISSED_DRIFT),
    (compares_paths_only, MISSED_DRIFT),
]
RARE: list[tuple[Defect, str]] = [(lets_time_run_out_unseen, "must answer SESSION_EXPIRED")]


QUICK: list[Defect] = [
    *(forgets_deletions, overlooks_modes, expires_at_the_deadline, promotes_live_bytes, loses_modes, promotes_everything, forgets_archives),
    *(ignores_file_changes, moves_the_branch_without_looking, misses_additions),
]
"""The defects that ``quick`` must find within its budget; docs/reference/mutation.md lists them."""

SEEDS = 10
FOUND_WITH_AT_LEAST = 7

MET = {
    "promotions of a session that cannot be used any more": ("at most", 15),
    "promotions that conflict": ("at least", 15),
    "conflicts with the work of another session": ("at least", 2),
    "promotions with a rival inside": ("at least", 3),
    "steps that sweep within a second of a deadline": ("at least", 1),
    "of these, after a use of the session": ("at least", 5),
}
"""How much of what every profile must meet, in per cent; docs/reference/mutation.md lists them."""


def machine(*only: str) -> type[SandboxMachine]:
    """The machine of our engine, with these rules only where some are named."""
    whole = machine_for(World.open)
    rules = {
        name for one in whole.__mro__ for name, rule in vars(one).items() if isinstance(rule, FunctionType) and hasattr(rule, RULE_MARKER)
    }
    return type(whole.__name__, (whole,), dict.fromkeys(rules - {*only})) if only else whole


def caught(defect: Defect, complaint: str, limits: settings, *only: str) -> list[str]:
    """Run the machine on an engine with a defect; gives the steps that showed it."""
    quiet = settings(limits, derandomize=True, database=None, report_multiple_bugs=False, print_blob=False)

    with defect(), pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(machine(*only), settings=quiet)

    steps = [*steps_of(failed.value)]
    assert re.search(complaint, str(failed.value)), (str(failed.value), steps)
    return steps


def fails(defect: Defect, limits: settings, number: int) -> bool:
    """Whether the machine fails on an engine with a defect, with examples that follow from the number of a seed."""
    try:
        with defect():
            run_state_machine_as_test(seed(number)(machine()), settings=settings(limits, database=None, print_blob=False))
    except Exception:
        return True
    return False


@pytest.mark.parametrize(("defect", "complaint"), SHRUNK)
def test_a_broken_engine_is_caught_and_shrunk_to_a_few_steps(defect: Defect, complaint: str) -> None:
    limits = settings(profile("default"), max_examples=300, stateful_step_count=6, phases=[Phase.generate, Phase.shrink])

    assert len(caught(defect, complaint, limits)) <= MOST_STEPS


@pytest.mark.parametrize(("defect", "complaint"), FOUND)
def test_a_broken_engine_is_caught(defect: Defect, complaint: str) -> None:
    limits = settings(profile("default"), max_examples=1_000, stateful_step_count=12, phases=[Phase.generate])

    assert caught(defect, complaint, limits)


@pytest.mark.parametrize(("defect", "complaint"), DRIFT)
def test_an_engine_that_overlooks_drift_is_caught_where_edits_meet(defect: Defect, complaint: str) -> None:
    limits = settings(profile("default"), max_examples=1_000, stateful_step_count=6, phases=[Phase.generate])

    assert caught(defect, complaint, limits, "start", "promote_over_drift")


@pytest.mark.parametrize(("defect", "complaint"), NAMED)
def test_an_engine_that_heeds_half_a_selection_is_caught_where_it_is_made_by_name(defect: Defect, complaint: str) -> None:
    limits = settings(profile("default"), max_examples=1_000, stateful_step_count=6, phases=[Phase.generate])

    assert caught(defect, complaint, limits, "start", "promote_by_name")


@pytest.mark.parametrize(("defect", "complaint"), RIVALS)
def test_an_engine_that_loses_a_race_is_caught_where_a_rival_slips_in(defect: Defect, complaint: str) -> None:
    limits = settings(profile("quick"), phases=[Phase.generate])

    assert caught(defect, complaint, limits, "start", "promote_beside_a_rival")


@pytest.mark.parametrize("defect", QUICK)
def test_the_page_of_mutants_lists_what_quick_finds(defect: Defect) -> None:
    assert f"| `{defect.__name__}` | {' '.join((defect.__doc__ or '').split())} |" in MUTANTS.read_text(encoding="utf-8")


def test_the_page_lists_what_a_profile_must_meet() -> None:
    page = MUTANTS.read_text(encoding="utf-8")

    assert [*MET] == [*RATES]
    for name, (bound, percent) in MET.items():
        assert re.search(rf"^\| {name} \| {bound} {percent} % \| [0-9.]+ % \|$", page, re.MULTILINE), name


@SOAK
@pytest.mark.parametrize("name", ["quick", "default"])
def test_a_profile_meets_the_situations_that_defects_show_in(name: str) -> None:
    met = rates(machine(), profile(name))

    missed = {one: met[one] for one, (bound, percent) in MET.items() if (met[one] > percent if bound == "at most" else met[one] < percent)}
    assert not missed


@SOAK
@pytest.mark.parametrize("defect", QUICK)
def test_quick_finds_it_within_its_budget(defect: Defect) -> None:
    assert caught(defect, "", settings(profile("quick"), phases=[Phase.generate]))


@SOAK
@pytest.mark.parametrize("defect", QUICK)
def test_quick_finds_it_with_most_seeds(defect: Defect) -> None:
    found = [number for number in range(SEEDS) if fails(defect, settings(profile("quick"), phases=[Phase.generate]), number)]

    assert len(found) >= FOUND_WITH_AT_LEAST


@SOAK
@pytest.mark.parametrize(("defect", "complaint"), [*SHRUNK, *FOUND, *NAMED, *DRIFT, *RARE])
def test_a_broken_engine_is_caught_by_the_default_profile_and_shrunk(defect: Defect, complaint: str) -> None:
    assert len(caught(defect, complaint, settings(profile("default"), max_examples=400))) <= MOST_STEPS
