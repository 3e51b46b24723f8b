"""The page of one session: what its agent and its model said, programs, files, commits and promotions in the order of time, and the diff.

All text from an agent, a model or a repository is escaped by the template. The page works from a file, without a network or scripts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.engine.operations.attachments import attached
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.report.page import part, render_plain, write_page
from pytest_gittrix.report.side_by_side import file_diffs
from pytest_gittrix.views.timeline import TimelineEntry, timeline

_MOST_ENTRIES: Final = 2_000
_MOST_LINES: Final = 2_000
_MOST_TEXT: Final = 8_000
_SAID: Final = ("user_message", "assistant_message", "tool_call", "tool_result", "reasoning")
_WORDS: Final = {
    "model": "exchanges",
    "program": "program events",
    "file": "file changes",
    "commit": "commits",
    "promotion": "promotions",
}


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One entry of the page's timeline.

    Attributes:
        kind: a word: ``model``, ``file``, ``commit`` and so on.
        text: what happened, in a line.
        instant: when, as RFC 3339.
        seq: the number of its event; None without one.
        anchor: the end of its address on the page.
        summary: the line that its details open under.
        details: who said what.
        wrong: whether something went wrong.
    """

    kind: str
    text: str
    instant: str
    seq: int | None
    anchor: str
    summary: str = ""
    details: tuple[tuple[str, str], ...] = ()
    wrong: bool = False

    @property
    def at(self) -> str:
        """The time of the day."""
        return self.instant[11:23]

    @property
    def open(self) -> bool:
        """Whether its details are shown at first."""
        return self.wrong


@dataclass(frozen=True, slots=True)
class SessionView:
    """What a page shows of a session.

    Attributes:
        state: the session.
        events: its events.
        directory: of its record.
        patch: its changes; None if they are not known any more.
        commits: of its agent, each with its time in nanoseconds, its id and its message.
    """

    state: SessionState
    events: Sequence[Event]
    directory: Path
    patch: bytes | None
    commits: tuple[tuple[int, str, str], ...] = ()


def write_session_page(view: SessionView, file: Path) -> Path:
    """Write the page of a session to a file; returns it. Raises OSError: the file cannot be written."""
    return write_page(file, session_page(view))


def session_page(view: SessionView) -> str:
    """The page of a session as HTML."""
    return render_plain("session.html", s=session_cards(view))


def session_cards(view: SessionView, at: str = "") -> dict[str, Any]:
    """What the templates print of a session; ``at`` begins its addresses on a page with several."""
    state, by_seq = view.state, {event.seq: event for event in view.events}
    moments = timeline(view.events, view.commits)
    entries = [
        _entry(view, one, number, None if one.seq is None else by_seq.get(one.seq)) for number, one in enumerate(moments[:_MOST_ENTRIES])
    ]
    files = file_diffs(view.patch or b"", most_lines=_MOST_LINES)
    counted = Counter(one.what for one in moments)
    promoted = next((event for event in reversed(view.events) if event.type in ("promote.done", "promote.kept")), None)
    return {
        "id": state.id,
        "at": at,
        "title": f"{state.task.partition(chr(10))[0][:80]}: {state.id}",
        "heading": state.task.partition("\n")[0][:300],
        "verdict": _verdict(state, promoted),
        "counts": [
            (counted[kind], words if counted[kind] != 1 else words.removesuffix("s")) for kind, words in _WORDS.items() if counted[kind]
        ],
        "facts": [*_facts(state)],
        "entries": entries,
        "left_out": max(0, len(moments) - _MOST_ENTRIES),
        "files": files,
        "changes": part("changes", files, f"gittrix session diff {state.id}"),
        "changes_title": "What the session has changed" if not state.ended else "What it had changed",
        "changes_note": _changes_note(view, promoted),
    }


def _verdict(state: SessionState, promoted: Event | None) -> str:
    if promoted is not None:
        return f"Promoted to {promoted.data['branch']} as {promoted.data['commit'][:12]}."
    if not state.ended:
        return "Active; nothing of it is promoted."
    return f"Ended: {', '.join(filter(None, [state.state, state.outcome]))}."


