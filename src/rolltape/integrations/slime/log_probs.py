"""slime's log-probs, measured as they come: how far the trainer's lie from those of whoever sampled.

slime computes them in the processes that train, which hold no tape. What is found is put beside the data of
the rollout, and slime reports it with its own metrics, over all ranks: ``rollout/trust/k3``, …
"""

from __future__ import annotations

import logging
import os
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.integrations.slime.rollout_function import load
from rolltape.policy import Mode
from rolltape.releases import unsupported
from rolltape.settings import resolve
from rolltape.trusting.live import figures, moved_by, rows_of, warn_left
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.use_verdict import within_noise

log = logging.getLogger("rolltape")

FUNCTION = "ROLLTAPE_SLIME_POSTPROCESS_FUNCTION"
_said: set[str] = set()
"""What this process was told once."""


def measure(args: Any, rollout_id: int | None = None, rollout_data: dict[str, Any] | None = None) -> None:
    """Put the figures of a rollout into its data; in a replay, warn at the first that leaves the noise.

    Then call the function that ``ROLLTAPE_SLIME_POSTPROCESS_FUNCTION`` names, if it names one.
    """
    if rollout_data is None or rollout_id is None:
        raise unsupported("slime", "gives no data to --rollout-data-postprocess-path")
    trainer, engine = rollout_data.get("log_probs"), rollout_data.get("rollout_log_probs")
    if trainer and engine:  # only the last stage of a pipeline has them, where slime computes them at all
        try:
            _measure(args, rollout_id, rollout_data, trainer, engine)
        except (RolltapeError, ValueError, TypeError) as error:  # a meter never stops a training
            _once("rolltape: rollout %d cannot be measured: %s", rollout_id, getattr(error, "what", error))
    if path := getattr(args, "rolltape_postprocess_function", None) or os.environ.get(FUNCTION):
        load(path)(args, rollout_id, rollout_data)


def _measure(args: Any, rollout_id: int, data: dict[str, Any], trainer: Any, engine: Any) -> None:
    indices, n = data.get("sample_indices"), getattr(args, "n_samples_per_prompt", None)
    groups = [int(one) // n for one in indices] if indices is not None and n else None
    pairs = Pairs.of(rows_of(engine), rows_of(trainer), mask=rows_of(data["loss_masks"]), groups=groups)
    lost = int((~pairs.finite).sum())
    pairs = pairs.where(pairs.finite) if lost else pairs
    found = figures(pairs) | {"trust/not_numbers": float(lost)}
    # A value for each sample: slime takes their mean, and every rank must have the same names.
    data.update({name: [value] * len(trainer) for name, value in found.items()})
    replays = resolve({}, os.environ).mode in (Mode.REPLAY, Mode.AUTO)
    if not replays or "left" in _said or not len(pairs.engine):
        return
    if reason := within_noise(moved_by(pairs), None):
        _said.add("left")
        warn_left(rollout_id, reason)


def _once(text: str, *more: object) -> None:
    if text not in _said:
        log.warning(text, *more)
    _said.add(text)
