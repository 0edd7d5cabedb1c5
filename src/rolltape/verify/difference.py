"""How far two arrays of one dtype are apart: exact bits first, then steps, errors and where the worst is.

Reads in pieces, so that memory stays bounded whatever the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rolltape.verify.floats import FLOATS, TOLERANCES, ulps, values

PIECE = 1 << 18
"""Elements looked at together: their float64 copies stay in the cache."""
KEPT = 1 << 17
"""Errors kept for the percentiles; of more, every second, fourth, … is."""


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
    if rtol is None:
        rtol = TOLERANCES.get(dtype, (0.0, 0.0))[0]
    return _Sums(dtype, rtol).over(left, right)


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


class _Sums:
    """What is added up over the pieces."""

    def __init__(self, dtype: str, rtol: float) -> None:
        self.dtype = dtype
        self.rtol = rtol
        self.atol = 0.0
        self.mismatched = self.nonfinite = self.max_ulp = 0
        self.max_abs = self.max_rel = 0.0
        self.dot = self.left_square = self.right_square = 0.0
        self.exponent = 0
        """The three are of values divided by two to this, so that no square overflows or vanishes."""
        self.only_nan = dtype in FLOATS
        self.first: int | None = None
        self.worst: int | None = None
        self.worst_error = -1.0
        self.worst_values: tuple[float, float] | None = None
        self.errors: list[np.ndarray] = []
        self.kept = 0
        self.stride = 1

    def over(self, left: np.ndarray, right: np.ndarray) -> Difference:
        pieces = [slice(start, start + PIECE) for start in range(0, len(left), PIECE)]
        if same_bits(left, right):
            nan = self.dtype in FLOATS and all(np.isnan(self._values(left[cut])).all() for cut in pieces)
            return Difference(self.dtype, len(left), only_nan=nan and bool(pieces))
        for cut in pieces:
            self._add(left[cut], right[cut], cut.start)
        return self._difference(len(left))

    def _add(self, left: np.ndarray, right: np.ndarray, start: int) -> None:
        bits = [side.view(f"u{side.itemsize}") for side in (left, right)]
        where = np.flatnonzero(bits[0] != bits[1])
        a, b = self._values(left), self._values(right)
        self.only_nan = self.only_nan and bool(np.isnan(a).all() and np.isnan(b).all())
        self._vectors(a, b)
        if not len(where):
            return
        if self.first is None:
            self.first = start + int(where[0])
        self.mismatched += len(where)
        if len(where) < len(left):
            left, right, a, b = left[where], right[where], a[where], b[where]
        self._errors(left, right, a, b, start + where)

    def _vectors(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add to the products that the cosine and the scale are made of."""
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            a, b = a[finite], b[finite]
        if self.dtype == "float64":  # the squares of all others fit in
            largest = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
            exponent = math.frexp(largest)[1] if largest else self.exponent
            if exponent > self.exponent or not (self.left_square or self.right_square):
                smaller = math.ldexp(1.0, min(max(2 * (self.exponent - exponent), -2000), 0))
                self.dot, self.left_square, self.right_square = (
                    x * smaller for x in (self.dot, self.left_square, self.right_square)
                )
                self.exponent = exponent
            a, b = np.ldexp(a, -self.exponent), np.ldexp(b, -self.exponent)
        # Not np.dot: for pieces of this size the threads of BLAS cost more than they bring.
        self.dot += float((a * b).sum())
        self.left_square += float((a * a).sum())
        self.right_square += float((b * b).sum())

    def _errors(
        self, left: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray, places: np.ndarray
    ) -> None:
        with np.errstate(all="ignore"):
            both_nan = np.isnan(a) & np.isnan(b)
            broken = (np.isfinite(a) != np.isfinite(b)) | (np.isnan(a) != np.isnan(b))
            broken |= np.isinf(a) & np.isinf(b) & (a != b)
            # Whole numbers beyond 2**53 are not all doubles, so their error is counted and not subtracted.
            counted = self._steps(left, right)
            error = np.abs(b - a) if self.dtype in FLOATS else counted.astype(np.float64)
            error[both_nan] = 0.0
            error[broken] = math.inf
            relative = np.where(error == 0, 0.0, error / np.abs(a))
            relative[broken] = math.inf
        self.nonfinite += int(broken.sum())
        steps = counted[~both_nan & ~broken]
        self.max_ulp = max(self.max_ulp, int(steps.max(initial=0)))
        self.max_abs = max(self.max_abs, float(error.max()))
        self.atol = max(self.atol, _beyond(error, self.rtol * np.abs(a)))
        self.max_rel = max(self.max_rel, float(np.nanmax(relative, initial=0.0)))
        at = int(error.argmax())
        if error[at] > self.worst_error:
            self.worst_error, self.worst = float(error[at]), int(places[at])
            self.worst_values = float(a[at]), float(b[at])
        self._keep(error)

    def _values(self, side: np.ndarray) -> np.ndarray:
        if self.dtype in FLOATS:
            return values(side, self.dtype)
        return side.astype(np.float64)

    def _steps(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if self.dtype in FLOATS:
            return ulps(left, right)
        if self.dtype == "bool":
            return np.ones(len(left), np.uint64)
        apart: np.ndarray = np.where(left > right, left - right, right - left).view(f"u{left.itemsize}")
        return apart

    def _keep(self, error: np.ndarray) -> None:
        self.errors.append(error[:: self.stride].copy())  # a view would keep all of it
        self.kept += len(self.errors[-1])
        while self.kept > KEPT:
            together = np.concatenate(self.errors)[::2].copy()
            self.errors, self.kept, self.stride = [together], len(together), 2 * self.stride

    def _difference(self, count: int) -> Difference:
        errors = np.concatenate(self.errors)
        middle, high = (len(errors) - 1) // 2, math.ceil(0.99 * (len(errors) - 1))
        errors = np.partition(errors, (middle, high))
        length = math.sqrt(self.left_square) * math.sqrt(self.right_square)
        return Difference(
            self.dtype,
            count,
            mismatched=self.mismatched,
            max_ulp=self.max_ulp,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            cosine=min(1.0, self.dot / length) if length else math.nan,
            nonfinite=self.nonfinite,
            p50=float(errors[middle]),
            p99=float(errors[high]),
            first=self.first,
            worst=self.worst,
            worst_values=self.worst_values,
            scale=self.dot / self.left_square if self.left_square else math.nan,
            rtol=self.rtol,
            atol=self.atol,
            only_nan=self.only_nan,
        )


def _beyond(error: np.ndarray, slack: np.ndarray) -> float:
    """The smallest number that, added to the slack, is nowhere less than the error."""
    with np.errstate(all="ignore"):
        slack = np.where(np.isfinite(slack), slack, 0.0)
        found = float((error - slack).max(initial=0.0))
        while found < math.inf and (found + slack < error).any():  # rounding has made it too small
            found = math.nextafter(found, math.inf)
    return found


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays of one dtype and shape are the same, bit for bit."""
    sides = [np.ascontiguousarray(side.reshape(-1)).view(np.uint8) for side in (left, right)]
    words = len(sides[0]) // 8 * 8  # eight bytes at a time, then the rest
    if not np.array_equal(sides[0][words:], sides[1][words:]):
        return False
    a, b = (side[:words].view(np.uint64) for side in sides)
    return all(np.array_equal(a[at : at + PIECE], b[at : at + PIECE]) for at in range(0, len(a), PIECE))
