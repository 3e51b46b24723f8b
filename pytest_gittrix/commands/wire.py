"""What a daemon and a command say to each other: which commands it runs, and an answer as JSON and back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from pytest_gittrix.commands.output import Answer, Diff, Table

REMOTE: Final = frozenset({"session", "promote", "sweep", "recover", "member"})
"""The areas whose commands a daemon runs."""


def encoded(answer: Answer) -> dict[str, Any]:
    """An answer as JSON, from which :func:`decoded` makes the same."""
    shown = answer.shown
    told: dict[str, Any]
    if isinstance(shown, bytes):
        told = {"bytes": base64.b64encode(shown).decode("ascii")}
    elif isinstance(shown, Table):
        told = {"table": shown._asdict()}
    else:
        told = {"diff": shown.text} if isinstance(shown, Diff) else {"text": shown}
    return {"data": answer.data, "shown": told, "notes": list(answer.notes)}


def decoded(told: Mapping[str, Any], status: int) -> Answer:
    """What was encoded."""
    shown: str | bytes | Table | Diff
    match told["shown"]:
        case {"bytes": text}:
            shown = base64.b64decode(text)
        case {"table": table}:
            rows = [tuple(row) for row in table["rows"]]
            shown = Table(tuple(table["headings"]), rows, table["elastic"], table["styles"])
        case {"diff": text}:
            shown = Diff(text)
        case other:
            shown = other["text"]
    return Answer(told["data"], shown, tuple(told["notes"]), status)
