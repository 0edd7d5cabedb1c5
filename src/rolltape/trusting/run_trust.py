"""``rolltape.trust``: how far a run's numbers may be trusted, over all of its steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from rolltape.errors import ConfigError, StepMissingError
from rolltape.reader import run as reader
from rolltape.reader.run import Run
from rolltape.reader.wording import counted
from rolltape.spread import HERE, Spread
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.trusting.alike import Kind
from rolltape.trusting.estimates import RATE, Estimate, Estimates, Moments, ess_of_prompts, estimates
from rolltape.trusting.measuring import Age, Measured, MeasureSteps
from rolltape.trusting.shape import Shape
from rolltape.trusting.structure import Finding
from rolltape.trusting.tails import CAPS, Tails, WorstSequence, WorstToken
from rolltape.trusting.taking import Sides
from rolltape.trusting.use_verdict import Judged, Verdict, judge

Tape: TypeAlias = str | os.PathLike[str] | Run

FEWEST = 0.5
"""Of the recorded sequences: with fewer that can be compared, the others may say anything."""
DRIFT_LOOKS_LIKE = ("temperature", "surviving mass", "constant offset", "scaled", "eos dropped")
"""Bugs that a policy which has moved can look like: they count only where they are there before it moved."""


@dataclass(frozen=True, slots=True)
class StepTrust:
    """One step."""

    step: int
    verdict: Verdict
    why: str
    correction: str
    k1: float
    k2: float
    k3: float
    """Of the trainer against whoever sampled, over tokens."""
    token_ess: float
    sequence_ess: float
    drift_k2: float | None
    floor_k2: float | None
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Level:
    """Tokens or sequences."""

    estimates: Estimates
    below: float
    """The share of ratios under 0.5."""
    above: float
    """The share of ratios over 2."""
    smallest: float
    """The smallest log-ratio."""
    largest: float
    largest_weight: float
    """The share of a step's weight that its largest ratio carries; of all steps the largest such share."""
    cut: dict[float, int]
    """How many a cap would cut, by cap."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a run may be trusted."""

    run: str
    baseline: str | None
    verdict: Verdict
    """The worst of all steps that can be told."""
    why: str
    correction: str
    left_at: int | None
    """The first step that is no longer within noise."""
    steps: list[StepTrust]
    tokens: Level | None
    sequences: Level | None
    prompts_ess: Estimate | None
    floor: Estimates | None
    """Over tokens: the noise between engine and trainer when the tape was recorded."""
    drift: Estimates | None
    """Over tokens: how far the trainer's policy has moved from the baseline's."""
    findings: list[Finding]
    refused: list[str]
    """What was not compared, each by name."""
    recorded: int
    """Sequences of the rollouts."""
    counted: int
    """Those with two numbers a token."""
    finished: int | None
    """Those that ended by themselves; None where nobody says."""
    not_numbers: int
    ages: list[Age]
    worst_sequences: list[tuple[int, WorstSequence]]
    """With their steps."""
    worst_tokens: list[tuple[int, WorstToken]]
    shape: Shape | None
    """By size, place and length, to be drawn; None where nothing was compared."""
    columns: tuple[str, str]

    @property
    def strip(self) -> str:
        """A sign per step: ``=`` exact, ``~`` within noise, ``c`` correctable, ``!`` plumbing only, ``?``."""
        return "".join(one.verdict.letter for one in self.steps)

    def reaches(self, wanted: Verdict) -> bool:
        """Whether every step is at least as good; one that nobody can tell is not."""
        return all(step.verdict.rank <= wanted.rank for step in self.steps)


