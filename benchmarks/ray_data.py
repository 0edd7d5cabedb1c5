"""What it takes to read the samples of a tape with Ray Data, by one, two and four workers.

python -m benchmarks --only ray_data                                 in the environment of the stack `store`
python -m benchmarks.ray_data --steps 40 --place s3://bucket/bench   somewhere else
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from rich.table import Table

import rolltape
import rolltape.ray
from benchmarks.ratios import times_faster
from benchmarks.report import Part, console

WORKERS = (1, 2, 4)
STEPS, SAMPLES, TOKENS = 40, 256, 1024
ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """What one number of workers took, round by round."""

    workers: int
    rows: int
    everything: list[float]
    """Seconds to read all columns of all samples."""
    one_column: list[float]
    """Seconds to read one number of each sample."""
    few_rows: list[float]
    """Seconds to read all columns of one sample in a hundred, which a filter finds."""


def record(place: str, steps: int = STEPS) -> None:
    """A tape of so many steps of long rollouts."""
    rng = np.random.default_rng(0)
    with rolltape.Tape(place, mode="record") as tape:
        rollout = tape.stage("rollout")(lambda value: value)
        for step in range(steps):
            mask = (np.arange(TOKENS) < rng.integers(TOKENS // 4, TOKENS, SAMPLES)[:, None]).astype(np.int64)
            batch = {
                "uid": [f"u{at // 8}" for at in range(SAMPLES)],
                "responses": rng.integers(1, 150_000, (SAMPLES, TOKENS)) * mask,
                "response_mask": mask,
                "log_probs": (-rng.random((SAMPLES, TOKENS)) * mask).astype(np.float32),
                "reward": rng.random(SAMPLES),
            }
            with tape.step(step):
                rollout(batch)


def measure(place: str, workers: int, rounds: int = ROUNDS) -> Cost:
    """Read a tape with a Ray of so many workers, which is started and stopped for it."""
    import ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        ways = [
            lambda: rolltape.ray.read(place),
            lambda: rolltape.ray.read(place, columns=["reward"]),
            lambda: rolltape.ray.read(place, where=pc.field("reward") > 0.99),
        ]
        taken: list[list[float]] = [[] for _ in ways]
        rows = 0
        for at_round in range(rounds + 1):  # the first starts the workers
            for at, way in enumerate(ways):
                started = time.perf_counter()
                found = sum(batch.num_rows for batch in way().iter_batches(batch_format="pyarrow"))
                if at_round:
                    taken[at].append(time.perf_counter() - started)
                rows = found if at == 0 else rows
    finally:
        ray.shutdown()
    return Cost(workers, rows, *taken)


def section(folder: Path, rounds: int = ROUNDS, place: str | None = None, steps: int = STEPS) -> Part:
    """The part of the report; ``place`` is where the tape is to be, in a store say, else in ``folder``."""
    tape = place or str(folder / "ray")
    record(tape, steps)
    costs = [measure(tape, workers, rounds) for workers in WORKERS]
    table = Table("workers", "all columns, samples/s", "one column", "through a filter")
    for cost in costs:
        ways = (cost.everything, cost.one_column, cost.few_rows)
        table.add_row(f"{cost.workers}", *(f"{cost.rows / min(seconds):,.0f}" for seconds in ways))
    console.print(f"[bold]ray_data[/]: {costs[0].rows:,} samples of {TOKENS} tokens, {os.cpu_count()} CPUs")
    console.print(table)
    one, *more = costs
    figures = {
        f"{cost.workers} workers, times as fast as 1": times_faster(cost.everything, one.everything)
        for cost in more
    }
    figures["one column, times as fast as all"] = times_faster(one.one_column, one.everything)
    return Part(figures, {"ray_data": [asdict(cost) for cost in costs], "cpus": os.cpu_count()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--place", help="a URL or a directory that is not there yet")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        console.print(section(Path(scratch), asked.rounds, asked.place, asked.steps).details)
