"""Transcripts: each step of an agent with its action, its result and the tree after it; and their comparison in a replay.

A transcript holds actions, not the messages of a model's API, so it outlives the libraries that made it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pytest_gittrix.evals.inputs.identity import digest_bytes

Step = dict[str, Any]
Mode = Literal["strict", "lenient"]

ACTIONS: Final = ("run", "write", "delete", "agent")
"""The steps that change files. ``note`` is a message, ``begin`` says what the transcript is of."""

_ACTION: Final = ("do", "argv", "stdin", "path", "data", "data_b64")
_RESULT: Final = ("exit", "output", "tree")
_MOST_SHOWN: Final = 300


class Mismatch(Exception):
    """A replay differs from its transcript; the message shows both sides."""


def begin(base: str, task: str) -> Step:
    """Make the first step, which says what the transcript is of."""
    return {"do": "begin", "base": base, "task": digest_bytes(task.encode(errors="surrogatepass"))}


def data_fields(data: bytes) -> dict[str, str]:
    """Encode bytes as fields of a step, as text where they are UTF-8."""
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"data_b64": base64.b64encode(data).decode("ascii")}


def data_of(step: Mapping[str, Any]) -> bytes:
    """Decode the bytes that ``data_fields`` encoded."""
    if "data_b64" in step:
        return base64.b64decode(step["data_b64"])
    return str(step["data"]).encode()


class ExpectedTranscript:
    """A transcript that the steps of a replay are compared with, one by one.

    Args:
        steps: the transcript.
        mode: ``strict`` compares actions and their results, ``lenient`` actions alone.
    """

    def __init__(self, steps: Sequence[Step], mode: Mode = "strict") -> None:
        self.steps = [step for step in steps if step["do"] in ACTIONS]
        self.first = next((step for step in steps if step["do"] == "begin"), None)
        self._mode = mode
        self._at = 0
        self._mismatch: Mismatch | None = None

    def check_start(self, first: Step) -> None:
        """Compare the first step of a sample with the transcript. Raises Mismatch."""
        if self._mode == "strict" and self.first is not None and self.first != first:
            key = next(name for name in ("base", "task") if self.first.get(name) != first.get(name))
            raise Mismatch(f"the {key} is {first.get(key)}, and {self.first.get(key)} was recorded")

    def check_action(self, step: Step) -> None:
        """Compare an action, before it is done, with the next recorded step. Raises Mismatch."""
        if self._at >= len(self.steps):
            raise self._remember(f"step {self._at + 1}: {_shown(step, _ACTION)}, and no further step was recorded")
        self._compare(step, _ACTION)

    def check_result(self, step: Step) -> None:
        """Compare the result of that action with the same recorded step, and move to the next one. Raises Mismatch."""
        if self._mode == "strict":
            self._compare(step, _RESULT)
        self._at += 1

    def check_end(self) -> None:
        """Check that no recorded step is left, and that the agent suppressed no mismatch. Raises Mismatch."""
        if self._mismatch is not None:
            raise self._mismatch
        left = len(self.steps) - self._at
        if left:
            raise Mismatch(f"{left} recorded steps were not done; the first is {_shown(self.steps[self._at], _ACTION)}")

    def _compare(self, step: Step, names: Sequence[str]) -> None:
        recorded = self.steps[self._at]
        for name in names:
            now, then = step.get(name), recorded.get(name)
            # Trees are compared only if both sides recorded them.
            if now != then and not (name == "tree" and None in (now, then)):
                message = f"step {self._at + 1} ({_shown(recorded, _ACTION)}): {name} is {_cut(now)}, and {_cut(then)} was recorded"
                raise self._remember(message)

    def _remember(self, message: str) -> Mismatch:
        self._mismatch = self._mismatch or Mismatch(message)
        return self._mismatch


def _shown(step: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_cut(step[name])}" for name in names if name in step and name not in ("data", "data_b64", "stdin"))


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"
