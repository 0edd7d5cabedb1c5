"""One unit of rounding, added to the first floats that a run gets from a tape: ``rolltape noise --perturb``.

What comes out shows how far mere rounding carries in a trainer that is deterministic.
"""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import replace

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.floats import FLOATS, values
from rolltape.key import Key

VARIABLE = "ROLLTAPE_PERTURB"
"""Set to a number: which run of several this is."""


class Perturbation:
    """Moves the floats of one stage, the first that has any, to a neighbouring number: at every step anew."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._stage: str | None = None
        self._lock = threading.Lock()

    def __call__(self, key: Key, columns: dict[str, Column], wholes: dict[str, Bits]) -> None:
        """Change the first floats of a recording that was just read, where its stage is the one."""
        name = _first_floats(columns, wholes)
        with self._lock:
            if name is None or self._stage not in (None, key.stage):
                return
            self._stage = key.stage
        random = np.random.default_rng([self._run, zlib.crc32(key.path.encode())])
        if name in wholes:
            wholes[name] = replace(wholes[name], data=moved(wholes[name].data, wholes[name].dtype, random))
            return
        column = columns[name]
        if isinstance(column, ArrayColumn):
            columns[name] = replace(column, data=moved(column.data, column.dtype, random))
        elif isinstance(column, RaggedColumn):
            columns[name] = replace(column, values=moved(column.values, column.dtype, random))
        else:  # what Python holds as doubles was mostly computed in single precision
            array = moved(np.array(column.values, np.float32), "float32", random)
            columns[name] = replace(column, values=array.astype(np.float64).tolist())


def perturbation() -> Perturbation | None:
    """The one that the environment asks for, if it does."""
    said = os.environ.get(VARIABLE, "")
    return Perturbation(int(said)) if said.isdecimal() else None


def moved(bits: np.ndarray, dtype: str, random: np.random.Generator) -> np.ndarray:
    """About half of the numbers, each moved to a neighbour; zeros and what is not finite stay.

    >>> moved(np.float32([1.0, 0.0, np.inf]), "float32", np.random.default_rng(1)).tolist()
    [1.0000001192092896, 0.0, inf]
    """
    unsigned = np.ascontiguousarray(bits).view(f"u{bits.itemsize}")
    other = unsigned ^ unsigned.dtype.type(1)
    ours, theirs = (values(side.view(bits.dtype), dtype) for side in (unsigned, other))
    with np.errstate(invalid="ignore"):
        keeps = (ours == 0) | (theirs == 0) | ~np.isfinite(ours) | ~np.isfinite(theirs)
    chosen = random.random(bits.shape) < 0.5
    if not (chosen & ~keeps).any():  # of a few numbers all may have been spared
        chosen[...] = True
    found: np.ndarray = np.where(chosen & ~keeps, other, unsigned).view(bits.dtype)
    return found


def _first_floats(columns: dict[str, Column], wholes: dict[str, Bits]) -> str | None:
    """Numbers of tokens or weights before those of samples, where an exact tie may mean something."""
    ranked: list[str | None] = [None, None, None]
    for name, column in columns.items():
        if isinstance(column, ObjectColumn):
            rank = 2 if column.values and all(type(value) is float for value in column.values) else None
        elif column.dtype in FLOATS:
            rank = 1 if isinstance(column, ArrayColumn) and column.data.ndim == 1 else 0
        else:
            rank = None
        if rank is not None and ranked[rank] is None:
            ranked[rank] = name
    whole = next((name for name, bits in wholes.items() if bits.dtype in FLOATS and bits.data.size), None)
    return ranked[0] or whole or ranked[1] or ranked[2]