def trust(
    run: Tape,
    baseline: Tape | None = None,
    *,
    floor: Tape | None = None,
    steps: object = None,
    split: str = "train",
    engine: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    spread: Spread = HERE,
) -> Trust:
    """How far the numbers of a run may be trusted, from its log-probs and those of who sampled its tokens.

    Args:
        run: The tape that a replay wrote, or a recorded one by itself.
        baseline: The tape that was replayed. Without it the one that ``run`` says it was replayed from.
        floor: A tape on which the recorded policy was scored once more: how far that lies from the baseline
            is the noise. Without it, how far engine and trainer lay apart when the baseline was recorded.
        steps: Only these steps, as in ``"0-9,20"``.
        split: The split whose steps are asked about.
        engine: What the tape does not say about the engine's log-probs: ``kind`` (raw or processed),
            ``temperature``, ``top_p``, ``top_k``, ``min_p``, ``tokenizer``.
        trainer: The same of the trainer's.
        seed: Of the bootstrap.
        progress: Told how many steps are done, and of how many.
        spread: Where steps are measured: in this process, or on the nodes of ``rolltape.ray.cluster()``.
    """
    sides = sides_of(run, baseline, floor, split, engine, trainer)
    chosen = ALL_STEPS if steps is None else StepSelector.parse(steps)
    wanted = [step for step in sides.steps() if step in chosen]
    if not wanted:
        raise StepMissingError(
            "there are no log-probs of a trainer on this tape",
            where=sides.run.location,
            causes=["no stage has a column of log-probs, and none was probed", "other steps were asked for"],
            hint='record them: tape.probe("logprobs", …), or a stage that returns log_probs',
        )
    found: list[Measured] = []
    for one in spread.over(MeasureSteps(sides, seed), wanted, sides.tapes):
        found.append(one)
        progress(len(found), len(wanted))
    return joined(sides.run.path, None if sides.baseline is None else sides.baseline.path, found, seed)


def sides_of(
    run: Tape, baseline: Tape | None = None, floor: Tape | None = None, split: str = "train",
    engine: Mapping[str, Any] | None = None, trainer: Mapping[str, Any] | None = None,
) -> Sides:  # fmt: skip
    """The tapes that are asked, opened, in the order in which they make sense."""
    ours = _opened(run)
    theirs = _opened(baseline) if baseline is not None else ours.baseline()
    if theirs is not None and theirs.location == ours.location:
        raise ConfigError("a run cannot be its own baseline", where=ours.location)
    if theirs is not None and theirs.replays(ours) and not ours.replays(theirs):
        raise ConfigError(
            f"{theirs.path} is a replay of {ours.path}: the replay comes first, then the baseline",
            where=ours.location,
            hint=f"rolltape trust {theirs.path} {ours.path}",
        )
    if floor is not None and theirs is None:
        raise ConfigError(
            "a floor is how far the recorded policy lies from the baseline, and there is none",
            where=ours.location,
            hint="name the baseline too: rolltape trust RUN BASELINE --floor TAPE",
        )
    return Sides(
        ours, theirs, None if floor is None else _opened(floor), split, Kind.given(engine),
        Kind.given(trainer),
    )  # fmt: skip


def _opened(tape: Tape) -> Run:
    return tape if isinstance(tape, Run) else reader.open(tape)


