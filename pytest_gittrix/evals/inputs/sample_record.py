"""The record of a sample's result: the same bytes for the same sample on any machine at any time.

Times and outputs of programs differ each time, so ``results.store`` keeps them in other files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput, MetadataVersionUnsupported
from pytest_gittrix.evals.inputs.identity import canonical, digest_bytes, digest_of, result_digest
from pytest_gittrix.evals.spending.spent import Spent, total

Outcome = Literal["pass", "fail", "unjudgeable", "conflict", "refused", "agent_error", "timeout", "limit", "infra_error"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
RETRIED: Final = "infra_error"
"""The outcome of a sample that could not be done: it says nothing about the agent, and the sample is retried."""

_VERSION: Final = 1
_LATER: Final = frozenset({"model"})
"""Fields that records of earlier versions do not have."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        kind: the kind of the check.
        ok: whether the check passed.
        detail: why it did not pass, and what is worth knowing of a pass, on one line; the same for the same result.
        judges: for a check by pytest, what judged each test that passed: ``subject``, ``canary`` or ``plain``.
        failed: the same for each test that failed; ``unjudgeable`` for one that none of these can judge.
    """

    kind: str
    ok: bool
    detail: str = ""
    judges: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The result of a sample.

    Attributes:
        key: see ``identity.sample_key``.
        id: the id of the case.
        epoch: the number of the repetition, from 0.
        seed: 64 hex digits.
        case: the digest of the case.
        session: the id of the session.
        outcome: one of ``OUTCOMES``.
        reason: why it is not ``pass``, on one line; the same for the same result.
        base: the commit that the session started from; empty if no session started.
        final: the tree of the workspace as reviewed; empty if there was no review.
        head: the commit that durable's branch was at before the promotion.
        promoted: the commit that the promotion made; empty if it made none.
        tree: the tree of that commit.
        files: the touched paths, sorted.
        conflict: the paths in conflict, each with ``path``, ``text`` or ``tree``.
        exit: the exit status of the agent; None if it has none or did not end by itself.
        checks: the results of the checks, in order.
        events: the digest of the event log.
        event_count: the number of its lines.
        model: what the agent used of its model, as ``Spent`` has it; None if it was not reached through the run. The digest of results does
            not cover it: a price changes no result.
    """

    key: str
    id: str
    epoch: int
    seed: str
    case: str
    session: str
    outcome: Outcome
    reason: str = ""
    base: str = ""
    final: str = ""
    head: str = ""
    promoted: str = ""
    tree: str = ""
    files: tuple[str, ...] = ()
    conflict: Mapping[str, str] | None = None
    exit: int | None = None
    checks: tuple[CheckResult, ...] = ()
    events: str = ""
    event_count: int = 0
    model: Mapping[str, Any] | None = None

    @property
    def spent(self) -> Spent | None:
        """What the agent used of its model; None if it was not reached through the run."""
        return None if self.model is None else Spent.from_json(self.model)

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """The fields that the digest of a run's results covers."""
        return self.key, self.outcome, self.promoted, self.tree, self.events

    def encode(self) -> bytes:
        """The record as a file holds it, with the digest of its other fields."""
        values = {name: value for name, value in asdict(self).items() if value is not None or name not in _LATER}
        body = {"schema": _VERSION, **values}
        encoded = canonical(body)
        return b'{"digest":"%b",%b\n' % (digest_bytes(encoded).encode(), encoded[1:])


def decode(data: bytes, file: Path) -> Record:
    """Read a record.

    Raises:
        InvalidInput: it is damaged.
        MetadataVersionUnsupported: it is of another version.
    """
    try:
        body: dict[str, Any] = json.loads(data)
        recorded = body.pop("digest")
        whole = digest_of(body) == recorded
        version = body.pop("schema")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(file) from None
    if version != _VERSION:
        raise MetadataVersionUnsupported(f"{file} is of version {version!r}.", why=f"This version reads {_VERSION}.")
    if not whole or set(body) | _LATER != {one.name for one in fields(Record)} or body["outcome"] not in OUTCOMES:
        raise damaged(file)
    checks = tuple(CheckResult(**check) for check in body.pop("checks"))
    return Record(**{**body, "files": tuple(body["files"]), "checks": checks})


def damaged(file: Path) -> InvalidInput:
    """The error for a file of a run whose content is not what was written."""
    return InvalidInput(
        f"{file} is damaged.",
        why="Its contents do not match its digest, so it is not used.",
        fix="Run again with --resume: a damaged sample is run again.",
    )


def digest(records: Iterable[Record]) -> str:
    """The digest of a run's results: the same for any number of workers, and after any kill and resume."""
    return result_digest(record.row for record in records)


def tally(records: Iterable[Record]) -> dict[str, int]:
    """The number of records of each outcome; outcomes without a record have 0."""
    counts: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    for record in records:
        counts[record.outcome] += 1
    return counts


def spent_of(records: Iterable[Record]) -> Spent | None:
    """What the agents of some samples used of their models; None if none of them reached one through the run."""
    return total(spent for record in records if (spent := record.spent) is not None)