def _changes_note(view: SessionView, promoted: Event | None) -> str:
    if view.patch is None:
        where = f" What was promoted is commit {promoted.data['commit']}." if promoted is not None else ""
        return f"The workspace is gone, and its changes are not shown.{where}"
    return "" if view.patch else "Nothing differs from the baseline."


def _facts(state: SessionState) -> Iterator[tuple[str, str]]:
    yield "baseline", f"{state.baseline[:12]} of {state.durable_branch}"
    yield "began", format_instant(instant_at(state.created_ns))
    if state.ended_ns is not None:
        yield "ended", format_instant(instant_at(state.ended_ns))
    if state.lineage is not None:
        yield (
            state.lineage.relation,
            f"of {state.lineage.parent}" + (f" after event {state.lineage.at_seq}" if state.lineage.at_seq is not None else ""),
        )
    yield from ((name.replace("_", " "), str(value)) for name, value in state.identity.items())
    if state.workspace is not None:
        yield "workspace", f"{state.workspace_kind}, {state.workspace if state.workspace_present else 'removed'}"


def _entry(view: SessionView, one: TimelineEntry, number: int, event: Event | None) -> SessionEntry:
    instant = format_instant(instant_at(one.at_ns))
    details: tuple[tuple[str, str], ...] = ()
    summary, wrong = "", False
    if event is not None:
        wrong = _is_wrong(event)
        if event.type == "model.exchange":
            details, summary = _exchange(view.directory, event.data), "What was said"
        elif event.type in _SAID:
            text = json.dumps(event.data, ensure_ascii=False, indent=1) if "text" not in event.data else str(event.data["text"])
            details, summary = ((event.type.replace("_", " "), _clipped(text)),), "All of it"
        elif event.type == "run.started" and len(event.data["command"]) > len(one.text) - 20:
            details, summary = (("command", _clipped(event.data["command"])),), "The whole command"
    return SessionEntry(
        one.what, one.text, instant, one.seq, str(one.seq if one.seq is not None else f"c{number}"), summary, details, wrong
    )


def _is_wrong(event: Event) -> bool:
    data = event.data
    if event.type == "model.exchange":
        return "failure" in data or data.get("delivered") is False or "fault" in data
    if event.type == "run.ended":
        return bool(data.get("code")) or "signal" in data or "reason" in data
    return event.type in ("promote.conflict", "promote.aborted", "turn_failed") or data.get("ok") is False


def _exchange(directory: Path, data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What was said in an exchange, as far as it was kept: what came new, and the answer."""
    with suppress(GittrixError, OSError, ValueError):
        if "tape" in data:
            return tuple(_spoken(json.loads(attached(directory, data["tape"]))))
        if "content" in data:
            return (("conversation", _clipped(attached(directory, data["content"]).decode("utf-8", "replace"))),)
    return ()


def _spoken(line: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for message in line.get("rewritten", line.get("new", ())):
        if isinstance(message, Mapping):
            for role, parts in message.items():
                yield from ((role, text) for text in _texts(parts))
    if "failure" in line:
        yield "failure", f"{line['failure']} {line.get('message', '')}"
    yield from (("model", text) for text in _texts(line.get("answer", ())))
    if line.get("stop") in ("length", "refusal"):
        yield "model stopped", line["stop"]


def _texts(parts: Iterable[Any]) -> Iterator[str]:
    for part_ in parts:
        if isinstance(part_, str):
            yield _clipped(part_)
        elif "thinking" in part_:
            yield _clipped(f"(thinks) {part_['thinking']}")
        elif "call" in part_:
            given = part_.get("arguments", {})
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items()) if isinstance(given, Mapping) else str(given)
            yield _clipped(f"calls {part_['call']}({shown})")
        elif "result" in part_:
            yield _clipped(f"result{' (failed)' if part_.get('failed') else ''}: {part_.get('text', '')}")
        else:
            yield f"({part_.get('other', 'something else')})"


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n… {len(text) - _MOST_TEXT} more characters"
