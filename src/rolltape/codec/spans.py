"""Where the padding of each row ends and begins. Exact: every element is compared, as bits.

Works on two-dimensional views of unsigned integers, so that -0.0, NaN payloads and every dtype are alike.
Of large arrays the bounds are guessed from a few elements of each row, and then proven: nothing is written,
and the padding is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from rolltape.codec.row_buffer import RowBuffer
from rolltape.codec.threads import SHARE_FROM, shared

SAMPLE_ROWS = 32
MIN_SAVING = 1 / 16
"""A side is trimmed if that saves at least this share of the sampled elements that the other side leaves."""
GUESS_FROM = 4096
"""Bytes of a row from which its bounds are guessed; of many shorter ones all elements are marked at once."""


PROBES = 32
"""Elements of each row that are looked at for a guess."""


@dataclass(frozen=True, slots=True)
class Spans:
    """What is left of each row, ``[start, stop)``, when the padding on both sides is taken away."""

    start: np.ndarray
    stop: np.ndarray
    left: int | None
    """The bits of the padding on the left; None if that side is not trimmed."""
    right: int | None

    @property
    def total(self) -> int:
        return int((self.stop - self.start).sum())

    def within(self, other: Spans) -> bool:
        """Whether every row of this lies inside the same row of the other."""
        return bool((other.start <= self.start).all() and (self.stop <= other.stop).all())


class Found(NamedTuple):
    """What the rows of a column look like."""

    spans: Spans
    fill: int | None
    """The one value inside the spans, if there is only one."""


def find_spans(memory: RowBuffer, known: Sequence[Spans] = ()) -> Found:
    """The tightest spans for the padding values that the first and last elements suggest.

    ``known`` are spans of other columns, in which those of this one may lie.
    """
    rows = memory.bits
    n, width = rows.shape
    left = _common(rows[:, 0])
    right = _common(rows[:, -1])
    sample = rows[:: -(-n // SAMPLE_ROWS)]
    saved_left, saved_right = _saving(sample, left), _saving(sample, right, behind=True)
    use_right = saved_right >= MIN_SAVING * (1 - saved_left)
    use_left = saved_left >= MIN_SAVING * (1 - saved_right)
    sides = left if use_left else None, right if use_right else None
    guess = rows.nbytes >= SHARE_FROM and memory.pitch >= GUESS_FROM
    start, stop, fill = (_guessed if guess else _marked)(memory, *sides, known)
    if use_left and use_right and left != right and (start == stop).all():
        # Two runs in every row, such as a mask: the zeros are the padding, the rest is what they pad.
        whole = Spans(np.zeros(n, np.int32), np.full(n, width, np.int32), None, None)
        if left == 0:
            return Found(Spans(start, whole.stop, left, None), right)
        return Found(Spans(whole.start, stop, None, right), left)
    return Found(Spans(start, stop, *sides), fill)


Bounds: TypeAlias = "tuple[np.ndarray, np.ndarray, int | None]"
"""The starts and stops of all rows, and the one value inside, if there is only one."""


def _marked(memory: RowBuffer, left: int | None, right: int | None, known: Sequence[Spans]) -> Bounds:
    """Find bounds by marking every element that is not padding."""
    rows = memory.bits
    start, stop = _everything(rows)
    every, marks = np.arange(len(rows)), np.empty(rows.shape, np.bool_)
    if right is not None:
        _mark(rows, right, marks)
        stop[:] = _ends(marks)
    if left is not None:
        if left != right:
            _mark(rows, left, marks)
        first = marks.argmax(axis=1)
        start[:] = np.minimum(np.where(marks[every, first], first, stop), stop)
    value, total = _inside(rows, start, stop), int((stop - start).sum())
    if value is None or not total:
        return start, stop, value
    _mark(rows, value, marks)  # what has one value only inside has padding of another
    held = rows.size - int(np.count_nonzero(marks))
    return start, stop, value if held == total and value not in (left, right) else None


def _mark(rows: np.ndarray, value: int, marks: np.ndarray) -> None:
    """Note which elements are another than ``value``."""
    other = rows.dtype.type(value)

    def mark(start: int, stop: int) -> None:
        np.not_equal(rows[start:stop], other, out=marks[start:stop])

    shared(mark, len(rows), rows.nbytes)


def _guessed(memory: RowBuffer, left: int | None, right: int | None, known: Sequence[Spans]) -> Bounds:
    """Find bounds by bisection, as if padding stood nowhere else, and prove them; search where that fails."""
    rows = memory.bits
    start, stop = _everything(rows)
    if right is not None:
        stop[:] = _last(rows, right, known)
    if left is not None:
        start[:] = _first(rows, left, stop)
    value = _inside(rows, start, stop)
    if left is right is value is None:
        return start, stop, None
    proven = memory.only((0, start, stop, rows.shape[1]), (left, value, right))
    wrong = np.flatnonzero(~(proven[:, 0] & proven[:, 2])).tolist()
    for row in wrong:
        if not proven[row, 2]:
            stop[row] = _search_back(memory, row, right, known)
        if left is not None:
            other = rows[row, : stop[row]] != rows.dtype.type(left)
            start[row] = int(other.argmax()) if other.any() else stop[row]
    if wrong and (again := _inside(rows, start, stop)) != value:
        value = again
        proven = memory.only((start, stop), (value,))
    elif value is not None:
        for row in wrong:
            proven[row] = not (rows[row, start[row] : stop[row]] != value).any()
    return start, stop, value if value is not None and proven.all() else None


def _last(rows: np.ndarray, value: int, known: Sequence[Spans]) -> np.ndarray:
    """Behind which element of each row there may be padding only; where others end, this may end too."""
    every, places, padding = np.arange(len(rows)), *_probe(rows, value)
    behind = padding.shape[1] - padding[:, ::-1].argmin(axis=1)  # the probe behind the last that is none
    behind[padding.all(axis=1)] = 0
    low = np.concatenate([[0], places + 1])[behind]
    for spans in known:
        ends = np.maximum(spans.stop, 1)
        low = np.where(rows[every, ends - 1] != rows.dtype.type(value), np.maximum(low, ends), low)
    high = np.append(places, rows.shape[1])[np.searchsorted(places, low)]
    return _bisect(rows, value, low, high, first=False)


def _first(rows: np.ndarray, value: int, stops: np.ndarray) -> np.ndarray:
    """Before which element of each row, up to its stop, there may be padding only."""
    places, padding = _probe(rows, value)
    padding &= places < stops[:, None]
    at = padding.argmin(axis=1)
    at[padding.all(axis=1)] = len(places)
    low = np.concatenate([[0], places + 1])[at]
    high = np.minimum(np.append(places, rows.shape[1])[at], stops)
    return _bisect(rows, value, np.minimum(low, high), high, first=True)


def _probe(rows: np.ndarray, value: int) -> tuple[np.ndarray, np.ndarray]:
    """A few places, and whether each row has ``value`` there."""
    places = np.unique(np.linspace(0, rows.shape[1] - 1, PROBES).astype(np.int64))
    return places, rows[:, places] == rows.dtype.type(value)


def _bisect(rows: np.ndarray, value: int, low: np.ndarray, high: np.ndarray, *, first: bool) -> np.ndarray:
    """A place between two of each row with padding on one side, ``first`` or last, and none on the other."""
    every, other = np.arange(len(rows)), rows.dtype.type(value)
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        padding = rows[every, np.minimum(middle, rows.shape[1] - 1)] == other
        further = (padding == first) & (middle < high)
        low = np.where(further, middle + 1, low)
        high = np.where(further, high, middle)
    return low


def _search_back(memory: RowBuffer, row: int, value: int | None, known: Sequence[Spans]) -> int:
    """Behind which element of a row there is only ``value``."""
    bits, stop = memory.bits[row], memory.bits.shape[1]
    for spans in known:
        at = int(spans.stop[row])
        if at < stop and not (bits[at:] != bits.dtype.type(value)).any():
            stop = at
            break
    other = bits[:stop] != bits.dtype.type(value)
    return stop - int(other[::-1].argmax()) if other.any() else 0


def _inside(rows: np.ndarray, start: np.ndarray, stop: np.ndarray) -> int | None:
    """The value that all rows have at both ends and in the middle of what is inside; 0 if none is."""
    filled = np.flatnonzero(stop > start)
    if not len(filled):
        return 0
    firsts, lasts = start[filled], stop[filled] - 1
    value = rows[filled[0], firsts[0]]
    for at in (firsts, lasts, (firsts + lasts) >> 1):
        if (rows[filled, at] != value).any():
            return None
    return int(value)


def _everything(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(rows), np.int32), np.full(len(rows), rows.shape[1], np.int32)


def _common(values: np.ndarray) -> int:
    """The most frequent value."""
    if 2 * int(np.count_nonzero(values == values[0])) > len(values):
        return int(values[0])
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()])


def _saving(sample: np.ndarray, value: int, *, behind: bool = False) -> float:
    """The share of elements in the runs of ``value`` that the sampled rows begin with, or end with."""
    other, width = sample != sample.dtype.type(value), sample.shape[1]
    if behind:
        return 1 - float(_ends(other).mean() / width)
    runs = np.where(other.any(axis=1), other.argmax(axis=1), width)
    return float(runs.mean() / width)


def _ends(marks: np.ndarray) -> np.ndarray:
    """Behind which element of each row nothing is marked."""
    every, width = np.arange(len(marks)), marks.shape[1]
    if width % 8:
        last = width - marks[:, ::-1].argmax(axis=1)
    else:  # eight at once: to go through bytes from behind is slow
        words = marks.view(np.uint64) != 0
        word = words.shape[1] - 1 - words[:, ::-1].argmax(axis=1)
        last = 8 * word + 8 - marks.reshape(len(marks), -1, 8)[every, word][:, ::-1].argmax(axis=1)
    return np.where(marks[every, last - 1], last, 0)
