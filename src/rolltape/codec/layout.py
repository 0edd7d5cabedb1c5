"""How each padded array is stored: what can be derived is proven and left out, the rest is trimmed.

Every layout is proven on all bits at write time; a guess that fails costs time, never exactness.

    plain   every element of every row
    bytes   every row as raw bytes
    span    padding taken away on one or both sides
    const   a span that holds one value throughout (masks)
    ramp    a span that counts up (position ids); behind it the count holds or runs on
    join    two other columns side by side (input_ids = prompts + responses)
    part    a slice of another column (or an equal one)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.codec.row_buffer import RowBuffer
from rolltape.codec.spans import Spans, find_spans
from rolltape.codec.threads import SHARE_FROM

TRIES = 50_000
"""Guesses that are tried on one batch. A batch of many thousand columns has more pairs than time; what is not
tried is stored plainly."""

BYTES_FROM = 4096
"""Rows of three or more axes and at least this many bytes are stored raw if trimming does not help."""


@dataclass(slots=True)
class Rows:
    """An array column as rows of unsigned integers."""

    name: str
    bits: np.ndarray
    dtype: str
    """The logical dtype: columns are derived only from those of their own, equal bits or not."""
    axes: int
    """Axes of the original array, the samples included."""
    counts: bool
    """Whether the dtype is an integer, so that it may count up."""
    memory: RowBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.memory = RowBuffer(self.bits)

    @property
    def width(self) -> int:
        return int(self.bits.shape[1])

    def at(self, place: int) -> bytes:
        """One element of each of a few rows: what has others there is not this column."""
        return bytes(self.bits[self.memory.few, place].data)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one array is stored."""

    kind: str
    spans: Spans | None = None
    fill: int = 0
    """const: the value, as bits."""
    tail: str = ""
    """ramp: ``hold`` or ``run``."""
    parts: tuple[str, ...] = ()
    """join: the columns; part: the one column it is cut from."""
    offset: int = 0
    """part: the first element of the slice."""


