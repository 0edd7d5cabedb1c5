"""``SampleTable``: all samples of a stage of a run as one table of numbers, to filter and to sort.

It is made of the stored index where there is one, and of the recordings otherwise, little by little: whoever
looks may ask again until everything is there. Nothing is written. Rewards that another stage recorded are
put beside the samples they are of, by uid and index, or by their order where nothing tells who is who.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rolltape.errors import CorruptFileError, FileReplacedError, RolltapeError, StepMissingError
from rolltape.index.index_rows import SCHEMA
from rolltape.index.sample_index import SampleIndex, indexed
from rolltape.reader.run import Run
from rolltape.reader.step_roles import find_roles
from rolltape.storage import Stat

COLUMNS = (
    "step", "sample", "uid", "index", "reward", "prompt_tokens", "response_tokens", "tokens", "finish",
    "truncated", "version", "prompt",
)  # fmt: skip
"""The columns of the table. ``sample`` is the place of a sample in its step, as pages and ``show`` count."""
TRUNCATED = ("length", "max_tokens", "truncated")
"""Reasons to finish that mean a response was cut."""
_WANTED = tuple(name for name in SCHEMA.names if name not in ("sampling",))
_FIRST = tuple(name for name in _WANTED if name not in ("prompt", "version"))
"""What is read of an index at first: a third of a row is what few ask for."""
_OF_REWARDS = ("step", "file", "row", "uid", "index", "reward")
"""What is asked of the stage that has the rewards."""
_REPEATED = ("uid", "finish")
"""Columns whose values are kept once, and numbered."""
_MADE = {"sample": pa.int64(), "tokens": pa.int32(), "truncated": pa.bool_()}
TABLE_SCHEMA = pa.schema([(name, _MADE.get(name) or SCHEMA.field(name).type) for name in COLUMNS])


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a table is there."""

    done: int
    """Recordings that have been read, or that an index speaks for."""
    total: int

    @property
    def complete(self) -> bool:
        """Whether that is everything."""
        return self.done >= self.total


def reward_stage(run: Run, stage: str, split: str = "train") -> str | None:
    """The stage that has the rewards of the samples of a stage; None where none has."""
    for step in run.steps(stage, split)[:1]:
        stored = {}
        for name in dict.fromkeys([stage, *run.stages(split)]):
            try:
                if run.files(name, split).at(step):
                    stored[name] = run.samples(step, name, split).stored
            except RolltapeError:  # what is damaged has no say
                continue
        found = find_roles(stage, stored).reward if stage in stored else None
        return None if found is None else found.stage
    return None


