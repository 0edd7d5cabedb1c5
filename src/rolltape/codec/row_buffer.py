"""The rows of an array as memory of which all bits are looked at once, as fast as memory can be read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rolltape.codec.threads import shared

WIDE = 256 * 1024
"""Bytes of a row from which rows are compared on several threads. Shorter ones are done before another thread
has the interpreter."""
BLOCK = 4 * 1024 * 1024
"""Bytes that are looked at twice, while they are still in the cache."""

Place: TypeAlias = "int | np.ndarray"
"""A place in every row, or one for each of them."""


class RowBuffer:
    """The rows of a two-dimensional contiguous array of unsigned integers. Places are counted in elements."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = bits
        self.buffer = pa.py_buffer(bits)
        self.item = bits.itemsize
        self.pitch = bits.shape[1] * bits.itemsize
        self.few = sorted({0, len(bits) // 3, len(bits) // 2, len(bits) - 1})
        """A few rows that tell quickly whether a guess is worth proving."""

    def only(self, edges: Sequence[Place], values: Sequence[Place | None]) -> np.ndarray:
        """Whether the parts between ``edges`` hold nothing but ``values``: a row of answers for each row.

        A part without a value is not looked at.
        """
        rows, count = len(self.bits), len(values)
        bounds = np.empty((rows, count + 1), np.int64)
        for at, edge in enumerate(edges):
            bounds[:, at] = edge
        wanted = np.zeros((rows, count), self.bits.dtype)
        for at, value in enumerate(values):
            wanted[:, at] = 0 if value is None else value
        cares = np.array([value is not None for value in values])
        looked = self._alike if self.pitch >= WIDE else self._combined
        same: np.ndarray = looked(bounds, wanted, cares) | ~cares | (bounds[:, 1:] <= bounds[:, :-1])
        return same

    def _combined(self, bounds: np.ndarray, wanted: np.ndarray, cares: np.ndarray) -> np.ndarray:
        """By what all bits of a part have in common: one pass for zeros, another in the cache for others."""
        (rows, count), width = wanted.shape, self.bits.shape[1]
        flat, dtype = self.bits.reshape(-1), self.bits.dtype
        places = bounds + np.arange(rows)[:, None] * width
        common = [np.zeros((rows, count + 1), dtype) for _ in range(2 if wanted[:, cares].any() else 1)]

        def look(low: int, high: int) -> None:
            step = max(high - low if len(common) == 1 else BLOCK // self.pitch, 1)
            for start in range(low, high, step):
                stop = min(start + step, high)
                block = flat[start * width : stop * width]
                at = places[start:stop].reshape(-1) - start * width
                at = at[
                    : len(at) - int((at[-count - 1 :] == len(block)).sum())
                ]  # the end of it is no element
                for combine, found in zip((np.bitwise_or, np.bitwise_and), common, strict=False):
                    found[start:stop].reshape(-1)[: len(at)] = combine.reduceat(block, at)

        shared(look, rows, self.bits.nbytes)
        same: np.ndarray = np.logical_and.reduce([found[:, :-1] == wanted for found in common])
        return same

    def _alike(self, bounds: np.ndarray, wanted: np.ndarray, cares: np.ndarray) -> np.ndarray:
        """By comparing memory with itself, one element further on, on several threads."""
        rows, count = wanted.shape
        same = np.zeros((rows, count), np.bool_)
        item, pitch, buffer = self.item, self.pitch, self.buffer

        def look(start: int, stop: int) -> None:
            for row in range(start, stop):
                for part, (low, high) in enumerate(pairwise(bounds[row].tolist())):
                    if cares[part] and low < high and self.bits[row, low] == wanted[row, part]:
                        at, size = row * pitch + low * item, (high - low - 1) * item
                        same[row, part] = buffer.slice(at, size).equals(buffer.slice(at + item, size))

        shared(look, rows, rows * pitch)
        return same

    def holds(self, start: Place, stop: Place, other: Any, at: Place) -> bool:
        """Whether ``[start, stop)`` of each row is what stands in another buffer, ``at`` bytes in."""
        for row in self.few:
            begin, end, place = (int(one if isinstance(one, int) else one[row]) for one in (start, stop, at))
            if begin < end and not self._slice(row, begin, end).equals(
                other.slice(place, (end - begin) * self.item)
            ):
                return False
        rows, buffer = len(self.bits), self.buffer
        mine = (np.arange(rows) * self.pitch + np.multiply(start, self.item, dtype=np.int64)).tolist()
        counts = np.subtract(stop, start, dtype=np.int64)
        sizes = np.broadcast_to(counts * self.item, rows).tolist()
        theirs = np.broadcast_to(at, rows).tolist()

        def look(low: int, high: int) -> bool:
            return all(
                buffer.slice(mine[row], sizes[row]).equals(other.slice(theirs[row], sizes[row]))
                for row in range(low, high)
                if sizes[row]
            )

        return all(shared(look, rows, rows * self.pitch if self.pitch >= WIDE else 0))

    def _slice(self, row: int, start: int, stop: int) -> pa.Buffer:
        return self.buffer.slice(row * self.pitch + start * self.item, (stop - start) * self.item)
