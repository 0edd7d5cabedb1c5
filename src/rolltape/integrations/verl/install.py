"""Puts tapes under verl's SkipManager in this process, once the user has asked for them.

``SkipManager.init`` runs in the one process that drives a trainer. There each role that has a plan gets a
session; functions decorated with ``SkipManager.annotate`` and ``annotate_tq`` find it by the name of their
role.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
from typing import Any

from rolltape.integrations.verl.generate import Generation
from rolltape.integrations.verl.hooks import around_generation, around_queue, is_marked, marked
from rolltape.integrations.verl.options import plans
from rolltape.integrations.verl.queue import Queue
from rolltape.integrations.verl.session import Session, working_directory
from rolltape.policy import Action

log = logging.getLogger("rolltape")

_generations: dict[str, Generation] = {}
_queues: dict[str, Queue] = {}
_sessions: list[Session] = []


def start(config: Any) -> None:
    """Open the tapes that a configuration asks for; those of an earlier ``SkipManager.init`` are closed."""
    stop()
    log.setLevel(logging.INFO if log.level == logging.NOTSET else log.level)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
    found = plans(config, os.environ, working_directory())
    if not found:
        log.warning(
            "rolltape: asked for, but this run names no tape; "
            "set ROLLTAPE_DIR and ROLLTAPE_MODE, or skip.rollout.enable=True"
        )
    for plan in found:
        session = Session.start(plan)
        _sessions.append(session)
        for role in ("rollout", "async_rollout") if plan.role == "*" else (plan.role,):
            if role != "rollout_tq":
                _generations[role] = Generation(session, role)
        if plan.role in ("*", "rollout_tq"):
            _queues["rollout_tq"] = Queue(session, config)
    _wrap_what_was_decorated_before()
    _wrap_trainers()


def stop() -> None:
    """Close every tape; verl goes on as it is without us."""
    _generations.clear()
    _queues.clear()
    while _sessions:
        _sessions.pop().close()


def flush() -> None:
    """A step is over: what was recorded in it is on disk, or an error says why not."""
    for session in _sessions:
        session.flush()


def generation(role: str) -> Generation | None:
    """What runs the generations of a role; None if the role has no tape."""
    return _generations.get(role)


def queue(role: str) -> Queue | None:
    """The same for a role that goes through TransferQueue."""
    return _queues.get(role)


def restore_answers(trainer: Any, batch: Any) -> None:
    """Where another step is about to be played, give the batch the answers and uids of that step."""
    from rolltape.integrations.verl.prompts import restore_groups

    generation = _generations.get("rollout")
    if generation is None or batch.meta_info.get("validate"):
        return
    session, step = generation.session, max(0, int(trainer.global_steps))
    decision = session.plan(step)
    if decision.action is Action.SUBSTITUTE and decision.source is not None:
        call = session.next_call(step)
        recorded = session.tape.recording(decision.source, call=call).value()
        before = session.inputs(decision.source, call=call)["prompts"]
        restore_groups(batch, before, recorded.non_tensor_batch.get("uid"))


_DECORATED = (
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopManager", "generate_sequences", "rollout", None),
    ("verl.experimental.fully_async_policy.fully_async_rollouter", "FullyAsyncAgentLoopManager",
     "generate_sequences_single", "async_rollout", None),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "_add_batch_to_generate", "rollout_tq", "submit"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer", "sample", "rollout_tq", "sample"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBufferAsync", "sample", "rollout_tq", "sample"),
)  # fmt: skip
"""Where verl decorates. A module of another plugin may have imported these before ours was loaded."""


def _wrap_what_was_decorated_before() -> None:
    for module, owner, name, role, phase in _DECORATED:
        cls = getattr(sys.modules.get(module), owner, None)
        method = None if cls is None else cls.__dict__.get(name)
        if method is None or is_marked(method):
            continue
        raw = inspect.unwrap(method)
        if phase is not None:
            setattr(cls, name, around_queue(role, phase, raw, method))
        elif inspect.iscoroutinefunction(method):
            setattr(cls, name, around_generation(role, raw, method))
        else:  # verl lets it be called with and without await
            auto_await = importlib.import_module("verl.utils.ray_utils").auto_await
            setattr(cls, name, auto_await(around_generation(role, raw, method.__wrapped__)))


def _wrap_trainers() -> None:
    """The two places where a trainer does more than call what is decorated."""
    v0 = getattr(sys.modules.get("verl.trainer.ppo.ray_trainer"), "RayPPOTrainer", None)
    if v0 is not None and not is_marked(v0._get_gen_batch):
        get_gen_batch = v0._get_gen_batch

        @functools.wraps(get_gen_batch)
        def with_answers(self: Any, batch: Any) -> Any:
            restore_answers(self, batch)
            return get_gen_batch(self, batch)

        v0._get_gen_batch = marked(with_answers)
    v1 = getattr(sys.modules.get("verl.trainer.ppo.v1.trainer_base"), "PPOTrainer", None)
    if v1 is not None and not is_marked(v1._add_async_warmup_batches):
        warm_up = v1._add_async_warmup_batches

        @functools.wraps(warm_up)
        def unless_replayed(self: Any, *args: Any, **kwargs: Any) -> Any:
            queue = _queues.get("rollout_tq")
            if queue is None or not queue.plays(int(self.global_steps)):
                return warm_up(self, *args, **kwargs)
            return None

        v1._add_async_warmup_batches = marked(unless_replayed)
