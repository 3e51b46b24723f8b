"""The events of a session, and their format as the lines of a log. ``vocabulary`` lists the kinds of events."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Literal, NamedTuple, cast, get_args
from zlib import crc32

from pytest_gittrix.durations import instant_at, ns_of, parse_instant
from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.vocabulary import LIVE, VOCABULARY, Kind

Actor = Literal["human", "agent", "system"]
ACTORS: tuple[str, ...] = get_args(Actor)

# A line ends in `,"crc":"0123abcd"}`, always this long, so the part that is summed can be cut off without parsing.
_SEAL = b',"crc":"%08x"}'
_SEAL_SIZE = len(_SEAL % 0)
_FIELDS = ("v", "seq", "ts", "stream", "type", "actor", "data", "crc")
_VERSION = 1
_MINUTE_NS = 60_000_000_000
_HOUR_NS = 60 * _MINUTE_NS


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        seq: number in its stream, from 0, without a gap. -1 for a live event, which is not stored.
        ts: nanoseconds since 1970 UTC, in whole microseconds (what a line can hold). Order is by ``seq``, never by ``ts``.
        stream: the session's id.
        type: a row of ``VOCABULARY`` or ``LIVE``.
        actor: who did it: ``human``, ``agent`` or ``system``.
        data: JSON, with the keys the row asks for. Not to be changed.
    """

    seq: int
    ts: int
    stream: str
    type: str
    actor: str
    data: Mapping[str, Any]


def check(type: str, data: Mapping[str, Any], actor: str = "system", *, vocabulary: Mapping[str, Kind] = VOCABULARY) -> None:
    """Refuse an event the vocabulary does not know.

    Raises:
        InvalidInput: unknown type or actor, a required key is missing, or a key is not in the row; the message names it.
    """
    kind = vocabulary.get(type)
    if kind is None:
        raise _unknown_type(type, vocabulary)
    if actor not in ACTORS:
        raise InvalidInput(f"{actor!r} is not an actor of the event {type!r}.", fix=f"Use one of: {', '.join(ACTORS)}.")
    given = data.keys()
    if given == kind.required:
        return
    names = {key.removesuffix("_b64") for key in given}
    if missing := kind.required - names:
        raise InvalidInput(
            f"The event {type!r} lacks {_listed(missing)}.",
            why="What reads the log relies on it.",
            fix=f"Give each of: {_listed(kind.required)}.",
        )
    if not kind.open and (extra := names - kind.required - kind.optional):
        raise InvalidInput(
            f"The event {type!r} has no place for {_listed(extra)}.",
            why="No reader of the log would find it.",
            fix=f"Its keys are: {_listed(kind.required | kind.optional)}; a new one is added to VOCABULARY first.",
        )


def live_event(type: str, data: Mapping[str, Any], *, ts: int, stream: str = "", actor: Actor = "system") -> Event:
    """An event that is announced and not stored (``seq`` is -1).

    Raises:
        InvalidInput: the type is no row of ``LIVE``, or the data do not fit it.
    """
    check(type, data, actor, vocabulary=LIVE)
    return Event(-1, ts - ts % 1000, stream, type, actor, data)


def passing_event(type: str, data: Mapping[str, Any], *, ts: int, stream: str, actor: Actor) -> Event:
    """An event of either kind that is announced and not stored. Raises InvalidInput as ``check``."""
    check(type, data, actor, vocabulary=LIVE if type in LIVE else VOCABULARY)
    return Event(-1, ts - ts % 1000, stream, type, actor, data)


def path_fields(path: str, key: str = "path") -> dict[str, str]:
    """The entry of ``data`` that holds a path: ``{"path": ...}``, or ``{"path_b64": ...}`` for a name that is not UTF-8.

    Args:
        path: text, with bytes that are not UTF-8 as surrogate escapes.
        key: the name of the field.

    Raises:
        InvalidInput: the text cannot be encoded (a lone surrogate that is not an escape).
    """
    if path.isascii():
        return {key: path}
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidInput(f"{path!r} is not a path: it holds a surrogate that is not an escaped byte.") from None
    try:
        path.encode()
    except UnicodeEncodeError:
        return {f"{key}_b64": base64.b64encode(raw).decode("ascii")}
    return {key: path}


