"""Several requests at once: the time of many small requests is waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 16


def together(act: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """What ``act`` says of each item, in order; raises what the first one that failed raised."""
    if len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), "rolltape-requests") as pool:
        return list(pool.map(act, items))


def coalesced(spans: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Fewer spans of (offset, length) that cover all of these, joined where less than ``gap`` is between.

    >>> coalesced([(0, 10), (12, 5), (100, 1)], gap=4)
    [(0, 17), (100, 1)]
    """
    joined: list[tuple[int, int]] = []
    for offset, length in sorted(span for span in spans if span[1]):
        if joined and offset <= sum(joined[-1]) + gap:
            start, before = joined[-1]
            joined[-1] = (start, max(start + before, offset + length) - start)
        else:
            joined.append((offset, length))
    return joined
