"""Segments: what 100,000 folded steps cost against 100, and folding against a plain copy."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

import rolltape
from benchmarks import batches
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.storage import storage_at
from rolltape.storage.segment_index import Segment
from rolltape.tape.compaction import compact

COUNTS = (100, 100_000)
NAMED = 6_400
"""Files of a segment of which only the names count: as many as make 128 MB where each has 20 kB."""


@dataclass(frozen=True, slots=True)
class FoldedCost:
    """Milliseconds on a folded tape of so many steps."""

    steps: int
    open: list[float]
    """Open it and look at one step."""
    listed: list[float]
    """Each step that is listed, in thousandths."""
    replay: list[float]
    """Replay one step."""


def section(folder: Path, rounds: int) -> Part:
    """Cost against the number of folded steps, and the speed of folding."""
    few, many = rows = with_steps(folder, 4 * rounds)
    table = Table("folded steps", "open and look at one ms", "list, µs per step", "replay one ms")
    for row in rows:
        cells = (f"{statistics.median(t):.2f} ({min(t):.2f})" for t in (row.open, row.listed, row.replay))
        table.add_row(f"{row.steps:,}", *cells)
    console.print(table)
    folding, copying, nbytes = against_copy(folder, max(rounds // 3, 3))
    console.print(
        f"folding {nbytes / 1e6:.0f} MB: {min(folding):.2f} s; copying them with fsync: {min(copying):.2f} s"
    )
    figures = {
        "replay, 100,000 folded steps against 100": _growth(few.replay, many.replay),
        "list a step, 100,000 folded against 100": _growth(few.listed, many.listed),
        "open and look at a step, 100,000 folded against 100": _growth(few.open, many.open),
        "folding, times as long as a copy": _growth(copying, folding),
    }
    return Part(figures, {"steps": [asdict(row) for row in rows], "folding": folding, "copying": copying})


def _growth(few: list[float], many: list[float]) -> Figure:
    return Figure(min(many) / min(few), statistics.median(many) / statistics.median(few))


def with_steps(folder: Path, rounds: int) -> list[FoldedCost]:
    """Tapes that differ only in how many steps are folded; their rounds alternate."""
    tapes = {count: _tape_with(folder / f"folded-{count}", count) for count in COUNTS}
    rows = {count: FoldedCost(count, [], [], []) for count in COUNTS}
    for number in range(rounds):
        for count, path in tapes.items():
            row = rows[count]
            row.open.append(
                _timed(lambda path=path: rolltape.open(path).recording(rolltape.Key(step=7)).samples)
            )
            run = rolltape.open(path)
            row.listed.append(1000 * _timed(run.steps) / count)
            with rolltape.Tape(path, mode="replay", prefetch=False) as tape:
                stage = tape.stage("rollout")(lambda: None)
                with tape.step(99):
                    stage()
                with tape.step(number % 99):
                    row.replay.append(_timed(stage))
    for path in tapes.values():
        shutil.rmtree(path)
    return list(rows.values())


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - started)


def _name(step: int) -> str:
    return f"train/rollout/step_{step:06d}.parquet"


def _tape_with(path: Path, count: int) -> Path:
    """A folded tape; all but the first hundred steps have names and places, and are read by nobody."""
    shutil.rmtree(path, ignore_errors=True)
    _record(path, 100, batches.SMALL)
    storage = storage_at(path)
    compact(storage, keep=0, settled=0)
    for start in range(100, count, NAMED):
        ranges = {
            _name(step): (16 * at, 16) for at, step in enumerate(range(start, min(start + NAMED, count)))
        }
        segment = f"train/rollout/segment_{start:06d}-{start:06d}.1800000000-{start:09d}.parquet"
        storage.files.publish(segment, [bytes(16 * NAMED)], replace=False)
        made = Segment(segment, 16 * NAMED, 16 * len(ranges), "")
        storage.change(lambda index, made=made, ranges=ranges: index.with_segment(made, ranges))
    return path


def _record(path: Path, steps: int, shape: batches.Shape) -> None:
    batch = batches.make(shape)
    with rolltape.Tape(path, mode="record") as tape:
        stage = tape.stage("rollout")(lambda: batch)
        for step in range(steps):
            with tape.step(step):
                stage()


def against_copy(folder: Path, rounds: int) -> tuple[list[float], list[float], int]:
    """Seconds to fold recordings of some MB, and to copy the same files, each with fsync."""
    _record(folder / "many", 60, replace(batches.LARGE, prompts=32))
    files = sorted((folder / "many" / "train" / "rollout").iterdir())
    folding, copying = [], []
    for number in range(rounds):
        shutil.copytree(folder / "many", folder / f"fold-{number}")
        os.sync()
        storage = storage_at(folder / f"fold-{number}")
        folding.append(_timed(lambda storage=storage: compact(storage, keep=0, settled=0)) / 1000)
        copying.append(_timed(lambda number=number: _copy(files, folder / f"copy-{number}")) / 1000)
        shutil.rmtree(folder / f"fold-{number}")
        shutil.rmtree(folder / f"copy-{number}")
    return folding, copying, sum(file.stat().st_size for file in files)


def _copy(files: list[Path], to: Path) -> None:
    to.mkdir()
    for file in files:
        with open(file, "rb") as source, open(to / file.name, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
