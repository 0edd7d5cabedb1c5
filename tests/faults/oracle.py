"""Where two runs part by the limits that docs/verify.md promises. Shares no code with `rolltape.verify`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

RTOL = {
    "float64": 1e-7, "float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2, "float8_e4m3fn": 0.125,
    "float8_e5m2": 0.25,
}  # fmt: skip
"""How far values of a dtype may be apart, relative to themselves."""
ATOL = {"float64": 1e-7, "float32": 1e-5} | dict.fromkeys(
    ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), 1e-5
)
"""And beside that, relative to the root mean square of their column."""
SMALLEST = 1.0
"""Of log-probs, losses and advantages: what they were subtracted from is taken to be at least this large."""
USUAL = 0.01
"""Of all else."""
STEPS = 4
"""So many steps between neighbouring numbers pass."""


def limits(
    before: Sequence[np.ndarray], live: Sequence[np.ndarray], dtype: str, smallest: float = SMALLEST
) -> list[np.ndarray]:
    """How far each value may be off; whole numbers not at all."""
    if dtype not in RTOL:
        return [np.zeros(np.shape(row)) for row in before]
    pairs = zip(before, live, strict=True)
    values = np.concatenate([np.reshape(row, -1)[np.reshape(on, -1)] for row, on in pairs])
    values = values[np.isfinite(values)]
    rms = float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
    return [RTOL[dtype] * np.abs(row) + ATOL[dtype] * max(rms, smallest) for row in before]


def steps(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """How many numbers of the dtype lie between two, the second counted."""
    ranked = []
    for side in (a, b):
        tensor = torch.as_tensor(np.asarray(side, np.float64)).to(getattr(torch, dtype))
        bits = tensor.view(getattr(torch, f"int{8 * tensor.element_size()}")).to(torch.int64).numpy()
        magnitude = bits & ((1 << (8 * tensor.element_size() - 1)) - 1)
        ranked.append(np.where(bits < 0, -magnitude, magnitude).astype(float))
    return np.abs(ranked[0] - ranked[1])


def beyond(a: np.ndarray, b: np.ndarray, limit: np.ndarray, dtype: str) -> np.ndarray:
    """Which values are further apart than they may be. NaN in a live place is beyond every limit."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    with np.errstate(invalid="ignore"):
        far = np.abs(b - a) > limit
        if dtype in RTOL:
            far &= steps(a, b, dtype) > STEPS
        return np.asarray(
            far | np.isnan(a) | np.isnan(b) | (np.isinf(b) & (a != b)) | (np.isinf(a) & (a != b))
        )


def first_place(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], live: Sequence[np.ndarray], dtype: str,
    order: Sequence[int], smallest: float = SMALLEST,
) -> tuple[int, tuple[int, ...]] | None:  # fmt: skip
    """The first row, in this order, and the first place in it that is beyond its limit."""
    allowed = limits(before, live, dtype, smallest)
    for row, at in enumerate(order):
        a, b, on = before[at], after[at], np.asarray(live[at])
        if np.shape(a) != np.shape(b):
            return row, ()
        off = beyond(a, b, allowed[at], dtype) & on
        if np.any(off):
            if not np.ndim(a):
                return row, ()
            return row, (int(np.flatnonzero(off)[0]),)
    return None
