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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rolltape.codec.spans import Scratch, Spans, find_spans

Run: TypeAlias = tuple[Any, int, int, int]
"""What a stretch of a row must equal: (buffer, offset in it, offset in the row, bytes)."""


class RowBuffer:
    """The rows of a two-dimensional contiguous array as memory."""

    def __init__(self, rows: np.ndarray) -> None:
        self.buffer = pa.py_buffer(rows)
        self.pitch = rows.shape[1] * rows.itemsize
        self.item = rows.itemsize

    def row_is(self, row: int, runs: Iterable[Run]) -> bool:
        """Whether the row consists of exactly these runs."""
        base = row * self.pitch
        for other, offset, at, size in runs:
            if size and not self.buffer.slice(base + at, size).equals(other.slice(offset, size)):
                return False
        return True


def every_row(matches: Callable[[int], bool], rows: int) -> bool:
    """Whether ``matches(row)`` holds for all rows; a few are asked first."""
    return all(map(matches, _sample_rows(rows))) and all(map(matches, range(rows)))


def _sample_rows(n: int) -> list[int]:
    """A few rows that tell quickly whether a guess is worth proving."""
    return sorted({0, n // 3, n // 2, n - 1})


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
        return bytes(self.bits[_sample_rows(len(self.bits)), place].data)


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
        self._scratch = Scratch()
        self._known: dict[int, list[Spans]] = {}  # width -> spans of the columns done so far
        self.layouts: dict[str, Layout] = {}

    def run(self) -> dict[str, Layout]:
        """Decide every column. Masks go first: their spans are what the others are padded by."""
        for column in self._columns:
            layout = Layout("plain") if column.axes == 1 else self._joined(column)
            if layout is not None:
                self.layouts[column.name] = layout
        rest = [c for c in self._columns if c.name not in self.layouts]
        payload = _Payload()
        for column in sorted(rest, key=lambda c: ("mask" not in c.name, -c.width)):
            layout = self._ramp(column) or self._trimmed(column)
            self.layouts[column.name] = layout
            if layout.kind in ("plain", "span"):
                copied = self._part(column, payload)
                if copied is not None:
                    self.layouts[column.name] = copied
                else:
                    payload.add(column)
        return self.layouts

    def _try(self) -> bool:
        """Whether one more guess may be tried."""
        self._tries -= 1
        return self._tries >= 0

    def _trimmed(self, column: Rows) -> Layout:
        if column.width == 0:
            return Layout("const", self._everything(0))
        if column.axes == 1:  # one number per sample: nothing to trim, and SQL should see it
            return Layout("plain")
        spans = find_spans(column.bits, self._scratch)
        # Only masks and the like leave the file: a reward is worth its place, for whoever reads it with SQL.
        fill = self._constant(column, spans) if column.counts or column.dtype == "bool" else None
        if fill is not None:
            self._known.setdefault(column.width, []).append(spans)
            return Layout("const", spans, fill=fill)
        if spans.left is None and spans.right is None:
            heavy = column.axes > 2 and column.width * column.bits.itemsize >= BYTES_FROM
            return Layout("bytes" if heavy else "plain")
        return Layout("span", self._adopt(column.width, spans))

    def _constant(self, column: Rows, spans: Spans) -> int | None:
        """The one value inside the spans, if there is only one."""
        if not spans.total:
            return 0
        filled = int((spans.stop > spans.start).argmax())
        value = int(column.bits[filled, spans.start[filled]])
        memory, item = column.memory, column.memory.item
        same = pa.py_buffer(np.full(column.width, value, column.bits.dtype))
        starts, stops = [int(at) * item for at in spans.start], [int(at) * item for at in spans.stop]

        def matches(row: int) -> bool:
            return memory.row_is(row, [(same, 0, starts[row], stops[row] - starts[row])])

        return value if every_row(matches, self._samples) else None

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
        zeros = pa.py_buffer(np.zeros(column.width, column.bits.dtype))
        for spans in chain(self._known.get(column.width, ()), [self._everything(column.width)]):
            for tail in ("hold", "run"):
                if not self._try():
                    return None
                if self._is_ramp(column, spans, tail, count, zeros):
                    return Layout("ramp", Spans(spans.start, spans.stop, 0, None), tail=tail)
        return None

    def _is_ramp(self, column: Rows, spans: Spans, tail: str, count: Any, zeros: Any) -> bool:
        memory, item, width = column.memory, column.memory.item, column.width
        starts, stops = spans.start.tolist(), spans.stop.tolist()

        def matches(row: int) -> bool:
            start, stop = starts[row] * item, stops[row] * item
            if tail == "run":
                return memory.row_is(row, [(zeros, 0, 0, start), (count, 0, start, width * item - start)])
            runs = [(zeros, 0, 0, start), (count, 0, start, stop - start)]
            if stop < width * item:  # behind the span: the last count again and again
                held = zeros if stop == start else count
                last = 0 if stop == start else stop - start - item
                base = row * memory.pitch + stop
                runs += [(held, last, stop, item)]
                runs += [(memory.buffer, base, stop + item, width * item - stop - item)]
            return memory.row_is(row, runs)

        return every_row(matches, self._samples)

    def _joined(self, column: Rows) -> Layout | None:
        if column.width < 2:
            return None
        last = column.at(-1)
        for first in self._starting[column.dtype, column.at(0)]:
            if not self._try():
                return None
            seconds = self._ending.get((column.dtype, column.width - first.width, last), ())
            if not seconds or not self._same(column, first, 0):
                continue
            for second in seconds:
                if not self._try():
                    return None
                if self._same(column, second, first.memory.pitch):
                    return Layout("join", parts=(first.name, second.name))
        return None

    def _part(self, column: Rows, sources: _Payload) -> Layout | None:
        for source, at_end in sources.like(column):
            if not self._try():
                return None
            offset = source.width - column.width if at_end else 0
            if offset >= 0 and self._same(source, column, offset * column.memory.item):
                return Layout("part", parts=(source.name,), offset=offset)
        return None

    def _same(self, whole: Rows, part: Rows, at: int) -> bool:
        """Whether each row of ``part`` stands in the same row of ``whole``, ``at`` bytes in."""
        memory, pitch = whole.memory, part.memory.pitch

        def matches(row: int) -> bool:
            return memory.row_is(row, [(part.memory.buffer, row * pitch, at, pitch)])

        return every_row(matches, self._samples)

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
