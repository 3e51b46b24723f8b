"""Samples taken over from another run because their inputs are the same; and for the others, the reason why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.reads import Reads
from pytest_gittrix.evals.inputs.case_repo import ANY_OBJECT
from pytest_gittrix.evals.inputs.identity import digest_bytes
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, damaged
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.store import PARTS, TAKEN_OVER, RunStore
from pytest_gittrix.git.environment import run_git


@dataclass(frozen=True, slots=True)
class ReuseDecision:
    """Whether a sample is taken over, and why.

    Attributes:
        reused: whether it is taken over.
        why: the reason in a few words.
    """

    reused: bool
    why: str


def reuse(
    store: RunStore, other: Path, wanted: Mapping[tuple[str, int], str], *, root: str = "", trust: bool = False
) -> dict[tuple[str, int], ReuseDecision]:
    """Take over the samples whose inputs are the same.

    Args:
        store: the store of the new run.
        other: the directory of the run to take from.
        wanted: the keys of the wanted samples, by id and epoch.
        root: the directory that what an agent reads is named from.
        trust: whether what cannot be known of a sample's inputs counts as the same.

    Returns:
        The decision about each sample.

    Raises:
        InvalidInput: ``other`` is not a run, is damaged, or is of more than one agent.
    """
    source = RunStore.open(other)
    if source.path == store.path:
        raise InvalidInput(f"{other} is the run itself.", fix="Give another run by --from, or go on with this one by --resume.")
    source.check_not_mixed()
    theirs, ours = source.manifest(), store.manifest()
    decisions: dict[tuple[str, int], ReuseDecision] = {}
    taken: list[Record] = []
    for (id_, epoch), key in wanted.items():
        record = source.record(key) if source.has(key) else None
        if record is not None and record.outcome != RETRIED:
            if why := why_not(source, key, root, trust=trust):
                decisions[id_, epoch] = ReuseDecision(False, why)
                continue
            taken.append(record)
            decisions[id_, epoch] = ReuseDecision(True, "its inputs are the same")
        elif record is not None:
            decisions[id_, epoch] = ReuseDecision(False, f"it ended in {RETRIED} there")
        else:
            decisions[id_, epoch] = ReuseDecision(False, _why(theirs, ours, id_, epoch))
    take_over(store, source, taken, origin=str(source.path))
    return decisions


def why_not(store: RunStore, key: str, root: str, *, trust: bool) -> str:
    """Why a sample does not count for the agent as it is now, judged by what its agent read; empty if it does.

    Args:
        store: the run that has the sample.
        key: the key of the sample.
        root, trust: as for ``reuse``.
    """
    read = Reads.among(store.lines("timing", key))
    return "" if read is None else read.why_not(root, trust=trust)


def check_unchanged(store: RunStore, key: str, root: str, *, trust: bool, option: str = "--trust-agent") -> None:
    """See that a sample of a run that is continued counts for the agent as it is now.

    Args:
        store, key, root, trust: as for ``why_not``.
        option: the option of the user's command that trusts what cannot be known, for the message.

    Raises:
        InvalidInput: it does not.
    """
    why = why_not(store, key, root, trust=trust)
    if why:
        record = store.record(key)
        raise InvalidInput(
            f"{record.id} #{record.epoch} of {store.path} cannot be kept: {why}.",
            why="Its results would be mixed with those of another agent.",
            fix="Run the suite into another --out, with --from to take over what is the same.",
            opt_out="" if trust else f"{option} keeps what cannot be known, and nothing that has changed",
        )


def unknown_of(store: RunStore, keys: Iterable[str]) -> set[str]:
    """What cannot be known of the inputs of samples, one sentence each."""
    read = (Reads.among(store.lines("timing", key)) for key in keys)
    return {sentence for one in read if one is not None for sentence in one.unknown}


def take_over(store: RunStore, source: RunStore, records: Sequence[Record], *, origin: str = "") -> None:
    """Copy samples with their artifacts; the records are copied last.

    Args:
        store: the run to copy to.
        source: the run to copy from.
        records: the records of the samples.
        origin: where the samples were run, which is written into their timing; nothing is by default.

    Raises:
        AdapterUnavailable: the disk refused, or the source lacks objects.
        InvalidInput: an event log of the source does not fit its record.
    """
    copy_objects(store, source, records)
    for record in records:
        if record.events and digest_bytes(source.part("events", record.key)) != record.events:
            raise damaged(source.path / "events" / f"{record.key}.jsonl")
        for part in PARTS:
            data = source.part(part, record.key)
            if part == "timing" and origin and not source.is_taken_over(record.key):
                data += json.dumps({TAKEN_OVER: origin}).encode() + b"\n"
            store.put_part(part, record.key, data)
        store.save_record(record)


def copy_objects(store: RunStore, source: RunStore, records: Sequence[Record]) -> None:
    """Copy the objects of samples, with references to them. Raises AdapterUnavailable if the disk refused, or the source lacks objects."""
    # By ids: the references of a run have the name that its directory had when it was made.
    specs = [
        f"+{id_}:refs/gx/{store.name}/{record.id}/{record.epoch}/{name}\n"
        for record in records
        for name, id_ in _kept_objects(source, record)
    ]
    if specs:
        fetch = ["-C", str(store.objects.path), "fetch", "-q", "--no-tags", "--no-write-fetch-head", f"--upload-pack={ANY_OBJECT}"]
        run_git([*fetch, "--stdin", str(source.objects.path)], stdin="".join(specs).encode())


def _kept_objects(source: RunStore, record: Record) -> list[tuple[str, str]]:
    """The objects of a sample by the name of their reference; a run of an earlier version kept no ``head`` that nothing was promoted on."""
    named = [("base", record.base), ("final", record.final), ("promoted", record.promoted)]
    kept = record.head if record.head not in ("", record.base) and not record.promoted and source.objects.has(record.head) else ""
    return [(name, id_) for name, id_ in [*named, ("head", kept)] if id_]


def _why(theirs: Manifest, ours: Manifest, id_: str, epoch: int) -> str:
    settings = [name for name in theirs.differences(ours) if name.startswith("setting.")]
    if settings:
        return f"{', '.join(settings)} differ"
    if f"samples.{id_}" in theirs.differences(ours):
        return "the case has changed"
    return "it was not run there" if epoch < theirs.core["epochs"] else "that run has fewer epochs"
