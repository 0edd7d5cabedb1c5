"""The answer in one sentence, how sure it is, and the command that shows it: the same on every surface."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.verify.align.column_alignment import Place
from rolltape.verify.comparison import METRICS, Comparison, Entry
from rolltape.verify.diagnose.origin import updated_in
from rolltape.verify.diagnose.same_inputs import Proof
from rolltape.verify.measure.difference import Difference
from rolltape.verify.measure.verdict import Verdict
from rolltape.verify.report.token_lookup import Tokens

MOST = 4
"""How many of the things that follow are named."""
MOST_STEPS = 10_000_000
"""Beyond, steps between neighbouring numbers say nothing that the errors do not."""


def first_divergence(comparison: Comparison, tokens: Tokens | None = None) -> str:
    """One sentence about the first divergence, or about there being none."""
    first = comparison.first
    if not comparison.entries:
        return _nothing(comparison)
    if first is None:
        return f"No divergence: {_compared(comparison)}, at worst {comparison.verdict}."
    if not comparison.compared:
        return f"{_nothing(comparison)[:-1]}. First: step {first.step}, {where(first, tokens)}: {first.note}."
    if comparison.unrelated:
        return (
            f"First divergence: step {first.step}, {where(first, tokens)}: {how_much(first)}; "
            "the rollouts have no sample in common, so these are two different runs."
        )
    later = [entry for entry in comparison.firsts() if entry is not first]
    shown = [
        f"{_thing(entry)} {'follows ' if not at else ''}at step {entry.step}"
        for at, entry in enumerate(later[:MOST])
    ]
    more = f" and {len(later) - MOST} more" if len(later) > MOST else ""
    tail = f"; {', '.join(shown)}{more}" if shown else ""
    updated = updated_in(comparison, first)
    made = "" if updated is None else f", which the update of step {updated} made"
    return f"First divergence: step {first.step}, {where(first, tokens)}{made}: {how_much(first)}{tail}."


def where(entry: Entry, tokens: Tokens | None = None) -> str:
    """The stage, the column, the sample and the token."""
    rank = f" of rank {entry.rank}" if entry.rank else ""
    parts = [f"metric `{entry.name}`{rank}"] if entry.stage == METRICS else [f"stage `{entry.stage}`"]
    if entry.split != "train":
        parts.insert(0, f"split `{entry.split}`")
    if entry.stage != METRICS and entry.name:
        parts.append(f"`{entry.name}`")
    if entry.first is not None and entry.verdict is not Verdict.BIASED:
        parts.append(_sample(entry.first))
        if entry.first.token:
            token = None if tokens is None else tokens.at(entry.split, entry.step, entry.first)
            named = "" if token is None else f" {token}"
            parts.append(f"token {', '.join(map(str, entry.first.token))}{named}")
    return ", ".join(parts)


def how_much(entry: Entry) -> str:
    """By how much it differs: the first element beyond the limit, how many there are, and the worst."""
    found = entry.difference
    if entry.note or found is None:
        return entry.note
    if entry.verdict is Verdict.BIASED and entry.bias is not None:
        return f"{entry.bias}, though each value is within its limit"
    several = f"; {_of_all(found)}" if found.count > 1 else ""
    if found.max_abs == float("inf") and not found.nonfinite:
        return several.removeprefix("; ") or f"{found.mismatched:,} of {found.count:,} differ"
    at, steps = found.first_values or found.worst_values, found.first_ulp or found.max_ulp
    if at is None:
        return several.removeprefix("; ")
    values = f"{at[1]:.6g} instead of {at[0]:.6g}"
    if found.nonfinite:
        several += f", {found.nonfinite:,} of them not finite on one side only"
    if not math.isfinite(at[0]) or not math.isfinite(at[1]):
        return f"{values}{several}"
    apart = abs(at[1] - at[0])
    counted = "float" in found.dtype and steps < MOST_STEPS
    size = f"{steps:,} {found.dtype} ULP" if counted else f"{apart:.6g} apart"
    floor = f", {apart / entry.noise:.3g}× the noise" if entry.noise else ""
    return f"{size} ({values}{floor}){several}{_worst(entry, found)}"


def _of_all(found: Difference) -> str:
    """How many values are off."""
    if not found.beyond or found.beyond == found.mismatched:
        return f"{found.mismatched:,} of {found.count:,} values differ"
    return f"{found.beyond:,} of {found.count:,} values are beyond the limit, {found.mismatched:,} differ"


def _worst(entry: Entry, found: Difference) -> str:
    """The worst element, where it is another than the first."""
    if found.worst_values is None or found.worst == found.first:
        return ""
    place = "" if entry.worst is None else f" in {_sample(entry.worst)}"
    return f", at worst {found.worst_values[1]:.6g} instead of {found.worst_values[0]:.6g}{place}"


def _sample(place: Place) -> str:
    uid, index = place.sample
    return f"sample {place.row} (uid {uid}, {index})" if uid else f"sample {place.row}"


def _nothing(comparison: Comparison) -> str:
    """Why nothing could be compared: no such step, or nothing in common."""
    has = []
    for name, run in zip(("the baseline", "the candidate"), comparison.runs, strict=True):
        steps = sorted(
            {step for split in run.splits for step in (*run.steps(None, split), *run.metrics(split))}
        )
        has.append((name, steps))
    if comparison.steps != ALL_STEPS and not any(
        step in comparison.steps for _, mine in has for step in mine
    ):
        said = ", ".join(f"{name} has {_range(steps)}" for name, steps in has)
        return f"Nothing to compare: no step of {comparison.steps} is on the tapes; {said}."
    names = []
    for (name, _), run in zip(has, comparison.runs, strict=True):
        stages = dict.fromkeys(stage for split in run.splits for stage in run.stages(split))
        names.append(f"{name} has {', '.join(stages) or 'none'}")
    said = f"the tapes have no stage and no metric in common; of stages {', '.join(names)}"
    return f"Nothing to compare: {said}."


def _range(steps: Sequence[int]) -> str:
    return f"steps {StepSelector.parse(list(steps))}" if steps else "none"


def _compared(comparison: Comparison) -> str:
    steps = len({(entry.split, entry.step) for entry in comparison.entries})
    return f"{len(comparison.entries):,} things over {steps:,} steps compared"


def _thing(entry: Entry) -> str:
    return f"`{entry.name or entry.stage}`" + (f" of rank {entry.rank}" if entry.rank else "")


# -- how sure -------------------------------------------------------------------------------------------

LEVELS = ("none", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure the answer is."""

    level: str
    """``high``, ``medium``, ``low``, or ``none`` where nothing was compared."""
    why: str

    def __str__(self) -> str:
        return f"{self.level} ({self.why})"


