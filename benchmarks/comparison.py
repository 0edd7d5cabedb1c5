"""One batch in all formats: size, time to write and to read, how long the trainer waits, memory."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from benchmarks import batches, measure
from benchmarks.promises import Figure
from benchmarks.report import Part, console


def section(name: str, shape: batches.Shape, folder: Path, rounds: int) -> Part:
    """A batch of this shape, written and read in turn."""
    batch = batches.make(shape)
    dense = batches.dense_bytes(batch)
    console.print(
        f"[bold]{name}[/]: {shape.samples} samples, {dense / 1e6:.0f} MB of tensors, {rounds} rounds"
    )
    taken, sizes, memset = measure.interleaved(batch, folder, rounds)
    memory = {way: measure.extra_memory(shape, folder, way) for way in taken}
    print_table(taken, sizes, memset, {way: extra / dense for way, extra in memory.items()})
    ours, pickle, torch = (taken[way] for way in ("rolltape", "pickle", "torch.save"))
    figures = {
        "smaller than pickle": Figure(sizes["pickle"] / sizes["rolltape"]),
        "write, times faster than pickle": measure.times_faster(ours.write, pickle.write),
        "write, times faster than torch.save": measure.times_faster(ours.write, torch.write),
        "read, times faster than pickle": measure.times_faster(ours.read, pickle.read),
        "read, times faster than torch.save": measure.times_faster(ours.read, torch.read),
        "read, in memsets": measure.share(ours.read, memset),
        "trainer waits, share of pickle's write": measure.share(ours.blocked, pickle.write),
        "extra memory, in batches": Figure(memory["rolltape"] / dense),
    }
    details = {
        "median_ms": {
            way: {key: 1000 * statistics.median(values) for key, values in asdict(samples).items()}
            for way, samples in taken.items()
        },
        "fastest_ms": {
            way: {key: 1000 * min(values) for key, values in asdict(samples).items()}
            for way, samples in taken.items()
        },
        "memset_ms": 1000 * statistics.median(memset),
        "size_bytes": sizes,
        "extra_memory_bytes": memory,
        "dense_bytes": dense,
    }
    return Part(figures, details)


def print_table(
    taken: dict[str, measure.Samples], sizes: dict[str, int], memset: list[float], memory: dict[str, float]
) -> None:
    """Medians, and the fastest round beside them."""
    table = Table("", "size MB", "write+fsync ms", "trainer waits ms", "read ms", "extra memory × batch")
    for way, samples in taken.items():
        times = map(milliseconds, (samples.write, samples.blocked, samples.read))
        table.add_row(way, f"{sizes[way] / 1e6:.2f}", *times, f"{memory[way]:.2f}")
    table.add_row("memset of the dense bytes", "", "", "", milliseconds(memset), "")
    console.print(table)


def milliseconds(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f} ({1000 * min(seconds):.1f})"
