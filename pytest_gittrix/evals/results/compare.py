"""Two runs compared: which outcomes flipped, which results are the same by another way, and the first event that differs.

Samples are joined by id and epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record
from pytest_gittrix.evals.results.store import RunStore

Difference = Literal["same", "outcome", "tree", "log", "missing"]
SAME, OUTCOMES_CHANGED, TREES_DIFFER, INPUTS_DIFFER = 0, 1, 2, 3
"""Exit statuses of ``gittrix eval compare``."""

_CODES: Final[Mapping[Difference, int]] = {"same": 0, "outcome": 1, "missing": 1, "tree": 2, "log": 2}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first event that differs between two event logs.

    Attributes:
        seq: the number of the event.
        a: the event of the first log; None if that log has ended.
        b: the event of the second log; None likewise.
    """

    seq: int
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {"seq": self.seq, "a": self.a, "b": self.b}

    def __str__(self) -> str:
        return f"event {self.seq}: {_shown(self.a)} -> {_shown(self.b)}"


@dataclass(frozen=True, slots=True)
class SamplePair:
    """One sample in both runs.

    Attributes:
        id: the id of the case.
        epoch: the number of the repetition.
        a: its record in the first run; None if there is none.
        b: its record in the second run; None likewise.
        difference: the kind of difference; the first that applies of ``missing``, ``outcome``, ``tree``, ``log``.
        divergence: the first event that differs, if the event logs do.
    """

    id: str
    epoch: int
    a: Record | None
    b: Record | None
    difference: Difference
    divergence: Divergence | None = None

    @property
    def flipped(self) -> bool:
        """Whether the sample passed in one run only, and neither run ended in ``infra_error``."""
        if self.a is None or self.b is None or RETRIED in (self.a.outcome, self.b.outcome):
            return False
        return (self.a.outcome == "pass") != (self.b.outcome == "pass")

    @property
    def flip(self) -> str:
        """The outcomes of both runs, such as ``pass -> fail``."""
        return f"{self.a.outcome if self.a else 'missing'} -> {self.b.outcome if self.b else 'missing'}"


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        a: the first run.
        b: the second run.
        inputs: the keys of the manifests' cores that differ.
        pairs: the samples of both runs, by id and epoch.
    """

    a: RunStore
    b: RunStore
    inputs: tuple[str, ...]
    pairs: tuple[SamplePair, ...]

    @property
    def code(self) -> int:
        """The exit status: 0 same, 1 outcomes changed, 2 same outcomes but trees or logs differ, 3 inputs differ."""
        if self.inputs:
            return INPUTS_DIFFER
        return min((code for pair in self.pairs if (code := _CODES[pair.difference])), default=SAME)

    @cached_property
    def better(self) -> tuple[SamplePair, ...]:
        """Samples that pass in the second run and did not in the first; those with an ``infra_error`` do not count."""
        return tuple(pair for pair in self._flipped_pairs if pair.b is not None and pair.b.outcome == "pass")

    @cached_property
    def worse(self) -> tuple[SamplePair, ...]:
        """Samples that passed in the first run and do not in the second."""
        return tuple(pair for pair in self._flipped_pairs if pair.a is not None and pair.a.outcome == "pass")

    @property
    def _flipped_pairs(self) -> list[SamplePair]:
        return [pair for pair in self.pairs if pair.flipped]

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        differing = [pair for pair in self.pairs if pair.difference != "same"]
        return {
            "a": str(self.a.path),
            "b": str(self.b.path),
            "code": self.code,
            "inputs": list(self.inputs),
            "samples": len(self.pairs),
            "better": len(self.better),
            "worse": len(self.worse),
            "differing": [
                {
                    "id": pair.id,
                    "epoch": pair.epoch,
                    "difference": pair.difference,
                    "a": pair.a.outcome if pair.a else None,
                    "b": pair.b.outcome if pair.b else None,
                    "first": pair.divergence.to_json() if pair.divergence else None,
                }
                for pair in differing
            ],
        }


def compare(a: RunStore, b: RunStore) -> Comparison:
    """Compare two runs.

    Raises:
        InvalidInput: a record or manifest is damaged.
        MetadataVersionUnsupported: a record or manifest is of another version.
    """
    ours, theirs = ({(record.id, record.epoch): record for record in store.records()} for store in (a, b))
    pairs = tuple(_pair(a, b, sample, ours.get(sample), theirs.get(sample)) for sample in sorted({*ours, *theirs}))
    return Comparison(a, b, tuple(a.manifest().differences(b.manifest())), pairs)


def first_divergence(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Divergence | None:
    """The first event that differs between two logs; None if they are equal."""
    for seq in range(max(len(a), len(b))):
        one = a[seq] if seq < len(a) else None
        other = b[seq] if seq < len(b) else None
        if one != other:
            return Divergence(seq, one, other)
    return None


def _pair(a: RunStore, b: RunStore, sample: tuple[str, int], one: Record | None, other: Record | None) -> SamplePair:
    if one is None or other is None:
        return SamplePair(*sample, one, other, "missing")
    divergence = None if one.events == other.events else first_divergence(a.lines("events", one.key), b.lines("events", other.key))
    return SamplePair(*sample, one, other, _difference(one, other), divergence)


def _difference(one: Record, other: Record) -> Difference:
    if one.outcome != other.outcome:
        return "outcome"
    if (one.final, one.tree, one.promoted) != (other.final, other.tree, other.promoted):
        return "tree"
    return "same" if one.events == other.events else "log"


def _shown(event: Mapping[str, Any] | None) -> str:
    if event is None:
        return "nothing"
    fields = ", ".join(f"{name} {str(value)[:60]}" for name, value in sorted(event["data"].items()))
    return f"{event['kind']} ({fields})" if fields else str(event["kind"])