@np.errstate(over="ignore", invalid="ignore")
def joined(run: str, baseline: str | None, found: Sequence[Measured], seed: int = 0) -> Trust:
    """What the steps say together. Pure."""
    kept = [_kept_findings(one, found[0], replayed=baseline is not None) for one in found]
    kept = [own + more for own, more in zip(kept, _over_steps(found, baseline is not None), strict=True)]
    steps = [_step(one, findings) for one, findings in zip(found, kept, strict=True)]
    compared = [one for one in found if one.weights is not None]
    told = [step for step in steps if step.verdict is not Verdict.CANNOT_TELL]
    worst = max(told, key=lambda step: (step.verdict.rank, -step.sequence_ess)) if told else steps[0]
    untold = f"; cannot tell at {len(steps) - len(told)} of {counted(len(steps), 'step')}"
    left = [step.step for step in told if step.verdict.rank > Verdict.WITHIN_NOISE.rank]
    parts = [(one.total or one.drift) for one in compared]
    sequences = Moments.join([one.sequences for one in parts if one is not None])
    finished = [one.finished for one in compared]
    return Trust(
        run=run, baseline=baseline, verdict=worst.verdict, correction=worst.correction,
        why=worst.why + (untold if 0 < len(told) < len(steps) else ""),
        left_at=left[0] if left else None, steps=steps,
        tokens=_level(Moments.join([one.tokens for one in parts if one is not None]), compared, 0, seed),
        sequences=_level(sequences, compared, 1, seed),
        prompts_ess=ess_of_prompts(sequences, seed) if compared else None,
        floor=_pooled([one.floor for one in compared], seed),
        drift=_pooled([one.drift for one in compared], seed),
        findings=_summed(steps, found), refused=list(dict.fromkeys(r for one in found for r in one.refused)),
        recorded=sum(one.recorded for one in found), counted=sum(one.counted for one in found),
        finished=None if not finished or None in finished else sum(one or 0 for one in finished),
        not_numbers=sum(one.not_numbers for one in found), ages=_ages(compared),
        worst_sequences=sorted(((one.step, w) for one in found for w in one.worst_sequences),
                               key=lambda pair: -pair[1].rms)[:5],
        worst_tokens=sorted(((one.step, w) for one in found for w in one.worst_tokens),
                            key=lambda pair: -abs(pair[1].trainer - pair[1].engine))[:5],
        shape=Shape.join([one.shape for one in found if one.shape is not None]),
        columns=found[0].columns,
    )  # fmt: skip


def _kept_findings(one: Measured, first: Measured, *, replayed: bool) -> list[Finding]:
    """The findings of a step without those that a policy which has moved since the first step looks like."""
    if not replayed or one.exact:
        return list(one.findings)
    there = {finding.kind for finding in (*first.findings, *first.at_recording, *one.at_recording)}
    return [f for f in one.findings if f.kind not in DRIFT_LOOKS_LIKE or f.kind in there]


def _over_steps(found: Sequence[Measured], replayed: bool) -> list[list[Finding]]:
    """Per step: whether its tokens were sampled by weights that they should not have been sampled by.

    At recording time engine and trainer hold the same weights. Where they do at the first step and never
    again, the engine did not get the later ones.
    """
    nothing: list[list[Finding]] = [[] for _ in found]
    noise = [one.floor_k2 if replayed else None if one.weights is None else one.weights.k2 for one in found]
    known = [(at, value) for at, value in enumerate(noise) if value is not None and np.isfinite(value)]
    if replayed or len(known) < 4:
        return nothing
    versions = [found[at].version for at, _ in known]
    later = [value for _, value in known[1:]]
    usual = float(np.median(later))
    behind = [found[at].step - version for (at, _), version in zip(known, versions, strict=True)
              if version is not None]  # fmt: skip
    if len(behind) == len(known) and len(set(behind)) > 1:
        mode = Counter(behind).most_common(1)[0][0]
        for (at, value), lag in zip(known, behind, strict=True):
            if lag != mode and value > 1e-4 and value > 30 * min(v for _, v in known):
                text = f"sampled by version {found[at].version}, {lag - mode:+d} behind that of other steps"
                nothing[at].append(Finding("wrong weights version", text, found[at].counted))
        return nothing
    if usual > 1e-4 and known[0][1] < 1e-3 * usual and min(later) > 30 * max(known[0][1], 1e-12):
        for at, _ in known[1:]:
            text = f"engine and trainer agree at step {found[0].step} and never again: its weights are old"
            nothing[at].append(Finding("wrong weights version", text, found[at].counted))
    return nothing


def _step(one: Measured, findings: list[Finding]) -> StepTrust:
    if one.moved is None or one.weights is None:
        why = "; ".join(one.refused) or "no token has two numbers"
        judged = Judged(Verdict.CANNOT_TELL, why)
    elif one.counted < FEWEST * one.recorded:
        why = f"only {one.counted} of {one.recorded} recorded sequences have log-probs on both sides"
        judged = Judged(Verdict.CANNOT_TELL, why)
    else:
        bugs = list(dict.fromkeys(finding.kind for finding in findings if finding.is_bug))
        judged = judge(one.exact, one.moved, one.weights, one.floor_k2, bugs)
    whole = one.total or one.drift
    mean: Callable[[str], float] = (lambda name: float("nan")) if whole is None else whole.tokens.mean
    return StepTrust(
        one.step, judged.verdict, judged.why, judged.correction, mean("k1"), mean("k2"), mean("k3"),
        float("nan") if one.weights is None else one.weights.token_ess.value,
        float("nan") if one.weights is None else one.weights.sequence_ess.value,
        None if one.drift is None else one.drift.tokens.mean("k2"), one.floor_k2, findings,
    )  # fmt: skip


