"""The verdicts of a comparison, best to worst, and the rule that picks one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rolltape.verify.difference import Difference
from rolltape.verify.floats import TOLERANCES


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
    """Steps between neighbouring numbers."""
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCES)
    """(rtol, atol) by dtype: an error passes up to ``atol + rtol * |baseline|``."""
    noise_factor: float = 3.0
    """How many times the measured noise is still noise."""

    def of(self, dtype: str) -> tuple[float, float]:
        """(rtol, atol) of a dtype."""
        return self.tolerance.get(dtype, (0.0, 0.0))


def judge(difference: Difference, limits: Limits, noise: float | None = None) -> Verdict:
    """The best verdict that holds. ``noise`` is the largest absolute error between runs of the baseline."""
    if not difference.count:
        return Verdict.INCOMPARABLE
    if difference.same_bits:
        return Verdict.BITWISE
    if difference.nonfinite:
        return Verdict.DIVERGED
    if difference.max_ulp <= limits.ulp and difference.max_abs < float("inf"):
        return Verdict.ULP
    if noise is not None and difference.max_abs <= limits.noise_factor * noise:
        return Verdict.NOISE
    return Verdict.TOLERANCE if difference.atol <= limits.of(difference.dtype)[1] else Verdict.DIVERGED
