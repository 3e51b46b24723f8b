"""The documented shapes, checked: the eviction policy users write, and the version-1 record of GitTrix (``metadata.json``).

Only values from outside need checking; inside the engine a session is a ``SessionState``. pydantic is imported here and nowhere else in
this room, so that code which needs no outside record does not load it.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from pytest_gittrix.durations import duration_of, format_instant, instant_at, parse_instant
from pytest_gittrix.errors import InvalidInput, MetadataVersionUnsupported
from pytest_gittrix.extensions import Names
from pytest_gittrix.record.state.fold import Policy, SessionState, StateName, metadata_of

_ELSEWHERE: Final = ("remote", "repositories")
Strategy = Literal["auto", "commit", "branch", "pr", "patch"]

LONGEST = timedelta(days=36_525)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


def _duration(value: object) -> object:
    if value is None:
        return None
    span = duration_of(value)  # type: ignore[arg-type]
    if span <= timedelta(0):
        raise InvalidInput(
            f"{value!r} is no time to live: it must be positive.",
            why="Such a session would expire as it starts.",
            fix="None means no limit.",
        )
    if span > LONGEST:
        raise InvalidInput(
            f"{value!r} is longer than a hundred years.", why="Its deadline could not be written.", fix="None means no limit."
        )
    return span


Duration = Annotated[timedelta | None, BeforeValidator(_duration)]


class EvictionPolicy(BaseModel):
    """When a session is evicted (GitTrix; defaults as documented there).

    Args:
        ttl_idle: since it was last used or its files changed: a timedelta, a text like ``"4h"``, or None for no limit.
        ttl_absolute: since it was created, in the same forms.
        until_promote: remove the workspace once a promotion ends the session; one that keeps it does not.
        manual: never evict on its own, whatever the limits say.

    Raises:
        InvalidInput: a limit is not a positive duration, an argument is unknown, or a switch is not a bool.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ttl_idle: Duration = timedelta(hours=4)
    ttl_absolute: Duration = None
    until_promote: bool = True
    manual: bool = False

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as problem:
            raise InvalidInput(
                f"The eviction policy is not valid: {_describe(problem)}.",
                fix=f"Its arguments are: {', '.join(type(self).model_fields)}.",
            ) from None

    def policy(self) -> Policy:
        """The same in nanoseconds, as events and states hold it."""
        return Policy(_ns(self.ttl_idle), _ns(self.ttl_absolute), self.until_promote, self.manual)

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """The policy of a state, for people. Limits are taken as they are: a TypeScript record may hold one of zero."""
        return cls.model_construct(
            ttl_idle=_span(policy.ttl_idle_ns),
            ttl_absolute=_span(policy.ttl_absolute_ns),
            until_promote=policy.until_promote,
            manual=policy.manual,
        )


Eviction = EvictionPolicy | timedelta | str
"""What a caller may give as the policy of a session: a policy, or an idle TTL by itself, such as ``"4h"``."""


class _Record(BaseModel):
    # Keys of a later minor version, or of another tool, come back as they were.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


# JavaScript has one kind of number, and a limit may be any of them.
Milliseconds = StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | None


class PolicyRecord(_Record):
    """``evictionPolicy`` of the record; durations in milliseconds, null for none."""

    ttl_idle_ms: Milliseconds = 14_400_000
    ttl_absolute_ms: Milliseconds = None
    until_promote: bool = True
    manual: bool = False


class ResultRecord(_Record):
    """``promote.result`` of the record: where the promoted work is."""

    sha: str
    branch: str
    pr_url: str | None = None


class PromoteRecord(_Record):
    """``promote`` of the record; ``result`` is null until the session is promoted."""

    strategy: Strategy = "auto"
    result: ResultRecord | None = None


def _kind(value: str) -> str:
    if value in _ELSEWHERE or value in Names("workspaces"):
        return value
    raise ValueError("no kind of workspace that is registered here")


def _instant(value: object) -> object:
    if isinstance(value, datetime):
        return value
    try:
        return parse_instant(value)  # type: ignore[arg-type]
    except InvalidInput as problem:
        raise ValueError(problem.fact) from None


Instant = Annotated[AwareDatetime, BeforeValidator(_instant), PlainSerializer(format_instant, return_type=str)]


