"""What comes from outside: eviction policies people write, and version-1 records other programs wrote."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gittrix.errors import InvalidInput, MetadataVersionUnsupported
from pytest_gittrix.record.state.fold import Policy, metadata_of, state_from_metadata
from pytest_gittrix.record.state.records import EvictionPolicy, SessionMetadata, load_metadata

HOUR_NS = 3_600_000_000_000

# As the TypeScript GitTrix writes it.
RECORD: dict[str, Any] = {
    "metadataVersion": 1,
    "id": "sess_V1StGXR8_Z5j",
    "task": "update docs",
    "durableRef": "local:///Users/jack/project#main",
    "durablePath": "/Users/jack/project",
    "durableBranch": "main",
    "ephemeralRef": "local:///Users/jack/.gittrix/sessions/sess_V1StGXR8_Z5j/workspace",
    "ephemeralPath": "/Users/jack/.gittrix/sessions/sess_V1StGXR8_Z5j/workspace",
    "baselineSha": "b" * 40,
    "workspaceKind": "worktree",
    "isGitBacked": True,
    "state": "promoted",
    "createdAt": "2030-01-01T00:00:00.000Z",
    "updatedAt": "2030-01-01T00:00:05.250Z",
    "lastAccessAt": "2030-01-01T00:00:05.250Z",
    "evictionPolicy": {"ttlIdleMs": 14_400_000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False},
    "touchedFiles": ["b.md", "a.md"],
    "promote": {"strategy": "auto", "result": {"sha": "c" * 40, "branch": "main", "prUrl": "https://example.test/1"}},
}
ID = RECORD["id"]


def load(record: object) -> SessionMetadata:
    """Load a record as if it lay in the directory of ``ID``."""
    return load_metadata(json.dumps(record).encode(), expected_id=ID)


# Eviction policies -----------------------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    policy = EvictionPolicy()
    assert (policy.ttl_idle, policy.ttl_absolute, policy.until_promote, policy.manual) == (timedelta(hours=4), None, True, False)
    assert policy.policy() == Policy()


@pytest.mark.parametrize(
    ("given", "ns"), [(timedelta(hours=1), HOUR_NS), ("1h30m", HOUR_NS * 3 // 2), ("250ms", 250_000_000), (None, None)]
)
def test_a_limit_is_a_timedelta_a_text_or_nothing(given: Any, ns: int | None) -> None:
    policy = EvictionPolicy(ttl_idle=given, ttl_absolute=given)
    assert policy.policy() == Policy(ns, ns, True, False)
    assert EvictionPolicy.of(policy.policy()) == policy


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"ttl_idle": timedelta(0)}, "must be positive"),
        ({"ttl_absolute": timedelta(seconds=-1)}, "must be positive"),
        ({"ttl_idle": "0s"}, "must be positive"),
        ({"ttl_idle": 3600}, "3600 is not a duration"),
        ({"ttl_idle": "soon"}, "'soon' is not a duration"),
        ({"ttl_idel": timedelta(1)}, "ttl_idel"),
        ({"manual": "no"}, "manual"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        EvictionPolicy(**arguments)


def test_a_policy_is_a_value() -> None:
    policy = EvictionPolicy()
    with pytest.raises(ValidationError):
        policy.manual = True  # type: ignore[misc]
    assert {policy, EvictionPolicy()} == {policy}


# Records ---------------------------------------------------------------------------------------------------------------------------


def test_a_record_reads_in_pythons_words_and_writes_in_its_own() -> None:
    metadata = load(RECORD)
    assert metadata.baseline_sha == "b" * 40
    assert metadata.updated_at == datetime(2030, 1, 1, 0, 0, 5, 250_000, tzinfo=UTC)
    assert metadata.promote.result is not None
    assert metadata.promote.result.pr_url == "https://example.test/1"
    assert metadata.policy == EvictionPolicy()
    assert metadata.wire() == RECORD


def test_keys_of_other_programs_come_back_as_they_were() -> None:
    record = {**RECORD, "vendor": {"nested": [1, None]}, "promote": {**RECORD["promote"], "reviewer": "jill"}}
    assert load(record).wire() == record


def test_optional_keys_stay_away_when_they_are_not_known() -> None:
    record = {key: value for key, value in RECORD.items() if key not in {"durablePath", "durableBranch", "workspaceKind", "isGitBacked"}}
    record["promote"] = {"strategy": "auto", "result": None}
    metadata = load(record)
    assert metadata.durable_branch is None
    assert metadata.wire() == record


def test_what_an_old_record_may_lack_gets_the_documented_defaults() -> None:
    record = {key: value for key, value in RECORD.items() if key not in {"evictionPolicy", "touchedFiles", "promote"}}
    wire = load(record).wire()
    assert wire["evictionPolicy"] == RECORD["evictionPolicy"]
    assert (wire["touchedFiles"], wire["promote"]) == ([], {"strategy": "auto", "result": None})


def test_a_record_without_times_is_as_old_as_its_file() -> None:
    record = {key: value for key, value in RECORD.items() if not key.endswith("At")}
    wire = load_metadata(json.dumps(record).encode(), expected_id=ID, written_ns=1_893_456_000_000_000_000).wire()
    assert [wire[key] for key in ("createdAt", "updatedAt", "lastAccessAt")] == ["2030-01-01T00:00:00.000Z"] * 3
    wire = load_metadata(json.dumps(RECORD).encode(), expected_id=ID, written_ns=0).wire()
    assert wire == RECORD
    with pytest.raises(MetadataVersionUnsupported, match="createdAt"):
        load(record)


def test_a_record_can_be_made_from_a_state_and_back() -> None:
    state = state_from_metadata(RECORD)
    assert SessionMetadata.of(state).wire() == RECORD == metadata_of(state)


@pytest.mark.parametrize("zone", ["2030-01-01T01:00:05.250+01:00", "2030-01-01T00:00:05.250Z"])
def test_instants_are_aware_and_in_utc(zone: str) -> None:
    assert load({**RECORD, "updatedAt": zone}).wire()["updatedAt"] == "2030-01-01T00:00:05.250Z"


@pytest.mark.parametrize("ms", [0, 0.5, -1, 14_400_000.25])
def test_limits_are_read_as_they_stand_however_odd(ms: float) -> None:
    record = {**RECORD, "evictionPolicy": {**RECORD["evictionPolicy"], "ttlIdleMs": ms}}
    metadata = load(record)
    assert metadata.wire() == record
    assert metadata.policy.ttl_idle == timedelta(milliseconds=ms)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000])
def test_what_is_not_a_json_object_is_unsupported_and_named(raw: bytes) -> None:
    with pytest.raises(MetadataVersionUnsupported, match=f"{ID}/metadata.json is not"):
        load_metadata(raw, expected_id=ID)


@pytest.mark.parametrize("version", [2, 0, "1", None, True])
def test_another_version_is_unsupported(version: object) -> None:
    with pytest.raises(MetadataVersionUnsupported, match=r"is of version .*, not 1"):
        load({**RECORD, "metadataVersion": version})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "sleeping"),
        ("workspaceKind", "tarball"),
        ("task", None),
        ("baselineSha", 7),
        ("createdAt", "yesterday"),
        ("createdAt", "2030-01-01T00:00:00"),
        ("createdAt", 1893456000),
        ("touchedFiles", "a.md"),
        ("evictionPolicy", {"ttlIdleMs": "4h"}),
        ("evictionPolicy", {"ttlIdleMs": float("nan")}),
        ("evictionPolicy", None),
        ("promote", {"strategy": "rebase"}),
        ("promote", {"strategy": "auto", "result": {"branch": "main"}}),
    ],
)
def test_another_shape_is_unsupported_and_the_field_named(field: str, value: object) -> None:
    with pytest.raises(MetadataVersionUnsupported, match=field):
        load({**RECORD, field: value})


@pytest.mark.parametrize("field", ["id", "task", "durableRef", "ephemeralRef", "baselineSha", "state", "createdAt", "lastAccessAt"])
def test_a_missing_field_is_named(field: str) -> None:
    record = {key: value for key, value in RECORD.items() if key != field}
    with pytest.raises(MetadataVersionUnsupported, match=field):
        load(record)


def test_the_record_of_another_session_is_refused() -> None:
    with pytest.raises(InvalidInput, match="record of session 'sess_other'"):
        load({**RECORD, "id": "sess_other"})
