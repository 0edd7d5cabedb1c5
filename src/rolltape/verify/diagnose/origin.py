"""Whether the error of a step was made in it, or came with the weights it started from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.reader.samples import STATES
from rolltape.verify.comparison import Comparison, Entry
from rolltape.verify.diagnose.same_inputs import Proof
from rolltape.verify.measure.verdict import Verdict

MADE, CARRIED, UNKNOWN = "made here", "carried from before", "made here or carried"
UPDATE = "made here, in its update"


@dataclass(frozen=True, slots=True)
class Origin:
    """What one step has to answer for."""

    split: str
    step: int
    first: Entry | None
    """The first divergence of the step; None where it has none."""
    origin: str
    """Where the error comes from; empty where there is none."""


def origins(comparison: Comparison, proofs: Sequence[Proof]) -> list[Origin]:
    """For every step, whether it diverges, and whether by itself.

    A state that a replay computed before it was given the next shows the update of the step before, and is
    held against that one.
    """
    steps: dict[tuple[str, int], list[Entry]] = {}
    for entry in comparison.entries:
        steps.setdefault((entry.split, entry.step), []).append(entry)
    found: list[Origin] = []
    for split, step in steps:
        entries = steps[split, step]
        own = [entry for entry in entries if entry.stage not in STATES]
        states = [entry for entry in entries if entry.stage in STATES]
        first = next((entry for entry in own if not entry.verdict.clean), None)
        origin = ""
        if first is not None:
            origin = _origin(comparison, proofs, split, step, states)
        elif (made := _update(comparison, steps, split, step)) is not None:
            first, origin = made, UPDATE
        found.append(Origin(split, step, first, origin))
    return found


def updated_in(comparison: Comparison, entry: Entry) -> int | None:
    """The step whose update a finding about the state shows; None where it shows none."""
    if entry.stage not in STATES or (entry.split, entry.step) not in comparison.updates:
        return None
    before = (step for split, step in _steps(comparison) if split == entry.split and step < entry.step)
    return max(before, default=None)


def _update(
    comparison: Comparison, steps: dict[tuple[str, int], list[Entry]], split: str, step: int
) -> Entry | None:
    """What the update of a step got wrong, as the state of the step after it shows."""
    after = min((other for one, other in steps if one == split and other > step), default=None)
    if after is None or (split, after) not in comparison.updates:
        return None
    states = (entry for entry in steps[split, after] if entry.stage in STATES)
    return next((entry for entry in states if not entry.verdict.clean), None)


def _origin(
    comparison: Comparison, proofs: Sequence[Proof], split: str, step: int, states: list[Entry]
) -> str:
    if any(stage in comparison.shared for stage in STATES):
        began = min((one for other, one in comparison.updates if other == split), default=None)
        unlike = step == began and any(not entry.verdict.clean for entry in states)
        return UNKNOWN if unlike else MADE  # every step begins from the recorded state, if it is put to use
    if states:
        worst = max(entry.verdict for entry in states)
        return MADE if worst is Verdict.BITWISE else UNKNOWN if worst.clean else CARRIED
    firsts = {first for run in comparison.runs for first in run.steps(None, split)[:1]}
    same = any(proof.same for proof in proofs if proof.what == "rollout")
    return MADE if firsts == {step} and same else UNKNOWN


def _steps(comparison: Comparison) -> set[tuple[str, int]]:
    return {
        (split, step)
        for split in {entry.split for entry in comparison.entries}
        for step in comparison.runs[0].steps(None, split)
    }
