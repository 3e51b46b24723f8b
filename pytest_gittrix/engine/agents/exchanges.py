"""Stores what an agent and its model said to each other as events of the agent's session."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pytest_gittrix.engine.operations.attachments import attach
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.model.conversations import readable
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer
from pytest_gittrix.model.tapes.matching import key_of
from pytest_gittrix.model.tapes.neutral import request_to_json

_WAIT: Final = 2.0
"""Real seconds to wait for another operation on the session; the agent's answer waits, too."""


def record_exchange(recorder: Recorder, exchange: Exchange, *, keep_content: bool = False) -> None:
    """Store an exchange as a ``model.exchange`` event of a session. One that cannot be stored is dropped: the agent waits for its answer.

    Args:
        recorder: of the session, used by this alone.
        exchange: what was asked, and what it got.
        keep_content: whether what was said is stored next to the log, too. It may have secrets.
    """
    with suppress(GittrixError, OSError), recorder.leased(wait=_WAIT):
        data = _data_of(exchange)
        if keep_content:
            text = readable([exchange]).encode("utf-8", "surrogatepass")
            data["content"] = attach(recorder.directory, text, sync=recorder.store.durability == "full")
        recorder.append("model.exchange", data)


def _data_of(exchange: Exchange) -> dict[str, Any]:
    content = exchange.content
    data: dict[str, Any] = {
        "number": exchange.number,
        "protocol": exchange.request.protocol,
        "model": exchange.request.model,
        "digest": key_of(request_to_json(exchange.request)),
        "input": exchange.usage.input,
        "output": exchange.usage.output,
        "duration_ns": round(exchange.seconds * 1e9),
        "delivered": exchange.delivered,
    }
    if isinstance(content, Answer):
        data["calls"] = [call.name for call in content.calls]
    else:
        data["failure"] = content.kind
    return data | {name: value for name in ("fault", "side") if (value := getattr(exchange, name)) is not None}
