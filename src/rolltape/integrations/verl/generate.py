"""``generate_sequences`` as a stage: DataProto in, DataProto out, sync or async.

Used for verl's V0 trainer (role ``rollout``), its fully asynchronous one (``async_rollout``) and every
other function decorated with ``SkipManager.annotate``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rolltape.cached import cached_property
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


class Part:
    """A call of verl's generating function, which can be made for some of its prompts too."""

    def __init__(self, live: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._live, self._args, self._kwargs = live, args, kwargs

    def generate(self, prompts: Any, places: list[int] | None) -> Any:
        """What it returns for the prompts in these places, or for all; to be awaited if it is async."""
        if places is None:
            return self._live(*self._args, **self._kwargs)
        part = prompts[places]
        args = [part if one is prompts else one for one in self._args]
        kwargs = {name: part if one is prompts else one for name, one in self._kwargs.items()}
        manager = next(iter(self._args), None)
        workers = getattr(manager, _WORKERS, None)
        if workers is None:  # a group of workers, each of which must get as many
            return self._padded(part, args, kwargs)
        few = max(count for count in range(1, len(workers) + 1) if len(places) % count == 0)
        return self._with_workers(manager, workers[:few], args, kwargs)

    def _with_workers(self, manager: Any, workers: list[Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """With as many workers of a manager as each get as many prompts; the others are not asked."""
        before = getattr(manager, _WORKERS)
        setattr(manager, _WORKERS, workers)
        try:
            found = self._live(*args, **kwargs)
        except BaseException:
            setattr(manager, _WORKERS, before)
            raise
        if not inspect.isawaitable(found):
            setattr(manager, _WORKERS, before)
            return found

        async def finish() -> Any:
            try:
                return await found
            finally:
                setattr(manager, _WORKERS, before)

        return finish()

    def _padded(self, part: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        owner = getattr(self._live, "__self__", next(iter(self._args), None))
        wide = int(getattr(owner, "world_size", 1) or 1)
        protocol = importlib.import_module("verl.protocol")
        filled, surplus = protocol.pad_dataproto_to_divisor(part, wide)
        args = [filled if one is part else one for one in args]
        kwargs = {name: filled if one is part else one for name, one in kwargs.items()}
        found = self._live(*args, **kwargs)
        if not inspect.isawaitable(found):
            return protocol.unpad_dataproto(found, pad_size=surplus)

        async def finish() -> Any:
            return protocol.unpad_dataproto(await found, pad_size=surplus)

        return finish()


_WORKERS = "agent_loop_workers"
"""Those of a manager, to which it deals out prompts in equal parts."""


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
        if self.session.by_prompt:
            job.part = Part(live, args, kwargs)
            output = job.result(job.position.run(self._stage, job.inputs, job.rows, job))
        else:
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

        create_task = asyncio.get_running_loop().create_task
        if self.session.by_prompt:
            job.part = Part(live, args, kwargs)
            task = job.position.run(create_task, self._stage_async(job.inputs, job.rows, job))
        else:
            stage = self.session.tape.stage("rollout", inputs=["prompts"])(rollout)
            task = job.position.run(create_task, stage(job.inputs))
        output = job.result(await task)
        if (self.role == "async_rollout" or self._trainer_step is not None) and not job.replayed:
            # Nothing says when a step ends, and the process may be killed after its last sample.
            await asyncio.to_thread(self.session.flush)
        if job.replayed and self.session.wishes.rewards is Rewards.RECOMPUTE:
            return await recompute(args[0], prompts, output)
        return output

    @cached_property
    def _stage(self) -> Callable[..., Any]:
        """The stage that is asked by prompts; one, so that it knows what its calls were given."""

        def rollout(prompts: Any, rows: list[int], job: _Job) -> Any:
            return job.keep(job.live_part(rows), rows)

        return self.session.by_prompts(rollout)

    @cached_property
    def _stage_async(self) -> Callable[..., Any]:
        async def rollout(prompts: Any, rows: list[int], job: _Job) -> Any:
            return job.keep(await job.live_part(rows), rows)

        return self.session.by_prompts(rollout)

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
        self.part: Part | None = None
        """Generates for some of the prompts, where they are asked for by their content."""
        self._ran: list[Any] = []

    @property
    def rows(self) -> list[int]:
        """The places of all prompts."""
        return list(range(len(self.prompts)))

    def live_part(self, rows: list[int]) -> Any:
        """What verl generates for the prompts in these places."""
        assert self.part is not None
        return self.part.generate(self.prompts, None if rows == self.rows else rows)

    @property
    def inputs(self) -> Any:
        """What is compared with the recording."""
        return rows.comparable(self._whole)

    @property
    def replayed(self) -> bool:
        """Whether the live function was not called."""
        return not self._ran

    def keep(self, output: Any, places: list[int] | None = None) -> Any:
        """Keep what the live function returned, where it is all of it; return what to record."""
        if places is None or places == self.rows:
            self._ran.append(output)
            return rows.with_uids(output, self._whole)
        return rows.with_uids(output, self._whole[places])

    def result(self, recorded: Any) -> Any:
        """What the trainer gets: the live object after a live call, else the recording."""
        if not self.replayed:
            return self._ran[0]
        if self.session.by_prompt:
            return rows.renamed(rows.as_returned(recorded), self.prompts)
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
