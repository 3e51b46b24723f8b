"""Shards of a run for several machines, and their merge.

The shard of a sample depends on its id and epoch alone, so machines need not know of each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.reuse import take_over
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.tapes import note_tapes, without_tapes


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts.

    Attributes:
        number: the number of the shard, from 1.
        of: the number of shards.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a shard such as ``3/8``. Raises InvalidInput if the text is malformed or the number too high."""
        match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise InvalidInput(f"{text!r} is no shard.", fix="Write which of how many, such as 3/8; the first is 1.")
        return cls(int(match[1]), int(match[2]))

    def has(self, id_: str, epoch: int) -> bool:
        """Whether a sample is in this shard; each sample is in exactly one."""
        drawn = hashlib.sha256(f"{id_}\n{epoch}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def merge(runs: Sequence[Path], out: Path) -> RunStore:
    """Merge runs of one suite; each sample is in the merged run once.

    Args:
        runs: the directories of runs with equal cores.
        out: the directory of the merged run, which must not hold a run. It becomes a run when all samples are copied.

    Raises:
        InvalidInput: no run is given, a run has other inputs, or two runs have different results for one sample.
    """
    if not runs:
        raise InvalidInput("There is nothing to merge.", fix="Give the directories of runs.")
    stores = [RunStore.open(run) for run in runs]
    manifests = [without_tapes(store.manifest()) for store in stores]
    first = manifests[0]
    for store, manifest in zip(stores, manifests, strict=True):
        differing = first.differences(manifest)
        if differing:
            raise InvalidInput(
                f"{store.path} is made from something else than {stores[0].path}: {', '.join(differing)} differ.",
                why="Results of different inputs are not one run.",
                fix="Run every shard with the same suite, agent, seed and options.",
            )
    chosen = _chosen(stores)
    merged = RunStore(Path(out).absolute())
    with merged.locked():
        merged = RunStore.prepare(out)
        for store in stores:
            take_over(merged, store, [record for record, holder in chosen.values() if holder is store])
        # Last, so that a merge that was killed leaves no run with samples missing.
        merged.write_manifest(Manifest(first.core, {**first.host, "merged": [str(store.path) for store in stores], "shard": None}))
        note_tapes(merged)
    return merged


def _chosen(stores: Sequence[RunStore]) -> dict[str, tuple[Record, RunStore]]:
    chosen: dict[str, tuple[Record, RunStore]] = {}
    for store in stores:
        for record in store.records():
            known = chosen.get(record.key)
            if known is None or known[0].outcome == RETRIED:
                chosen[record.key] = (record, store)
            elif record.outcome != RETRIED and record != known[0]:
                raise InvalidInput(
                    f"{known[1].path} and {store.path} have different results for {record.id!r}, epoch {record.epoch}.",
                    why="One sample has one result; the agent, or something that it uses, is not deterministic.",
                    fix="Merge shards that do not overlap, or see `gittrix eval check-determinism`.",
                )
    return chosen