def confidence(comparison: Comparison, proofs: Sequence[Proof]) -> Confidence:
    """How sure the answer is: how far beyond its limit the first divergence is, and what is proven."""
    if not comparison.compared:
        return Confidence("none", "nothing was compared")
    given = next((proof.same for proof in proofs if proof.what == "rollout"), None)
    words = {
        True: "the rollouts are proven the same",
        False: "the rollouts differ",
        None: "the rollouts are not proven the same",
    }
    first = comparison.first
    if first is None:
        exact = comparison.verdict <= Verdict.ULP
        level = 3 if exact and given else 2 if given or exact else 1
        return Confidence(LEVELS[level], f"at worst {comparison.verdict}; {words[given]}")
    times = times_limit(first)
    if times is None:
        level, why = 3, "no matter of limits"
    else:
        level = 3 if times >= 10 else 2 if times >= 2 else 1
        why = f"{times:.3g}× what would pass"
    if first.stage == "rollout":
        return Confidence(LEVELS[level], f"{why}; the rollouts themselves differ")
    return Confidence(LEVELS[level if given else max(level - 1, 1)], f"{why}; {words[given]}")


def times_limit(entry: Entry) -> float | None:
    """How many times what would pass an error is; None where it is no matter of size."""
    found = entry.difference
    if entry.note or found is None or found.nonfinite or not found.max_abs < float("inf"):
        return None
    if not found.limit:
        return None
    noise = 3 * entry.noise if entry.noise else 0.0
    return min(found.atol / found.limit, found.max_abs / noise if noise else float("inf"))


# -- where to look ---------------------------------------------------------------------------------------


def view_command(comparison: Comparison) -> str:
    """The command that shows the first divergence in the viewer: its sample, else its step."""
    tapes = [shlex.quote(run.path) for run in comparison.runs]
    first = comparison.first
    place = None if first is None else viewer_place(comparison, first)
    return " ".join(["rolltape view", *tapes, *([f"--at {'/'.join(map(str, place))}"] if place else [])])


def viewer_place(comparison: Comparison, entry: Entry) -> tuple[str | int, ...] | None:
    """Where the viewer shows an entry, as split, stage, step and sample: in the rollout of its step, else in
    its own stage; without the sample where the entry is of none."""
    baseline = comparison.runs[0]
    stage = "rollout" if baseline.files("rollout", entry.split).at(entry.step) else entry.stage
    if not baseline.files(stage, entry.split).at(entry.step) or stage == METRICS:
        return None
    step = entry.split, stage, entry.step
    if entry.first is None:
        return step
    if stage == entry.stage:
        return *step, entry.first.row
    row = baseline.samples(entry.step, stage, entry.split).places.get(entry.first.sample)
    return step if row is None else (*step, row)
