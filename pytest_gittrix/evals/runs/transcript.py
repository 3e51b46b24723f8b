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

_ASKED: Final = ("do", "argv", "stdin", "path", "data", "data_b64")
_FOUND: Final = ("exit", "output", "tree")
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


class Script:
    """A transcript that actions are held against, one by one.

    Args:
        steps: the transcript.
        mode: ``strict`` compares what was asked and what came of it; ``lenient`` what was asked alone.
    """

    def __init__(self, steps: Sequence[Step], mode: Mode = "strict") -> None:
        self.steps = [step for step in steps if step["do"] in ACTIONS]
        self.first = next((step for step in steps if step["do"] == "begin"), None)
        self._mode = mode
        self._at = 0
        self._parted: Mismatch | None = None

    def starts(self, first: Step) -> None:
        """Hold the start of a sample against the transcript's. Raises Mismatch."""
        if self._mode == "strict" and self.first is not None and self.first != first:
            key = next(name for name in ("base", "task") if self.first.get(name) != first.get(name))
            raise Mismatch(f"the {key} is {first.get(key)}, and {self.first.get(key)} was recorded")

    def asked(self, step: Step) -> None:
        """Hold what is about to be done against the next step. Raises Mismatch."""
        if self._at >= len(self.steps):
            raise self._part(f"step {self._at + 1}: {_shown(step, _ASKED)}, and no further step was recorded")
        self._compare(step, _ASKED)

    def found(self, step: Step) -> None:
        """Hold what came of it against the same step, and go on. Raises Mismatch."""
        if self._mode == "strict":
            self._compare(step, _FOUND)
        self._at += 1

    def ends(self) -> None:
        """See that nothing recorded is left, and that no mismatch was passed over in silence. Raises Mismatch."""
        if self._parted is not None:
            raise self._parted
        left = len(self.steps) - self._at
        if left:
            raise Mismatch(f"{left} recorded steps were not done; the first is {_shown(self.steps[self._at], _ASKED)}")

    def _compare(self, step: Step, names: Sequence[str]) -> None:
        recorded = self.steps[self._at]
        for name in names:
            now, then = step.get(name), recorded.get(name)
            # A tree that was not taken on one of the sides tells nothing.
            if now != then and not (name == "tree" and None in (now, then)):
                told = f"step {self._at + 1} ({_shown(recorded, _ASKED)}): {name} is {_cut(now)}, and {_cut(then)} was recorded"
                raise self._part(told)

    def _part(self, told: str) -> Mismatch:
        self._parted = self._parted or Mismatch(told)
        return self._parted


def _shown(step: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_cut(step[name])}" for name in names if name in step and name not in ("data", "data_b64", "stdin"))


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"
