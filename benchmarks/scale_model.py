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
LOGGED = {"PUT": 1}
"""Of a line of metrics, which one rank logs at each step."""
COMMITTED = {"PUT": 1, "GET": 1}
"""Of a rank that has found the shards of all others; if another was first, it reads once more."""
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

    looks: float
    """For a shard of another rank."""
    finders: float
    """Ranks that find all of them. Each tries to commit, and one of them does."""

    @property
    def puts(self) -> float:
        return self.finders * COMMITTED["PUT"]

    @property
    def gets(self) -> float:
        """Who comes second reads what the first has committed."""
        return self.looks + self.finders * COMMITTED["GET"] + max(self.finders - 1, 0)


def looking(ranks: int, spread: float, latency: float) -> Looking:
    """Each rank begins behind itself and stops at the first shard that is missing.

    The k-th to arrive finds k - 1 there, and while it looks others arrive, evenly within ``spread`` seconds;
    a look takes ``latency``. Once all are there, whoever is still looking looks at all. Without any latency
    there are ``n`` times the n-th harmonic number of looks, and one rank finds all.

    >>> round(looking(64, 1, 0).looks), round(64 * sum(1 / n for n in range(1, 65)) - 1)
    (303, 303)
    """
    if ranks == 1:
        return Looking(0.0, 0.0)
    there = np.arange(ranks, dtype=float)
    surviving = np.ones(ranks)
    total = 0.0
    for look in range(1, ranks):
        total += float(surviving.sum())
        arrived = there + look * latency / spread * (ranks - 1)
        surviving *= np.clip((arrived - (look - 1)) / (ranks - look), 0.0, 1.0)
    return Looking(total, float(surviving.sum()))


def recording(run: Run, store: Store) -> Cost:
    """What it takes to record a run."""
    several = run.ranks > 1
    found = looking(run.ranks, run.spread, store.latency)
    calls = run.steps * run.stages
    shards = calls * run.ranks
    puts = shards * RECORDED["PUT"] + run.steps * LOGGED["PUT"] + round(calls * found.puts)
    heads = shards * RECORDED["HEAD"]
    gets = round(calls * found.gets)
    per_step = {name: count / run.steps for name, count in (("puts", puts), ("heads", heads), ("gets", gets))}
    return Cost(
        objects=shards + calls * several + run.steps + 1,
        bytes=shards * run.bytes_of_a_shard,
        puts=puts,
        heads=heads,
        gets=gets,
        requests_per_second=(puts + heads + gets) / (run.steps * run.seconds_of_a_step),
        dollars=puts / 1000 * store.dollars_per_1000_writes
        + (heads + gets) / 1000 * store.dollars_per_1000_reads,
        dollars_per_month=shards * run.bytes_of_a_shard / 1e9 * store.dollars_per_gb_month,
        seconds_to_drain=max(
            per_step["puts"] / store.writes_per_second,
            (per_step["heads"] + per_step["gets"]) / store.reads_per_second,
        ),
        seconds_to_commit=commit_seconds(run.ranks, store),
    )


def commit_seconds(ranks: int, store: Store) -> float:
    """The last rank puts its shard, looks at all others one after the other, and commits."""
    if ranks == 1:
        return store.latency
    return store.latency * (RECORDED["PUT"] + ranks - 1 + sum(COMMITTED.values()))


def call_seconds(ranks: int, spread: float, store: Store) -> float:
    """From the first rank's arrival at a call until all are done with it; they arrive within ``spread``."""
    found = looking(ranks, spread, store.latency)
    reads, writes = ranks * RECORDED["HEAD"] + found.gets, ranks * RECORDED["PUT"] + found.puts
    chain = spread + RECORDED["HEAD"] * store.latency + commit_seconds(ranks, store)
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
    slow = replace(store, writes_per_second=100, reads_per_second=400)
    compared = []
    for ranks, spread, kind, name in (
        (64, 1.0, store, "64, at S3's limits"),
        (64, 1.0, slow, "64, throttled at 100 and 400"),
        (1024, 1.0, store, "1,024, at S3's limits"),
    ):
        seen = simulate(ranks, spread, kind, calls=20 if ranks < 1000 else 1)
        compared.append(
            [
                name,
                f"{looking(ranks, spread, kind.latency).gets:,.0f} / {seen.gets:,.0f}",
                f"{call_seconds(ranks, spread, kind):.1f} / {seen.seconds:.1f}",
                f"{seen.refused:,.0f}",
            ]
        )
    heads = [
        "ranks",
        "GET a call: model / simulated",
        "seconds: model / simulated",
        "answers SlowDown a call",
    ]
    return "\n\n".join([*text, _table(heads, compared)])


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(tables())
