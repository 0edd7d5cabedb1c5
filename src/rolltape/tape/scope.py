"""Which step a piece of code belongs to: per thread and per asyncio task, for each tape."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_scopes: ContextVar[dict[int, Scope]] = ContextVar("rolltape_scopes")
_scopes.set({})


class Scope:
    """One ``with tape.step(...)`` block."""

    def __init__(self, step: int, split: str, key: str | None) -> None:
        self.step = step
        self.split = split
        self.key = key
        self.metrics: dict[str, Any] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def next_call(self, stage: str) -> int | str:
        """The number of this call of the stage within the step; calls the caller named keep their name."""
        with self._lock:
            count = self._calls.get(stage, 0)
            self._calls[stage] = count + 1
        if self.key is None:
            return count
        return self.key if not count else f"{self.key}#{count}"


def current(tape_id: int) -> Scope | None:
    """The innermost block of this tape that the calling code is in."""
    return _scopes.get({}).get(tape_id)


@contextmanager
def entered(tape_id: int, scope: Scope) -> Iterator[None]:
    """Make ``scope`` the current one inside the block."""
    token = _scopes.set({**_scopes.get({}), tape_id: scope})
    try:
        yield
    finally:
        _scopes.reset(token)
