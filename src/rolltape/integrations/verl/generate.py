"""``generate_sequences`` as a stage: DataProto in, DataProto out, sync or async.

Used for verl's V0 trainer (role ``rollout``), its fully asynchronous one (``async_rollout``) and every
other function decorated with ``SkipManager.annotate``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.verl import prompts as rows
from rolltape.integrations.verl.logprobs import FIELDS, SAMPLED, TrainerLogprobs
from rolltape.integrations.verl.options import Rewards
from rolltape.integrations.verl.rewards import recompute
from rolltape.integrations.verl.session import Session
from rolltape.policy import Action

log = logging.getLogger("rolltape")


def find_prompts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ``DataProto`` a decorated function or method was called with; None if there is none."""
    candidates = [kwargs.get("prompts"), kwargs.get("batch"), *args[:2]]
    return next((found for found in candidates if hasattr(found, "non_tensor_batch")), None)


def is_validation(prompts: Any) -> bool:
    """Whether this batch is for validation."""
    return bool((prompts.meta_info or {}).get("validate", False))


def feed_index(prompts: Any) -> int:
    """The step of one prompt in the fully asynchronous trainer: its position in the order of prompts.

    verl writes it into the uid: ``uid_sample_<epoch>_<index>``.
    """
    uids = prompts.non_tensor_batch.get("uid", ())
    name = str(uids[0]).removeprefix("uid_") if len(uids) else ""
    kind, _, rest = name.partition("_")
    _, _, index = rest.partition("_")
    if kind != "sample" or not index.isdecimal():
        raise ConfigError(
            f"cannot read the step from the name of the prompt, {name!r}",
            causes=["this version of verl names samples differently"],
            hint="report it with the output of: rolltape doctor",
        )
    return int(index)


class Generation:
    """Runs one role's generation through a tape."""

    def __init__(self, session: Session, role: str, trainer_step: Callable[[], int] | None = None) -> None:
        self.session = session
        self.role = role
        self._trainer_step = trainer_step
        """The step of a trainer that has no SkipManager to tell it, or the end of a step."""
        self._batch: Any = None
        self._logprobs = TrainerLogprobs(session)

    def expect(self, batch: Any) -> None:
        """Say which batch of the trainer the next prompts are taken from."""
        self._batch = batch

    def keep_logprobs(self, batch: Any, scored: Any) -> None:
        """Record and measure the trainer's log-probs of the step that was generated last."""
        columns = {name: batch.batch[name] for name in (*FIELDS, SAMPLED) if name in batch.batch}
        columns["old_log_probs"] = scored.batch["old_log_probs"]
        self._logprobs.keep(columns, batch.non_tensor_batch["uid"])

    def run(self, live: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a generating function, or return what was recorded."""
        prompts, batch = find_prompts(args, kwargs), self._expected()
        if not self._acts_on(prompts):
            return live(*args, **kwargs)
        job = _Job(self.session, self._step(prompts), prompts, batch)

        def rollout(prompts: Any) -> Any:
            return job.keep(live(*args, **kwargs))

        if self.session.wishes.rewards is Rewards.RECOMPUTE:
            raise ConfigError(
                "rewards can be recomputed only if generation is asynchronous, as in verl's trainers",
                hint="leave ROLLTAPE_VERL_REWARD unset",
            )
        stage = self.session.tape.stage("rollout", inputs=["prompts"])(rollout)
        output = job.result(job.position.run(stage, job.inputs))
        if self._trainer_step is not None and not job.replayed:
            self.session.flush()
        return output

    async def run_async(
        self, live: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The same for a coroutine function."""
        prompts, batch = find_prompts(args, kwargs), self._expected()
        if not self._acts_on(prompts):
            return await live(*args, **kwargs)
        job = _Job(self.session, self._step(prompts), prompts, batch)

        async def rollout(prompts: Any) -> Any:
            return job.keep(await live(*args, **kwargs))

        stage = self.session.tape.stage("rollout", inputs=["prompts"])(rollout)
        create_task = asyncio.get_running_loop().create_task
        task = job.position.run(create_task, stage(job.inputs))
        output = job.result(await task)
        if (self.role == "async_rollout" or self._trainer_step is not None) and not job.replayed:
            # Nothing says when a step ends, and the process may be killed after its last sample.
            await asyncio.to_thread(self.session.flush)
        if job.replayed and self.session.wishes.rewards is Rewards.RECOMPUTE:
            return await recompute(args[0], prompts, output)
        return output

    def _expected(self) -> Any:
        batch, self._batch = self._batch, None
        return batch

    def _acts_on(self, prompts: Any) -> bool:
        """Whether the tape acts on this batch; validation is skipped unless asked for."""
        return prompts is not None and (self.session.wishes.val or not is_validation(prompts))

    def _step(self, prompts: Any) -> int:
        """The step that verl counts for this role."""
        if self.role == "async_rollout":
            return feed_index(prompts)
        if self._trainer_step is not None:
            return self._trainer_step()
        manager = importlib.import_module("verl.utils.skip.skip_manager").SkipManager
        known = (prompts.meta_info or {}).get("global_steps") if is_validation(prompts) else None
        return max(0, int(manager.step if known is None else known))


class _Job:
    """One generation: its prompts, and its output if it ran."""

    def __init__(self, session: Session, step: int, prompts: Any, batch: Any) -> None:
        self.session = session
        self.prompts = prompts
        self.split = "val" if is_validation(prompts) else "train"
        self.batch = batch if self.split == "train" else None
        self._whole = rows.whole(prompts, self.batch)
        self.decision = session.plan(step, self.split)
        self.position = session.enter(step, self.split)
        self.call = self.position.call
        self._ran: list[Any] = []

    @property
    def inputs(self) -> Any:
        """What is compared with the recording."""
        return rows.comparable(self._whole)

    @property
    def replayed(self) -> bool:
        """Whether the live function was not called."""
        return not self._ran

    def keep(self, output: Any) -> Any:
        """Keep what the live function returned; return what to record."""
        self._ran.append(output)
        return rows.with_uids(output, self._whole)

    def result(self, recorded: Any) -> Any:
        """What the trainer gets: the live object after a live call, else the recording."""
        if not self.replayed:
            return self._ran[0]
        if self.decision.action is Action.SUBSTITUTE and self.decision.source is not None:
            self._restore(recorded, self.decision.source)
        return rows.as_returned(recorded)

    def _restore(self, recorded: Any, source: int) -> None:
        """Give the prompts, and the trainer's batch they came from, those of the step that is played."""
        before = self.session.prompts(source, self.split, self.call)
        if before is None:
            return
        uids = recorded.non_tensor_batch.get("uid")
        rows.restore(self.prompts, before, uids)
        if self.batch is not None:
            rows.restore_groups(self.batch, before, uids)
        elif self.call == 0 and not _is_scored(recorded, before):
            log.warning(
                "step %d plays step %d, but its trainer keeps the answers to itself: rewards are computed "
                "from responses of step %d and answers of step %d",
                self.decision.step, source, source, self.decision.step,
            )  # fmt: skip


def _is_scored(recorded: Any, prompts: Any) -> bool:
    """Whether nobody else has to score the responses, or the answers came with the prompts."""
    return "rm_scores" in recorded.batch or "reward_model" in prompts.non_tensor_batch
