"""What the server has done, in numbers, for the page, the summary and tests."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rolltape.serving.lookup import LEVELS, Found
from rolltape.serving.miss import Miss

RECENT = 10.0
"""Seconds over which calls per second are counted."""
MOST_SHOWN = 20
"""Of the calls in flight, and of the last misses."""


@dataclass(slots=True)
class Tally:
    """Counts; all on the event loop."""

    calls: Counter[str] = field(default_factory=Counter)
    """asked, recorded, replayed, live, missed, retried, aborted, passed"""
    levels: Counter[str] = field(default_factory=Counter)
    """Answers from the tape, by how they were found."""
    by_content: Counter[str] = field(default_factory=Counter)
    """Calls that samples from anywhere on the tape answered, these samples, and what was generated beside."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that no recording answers, by why."""
    differs: Counter[str] = field(default_factory=Counter)
    """Fields that do not decide which recording answers, and had another value than it."""
    misses: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_SHOWN))
    """The last requests that no recording answered."""
    started: float = field(default_factory=time.monotonic)
    _recent: deque[float] = field(default_factory=deque)
    _in_flight: dict[int, tuple[float, str, str | None, int | None]] = field(default_factory=dict)
    """When each that is not answered yet came in, its path, session and step; the oldest first."""

    @contextmanager
    def asked(self, path: str, session: str | None, step: int | None) -> Iterator[None]:
        """A request has come in; it is in flight until this ends."""
        self.calls["asked"] += 1
        number, now = self.calls["asked"], time.monotonic()
        self._recent.append(now)
        self._forget()
        self._in_flight[number] = now, path, session, step
        try:
            yield
        finally:
            del self._in_flight[number]

    def found(self, found: Found) -> None:
        """A recording answers."""
        if found.again:
            self.calls["retried"] += 1
        else:
            self.calls["replayed"] += 1
            self.levels[found.level] += 1

    def missed(self, path: str, session: str | None, miss: Miss) -> None:
        """No recording answers."""
        self.calls["missed"] += 1
        self.refused[miss.kind] += 1
        self.misses.append({"path": path, "session": session, **miss.to_json()})

    @property
    def per_second(self) -> float:
        self._forget()
        return len(self._recent) / min(RECENT, max(time.monotonic() - self.started, 0.1))

    def _forget(self) -> None:
        limit = time.monotonic() - RECENT
        while self._recent and (self._recent[0] < limit or len(self._recent) > 200_000):
            self._recent.popleft()

    def in_flight(self) -> dict[str, Any]:
        """How many calls are not answered yet, and the oldest of them."""
        now, oldest = time.monotonic(), list(self._in_flight.values())[:MOST_SHOWN]
        return {
            "calls": len(self._in_flight),
            "oldest": [
                {"seconds": round(now - since, 1), "path": path, "session": session, "step": step}
                for since, path, session, step in oldest
            ],
        }

    def to_json(self) -> dict[str, Any]:
        names = ("asked", "recorded", "replayed", "live", "missed", "retried", "aborted", "passed", "failed")
        return {
            "calls": {name: self.calls[name] for name in names},
            "levels": {name: self.levels[name] for name in (*LEVELS, "control")},
            "by_content": {name: self.by_content[name] for name in ("calls", "samples", "generated")},
            "refused": dict(self.refused),
            "differs": dict(self.differs),
            "misses": list(self.misses),
            "in_flight": self.in_flight(),
            "per_second": round(self.per_second, 1),
            "seconds": round(time.monotonic() - self.started, 1),
        }
