"""What a run of many ranks asks of an object store: requests, bytes, money and time. Arithmetic only.

    python -m benchmarks.scale_model         the tables of docs/scale.md

What one call of a stage costs was counted on a real server (tests/store/test_request_counts.py checks it);
scale_simulation.py plays the same requests against a store with latency and throttling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

RECORDED = {"PUT": 1, "HEAD": 1}
"""Requests of recording one call of a stage by one process."""
SHARED = {"HEAD": 1}
"""Of each rank besides, where there are several: whether the call is complete."""
LOGGED = {"PUT": 1}
"""Of a line of metrics, which one rank logs at each step."""
COMMITTED = {"PUT": 1, "GET": 2}
"""Of a rank that has found the shards of all others; if another was first, it reads once more."""
LOOKS = 8
"""Shards of others that a rank looks for one by one; with more ranks than that it then asks for a list."""
AT_ONCE = 16
"""Shards that are read side by side by the one rank that completes the call."""
PAGE = 1000
"""Names in one answer to a LIST."""
REPLAYED = {"HEAD": 3, "GET": 1}
"""Of replaying one call; the trainer waits for the first HEAD, the rest is read ahead."""
OPENED = {"GET": 1, "LIST": 2, "HEAD": 2}
"""Of opening a tape for replay, one after the other."""
FIRST = 3
"""Requests one after the other until the first recording is there: HEAD, GET, and once `tape.json`."""


@dataclass(frozen=True, slots=True)
class Store:
    """What a store does, and what it charges."""

    latency: float = 0.02
    """Seconds of a request, before its bytes."""
    writes_per_second: float = 3500
    """PUT, POST and DELETE for one prefix, before the store answers SlowDown."""
    reads_per_second: float = 5500
    """GET and HEAD, likewise."""
    dollars_per_1000_writes: float = 0.005
    """PUT and LIST."""
    dollars_per_1000_reads: float = 0.0004
    dollars_per_gb_month: float = 0.023


@dataclass(frozen=True, slots=True)
class Run:
    """A training run that is recorded."""

    ranks: int = 1024
    steps: int = 10_000
    stages: int = 5
    bytes_of_a_shard: int = 100_000
    seconds_of_a_step: float = 60.0
    spread: float = 1.0
    """Seconds within which the ranks come to the end of a call."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What recording a run comes to."""

    objects: int
    bytes: int
    puts: int
    heads: int
    gets: int
    lists: int
    requests_per_second: float
    """On average over the run."""
    dollars: float
    """Of requests."""
    dollars_per_month: float
    """Of keeping it."""
    seconds_to_drain: float
    """From the end of a step until the store has taken all of its requests, at the rates it allows."""
    seconds_to_commit: float
    """From the last shard of a call until the step counts as complete, if nothing is throttled."""


@dataclass(frozen=True, slots=True)
class Looking:
    """What all ranks together ask of a store, on average, to find out that a call is complete."""

    gets: float
    puts: float
    seconds: float
    """From the arrival of the last shard until the first rank has looked enough."""
    lists: float = 0.0
    deletes: float = 0.0


