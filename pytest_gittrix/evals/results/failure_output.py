"""What the agent and the checks of a sample printed before they failed, as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.safe_text import visible, visible_line

_MOST_LINES: Final = 40


def failure_lines(store: RunStore, record: Record) -> list[str]:
    """The lines that the failed programs of a sample printed, and the traceback of an agent or a run that raised.

    Args:
        store: the run.
        record: the record of the sample.
    """
    lines = []
    if record.outcome in ("agent_error", "timeout"):
        lines += [line for step in store.lines("transcripts", record.key)[-1:] for line in _printed(step)]
    for step in store.lines("timing", record.key):
        lines += _printed(step)
    return lines


def _printed(step: Mapping[str, Any]) -> list[str]:
    """What a step printed; nothing for a program that succeeded."""
    name = f"check {step['check']}" if "check" in step else "agent" if "exit" in step or "agent" in step else "run"
    if "said" in step:
        return _section(f"model, {step['model']}", str(step["said"]))
    if "cure" in step:
        return [visible_line(str(step["cure"]))]
    if "traceback" in step:
        return _section(f"{name}, traceback", str(step["traceback"]))
    if "stdout" not in step or (step.get("exit") == 0 and not step.get("timed_out")):
        return []
    return [line for stream in ("stdout", "stderr") for line in _section(f"{name}, {stream}", str(step.get(stream, "")))]


def _section(title: str, text: str) -> list[str]:
    lines = visible(text).rstrip().splitlines()
    left_out = len(lines) - _MOST_LINES
    if not lines:
        return []
    return [f"{title}{f' (without the first {left_out} lines)' if left_out > 0 else ''}:", *(f"  {line}" for line in lines[-_MOST_LINES:])]
