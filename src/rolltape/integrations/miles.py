"""miles on tapes: a rollout function class, as miles expects it, around the configured one.

    --rollout-function-path rolltape.integrations.miles.RolloutFn

With ``MILES_USE_LEGACY_ROLLOUT_V1=1`` miles calls functions as slime does: use slime's. See docs/slime.md.
"""

from __future__ import annotations

import importlib
from typing import Any

from rolltape.integrations.slime.rollout_function import Rollouts, load, path_of
from rolltape.releases import check_needs

DEFAULT = "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn"


class RolloutFn:
    """Runs another rollout function and records it, or replays it; a replay never creates the other one."""

    def __init__(self, input: Any) -> None:
        self._input = input
        self._live: dict[str, Any] = {}

    def __call__(self, input: Any) -> Any:
        """One rollout or evaluation, depending on ``input``."""
        args = self._input.args
        return Rollouts.of(args, "miles").run(
            args, input.rollout_id, input.evaluation, lambda: self._generate(input)
        )

    def _generate(self, input: Any) -> Any:
        compatibility = importlib.import_module("miles.rollout.inference_rollout.compatibility")
        check_needs("miles", compatibility, ("load_rollout_function", "call_rollout_function"))
        path = path_of(self._input.args, input.evaluation, DEFAULT)
        if path not in self._live:  # training and evaluation share one, as in miles
            load(path)
            self._live[path] = compatibility.load_rollout_function(self._input, path)
        return compatibility.call_rollout_function(self._live[path], input)
