"""What Rolltape needs of verl's internals, checked before anything is changed.

A release that lacks some of it is refused where a run asks for a tape; any other run of it is left alone.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from rolltape.errors import UnsupportedReleaseError
from rolltape.releases import check_needs

log = logging.getLogger("rolltape")

MANAGER = (
    "SkipManager.init(config)", "SkipManager.set_step(step)",
    "SkipManager.annotate(role)", "SkipManager.annotate_tq(role, phase)", "SkipManager.step",
)  # fmt: skip
_V1 = "verl.trainer.ppo.v1"
TRAINERS = {
    "verl.trainer.ppo.ray_trainer": ("RayPPOTrainer._get_gen_batch(batch)",),
    f"{_V1}.trainer_base": (
        "PPOTrainer._add_batch_to_generate()", "PPOTrainer._next_train_batch(num_prompts)",
        "PPOTrainer._submit_batch_to_rollout(batch)", "PPOTrainer._reissue_inflight_prompts()",
        "PPOTrainer._validate()",
    ),
    f"{_V1}.replay_buffer": (
        "ReplayBuffer.sample(global_steps, partition_id, batch_size)",
        "ReplayBufferAsync.sample(global_steps, partition_id, batch_size)",
    ),
}  # fmt: skip
"""Of the trainers of releases with SkipManager, by module."""
TRAINER = (
    "RayPPOTrainer.init_workers()", "RayPPOTrainer.fit()", "RayPPOTrainer._get_gen_batch(batch)",
    "RolloutSkip",
)  # fmt: skip
"""Of releases without SkipManager."""
SKIP = ("RolloutSkip(config, rollout_wg)", "RolloutSkip.wrap_generate_sequences()")


def check_trainers() -> None:
    """Refuse a release whose trainers, as far as this process has imported them, lack what is wrapped."""
    for name, needs in TRAINERS.items():
        if name in sys.modules:
            check_needs("verl", sys.modules[name], needs)


def asks(asked_for: Callable[[Any], bool], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a run asks for a tape: the environment, or its configuration, which is among the arguments."""
    given = [value for value in (*args, *kwargs.values()) if hasattr(value, "get")]
    return any(asked_for(value) for value in (None, *given))


def refused(module: ModuleType, needs: Sequence[str], start: str, asked_for: Callable[[Any], bool]) -> bool:
    """Whether the module lacks something; then ``start``, which takes the configuration, refuses a tape.

    Where the environment asks for a tape it is an error at once.
    """
    from rolltape.integrations.verl.plugin import asked_by_environment

    try:
        check_needs("verl", module, needs)
    except UnsupportedReleaseError as error:
        owner, _, name = start.partition(".")
        cls = getattr(module, owner, None)
        if asked_by_environment(os.environ):
            raise
        if cls is None or not hasattr(cls, name):
            log.warning("rolltape: %s", error)
        else:
            _refuse(cls, name, error, asked_for)
        return True
    return False


def _refuse(cls: Any, name: str, error: UnsupportedReleaseError, asked_for: Callable[[Any], bool]) -> None:
    method = getattr(cls, name)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if asks(asked_for, args, kwargs):
            raise error
        return method(*args, **kwargs)

    setattr(cls, name, call if name == "__init__" else staticmethod(call))
