"""Runs every benchmark and prints one report.

make bench
python -m benchmarks --rounds 15 --json results.json
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import batches, growth, measure, verify

console = Console(width=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--only", choices=["large", "small", "growth", "verify", "generation", "trl", "viewer"]
    )
    options = parser.parse_args()
    logging.disable(logging.INFO)
    folder = Path(tempfile.mkdtemp(prefix="rolltape-bench-"))
    results: dict[str, Any] = {}
    try:
        for name, shape in (("large", batches.LARGE), ("small", batches.SMALL)):
            if options.only in (None, name):
                results[name] = compare(name, shape, folder / name, options.rounds)
        if options.only in (None, "growth"):
            results["growth"] = grow(folder)
        if options.only in (None, "verify"):
            results["verify"] = verify.section(folder / "verify", console, promises)
        if options.only == "trl":
            from benchmarks import trl  # needs the environment of that stack

            results["trl"] = trl.section(folder, options.rounds, console, promises)
        if options.only == "generation" or (options.only is None and find_spec("vllm")):
            from benchmarks import generation  # needs the engines' environment, which the others do not

            results["generation"] = generation.section(folder, options.rounds, console, promises)
        if options.only == "viewer" or (options.only is None and find_spec("starlette")):
            from benchmarks import viewer  # needs the viewer's environment

            results["viewer"] = viewer.section(folder, min(options.rounds, 5), console, promises)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    missed = [p["promise"] for part in results.values() for p in part["promises"] if not p["kept"]]
    console.print(f"[red]missed: {', '.join(missed)}[/]" if missed else "[green]every promise kept[/]")


def compare(name: str, shape: batches.Shape, folder: Path, rounds: int) -> dict[str, Any]:
    """One batch in all formats."""
    batch = batches.make(shape)
    dense = batches.dense_bytes(batch)
    console.print(
        f"[bold]{name}[/]: {shape.samples} samples, {dense / 1e6:.0f} MB of tensors, {rounds} rounds"
    )
    taken, sizes, memset = measure.interleaved(batch, folder, rounds)
    memory = {way: measure.extra_memory(shape, folder, way) for way in taken}
    table = Table("", "size MB", "write+fsync ms", "trainer blocked ms", "read ms", "extra memory × batch")
    for way, samples in taken.items():
        row = [samples.write, samples.blocked, samples.read]
        medians = [f"{1000 * statistics.median(column):.1f}" for column in row]
        table.add_row(way, f"{sizes[way] / 1e6:.2f}", *medians, f"{memory[way] / dense:.2f}")
    table.add_row("memset of the dense bytes", "", "", "", f"{1000 * statistics.median(memset):.1f}", "")
    console.print(table)
    ours, pickle, torch = (taken[way] for way in ("rolltape", "pickle", "torch.save"))
    figures = {
        "smaller than pickle": sizes["pickle"] / sizes["rolltape"],
        "write, times faster than pickle": measure.ratio(ours.write, pickle.write),
        "write, times faster than torch.save": measure.ratio(ours.write, torch.write),
        "read, times faster than pickle": measure.ratio(ours.read, pickle.read),
        "read, times faster than torch.save": measure.ratio(ours.read, torch.read),
        "read, in memsets": 1 / measure.ratio(ours.read, memset),
        "blocked, share of pickle's write": 1 / measure.ratio(ours.blocked, pickle.write),
        "extra memory, in batches": memory["rolltape"] / dense,
    }
    return {
        "figures": figures,
        "promises": promises(figures, PROMISES[name]),
        "median_ms": {
            way: {key: 1000 * statistics.median(values) for key, values in asdict(samples).items()}
            for way, samples in taken.items()
        },
        "memset_ms": 1000 * statistics.median(memset),
        "size_bytes": sizes,
        "extra_memory_bytes": memory,
        "dense_bytes": dense,
    }


PROMISES: dict[str, dict[str, tuple[str, float]]] = {
    "large": {
        "smaller than pickle": (">=", 40),
        "write, times faster than pickle": (">=", 3),
        "write, times faster than torch.save": (">=", 2.2),
        "read, times faster than pickle": (">=", 4),
        "read, times faster than torch.save": (">=", 2.3),
        "read, in memsets": ("<=", 2.5),
        "blocked, share of pickle's write": ("<=", 0.2),
        "extra memory, in batches": ("<=", 0.3),
    },
    "small": {
        "smaller than pickle": (">=", 25),
        "blocked, share of pickle's write": ("<=", 1.0),
        "read, times faster than pickle": (">=", 1 / 1.5),
    },
    "growth": {
        "record, 100,000 steps against 100": ("<=", 1.5),
        "replay, 100,000 steps against 100": ("<=", 1.5),
    },
}


def promises(figures: dict[str, float], wanted: dict[str, tuple[str, float]]) -> list[dict[str, Any]]:
    """Which promises this run keeps."""
    table = Table("promise", "wanted", "measured", "")
    rows = []
    for name, (sign, limit) in wanted.items():
        value = figures[name]
        kept = value >= limit if sign == ">=" else value <= limit
        rows.append({"promise": name, "wanted": f"{sign} {limit:.3g}", "measured": value, "kept": kept})
        table.add_row(name, f"{sign} {limit:.3g}", f"{value:.2f}", "kept" if kept else "[red]MISSED[/]")
    console.print(table)
    return rows


def grow(folder: Path) -> dict[str, Any]:
    """Cost against batch size and against the number of recorded steps."""
    sizes = growth.with_batch_size(folder, rounds=5)
    table = Table("samples", "blocked ms", "write+fsync ms", "read ms")
    for row in sizes:
        table.add_row(f"{row.samples}", f"{row.blocked:.1f}", f"{row.write:.1f}", f"{row.read:.1f}")
    console.print(table)
    few, many = steps = growth.with_steps(folder)
    table = Table("steps on the tape", "record one more ms", "replay one ms")
    for row in steps:
        table.add_row(f"{row.recorded:,}", f"{row.record:.2f}", f"{row.replay:.2f}")
    console.print(table)
    figures = {
        "record, 100,000 steps against 100": many.record / few.record,
        "replay, 100,000 steps against 100": many.replay / few.replay,
    }
    return {
        "figures": figures,
        "promises": promises(figures, PROMISES["growth"]),
        "batch_size": [asdict(row) for row in sizes],
        "steps": [asdict(row) for row in steps],
    }


if __name__ == "__main__":
    main()
