"""Floats of every dtype a tape holds: their values, and how many of them lie between two.

Works on bits (unsigned integers of the dtype's width), so that bfloat16 and the float8 kinds, which numpy
lacks, are measured in their own steps and not in those of some wider dtype.
"""

from __future__ import annotations

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
}

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", *_EIGHT})
"""The dtypes that are measured in steps between neighbours."""

TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (0.125, 1e-5),
    "float8_e5m2": (0.25, 1e-5),
    "float8_e4m3fnuz": (0.125, 1e-5),
    "float8_e5m2fnuz": (0.25, 1e-5),
}
"""(rtol, atol) by dtype, as ``torch.testing`` has them; what is not a float has to be equal."""


def values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """What the bits mean, in float64, which holds every value of every dtype here exactly."""
    if dtype in _EIGHT:
        looked_up: np.ndarray = _table(dtype)[bits.view(np.uint8)]
        return looked_up
    narrow = (
        (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if dtype == "bfloat16"
        else bits.view(dtype)
    )
    with np.errstate(invalid="ignore"):  # NaN of the signalling kind
        return narrow.astype(np.float64)


def is_nan(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Which of the bits are no number."""
    found: np.ndarray
    if dtype == "bfloat16":
        found = (bits.view(np.uint16) & 0x7FFF) > 0x7F80
    else:
        found = np.isnan(_table(dtype)[bits.view(np.uint8)] if dtype in _EIGHT else bits.view(dtype))
    return found


def all_nan(bits: np.ndarray, dtype: str) -> bool:
    """Whether there are elements, and none is a number; looks no further than the first that is."""
    starts = range(0, len(bits), 1 << 15)
    return len(bits) > 0 and all(is_nan(bits[at : at + (1 << 15)], dtype).all() for at in starts)


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
    return np.where(negative, -found, found)
