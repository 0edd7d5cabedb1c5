"""Makes an index, merges its parts, and compares it with the recordings.

Parts are published whole, and what they were made of goes only after that: whoever reads meanwhile, and
whatever is killed, finds every recording spoken for once, or reads it itself. Memory is that of one part.
"""

from __future__ import annotations

import datetime as dt
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rolltape.errors import CorruptFileError
from rolltape.index.index_part import Indexed, digests_of, encode_part, sorted_rows
from rolltape.index.index_rows import SCHEMA
from rolltape.index.prompt_key import SIZE
from rolltape.index.sample_index import Fault, SampleIndex, indexed
from rolltape.key import index_folder
from rolltape.reader.run import Run
from rolltape.spread import HERE, Spread
from rolltape.storage import Stat, Storage

PART_ROWS = 2**20
"""Rows of a part, about: what is sorted at once."""

Tick = Callable[[int, int], None]
"""Told how many recordings are done, and of how many."""


@dataclass(slots=True)
class Build:
    """What was done."""

    recordings: int = 0
    """How many the index speaks for."""
    read: int = 0
    """How many of them had to be read."""
    samples: int = 0
    parts: int = 0
    bytes: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    """Recordings that cannot be read, and why."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Makes rows of recordings, one after the other."""

    storage: Storage

    def __call__(self, stats: Sequence[Stat]) -> Iterator[tuple[Indexed, pa.Table] | str | None]:
        for stat in stats:
            unreadable: dict[str, str] = {}
            yield indexed(self.storage, stat, unreadable) or unreadable.get(stat.name)


def build_index(
    run: Run,
    stage: str = "rollout",
    split: str = "train",
    *,
    spread: Spread = HERE,
    tick: Tick = lambda done, total: None,
) -> Build:
    """Bring the stored index of a stage up to date: everything in one set of parts, nothing twice."""
    try:
        return _build(run, stage, split, spread, tick)
    except CorruptFileError:  # a part of the index: what cannot be read of recordings is only noted
        index = SampleIndex(run, stage, split, read=False)
        before = {part.name for part in index.parts}
        index.read_through()
        damaged = before - {part.name for part in index.parts}
        if not damaged:
            raise
        run.storage.delete_all(sorted(damaged))
        return _build(run, stage, split, spread, tick)


def _build(run: Run, stage: str, split: str, spread: Spread, tick: Tick) -> Build:
    index = SampleIndex(run, stage, split, read=False)
    done = Build()
    todo = index.unindexed()
    pending = Pending(run.storage, split, stage)
    results = spread.over(_Read(run.storage), todo, [run.location])
    for at, (stat, found) in enumerate(zip(todo, results, strict=True), 1):
        if isinstance(found, str):
            done.unreadable[stat.name] = found
        elif found is not None:
            done.read += 1
            pending.add(*found)
            if pending.rows >= PART_ROWS:
                pending.publish()
        tick(at, len(todo))
    pending.publish()
    index.refresh()
    if len({part.header.of_set for part in index.parts}) > 1 or index.faults or index.is_stale:
        merge_parts(index)
        index.refresh()
    done.recordings = len(index.indexed)
    done.parts, done.bytes = len(index.parts), sum(part.size for part in index.parts)
    done.samples = len(index)
    return done


def drop_index(run: Run, stage: str, split: str) -> int:
    """Delete the stored index of a stage; how many files that were."""
    names = list(run.storage.names(index_folder(split, stage)))
    run.storage.delete_all(names)
    return len(names)


class Pending:
    """Rows that are not stored yet, of one stage."""

    def __init__(self, storage: Storage, split: str, stage: str) -> None:
        self._storage, self._split, self._stage = storage, split, stage
        self._tables: list[pa.Table] = []
        self._recordings: list[Indexed] = []
        self.rows = 0

    def add(self, one: Indexed, table: pa.Table) -> None:
        """Keep the rows of a recording."""
        self._tables.append(_renumbered(table, np.full(1, len(self._recordings), np.int32)))
        self._recordings.append(one)
        self.rows += len(table)

    def __len__(self) -> int:
        return len(self._recordings)

    def publish(self) -> str | None:
        """Store them as a part; its name, None if there was nothing."""
        if not self._recordings:
            return None
        table = sorted_rows(pa.concat_tables(self._tables).combine_chunks())
        name = part_name(self._split, self._stage, new_set())
        self._storage.publish(name, [encode_part(table, self._recordings, name)], replace=False)
        self._tables, self._recordings, self.rows = [], [], 0
        return name


def new_set() -> str:
    """A name for parts that are written together; later ones sort behind earlier ones."""
    return f"{dt.datetime.now(dt.timezone.utc):%Y%m%d%H%M%S%f}-{uuid.uuid4().hex[:8]}"


def part_name(split: str, stage: str, of_set: str, at: int = 0) -> str:
    """The file of a part."""
    return f"{index_folder(split, stage)}{of_set}-{at:03d}.parquet"


