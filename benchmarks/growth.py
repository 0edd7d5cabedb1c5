"""How cost grows: with the size of the batch, and with the number of steps already on the tape."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

import rolltape
from benchmarks import batches, formats
from benchmarks.promises import Figure
from benchmarks.report import Part, console


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Milliseconds for one batch."""

    samples: int
    blocked: float
    write: float
    read: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds for one more step on a tape that has this many."""

    recorded: int
    record: list[float]
    replay: list[float]


def section(folder: Path) -> Part:
    """Cost against batch size and against the number of recorded steps."""
    sizes = with_batch_size(folder, rounds=5)
    table = Table("samples", "trainer waits ms", "write+fsync ms", "read ms")
    for row in sizes:
        table.add_row(f"{row.samples}", f"{row.blocked:.1f}", f"{row.write:.1f}", f"{row.read:.1f}")
    console.print(table)
    few, many = steps = with_steps(folder)
    table = Table("steps on the tape", "record one more ms", "replay one ms")
    for row in steps:
        cells = (f"{statistics.median(taken):.2f} ({min(taken):.2f})" for taken in (row.record, row.replay))
        table.add_row(f"{row.recorded:,}", *cells)
    console.print(table)
    figures = {
        "record, 100,000 steps against 100": _growth(few.record, many.record),
        "replay, 100,000 steps against 100": _growth(few.replay, many.replay),
    }
    details = {"batch_size": [asdict(row) for row in sizes], "steps": [asdict(row) for row in steps]}
    return Part(figures, details)


def _growth(few: list[float], many: list[float]) -> Figure:
    return Figure(min(many) / min(few), statistics.median(many) / statistics.median(few))


def with_batch_size(folder: Path, rounds: int) -> list[BatchCost]:
    """The large batch with fewer and fewer prompts."""
    rows = []
    for prompts in (8, 32, 128):
        batch = batches.make(replace(batches.LARGE, prompts=prompts))
        way = formats.Rolltape(folder / f"grow-{prompts}")
        way.write(batch)
        way.read()
        taken = []
        for _ in range(rounds):
            started = time.perf_counter()
            blocked = way.write(batch)
            wrote = time.perf_counter() - started
            started = time.perf_counter()
            back = way.read()
            taken.append((blocked, wrote, time.perf_counter() - started))
            del back
        medians = [1000 * statistics.median(column) for column in zip(*taken, strict=True)]
        rows.append(BatchCost(prompts * batches.LARGE.per_prompt, *medians))
    return rows


def with_steps(folder: Path, counts: tuple[int, ...] = (100, 100_000), rounds: int = 40) -> list[StepCost]:
    """Record and replay steps of a small batch on tapes that differ only in how many steps they have.

    The rounds of the tapes alternate, so that a busy moment of the machine hits both.
    """
    batch = batches.make(batches.SMALL)
    tapes = {count: _tape_with(folder / f"steps-{count}", count, batch) for count in counts}
    taken: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    writers = {count: _writer(path, batch) for count, path in tapes.items()}
    readers = {count: _reader(path) for count, path in tapes.items()}
    for number in range(rounds):
        for count in counts:
            tape, stage = writers[count]
            started = time.perf_counter()
            with tape.step(count + number):
                stage()
            tape.flush()
            record = time.perf_counter() - started
            tape, stage = readers[count]
            started = time.perf_counter()
            with tape.step(number):
                stage()
            taken[count].append((record, time.perf_counter() - started))
    for path in tapes.values():
        shutil.rmtree(path)
    rows = []
    for count in counts:
        record, replay = ([1000 * s for s in column[3:]] for column in zip(*taken[count], strict=True))
        rows.append(StepCost(count, record, replay))
    return rows


def _writer(path: Path, batch: formats.Batch) -> tuple[rolltape.Tape, object]:
    tape = rolltape.Tape(path, mode="record")
    return tape, tape.stage("rollout")(lambda: batch)


def _reader(path: Path) -> tuple[rolltape.Tape, object]:
    tape = rolltape.Tape(path, mode="replay", prefetch=False)
    return tape, tape.stage("rollout")(lambda: None)


def _tape_with(path: Path, count: int, batch: formats.Batch) -> Path:
    """A tape with many steps; all but the first few hundred are further names of the same files."""
    shutil.rmtree(path, ignore_errors=True)
    with rolltape.Tape(path, mode="record") as tape:
        stage = tape.stage("rollout")(lambda: batch)
        for step in range(100):
            with tape.step(step):
                stage()
    stages = path / "train" / "rollout"
    for step in range(100, count):
        os.link(stages / f"step_{step % 100:06d}.parquet", stages / f"step_{step:06d}.parquet")
    return path
