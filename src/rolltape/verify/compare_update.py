"""What the updates of two runs made of the same weights: judged beside what the step did to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn
from rolltape.batch.floats import FLOATS, values
from rolltape.reader.run import Run
from rolltape.reader.samples import Samples
from rolltape.tape.dispatcher import STATE
from rolltape.verify.compare_stage import Both, Rules
from rolltape.verify.comparison import Entry
from rolltape.verify.measure.limits import TOLERANCES
from rolltape.verify.measure.update import judge_update
from rolltape.verify.measure.verdict import Verdict

EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""How far apart neighbouring numbers are, at one."""


def as_updates(entries: Iterable[Entry], both: Both, baseline: Run, rules: Rules) -> Iterator[Entry]:
    """The entries of a state that the candidate's update led to: tensors judged as what an update made.

    What a gate or a measured floor decides stays decided; so does what has no state before it to tell the
    step from.
    """
    before: Samples | None = None
    for entry in entries:
        found = entry.difference
        floats = found is not None and found.dtype in EPSILONS and found.dtype in FLOATS and found.count > 1
        settled = entry.note or entry.verdict <= Verdict.NOISE
        if not floats or settled or rules(STATE, entry.name).tolerance is not TOLERANCES:
            yield entry
            continue
        if before is None:
            before = _state_before(baseline, entry)
        sides = [_array(side, entry.name) for side in (before, both.left, both.right)]
        start, ours, theirs = sides
        if ours is None or theirs is None or ours.shape != theirs.shape or before is None:
            yield entry
            continue
        if start is None or start.shape != ours.shape:
            start = np.zeros(ours.shape)  # an optimizer has no moments before its first step
        verdict = judge_update(start, ours, theirs, EPSILONS[entry.difference.dtype])  # type: ignore[union-attr]
        yield replace(entry, verdict=verdict)


def _state_before(baseline: Run, entry: Entry) -> Samples | None:
    """The state that the step before was given; None where that is not one recording."""
    steps = [step for step, _ in baseline.files(STATE, entry.split).files if step < entry.step]
    if not steps or len(baseline.files(STATE, entry.split).at(entry.step)) > 1:
        return None
    return baseline.samples(max(steps), STATE, entry.split, whole=True)


def _array(side: Samples | None, name: str) -> np.ndarray | None:
    """A tensor of a state as doubles; None where it is none, or not there."""
    if side is None:
        return None
    found = side.columns[name] if name in side.columns else side.values.get(name)
    return values(found.data, found.dtype) if isinstance(found, (ArrayColumn, Bits)) else None