def merge_parts(index: SampleIndex, names: Iterable[str] | None = None) -> list[str]:
    """Make one set of all parts, or of those named, without what is gone; the names of its parts."""
    storage, split, stage = index.storage, index.split, index.stage
    chosen = None if names is None else set(names)
    old = [name for name in storage.names(index_folder(split, stage)) if chosen is None or name in chosen]
    recordings = sorted(index.indexed_by(chosen), key=lambda one: one.name)
    numbers = {one.name: at for at, one in enumerate(recordings)}
    total = sum(len(part) for part in index.parts if chosen is None or part.name in chosen)
    parts = max(1, -(-total // PART_ROWS))
    of_set = new_set()
    bounds = [(2 ** (8 * SIZE) * at // parts).to_bytes(SIZE, "big") for at in range(1, parts)]
    new = [part_name(split, stage, of_set, at) for at in range(parts)]
    for name, low, high in zip(new, [None, *bounds], [*bounds, None], strict=True):
        tables = [
            _renumbered(table, np.array([numbers.get(name, -1) for name in known], np.int32))
            for known, table in index.stored_rows(low, high, chosen)
        ]
        table = sorted_rows(_between(pa.concat_tables([SCHEMA.empty_table(), *tables]), low, high))
        data = encode_part(table, recordings, of_set, parts)
        storage.publish(name, [data], replace=False)
    storage.delete_all(sorted(old))
    return new


def _between(table: pa.Table, low: bytes | None, high: bytes | None) -> pa.Table:
    table = table.combine_chunks()
    prompts = digests_of(table)
    kept = np.ones(len(table), bool)
    if low is not None:
        kept &= prompts >= np.bytes_(low)
    if high is not None:
        kept &= prompts < np.bytes_(high)
    return table.filter(pa.array(kept))


def _renumbered(table: pa.Table, numbers: np.ndarray) -> pa.Table:
    column = pa.array(numbers[table["file"].to_numpy()], pa.int32())
    return table.set_column(SCHEMA.get_field_index("file"), SCHEMA.field("file"), column)


def check_index(
    run: Run,
    stage: str = "rollout",
    split: str = "train",
    *,
    spread: Spread = HERE,
    tick: Tick = lambda done, total: None,
) -> list[Fault]:
    """Compare every row of the stored index with its recording; what is wrong with the index."""
    index = SampleIndex(run, stage, split, read=False)
    index.read_through()
    faults = [*index.faults, *index.stale()]
    said: dict[str, np.ndarray] = {}
    for known, table in index.stored_rows():
        _sum_up(said, known, table)
    stats = [Stat(one.name, one.size, one.revision) for one in index.indexed.values()]
    for at, (stat, found) in enumerate(
        zip(stats, spread.over(_Read(run.storage), stats, [run.location]), strict=True), 1
    ):
        if isinstance(found, str):
            faults.append(Fault("damaged", stat.name, f"the recording cannot be read: {found}"))
        elif found is not None:
            sums: dict[str, np.ndarray] = {}
            _sum_up(sums, [stat.name], found[1])
            if not np.array_equal(sums.get(stat.name, _NOTHING), said.get(stat.name, _NOTHING)):
                what = "the index says something else of its samples than the recording does"
                faults.append(Fault("differs", stat.name, what))
        tick(at, len(stats))
    if index.parts or index.faults:
        faults += [Fault("missing", one.name, "it is not in the index yet") for one in index.unindexed()]
    return faults


_NOTHING = np.zeros(2, np.uint64)


def _sum_up(sums: dict[str, np.ndarray], names: Sequence[str], table: pa.Table) -> None:
    """Add up what is said of the rows of each recording; the order in which they come does not matter."""
    if not len(table):
        return
    file = table["file"].to_numpy()
    hashes = np.zeros(len(table), np.uint64)
    texts = (table["uid"], table["finish"])
    for name in ("prompt", "sampling"):
        words = digests_of(table, name).view(np.uint64).reshape(-1, 2)
        hashes = _mixed(hashes, words[:, 0] ^ (words[:, 1] << np.uint64(1)))
    for name in ("version", "index", "step", "row", "prompt_tokens", "response_tokens", "reward"):
        column, kind = table[name], np.float64 if name == "reward" else np.int64
        hashes = _mixed(hashes, column.fill_null(0).to_numpy().astype(kind).view(np.uint64))
        hashes = _mixed(hashes, column.is_valid().to_numpy().astype(np.uint64))
    for text in texts:
        hashes = _mixed(hashes, np.array([_text_hash(one) for one in text.to_pylist()], np.uint64))
    for at in np.unique(file):
        mine = hashes[file == at]
        sums.setdefault(names[at], _NOTHING.copy())
        sums[names[at]] += np.array([mine.sum(dtype=np.uint64), len(mine)], np.uint64)


def _text_hash(text: str | None) -> int:
    """A number that stands for a text."""
    return 0 if text is None else zlib.crc32(text.encode("utf-8", "surrogatepass")) + 1


def _mixed(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
    mixed: np.ndarray = (hashes ^ words) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return mixed
