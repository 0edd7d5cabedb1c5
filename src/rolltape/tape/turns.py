"""Short turns at the interpreter while recordings are read ahead.

A thread that wants Python's lock waits until the one that has it has had its turn, 5 ms unless somebody
asked for something else. Reading a recording wants it some hundred times, so beside a trainer that computes
in Python it would take a second. With short turns it is done long before the batch is asked for, and the
trainer goes on as before: what it gives away is what reading takes, and a few microseconds each time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN = 0.0001
"""Seconds."""
_HALF = 5e-7
"""Half a microsecond: the interpreter keeps whole ones, and cuts off the rest."""


def _set(seconds: float) -> None:
    sys.setswitchinterval(seconds + _HALF)


class _Turns:
    """How many are reading, and how long turns were before the first of them began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._before: float | None = None

    def begin(self) -> None:
        with self._lock:
            if not self._readers:
                self._before = sys.getswitchinterval()
                _set(min(self._before, TURN))
            self._readers += 1

    def end(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self.restore()
                self._before = None

    def restore(self) -> None:
        """Turns as they were, unless somebody has asked for something else since."""
        before = self._before
        if before is not None and abs(sys.getswitchinterval() - min(before, TURN)) < _HALF:
            _set(before)


_turns = _Turns()


def _renew() -> None:
    """After a fork nobody reads here, and the lock may be held by a thread that is not here."""
    global _turns
    _turns.restore()
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def short_turns() -> Iterator[None]:
    """All threads of this process take short turns until this is left; several may be inside at once."""
    turns = _turns
    turns.begin()
    try:
        yield
    finally:
        turns.end()