class SessionMetadata(_Record):
    """The documented version-1 record of one session (GitTrix): camelCase on the wire, snake_case in Python, instants aware UTC."""

    metadata_version: Literal[1] = 1
    id: str
    task: str
    durable_ref: str
    durable_path: str | None = None
    durable_branch: str | None = None
    ephemeral_ref: str
    ephemeral_path: str | None = None
    baseline_sha: str
    workspace_kind: Annotated[str, AfterValidator(_kind)] | None = None
    is_git_backed: bool | None = None
    state: StateName
    created_at: Instant
    updated_at: Instant
    last_access_at: Instant
    eviction_policy: PolicyRecord = Field(default_factory=PolicyRecord)
    touched_files: list[str] = Field(default_factory=list)
    promote: PromoteRecord = Field(default_factory=PromoteRecord)
    # Of our own; see SessionState for what they hold.
    identity: dict[str, Any] | None = None
    lineage: dict[str, Any] | None = None
    outcome: str | None = None
    successor: str | None = None
    life: dict[str, Any] | None = None
    earlier_baselines: list[str] | None = None

    @classmethod
    def of(cls, state: SessionState) -> Self:
        """The record of a state."""
        return cls.model_validate(metadata_of(state))

    @property
    def policy(self) -> EvictionPolicy:
        """The eviction policy in durations."""
        record = self.eviction_policy
        idle, absolute = (None if ms is None else ms * _MILLISECOND for ms in (record.ttl_idle_ms, record.ttl_absolute_ms))
        return EvictionPolicy.model_construct(
            ttl_idle=idle, ttl_absolute=absolute, until_promote=record.until_promote, manual=record.manual
        )

    def wire(self) -> dict[str, Any]:
        """The record as JSON: camelCase, optional keys only when known, keys from elsewhere as they were."""
        record = self.model_dump(mode="json", by_alias=True)
        if record["promote"]["result"] is not None:
            record["promote"]["result"] = _known(record["promote"]["result"], ResultRecord)
        return _known(record, SessionMetadata)


_TIMES: Final = ("createdAt", "updatedAt", "lastAccessAt")


def load_metadata(raw: bytes, *, expected_id: str, written_ns: int | None = None) -> SessionMetadata:
    """Read a ``metadata.json``.

    Args:
        raw: the file's bytes.
        expected_id: the name of the directory it lies in.
        written_ns: when the file was written, in nanoseconds since 1970 UTC: the time of a record without times, as the document has one.

    Raises:
        MetadataVersionUnsupported: not JSON, another version, or not the documented shape; the message names the field.
        InvalidInput: it is the record of another session.
    """
    where = f"{expected_id}/metadata.json"
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as problem:
        raise _unsupported(f"{where} is not JSON: {problem}.") from None
    if not isinstance(record, dict):
        raise _unsupported(f"{where} is not a JSON object.")
    version = record.get("metadataVersion")
    if version != 1 or isinstance(version, bool):
        raise _unsupported(f"{where} is of version {version!r}, not 1.")
    if written_ns is not None:
        record = {**dict.fromkeys(_TIMES, format_instant(instant_at(written_ns))), **record}
    try:
        metadata = SessionMetadata.model_validate(record)
    except ValidationError as problem:
        raise _unsupported(f"{where} is not a version-1 record: {_describe(problem)}.") from None
    if metadata.id != expected_id:
        raise InvalidInput(
            f"{where} is the record of session {metadata.id!r}.",
            why="A copied or renamed directory would let one session act as another.",
            fix=f"Give the directory its old name {metadata.id!r} back, or remove it.",
        )
    return metadata


def _unsupported(fact: str) -> MetadataVersionUnsupported:
    return MetadataVersionUnsupported(
        fact, why="Guessing at a record could evict or promote the wrong thing.", fix="Use the version that wrote it, or put it right."
    )


def _known(record: dict[str, Any], shape: type[_Record]) -> dict[str, Any]:
    """A record without the keys of its shape that are null."""
    optional = {to_camel(name) for name in shape.model_fields}
    return {key: value for key, value in record.items() if value is not None or key not in optional}


def _describe(problem: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, error['loc'])) or 'record'}: {error['msg']}" for error in problem.errors(include_url=False))


def _ns(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND * 1000


def _span(ns: int | None) -> timedelta | None:
    return None if ns is None else timedelta(microseconds=ns // 1000)
