"""Which stage of a step made an error, and which only passed one on; and which samples carry it.

A stage whose formula is known is computed again from what it was given. Where that gives what was recorded,
on both sides, the stage is right and an input is to blame: each is put in the place of the baseline's, to
see which explains what came out. Nothing is said where the formula does not give the baseline's own values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from rolltape.errors import RolltapeError
from rolltape.reader.run import Run
from rolltape.reader.samples import STATES
from rolltape.verify.align.column_alignment import pair
from rolltape.verify.comparison import METRICS, Comparison, Entry
from rolltape.verify.diagnose.causes import by_sample
from rolltape.verify.diagnose.origin import MADE, Origin
from rolltape.verify.rerun.recompute import (
    Known,
    arguments_of,
    compared_with,
    computed,
    formula_for,
    known_of,
    result_rows,
)

SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "grpo": {"epsilon": (1e-4, 1e-6, 1e-8, 0.0), "std": (True, False), "ddof": (0, 1)},
    "gae": {"gamma": (1.0, 0.99), "lam": (0.95, 1.0), "whiten": (False, True)},
    "policy_loss": {
        "clip_range": (0.2, 0.1, 0.3),
        "kl": (0.0, 0.001, 0.01, 0.02, 0.04, 0.05, 0.1),
        "clip_high": (None, 0.28),
    },
}  # fmt: skip
"""What people set formulas to: the first under which a formula gives the baseline's values is taken."""
MOST_TRIED = 2_000_000
"""Elements in all tries together: of a large stage fewer settings are tried."""
EXPLAINS = 0.99
"""The share of an error that an input has to account for to explain it."""
MOST_SAMPLES = 3
"""So many samples are named, if they carry most of the error."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A sample, and the share of the error that it carries."""

    uid: str
    index: int
    share: float

    def __str__(self) -> str:
        name = f"uid {self.uid}, {self.index}" if self.uid else f"sample {self.index}"
        return f"{name} ({self.share:.0%})"


@dataclass(frozen=True, slots=True)
class Attribution:
    """What one stage has to do with the divergence of its step."""

    split: str
    step: int
    stage: str
    name: str
    """The column that was looked at."""
    made_here: bool
    """Whether the stage itself is wrong; else it is right, and an input is not."""
    formula: str = ""
    """What it was computed again with; empty where it is the first that differs, and no formula is known."""
    inputs: tuple[str, ...] = ()
    """The inputs that explain what came out, as ``stage/column``."""
    samples: tuple[Carrier, ...] = ()
    """Those that carry most of the error; empty where it is spread over many."""

    def __str__(self) -> str:
        what = f"`{self.stage}/{self.name}`"
        carried = f"; most of the error is in {', '.join(map(str, self.samples))}" if self.samples else ""
        if not self.made_here:
            names = " and ".join(f"`{name}`" for name in self.inputs)
            return f"{what} only passes it on: {self.formula} gives it from {names}{carried}."
        if self.formula:
            return f"{what} is wrong in itself: from its inputs {self.formula} gives other values{carried}."
        return f"{what} is where it enters: nothing that came before it in the step differs{carried}."


def attribute(comparison: Comparison, steps: Sequence[Origin]) -> list[Attribution]:
    """What each stage has to do with the first step that diverges; those that cannot be told are left out."""
    first = comparison.first
    if first is None or first.stage in (METRICS, *STATES):
        return []
    mine = [e for e in comparison.entries if (e.split, e.step) == (first.split, first.step)]
    made = any(one.first is first and one.origin == MADE for one in steps)
    entered = made and bool(first.name) and first.difference is not None
    found: list[Attribution] = []
    looked: set[str] = set()
    for entry in mine:
        stage = entry.stage
        if stage in looked or stage in (METRICS, *STATES) or entry.verdict.clean or entry.difference is None:
            continue
        told = _by_formula(comparison, entry)
        if told is None and entry is first and entered:
            at = entry.split, entry.step, stage
            told = Attribution(*at, entry.name, True, samples=_carriers(comparison, entry))
        if told is not None:
            looked.add(stage)
            found.append(told)
    return found


def _by_formula(comparison: Comparison, entry: Entry) -> Attribution | None:
    """What a formula says of one stage; None where none is known, or where it does not fit."""
    baseline, candidate = comparison.runs
    at = entry.split, entry.step, entry.stage
    try:
        name = formula_for(baseline, *at).formula
        if name is None:
            return None
        ours, theirs = known_of(baseline, *at), known_of(candidate, *at, base=baseline)
        if not all(entry.name in side.target.columns for side in (ours, theirs)):
            return None  # a number of the whole batch: no formula gives it
        settings = _settings(baseline, name, entry, ours)
        if settings is None:
            return None
        given = [{**arguments_of(name, side), **settings} for side in (ours, theirs)]
        right = _agrees(name, given[1], theirs, entry)
        if right is None:
            return None
        carriers = _carriers(comparison, entry)
        if not right:
            return Attribution(*at, entry.name, True, name, samples=carriers)
        inputs = _explaining(name, entry, (ours, theirs), given[0], given[1])
        return Attribution(*at, entry.name, False, name, inputs, carriers) if inputs else None
    except RolltapeError:  # what cannot be read or computed is said by whoever asks for it
        return None


