"""Where the padding of each row ends and begins. Exact: every element is compared, as bits.

Works on two-dimensional views of unsigned integers, so that -0.0, NaN payloads and every dtype are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolltape.codec.threads import shared

SAMPLE_ROWS = 32
MIN_SAVING = 1 / 16
"""A side is trimmed if that saves at least this share of the sampled elements."""


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


class Scratch:
    """Memory for one comparison, used again for each column: fresh pages cost more than the work."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def differs(self, rows: np.ndarray, value: int) -> bytearray:
        """One byte per element: 1 where it is not ``value``. Valid until the next call."""
        if len(self._bytes) < rows.size:
            self._bytes = bytearray(rows.size)
        out = np.frombuffer(self._bytes, np.bool_, rows.size).reshape(rows.shape)
        other = rows.dtype.type(value)
        shared(
            lambda start, stop: np.not_equal(rows[start:stop], other, out=out[start:stop]),
            len(rows),
            rows.nbytes,
        )
        return self._bytes


def find_spans(rows: np.ndarray, scratch: Scratch) -> Spans:
    """The tightest spans for the padding values that the first and last elements suggest."""
    n, width = rows.shape
    left = _common(rows[:, 0])
    right = _common(rows[:, -1])
    sample = rows[np.linspace(0, n - 1, min(n, SAMPLE_ROWS)).astype(np.int64)]
    use_right = _saving(sample[:, ::-1], right) >= MIN_SAVING
    use_left = _saving(sample, left) >= MIN_SAVING
    start, stop = np.zeros(n, np.int32), np.full(n, width, np.int32)
    marks = bytearray()
    if use_right:
        marks = scratch.differs(rows, right)
        find = marks.rfind
        stop[:] = [find(b"\1", at, at + width) + 1 - at for at in range(0, n * width, width)]
        np.maximum(stop, 0, out=stop)  # rows of padding only: rfind said -1
    if use_left:
        if not use_right or left != right:
            marks = scratch.differs(rows, left)
        find = marks.find
        start[:] = [find(b"\1", at, at + width) - at for at in range(0, n * width, width)]
        start[start < 0] = width
        np.minimum(start, stop, out=start)
    if use_left and use_right and left != right and (start == stop).all():
        # Two runs in every row, such as a mask: the zeros are the padding, the rest is what they pad.
        if left == 0:
            stop[:], use_right = width, False
        else:
            start[:], use_left = 0, False
    return Spans(start, stop, left if use_left else None, right if use_right else None)


def _common(values: np.ndarray) -> int:
    """The most frequent value."""
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()])


def _saving(sample: np.ndarray, value: int) -> float:
    """The share of elements in the runs of ``value`` that the sampled rows begin with."""
    other = sample != sample.dtype.type(value)
    runs = np.where(other.any(axis=1), other.argmax(axis=1), sample.shape[1])
    return float(runs.mean() / sample.shape[1])
