"""The index of samples against SQLite and DuckDB on the same columns, and what it adds to recording.

Rows are made up: what is measured is the index, not the recordings that it is made of.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.table import Table

import rolltape
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.index.index_building import PART_ROWS, encode_part, merge_parts, part_name
from rolltape.index.index_part import Indexed, sorted_rows
from rolltape.index.index_rows import SCHEMA
from rolltape.index.sample_index import SampleIndex

ROWS = int(os.environ.get("ROLLTAPE_INDEX_ROWS", 10_000_000))
PER_FILE = 1_024
STEPS = 10
"""Steps of 512 samples of 4,096 tokens each, to see what the index adds to recording them."""
GROUP = 8
"""Samples of a prompt."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of keeping the rows."""

    name: str
    build: float
    """Seconds from rows in memory, a million at a time, to something that can be asked."""
    size: int
    open: list[float]
    lookup: list[float]
    """Seconds each, of a prompt that was not asked before."""
    memory: float
    """Megabytes that a process grew by that opened it and asked a thousand times."""


def section(folder: Path, rounds: int) -> Part:
    """All three, and the cost of an index while recording."""
    every = [_ours(folder), _sqlite(folder), _duckdb(folder)]
    table = Table(f"{ROWS:,} samples", "build, M/s", "size MB", "open ms", "lookup ms", "memory MB")
    for one in every:
        table.add_row(
            one.name, f"{ROWS / one.build / 1e6:.2f}", f"{one.size / 1e6:.0f}", f"{1e3 * min(one.open):.1f}",
            f"{1e3 * statistics.median(one.lookup):.3f}", f"{one.memory:.0f}",
        )  # fmt: skip
    console.print(table)
    plain, indexed = recording(folder, rounds)
    more = Figure(
        100 * (min(indexed) / min(plain) - 1),
        100 * (statistics.median(indexed) / statistics.median(plain) - 1),
    )
    console.print(f"recording with the index: {more.value:+.1f} % (median {more.median:+.1f} %)")
    ours = every[0]
    figures = {
        "open, seconds": Figure(min(ours.open), statistics.median(ours.open)),
        "lookup, ms": Figure(1e3 * statistics.median(ours.lookup)),
        "memory, MB": Figure(ours.memory),
        "recording with the index, % more": more,
    }
    return Part(figures, {"ways": [asdict(one) for one in every], "plain": plain, "indexed": indexed})


