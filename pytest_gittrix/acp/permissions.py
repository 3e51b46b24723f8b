"""Who decides what an agent asks permission for. Whatever is allowed, the agent stays confined, and cannot promote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

Policy = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str | Awaitable[str | None] | None]
"""Decides about a tool call, given the call and the options (``optionId``, ``name``, ``kind``) as the protocol's JSON has them.

It returns the ``optionId`` of one option, or None for an answer of ``cancelled``. It may wait for a person: a coroutine function is
awaited, and any other is called in a thread of its own. Once the turn is over or cancelled, its answer is no longer waited for.
"""


def allow(call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:  # noqa: ARG001  (a policy)
    """Allow each call, once."""
    return _first(options, "allow_once", "allow_always")


def reject(call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:  # noqa: ARG001  (a policy)
    """Reject each call, once."""
    return _first(options, "reject_once", "reject_always")


def _first(options: Sequence[Mapping[str, Any]], *kinds: str) -> str | None:
    return next((option["optionId"] for kind in kinds for option in options if option["kind"] == kind), None)