def looking(ranks: int, spread: float, latency: float) -> Looking:
    """Each rank begins behind itself and stops at the first shard that is missing.

    The k-th to arrive finds k - 1 there, and while it looks others arrive, evenly within ``spread`` seconds;
    a look takes ``latency``. With few ranks, whoever finds all commits, or reads what another has committed.
    With many, whoever has found ``LOOKS`` asks for a list; who misses nothing in it puts a claim; whose claim
    is the first reads all shards and commits, and the others ask later whether that was done.
    """
    if ranks == 1:
        return Looking(0.0, 0.0, latency)
    there = np.arange(ranks, dtype=float)
    surviving = np.ones(ranks)
    looks = 0.0
    for look in range(1, min(LOOKS, ranks - 1) + 1):
        looks += float(surviving.sum())
        arrived = there + look * latency / spread * (ranks - 1)
        surviving *= np.clip((arrived - (look - 1)) / (ranks - look), 0.0, 1.0)
    if ranks - 1 <= LOOKS:
        finders = float(surviving.sum())
        read = finders * COMMITTED["GET"] + max(finders - 1, 0)
        return Looking(looks + read, finders * COMMITTED["PUT"], ranks * latency)
    until = (LOOKS + 1) * latency - (ranks - 1 - there) / (ranks - 1) * spread  # since the last shard
    finding = np.where(until >= 0, surviving, 0.0)
    finders = float(finding.sum())
    first = finding * np.cumprod(np.concatenate([[1.0], 1 - finding[:-1]]))
    return Looking(
        gets=looks + ranks - 1 + COMMITTED["GET"] + max(finders - 1, 0),
        puts=finders + COMMITTED["PUT"],
        seconds=float(first @ until / first.sum()),
        lists=float(surviving.sum()) * pages(ranks),
        deletes=1.0,
    )


