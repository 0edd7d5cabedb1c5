"""Two tapes side by side: a step stage by stage, and one sample token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.verify import Report, compare
from rolltape.viewer.library import Library
from rolltape.viewer.sample_view import SampleView, read_sample
from rolltape.viewer.step_view import StepView
from rolltape.viewer.token_view import Scale


@dataclass(frozen=True, slots=True)
class ScalePair:
    """The same numbers of both runs for the tokens of a sample."""

    name: str
    first: int | None
    """The first token at which they differ."""
    largest: float


@dataclass(frozen=True, slots=True)
class SamplePair:
    """One sample of both runs."""

    left: SampleView
    right: SampleView
    token: int | None
    """The first token of the response that differs; None where the responses are the same."""
    scales: list[ScalePair]


def compare_step(library: Library, left: int, right: int, step: int) -> Report:
    """What the comparison of one step has to say: the same as everywhere else."""
    ours, theirs = library.runs[left], library.runs[right]
    if ours.replays(theirs):  # the baseline comes first, whichever side it is shown on
        ours, theirs = theirs, ours
    return compare(ours, theirs, steps=step)


def compare_sample(left: StepView, right: StepView, sample: int) -> SamplePair | None:
    """The sample of the left run and the one of the same uid and index of the right; None if it has none."""
    if not 0 <= sample < len(left.main):
        raise IndexError(sample)
    other = right.main.places.get(left.main.ids[sample])
    if other is None:
        return None
    ours, theirs = read_sample(left, sample), read_sample(right, other)
    ids = [[token.id for token in side.tokens.response] for side in (ours, theirs)]
    token = first_difference(*ids)
    scales = {scale.name: scale for scale in theirs.tokens.scales}
    shared = [(scale, scales[scale.name]) for scale in ours.tokens.scales if scale.name in scales]
    return SamplePair(ours, theirs, token, [_scales(*pair) for pair in shared])


def first_difference(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Where two sequences part, one that ends earlier included.

    >>> first_difference("abc", "abd"), first_difference("ab", "abc"), first_difference("ab", "ab")
    (2, 2, None)
    """
    for at, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs and not (ours != ours and theirs != theirs):  # NaN is the same as NaN here
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def _scales(ours: Scale, theirs: Scale) -> ScalePair:
    apart = [abs(a - b) for a, b in zip(ours.values, theirs.values, strict=False) if a == a and b == b]
    return ScalePair(ours.name, first_difference(ours.values, theirs.values), max(apart, default=0.0))