class SampleTable:
    """The samples of one stage of a run."""

    def __init__(
        self, run: Run, stage: str = "rollout", split: str = "train", *, rewards: SampleTable | None = None
    ) -> None:
        """``rewards`` is the table of the stage that has them, where this one has none."""
        self.run, self.stage, self.split = run, stage, split
        self.unreadable: dict[str, str] = {}
        """Recordings that cannot be read, and why: their samples are missing."""
        self._rewards = rewards
        self._version = ""
        self._names: list[str] = []
        self._pieces: list[pa.Table] = []
        self._read: dict[str, tuple[Stat, pa.Table]] = {}
        """What was read of recordings that no index speaks for."""
        self._todo: list[Stat] = []
        self._made: _Sorted | None = None
        self._made_of = -1
        """Of how many recordings."""
        self._wanted = _FIRST
        if rewards is not None:
            rewards._wanted = _OF_REWARDS

    def advance(self, seconds: float = float("inf")) -> Progress:
        """Work for a while; how much there is now."""
        end = time.monotonic() + seconds
        if self._rewards is None:
            self._begin()
        else:  # both indexes at once: they are decoded without the interpreter's lock
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(copy_context().run, self._rewards._begin_and_sort)
                self._begin()
                other.result()
        while self._todo and time.monotonic() < end:
            self._take(self._todo.pop())
        mine = Progress(len(self._names), len(self._names) + len(self._todo))
        if self._rewards is None:
            return mine
        theirs = self._rewards.advance(max(0.0, end - time.monotonic()))
        return Progress(mine.done + theirs.done, mine.total + theirs.total)

    def table(self, names: Collection[str] = COLUMNS) -> pa.Table:
        """What is there, sorted by step and sample; some columns, or all."""
        if not {"prompt", "version"}.isdisjoint({*names} - {*self._wanted}):
            self._wanted, self._version = _WANTED, ""
            self._begin()
        made = self._sorted()
        return pa.table({name: made.column(name) for name in COLUMNS if name in names})

    def rows(self, at: np.ndarray) -> pa.Table:
        """What is shown of some rows of the table: all columns but the prompt's digest and the version."""
        return self._sorted().rows(at)

    def __len__(self) -> int:
        return len(self._sorted().order)

    def _sorted(self) -> _Sorted:
        if self._made is None or len(self._names) != self._made_of:
            self._made, self._made_of = self._put_together(), len(self._names)
        if self._rewards is not None and self._made.rewards is not (other := self._rewards._sorted()):
            self._made.rewards = other
            self._made.columns.pop("reward", None)
        return self._made

    def _begin(self) -> None:
        """See what there is now. What has not changed is kept."""
        files = self.run.files(self.stage, self.split)
        mark = self.run.storage.mark(f"{self.split}/{self.stage}/")
        version = f"{len(files.files)}.{mark.text if mark else ''}"
        if version == self._version:
            return
        index = SampleIndex(self.run, self.stage, self.split, read=False)
        try:
            self._take_stored(index)
        except (CorruptFileError, StepMissingError, FileReplacedError):
            index.read_through()  # finds those that cannot be read, and does without
            self._take_stored(index)
        known, self._read = self._read, {}
        self._todo = []
        for stat in index.unindexed():
            kept = known.get(stat.name)
            if kept is not None and kept[0] == stat:
                self._add(*kept)
            else:
                self._todo.append(stat)
        self._todo.reverse()  # taken from the end, the first step first
        self._version = version

    def _begin_and_sort(self) -> None:
        self._begin()
        if not self._todo:
            for name in ("step", "uid", "index", "reward"):
                self._sorted().column(name)

    def _take_stored(self, index: SampleIndex) -> None:
        self._pieces, self._made = [], None
        codes: dict[str, int] = {}
        for names, table in index.stored_rows(columns=self._wanted):
            own = np.array([codes.setdefault(name, len(codes)) for name in names], np.int32)
            self._pieces.append(self._piece(table, own))
        self._names = list(codes)

    def _take(self, stat: Stat) -> None:
        found = indexed(self.run.storage, stat, self.unreadable)
        self._add(stat, (found[1] if found is not None else SCHEMA.empty_table()).select(_WANTED))

    def _add(self, stat: Stat, table: pa.Table) -> None:
        self._read[stat.name] = stat, table
        self._pieces.append(self._piece(table, np.full(1, len(self._names), np.int32)))
        self._names.append(stat.name)

    def _piece(self, table: pa.Table, codes: np.ndarray) -> pa.Table:
        """The columns that are wanted, with the recordings numbered as here."""
        column = pa.array(codes[table["file"].to_numpy()] if len(table) else [], pa.int32())
        found = table.select(self._wanted).set_column(self._wanted.index("file"), "file", column)
        for name in _REPEATED:
            if name in self._wanted:
                at = self._wanted.index(name)
                found = found.set_column(at, name, found[name].dictionary_encode())
        return found

    def _put_together(self) -> _Sorted:
        empty = self._piece(SCHEMA.empty_table(), np.empty(0, np.int32))
        table = pa.concat_tables([empty, *self._pieces]).unify_dictionaries()
        if not self._todo:  # nothing is added any more: whatever lands makes all of them anew
            self._pieces = []
        files, rows, steps = (table[name].to_numpy() for name in ("file", "row", "step"))
        counts = np.bincount(files, minlength=len(self._names))
        first = self._first_samples(counts)
        order = _in_place(files, rows, steps, first, counts)
        samples = first[files[order]] + rows[order]
        return _Sorted(table.drop_columns(["file", "row"]), order, {"sample": pa.array(samples)})

    def _first_samples(self, counts: np.ndarray) -> np.ndarray:
        """The place in its step that the first sample of each recording has."""
        codes = {name: at for at, name in enumerate(self._names)}
        first = np.full(len(self._names), -(2**40), np.int64)
        listed = self.run.files(self.stage, self.split)
        for step in {step for step, _ in listed.files}:
            before = 0
            for key in listed.at(step):
                at = codes.get(key.path)
                if at is None:  # not read yet, or not readable: those behind it cannot be counted
                    break
                first[at] = before
                before += int(counts[at])
        return first


