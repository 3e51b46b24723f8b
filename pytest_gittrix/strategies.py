"""Hypothesis strategies for testing session systems, at the address that tests import them from.

They are made in ``harness``; nothing else is here.
"""

from __future__ import annotations

from pytest_gittrix.harness.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Tree
from pytest_gittrix.harness.strategies import (
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
from pytest_gittrix.harness.strategies_durable import durable_edits

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
    "paths",
    "trees",
]
