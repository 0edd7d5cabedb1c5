"""How far two arrays of one dtype are apart: exact bits first, then steps, errors and what is too far off.

Reads in pieces, so that memory stays bounded whatever the size.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.batch.floats import FLOATS, is_nan
from rolltape.codec.cells import cell_parts
from rolltape.verify.measure.beyond import Beyond, Bounds, find_beyond
from rolltape.verify.measure.limits import Limits
from rolltape.verify.measure.running_sums import PIECE, Sums

PLAIN = "float32"
"""Floats of Python are doubles, and what they hold was mostly computed in this: its tolerance applies."""


def made_as(*floats: float) -> str:
    """The dtype that Python's floats come from: most are single floats that it holds as doubles."""
    return "float32" if _are_single(np.array(floats)) else "float64"


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are the same, types and the bits of floats included.

    >>> same([1, {"x": float("nan")}], [1, {"x": float("nan")}]), same(0.0, -0.0), same(1, True)
    (True, False, False)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, np.ndarray) and not a.dtype.hasobject:
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return same([*a], [*b]) and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if a is None or isinstance(a, (str, bytes, int, type)):
        return bool(a == b)
    return cell_parts(a, ()) == cell_parts(b, ())  # tensors have no ==, others have one of their own


@dataclass(frozen=True, slots=True)
class Apart:
    """A plain value, and the floats that are in it."""

    frame: Any
    """The value, with a type in the place of each float."""
    floats: list[float]


def take_apart(value: Any) -> Apart:
    """The floats of a plain value, in lists and mappings too, and all that is around them.

    >>> take_apart([1, {"x": 0.5}, None])
    Apart(frame=[1, {'x': <class 'float'>}, None], floats=[0.5])
    """
    floats: list[float] = []

    def framed(one: Any) -> Any:
        if isinstance(one, (float, np.floating)):
            floats.append(float(one))
            return type(one)
        if type(one) in (list, tuple):
            return type(one)(framed(inner) for inner in one)
        return {name: framed(inner) for name, inner in one.items()} if type(one) is dict else one

    return Apart(framed(value), floats)


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
    beyond: int = 0
    """Elements beyond their limit."""
    rows: int = 0
    """In how many rows these are, where rows are known."""
    first: int | None = None
    """The flat index of the first that is; where none is, of the first whose bits differ, or that is NaN."""
    first_values: tuple[float, float] | None = None
    """Baseline and candidate there."""
    first_ulp: int = 0
    """How many steps they are apart."""
    worst: int | None = None
    """That of the one with the largest error: what is not finite on one side only, else the most absolute."""
    worst_values: tuple[float, float] | None = None
    """Baseline and candidate there."""
    scale: float = 1.0
    """The factor that brings the baseline closest to the candidate."""
    mean: float = 0.0
    """The mean error, with its sign."""
    rms: float = 0.0
    """The root mean square of the baseline; 0.0 where not a bit differs."""
    rtol: float = 0.0
    """The relative tolerance that ``atol`` goes with."""
    atol: float = 0.0
    """The smallest absolute tolerance that would pass everywhere, beside ``rtol``."""
    limit: float = 0.0
    """The absolute tolerance that was allowed, beside ``rtol``."""
    both_nan: int = 0
    """Elements that are no number on either side: nothing is known of them."""

    @property
    def only_nan(self) -> bool:
        """Whether no element is a number on either side: then there is nothing to compare."""
        return 0 < self.count == self.both_nan

    @property
    def lean(self) -> float:
        """How far the errors lean to one side: as a factor or as a sum, whichever moves the values more."""
        found = max(abs(self.scale - 1) * self.rms, abs(self.mean))
        return found if math.isfinite(found) else 0.0

    @property
    def same_bits(self) -> bool:
        """Whether not a single bit differs."""
        return not self.mismatched