def path_of(data: Mapping[str, Any], key: str = "path") -> str:
    """The path ``path_fields`` put into ``data``."""
    encoded = data.get(f"{key}_b64")
    if encoded is None:
        return cast(str, data[key])
    return base64.b64decode(encoded).decode("utf-8", "surrogateescape")


def encode(event: Event) -> bytes:
    """Write an event as one line of UTF-8, without its line end; it closes with the CRC-32 of everything before the checksum.

    Raises:
        InvalidInput: the data are not JSON, hold text that is not Unicode, or the time is outside the years 1 to 9999.
    """
    try:
        body = (
            f'{{"v":{_VERSION},"seq":{event.seq},"ts":"{_time_text(event.ts)}","stream":{_json(event.stream)}'
            f',"type":"{event.type}","actor":"{event.actor}","data":{_json(event.data)}'
        ).encode()
    except UnicodeEncodeError as problem:
        raise InvalidInput(
            f"The event {event.type!r} holds text that is not Unicode: {problem.object[problem.start : problem.end]!r}.",
            why="It could not be read back.",
            fix="Put a path that is not UTF-8 through path_fields.",
        ) from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidInput(f"The data of the event {event.type!r} are not JSON: {problem}.") from None
    return body + _SEAL % crc32(body)


def sealed(line: bytes) -> bool:
    """Whether a line ends in the checksum of what comes before. If not, it is damaged, and nothing in it counts."""
    return line[-_SEAL_SIZE:] == _SEAL % crc32(line[:-_SEAL_SIZE])


def decode(line: bytes) -> Event:
    """Read one line, without its line end.

    Raises:
        LogDamaged: the line is not what ``encode`` wrote: cut short, changed, or not an event.
        MetadataVersionUnsupported: it is whole, but of a version this engine does not know.
    """
    if not sealed(line):
        raise LogDamaged("The line does not match its checksum.")
    return _decode_fast(line) or _decode_slowly(line)


def _decode_fast(line: bytes) -> Event | None:
    """The event of a line in exactly the layout of ``encode``; None for any other line, which ``_decode_slowly`` reads or refuses.

    It takes a third of the time of reading any JSON.
    """
    try:
        text = line.decode()
        head = _HEAD.match(text)
        if head is None:
            return None
        data, end = _scanned(text, head.end())
        day_ns = _day_ns(head[2])
    except (LogDamaged, ValueError, RecursionError):
        return None
    if end != len(text) - _SEAL_SIZE or type(data) is not dict:
        return None
    seq, _day, hour, minute, micros, stream, type_, actor = head.groups()
    ts = day_ns + int(hour) * _HOUR_NS + int(minute) * _MINUTE_NS + int(micros[:2] + micros[3:]) * 1000
    return Event(int(seq), ts, stream, type_, actor, data)


def _decode_slowly(line: bytes) -> Event:
    try:
        fields = _parsed(line.decode())
    except (ValueError, RecursionError) as problem:
        raise LogDamaged(f"The line is not JSON: {problem}.") from None
    if not isinstance(fields, dict):
        raise LogDamaged("The line is not a JSON object.")
    if fields.get("v") != _VERSION:
        raise MetadataVersionUnsupported(
            f"The event is of version {fields.get('v')!r}.",
            why=f"This engine reads version {_VERSION}; another engine wrote this log.",
            fix="Use the engine that wrote it, or a newer one.",
        )
    if tuple(fields) != _FIELDS:
        raise LogDamaged(f"The line has the fields {list(fields)}, not {list(_FIELDS)}.")
    _, seq, ts, stream, type, actor, data, _ = fields.values()
    if not (
        isinstance(seq, int) and isinstance(ts, str) and isinstance(stream, str)
        and isinstance(type, str) and actor in ACTORS and isinstance(data, dict)
    ):  # fmt: skip
        raise LogDamaged("A field of the line is not of its type.")
    return Event(seq, _time_ns(ts), stream, type, actor, data)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position between two events: the byte at which the next one starts, and its seq."""

    offset: int = 0
    seq: int = 0


class Damage(NamedTuple):
    """A damaged line: its number from 1, the byte at which it starts, and what is wrong with it."""

    line: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The contents of a part of a log.

    Attributes:
        events: the whole events, in order.
        end: the position after the last of them.
        damaged: damaged lines that others follow.
        torn: bytes after ``end`` that a killed writer left: a last line without its end, or one that fails its checksum.
    """

    events: list[Event] = field(default_factory=list)
    end: Cursor = Cursor()
    damaged: tuple[Damage, ...] = ()
    torn: int = 0


