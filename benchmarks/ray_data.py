"""What it takes to read the samples of a tape with Ray Data, by one, two and four workers.

python -m benchmarks.ray_data --steps 40 --place s3://bucket/bench
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

import rolltape
import rolltape.ray
from benchmarks.promises import Figure
from benchmarks.report import Part, console

WORKERS = (1, 2, 4)
STEPS, SAMPLES, TOKENS = 40, 256, 1024
ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """What one number of workers took; the fastest of a few rounds."""

    workers: int
    rows: int
    everything: float
    """Seconds to read all columns of all samples."""
    one_column: float
    """Seconds to read one number of each sample."""
    few_rows: float
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
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
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
    return Cost(workers, rows, *(min(seconds) for seconds in taken))


def section(folder: Path, rounds: int = ROUNDS, place: str | None = None, steps: int = STEPS) -> Part:
    """The part of the report; ``place`` is where the tape is to be, in a store say, else in ``folder``."""
    tape = place or str(folder / "ray")
    record(tape, steps)
    costs = [measure(tape, workers, rounds) for workers in WORKERS]
    for cost in costs:
        console.print(
            f"Ray Data, {cost.workers} workers: {cost.rows / cost.everything:,.0f} samples/s of all columns, "
            f"{cost.rows / cost.one_column:,.0f} of one, {cost.rows / cost.few_rows:,.0f} through a filter"
        )
    one = costs[0].everything
    figures = {f"Ray Data, {c.workers} workers against 1": Figure(one / c.everything) for c in costs[1:]}
    return Part(figures, {"ray_data": [asdict(cost) for cost in costs], "cpus": os.cpu_count()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--place", help="a URL or a directory that is not there yet")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        console.print(section(Path(scratch), asked.rounds, asked.place, asked.steps).details)
