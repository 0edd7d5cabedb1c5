"""Times as figures: of the fastest rounds, and the median of paired ratios. Needs no torch."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from benchmarks.promises import Figure


def times_faster(ours: list[float], theirs: list[float]) -> Figure:
    """How many times faster ours is: by the fastest rounds, and the median of the paired ratios."""
    pairs = zip(ours, theirs, strict=True)
    return Figure(min(theirs) / min(ours), statistics.median(b / a for a, b in pairs))


def share(ours: list[float], theirs: list[float]) -> Figure:
    """How many times theirs ours takes, in the same way."""
    return times_faster(theirs, ours)


def timed(action: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each call, after one that is not counted."""
    action()
    taken = []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return taken
