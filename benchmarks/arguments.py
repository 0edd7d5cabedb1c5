"""What it costs to digest the arguments of a stage, against recording its result and against reading them."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import rolltape
from benchmarks import batches
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.batch.digest import digest

MEGABYTES = 256


def section(folder: Path, rounds: int) -> Part:
    """Prompts as text and as chats, and arrays much larger than any cache."""
    batch = batches.make(batches.LARGE)
    prompts = [f"{number}: " + "why is the sky blue at noon and red at night? " * 20 for number in range(128)]
    chats = [[{"role": "system", "content": "Think."}, {"role": "user", "content": one}] for one in prompts]
    recording = _times(rounds, _recording(folder / "tape", batch))
    given = {"prompts": prompts, "chats": chats}
    took = {name: _times(rounds, lambda value=value: digest(value, "given")) for name, value in given.items()}
    ids = np.random.default_rng(0).integers(0, 150_000, MEGABYTES * 2**20 // 8)
    floats = ids.view(np.float64)
    passes = {
        "token ids": (lambda: digest(ids, "given"), lambda: hashlib.sha1(ids.data, usedforsecurity=False)),
        "floats": (lambda: digest(floats, "given"), lambda: zlib.crc32(floats.data)),
    }
    figures = {
        f"128 {name}, % of recording their rollout": _ratio(times, recording, 100)
        for name, times in took.items()
    }
    table = Table("argument", "digest ms", "recording ms")
    for name, times in took.items():
        table.add_row(f"128 {name}", f"{min(times) * 1e3:.2f}", f"{min(recording) * 1e3:.0f}")
    for name, (ours, once) in passes.items():
        times, one_pass = _times(rounds, ours), _times(rounds, once)
        figures[f"{MEGABYTES} MB of {name}, passes over memory"] = _ratio(times, one_pass)
        table.add_row(f"{MEGABYTES} MB of {name}", f"{min(times) * 1e3:.0f}", "")
    console.print(table)
    return Part(figures)


def _recording(folder: Path, batch: dict[str, Any]) -> Callable[[], None]:
    tape = rolltape.Tape(folder, mode="rewrite")
    generate = tape.stage("rollout", inputs=False)(lambda: batch)

    def record() -> None:
        with tape.step(0):
            generate()
        tape.flush()

    return record


def _times(rounds: int, work: Callable[[], object]) -> list[float]:
    work()  # warms up
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken


def _ratio(ours: list[float], others: list[float], times: float = 1) -> Figure:
    middle = len(ours) // 2
    return Figure(times * min(ours) / min(others), times * sorted(ours)[middle] / sorted(others)[middle])
