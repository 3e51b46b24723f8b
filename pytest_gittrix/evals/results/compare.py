"""Two runs compared: which outcomes flipped, which results are the same by another way, and the first event that differs.

Samples are joined by id and epoch. The pass rates are compared by case, see ``results.paired``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal

from pytest_gittrix.evals.agents.reads import NETWORK, Reads, differing, together, unsure
from pytest_gittrix.evals.inputs.agent_code import UNKNOWN
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, spent_of
from pytest_gittrix.evals.results.grades import held_to, score, verdicts_of
from pytest_gittrix.evals.results.paired import PairedDifference, paired_difference
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import Rates, passes_by_case, rates
from pytest_gittrix.evals.spending.spent import Spent

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
        b: the event of the second log; None if there is none.
    """

    seq: int
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {"seq": self.seq, "a": self.a, "b": self.b}

    @property
    def change(self) -> str:
        """From the event of the first log to that of the second, in words."""
        return f"{_shown(self.a)} -> {_shown(self.b)}"

    def __str__(self) -> str:
        return f"event {self.seq}: {self.change}"


@dataclass(frozen=True, slots=True)
class ChangedTest:
    """A test that ended otherwise in the second run: ``passed``, ``failed``, ``unjudgeable`` or ``unknown``.

    Attributes:
        name: the id of the test.
        a: how it ended in the first run.
        b: how it ended in the second run.
    """

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class SamplePair:
    """One sample in both runs.

    Attributes:
        id: the id of the case.
        epoch: the number of the repetition.
        a: its record in the first run; None if there is none.
        b: its record in the second run; None if there is none.
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
    def test_changes(self) -> list[ChangedTest]:
        """The tests that ended otherwise, by name."""
        ours, theirs = ({test.name: test.word for test in verdicts_of(one)} if one else {} for one in (self.a, self.b))
        changed = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
        return [ChangedTest(name, ours.get(name, "unknown"), theirs.get(name, "unknown")) for name in changed]

    @property
    def flip(self) -> str:
        """The outcomes of both runs, such as ``pass -> fail``."""
        return f"{self.a.outcome if self.a else 'missing'} -> {self.b.outcome if self.b else 'missing'}"


@dataclass(frozen=True, slots=True)
class CasePair:
    """One case in both runs.

    Attributes:
        id: the id of the case.
        a: the share of its samples that passed in the first run; None if none counts there.
        b: the share in the second run; None if there is none.
        pairs: its samples, by epoch.
    """

    id: str
    a: Fraction | None
    b: Fraction | None
    pairs: tuple[SamplePair, ...]

    @property
    def change(self) -> Fraction | None:
        """The share in the second run minus that in the first; None if it is not known."""
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        a: the first run.
        b: the second run.
        inputs: what differs: keys of the manifests' cores, and behind ``read.`` what the agents have read.
        pairs: the samples of both runs, by id and epoch.
        counts_infra_errors: whether ``infra_error`` counts as not passed; ``compare`` has it so if it does in both runs.
        unsure: why it cannot be known whether all other inputs are the same, one sentence each.
    """

    a: RunStore
    b: RunStore
    inputs: tuple[str, ...]
    pairs: tuple[SamplePair, ...]
    counts_infra_errors: bool = False
    unsure: tuple[str, ...] = ()

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

    @cached_property
    def cases(self) -> tuple[CasePair, ...]:
        """The cases of both runs; those that became worse most come first, those that one run lacks come last."""
        of_case: dict[str, list[SamplePair]] = {}
        for pair in self.pairs:
            of_case.setdefault(pair.id, []).append(pair)
        ours, theirs = (passes_by_case(records, count_infra_errors=self.counts_infra_errors) for records in self._records)
        found = [CasePair(id_, _passed(ours.get(id_)), _passed(theirs.get(id_)), tuple(pairs)) for id_, pairs in of_case.items()]
        return tuple(sorted(found, key=lambda case: (case.change is None, case.change or 0, case.id)))

    @cached_property
    def difference(self) -> PairedDifference:
        """How the pass rates differ on the cases that both runs have."""
        return paired_difference([(case.a, case.b) for case in self.cases if case.a is not None and case.b is not None])

    @property
    def verdict(self) -> str:
        """What came of the comparison, in a sentence."""
        return "The runs are the same: outcomes, trees and logs." if self.code == SAME else self.difference.verdict

    @property
    def sentences(self) -> tuple[str, ...]:
        """What came of the comparison in words and numbers, the same for terminals and pages."""
        return (self.verdict,) if self.code == SAME else self.difference.sentences

    @cached_property
    def rates(self) -> tuple[Rates, Rates]:
        """The rates of the first and of the second run."""
        ours, theirs = (rates(records, count_infra_errors=self.counts_infra_errors) for records in self._records)
        return ours, theirs

    @cached_property
    def spent(self) -> tuple[Spent | None, Spent | None]:
        """What the agents of the first and of the second run used of their models; None where the run does not know."""
        ours, theirs = self._records
        return spent_of(ours), spent_of(theirs)

    @property
    def _records(self) -> tuple[list[Record], list[Record]]:
        return [pair.a for pair in self.pairs if pair.a], [pair.b for pair in self.pairs if pair.b]

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
            "inputs_unknown": list(self.unsure),
            "samples": len(self.pairs),
            "better": len(self.better),
            "worse": len(self.worse),
            "rates": {"a": self.rates[0].to_json(), "b": self.rates[1].to_json()},
            "model": {side: None if spent is None else spent.to_json() for side, spent in zip("ab", self.spent, strict=True)},
            "statistics": self.difference.to_json(),
            "cases": [
                {"id": case.id, "a": _number(case.a), "b": _number(case.b), "change": _number(case.change), "samples": len(case.pairs)}
                for case in self.cases
            ],
            "differing": [
                {
                    "id": pair.id,
                    "epoch": pair.epoch,
                    "difference": pair.difference,
                    "a": pair.a.outcome if pair.a else None,
                    "b": pair.b.outcome if pair.b else None,
                    "first": pair.divergence.to_json() if pair.divergence else None,
                    "scores": {side: float(score(one)) if one else None for side, one in (("a", pair.a), ("b", pair.b))},
                    "tests": [asdict(change) for change in pair.test_changes],
                }
                for pair in differing
            ],
        }


