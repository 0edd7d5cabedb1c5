"""How far two arrays of one dtype are apart: exact bits first, then steps, errors and where the worst is.

Reads in pieces, so that memory stays bounded whatever the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rolltape.verify.floats import FLOATS, TOLERANCES, all_nan
from rolltape.verify.sums import PIECE, Sums


@dataclass(frozen=True, slots=True)
class Difference:
    """What tells two arrays apart. ``candidate`` minus ``baseline`` throughout."""

    dtype: str
    count: int
    """Elements compared."""
    mismatched: int = 0
    """Those whose bits differ."""
    max_ulp: int = 0
    """The most steps between neighbouring numbers of the dtype."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    """Against the baseline's magnitude; infinite where that is zero."""
    cosine: float = 1.0
    """Between the two as vectors; NaN where one has no length."""
    nonfinite: int = 0
    """Elements that are NaN or infinite on one side only, or infinities of differing sign."""
    p50: float = 0.0
    """Half of the mismatched elements have an absolute error of at most this."""
    p99: float = 0.0
    first: int | None = None
    """The flat index of the first mismatched element; None where there is none."""
    worst: int | None = None
    """That of the one with the largest error: what is not finite on one side only, else the most absolute."""
    worst_values: tuple[float, float] | None = None
    """Baseline and candidate there."""
    scale: float = 1.0
    """The factor that brings the baseline closest to the candidate."""
    rtol: float = 0.0
    """The relative tolerance that ``atol`` goes with."""
    atol: float = 0.0
    """The smallest absolute tolerance that would pass everywhere, beside ``rtol``."""
    only_nan: bool = False
    """Whether no element is a number on either side: then there is nothing to compare."""

    @property
    def same_bits(self) -> bool:
        """Whether not a single bit differs."""
        return not self.mismatched


def measure(baseline: np.ndarray, candidate: np.ndarray, dtype: str, rtol: float | None = None) -> Difference:
    """Compare two arrays of the same shape, as bits of the logical ``dtype``.

    ``rtol`` is the part of the tolerance that grows with the values; left out, the usual one of the dtype.
    """
    left, right = (np.ascontiguousarray(side.reshape(-1)) for side in (baseline, candidate))
    if len(left) != len(right):
        raise ValueError(f"{len(left)} elements cannot be compared with {len(right)}")
    if left.dtype.hasobject or dtype.startswith("numpy:") or dtype not in COMPARABLE:
        return _as_bytes(left, right, dtype)
    if same_bits(left, right):
        return Difference(dtype, len(left), only_nan=dtype in FLOATS and all_nan(left, dtype))
    sums = Sums(dtype, TOLERANCES.get(dtype, (0.0, 0.0))[0] if rtol is None else rtol)
    for start in range(0, len(left), PIECE):
        sums.add(left[start : start + PIECE], right[start : start + PIECE], start)
    return _difference(sums, len(left))


def _difference(sums: Sums, count: int) -> Difference:
    p50, p99 = sums.percentiles()
    length = math.sqrt(sums.left_square) * math.sqrt(sums.right_square)
    return Difference(
        sums.dtype,
        count,
        mismatched=sums.mismatched,
        max_ulp=sums.max_ulp,
        max_abs=sums.max_abs,
        max_rel=sums.max_rel,
        cosine=min(1.0, sums.dot / length) if length else math.nan,
        nonfinite=sums.nonfinite,
        p50=p50,
        p99=p99,
        first=sums.first,
        worst=sums.worst,
        worst_values=sums.worst_values,
        scale=sums.dot / sums.left_square if sums.left_square else math.nan,
        rtol=sums.rtol,
        atol=sums.atol,
        only_nan=sums.only_nan,
    )


COMPARABLE = FLOATS | {"bool", *(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64))}


def _as_bytes(left: np.ndarray, right: np.ndarray, dtype: str) -> Difference:
    """Values that have no distance: they are the same or not."""
    if left.dtype.hasobject or not left.itemsize:
        differ = np.array([a != b for a, b in zip(left.tolist(), right.tolist(), strict=True)], bool)
    else:
        rows = [side.view(np.uint8).reshape(len(side), side.itemsize) for side in (left, right)]
        differ = (rows[0] != rows[1]).any(axis=1)
    where = np.flatnonzero(differ)
    if not len(where):
        return Difference(dtype, len(left))
    first = int(where[0])
    return Difference(
        dtype, len(left), len(where), max_abs=math.inf, max_rel=math.inf, atol=math.inf, first=first,
        worst=first,
    )  # fmt: skip


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays of one dtype and shape are the same, bit for bit."""
    sides = [np.ascontiguousarray(side.reshape(-1)).view(np.uint8) for side in (left, right)]
    return bool(pa.py_buffer(sides[0]).equals(pa.py_buffer(sides[1])))  # which is memcmp
