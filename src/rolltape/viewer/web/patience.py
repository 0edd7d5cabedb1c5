"""How long a connection may take to say what it wants: half a request must not hold a place for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from rolltape.viewer.library import missing

try:
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing(error, "view") from error

PATIENCE = 10.0
"""Seconds until a request has to be complete."""


class Impatient(H11Protocol):  # type: ignore[misc]
    """uvicorn's protocol, which ends connections that begin a request and do not finish it."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        else:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()  # until the next request begins it is idle, for which uvicorn has a limit

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:  # counted from the first byte: one byte at a time gains nothing
            self._waiting = self.loop.call_later(PATIENCE, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
