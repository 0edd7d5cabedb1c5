"""Makes verl in this process use tapes, if the user asked for them.

``SkipManager.init``, or ``RayPPOTrainer.init_workers`` where there is none, runs in the one process that
drives a trainer. There, each role with a plan gets a session; functions decorated with
``SkipManager.annotate`` and ``annotate_tq`` find it by the name of the role.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from rolltape.integrations import log_lines
from rolltape.integrations.verl.generate import Generation
from rolltape.integrations.verl.options import plans
from rolltape.integrations.verl.queue import Queue
from rolltape.integrations.verl.queue_by_prompt import QueueByPrompt
from rolltape.integrations.verl.session import Session, working_directory
from rolltape.integrations.verl.trainers import wrap_trainers
from rolltape.integrations.verl.wrappers import (
    around_generation,
    around_queue,
    is_marked,
    replace_generation,
)

log = logging.getLogger("rolltape")

_generations: dict[str, Generation] = {}
_queues: dict[str, Queue] = {}
_sessions: list[Session] = []


def start(config: Any, trainer_step: Callable[[], int] | None = None) -> None:
    """Open the tapes that a configuration asks for; those of an earlier start are closed.

    ``trainer_step`` is given where there is no SkipManager.
    """
    stop()
    log_lines.show()
    found = plans(config, os.environ, working_directory())
    if not found:
        log.warning(
            "rolltape: enabled, but no tape is set; "
            "set ROLLTAPE_DIR and ROLLTAPE_MODE, or enable skip in the configuration"
        )
    for plan in found:
        session = Session.start(plan)
        _sessions.append(session)
        for role in ("rollout", "async_rollout") if plan.role == "*" else (plan.role,):
            if role != "rollout_tq":
                _generations[role] = Generation(session, role, trainer_step)
        if plan.role in ("*", "rollout_tq"):
            kind = QueueByPrompt if session.by_prompt else Queue
            _queues["rollout_tq"] = kind(session, config)
    if trainer_step is None:
        _wrap_what_was_decorated_before()
    wrap_trainers()


def wrap_source(workers: Any) -> None:
    """Wrap what a trainer without SkipManager generates with, if its role has a tape."""
    if (found := generation("rollout")) is not None:
        replace_generation(workers, found.run, found.run_async)


def stop() -> None:
    """Close every tape; verl continues without Rolltape."""
    _generations.clear()
    _queues.clear()
    while _sessions:
        _sessions.pop().close()


def flush() -> None:
    """A step has ended: its recordings are on disk, or an error says why not."""
    for session in _sessions:
        session.flush()


def generation(role: str) -> Generation | None:
    """What runs the generations of a role; None if the role has no tape."""
    return _generations.get(role)


def queue(role: str) -> Queue | None:
    """The same for a role that uses TransferQueue."""
    return _queues.get(role)


_DECORATED = (
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopManager", "generate_sequences", "rollout", None),
    ("verl.experimental.fully_async_policy.fully_async_rollouter", "FullyAsyncAgentLoopManager",
     "generate_sequences_single", "async_rollout", None),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "_add_batch_to_generate", "rollout_tq", "submit"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer", "sample", "rollout_tq", "sample"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBufferAsync", "sample", "rollout_tq", "sample"),
)  # fmt: skip
"""Where verl decorates. Another plugin may have imported these modules before ours was loaded."""


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
        else:  # verl allows calls with and without await
            auto_await = importlib.import_module("verl.utils.ray_utils").auto_await
            setattr(cls, name, auto_await(around_generation(role, raw, method.__wrapped__)))