def compare(a: RunStore, b: RunStore, at_least: str | None = None) -> Comparison:
    """Compare two runs.

    Args:
        a, b: the runs.
        at_least: the judge that a sample needs to count as passed, see ``grades.held_to``; any by default.

    Raises:
        InvalidInput: a record or manifest is damaged.
        MetadataVersionUnsupported: a record or manifest is of another version.
    """
    ours, theirs = ({(one.id, one.epoch): held_to(one, at_least) for one in store.records()} for store in (a, b))
    pairs = tuple(_pair(a, b, sample, ours.get(sample), theirs.get(sample)) for sample in sorted({*ours, *theirs}))
    made = a.manifest(), b.manifest()
    first, second = (_read(store, records) for store, records in ((a, ours), (b, theirs)))
    inputs = [*made[0].differences(made[1]), *(f"read.{key}" for key in differing(first, second))]
    unknown = dict.fromkeys([*_unknown_parts(a), *_unknown_parts(b), *unsure(first, second)])
    return Comparison(a, b, tuple(inputs), pairs, all(one.counts_infra_errors for one in made), tuple(unknown))


def _read(store: RunStore, records: Mapping[tuple[str, int], Record]) -> Reads:
    return together(Reads.among(store.lines("timing", record.key)) for record in records.values())


def _unknown_parts(store: RunStore) -> list[str]:
    """What the manifest of a run says that cannot be known."""
    setting = store.manifest().core["setting"]
    network = [NETWORK] if setting.get("network") else []
    return [*setting["agent"].get(UNKNOWN, []), *network]


def first_divergence(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Divergence | None:
    """The first event that differs between two logs; None if they are equal."""
    for seq in range(max(len(a), len(b))):
        one = a[seq] if seq < len(a) else None
        other = b[seq] if seq < len(b) else None
        if one != other:
            return Divergence(seq, one, other)
    return None


def _passed(samples: Sequence[bool] | None) -> Fraction | None:
    return Fraction(sum(samples), len(samples)) if samples else None


def _number(share: Fraction | None) -> float | None:
    return None if share is None else float(share)


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