def _settings(run: Run, name: str, entry: Entry, known: Known) -> dict[str, Any] | None:
    """The settings under which a formula gives what the baseline recorded; None where there are none."""
    said = {word.rsplit(".", 1)[-1]: value for word, value in run.configuration.items()}
    choices = SETTINGS[name]
    given = arguments_of(name, known)
    tries = [
        (given[word],) if word in given else (said[word], *values) if word in said else values
        for word, values in choices.items()
    ]
    most = max(1, MOST_TRIED // max(sum(np.size(row) for row in known.target.columns[entry.name].rows()), 1))
    for count, values in enumerate(product(*tries)):
        settings = dict(zip(choices, values, strict=True))
        if count >= most:
            return None
        if _agrees(name, {**given, **settings}, known, entry):
            return settings
    return None


def _agrees(name: str, given: Mapping[str, Any], known: Known, entry: Entry) -> bool | None:
    """Whether a formula gives what was recorded; None where that is not what it gives."""
    compared = compared_with(entry, known.target, computed(name, given))
    return None if compared is None or compared.difference is None else compared.verdict.clean


def _explaining(
    name: str, entry: Entry, known: tuple[Known, Known], before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[str, ...]:
    """The input that leads from the baseline's result to the candidate's by itself; else all that differ."""
    ours, theirs = known
    pairs = pair(ours.target.ids, theirs.target.ids)
    if pairs.only_left or pairs.only_right:
        return ()
    moved = {word: _in_order(value, pairs.right) for word, value in after.items()}
    unlike = [word for word in before if word in moved and not _same(before[word], moved[word])]
    wanted, had = (list(_flat(result_rows(name, given, entry.name))) for given in (moved, before))
    if [row.shape for row in wanted] != [row.shape for row in had]:
        return ()
    shares: dict[str, float] = {}
    for word in unlike:
        alone = list(_flat(result_rows(name, {**before, word: moved[word]}, entry.name)))
        fits = [row.shape for row in alone] == [row.shape for row in wanted]
        shares[word] = _share(had, alone, wanted) if fits else 0.0
    best = [word for word, share in shares.items() if share >= EXPLAINS] or unlike
    best = sorted(best, key=lambda word: -shares[word])
    if any(shares[word] >= EXPLAINS for word in best):
        best = best[:1]
    names = ours.names_for(name)
    return tuple(ours.sources[names[word]] for word in best if word in names)


def _share(had: list[np.ndarray], alone: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """How much of the way from what the baseline had to what was wanted is gone; 1 for all of it."""
    whole = sum(float(np.square(a - b).sum()) for a, b in zip(had, wanted, strict=True))
    rest = sum(float(np.square(a - b).sum()) for a, b in zip(alone, wanted, strict=True))
    return 1 - rest / whole if whole else 0.0


def _flat(rows: Any) -> Iterator[np.ndarray]:
    return (np.asarray(row, np.float64).reshape(-1) for row in rows)


def _in_order(value: Any, order: np.ndarray) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and len(value) == len(order):
        return value[order]
    if isinstance(value, list) and len(value) == len(order):
        return [value[at] for at in order]
    return value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(np.array_equal(a, b))


def _carriers(comparison: Comparison, entry: Entry) -> tuple[Carrier, ...]:
    """The few samples that carry most of an error; none where it is spread."""
    found = by_sample(entry, *comparison.runs)
    if found is None or len(found.before) <= MOST_SAMPLES or len(found.samples) != len(found.before):
        return ()
    errors = np.array(
        [
            np.abs(np.nan_to_num(b - a, nan=0.0, posinf=0.0, neginf=0.0)).sum() if a.shape == b.shape else 0.0
            for a, b in zip(found.before, found.after, strict=True)
        ]
    )
    total = float(errors.sum())
    if not total:
        return ()
    top = np.argsort(-errors, kind="stable")[:MOST_SAMPLES]
    shares = [(int(at), float(errors[at]) / total) for at in top if errors[at] > 0.05 * total]
    if sum(share for _, share in shares) < 0.8:
        return ()
    return tuple(Carrier(*found.samples[at], share) for at, share in shares)
