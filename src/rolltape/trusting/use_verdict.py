"""What a replay may be used for, from how far its log-probs lie from what was recorded. Pure.

=================  =========================================================================================
``exact``          the trainer's log-probs are the baseline's, bit for bit: evidence for anything
``within noise``   the policy has moved no further than engine and trainer lay apart at recording time
``correctable``    it has, and importance weights with a cap still correct for it
``plumbing only``  shapes, speed, crashes: the numbers say nothing about the policy
``cannot tell``    there is nothing to compare, or it must not be compared
=================  =========================================================================================

*Within noise*, with a floor: the mean of d² / 2 over all tokens (k2) of the drift is at most four times that
of the floor, which is twice as far, because the noise of two computations adds up; and no sequence is broken.
Without a floor the limits that NeMo-RL uses: k3 at most 0.001, the mean of exp(abs(d)) at most 1.05, and no
sequence is broken.

*Correctable*: of the sequences at least half are left (ESS over sequences), or of the tokens at least 0.3
(ESS over tokens, where verl begins to warn, here of raw ratios), and the cap cuts at most one in a hundred.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rolltape.trusting.estimates import Estimate
from rolltape.trusting.tails import CAPS, Tails

ACCEPTABLE_K3 = 1e-3
ACCEPTABLE_RATIO = 1.05
FLOOR_TIMES = 4.0
ROUNDING = 5e-13
"""The k2 of rounding in float32, about 1e-6 a token: no floor is lower."""
SEQUENCES_LEFT = 0.5
TOKENS_LEFT = 0.3
UNSURE = 0.2
"""What a share must be above its limit by, where nobody can tell its interval."""
CUT = 0.01
CUT_AT_MOST = 0.05
DROPPED = 0.05
"""The largest share of sequences that may be left out because they are broken."""


class Verdict(str, enum.Enum):
    """What a replay may be used for, best first."""

    EXACT = "exact"
    WITHIN_NOISE = "within noise"
    CORRECTABLE = "correctable"
    PLUMBING_ONLY = "plumbing only"
    CANNOT_TELL = "cannot tell"

    def __str__(self) -> str:
        return self.value

    @property
    def rank(self) -> int:
        """0 is best."""
        return list(Verdict).index(self)

    @property
    def letter(self) -> str:
        """In a strip over steps."""
        return "=~c!?"[self.rank]


@dataclass(frozen=True, slots=True)
class Moved:
    """What is held against the floor."""

    k2: float
    k3: float
    abs_ratio: float
    sequences: int
    broken: int
    """Sequences that are off ten times more than the others."""


@dataclass(frozen=True, slots=True)
class Distance(Moved):
    """What a verdict needs of one mismatch."""

    tokens: int
    token_ess: Estimate
    sequence_ess: Estimate
    token_tails: Tails
    sequence_tails: Tails


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, why, and what would correct it."""

    verdict: Verdict
    why: str
    correction: str = ""
    cap: float | None = None


def within_noise(moved: Moved, floor: float | None) -> str:
    """Why a mismatch is more than noise; empty where it is not. ``floor`` is the k2 of the noise."""
    if moved.broken:
        return f"{moved.broken} of {moved.sequences} sequences are broken"
    if floor is not None:
        limit = FLOOR_TIMES * max(floor, ROUNDING)
        return "" if moved.k2 <= limit else f"k2 is {moved.k2:.3g}, above {limit:.3g}, 4 times the floor"
    if moved.k3 > ACCEPTABLE_K3:
        return f"k3 is {moved.k3:.3g}, above {ACCEPTABLE_K3:g}; no floor was measured"
    if moved.abs_ratio > ACCEPTABLE_RATIO:
        return f"the mean of exp|log-ratio| is {moved.abs_ratio:.3g}, above {ACCEPTABLE_RATIO:g}"
    return ""


def judge(exact: bool, moved: Distance, weights: Distance, floor: float | None, bugs: list[str]) -> Judged:
    """The verdict on a step: ``moved`` is what is compared with the floor, ``weights`` what would correct."""
    if exact:
        return Judged(Verdict.EXACT, "every log-prob is the same, bit for bit")
    if bugs:
        return Judged(Verdict.PLUMBING_ONLY, f"a bug in the plumbing: {', '.join(bugs)}")
    reason = within_noise(moved, floor)
    if not reason:
        how = "the floor" if floor is not None else "the limits in use; no floor was measured"
        return Judged(Verdict.WITHIN_NOISE, f"within {how}")
    if moved.broken > DROPPED * moved.sequences:
        return Judged(Verdict.PLUMBING_ONLY, reason)
    dropped = "leave out the broken sequences, then " if moved.broken else ""
    if _left(weights.sequence_ess) >= SEQUENCES_LEFT:
        cap = _cap(weights.sequence_tails, weights.sequences)
        if cap is not None:
            how = f"{dropped}weights of sequences, cap {cap:g}"
            return Judged(Verdict.CORRECTABLE, reason, how, cap)
    if _left(weights.token_ess) >= TOKENS_LEFT:
        cap = _cap(weights.token_tails, weights.tokens)
        if cap is not None:
            how = f"{dropped}weights of tokens, cap {cap:g} (biased: what came before a token is not weighed)"
            return Judged(Verdict.CORRECTABLE, reason, how, cap)
    left = weights.token_ess
    said = left.cannot_tell or f"{left.value:.2g} of the tokens are left"
    return Judged(Verdict.PLUMBING_ONLY, f"{reason}; no weights correct it: {said}")


def _left(ess: Estimate) -> float:
    """The share that is left for sure: the lower end; without one, well below what was seen."""
    return ess.low if ess.low is not None else ess.value - UNSURE


def _cap(tails: Tails, count: int) -> float | None:
    """The smallest cap that cuts hardly any; the largest where it cuts few; None where it cuts many."""
    for cap in CAPS:
        if tails.cut[cap] <= CUT * count:
            return cap
    return CAPS[-1] if tails.cut[CAPS[-1]] <= CUT_AT_MOST * count else None