def scan(raw: bytes, stream: str, start: Cursor = Cursor()) -> Scan:
    """Sort the bytes from ``start`` to the end of a log into events, damaged lines and a torn end. Never raises for damage.

    Args:
        raw: the bytes.
        stream: the session they must belong to.
        start: where in the log they begin.

    Raises:
        MetadataVersionUnsupported: a whole line is of a version this engine does not know.
    """
    *lines, rest = raw.split(b"\n")
    events: list[Event] = []
    damaged: list[Damage] = []
    offset, seq, torn = start.offset, start.seq, len(rest)
    end: Cursor | None = None
    if lines and not rest and not sealed(lines[-1]):
        torn = len(lines.pop()) + 1
    for number, line in enumerate(lines, start.seq + 1):
        try:
            event = decode(line)
        except LogDamaged as problem:
            reason = problem.fact
        else:
            # A damaged line may have been one event or several, so after one the count may jump.
            if event.stream == stream and (event.seq == seq or (damaged and event.seq > seq)):
                events.append(event)
                seq = event.seq + 1
                offset += len(line) + 1
                continue
            foreign = event.stream != stream
            reason = f"It belongs to the session {event.stream!r}." if foreign else f"Its seq is {event.seq}, and {seq} comes next."
        end = end or Cursor(offset, seq)
        damaged.append(Damage(number, offset, reason))
        offset += len(line) + 1
    return Scan(events, end or Cursor(offset, seq), tuple(damaged), torn)


_decoder = json.JSONDecoder()
_parsed = _decoder.decode
_scanned = _decoder.raw_decode
# The start of a line as ``encode`` writes it, up to its data; no text in it needs an escape.
_HEAD = re.compile(
    r'\{"v":1,"seq":(0|[1-9][0-9]{0,17}),"ts":"([0-9]{4}-[0-9]{2}-[0-9]{2})T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]\.[0-9]{6})Z"'
    r',"stream":"([A-Za-z0-9_-]+)","type":"([a-z_.]+)","actor":"(human|agent|system)","data":'
)
_any_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _json(value: object) -> str:
    # Most data are a few short texts, and an encoder costs more to set up than those take to write.
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is dict and all(type(key) is str and type(item) is str for key, item in value.items()):
        return "{" + ",".join([f"{encode_basestring(key)}:{encode_basestring(item)}" for key, item in value.items()]) + "}"
    return _any_json(value)


def _time_text(ns: int) -> str:
    second, rest = divmod(ns, 1_000_000_000)
    return f"{_second_text(second)}.{rest // 1000:06d}Z"


def _time_ns(text: str) -> int:
    micros = text[20:26]
    if len(text) != 27 or text[19] != "." or text[26] != "Z" or not (micros.isascii() and micros.isdigit()):
        raise LogDamaged(f"{text!r} is not the time of an event.")
    return _second_ns(text[:19]) + int(micros) * 1000


@lru_cache(maxsize=256)
def _day_ns(text: str) -> int:
    return _second_ns(f"{text}T00:00:00")


# Neighbouring events share their second, and under a frozen clock they share it for a whole test.
@lru_cache(maxsize=256)
def _second_text(second: int) -> str:
    return instant_at(second * 1_000_000_000).isoformat()[:19]


@lru_cache(maxsize=256)
def _second_ns(text: str) -> int:
    try:
        return ns_of(parse_instant(text + "Z"))
    except InvalidInput:
        raise LogDamaged(f"{text!r} is not the time of an event.") from None


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names))


def _unknown_type(type: str, vocabulary: Mapping[str, Kind]) -> InvalidInput:
    if type in LIVE and vocabulary is not LIVE:
        return InvalidInput(
            f"The event {type!r} is announced, not stored.", why="It says nothing about one session.", fix="Make it with live_event()."
        )
    return InvalidInput(
        f"There is no event {type!r}.",
        why="What reads the log would not know it.",
        fix=f"Use one of: {', '.join(vocabulary)}; a new one is added to VOCABULARY first.",
    )
