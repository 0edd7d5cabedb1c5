"""The verdicts of a comparison, best to worst, and the rule that picks one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rolltape.verify.difference import Difference
from rolltape.verify.floats import FLOATS, TOLERANCES


class Verdict(IntEnum):
    """How alike two things are; higher is worse.

    >>> max(Verdict.ULP, Verdict.BITWISE).name
    'ULP'
    """

    BITWISE = 0
    """Not a bit differs."""
    ULP = 1
    """Only by a few steps between neighbouring numbers of the dtype."""
    NOISE = 2
    """No more than two runs of the baseline differ from each other."""
    TOLERANCE = 3
    """Within the tolerance that was set, or the usual one of the dtype."""
    DIVERGED = 4
    """By more than that."""
    INCOMPARABLE = 5
    """There is nothing to compare: missing, empty, or of another shape."""

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def clean(self) -> bool:
        """Whether it is no finding."""
        return self <= Verdict.TOLERANCE


@dataclass(frozen=True, slots=True)
class Limits:
    """What still passes."""

    ulp: int = 4
    """Steps between neighbouring numbers; -1 where only the same bits pass."""
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCES)
    """(rtol, atol) by dtype: an error passes up to ``atol + rtol * |baseline|``."""
    noise: float | None = None
    """The largest absolute error between runs of the baseline, where that was measured."""
    noise_factor: float = 3.0
    """How many times the measured noise is still noise."""

    def of(self, dtype: str) -> tuple[float, float]:
        """(rtol, atol) of a dtype."""
        return self.tolerance.get(dtype, (0.0, 0.0))


def judge(difference: Difference, limits: Limits, dtype: str | None = None) -> Verdict:
    """The best verdict that holds. ``dtype`` says whose tolerance applies, if not that of the values' own."""
    if not difference.count or difference.only_nan:
        return Verdict.INCOMPARABLE
    if difference.same_bits:
        return Verdict.BITWISE
    if difference.nonfinite:
        return Verdict.DIVERGED
    # Between whole numbers there is no rounding: a token that is one off is another token.
    if difference.dtype in FLOATS and difference.max_ulp <= limits.ulp:
        return Verdict.ULP
    if limits.noise is not None and difference.max_abs <= limits.noise_factor * limits.noise:
        return Verdict.NOISE
    dtype = dtype or difference.dtype
    passes = dtype in limits.tolerance and difference.atol <= limits.of(dtype)[1]
    return Verdict.TOLERANCE if passes else Verdict.DIVERGED