def pages(ranks: int) -> int:
    """Requests of a list of all shards of a call."""
    return -(-ranks // PAGE)


def recording(run: Run, store: Store) -> Cost:
    """What it takes to record a run."""
    several = run.ranks > 1
    found = looking(run.ranks, run.spread, store.latency)
    calls = run.steps * run.stages
    shards = calls * run.ranks
    puts = shards * RECORDED["PUT"] + run.steps * LOGGED["PUT"] + round(calls * found.puts)
    heads = shards * (RECORDED["HEAD"] + SHARED["HEAD"] * several)
    gets, lists = round(calls * found.gets), round(calls * found.lists)
    per_step = {"writes": puts / run.steps, "reads": (heads + gets + lists) / run.steps}
    return Cost(
        objects=shards + calls * several + run.steps + 1,
        bytes=shards * run.bytes_of_a_shard,
        puts=puts,
        heads=heads,
        gets=gets,
        lists=lists,
        requests_per_second=(puts + heads + gets + lists) / (run.steps * run.seconds_of_a_step),
        dollars=(puts + lists) / 1000 * store.dollars_per_1000_writes
        + (heads + gets) / 1000 * store.dollars_per_1000_reads,
        dollars_per_month=shards * run.bytes_of_a_shard / 1e9 * store.dollars_per_gb_month,
        seconds_to_drain=max(
            per_step["writes"] / store.writes_per_second,
            per_step["reads"] / store.reads_per_second,
        ),
        seconds_to_commit=commit_seconds(run.ranks, store),
    )


def commit_seconds(ranks: int, store: Store) -> float:
    """The last rank puts its shard, looks at all others, and commits; one request after the other.

    With many ranks it lists and claims before, and reads most of them side by side.
    """
    if ranks == 1:
        return store.latency
    return store.latency * (RECORDED["PUT"] + min(LOOKS, ranks - 1) + _behind_looks(ranks))


def _behind_looks(ranks: int) -> int:
    """Requests one after the other, from the last look of a rank that finds all until it has committed."""
    if ranks - 1 <= LOOKS:
        return sum(COMMITTED.values())
    reading = LOOKS + -(-(ranks - 1 - LOOKS) // AT_ONCE)
    return pages(ranks) + 1 + reading + sum(COMMITTED.values())


def call_seconds(ranks: int, spread: float, store: Store) -> float:
    """From the first arrival of several ranks at a call until it is committed; all are within ``spread``.

    Of many ranks that find all shards the first one commits: it looks while the last ones arrive.
    """
    found = looking(ranks, spread, store.latency)
    heads = RECORDED["HEAD"] + SHARED["HEAD"]
    reads = ranks * heads + found.gets + found.lists
    writes = ranks * RECORDED["PUT"] + found.puts + found.deletes
    last = spread * ranks / (ranks + 1) + found.seconds
    chain = last + store.latency * (heads + _behind_looks(ranks))
    return max(chain, writes / store.writes_per_second, reads / store.reads_per_second)


def first_byte_seconds(run: Run, store: Store) -> float:
    """From starting a replay on all ranks at once until the last of them has its first recording."""
    requests = sum(OPENED.values()) + FIRST
    return max(requests * store.latency, run.ranks * requests / store.reads_per_second)


def compacting(run: Run, store: Store, segment_bytes: int = 128 * 10**6) -> tuple[int, float]:
    """How many objects are left once all steps are folded, and what the requests of that cost."""
    shards = run.steps * run.stages * run.ranks
    segments = -(-shards * run.bytes_of_a_shard // segment_bytes)
    dollars = shards / 1000 * store.dollars_per_1000_reads + segments / 1000 * store.dollars_per_1000_writes
    return segments, dollars


def tables() -> str:
    """The tables of docs/scale.md."""
    from benchmarks.scale_simulation import simulate

    store, full = Store(), Run()
    runs = [
        full,
        replace(full, ranks=128, bytes_of_a_shard=8 * full.bytes_of_a_shard),
        replace(full, ranks=8),
    ]
    names = ["1,024 ranks", "128 (one per node of 8)", "8"]
    costs = [recording(run, store) for run in runs]
    rows = [
        ["objects", *(f"{cost.objects:,}" for cost in costs)],
        ["bytes", *(f"{cost.bytes / 1e12:.2f} TB" for cost in costs)],
        ["PUT", *(f"{cost.puts:,}" for cost in costs)],
        ["HEAD", *(f"{cost.heads:,}" for cost in costs)],
        ["GET (looks for other shards)", *(f"{cost.gets:,}" for cost in costs)],
        ["LIST (of the shards of a call)", *(f"{cost.lists:,}" for cost in costs)],
        ["requests per second, on average", *(f"{cost.requests_per_second:,.0f}" for cost in costs)],
        ["requests, dollars", *(f"{cost.dollars:,.0f}" for cost in costs)],
        ["keeping it, dollars a month", *(f"{cost.dollars_per_month:,.0f}" for cost in costs)],
        ["a step's requests at the store's limits, s", *(f"{cost.seconds_to_drain:.1f}" for cost in costs)],
        ["commit after the last shard, s", *(f"{cost.seconds_to_commit:.1f}" for cost in costs)],
        [
            "replay, time to the first recording, s",
            *(f"{first_byte_seconds(run, store):.2f}" for run in runs),
        ],
        ["objects after `compact`", *(f"{compacting(run, store)[0]:,}" for run in runs)],
        ["requests of `compact`, dollars", *(f"{compacting(run, store)[1]:,.0f}" for run in runs)],
    ]
    text = [_table(["recording 10,000 steps of 5 stages", *names], rows)]
    slow = replace(store, writes_per_second=30, reads_per_second=150)
    compared = []
    for ranks, spread, kind, name in (
        (64, 1.0, store, "64, at S3's limits"),
        (64, 1.0, slow, "64, throttled at 30 and 150"),
        (1024, 1.0, store, "1,024, at S3's limits"),
    ):
        seen = simulate(ranks, spread, kind, calls=20 if ranks < 1000 else 3)
        found = looking(ranks, spread, kind.latency)
        compared.append(
            [
                name,
                f"{found.gets:,.0f} / {seen.gets:,.0f}",
                f"{found.lists:,.0f} / {seen.lists:,.0f}",
                f"{call_seconds(ranks, spread, kind):.1f} / {seen.seconds:.1f}",
                f"{seen.refused:,.0f}",
            ]
        )
    heads = [
        "ranks",
        "GET a call: model / simulated",
        "LIST a call: model / simulated",
        "seconds: model / simulated",
        "answers SlowDown a call",
    ]
    return "\n\n".join([*text, _table(heads, compared)])


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(tables())
