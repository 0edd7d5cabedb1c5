"""``SampleTable``: all samples of a stage of a run as one table of numbers, to filter and to sort.

It is made of the stored index where there is one, and of the recordings otherwise, little by little: whoever
looks may ask again until everything is there. Nothing is written. Rewards that another stage recorded are
put beside the samples they are of, by uid and index, or by their order where nothing tells who is who.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
        self._made: pa.Table | None = None
        self._made_of: tuple[int, int] = (-1, -1)

    def advance(self, seconds: float = float("inf")) -> Progress:
        """Work for a while; how much there is now."""
        end = time.monotonic() + seconds
        self._begin()
        while self._todo and time.monotonic() < end:
            self._take(self._todo.pop())
        mine = Progress(len(self._names), len(self._names) + len(self._todo))
        if self._rewards is None:
            return mine
        other = self._rewards.advance(max(0.0, end - time.monotonic()))
        return Progress(mine.done + other.done, mine.total + other.total)

    def table(self) -> pa.Table:
        """What is there, sorted by step and sample."""
        state = len(self._names), len(self._rewards._names) if self._rewards else 0
        if self._made is None or state != self._made_of:
            made = self._put_together()
            if self._rewards is not None and len(made):
                made = _with_rewards(made, self._rewards.table())
            self._made, self._made_of = made, state
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
            stored = list(index.stored_rows())
        except (CorruptFileError, StepMissingError, FileReplacedError):
            index.read_through()  # finds those that cannot be read, and does without
            stored = list(index.stored_rows())
        self._names, self._pieces, self._made = [], [], None
        codes: dict[str, int] = {}
        for names, table in stored:
            own = np.array([codes.setdefault(name, len(codes)) for name in names], np.int32)
            self._pieces.append(_numbered(table.select(_WANTED), own))
        self._names = list(codes)
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

    def _take(self, stat: Stat) -> None:
        found = indexed(self.run.storage, stat, self.unreadable)
        self._add(stat, (found[1] if found is not None else SCHEMA.empty_table()).select(_WANTED))

    def _add(self, stat: Stat, table: pa.Table) -> None:
        self._read[stat.name] = stat, table
        self._pieces.append(_numbered(table, np.full(1, len(self._names), np.int32)))
        self._names.append(stat.name)

    def _put_together(self) -> pa.Table:
        table = pa.concat_tables([SCHEMA.empty_table().select(_WANTED), *self._pieces]).combine_chunks()
        files = table["file"].to_numpy()
        counts = (
            np.bincount(files, minlength=len(self._names)) if len(files) else np.zeros(len(self._names), int)
        )
        first = self._first_samples(counts)
        samples = first[files] + table["row"].to_numpy() if len(files) else np.zeros(0, np.int64)
        order = np.lexsort((samples, table["step"].to_numpy()))
        # A recording that a step no longer counts has no place in it.
        order = order[samples[order] >= 0]
        finish = pc.utf8_lower(table["finish"])
        cut = pc.if_else(
            pc.is_valid(finish), pc.is_in(finish, pa.array(TRUNCATED)), pa.scalar(None, pa.bool_())
        )
        table = table.append_column("sample", pa.array(samples.astype(np.int64)))
        table = table.append_column("tokens", pc.add(table["prompt_tokens"], table["response_tokens"]))
        table = table.append_column("truncated", cut)
        return table.select(COLUMNS).take(pa.array(order))

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


def _numbered(table: pa.Table, codes: np.ndarray) -> pa.Table:
    column = pa.array(codes[table["file"].to_numpy()] if len(table) else [], pa.int32())
    return table.set_column(table.schema.get_field_index("file"), SCHEMA.field("file"), column)


def _with_rewards(mine: pa.Table, other: pa.Table) -> pa.Table:
    """The rows with the rewards that another stage has for them."""
    steps, theirs = mine["step"].to_numpy(), other["step"].to_numpy()
    found = np.full(len(steps), np.nan)
    values = np.asarray(other["reward"].fill_null(float("nan")).to_numpy())
    same = len(steps) == len(theirs) and bool((steps == theirs).all())
    if same and _in_order(mine, other):
        found = values
    else:
        starts = np.unique(steps, return_index=True)
        for step, start in zip(*starts, strict=True):
            stop = int(np.searchsorted(steps, step, "right"))
            low, high = (int(np.searchsorted(theirs, step, side)) for side in ("left", "right"))
            found[start:stop] = _rewards_of(mine.slice(start, stop - start), other.slice(low, high - low))
    column = pa.array(found, pa.float64(), mask=np.isnan(found))
    return mine.set_column(mine.schema.get_field_index("reward"), "reward", column)


def _in_order(mine: pa.Table, other: pa.Table) -> bool:
    if not any(other["uid"].unique().to_pylist()):
        return True
    return bool(mine["uid"].equals(other["uid"]) and mine["index"].equals(other["index"]))


def _rewards_of(mine: pa.Table, other: pa.Table) -> Sequence[float] | np.ndarray:
    """The rewards of one step."""
    values = np.asarray(other["reward"].fill_null(float("nan")).to_numpy())
    if len(mine) == len(other) and _in_order(mine, other):
        return values
    ids = zip(other["uid"].to_pylist(), other["index"].to_pylist(), strict=True)
    known = dict(zip(ids, values.tolist(), strict=True))
    asked = zip(mine["uid"].to_pylist(), mine["index"].to_pylist(), strict=True)
    return [known.get(one, float("nan")) for one in asked]
