"""Floats of every dtype a tape holds: their values, and how many of them lie between two. The one decoder.

Works on bits (unsigned integers of the dtype's width), so that bfloat16 and the float8 kinds, which numpy
lacks, are measured in their own steps and not in those of some wider dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, slots=True)
class _Eight:
    """How a float8 dtype spends its bits."""

    exponent: int
    mantissa: int
    bias: int
    zero_is_nan: bool = False
    """The ``fnuz`` kinds have one zero, one NaN and no infinity."""
    infinite: bool = False


_EIGHT = {
    "float8_e4m3fn": _Eight(4, 3, 7),
    "float8_e5m2": _Eight(5, 2, 15, infinite=True),
    "float8_e4m3fnuz": _Eight(4, 3, 8, zero_is_nan=True),
    "float8_e5m2fnuz": _Eight(5, 2, 16, zero_is_nan=True),
    "float8_e8m0fnu": _Eight(8, 0, 127),
}

_SCALE = "float8_e8m0fnu"
"""Powers of two without a sign: a scale of other numbers, and nothing to be measured in steps."""

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", *_EIGHT} - {_SCALE})
"""The dtypes that are measured in steps between neighbours."""


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """What the bits mean, in a dtype that numpy has: no value changes, and what numpy has stays as it is.

    >>> decode(np.array([56, 64, 184], np.uint8), "float8_e4m3fn").tolist()
    [1.0, 2.0, -1.0]
    """
    if dtype in _EIGHT:
        looked_up: np.ndarray = _table(dtype)[bits.view(np.uint8)]
        return looked_up
    if dtype == "bfloat16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return bits


def values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The same in float64, which holds every value of every dtype here exactly."""
    narrow = decode(bits, dtype)
    with np.errstate(invalid="ignore"):  # NaN of the signalling kind
        return (narrow.view(dtype) if narrow is bits else narrow).astype(np.float64)


def is_nan(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Which of the bits are no number."""
    if dtype == "bfloat16":
        return np.asarray((bits.view(np.uint16) & 0x7FFF) > 0x7F80)
    return np.asarray(np.isnan(decode(bits, dtype) if dtype in _EIGHT else bits.view(dtype)))


def ulps(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How many steps between neighbouring floats lead from one to the other; 0 from -0.0 to 0.0.

    NaN has a place beyond infinity here: whoever asks has to treat it first.
    """
    a, negative_a = _ranked(left)
    b, negative_b = _ranked(right)
    distance = np.where(a > b, a - b, b - a)
    between: np.ndarray = distance - (negative_a != negative_b)
    return between


def _ranked(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unsigned integers in the order of the floats, and which floats have their sign set."""
    unsigned = bits.view(f"u{bits.itemsize}")
    sign = unsigned.dtype.type(1 << (8 * bits.itemsize - 1))
    negative = (unsigned & sign) != 0
    ranked = np.where(negative, ~unsigned, unsigned | sign)
    return ranked.astype(np.uint64), negative


@lru_cache
def _table(dtype: str) -> np.ndarray:
    """The value of each of the 256 patterns."""
    kind = _EIGHT[dtype]
    bits = np.arange(256)
    if dtype == _SCALE:
        return np.append(np.ldexp(1.0, bits[:255] - kind.bias), np.nan).astype(np.float32)
    exponent = (bits >> kind.mantissa) & (2**kind.exponent - 1)
    fraction = (bits & (2**kind.mantissa - 1)) / 2**kind.mantissa
    normal = np.ldexp(1 + fraction, exponent - kind.bias)
    found = np.where(exponent == 0, np.ldexp(fraction, 1 - kind.bias), normal)
    magnitude = bits & 0x7F
    if kind.zero_is_nan:
        found = np.where(bits == 0x80, np.nan, found)
    elif kind.infinite:
        top = 2**kind.exponent - 1
        found = np.where(exponent == top, np.where(fraction == 0, np.inf, np.nan), found)
    else:
        found = np.where(magnitude == 0x7F, np.nan, found)
    negative = (bits & 0x80 != 0) & ~((bits == 0x80) & kind.zero_is_nan)
    return np.where(negative, -found, found).astype(np.float32)


def nearest(value: float | np.number) -> float:
    """The float next to a number of any size: of Python's integers some are larger than all floats.

    >>> nearest(7), nearest(-(10**400))
    (7.0, -inf)
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