def measure(
    baseline: np.ndarray,
    candidate: np.ndarray,
    dtype: str,
    limits: Limits | None = None,
    *,
    judged_as: str | None = None,
    zeros: int = 0,
    ends: np.ndarray | None = None,
) -> Difference:
    """Compare two arrays of the same shape, as bits of the logical ``dtype``.

    Args:
        baseline: What is right.
        candidate: What is compared with it.
        dtype: What the bits mean.
        limits: What passes; left out, the usual tolerance of the dtype.
        judged_as: The dtype whose tolerance applies, if not that of the values.
        zeros: How many elements there are beside these, zero on both sides.
        ends: Where the rows end that the elements are in.
    """
    left, right = (np.ascontiguousarray(side.reshape(-1)) for side in (baseline, candidate))
    if len(left) != len(right):
        raise ValueError(f"{len(left)} elements cannot be compared with {len(right)}")
    limits = limits or Limits()
    if left.dtype.hasobject or dtype.startswith("numpy:") or dtype not in COMPARABLE:
        return _as_bytes(left, right, dtype)
    if same_bits(left, right):
        lost, first = _not_numbers(left, dtype) if dtype in FLOATS else (0, None)
        return Difference(dtype, len(left) + zeros, both_nan=lost, first=first)
    rtol = limits.of(judged_as or dtype, 0.0)[0]
    sums = Sums(dtype, rtol)
    for start in range(0, len(left), PIECE):
        sums.add(left[start : start + PIECE], right[start : start + PIECE], start)
    rms = sums.rms * math.sqrt(sums.finite / (sums.finite + zeros)) if zeros else sums.rms
    atol = limits.of(judged_as or dtype, rms)[1]
    found = Beyond()
    if sums.atol > atol or sums.nonfinite or (judged_as or dtype) not in limits.tolerance:
        found = find_beyond(left, right, dtype, _bounds(limits, judged_as or dtype, rms), ends)
    if found.count and dtype == "float64" and judged_as is None and limits.kind and _are_single(left):
        return measure(left, right, dtype, limits, judged_as="float32", zeros=zeros, ends=ends)
    if not found.count and sums.max_abs >= 1 and limits.kind is not None and _are_whole(left, right, dtype):
        found = find_beyond(left, right, dtype, Bounds(0.0, 0.0, limits.room or 0.0), ends)
    if sums.both_nan and not found.count:
        found = Beyond(first=_not_numbers(left, dtype)[1])
    return _difference(sums, found, len(left) + zeros, rms, atol)


def _bounds(limits: Limits, dtype: str, rms: float) -> Bounds:
    rtol, atol = limits.of(dtype, rms)
    room = -1.0 if limits.room is None else limits.room
    return Bounds(rtol, atol if dtype in limits.tolerance else -1.0, room, limits.ulp)


def _not_numbers(side: np.ndarray, dtype: str) -> tuple[int, int | None]:
    """How many elements are NaN, and the first that is."""
    count, first = 0, None
    for start in range(0, len(side), PIECE):
        lost = is_nan(side[start : start + PIECE], dtype)
        if lost.any():
            count += int(np.count_nonzero(lost))
            first = start + int(lost.argmax()) if first is None else first
    return count, first


def _are_single(side: np.ndarray) -> bool:
    """Whether all doubles are single floats: so Python holds what was computed in these."""
    with np.errstate(all="ignore"):
        return all(
            ((piece.astype(np.float32) == piece) | np.isnan(piece)).all()
            for piece in np.split(side, range(PIECE, len(side), PIECE))
        )


def _are_whole(left: np.ndarray, right: np.ndarray, dtype: str) -> bool:
    """Whether floats hold nothing but whole numbers, ids and counts: between these there is no rounding."""
    if dtype not in ("float32", "float64"):
        return False
    return all(
        ((np.abs(piece) < 2**24) & (np.rint(piece) == piece)).all()
        for side in (left, right)
        for piece in np.split(side, range(PIECE, len(side), PIECE))
    )


def _difference(sums: Sums, found: Beyond, count: int, rms: float, atol: float) -> Difference:
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
        beyond=found.count,
        rows=found.rows,
        first=sums.first if found.first is None else found.first,
        first_values=found.values,
        first_ulp=found.steps,
        worst=sums.worst,
        worst_values=sums.worst_values,
        scale=sums.dot / sums.left_square if sums.left_square else math.nan,
        mean=sums.error / count,
        rms=rms,
        rtol=sums.rtol,
        atol=sums.atol,
        limit=atol,
        both_nan=sums.both_nan,
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
    return unlike(dtype, len(left), len(where), int(where[0]))


def unlike(dtype: str, count: int, mismatched: int, first: int) -> Difference:
    """What is to say of values that have no distance."""
    inf = math.inf
    return Difference(
        dtype, count, mismatched, max_abs=inf, max_rel=inf, atol=inf, beyond=mismatched, first=first,
        worst=first,
    )  # fmt: skip


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays of one dtype and shape are the same, bit for bit."""
    sides = [np.ascontiguousarray(side.reshape(-1)).view(np.uint8) for side in (left, right)]
    return bool(pa.py_buffer(sides[0]).equals(pa.py_buffer(sides[1])))  # which is memcmp
