"""The machine finds what it is for: engines broken on purpose, each in one place, are caught and shrunk to a few readable steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pytest_gittrix.adapters.local import LocalDurable
from pytest_gittrix.git.commit import Built
from pytest_gittrix.git.snapshot import Snapshot
from pytest_gittrix.git.tree import EXECUTABLE, FILE, Changes, Entry
from pytest_gittrix.git.workspace import Workspace
from pytest_gittrix.harness.machine import machine_for, steps_of
from pytest_gittrix.harness.world import World
from pytest_gittrix.record.state import deadline_ns
from pytest_gittrix.session import eviction, recorder

MOST_STEPS = 3


def forgets_deletions() -> AbstractContextManager[object]:
    """Touched is what was written, and a deletion is none."""
    whole = Workspace.snapshot

    def snapshot(self: Workspace, **options: Any) -> Snapshot:
        taken = whole(self, **options)
        return replace(taken, changes={path: entry for path, entry in taken.changes.items() if entry is not None})

    return patch.object(Workspace, "snapshot", snapshot)


@contextmanager
def expires_at_the_deadline() -> Iterator[None]:
    """A TTL that has passed when it is reached."""

    def is_past(state: Any, clock: Any) -> bool:
        deadline = deadline_ns(state)
        return deadline is not None and clock.now_ns() >= deadline

    with patch.object(recorder, "is_past", is_past), patch.object(eviction, "is_past", is_past):
        yield


def loses_modes() -> AbstractContextManager[object]:
    """What is promoted is a plain file, whatever it was."""
    exact = LocalDurable.build

    def build(self: LocalDurable, parent: str, changes: Changes, blobs: Mapping[str, bytes], **options: Any) -> Built:
        plain = {path: Entry(FILE, new.id) if new is not None and new.mode == EXECUTABLE else new for path, new in changes.items()}
        return exact(self, parent, plain, blobs, **options)

    return patch.object(LocalDurable, "build", build)


@pytest.mark.parametrize(
    ("defect", "complaint"),
    [
        (forgets_deletions, "differs from the baseline"),
        (expires_at_the_deadline, "SESSION_EXPIRED|exactly the sessions past their deadline"),
        (loses_modes, "changes exactly its selection"),
    ],
)
def test_a_broken_engine_is_caught_in_a_few_steps(defect: Callable[[], AbstractContextManager[object]], complaint: str) -> None:
    machine = machine_for(World.open)
    profile = settings(
        max_examples=300,
        stateful_step_count=5,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )

    with defect(), pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=profile)

    steps = steps_of(caught.value)
    assert 1 <= len(steps) <= MOST_STEPS, "\n".join(steps)
    assert re.search(complaint, str(caught.value)), (str(caught.value), steps)
