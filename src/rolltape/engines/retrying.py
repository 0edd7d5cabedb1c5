"""When to ask a server again, and how long to wait before. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that another attempt may change: too busy, starting up, or failed at this one."""
_FIRST, _LONGEST = 0.5, 30.0


def wait_before(attempt: int, retry_after: float | None, random: Callable[[], float]) -> float:
    """Seconds before try 1, 2, …: what the server asks for, else twice as long each time, half of it chance.

    >>> [wait_before(attempt, None, lambda: 1.0) for attempt in (1, 2, 3, 10)]
    [0.5, 1.0, 2.0, 30.0]
    >>> wait_before(1, 7.0, lambda: 1.0)
    7.0
    """
    grown = min(_LONGEST, _FIRST * 2.0 ** (attempt - 1))
    own = grown * (0.5 + random() / 2)  # so that all who were refused together do not come back together
    return retry_after or own


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """The header ``Retry-After`` in seconds, from either of its forms; None if it makes no sense.

    >>> parse_retry_after("3"), parse_retry_after("soon")
    (3.0, None)
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        seconds = (when - (now or datetime.now(timezone.utc))).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
