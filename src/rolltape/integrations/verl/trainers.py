"""Wraps the methods of verl's trainers that ``SkipManager`` does not decorate.

Each wrapper looks for a tape when it is called, and without one does what verl does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from rolltape.integrations.verl.wrappers import is_marked, lookup, marked

Method = Callable[..., Any]

_V0 = "verl.trainer.ppo.ray_trainer"
_PACKAGE = "verl.trainer.ppo.v1"
_V1 = f"{_PACKAGE}.trainer_base"
_BUFFER = f"{_PACKAGE}.replay_buffer"


def wrap_trainers() -> None:
    """Wrap the trainers that this process has imported; once."""
    _wrap(_V0, "RayPPOTrainer", "_get_gen_batch", _tell_batch)
    _wrap(_V0, "RayPPOTrainer", "_compute_old_log_prob", _old_logprobs)
    _wrap(_V1, "PPOTrainer", "_add_async_warmup_batches", _warm_up)
    if not hasattr(getattr(sys.modules.get(_V1), "PPOTrainer", None), "_add_async_warmup_batches"):  # 0.9.0
        _wrap(f"{_PACKAGE}.trainer_colocate_async", "PPOTrainerColocateAsync", "on_train_begin", _warm_up)
        _wrap(f"{_PACKAGE}.trainer_separate_async", "PPOTrainerSeparateAsync", "on_train_begin", _warm_up)
    _wrap(_V1, "PPOTrainer", "_submit_batch_to_rollout", _submit)
    _wrap(_V1, "PPOTrainer", "_reissue_inflight_prompts", _reissue)
    _wrap(_V1, "PPOTrainer", "_validate", _validate)
    _wrap(_V1, "PPOTrainer", "_compute_old_log_prob", _queued_logprobs)
    _wrap(_BUFFER, "ReplayBufferAsync", "get_sampleable_count", _sampleable)


def _wrap(module: str, owner: str, name: str, around: Method) -> None:
    cls = getattr(sys.modules.get(module), owner, None)
    method = None if cls is None else cls.__dict__.get(name)
    if method is None or is_marked(method):
        return

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(method, self, *args, **kwargs)

    setattr(cls, name, marked(call))


def _tell_batch(live: Method, trainer: Any, batch: Any) -> Any:
    """The batch that prompts are taken from: whether they are for validation is known when they are used."""
    prompts = live(trainer, batch)
    if (generation := lookup("generation", "rollout")) is not None:
        generation.expect(batch)
    return prompts


def _old_logprobs(live: Method, trainer: Any, batch: Any) -> Any:
    """The trainer's log-probs before it updates: recorded where asked for, with the tokens they belong to."""
    found = live(trainer, batch)
    if (generation := lookup("generation", "rollout")) is not None:
        generation.keep_logprobs(batch, found[0] if isinstance(found, tuple) else found)
    return found


def _queued_logprobs(live: Method, trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """The same where batches are in TransferQueue."""
    found = live(trainer, batch, *args, **kwargs)
    if (queue := lookup("queue", "rollout_tq")) is not None:
        queue.logprobs.keep_queued(trainer, batch)
    return found


def _warm_up(live: Method, trainer: Any, *args: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    return live(trainer, *args) if queue is None else queue.warm_up(trainer, live, *args)


def _submit(live: Method, trainer: Any, batch: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    if queue is not None:
        queue.count_refill(len(batch))
    return live(trainer, batch)


def _reissue(live: Method, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """For a replayed step, unfinished prompts of a checkpoint are not generated again."""
    queue = lookup("queue", "rollout_tq")
    if queue is not None and queue.plays(int(trainer.global_steps)):
        queue.forget_inflight()
        return 0
    return live(trainer, *args, **kwargs)


def _validate(live: Method, trainer: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    return live(trainer) if queue is None else queue.validate(trainer, live)


def _sampleable(live: Method, buffer: Any, global_steps: int, partition_id: str) -> Any:
    """If the step is replayed, as many as a step takes: then no engine is lent to generation."""
    queue = lookup("queue", "rollout_tq")
    if queue is not None and partition_id == "train" and queue.plays(int(global_steps)):
        return queue.prompts_per_step
    return live(buffer, global_steps, partition_id)
