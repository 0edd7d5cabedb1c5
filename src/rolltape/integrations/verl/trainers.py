"""The places where verl's trainers do more than call what ``SkipManager`` decorates.

Each wrapper asks at the call for a tape, and without one does what verl does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from rolltape.integrations.verl.hooks import is_marked, lookup, marked
from rolltape.integrations.verl.prompts import restore_groups
from rolltape.policy import Action

Method = Callable[..., Any]

_V0 = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"


def wrap_trainers() -> None:
    """Wrap the trainers that this process has imported; once."""
    _wrap(_V0, "RayPPOTrainer", "_get_gen_batch", _with_answers)
    _wrap(_V1, "PPOTrainer", "_add_async_warmup_batches", _warm_up)
    _wrap(_V1, "PPOTrainer", "_submit_batch_to_rollout", _submit)
    _wrap(_V1, "PPOTrainer", "_reissue_inflight_prompts", _reissue)
    _wrap(_V1, "PPOTrainer", "_validate", _validate)
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


def _with_answers(live: Method, trainer: Any, batch: Any) -> Any:
    """V0: where another step is about to be played, the batch gets the answers and uids of that step."""
    generation = lookup("generation", "rollout")
    if generation is not None and not batch.meta_info.get("validate"):
        _restore_answers(generation.session, max(0, int(trainer.global_steps)), batch)
    return live(trainer, batch)


def _restore_answers(session: Any, step: int, batch: Any) -> None:
    decision = session.plan(step)
    if decision.action is Action.SUBSTITUTE and decision.source is not None:
        call = session.next_call(step)
        recorded = session.tape.recording(decision.source, call=call).value()
        before = session.inputs(decision.source, call=call)["prompts"]
        restore_groups(batch, before, recorded.non_tensor_batch.get("uid"))


def _warm_up(live: Method, trainer: Any, *args: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    return live(trainer, *args) if queue is None else queue.warm_up(trainer, live, *args)


def _submit(live: Method, trainer: Any, batch: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    if queue is not None:
        queue.count_refill(len(batch))
    return live(trainer, batch)


def _reissue(live: Method, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Prompts of a checkpoint that were being generated are not generated for a step that is replayed."""
    queue = lookup("queue", "rollout_tq")
    if queue is not None and queue.plays(int(trainer.global_steps)):
        queue.forget_inflight()
        return 0
    return live(trainer, *args, **kwargs)


def _validate(live: Method, trainer: Any) -> Any:
    queue = lookup("queue", "rollout_tq")
    return live(trainer) if queue is None else queue.validate(trainer, live)


def _sampleable(live: Method, buffer: Any, global_steps: int, partition_id: str) -> Any:
    """Where the step is replayed, as many as a step takes: no engine is lent to generation meanwhile."""
    queue = lookup("queue", "rollout_tq")
    if queue is not None and partition_id == "train" and queue.plays(int(global_steps)):
        return queue.prompts_per_step
    return live(buffer, global_steps, partition_id)
