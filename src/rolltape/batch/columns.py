"""The three shapes a column can have. Every column has one entry per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


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


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """One plain Python value per sample."""

    values: list[Any]
    path: tuple[str, ...] = ()
    """Where the values stood in the stage's result, for messages."""

    @property
    def samples(self) -> int:
        return len(self.values)


Column: TypeAlias = ArrayColumn | RaggedColumn | ObjectColumn
