"""Connections to the daemon: one whose request does not arrive within some seconds is closed.

Each connection takes a file descriptor of the process, and every user of the machine can open one: idle ones must not keep others out.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE: Final = 20.0
"""Seconds from the first byte, or from the connection, until the head of a request must be there."""


class Connection(H11Protocol):
    """uvicorn's connection, with a time limit for the head of a request; uvicorn waits for it without a limit."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request of a new connection."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, and wait for the head of the next request."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting: the connection has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        """Start the time limit while the head of a request is awaited. More bytes of the same head do not prolong it."""
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
