"""Large dense columns, decoded and filled in on several threads.

Each thread takes a few row groups of the columns that are made of the same stored ones: it checks and decodes
these, and writes the rows of those while what it decoded is still in the cache. What is decoded at any time
is a small part of the file, in memory that is used again for the next part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rolltape.batch.columns import Column
from rolltape.codec.expand import EmptyRows, Source
from rolltape.codec.threads import submit

PARTS = 8
"""How many parts the samples are cut into at most."""

Decode = Callable[[Sequence[int], Collection[str]], pa.Table]
"""Some stored columns of some row groups."""


class Run(NamedTuple):
    """Some samples, and the row group that they lie in."""

    group: int
    first: int
    """The first sample of the group."""
    start: int
    stop: int


class Filling:
    """Columns that other threads fill in."""

    def __init__(
        self, wants: Mapping[str, set[str]], source: Source, runs: Sequence[Run], decode: Decode
    ) -> None:
        """``wants`` says of each column what is stored of it; of that, ``source`` has the row bounds."""
        self._source = source
        self._decode = decode
        self._wants = wants
        self._rows = {name: EmptyRows.of(name, source) for name in wants}
        cuts = np.array_split(np.arange(len(runs)), min(len(runs), PARTS)) if wants and runs else []
        self._parts = [[runs[at] for at in cut] for cut in cuts]
        self._under_way: list[Future[None]] = []

    def begin(self) -> None:
        """Give the other threads their work: what takes most decoding first."""
        known = dict(self._source.stored)
        begin = self._parts[0][0].start if self._parts else 0
        shares = [
            replace(
                self._source,
                stored={
                    name: found.slice(part[0].start - begin, part[-1].stop - part[0].start)
                    for name, found in known.items()
                },
                samples=part[-1].stop - part[0].start,
                small={}, _bounds={}, _checked=set(), _masks={}, _lock=threading.Lock(),
            )
            for part in self._parts
        ]  # fmt: skip
        for together in sorted(self._together(known), key=len, reverse=True):
            for part, share in zip(self._parts, shares, strict=True):
                self._under_way.append(submit(self._fill, together, part, share, part[0].start - begin))

    def finish(self) -> dict[str, Column]:
        """The columns, once all are filled in."""
        for future in self._under_way:
            future.result()
        return {name: rows.column(self._source) for name, rows in self._rows.items()}

    def _fill(self, names: Sequence[str], part: Sequence[Run], share: Source, at: int) -> None:
        """Decode and fill in some columns of some samples."""
        wanted = sorted(set().union(*(self._wants[name] for name in names)).difference(share.stored))
        if wanted:
            table = self._decode([run.group for run in part], wanted)
            begin, count = part[0].start - part[0].first, part[-1].stop - part[0].start
            decoded = {name: table[name].slice(begin, count) for name in wanted}
            share = replace(share, stored={**share.stored, **decoded})
        for name in names:
            self._rows[name].fill(share, at)

    def _together(self, known: Collection[str]) -> list[list[str]]:
        """The columns that are made of the same stored ones, beside those that are known."""
        found: list[tuple[set[str], list[str]]] = []
        for name, wants in self._wants.items():
            mine, names = wants.difference(known), [name]
            apart = []
            for others, there in found:
                if mine.isdisjoint(others):
                    apart.append((others, there))
                else:
                    mine, names = mine | others, [*there, *names]
            found = [*apart, (mine, names)]
        return [names for _, names in found]
