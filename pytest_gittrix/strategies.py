"""Hypothesis strategies for testing session systems; their modules are in ``testing.machines``."""

from __future__ import annotations

from pytest_gittrix.testing.machines.drift_strategies import durable_edits, overlapping_edits
from pytest_gittrix.testing.machines.strategies import (
    Interleaving,
    contents,
    edits,
    eviction_policies,
    histories,
    hostile_gitconfigs,
    hostile_paths,
    instants_around,
    interleavings,
    paths,
    trees,
)
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Tree

__all__ = [
    "DURABLE_KINDS",
    "DurableEdit",
    "DurableKind",
    "Edits",
    "Interleaving",
    "Tree",
    "contents",
    "durable_edits",
    "edits",
    "eviction_policies",
    "histories",
    "hostile_gitconfigs",
    "hostile_paths",
    "instants_around",
    "interleavings",
    "overlapping_edits",
    "paths",
    "trees",
]