def rows(part: int, count: int) -> pa.Table:
    """Made-up rows: groups of samples of one prompt, in recordings of 1,024 samples each."""
    random = np.random.default_rng(part)
    start = part * PART_ROWS
    at = np.arange(start, start + count)
    digests = np.repeat(random.integers(0, 256, (-(-count // GROUP), 16), np.uint8), GROUP, axis=0)[:count]
    prompts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(digests)])
    uids = pa.array(np.char.mod("u%d", at // GROUP))
    columns = [
        prompts, pa.array([b"sampling 16 byte"] * count, pa.binary(16)), pa.array(at // PER_FILE),
        uids, pa.array((at % GROUP).astype(np.int32)), pa.array(at // PER_FILE),
        pa.array((at // PER_FILE).astype(np.int32)), pa.array((at % PER_FILE).astype(np.int32)),
        pa.array(random.random(count)), pa.array(random.integers(10, 500, count, np.int32)),
        pa.array(random.integers(10, 5000, count, np.int32)),
        pa.array(np.where(random.random(count) < 0.9, "stop", "length")),
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def tables() -> Iterator[pa.Table]:
    """A million rows at a time."""
    for part, start in enumerate(range(0, ROWS, PART_ROWS)):
        yield rows(part, min(PART_ROWS, ROWS - start))


def asked() -> list[bytes]:
    """A thousand prompts that are there, from everywhere."""
    found: list[bytes] = []
    for table in tables():
        places = np.linspace(0, len(table) - 1, max(1000 * len(table) // ROWS, 1)).astype(np.int64)
        found += table["prompt"].take(places).to_pylist()
    return found[:1000]


def _ours(folder: Path) -> Measured:
    path = folder / "tape"
    rolltape.Tape(path, mode="record").close()
    stage = path / "train" / "rollout"
    stage.mkdir(parents=True)
    names = [f"train/rollout/step_{at:06d}.parquet" for at in range(-(-ROWS // PER_FILE))]
    for name in names:  # only their names and sizes are looked at
        (path / name).write_bytes(b"PAR1")
    run = rolltape.open(path)
    stats = {stat.name: stat for stat in run.storage.entries("train/rollout/")}
    recordings = [Indexed(name, stats[name].size, stats[name].revision, "") for name in names]
    made, spent = list(tables()), 0.0
    for part, table in enumerate(made):
        started = time.perf_counter()
        name = part_name("train", "rollout", f"set{part:03d}")
        held = sorted(set(table["file"].to_numpy().tolist()))
        first = pa.array(table["file"].to_numpy() - np.int32(held[0]), pa.int32())
        mine = table.set_column(SCHEMA.get_field_index("file"), SCHEMA.field("file"), first)
        data = encode_part(sorted_rows(mine), [recordings[at] for at in held], name)
        run.storage.publish(name, [data], replace=True)
        spent += time.perf_counter() - started
    del made
    started = time.perf_counter()
    merge_parts(SampleIndex(run, read=False))
    spent += time.perf_counter() - started
    size = sum(file.stat().st_size for file in (path / "samples.index").rglob("*.parquet"))
    found = Measured("rolltape index", spent, size, *_asking("ours", path))
    shutil.rmtree(path)
    return found


def _sqlite(folder: Path) -> Measured:
    path = folder / "samples.sqlite"
    spent = 0.0
    base = sqlite3.connect(path)
    base.execute(f"CREATE TABLE samples ({', '.join(SCHEMA.names).replace('index', 'idx')})")
    for table in tables():
        listed = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        started = time.perf_counter()
        base.executemany(f"INSERT INTO samples VALUES ({','.join('?' * len(SCHEMA))})", listed)
        base.commit()
        spent += time.perf_counter() - started
    started = time.perf_counter()
    base.execute("CREATE INDEX by_prompt ON samples (prompt)")
    base.commit()
    base.close()
    spent += time.perf_counter() - started
    found = Measured("SQLite", spent, path.stat().st_size, *_asking("sqlite", path))
    path.unlink()
    return found


def _duckdb(folder: Path) -> Measured:
    import duckdb

    path = folder / "samples.duckdb"
    spent = 0.0
    base = duckdb.connect(str(path))
    for number, table in enumerate(tables()):
        started = time.perf_counter()
        base.register("made", table)
        base.execute(
            "CREATE TABLE samples AS SELECT * FROM made" if not number else "INSERT INTO samples FROM made"
        )
        spent += time.perf_counter() - started
    started = time.perf_counter()
    base.execute("CREATE INDEX by_prompt ON samples (prompt)")
    base.close()
    spent += time.perf_counter() - started
    found = Measured("DuckDB", spent, path.stat().st_size, *_asking("duckdb", path))
    path.unlink()
    return found


def _asking(way: str, path: Path) -> tuple[list[float], list[float], float]:
    """How long it takes another process to open it and to ask, and what memory it takes."""
    code = f"from benchmarks.index import ask; ask({way!r}, {str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    opened, lookups, memory = (line.split() for line in done.stdout.splitlines())
    return list(map(float, opened)), list(map(float, lookups)), float(memory[0])


def ask(way: str, path: str) -> None:
    """In a process of its own: open, and ask for a thousand prompts; prints what it took."""
    find: Callable[[bytes], object]
    wanted, before, opened = asked(), _memory(), []
    for _ in range(3):
        started = time.perf_counter()
        if way == "ours":
            find = SampleIndex(rolltape.open(path), read=False).find
        elif way == "sqlite":
            base = sqlite3.connect(path)
            base.execute("SELECT 1 FROM samples LIMIT 1").fetchall()
            find = lambda one, base=base: base.execute(  # noqa: E731
                "SELECT * FROM samples WHERE prompt = ?", [one]
            ).fetchall()
        else:
            import duckdb

            duck = duckdb.connect(path, read_only=True)
            find = lambda one, duck=duck: duck.execute(  # noqa: E731
                "SELECT * FROM samples WHERE prompt = ?", [one]
            ).fetchall()
        opened.append(time.perf_counter() - started)
    lookups = []
    for one in wanted[:: max(len(wanted) // 1000, 1)]:
        started = time.perf_counter()
        answer = find(one)
        lookups.append(time.perf_counter() - started)
        assert len(answer) >= 1
    print(*opened)
    print(*lookups)
    print(_memory() - before)


def _memory() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def recording(folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of processor time to record the same batches, asked by step and by prompt; rounds alternate."""
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 150_000, 512).tolist() for _ in range(64)]
    batch = {
        "prompt_ids": [prompt for prompt in prompts for _ in range(8)],
        "response_ids": [random.integers(0, 150_000, 4096) for _ in range(512)],
        "logprobs": [-random.random(4096, np.float32) for _ in range(512)],
    }
    spent: dict[str, list[float]] = {"step": [], "prompt": []}
    for number in range(rounds):
        for by in spent:
            path = folder / f"recording-{by}-{number}"
            options = {"by": "prompt", "prompts": "prompts", "n": 8} if by == "prompt" else {}
            started = time.process_time()
            with rolltape.Tape(path, mode="record") as tape:
                stage = tape.stage("rollout", inputs=["prompts"], **options)(lambda prompts: batch)
                for step in range(STEPS):
                    with tape.step(step):
                        stage(prompts)
            spent[by].append(time.process_time() - started)
            shutil.rmtree(path)
    return spent["step"], spent["prompt"]
