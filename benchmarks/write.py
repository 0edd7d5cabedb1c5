"""Writing: against others on three shapes, one of them drawn at random; small batches; very long contexts.

Each shape is written by all in turn, durably. What is drawn follows from a seed that is printed:
``BENCH_SEED=7 make bench ONLY=write`` draws it again.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from benchmarks import batches, formats, measure
from benchmarks.comparison import milliseconds
from benchmarks.promises import Figure
from benchmarks.report import Part, console

TOP = 20
LAYERS, EXPERTS = 24, 4


def section(folder: Path, rounds: int) -> Part:
    """All shapes, one after the other."""
    seed = batches.seed()
    shapes = {"large": batches.LARGE, "wide": batches.WIDE, "drawn": batches.drawn(seed)}
    console.print(f"drawn with BENCH_SEED={seed}: {shapes['drawn']}", soft_wrap=True)
    figures: dict[str, Figure] = {}
    for name, shape in shapes.items():
        figures |= _against_others(name, shape, folder / name, rounds)
    figures |= _against_others("small", batches.SMALL, folder / "small", 8 * rounds)
    figures |= _long(folder / "long", rounds)
    figures |= _beside_tokens(folder / "beside")
    return Part(figures, {"seed": seed, "drawn": repr(shapes["drawn"])})


def _against_others(name: str, shape: batches.Shape, folder: Path, rounds: int) -> dict[str, Figure]:
    batch = batches.make(shape)
    dense = batches.dense_bytes(batch)
    ways = [make(folder / make.name) for make in formats.ALL]
    taken = {way.name: measure.Samples() for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            wrote, blocked = _written(way, batch)
            if number:  # the first round warms up
                taken[way.name].write.append(wrote)
                taken[way.name].blocked.append(blocked)
    sizes = {way.name: way.size() for way in ways}
    table = Table(f"{name}, {dense / 1e6:.0f} MB", "size MB", "write+fsync ms", "trainer waits ms")
    for way, samples in taken.items():
        times = map(milliseconds, (samples.write, samples.blocked))
        table.add_row(way, f"{sizes[way] / 1e6:.2f}", *times)
    console.print(table)
    ours, pickle = taken["rolltape"], taken["pickle"]
    return {
        f"{name}: smaller than pickle": Figure(sizes["pickle"] / sizes["rolltape"]),
        f"{name}: times faster than pickle": measure.times_faster(ours.write, pickle.write),
        f"{name}: times faster than torch.save": measure.times_faster(ours.write, taken["torch.save"].write),
        f"{name}: trainer waits, share of pickle's write": measure.share(ours.blocked, pickle.write),
        f"{name}: extra memory, in batches": Figure(measure.extra_memory(shape, folder, "rolltape") / dense),
    }


def _written(way: formats.Format, batch: formats.Batch) -> tuple[float, float]:
    gc.collect()
    started = time.perf_counter()
    blocked = way.write(batch)
    return time.perf_counter() - started, blocked


def _long(folder: Path, rounds: int) -> dict[str, Figure]:
    """Mostly padding: what it costs beyond the same tokens without, in passes over all of it."""
    batch = batches.make(batches.LONG)
    shapes = {"long": batch, "tight": batches.tight(batch)}
    ways = {name: formats.Rolltape(folder / name) for name in shapes}
    taken: dict[str, list[float]] = {"long": [], "tight": [], "summed": []}
    for number in range(rounds + 1):
        found = {name: _written(way, shapes[name])[0] for name, way in ways.items()}
        found["summed"] = _summed(batch)
        for name, seconds in found.items() if number else ():
            taken[name].append(seconds)
    dense = batches.dense_bytes(batch)
    table = Table(f"256 × 131,072, {dense / 1e6:.0f} MB", "ms")
    for name, label in (("long", "written"), ("tight", "its tokens alone"), ("summed", "numpy's sum of it")):
        table.add_row(label, milliseconds(taken[name]))
    console.print(table)
    passes = [(a - b) / c for a, b, c in zip(taken["long"], taken["tight"], taken["summed"], strict=True)]
    least = (min(taken["long"]) - min(taken["tight"])) / min(taken["summed"])
    return {"long: passes over the padding": Figure(least, sorted(passes)[len(passes) // 2])}


def _summed(batch: formats.Batch) -> float:
    started = time.perf_counter()
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            bits = value.numpy().reshape(-1).view(np.uint8)
            bits[: len(bits) // 8 * 8].view(np.uint64).sum()
    return time.perf_counter() - started


def _beside_tokens(folder: Path) -> dict[str, Figure]:
    """Routes of experts and top log-probs of long contexts: how small they become."""
    rng = np.random.default_rng(0)
    n, width = 64, 8192
    lengths = np.clip(rng.lognormal(6.5, 0.8, n), 8, width).astype(int)
    routes = np.zeros((n, width, LAYERS, EXPERTS), np.int16)
    top = np.zeros((n, width, TOP), np.float32)
    for row, length in enumerate(lengths):
        routes[row, :length] = rng.integers(0, 128, (length, LAYERS, EXPERTS))
        top[row, :length] = np.sort(np.log(rng.beta(0.3, 4, (length, TOP))), axis=1)[:, ::-1]
    columns: dict[str, Any] = {"routes": routes, "top log-probs": top}
    figures = {}
    for name, array in columns.items():
        sizes = {}
        for make in (formats.Pickle, formats.Rolltape):
            way = make(folder / name / make.name)
            way.write({"column": torch.from_numpy(array)})
            sizes[make.name] = way.size()
        figures[f"{name}: smaller than pickle"] = Figure(sizes["pickle"] / sizes["rolltape"])
    return figures
