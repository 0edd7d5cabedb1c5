"""Fair timing on a noisy machine: everything warmed up, interleaved, paired, minima and medians of ratios."""

from __future__ import annotations

import gc
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks import batches, formats
from benchmarks.ratios import share, timed, times_faster

__all__ = ["Samples", "check_equal", "extra_memory", "interleaved", "share", "timed", "times_faster"]


@dataclass(slots=True)
class Samples:
    """Seconds, one entry per round; the same round of two formats ran one after the other."""

    write: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


def interleaved(
    batch: formats.Batch, folder: Path, rounds: int
) -> tuple[dict[str, Samples], dict[str, int], list[float]]:
    """Write and read the batch in every format, round after round; also the limit, a plain memset."""
    ways = [make(folder / make.name) for make in formats.ALL]
    taken = {way.name: Samples() for way in ways}
    filled: list[float] = []
    for number in range(rounds + 1):
        for way in ways:
            gc.collect()
            started = time.perf_counter()
            blocked = way.write(batch)
            wrote = time.perf_counter() - started
            started = time.perf_counter()
            back = way.read()
            read = time.perf_counter() - started
            if number == 0:
                check_equal(batch, back)
            else:  # the first round warms up
                taken[way.name].write.append(wrote)
                taken[way.name].blocked.append(blocked)
                taken[way.name].read.append(read)
            del back
        gc.collect()
        filled.append(memset(batch))
    return taken, {way.name: way.size() for way in ways}, filled[1:]


def check_equal(batch: formats.Batch, back: formats.Batch) -> None:
    """Bit for bit: a fast format that returns something else has not been measured."""
    for name, tensor in batch.items():
        if isinstance(tensor, torch.Tensor):
            other = back[name]
            if other.dtype != tensor.dtype or not torch.equal(other, tensor):
                raise AssertionError(f"{name} did not come back as it was")


def extra_memory(shape: batches.Shape, folder: Path, name: str) -> int:
    """Bytes a process needs beyond the batch itself while it writes, measured in a process of its own."""
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(shape, folder, name, child))
    process.start()
    peak = parent.recv()
    process.join()
    return int(peak)


def _peak(shape: batches.Shape, folder: Path, name: str, pipe: object) -> None:
    make = next(make for make in formats.ALL if make.name == name)
    way = make(folder / f"memory-{name}")
    way.write(batches.make(batches.SMALL))  # code and pools are loaded before the clock starts
    batch = batches.make(shape)
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    way.write(batch)
    pipe.send(max(_status("VmHWM") - before, 0))  # type: ignore[attr-defined]


def _status(field_name: str) -> int:
    line = next(
        row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(field_name)
    )
    return int(line.split()[1]) * 1024


def memset(batch: formats.Batch) -> float:
    """Seconds that it takes to fill as much fresh memory."""
    sizes = [value.nbytes for value in batch.values() if isinstance(value, torch.Tensor)]
    started = time.perf_counter()
    kept = []
    for size in sizes:
        memory = np.empty(size, np.uint8)
        memory.fill(1)
        kept.append(memory)
    return time.perf_counter() - started
