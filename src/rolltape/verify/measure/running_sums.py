"""What is added up over two arrays, piece by piece: the extremes, the squares, where the worst element is.

Pieces are small enough for their float64 copies to stay in the cache. Where everything is finite, which is
nearly always, a few passes over a piece are all; what is not finite is looked at element by element.
"""

from __future__ import annotations

import math

import numpy as np

from rolltape.batch.floats import FLOATS, ulps, values

PIECE = 1 << 15
"""Elements looked at together."""
KEPT = 1 << 17
"""Errors kept for the percentiles; of more, every second, fourth, … place is."""
SPARSE = 8
"""Where fewer than one element in so many differs, the others are left out first."""


class Sums:
    """The running totals of one comparison."""

    def __init__(self, dtype: str, rtol: float) -> None:
        self.dtype = dtype
        self.rtol = rtol
        self.atol = 0.0
        self.mismatched = self.nonfinite = self.max_ulp = self.both_nan = 0
        self.finite = 0
        """Elements that are finite on both sides."""
        self.max_abs = self.max_rel = self.error = 0.0
        """``error`` is the sum of what finite elements are off by, with its sign."""
        self.dot = self.left_square = self.right_square = 0.0
        self.first: int | None = None
        self.worst: int | None = None
        self.worst_values: tuple[float, float] | None = None
        self._exponent = 0
        """The products are of values divided by two to this, so that no square overflows or vanishes."""
        self._worst_error = -1.0
        self._errors: list[np.ndarray] = []
        self._kept = 0
        self._stride = 1

    def add(self, left: np.ndarray, right: np.ndarray, start: int) -> None:
        """Add a piece, whose first element is the one at ``start``."""
        unlike = unlike_bits(left, right)
        count = int(np.count_nonzero(unlike))
        a = wide(left, self.dtype)
        b = wide(right, self.dtype) if count else a
        self._products(a, b)
        if not count:
            return
        if self.first is None:
            self.first = start + int(unlike.argmax())
        self.mismatched += count
        if count * SPARSE < len(unlike) or not self._dense(left, right, a, b, unlike, start):
            where = np.flatnonzero(unlike)
            self._each(left[where], right[where], a[where], b[where], start + where)

    def percentiles(self) -> tuple[float, float]:
        """The absolute error that half of the differing elements do not exceed, and that 99 in 100 do not."""
        errors = np.concatenate(self._errors)
        middle, high = (len(errors) - 1) // 2, math.ceil(0.99 * (len(errors) - 1))
        errors = np.partition(errors, (middle, high))
        return float(errors[middle]), float(errors[high])

    def _products(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add to the products that the cosine and the scale are made of, and count what is not finite."""
        if self.dtype == "float64":
            a, b = self._scaled(a, b)
        dot, left, right = _product(a, b), _product(a, a), _product(b, b)
        if not math.isfinite(left + right):
            a, b = self._both_finite(a, b)
            dot, left, right = _product(a, b), _product(a, a), _product(b, b)
        self.finite += len(a)
        self.dot += dot
        self.left_square += left
        self.right_square += right

    def _scaled(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finite doubles, divided so that their squares fit; those of all other dtypes do."""
        a, b = self._both_finite(a, b)
        largest = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
        exponent = math.frexp(largest)[1] if largest else self._exponent
        if exponent > self._exponent or not (self.left_square or self.right_square):
            smaller = math.ldexp(1.0, min(max(2 * (self._exponent - exponent), -2000), 0))
            self.dot, self.left_square, self.right_square = (
                x * smaller for x in (self.dot, self.left_square, self.right_square)
            )
            self._exponent = exponent
        return np.ldexp(a, -self._exponent), np.ldexp(b, -self._exponent)

    def _both_finite(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        finite = np.isfinite(a) & np.isfinite(b)
        if finite.all():
            return a, b
        self.both_nan += int(np.count_nonzero(np.isnan(a) & np.isnan(b)))
        return a[finite], b[finite]

    @property
    def rms(self) -> float:
        """The root mean square of the baseline, where both sides are finite."""
        if not self.finite:
            return 0.0
        with np.errstate(over="ignore"):
            return float(np.ldexp(math.sqrt(self.left_square / self.finite), self._exponent))

    def _dense(
        self, left: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray, unlike: np.ndarray,
        start: int,
    ) -> bool:  # fmt: skip
        """Add the errors of a piece of floats, equal elements among them; False where some are not finite."""
        if self.dtype not in FLOATS:
            return False
        with np.errstate(all="ignore"):
            error = np.subtract(b, a)
            total = float(error.sum())
            np.abs(error, out=error)
            most = float(error.max())
            if not math.isfinite(most):
                return False
            self.error += total
            size = np.abs(a, out=b)  # b is needed no more, except for the worst
            self._tolerance(error, size, most)
            relative = np.divide(error, size, out=size)
            largest = float(relative.max())
            if math.isnan(largest):  # 0 was divided by 0, which is no error
                largest = float(np.fmax.reduce(relative, initial=0.0))
            self.max_rel = max(self.max_rel, largest)
        self.max_ulp = max(self.max_ulp, _most_steps(left, right))
        self.max_abs = max(self.max_abs, most)
        if most > self._worst_error:
            at = int(error.argmax()) if most else int(unlike.argmax())
            self._worst_error, self.worst = most, start + at
            self.worst_values = float(a[at]), float(wide(right[at : at + 1], self.dtype)[0])
        self._keep(error[unlike][:: self._stride])
        return True

    def _each(
        self, left: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray, places: np.ndarray
    ) -> None:
        """Add the errors of elements that all differ, whatever they are."""
        with np.errstate(all="ignore"):
            both_nan = np.isnan(a) & np.isnan(b)
            broken = (np.isfinite(a) != np.isfinite(b)) | (np.isnan(a) != np.isnan(b))
            broken |= np.isinf(a) & np.isinf(b) & (a != b)
            # Whole numbers beyond 2**53 are not all doubles, so their error is counted and not subtracted.
            counted = steps_between(left, right, self.dtype)
            apart = b - a
            self.error += float(apart[np.isfinite(apart)].sum())
            error = np.abs(apart) if self.dtype in FLOATS else counted.astype(np.float64)
            error[both_nan] = 0.0
            error[broken] = math.inf
            relative = np.where(error == 0, 0.0, error / np.abs(a))
            relative[broken] = math.inf
        self.nonfinite += int(broken.sum())
        steps = counted[~both_nan & ~broken]
        self.max_ulp = max(self.max_ulp, int(steps.max(initial=0)))
        most = float(error.max())
        self.max_abs = max(self.max_abs, most)
        self._tolerance(error, np.where(np.isfinite(a), np.abs(a), 0.0), most)
        self.max_rel = max(self.max_rel, float(np.nanmax(relative, initial=0.0)))
        at = int(error.argmax())
        if most > self._worst_error:
            self._worst_error, self.worst = most, int(places[at])
            self.worst_values = float(a[at]), float(b[at])
        self._keep(error[:: self._stride])

    def _tolerance(self, error: np.ndarray, size: np.ndarray, most: float) -> None:
        """Raise ``atol`` to the smallest number that, added to ``rtol * size``, is never below the error."""
        if most <= self.atol:
            return
        with np.errstate(all="ignore"):
            slack = self.rtol * size
            if (self.atol + slack >= error).all():
                return
            found = max(self.atol, float((error - slack).max()))
            while found < math.inf and (found + slack < error).any():  # rounding has made it too small
                found = math.nextafter(found, math.inf)
        self.atol = found

    def _keep(self, error: np.ndarray) -> None:
        self._errors.append(error.copy())  # a view would keep all of it
        self._kept += len(error)
        while self._kept > KEPT:
            together = np.concatenate(self._errors)[::2].copy()
            self._errors, self._kept, self._stride = [together], len(together), 2 * self._stride


def unlike_bits(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which elements differ in any bit."""
    unlike: np.ndarray = left.view(f"u{left.itemsize}") != right.view(f"u{right.itemsize}")
    return unlike


def wide(side: np.ndarray, dtype: str) -> np.ndarray:
    """The values as doubles."""
    return values(side, dtype) if dtype in FLOATS else side.astype(np.float64)


def steps_between(left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
    """How many numbers of the dtype lie between elements that differ."""
    if dtype in FLOATS:
        return ulps(left, right)
    if dtype == "bool":
        return np.ones(len(left), np.uint64)
    apart: np.ndarray = np.where(left > right, left - right, right - left).view(f"u{left.itemsize}")
    return apart


def _product(a: np.ndarray, b: np.ndarray) -> float:
    # Not np.dot: for pieces of this size the threads of BLAS cost more than they bring.
    return float(np.einsum("i,i->", a, b))


def _most_steps(left: np.ndarray, right: np.ndarray) -> int:
    """The most steps between neighbours that lie between finite floats."""
    kind = f"i{left.itemsize}"
    a, b = left.view(kind), right.view(kind)
    if ((a ^ b) < 0).any():
        return int(ulps(left, right).max())
    apart = a - b  # of one sign, the bits are in the order of the floats and their difference fits
    return max(int(apart.max()), -int(apart.min()))
