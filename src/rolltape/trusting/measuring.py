"""One step measured: everything that is kept of it, small enough to be sent and joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rolltape.trusting.alike import NOBODY_SAYS, Kind
from rolltape.trusting.estimates import Estimate, Moments, estimates
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.shape import Shape
from rolltape.trusting.structure import Finding, Known, broken_sequences, find_structure, not_numbers
from rolltape.trusting.tails import (
    Tails,
    WorstSequence,
    WorstToken,
    tails,
    worst_sequences,
    worst_tokens,
)
from rolltape.trusting.taking import Sides, Taken, take
from rolltape.trusting.use_verdict import Distance


@dataclass(frozen=True, slots=True)
class Both:
    """The moments of one mismatch, over tokens and over sequences."""

    tokens: Moments
    sequences: Moments


@dataclass(frozen=True, slots=True)
class Age:
    """The tokens that weights of one age sampled: how many updates they were behind."""

    age: int
    tokens: int
    k2: float
    k3: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What is kept of one step."""

    step: int
    exact: bool = False
    total: Both | None = None
    drift: Both | None = None
    floor: Both | None = None
    moved: Distance | None = None
    """What is held against the floor: the drift, or without a baseline all of it."""
    weights: Distance | None = None
    """What weights would have to correct: the trainer against whoever sampled."""
    floor_k2: float | None = None
    """The floor without broken sequences; None where there is none."""
    findings: tuple[Finding, ...] = ()
    at_recording: tuple[Finding, ...] = ()
    """What was found in the floor: it was there when the tape was recorded."""
    refused: tuple[str, ...] = ()
    recorded: int = 0
    counted: int = 0
    """Sequences that both sides have."""
    finished: int | None = None
    """Of those, how many ended by themselves; None where nobody says."""
    not_numbers: int = 0
    ages: tuple[Age, ...] = ()
    version: int | None = None
    """Of the weights that sampled the step, where they were one."""
    worst_sequences: tuple[WorstSequence, ...] = ()
    worst_tokens: tuple[WorstToken, ...] = ()
    tails: tuple[Tails, Tails] | None = None
    """Of tokens and of sequences."""
    shape: Shape | None = None
    kind: Kind = NOBODY_SAYS
    columns: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class MeasureSteps:
    """Measures steps one after the other: what comes out for a step depends on that step alone."""

    sides: Sides
    seed: int = 0

    def __call__(self, steps: Sequence[int]) -> Iterator[Measured]:
        for step in steps:
            with np.errstate(over="ignore", invalid="ignore"):  # a tape may hold any number
                found = measured(take(self.sides, step), self.seed)
            yield found


def measured(taken: Taken, seed: int = 0) -> Measured:
    """All that is said about a step, from its pairs."""
    whole = taken.total if taken.total is not None else taken.drift
    base = Measured(
        taken.step, refused=tuple(taken.refused), recorded=taken.recorded, kind=taken.kind,
        columns=taken.columns, exact=taken.exact, findings=tuple(taken.findings),
    )  # fmt: skip
    if whole is None or not len(whole.engine):
        return base
    known = Known(taken.kind.temperature, taken.kind.top_p, taken.step)
    quiet = _finite(taken.floor)
    total, drift = _finite(taken.total), _finite(taken.drift)
    moved, weights = drift if drift is not None else total, total if total is not None else drift
    assert moved is not None
    assert weights is not None
    usual = _usual(quiet)
    named = {one.kind for one in taken.findings}
    structure = [one for one in find_structure(whole, known) if one.kind not in named]
    if drift is not None and whole.finite.all():
        structure += not_numbers(taken.drift)  # type: ignore[arg-type]  # of the baseline
    return replace(
        base,
        total=_both(total), drift=_both(drift), floor=_both(quiet),
        moved=distance(moved, seed, usual), weights=distance(_unbroken(weights), seed, None),
        floor_k2=None if quiet is None or not len(quiet.engine) else _k2(_unbroken(quiet)),
        findings=tuple(taken.findings) + tuple(structure),
        at_recording=() if quiet is None else tuple(find_structure(taken.floor, known)),  # type: ignore[arg-type]
        counted=int((whole.lengths > 0).sum()),
        finished=None if whole.finished is None else int(whole.finished.sum()),
        not_numbers=int((~whole.finite).sum()),
        ages=tuple(_ages(weights)), version=_version(weights),
        worst_sequences=tuple(worst_sequences(weights)), worst_tokens=tuple(worst_tokens(weights)),
        tails=(tails(weights.log_ratio), tails(weights.sums(weights.log_ratio)[weights.lengths > 0])),
        shape=Shape.of(weights),
    )  # fmt: skip


def distance(pairs: Pairs, seed: int, usual: float | None) -> Distance:
    """What a verdict needs of pairs; ``usual`` is how far the sequences of the floor lie apart."""
    tokens, sequences = Moments.of_tokens(pairs), Moments.of_sequences(pairs)
    sums = pairs.sums(pairs.log_ratio)[pairs.lengths > 0]
    return Distance(
        k2=tokens.mean("k2"), k3=tokens.mean("k3"), abs_ratio=tokens.mean("abs_ratio"),
        tokens=tokens.count, sequences=sequences.count,
        token_ess=_ess(tokens, seed), sequence_ess=_ess(sequences, seed),
        token_tails=tails(pairs.log_ratio), sequence_tails=tails(sums),
        broken=int(broken_sequences(pairs, usual).sum()),
    )  # fmt: skip


def _ess(moments: Moments, seed: int) -> Estimate:
    return estimates(moments, seed, only=("ess",))["ess"]


def _finite(pairs: Pairs | None) -> Pairs | None:
    return None if pairs is None else pairs if pairs.finite.all() else pairs.where(pairs.finite)


def _both(pairs: Pairs | None) -> Both | None:
    return None if pairs is None else Both(Moments.of_tokens(pairs), Moments.of_sequences(pairs))


def _unbroken(pairs: Pairs) -> Pairs:
    broken = broken_sequences(pairs)
    return pairs if not broken.any() else pairs.where(~broken[pairs.sequence])


def _k2(pairs: Pairs) -> float:
    return float(np.mean(pairs.log_ratio**2) / 2)


def _usual(floor: Pairs | None) -> float | None:
    """How far a usual sequence of the floor lies apart, as a root of the mean square."""
    if floor is None or not len(floor.engine):
        return None
    rms = np.sqrt(floor.sums(floor.log_ratio**2) / np.maximum(floor.lengths, 1))
    return float(np.median(rms[floor.lengths > 0]))


def _ages(pairs: Pairs) -> Iterator[Age]:
    if pairs.versions is None:
        return
    newest = int(pairs.versions.max(initial=0))
    for version in np.unique(pairs.versions)[::-1][:64].tolist():
        d = pairs.log_ratio[pairs.versions == version]
        moments = Moments.of(d, np.zeros(len(d), np.int64))
        yield Age(newest - int(version), len(d), moments.mean("k2"), moments.mean("k3"))


def _version(pairs: Pairs) -> int | None:
    if pairs.versions is None or not len(pairs.versions):
        return None
    first = int(pairs.versions[0])
    return first if bool((pairs.versions == first).all()) else None
