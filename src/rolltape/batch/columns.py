"""The three shapes a column can have. Every column has one entry per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

MAX_COLUMNS = 2**16
"""Columns and arrays that one recording holds: each takes its time to write and to read, however small."""


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """A dense array whose first axis is the samples."""

    data: np.ndarray
    """The bits, in the numpy dtype that holds them (bfloat16 as uint16, …)."""
    dtype: str
    """The logical dtype."""

    @property
    def samples(self) -> int:
        return int(self.data.shape[0])

    def rows(self) -> list[Any]:
        """What each sample has."""
        return list(self.data)

    def take(self, rows: Sequence[int]) -> ArrayColumn:
        """Some of the samples."""
        return ArrayColumn(self.data[list(rows)], self.dtype)


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """One row of arrays per sample, of differing first axes, laid end to end."""

    values: np.ndarray
    """All rows, concatenated along the first axis."""
    lengths: np.ndarray
    """How many entries of ``values`` each sample has."""
    dtype: str

    @property
    def samples(self) -> int:
        return int(self.lengths.shape[0])

    def rows(self) -> list[Any]:
        """What each sample has."""
        ends = np.cumsum(self.lengths)
        return np.split(self.values, ends[:-1]) if len(ends) else []

    def take(self, rows: Sequence[int]) -> RaggedColumn:
        """Some of the samples."""
        found = self.rows()
        kept = np.concatenate([self.values[:0], *(found[at] for at in rows)])
        return RaggedColumn(kept, self.lengths[list(rows)], self.dtype)


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """One plain Python value per sample."""

    values: list[Any]
    path: tuple[str, ...] = ()
    """Where the values stood in the stage's result, for messages."""

    @property
    def samples(self) -> int:
        return len(self.values)

    def rows(self) -> list[Any]:
        """What each sample has."""
        return self.values

    def take(self, rows: Sequence[int]) -> ObjectColumn:
        """Some of the samples."""
        return ObjectColumn([self.values[at] for at in rows], self.path)


Column: TypeAlias = ArrayColumn | RaggedColumn | ObjectColumn
