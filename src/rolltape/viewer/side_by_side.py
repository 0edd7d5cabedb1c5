"""Two tapes side by side: one sample token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.reader.stored_file import Id
from rolltape.verify import Entry, Report
from rolltape.viewer.sample_view import SampleView, read_sample
from rolltape.viewer.step_view import StepView
from rolltape.viewer.token_view import Scale


@dataclass(frozen=True, slots=True)
class ScalePair:
    """The same numbers of both runs for the tokens of a sample."""

    name: str
    of: str
    """The stage and the column they are of; empty where they are of two."""
    first: int | None
    """The first token at which they differ."""
    largest: float
    apart: list[float]
    """By how much the right one is larger, token by token."""
    entry: Entry | None = None
    """What the comparison of the step says of the column."""
    beyond: int | None = None
    """The first token beyond its limit, where that is in this sample."""


@dataclass(frozen=True, slots=True)
class SamplePair:
    """One sample of both runs."""

    left: SampleView
    right: SampleView
    token: int | None
    """The first token of the response that differs; None where the responses are the same."""
    scales: list[ScalePair]
    chosen: ScalePair | None = None
    """The one that was asked for; else the worst that the comparison finds fault with."""


def compare_sample(
    left: StepView, right: StepView, sample: int, report: Report, by: str = ""
) -> SamplePair | None:
    """The sample of the left run and the one of the same uid and index of the right; None if it has none.

    ``by`` names the stage and the column that somebody wants to see.
    """
    if not 0 <= sample < len(left.main):
        raise IndexError(sample)
    other = right.main.places.get(left.main.ids[sample])
    if other is None:
        return None
    ours, theirs = read_sample(left, sample), read_sample(right, other)
    ids = [side.tokens.response.ids.tolist() for side in (ours, theirs)]
    token = first_difference(*ids)
    scales = {scale.name: scale for scale in theirs.tokens.scales}
    shared = [(scale, scales[scale.name]) for scale in ours.tokens.scales if scale.name in scales]
    entries = {
        f"{entry.stage} / {entry.name}": entry
        for entry in report.comparison.entries
        if entry.split == left.split
    }
    me = left.main.ids[sample]
    pairs = [_scales(*pair, entries.get(pair[0].of), me) for pair in shared]
    faults = [
        pair for pair in pairs if pair.first is not None and pair.entry and not pair.entry.verdict.clean
    ]
    chosen = next((pair for pair in pairs if by and pair.of == by), faults[0] if faults else None)
    return SamplePair(ours, theirs, token, pairs, chosen)


def first_difference(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Where two sequences part, one that ends earlier included.

    >>> first_difference("abc", "abd"), first_difference("ab", "abc"), first_difference("ab", "ab")
    (2, 2, None)
    """
    for at, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs and not (ours != ours and theirs != theirs):  # NaN is the same as NaN here
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def _scales(ours: Scale, theirs: Scale, entry: Entry | None, me: Id) -> ScalePair:
    both = list(zip(ours.values, theirs.values, strict=False))
    apart = [b - a if a != b and not (a != a and b != b) else 0.0 for a, b in both]
    first = first_difference(ours.values, theirs.values)
    largest = max((abs(one) for one in apart if one == one), default=0.0)
    place = None if entry is None else entry.first
    mine = place is not None and place.sample == me and place.token
    return ScalePair(
        ours.name, ours.of, first, largest, apart, entry, place.token[0] if mine and place else None
    )
