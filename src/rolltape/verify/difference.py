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
KEPT = 1 << 20
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

    @property
    def same_bits(self) -> bool:
        """Whether not a single bit differs."""
        return not self.mismatched


def measure(baseline: np.ndarray, candidate: np.ndarray, dtype: str, rtol: float | None = None) -> Difference:
    """Compare two arrays of the same shape, as bits of the logical ``dtype``.

    ``rtol`` is the part of the tolerance that grows with the values; left out, the usual one of the dtype.
    """
    left, right = baseline.reshape(-1), candidate.reshape(-1)
    if len(left) != len(right):
        raise ValueError(f"{len(left)} elements cannot be compared with {len(right)}")
    if left.dtype.hasobject or dtype.startswith("numpy:") or dtype not in _COMPARABLE:
        return _as_bytes(left, right, dtype)
    if rtol is None:
        rtol = TOLERANCES.get(dtype, (0.0, 0.0))[0]
    return _Sums(dtype, rtol).over(left, right)


_COMPARABLE = FLOATS | {"bool", *(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64))}


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
        self.first: int | None = None
        self.worst: int | None = None
        self.worst_error = -1.0
        self.worst_values: tuple[float, float] | None = None
        self.errors: list[np.ndarray] = []
        self.kept = 0
        self.stride = 1

    def over(self, left: np.ndarray, right: np.ndarray) -> Difference:
        pieces = [slice(start, start + PIECE) for start in range(0, len(left), PIECE)]
        if all(np.array_equal(left[cut].view(np.uint8), right[cut].view(np.uint8)) for cut in pieces):
            return Difference(self.dtype, len(left))
        for cut in pieces:
            self._add(left[cut], right[cut], cut.start)
        return self._difference(len(left))

    def _add(self, left: np.ndarray, right: np.ndarray, start: int) -> None:
        bits = [side.view(f"u{side.itemsize}") for side in (left, right)]
        where = np.flatnonzero(bits[0] != bits[1])
        a, b = self._values(left), self._values(right)
        with np.errstate(all="ignore"):
            finite = np.isfinite(a) & np.isfinite(b)
            self.dot += float(np.dot(a[finite], b[finite]))
            self.left_square += float(np.dot(a[finite], a[finite]))
            self.right_square += float(np.dot(b[finite], b[finite]))
        if not len(where):
            return
        if self.first is None:
            self.first = start + int(where[0])
        self.mismatched += len(where)
        self._errors(left[where], right[where], a[where], b[where], start + where)

    def _errors(
        self, left: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray, places: np.ndarray
    ) -> None:
        with np.errstate(all="ignore"):
            both_nan = np.isnan(a) & np.isnan(b)
            broken = (np.isfinite(a) != np.isfinite(b)) | (np.isnan(a) != np.isnan(b))
            broken |= np.isinf(a) & np.isinf(b) & (a != b)
            error = np.abs(b - a)
            error[both_nan] = 0.0
            error[broken] = math.inf
            relative = np.where(error == 0, 0.0, error / np.abs(a))
            relative[broken] = math.inf
        self.nonfinite += int(broken.sum())
        steps = self._steps(left, right)[~both_nan & ~broken]
        self.max_ulp = max(self.max_ulp, int(steps.max(initial=0)))
        self.max_abs = max(self.max_abs, float(error.max()))
        with np.errstate(all="ignore"):
            beyond = np.where(broken, math.inf, error - self.rtol * np.abs(a))
        self.atol = max(self.atol, float(np.nanmax(beyond, initial=0.0)))
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
        self.errors.append(error[:: self.stride])
        self.kept += len(self.errors[-1])
        while self.kept > KEPT:
            together = np.concatenate(self.errors)[::2]
            self.errors, self.kept, self.stride = [together], len(together), 2 * self.stride

    def _difference(self, count: int) -> Difference:
        errors = np.sort(np.concatenate(self.errors))
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
            p50=float(errors[(len(errors) - 1) // 2]),
            p99=float(errors[math.ceil(0.99 * (len(errors) - 1))]),
            first=self.first,
            worst=self.worst,
            worst_values=self.worst_values,
            scale=self.dot / self.left_square if self.left_square else math.nan,
            rtol=self.rtol,
            atol=self.atol,
        )
