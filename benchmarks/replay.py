"""A replay loop that lives on recycled memory, against other formats and against filling fresh memory.

The seed of the shape that is drawn is printed; ``BENCH_SEED=N make bench ONLY=replay`` draws it again.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

import rolltape
from benchmarks import batches, formats, measure
from benchmarks.promises import Figure
from benchmarks.ratios import share, times_faster
from benchmarks.report import Part, console

STEPS = 20
LONG_STEPS = 8
FIRST = 3
"""The step from which a loop lives on memory that it has had before."""
BUSY = 0.2
"""Seconds that the trainer computes in each step."""
_PEERS = (formats.Pickle, formats.TorchSave, formats.SafeTensors)
_PAGE = resource.getpagesize()
_THP_DISABLE = 41


@dataclass(slots=True)
class Taken:
    """Seconds of each step from the third on."""

    ours: list[float] = field(default_factory=list)
    memset: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=lambda: {peer.name: [] for peer in _PEERS})


def section(folder: Path, rounds: int) -> Part:
    """Three shapes, one of them drawn, also beside a trainer that computes in Python; then very long rows."""
    seed = batches.seed()
    shapes = {"large": batches.LARGE, "wide": batches.WIDE, "drawn": batches.drawn(seed)}
    console.print(f"drawn by BENCH_SEED={seed}: {shapes['drawn']}", highlight=False)
    figures: dict[str, Figure] = {}
    table = Table("shape", "MB", "ours ms", "memset ms", *(f"{peer.name} ms" for peer in _PEERS))
    for name, shape in shapes.items():
        place = folder / name
        batch = batches.make(shape)
        _record(place / "tape", batch)
        taken = _loop(place, batch)
        columns = [taken.ours, taken.memset, *taken.peers.values()]
        shown = [f"{min(times) * 1e3:.0f} ({statistics.median(times) * 1e3:.0f})" for times in columns]
        table.add_row(name, f"{batches.dense_bytes(batch) / 1e6:.0f}", *shown)
        figures |= {f"{name}: {what}": figure for what, figure in _figures(taken).items()}
        figures |= {f"{name}: {what}": figure for what, figure in _fresh_pages(place / "tape", batch).items()}
        figures[f"{name}: busy trainer waits per step, ms"] = _busy(place / "tape")
        del batch
    figures |= _long(folder / "long", table)
    console.print(table)
    return Part(figures, {"seed": seed})


def _long(folder: Path, table: Table) -> dict[str, Figure]:
    """Room for 131,072 tokens, most responses short: padded with anything, with zeros, and not at all."""
    wide = batches.make(batches.LONG)
    zeros = batches.zero_padded(wide)
    small = batches.trimmed(zeros, batches.LONG.prompt_width)
    names = [name for name in small if name.startswith(("input", "attention", "position"))]
    reads, cuts = {}, {}
    with ExitStack() as stack:
        for name, batch in {"wide": wide, "zeros": zeros, "tight": small}.items():
            _record(folder / name, batch, LONG_STEPS)
            reads[name] = stack.enter_context(_replay(folder / name, prefetch=False))
            recording = next(rolltape.open(folder / name).recordings())
            cuts[name] = partial(recording.jagged, names, like="attention_mask")
        times: dict[str, list[float]] = defaultdict(list)
        for step in range(LONG_STEPS):
            ways = {"wide": lambda s=step: reads["wide"](s), "zeros": lambda s=step: reads["zeros"](s)}
            ways |= {"memset": lambda: measure.memset(wide), "tight memset": lambda: measure.memset(small)}
            ways |= {f"jagged {name}": cut for name, cut in cuts.items()}
            for name, way in ways.items():
                gc.collect()
                started = time.perf_counter()
                back = way()
                taken = time.perf_counter() - started
                if step == 0 and name in ("wide", "zeros"):
                    measure.check_equal(wide if name == "wide" else zeros, back)
                del back
                if step + 1 >= FIRST:
                    times[name].append(taken)
    for name, filled in (("wide", "memset"), ("zeros", "tight memset")):
        shown = [
            f"{min(times[key]) * 1e3:.0f} ({statistics.median(times[key]) * 1e3:.0f})"
            for key in (name, filled)
        ]
        table.add_row(f"long, {name}", f"{batches.dense_bytes(wide) / 1e6:.0f}", *shown)
    return {
        "long: read, in memsets of fresh memory": share(times["wide"], times["memset"]),
        "long, zeros: read, in memsets of the tight shape": share(times["zeros"], times["tight memset"]),
        "long: jagged, times that of the tight shape": share(times["jagged wide"], times["jagged tight"]),
    }


def _figures(taken: Taken) -> dict[str, Figure]:
    peers = taken.peers
    return {
        "read, in memsets of fresh memory": share(taken.ours, taken.memset),
        "read, times faster than pickle": times_faster(taken.ours, peers["pickle"]),
        "read, times faster than torch.save": times_faster(taken.ours, peers["torch.save"]),
        "read, times faster than safetensors": times_faster(taken.ours, peers["safetensors"]),
    }


def _record(path: Path, batch: formats.Batch, steps: int = STEPS) -> None:
    with rolltape.Tape(path, mode="record") as tape:
        stage = tape.stage("rollout")(lambda: batch)
        for step in range(steps):
            with tape.step(step):
                stage()


def _loop(folder: Path, batch: formats.Batch) -> Taken:
    """Each step is read in every way, one after the other."""
    peers = [make(folder / make.name) for make in _PEERS]
    for peer in peers:
        peer.write(batch)
    taken = Taken()
    with _replay(folder / "tape", prefetch=False) as read:
        for step in range(STEPS):
            times = {}
            for name, way in [("ours", lambda step=step: read(step)), *((p.name, p.read) for p in peers)]:
                gc.collect()
                started = time.perf_counter()
                back = way()
                times[name] = time.perf_counter() - started
                if step == 0:
                    measure.check_equal(batch, back)
                del back
            gc.collect()
            filled = measure.memset(batch)
            if step + 1 >= FIRST:
                taken.ours.append(times.pop("ours"))
                taken.memset.append(filled)
                for name, seconds in times.items():
                    taken.peers[name].append(seconds)
    return taken


def _fresh_pages(path: Path, batch: formats.Batch) -> dict[str, Figure]:
    """Memory that a step touches for the first time, of the worst step and of the one in the middle; and how
    much more of it the last steps touch than the first ones, on average and in the middle.

    Counted without huge pages, of which one fault would stand for hundreds.
    """
    touched = []
    with _small_pages(), _replay(path, prefetch=False) as read:
        for step in range(STEPS):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            read(step)
            pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            touched.append(100 * pages * _PAGE / batches.dense_bytes(batch))
    counted = touched[FIRST - 1 :]
    early, late = counted[: len(counted) // 2], counted[len(counted) // 2 :]
    grown = (middle(late) - middle(early) for middle in (statistics.mean, statistics.median))
    return {
        "pages touched anew, % of the batch": Figure(max(counted), statistics.median(counted)),
        "more pages touched anew in later steps, % of the batch": Figure(*grown),
    }


def _busy(path: Path) -> Figure:
    """Milliseconds that each step waits for its batch, on average, while the trainer computes in Python."""
    waited = []
    with _replay(path) as read:
        for step in range(STEPS):
            started = time.perf_counter()
            batch = read(step)
            waited.append(1e3 * (time.perf_counter() - started))
            del batch
            until, count = time.perf_counter() + BUSY, 0
            while time.perf_counter() < until:
                count += 1
    return Figure(statistics.mean(waited[FIRST - 1 :]), statistics.median(waited[FIRST - 1 :]))


@contextmanager
def _replay(path: Path, **options: Any) -> Iterator[Any]:
    with rolltape.Tape(path, mode="replay", **options) as tape:
        stage = tape.stage("rollout")(_never)

        def read(step: int) -> formats.Batch:
            with tape.step(step):
                return stage()

        yield read


def _never() -> formats.Batch:
    raise AssertionError("a replay never calls the live function")


@contextmanager
def _small_pages() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_THP_DISABLE, 0, 0, 0, 0)