class Planner:
    """Chooses and proves the layouts of the arrays of one batch."""

    def __init__(self, columns: list[Rows], samples: int) -> None:
        self._columns = columns
        self._samples = samples
        self._tries = TRIES
        self._starting: dict[tuple[str, bytes], list[Rows]] = {}
        """Columns by dtype and first elements: one that another starts with has the same."""
        self._ending: dict[tuple[str, int, bytes], list[Rows]] = {}
        """Columns by dtype, width and last elements."""
        for column in columns:
            if column.width:
                self._starting.setdefault((column.dtype, column.at(0)), []).append(column)
                ending = column.dtype, column.width, column.at(-1)
                self._ending.setdefault(ending, []).append(column)
        self._known: dict[int, list[Spans]] = {}  # width -> spans of the columns done so far
        self.layouts: dict[str, Layout] = {}

    def run(self) -> dict[str, Layout]:
        """Decide every column. Masks go first: their spans are what the others are padded by.

        What looks like a join goes last: where the padding of its parts is known, that is not compared again.
        """
        payload = _Payload()
        for column in self._columns:
            if column.axes == 1:
                self.layouts[column.name] = Layout("plain")
        rest = [c for c in self._columns if c.name not in self.layouts]
        joins = {c.name for c in rest if self._joined(c, proven=False)}
        order = sorted(rest, key=lambda c: ("mask" not in c.name, -c.width))
        for column in order:
            if column.name not in joins:
                self._decide(column, payload)
        for column in sorted((c for c in rest if c.name in joins), key=lambda c: c.width):
            joined = self._joined(column)
            if joined is not None:
                self.layouts[column.name] = joined
            else:
                self._decide(column, payload)
        return self.layouts

    def _decide(self, column: Rows, payload: _Payload) -> None:
        """The layout of a column that is no join."""
        self.layouts[column.name] = layout = self._ramp(column) or self._trimmed(column)
        if layout.kind in ("plain", "span"):
            copied = self._part(column, payload)
            if copied is not None:
                self.layouts[column.name] = copied
            else:
                payload.add(column)

    def _try(self) -> bool:
        """Whether one more guess may be tried."""
        self._tries -= 1
        return self._tries >= 0

    def _trimmed(self, column: Rows) -> Layout:
        if column.width == 0:
            return Layout("const", self._everything(0))
        if column.axes == 1:  # one number per sample: nothing to trim, and SQL should see it
            return Layout("plain")
        spans, fill = find_spans(column.memory, self._known.get(column.width, ()))
        # Only masks and the like leave the file: a reward is worth its place, for whoever reads it with SQL.
        if fill is not None and (column.counts or column.dtype == "bool"):
            self._known.setdefault(column.width, []).append(spans)
            return Layout("const", spans, fill=fill)
        if spans.left is None and spans.right is None:
            heavy = column.axes > 2 and column.width * column.bits.itemsize >= BYTES_FROM
            return Layout("bytes" if heavy else "plain")
        return Layout("span", self._adopt(column.width, spans))

    def _adopt(self, width: int, spans: Spans) -> Spans:
        """Use another column's spans where they fit closely: then the bounds are stored once."""
        for known in self._known.setdefault(width, []):
            if not self._try():
                break
            allowed = spans.total * 1.02 + self._samples
            left, right = spans.left, spans.right
            if spans.within(known) and known.total <= allowed and _padded_alike(spans, known, width):
                return Spans(known.start, known.stop, left, right)
        self._known[width].append(spans)
        return spans

    def _ramp(self, column: Rows) -> Layout | None:
        if not column.counts or column.width < 2:
            return None
        count = pa.py_buffer(np.arange(column.width, dtype=column.bits.dtype))
        for spans in chain(self._known.get(column.width, ()), [self._everything(column.width)]):
            for tail in ("hold", "run"):
                if not self._try():
                    return None
                if self._is_ramp(column, spans, tail, count):
                    return Layout("ramp", Spans(spans.start, spans.stop, 0, None), tail=tail)
        return None

    def _is_ramp(self, column: Rows, spans: Spans, tail: str, count: Any) -> bool:
        """Whether each row is zero up to its span, counts up in it, and then holds the last or runs on."""
        memory, start = column.memory, spans.start
        stop = column.width if tail == "run" else spans.stop
        if not memory.holds(start, stop, count, 0):
            return False
        lasts = np.maximum(np.subtract(stop, start) - 1, 0).astype(column.bits.dtype)
        held = None if tail == "run" else lasts
        return bool(memory.only((0, start, stop, column.width), (0, None, held)).all())

    def _joined(self, column: Rows, *, proven: bool = True) -> Layout | None:
        """The two columns that this one consists of; not ``proven``: in a few rows."""
        if column.width < 2:
            return None
        last = column.at(-1)
        for first in self._starting[column.dtype, column.at(0)]:
            if not self._try():
                return None
            seconds = self._ending.get((column.dtype, column.width - first.width, last), ())
            if not seconds or not self._alike(column, first, 0):
                continue
            for second in seconds:
                if not self._try():
                    return None
                places = ((first, 0), (second, first.width))
                if self._alike(column, second, first.width) and (not proven or self._same(column, *places)):
                    return Layout("join", parts=(first.name, second.name))
        return None

    def _part(self, column: Rows, sources: _Payload) -> Layout | None:
        for source, at_end in sources.like(column):
            if not self._try():
                return None
            offset = source.width - column.width if at_end else 0
            if offset >= 0 and self._alike(source, column, offset) and self._same(source, (column, offset)):
                return Layout("part", parts=(source.name,), offset=offset)
        return None

    def _alike(self, whole: Rows, part: Rows, at: int) -> bool:
        """Whether ``part`` stands in ``whole`` from element ``at`` on, in a few rows."""
        few, stop = whole.memory.few, at + part.width
        return stop <= whole.width and bool((whole.bits[few, at:stop] == part.bits[few]).all())

    def _same(self, whole: Rows, *parts: tuple[Rows, int]) -> bool:
        """Whether each row of these columns stands in the same row of ``whole``, from an element on.

        What is known to be padding there is padding here; only what is inside is compared with theirs. Small
        ones are compared as they are: that is one call instead of one for each row.
        """
        if whole.bits.nbytes < SHARE_FROM:
            return all(np.array_equal(whole.bits[:, at : at + part.width], part.bits) for part, at in parts)
        edges: list[Any] = []
        values: list[int | None] = []
        for part, at in parts:
            spans = self._padding(part)
            start, stop, theirs = spans.start, spans.stop, part.memory
            places = np.arange(self._samples) * theirs.pitch + start.astype(np.int64) * theirs.item
            if not whole.memory.holds(at + start, at + stop, theirs.buffer, places):
                return False
            edges += [at, at + start, at + stop]
            values += [spans.left, None, spans.right]
        edges.append(parts[-1][1] + parts[-1][0].width)
        return not any(value is not None for value in values) or bool(whole.memory.only(edges, values).all())

    def _padding(self, column: Rows) -> Spans:
        """The spans of a column that is decided; all of it where it is not, or has no padding."""
        layout = self.layouts.get(column.name)
        if layout is None or layout.spans is None or layout.kind not in ("span", "const"):
            return self._everything(column.width)
        return layout.spans

    def _everything(self, width: int) -> Spans:
        n = self._samples
        return Spans(np.zeros(n, np.int32), np.full(n, width, np.int32), None, None)


class _Payload:
    """The columns that are stored so far, by what they begin and end with."""

    def __init__(self) -> None:
        self._count = 0
        self._starting: dict[tuple[str, bytes], list[tuple[int, bool, Rows]]] = {}
        self._ending: dict[tuple[str, bytes], list[tuple[int, bool, Rows]]] = {}

    def add(self, column: Rows) -> None:
        """Another one that is stored itself."""
        for at, found in ((0, self._starting), (-1, self._ending)):
            found.setdefault((column.dtype, column.at(at)), []).append((self._count, at == -1, column))
        self._count += 1

    def like(self, column: Rows) -> Iterator[tuple[Rows, bool]]:
        """Those that may begin with the column, or (True) end with it, the first that was stored first."""
        starting = self._starting.get((column.dtype, column.at(0)), ())
        ending = self._ending.get((column.dtype, column.at(-1)), ())
        for _, at_end, source in merge(starting, ending, key=lambda found: found[:2]):
            yield source, at_end


def _padded_alike(spans: Spans, known: Spans, width: int) -> bool:
    """Whether the sides that the wider spans trim are sides whose padding is known."""
    left = spans.left is not None or not known.start.any()
    right = spans.right is not None or bool((known.stop == width).all())
    return left and right
