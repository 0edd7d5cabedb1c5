"""A store with latency and throttling, and ranks that record one call of a stage to it; no clock, no network.

Every rank does what the library does, request by request: looks whether the step is there, puts its shard,
looks for those of the others (beginning behind itself, until one is missing), of many asks for a list and
puts a claim, and commits if it finds all.
The store answers after its latency; above its rates it answers SlowDown, and the rank tries again later.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

from benchmarks.scale_model import AT_ONCE, LOOKS, Store, pages

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between two tries: doubled each time, a random part of it."""
BURST = 0.25
"""Seconds' worth of requests that a store takes at once."""

COMMIT, VOID, CLAIM, ALL = -1, -2, -3, -4
Request = tuple[str, int, bool]
"""Its kind, of which rank's shard, or of the commit and the like, and whether its answer is waited for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The mean of several calls."""

    gets: float
    puts: float
    heads: float
    lists: float
    refused: float
    seconds: float
    """From the first arrival until the call was committed."""


class _Bucket:
    """So many requests a second, and a few at once."""

    def __init__(self, rate: float) -> None:
        self._rate, self._most = rate, max(rate * BURST, 1.0)
        self._tokens, self._at = self._most, 0.0

    def takes(self, now: float) -> bool:
        self._tokens = min(self._tokens + (now - self._at) * self._rate, self._most)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def simulate(ranks: int, spread: float, store: Store, calls: int = 3, seed: int = 0) -> Seen:
    """Record this many calls, one after the other, and say what each took on average."""
    dice = random.Random(seed)
    seen = [_call(ranks, spread, store, dice) for _ in range(calls)]
    return Seen(
        gets=statistics.mean(count["GET"] for count, _ in seen),
        puts=statistics.mean(count["PUT"] for count, _ in seen),
        heads=statistics.mean(count["HEAD"] for count, _ in seen),
        lists=statistics.mean(count["LIST"] for count, _ in seen),
        refused=statistics.mean(count["refused"] for count, _ in seen),
        seconds=statistics.mean(seconds for _, seconds in seen),
    )


def _call(ranks: int, spread: float, store: Store, dice: random.Random) -> tuple[Counter[str], float]:
    writes, reads = _Bucket(store.writes_per_second), _Bucket(store.reads_per_second)
    there: set[int] = set()
    count: Counter[str] = Counter()
    done = 0.0
    turns = {rank: _rank(rank, ranks) for rank in range(ranks)}
    # When, a number that keeps the order of equals, whose turn it is, what it asks, how often it was refused.
    events: list[tuple[float, int, int, Request, int]] = []
    for rank, turn in turns.items():
        events.append((dice.uniform(0, spread), rank, rank, next(turn), 0))
    heapq.heapify(events)
    number = ranks
    while events:
        now, _, rank, (kind, of, waits), tries = heapq.heappop(events)
        number += 1
        bucket = writes if kind in ("PUT", "DELETE") else reads
        if not bucket.takes(now):
            count["refused"] += 1
            wait = min(FIRST_WAIT * 2**tries, LONGEST_WAIT) * dice.uniform(0.5, 1.0)
            again = kind, of, waits
            heapq.heappush(events, (now + store.latency + wait, number, rank, again, tries + 1))
            continue
        count[kind] += 1
        answer = len(there - {CLAIM, COMMIT}) == ranks if of == ALL else of in there
        if kind == "PUT":
            there.add(of)
        if kind == "DELETE":
            there.discard(of)
        if of == COMMIT and kind == "PUT":
            done = max(done, now + store.latency)
        try:
            request = turns[rank].send(answer)
        except StopIteration:
            continue
        heapq.heappush(events, (now + store.latency * waits, number, rank, request, 0))
    return count, done


def _rank(rank: int, ranks: int) -> Generator[Request, bool, None]:
    """What one rank asks. It is told whether what it asks for was there before."""
    yield "HEAD", rank, True
    yield "HEAD", COMMIT, True
    yield "PUT", rank, True
    behind = [(rank + ahead) % ranks for ahead in range(1, ranks)]
    for other in behind[:LOOKS]:
        if not (yield "GET", other, True):
            return
    if len(behind) <= LOOKS:
        yield from _commit(rank)
        return
    whole = yield "LIST", ALL, True
    for _ in range(1, pages(ranks)):
        yield "LIST", ALL, True
    if not whole:
        return
    if (yield "PUT", CLAIM, True):
        yield "GET", COMMIT, True  # at its next step
        return
    for other in behind[:LOOKS]:
        yield "GET", other, True
    for at, other in enumerate(behind[LOOKS:], 1):
        yield "GET", other, at % AT_ONCE == 0 or at == len(behind) - LOOKS
    yield from _commit(rank)
    yield "DELETE", CLAIM, True


def _commit(rank: int) -> Generator[Request, bool, None]:
    yield "GET", rank, True
    yield "GET", VOID, True
    if (yield "PUT", COMMIT, True):
        yield "GET", COMMIT, True  # another rank was as quick: does it say the same?
