"""What an agent did, step by step: the action, what came of it, and the tree after it; and how that is held against another time.

A transcript is of actions, not of a model's words over a wire, so it outlives the libraries that made it (the eval research, 1.11).
Must not know how actions are done.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pytest_gittrix.evals.inputs.identity import digest_bytes

Step = dict[str, Any]
Mode = Literal["strict", "lenient"]

ACTIONS: Final = ("run", "write", "delete", "agent")
"""What changes files. ``note`` says something, ``begin`` says what the transcript is of."""

_ACTION: Final = ("do", "argv", "stdin", "path", "data", "data_b64")
_RESULT: Final = ("exit", "output", "tree")
_MOST_SHOWN: Final = 300


class Mismatch(Exception):
    """A replay went another way than what was recorded; the message shows both sides."""


def begin(base: str, task: str) -> Step:
    """The first step: what the transcript is of."""
    return {"do": "begin", "base": base, "task": digest_bytes(task.encode(errors="surrogatepass"))}


def data_fields(data: bytes) -> dict[str, str]:
    """Bytes as fields of a step: text where they are text."""
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"data_b64": base64.b64encode(data).decode("ascii")}


def data_of(step: Mapping[str, Any]) -> bytes:
    """The bytes that ``data_fields`` put into a step."""
    if "data_b64" in step:
        return base64.b64decode(step["data_b64"])
    return str(step["data"]).encode()


class ExpectedTranscript:
    """A transcript that actions are held against, one by one.

    Args:
        steps: the transcript.
        mode: ``strict`` compares what was check_action and what came of it; ``lenient`` what was check_action alone.
    """

    def __init__(self, steps: Sequence[Step], mode: Mode = "strict") -> None:
        self.steps = [step for step in steps if step["do"] in ACTIONS]
        self.first = next((step for step in steps if step["do"] == "begin"), None)
        self._mode = mode
        self._at = 0
        self._mismatch: Mismatch | None = None

    def check_start(self, first: Step) -> None:
        """Hold the start of a sample against the transcript's. Raises Mismatch."""
        if self._mode == "strict" and self.first is not None and self.first != first:
            key = next(name for name in ("base", "task") if self.first.get(name) != first.get(name))
            raise Mismatch(f"the {key} is {first.get(key)}, and {self.first.get(key)} was recorded")

    def check_action(self, step: Step) -> None:
        """Hold what is about to be done against the next step. Raises Mismatch."""
        if self._at >= len(self.steps):
            raise self._remember(f"step {self._at + 1}: {_shown(step, _ACTION)}, and no further step was recorded")
        self._compare(step, _ACTION)

    def check_result(self, step: Step) -> None:
        """Hold what came of it against the same step, and go on. Raises Mismatch."""
        if self._mode == "strict":
            self._compare(step, _RESULT)
        self._at += 1

    def check_end(self) -> None:
        """See that nothing recorded is left, and that no mismatch was passed over in silence. Raises Mismatch."""
        if self._mismatch is not None:
            raise self._mismatch
        left = len(self.steps) - self._at
        if left:
            raise Mismatch(f"{left} recorded steps were not done; the first is {_shown(self.steps[self._at], _ACTION)}")

    def _compare(self, step: Step, names: Sequence[str]) -> None:
        recorded = self.steps[self._at]
        for name in names:
            now, then = step.get(name), recorded.get(name)
            # A tree that was not taken on one of the sides tells nothing.
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
