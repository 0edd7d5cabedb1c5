"""What it costs to compare two tapes, against reading them: at most twice that is promised.

python -m benchmarks.verify --steps 50 --megabytes 100
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import rolltape
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording
from rolltape.tape.step_index import recordings

STEPS = 6
ROUNDS = 5
"""How often each is measured, in turns: what slows the machine down for a while slows both."""

KINDS: dict[str, dict[str, Any]] = {
    "the same bits": {},
    "rounding noise": {"noise": 1e-7},
    "rounding noise, re-ordered": {"noise": 1e-7, "reverse": True},
}
"""What the candidate is, and how it is written."""


@dataclass(frozen=True)
class Cost:
    """One kind of candidate compared with the baseline."""

    kind: str
    read: list[float]
    """Seconds to read and decode both tapes, before each comparison and after the last."""
    compare: list[float]
    """Seconds to compare them."""
    peak: float
    """Megabytes of memory that a process which does nothing else takes at most."""

    @property
    def ratio(self) -> Figure:
        """How many times the reading around it a comparison takes: the fastest of both, and in the middle."""
        around = [(a + b) / 2 for a, b in pairwise(self.read)]
        median = statistics.median(c / r for c, r in zip(self.compare, around, strict=True))
        return Figure(min(self.compare) / min(self.read), median)


def costs(folder: Path, steps: int = STEPS, megabytes: int = 100, rounds: int = ROUNDS) -> list[Cost]:
    """Tapes of so many steps, each of so many decoded megabytes, against candidates of every kind."""
    write(folder / "base", steps, megabytes)
    found = []
    for kind, options in KINDS.items():
        write(folder / "other", steps, megabytes, **options)
        places = str(folder / "base"), str(folder / "other")
        read, compare = [read_all(*places)], []
        for _ in range(rounds):
            compare.append(compare_all(*places))
            read.append(read_all(*places))
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            peak = apart.submit(peak_of, *places).result()
        found.append(Cost(kind, read, compare, peak))
        shutil.rmtree(folder / "other")
    return found


def compare_all(baseline: str, candidate: str) -> float:
    """Seconds to compare two tapes that do not diverge."""
    started = time.perf_counter()
    compared = rolltape.compare(baseline, candidate)
    assert compared.first is None, compared.first
    return time.perf_counter() - started


def peak_of(baseline: str, candidate: str) -> float:
    """Megabytes that this process has needed at most, once it has compared two tapes."""
    compare_all(baseline, candidate)
    # Not getrusage, which on Linux begins with what the parent had when it started this process.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024  # type: ignore[index]


def read_all(*places: str) -> float:
    """Seconds to read and decode all that is on these tapes."""
    started = time.perf_counter()
    for place in places:
        storage = LocalStorage(place)
        for key in recordings(storage):
            file = Recording(storage, key).open_whole()
            file.columns(list(file.stored_columns))
    return time.perf_counter() - started


def write(path: Path, steps: int, megabytes: int, noise: float = 0.0, reverse: bool = False) -> None:
    """A rollout as trainers have it: ids, masks and log-probs in padded rows of 8 bytes and 4."""
    random, drawn = np.random.default_rng(0), np.random.default_rng(1)
    width = 4096
    samples = megabytes * 1_000_000 // (width * (8 + 8 + 4 + 4))
    order = slice(None, None, -1) if reverse else slice(None)
    with rolltape.Tape(path, mode="record") as tape:
        keep = tape.stage("rollout")(lambda value: value)
        for step in range(steps):
            lengths = random.integers(width // 8, width, samples)
            mask = np.arange(width) < lengths[:, None]
            batch: dict[str, Any] = {
                "uid": [f"{step}.{at}" for at in range(samples)],
                "responses": np.where(mask, random.integers(0, 150_000, mask.shape), 0),
                "response_mask": mask.astype(np.int64),
            }
            for name in ("log_probs", "ref_log_probs"):
                exact = np.where(mask, -random.exponential(size=mask.shape), 0).astype(np.float32)
                off = 1 + noise * drawn.normal(size=mask.shape) if noise else 1.0
                batch[name] = (exact * off).astype(np.float32)
            with tape.step(step):
                keep({name: column[order] for name, column in batch.items()})


def section(folder: Path) -> Part:
    """This benchmark as a part of the report."""
    console.print(f"[bold]verify[/]: two tapes of {STEPS} steps, 100 MB each")
    found, few = costs(folder / "many"), costs(folder / "few", steps=2, rounds=0)
    figures = {f"compare {cost.kind}, times reading both": cost.ratio for cost in found}
    grown = max(many.peak / short.peak for many, short in zip(found, few, strict=True))
    figures[f"memory, {STEPS} steps against 2"] = Figure(grown)
    return Part(figures, {"costs": [asdict(cost) for cost in found]})


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.verify", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rolltape-verify-"))
    try:
        for cost in costs(folder, options.steps, options.megabytes, options.rounds):
            print(
                f"{cost.kind}: read both {statistics.median(cost.read):.2f} s, "
                f"compare {statistics.median(cost.compare):.2f} s, {cost.ratio.median:.2f}x, "
                f"at most {cost.peak:.0f} MB of memory",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
