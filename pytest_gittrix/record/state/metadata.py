"""A state as the documented version-1 record of GitTrix (``metadata.json``), and back as far as the record goes.

Plain JSON in and out, without pydantic: what comes from outside is validated by ``records`` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pytest_gittrix.durations import format_instant, instant_at, ns_of, parse_instant
from pytest_gittrix.record.state.values import Policy, Result, SessionState, StateName

_MILLISECOND = 1_000_000

# fmt: off
_RECORD_KEYS = frozenset({
    "metadataVersion", "id", "task", "durableRef", "durablePath", "durableBranch", "ephemeralRef", "ephemeralPath", "baselineSha",
    "workspaceKind", "isGitBacked", "state", "createdAt", "updatedAt", "lastAccessAt", "evictionPolicy", "touchedFiles", "promote",
})
# fmt: on
_ADDITIONS = frozenset({"identity", "lineage", "outcome", "successor", "life", "earlierBaselines", "rebasedOnto"})


def metadata_of(state: SessionState) -> dict[str, Any]:
    """The documented version-1 record (GitTrix, ``metadata.json``) of a state: JSON, camelCase, optional keys only when known."""
    policy, result = state.policy, state.result
    record = {
        "metadataVersion": 1,
        "id": state.id,
        "task": state.task,
        "durableRef": state.durable_ref,
        "durablePath": state.durable_path,
        "durableBranch": state.durable_branch,
        "ephemeralRef": state.ephemeral_ref,
        "ephemeralPath": state.workspace,
        "baselineSha": state.baseline,
        "workspaceKind": state.workspace_kind,
        "isGitBacked": state.git_backed,
        "state": state.state,
        "createdAt": _instant(state.created_ns),
        "updatedAt": _instant(state.updated_ns),
        "lastAccessAt": _instant(state.last_access_ns),
        "evictionPolicy": {
            "ttlIdleMs": _milliseconds(policy.ttl_idle_ns),
            "ttlAbsoluteMs": _milliseconds(policy.ttl_absolute_ns),
            "untilPromote": policy.until_promote,
            "manual": policy.manual,
        },
        "touchedFiles": state.touched,
        "promote": {
            "strategy": state.strategy,
            "result": result and _known({"sha": result.sha, "branch": result.branch, "prUrl": result.pr_url}),
        },
        # Additions; a reader of GitTrix's records passes over keys that it does not know.
        "identity": dict(state.identity) or None,
        "lineage": state.lineage and state.lineage.to_data(),
        "outcome": state.outcome,
        "successor": state.successor,
        "life": _life(state),
        "earlierBaselines": [*state.earlier_baselines] or None,
        "rebasedOnto": state.kept and ([*state.kept.rebased] or None),
    }
    return {**state.extra, **_known(record)}


def document_of(record: dict[str, Any]) -> dict[str, Any]:
    """What :func:`metadata_of` gave, with the keys that this engine does not know behind the others."""
    extra = [key for key in record if key not in _RECORD_KEYS and key not in _ADDITIONS]
    return record if not extra else {key: record[key] for key in record if key not in extra} | {key: record[key] for key in extra}


def state_from_metadata(record: Mapping[str, Any], *, legacy: bool = True) -> SessionState:
    """The state of a version-1 record that is already validated (see ``records.load_metadata``).

    Its workspace counts as present while the session is active, or promoted without ``untilPromote``: the record does not say.
    """
    policy, promote = record["evictionPolicy"], record["promote"]
    result = promote["result"]
    state: StateName = record["state"]
    return SessionState(
        id=record["id"],
        task=record["task"],
        durable_ref=record["durableRef"],
        durable_path=record.get("durablePath"),
        durable_branch=record.get("durableBranch"),
        baseline=record["baselineSha"],
        ephemeral_ref=record["ephemeralRef"],
        workspace=record.get("ephemeralPath"),
        workspace_kind=record.get("workspaceKind"),
        git_backed=bool(record.get("isGitBacked")),
        policy=Policy(_nanoseconds(policy["ttlIdleMs"]), _nanoseconds(policy["ttlAbsoluteMs"]), policy["untilPromote"], policy["manual"]),
        created_ns=ns_of(parse_instant(record["createdAt"])),
        updated_ns=ns_of(parse_instant(record["updatedAt"])),
        last_access_ns=ns_of(parse_instant(record["lastAccessAt"])),
        state=state,
        api_touched=dict.fromkeys(record["touchedFiles"], "write"),
        strategy=promote["strategy"],
        result=result and Result(result["sha"], result["branch"], result.get("prUrl")),
        workspace_present=state == "active" or (state == "promoted" and not policy["untilPromote"]),
        legacy=legacy,
        extra={key: value for key, value in record.items() if key not in _RECORD_KEYS},
    )


def _life(state: SessionState) -> dict[str, str | None] | None:
    """The member of a session with a life cycle, its state, and how its agent's run last ended; None without a life cycle."""
    life = state.life
    if life is None or (life.state == "creating" and state.ended):
        return None
    return {"member": life.member, "kind": life.kind, "state": life.state, "ended": life.ended}


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


# The times of one record are often the same, and so are those of records of one store.
@lru_cache(maxsize=256)
def _instant(ns: int) -> str:
    return format_instant(instant_at(ns))


def _milliseconds(ns: int | None) -> int | float | None:
    if ns is None:
        return None
    whole, rest = divmod(ns, _MILLISECOND)
    return ns / _MILLISECOND if rest else whole


def _nanoseconds(ms: float | None) -> int | None:
    return None if ms is None else round(ms * _MILLISECOND)
