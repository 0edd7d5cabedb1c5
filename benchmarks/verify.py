"""What it costs to compare two tapes, against reading them: at most twice that is promised.

python -m benchmarks.verify --steps 50 --megabytes 100
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rolltape
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify import compare_tapes


@dataclass(frozen=True)
class Cost:
    """One comparison."""

    differing: bool
    read: float
    """Seconds to read and decode both tapes."""
    compare: float
    """Seconds to compare them."""
    peak: float
    """Megabytes of memory at most, reading included."""

    @property
    def kind(self) -> str:
        return "rounding noise" if self.differing else "the same bits"

    @property
    def ratio(self) -> float:
        return self.compare / self.read


def costs(folder: Path, steps: int = 6, megabytes: int = 100) -> list[Cost]:
    """Tapes of so many steps, each of so many decoded megabytes: the same, and with rounding noise."""
    write(folder / "base", steps, megabytes, 0.0)
    found = []
    for name, noise in (("same", 0.0), ("near", 1e-7)):
        write(folder / name, steps, megabytes, noise)
        sides = LocalStorage(str(folder / "base")), LocalStorage(str(folder / name))
        before = read_all(*sides)
        started = time.perf_counter()
        compared = compare_tapes(*sides)
        took = time.perf_counter() - started
        read = (before + read_all(*sides)) / 2  # around it, because the machine may be busier at times
        assert compared.first is None, compared.first
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found.append(Cost(bool(noise), read, took, peak))
        shutil.rmtree(folder / name)
    return found


def read_all(*sides: LocalStorage) -> float:
    """Seconds to read and decode all that is on these tapes."""
    started = time.perf_counter()
    for side in sides:
        for key in recordings(side):
            file = Recording(side, key).open_whole()
            file.columns(list(file.header["columns"]))
    return time.perf_counter() - started


def write(path: Path, steps: int, megabytes: int, noise: float) -> None:
    """A rollout as trainers have it: ids, masks and log-probs in padded rows of 8 bytes and 4."""
    random = np.random.default_rng(0)
    width = 4096
    samples = megabytes * 1_000_000 // (width * (8 + 8 + 4 + 4))
    with rolltape.Tape(path, mode="record") as tape:
        keep = tape.stage("rollout")(lambda value: value)
        for step in range(steps):
            lengths = random.integers(width // 8, width, samples)
            mask = np.arange(width) < lengths[:, None]
            log_probs = np.where(mask, -random.exponential(size=mask.shape), 0).astype(np.float32)
            drawn = np.random.default_rng(1).normal(size=mask.shape) if noise else 0.0
            with tape.step(step):
                keep(
                    {
                        "uid": [f"{step}.{at}" for at in range(samples)],
                        "responses": np.where(mask, random.integers(0, 150_000, mask.shape), 0),
                        "response_mask": mask.astype(np.int64),
                        "log_probs": (log_probs * (1 + noise * drawn)).astype(np.float32),
                        "ref_log_probs": log_probs,
                    }
                )


def section(folder: Path, console: Any, promises: Callable[..., list[dict[str, Any]]]) -> dict[str, Any]:
    """This benchmark as a part of the report."""
    found = costs(folder)
    figures = {f"compare {cost.kind}, times reading both": cost.ratio for cost in found}
    console.print("[bold]verify[/]: two tapes of 6 steps, 100 MB each")
    kept = promises(figures, dict.fromkeys(figures, ("<=", 2.0)))
    return {"figures": figures, "promises": kept, "costs": [asdict(cost) for cost in found]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.verify", description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rolltape-verify-"))
    try:
        for cost in costs(folder, options.steps, options.megabytes):
            print(
                f"{cost.kind}: read both {cost.read:.2f} s, compare {cost.compare:.2f} s, "
                f"{cost.ratio:.2f}x, at most {cost.peak:.0f} MB of memory"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
