"""Rows of memory compared at memory speed, without copies (``pyarrow.Buffer.equals`` is ``memcmp``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

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
