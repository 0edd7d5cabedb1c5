"""Which elements are beyond their limit: looked for once it is known that some may be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolltape.batch.floats import FLOATS, ulps
from rolltape.verify.measure.running_sums import PIECE, steps_between, unlike_bits, wide


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an element may be off by: any of the three is enough."""

    rtol: float
    atol: float
    """Up to ``atol + rtol * |baseline|``; negative where no error passes, not even that of a sign of zero."""
    room: float = -1.0
    """Up to this, whatever the baseline."""
    steps: int = -1
    """Up to so many steps between neighbouring floats."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """The elements that are beyond their limit."""

    count: int = 0
    rows: int = 0
    """In how many rows they are."""
    first: int | None = None
    values: tuple[float, float] | None = None
    """Baseline and candidate at the first."""
    steps: int = 0
    """How many steps the first is off; 0 where that says nothing."""


def find_beyond(
    left: np.ndarray, right: np.ndarray, dtype: str, bounds: Bounds, ends: np.ndarray | None = None
) -> Beyond:
    """Look for the elements beyond their limit; ``ends`` says where the rows they are in end."""
    count, rows, last_row, first = 0, 0, -1, None
    for start in range(0, len(left), PIECE):
        a, b = left[start : start + PIECE], right[start : start + PIECE]
        where = _beyond(a, b, dtype, bounds)
        if not len(where):
            continue
        first = start + int(where[0]) if first is None else first
        count += len(where)
        if ends is not None:
            held = np.unique(np.searchsorted(ends, where + start, "right"))
            rows += len(held) - int(held[0] == last_row)
            last_row = int(held[-1])
    if first is None:
        return Beyond()
    one, other = left[first : first + 1], right[first : first + 1]
    x, y = float(wide(one, dtype)[0]), float(wide(other, dtype)[0])
    steps = int(steps_between(one, other, dtype)[0]) if np.isfinite([x, y]).all() else 0
    return Beyond(count, rows, first, (x, y), steps)


def _beyond(left: np.ndarray, right: np.ndarray, dtype: str, bounds: Bounds) -> np.ndarray:
    """The places of a piece that are beyond their limit."""
    where = np.flatnonzero(unlike_bits(left, right))
    if not len(where):
        return where
    x, y = left[where], right[where]
    a, b = wide(x, dtype), wide(y, dtype)
    with np.errstate(all="ignore"):
        error = np.abs(b - a) if dtype in FLOATS else steps_between(x, y, dtype).astype(np.float64)
        passes = error <= np.maximum(bounds.atol + bounds.rtol * np.abs(a), bounds.room)
    passes &= np.isfinite(a) & np.isfinite(b)
    if dtype in FLOATS and bounds.steps >= 0 and not passes.all():
        near = np.flatnonzero(~passes & np.isfinite(a) & np.isfinite(b))
        passes[near] = ulps(x[near], y[near]) <= bounds.steps
    passes |= np.isnan(a) & np.isnan(b)
    beyond: np.ndarray = where[~passes]
    return beyond
