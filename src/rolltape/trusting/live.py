"""The live meter: what a trainer's log-probs are worth, in the metrics of the step that computed them.

Sums over tokens and sequences only, no bootstrap: ``rolltape trust`` says the rest from the tape.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.batch.json_values import is_tensor
from rolltape.errors import RolltapeError
from rolltape.policy import Mode
from rolltape.reader import run as reader
from rolltape.reader.step_roles import ColumnOf
from rolltape.trusting.estimates import Moments
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.structure import broken_sequences
from rolltape.trusting.tails import sequence_rms, tails
from rolltape.trusting.taking import Rows, find_trainer
from rolltape.trusting.use_verdict import Moved, within_noise

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape

log = logging.getLogger("rolltape")

COST = "trust/seconds"
"""What the meter itself took, of the step's time."""
KEPT = (
    "k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3", "chi2", "mean_ratio", "beyond",
)  # fmt: skip


class Meter:
    """Measures the steps of one run as it goes, and warns at the first that leaves the noise.

    >>> import rolltape, tempfile
    >>> with rolltape.Tape(tempfile.mkdtemp() + "/run", mode="record") as tape, tape.step(0):
    ...     found = Meter(tape).measure(0, [[-1.0, -2.0]], [[-1.0, -2.1]])
    >>> round(found["trust/k1"], 3)
    0.05
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._left = False
        self._lost = False
        self._column: ColumnOf | None = None
        """Of the baseline's log-probs; the same at every step."""
        replays = tape.settings.mode in (Mode.REPLAY, Mode.AUTO) and tape.dir is not None
        self.baseline = reader.open(str(tape.dir)) if replays else None
        """The tape that is replayed; None while one is recorded."""

    def measure(
        self,
        step: int,
        engine: Sequence[Any] | None,
        trainer: Sequence[Any],
        *,
        mask: Sequence[Any] | None = None,
        groups: Sequence[object] | None = None,
        split: str = "train",
    ) -> dict[str, float]:
        """Log the figures of a step, a row per sequence on each side, and return them.

        Where nobody knows the engine's log-probs (None), a replay is measured against the baseline alone.
        """
        if self._tape.is_off or (engine is None and self.baseline is None):
            return {}
        began = time.perf_counter()
        try:
            on = None if mask is None else rows_of(mask)
            rows = rows_of(trainer)
            pairs = Pairs.of(rows if engine is None else rows_of(engine), rows, mask=on, groups=groups)
        except (ValueError, TypeError) as error:  # a meter never stops a training
            log.warning("step %d cannot be measured: %s", step, getattr(error, "what", error))
            return {}
        if not len(pairs.engine):  # nothing counts: there is nothing to say
            return {}
        lost = self._without_numbers(step, pairs)
        pairs = pairs if not lost else pairs.where(pairs.finite)
        found = {} if engine is None else figures(pairs) | lost
        found |= self._against_baseline(step, split, pairs, sampled=engine is not None)
        if found:
            found[COST] = time.perf_counter() - began
            self._tape.log(found, step=step, split=split)
        return found

    def _without_numbers(self, step: int, pairs: Pairs) -> dict[str, float]:
        """How many tokens have a log-prob that is none, where any has: the figures leave them out."""
        lost = int((~pairs.finite).sum())
        if lost and not self._lost:
            self._lost = True
            log.warning("step %d: %d of %d log-probs are nan or inf", step, lost, len(pairs.engine))
        return {"trust/not_numbers": float(lost)} if lost else {}

    def _against_baseline(self, step: int, split: str, pairs: Pairs, *, sampled: bool) -> dict[str, float]:
        """How far the policy has moved from the one that was recorded, and whether that is still noise."""
        before = None if self.baseline is None else self._recorded(step, split, pairs)
        if before is None:
            return {}
        drift = Pairs(before, pairs.trainer, pairs.lengths, pairs.groups, pairs.names)
        usual = level = None
        if sampled:
            floor = Pairs(pairs.engine, before, pairs.lengths, pairs.groups, pairs.names)
            usual = float(np.median(sequence_rms(floor)))
            quiet = floor.where(~broken_sequences(floor)[floor.sequence])
            level = float(np.mean(quiet.log_ratio**2) / 2) if len(quiet.engine) else 0.0
        moved = moved_by(drift, usual)
        if (reason := within_noise(moved, level)) and not self._left:
            self._left = True
            warn_left(step, reason)
        floors = {} if level is None else {"trust/floor_k2": level}
        return {"trust/drift_k2": moved.k2, "trust/drift_k3": moved.k3, **floors}

    def _recorded(self, step: int, split: str, pairs: Pairs) -> np.ndarray | None:
        """The log-probs of the baseline's trainer, token by token; None where they are not of these rows."""
        assert self.baseline is not None
        try:
            at = self._column = self._column or find_trainer(self.baseline, split, step)
            rows = None if at is None else Rows.of(self.baseline, split, step, at)
        except RolltapeError as error:
            log.debug("no log-probs to compare with at step %d: %s", step, error)
            return None
        if rows is None or [int(on.sum()) for on in rows.on] != pairs.lengths.tolist():
            return None
        flat = np.concatenate([np.empty(0), *(row[on] for row, on in zip(rows.values, rows.on, strict=True))])
        return flat if np.isfinite(flat).all() else None


def moved_by(pairs: Pairs, usual: float | None = None) -> Moved:
    """How far one side lies from the other; ``usual`` is how far the sequences of the floor do. Pure."""
    moments = Moments.of(pairs.log_ratio, np.zeros(len(pairs.engine), np.int64))
    k2, k3, abs_ratio = (moments.mean(name) for name in ("k2", "k3", "abs_ratio"))
    return Moved(k2, k3, abs_ratio, len(pairs.lengths), int(broken_sequences(pairs, usual).sum()))


def warn_left(step: int, reason: str) -> None:
    """Say that a replay has left the noise."""
    log.warning(
        "step %d leaves the noise: %s; from here on the replay is off-policy (rolltape trust)", step, reason
    )


def figures(pairs: Pairs) -> dict[str, float]:
    """What is logged of a step. Pure."""
    one = np.zeros(len(pairs.engine), np.int64)
    moments = Moments.of(pairs.log_ratio, one)
    some = pairs.lengths > 0
    sums = pairs.sums(pairs.log_ratio)[some]
    found = {f"trust/{name}": moments.mean(name) for name in KEPT}
    found["trust/ess_tokens"] = effective(pairs.log_ratio)
    found["trust/ess_sequences"] = effective(sums)
    found["trust/ess_prompts"] = effective(sums, pairs.groups[some])
    found["trust/largest_weight"] = tails(sums).largest_weight
    cut = tails(pairs.log_ratio).cut
    return found | {f"trust/cut_{cap:g}": float(count) for cap, count in cut.items()}


def effective(log_ratio: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The effective share of samples, of raw ratios; of groups, each with the mean of its samples' ratios.

    nan where there are none.
    """
    if not len(log_ratio):
        return float("nan")
    weights = np.exp(log_ratio - log_ratio.max())
    if groups is not None:
        _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
        weights = np.bincount(which.reshape(-1), weights) / counts
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def rows_of(rows: Sequence[Any]) -> list[np.ndarray]:
    """Rows as numpy; one copy from the device for a tensor of all."""
    if is_tensor(rows):
        rows = rows.detach().double().cpu().numpy()  # type: ignore[attr-defined]
    plain = (row.detach().double().cpu().numpy() if is_tensor(row) else row for row in rows)
    return [np.asarray(row, np.float64) for row in plain]
