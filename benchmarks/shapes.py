"""Looks for batches that another format writes or reads more quickly; shape, dtypes and padding are drawn.

``BENCH_SEED=7 python -m benchmarks.shapes 40`` draws 40 batches; the same seed draws them again.
Nothing is promised of what it finds: the report lists the worst first, with the ratio.
"""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from benchmarks import batches, formats, measure
from benchmarks.report import console

TURNS = 3
DTYPES = (np.int64, np.int32, np.int16, np.uint8, np.bool_, np.float32, np.float64, np.float16)


def main(folder: Path, rounds: int) -> None:
    """So many batches, each written and read a few times by all in turn."""
    seed = batches.seed()
    console.print(f"drawn with BENCH_SEED={seed}")
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(rounds):
        words, batch = _drawn(rng)
        found.append((words, *_against_the_quickest(batch, folder)))
    table = Table("batch", "write, × the quickest other", "read")
    for words, write, read in sorted(found, key=lambda one: -max(one[1], one[2])):
        table.add_row(words, f"{write:.2f}", f"{read:.2f}")
    console.print(table)


def _drawn(rng: np.random.Generator) -> tuple[str, formats.Batch]:
    """A batch of 1 to 64 MB, in words and as it is."""
    size = 2 ** rng.uniform(20, 26)
    columns = int(rng.integers(1, 9))
    samples = int(2 ** rng.uniform(0, 14))
    filled = float(rng.choice([1.0, rng.uniform(0.02, 0.9)]))
    batch: formats.Batch = {}
    kinds = []
    for number in range(columns):
        dtype = np.dtype(DTYPES[int(rng.integers(len(DTYPES)))])
        width = max(int(size / columns / samples / dtype.itemsize), 1)
        values = rng.integers(0, 2 ** int(rng.integers(1, 17)), (samples, width))
        values = values.astype(dtype) if dtype.kind in "biu" else rng.normal(size=values.shape).astype(dtype)
        lengths = np.clip(rng.lognormal(np.log(filled * width + 1) - 0.3, 0.8, samples), 0, width)
        if filled < 1:
            values[np.arange(width) >= lengths[:, None]] = 0
        batch[f"column{number}"] = torch.from_numpy(values)
        kinds.append(f"{dtype.name} × {width}")
    words = f"{samples} samples, {filled:.0%} filled: {', '.join(kinds)}"
    return words, batch


def _against_the_quickest(batch: formats.Batch, folder: Path) -> tuple[float, float]:
    """How many times as long as the quickest other format writing and reading take; the best turn of each."""
    ways = [make(folder / make.name) for make in formats.ALL]
    writes: dict[str, list[float]] = {way.name: [] for way in ways}
    reads: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(TURNS):
        for way in ways:
            gc.collect()
            started = time.perf_counter()
            way.write(batch)
            wrote = time.perf_counter()
            back = way.read()
            writes[way.name].append(wrote - started)
            reads[way.name].append(time.perf_counter() - wrote)
            measure.check_equal(batch, back)
    shutil.rmtree(folder, ignore_errors=True)
    return _ratio(writes), _ratio(reads)


def _ratio(taken: dict[str, list[float]]) -> float:
    others = (min(times) for name, times in taken.items() if name != "rolltape")
    return min(taken["rolltape"]) / min(others)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 10)
