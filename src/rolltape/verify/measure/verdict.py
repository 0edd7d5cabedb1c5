"""The verdicts of a comparison, best to worst, and the rule that picks one."""

from __future__ import annotations

from enum import IntEnum

from rolltape.batch.floats import FLOATS
from rolltape.verify.measure.difference import Difference
from rolltape.verify.measure.limits import Limits


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
    BIASED = 4
    """Within the limits value by value, and all to one side: no rounding does that."""
    DIVERGED = 5
    """By more than that."""
    INCOMPARABLE = 6
    """There is nothing to compare: missing, empty, no number, or of another shape."""

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def clean(self) -> bool:
        """Whether it is no finding."""
        return self <= Verdict.TOLERANCE


def judge(difference: Difference, limits: Limits) -> Verdict:
    """The best verdict that holds for a difference that was measured under these limits."""
    if difference.beyond:
        return Verdict.DIVERGED
    if not difference.count or difference.both_nan:
        return Verdict.INCOMPARABLE
    if difference.same_bits:
        return Verdict.BITWISE
    # Between whole numbers there is no rounding: a token that is one off is another token.
    if difference.dtype in FLOATS and difference.max_ulp <= limits.ulp:
        return Verdict.ULP
    if limits.room is not None and difference.max_abs <= limits.room:
        return Verdict.NOISE
    return Verdict.TOLERANCE
