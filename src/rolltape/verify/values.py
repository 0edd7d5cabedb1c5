"""Single values compared: numbers, texts, arrays that are not by sample, and whatever is nested of those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.verify.difference import Difference, measure
from rolltape.verify.entries import Entry
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.plain import made_as, same

LOGGED = "float32"
"""Floats of Python are doubles, and what they hold was mostly computed in this: its tolerance applies."""


def compare_value(entry: Entry, a: object, b: object, limits: Limits) -> Entry:
    """The entry, filled in for one value."""
    if isinstance(a, Bits) and isinstance(b, Bits):
        if a.dtype != b.dtype or a.data.shape != b.data.shape:
            return replace(entry, note=f"{_shape(a)} against {_shape(b)}")
        if not a.data.size:
            return replace(entry, note="empty on both sides")
        found = measure(a.data, b.data, a.dtype, limits.of(a.dtype)[0])
        return _judged(entry, found, judge(found, limits))
    if isinstance(a, (float, np.floating)) and isinstance(b, (float, np.floating)):
        dtype = made_as(float(a), float(b))
        found = measure(np.array([a], dtype), np.array([b], dtype), dtype, limits.of(LOGGED)[0])
        return _judged(entry, found, judge(found, limits, LOGGED))
    if type(a) is not type(b):
        return replace(entry, note=f"{type(a).__name__} against {type(b).__name__}")
    if same(a, b):
        return replace(entry, verdict=Verdict.BITWISE, difference=Difference(type(a).__name__, 1))
    if isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer)):
        apart = float(abs(int(b) - int(a)))
        known = Difference(
            "int64", 1, 1, max_abs=apart, max_rel=apart / abs(int(a)) if a else float("inf"), atol=apart,
            first=0, worst=0, worst_values=(float(a), float(b)),
        )  # fmt: skip
        return replace(entry, verdict=judge(known, limits), difference=known)
    inf = float("inf")
    unlike = Difference(type(a).__name__, 1, 1, max_abs=inf, max_rel=inf, atol=inf, first=0, worst=0)
    return replace(entry, verdict=Verdict.DIVERGED, difference=unlike)


def _judged(entry: Entry, found: Difference, verdict: Verdict) -> Entry:
    note = "not a number on either side" if found.only_nan else ""
    return replace(entry, verdict=verdict, difference=found, note=note)


def _shape(bits: Bits) -> str:
    return f"{bits.dtype} {list(bits.data.shape)}"
