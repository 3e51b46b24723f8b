"""Stores of many sessions that never were: logs as the engine writes them, without the engine. Must not measure anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.state.fold import Policy

START_NS: Final = 1_893_456_000 * 10**9
APART_NS: Final = 10**9
"""How far apart two sessions begin."""
AGENTS, RIGS, UNITS, LINE = 2_000, 8, 2_500, 3
"""How many agents, rigs and pieces of work there are, and how many sessions one line of handoffs has."""


def id_of(number: int) -> str:
    """The id of a session."""
    return f"sess_{number:012d}"


def fill(root: Path, sessions: int, *, events: int) -> None:
    """Write a store of ended sessions.

    Args:
        root: its directory, which is made.
        sessions: how many.
        events: how many each has: three at least, for the start and the end; the rest is talk.
    """
    root.mkdir(parents=True)
    for number in range(sessions):
        directory = root / id_of(number)
        directory.mkdir()
        (directory / "events.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in _history(root, number, events)))


def _history(root: Path, number: int, events: int) -> Iterator[Event]:
    id_, born = id_of(number), START_NS + number * APART_NS
    workspace = f"{root}/{id_}/workspace"
    yield Event(0, born, id_, "session.created", "human", _created(number, workspace))
    yield Event(1, born, id_, "workspace.ready", "system", {"path": workspace})
    for seq in range(2, events - 1):
        yield Event(seq, born + seq * 10_000_000, id_, *_said(seq))
    outcome = ("handoff", "done", "crash")[number % LINE]
    yield Event(events - 1, born + events * 10_000_000, id_, "session.ended", "human", {"state": "discarded", "outcome": outcome})


def _created(number: int, workspace: str) -> dict[str, Any]:
    first = id_of(number - number % LINE)
    lineage = {"parent": id_of(number - 1), "relation": "handoff", "chain": first, "root": first}
    return {
        "task": f"Task number {number}",
        "durable_ref": "local:///srv/project#main",
        "durable_path": "/srv/project",
        "durable_branch": "main",
        "baseline": f"{number:040x}",
        "ephemeral_ref": f"local://{workspace}",
        "workspace": workspace,
        "workspace_kind": "clone",
        "git_backed": True,
        "policy": Policy().to_data(),
        "format": "sha1",
        "history": "none",
        "identity": {"agent": f"agent-{number % AGENTS}", "rig": f"rig-{number % RIGS}", "work_unit": f"unit-{number % UNITS}"},
        **({"lineage": lineage} if number % LINE else {}),
    }


def _said(seq: int) -> tuple[str, str, dict[str, Any]]:
    call = f"call_{seq - seq % 4}"
    turn: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("tool_call", "agent", {"call_id": call, "name": "bash", "args": {"command": "make test", "timeout": seq}}),
        ("tool_result", "agent", {"call_id": call, "ok": True, "output": "one line of what the tool printed, and another one"}),
        ("assistant_message", "agent", {"text": f'Step {seq} is done, and the tests say "passed".'}),
        ("user_message", "human", {"text": f"Please go on after step {seq}."}),
    )
    return turn[seq % 4]
