"""Connections to the daemon: one whose request does not come within some seconds is closed.

Each connection takes a file of the process, and anybody on the machine can open one: those who only open them must not keep others out. It
must not know what a request is about.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE: Final = 20.0
"""Seconds from the first byte, or from the connection, until the head of a request must be there."""


class Connection(H11Protocol):
    """A connection of uvicorn's, which by itself waits for the head of a request for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        """Wait no longer than it may take. More bytes of the same head do not prolong it."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(PATIENCE, self._give_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()