def _level(moments: Moments, found: Sequence[Measured], which: int, seed: int) -> Level | None:
    known: list[Tails] = [one.tails[which] for one in found if one.tails is not None]
    if not known:
        return None
    counts = np.array(
        [
            one.weights.tokens if which == 0 else one.weights.sequences
            for one in found
            if one.weights is not None
        ],
        np.float64,
    )
    share = counts / max(counts.sum(), 1)
    return Level(
        estimates(moments, seed),
        below=float(sum(one.below * part for one, part in zip(known, share, strict=True))),
        above=float(sum(one.above * part for one, part in zip(known, share, strict=True))),
        smallest=min(one.smallest for one in known),
        largest=max(one.largest for one in known),
        largest_weight=max(one.largest_weight for one in known),
        cut={cap: sum(one.cut[cap] for one in known) for cap in CAPS},
    )


def _pooled(parts: Sequence[Any], seed: int) -> Estimates | None:
    known = [one.tokens for one in parts if one is not None]
    return estimates(Moments.join(known), seed) if known else None


def _summed(steps: Sequence[StepTrust], found: Sequence[Measured]) -> list[Finding]:
    """Each kind of finding once: at how many steps, and what it looks like at the first of them."""
    at: dict[str, list[int]] = {}
    first: dict[str, Finding] = {}
    affected: Counter[str] = Counter()
    for step in steps:
        for one in step.findings:
            at.setdefault(one.kind, []).append(step.step)
            first.setdefault(one.kind, one)
            affected[one.kind] += one.affected
    for measured in found:
        for one in measured.at_recording:
            if one.is_bug and one.kind not in first:
                first[one.kind], at[one.kind] = one, [measured.step]
                affected[one.kind] += one.affected
    return [
        Finding(kind, f"{one.message}{_at_steps(at[kind], len(steps))}", affected[kind])
        for kind, one in first.items()
    ]


def _at_steps(steps: list[int], of: int) -> str:
    if of == 1:
        return ""
    return (
        f" (step {steps[0]})" if len(steps) == 1 else f" (first at step {steps[0]}, at {len(steps)} of {of})"
    )


def _ages(found: Sequence[Measured]) -> list[Age]:
    every: dict[int, list[Age]] = {}
    for one in found:
        for age in one.ages:
            every.setdefault(age.age, []).append(age)
    rows = []
    for behind, parts in sorted(every.items()):
        tokens = sum(part.tokens for part in parts)
        k2, k3 = (sum(getattr(part, name) * part.tokens for part in parts) / tokens for name in ("k2", "k3"))
        rows.append(Age(behind, tokens, k2, k3))
    return rows


def to_json(found: Trust) -> dict[str, Any]:
    """As plain values, for ``--json``."""
    document = asdict(found)
    document["rate"] = RATE
    document["strip"] = found.strip
    for name in ("tokens", "sequences"):
        if document[name] is not None:
            document[name] |= {
                "count": document[name]["estimates"]["count"],
                **document[name].pop("estimates")["of"],
            }
    for name in ("floor", "drift"):
        if document[name] is not None:
            document[name] = {"count": document[name]["count"], **document[name]["of"]}
    for name in ("worst_sequences", "worst_tokens"):
        document[name] = [{"step": step, **one} for step, one in document[name]]
    for step in [document, *document["steps"]]:
        step["verdict"] = str(step["verdict"])
    document["columns"] = {"engine": found.columns[0], "trainer": found.columns[1]}
    return document