@dataclass(slots=True)
class _Sorted:
    """All rows as they were read, and in which order they are shown; columns are sorted when asked for."""

    table: pa.Table
    order: np.ndarray
    columns: dict[str, pa.Array]
    rewards: _Sorted | None = None
    """Those of another stage."""

    def column(self, name: str) -> pa.Array:
        if name not in self.columns:
            found = self._made(name)
            self.columns[name] = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        return self.columns[name]

    def _made(self, name: str) -> pa.Array | pa.ChunkedArray:
        if name == "reward" and self.rewards is not None:
            return _rewards_from(self, self.rewards)
        if name == "tokens":
            return pc.add(self.column("prompt_tokens"), self.column("response_tokens"))
        if name == "truncated":
            return _is_truncated(self.table["finish"].take(pa.array(self.order)))
        return _plain(self.table[name].take(pa.array(self.order)))

    def rows(self, at: np.ndarray) -> pa.Table:
        known, picked = {"sample", "reward", *self.columns}, pa.array(at)
        mine = self.table.take(pa.array(self.order[at]))
        found = {name: self.column(name).take(picked) for name in known}
        found |= {name: _plain(mine[name]) for name in mine.column_names if name not in known}
        found["tokens"] = pc.add(found["prompt_tokens"], found["response_tokens"])
        found["truncated"] = _is_truncated(mine["finish"])
        return pa.table({name: found[name] for name in COLUMNS if name not in ("prompt", "version")})


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _in_place(
    files: np.ndarray, rows: np.ndarray, steps: np.ndarray, first: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The rows by step and sample, given where in its step each recording begins.

    A recording that a step no longer counts has no place in it, and begins below 0.
    """
    step_of = np.zeros(len(counts), steps.dtype)
    step_of[files] = steps
    listed = np.lexsort((first, step_of))
    listed = listed[first[listed] >= 0]
    begins = np.full(len(counts), -1, np.int64)
    begins[listed] = np.cumsum(counts[listed]) - counts[listed]
    places, total = begins[files], int(counts[listed].sum())
    kept = places >= 0
    places += rows
    order = np.full(total, -1, np.int64)
    right = np.array_equal(step_of[files], steps) and bool((places[kept] < total).all())
    if right:
        order[places[kept]] = np.flatnonzero(kept)
    if not right or (order < 0).any():  # of an index that is not as it is written
        some = np.flatnonzero(kept)
        return some[np.lexsort((first[files[some]] + rows[some], steps[some]))]
    return order


def _is_truncated(finish: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether the reasons to finish say that a response was cut; what is not known is neither."""
    chunks = [
        pc.is_in(pc.utf8_lower(chunk.dictionary), pa.array(TRUNCATED)).take(chunk.indices)
        for chunk in finish.chunks
    ]
    return pa.chunked_array(chunks, pa.bool_())


def _rewards_from(mine: _Sorted, other: _Sorted) -> pa.Array:
    """The rewards that another stage has for the rows, in their order."""
    steps, theirs = (np.asarray(one.column("step")) for one in (mine, other))
    values = np.asarray(other.column("reward").fill_null(float("nan")))
    if np.array_equal(steps, theirs) and _in_order(mine, other, slice(None), slice(None)):
        found = values
    else:
        found = np.full(len(steps), np.nan)
        for step, start in zip(*np.unique(steps, return_index=True), strict=True):
            here = slice(int(start), int(np.searchsorted(steps, step, "right")))
            there = slice(*(int(np.searchsorted(theirs, step, side)) for side in ("left", "right")))
            found[here] = _rewards_of(mine, other, here, there, values[there])
    return pa.array(found, pa.float64(), mask=np.isnan(found))


def _in_order(mine: _Sorted, other: _Sorted, here: slice, there: slice) -> bool:
    """Whether rows of two stages are of the same samples; unnamed ones are taken in their order."""
    uids, theirs = _cut(other.column("uid"), there), _cut(mine.column("uid"), here)
    if not any(uids.unique().to_pylist()):
        return True
    return bool(
        uids.equals(theirs) and _cut(mine.column("index"), here).equals(_cut(other.column("index"), there))
    )


def _cut(column: pa.Array, part: slice) -> pa.Array:
    start, stop, _ = part.indices(len(column))
    return column.slice(start, stop - start)


def _rewards_of(
    mine: _Sorted, other: _Sorted, here: slice, there: slice, values: np.ndarray
) -> Sequence[float] | np.ndarray:
    """The rewards of one step."""
    if here.stop - here.start == len(values) and _in_order(mine, other, here, there):
        return values
    asked, ids = (
        zip(
            _cut(one.column("uid"), part).to_pylist(),
            _cut(one.column("index"), part).to_pylist(),
            strict=True,
        )
        for one, part in ((mine, here), (other, there))
    )
    known = dict(zip(ids, values.tolist(), strict=True))
    return [known.get(one, float("nan")) for one in asked]
