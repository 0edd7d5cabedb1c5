"""``tape.probe("logprobs", …)`` in a replay: measured as it comes, against what is on the replayed tape."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.errors import RolltapeError
from rolltape.trusting.live import Meter, rows_of
from rolltape.trusting.taking import Rows, find_engine

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape

log = logging.getLogger("rolltape")

_meters: weakref.WeakKeyDictionary[Tape, Meter] = weakref.WeakKeyDictionary()


def measure_probe(tape: Tape, step: int, split: str, value: Any, uid: Sequence[Any] | None) -> None:
    """Log the figures of a probe of log-probs, a row per sample, and warn where it leaves the noise."""
    meter = _meters.get(tape)
    if meter is None:
        meter = _meters[tape] = Meter(tape)
    if meter.baseline is None or getattr(value, "ndim", 2) != 2:
        return
    try:
        trainer = rows_of(value)
        at = find_engine(meter.baseline, split, step)
        told = None if at is None else Rows.of(meter.baseline, split, step, at)
    except (RolltapeError, ValueError, TypeError) as error:  # a meter never stops a training
        log.warning("step %d cannot be measured: %s", step, getattr(error, "what", error))
        return
    engine: list[np.ndarray] | None = None
    mask: list[np.ndarray] | None = None
    if told is not None and len(told.values) == len(trainer):
        if all(len(a) == len(b) for a, b in zip(told.values, trainer, strict=True)):
            engine, mask = told.values, told.on
        elif all(int(on.sum()) == len(b) for on, b in zip(told.on, trainer, strict=True)):
            engine = [row[on] for row, on in zip(told.values, told.on, strict=True)]
    groups = [str(one) for one in uid] if uid is not None and len(uid) == len(trainer) else None
    meter.measure(step, engine, trainer, mask=mask, groups=groups, split=split)
