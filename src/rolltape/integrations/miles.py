"""miles on tapes: a rollout function of its kind, a class, around the one that is configured.

    --rollout-function-path rolltape.integrations.miles.RolloutFn

With ``MILES_USE_LEGACY_ROLLOUT_V1=1`` miles calls functions as slime does: use slime's. See docs/slime.md.
"""

from __future__ import annotations

import importlib
from typing import Any

from rolltape.integrations.slime.rollout import Rollouts, load, path_of

DEFAULT = "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn"


class RolloutFn:
    """What another rollout function returns, or returned when it was recorded; a replay never makes one."""

    def __init__(self, input: Any) -> None:
        self._input = input
        self._live: dict[str, Any] = {}

    def __call__(self, input: Any) -> Any:
        """One rollout or evaluation, as ``input`` says."""
        args = self._input.args
        return Rollouts.of(args, "miles").run(
            args, input.rollout_id, input.evaluation, lambda: self._generate(input)
        )

    def _generate(self, input: Any) -> Any:
        compatibility = importlib.import_module("miles.rollout.inference_rollout.compatibility")
        path = path_of(self._input.args, input.evaluation, DEFAULT)
        if path not in self._live:  # training and evaluation share one, as in miles
            load(path)
            self._live[path] = compatibility.load_rollout_function(self._input, path)
        return compatibility.call_rollout_function(self._live[path], input)
