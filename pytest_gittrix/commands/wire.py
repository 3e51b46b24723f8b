"""The format between the command line and a daemon: the result of a command as JSON and back."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

from pytest_gittrix.commands.output import CommandResult, Diff, Table


def encode_result(result: CommandResult) -> dict[str, Any]:
    """A result as JSON, from which :func:`decode_result` makes the same result."""
    match result.output:
        case bytes(raw):
            output: dict[str, Any] = {"bytes": binascii.b2a_base64(raw, newline=False).decode("ascii")}
        case Table() as table:
            output = {"table": table._asdict()}
        case Diff(text):
            output = {"diff": text}
        case text:
            output = {"text": text}
    return {"data": result.data, "shown": output, "notes": list(result.notes)}


def decode_result(encoded: Mapping[str, Any], status: int) -> CommandResult:
    """The result that :func:`encode_result` encoded."""
    output: str | bytes | Table | Diff
    match encoded["shown"]:
        case {"bytes": text}:
            output = binascii.a2b_base64(text)
        case {"table": table}:
            rows = [tuple(row) for row in table["rows"]]
            output = Table(tuple(table["headings"]), rows, table["elastic"], table["styles"])
        case {"diff": text}:
            output = Diff(text)
        case other:
            output = other["text"]
    return CommandResult(encoded["data"], output, tuple(encoded["notes"]), status)
