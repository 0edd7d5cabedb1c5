"""Generation through TransferQueue (verl's V1 trainers) as a stage.

The trainer submits prompts, workers put trajectories into the queue, the replay buffer samples a batch of
them. What is recorded is that batch: keys, tags and fields of every trajectory, in the order the trainer
got them, with the metrics of the sampler. On replay nothing is submitted, the trajectories go back into the
queue under their own keys, and the buffer returns the recorded batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError, MismatchError, StepMissingError
from rolltape.integrations.verl.config import pick
from rolltape.integrations.verl.options import Rewards
from rolltape.integrations.verl.session import Session
from rolltape.policy import Action, Decision, Mode

log = logging.getLogger("rolltape")


class Queue:
    """Runs submitting and sampling through a tape."""

    def __init__(self, session: Session, config: Any) -> None:
        self.session = session
        if session.wishes.rewards is Rewards.RECOMPUTE and pick(config, "trainer.use_v1", False):
            raise ConfigError(
                "verl's V1 trainer computes rewards where it generates, so not on replay",
                causes=["ROLLTAPE_VERL_REWARD or rolltape.verl.reward is recompute"],
                hint="set trainer.use_v1=False for this replay, or record again with the new reward",
            )
        mode = pick(config, "trainer.v1.trainer_mode", "sync")
        self.samples_per_step = int(pick(config, f"trainer.v1.{mode}.parameter_sync_step", 1))
        self._prompts: Any = None
        self._renewal: tuple[int, Session] | None = None

    def plays(self, step: int) -> bool:
        """Whether all samples of the step come from the tape."""
        decision = self.session.plan(step)
        return decision.plays and decision.source is not None and self._complete(decision.source)

    def submit(self, trainer: Any) -> None:
        """In place of ``_add_batch_to_generate``: draws prompts, and has them generated unless replayed."""
        step = int(trainer.global_steps)
        batch = trainer._next_train_batch()
        self._prompts = comparable(batch)
        if self.plays(step):
            return
        self._refuse_or_renew(step)
        trainer._submit_batch_to_rollout(batch)

    def sample(self, buffer: Any, live: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of ``ReplayBuffer.sample``: the batch and the metrics of the sampler."""
        names = ("global_steps", "partition_id", "batch_size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("partition_id") != "train":
            return live(buffer, *args, **kwargs)
        step = int(given["global_steps"])
        session = self._session(step)
        decision, position = session.plan(step), session.enter(step)
        ran: list[Any] = []

        def rollout(prompts: Any) -> dict[str, Any]:
            ran.append(live(buffer, *args, **kwargs))
            return {**_take(*ran[0]), "asked": given["batch_size"]}

        stage = session.tape.stage("rollout", inputs=["prompts"])(rollout)
        prompts = self._prompts if position.call == 0 else None
        recorded = position.run(stage, prompts)
        if ran:
            return ran[0]
        _check_size(recorded["asked"], given["batch_size"], f"{session.tape.dir}, step {decision.source}")
        return _put(recorded, decision)

    def _session(self, step: int) -> Session:
        if self._renewal is not None and self._renewal[0] == step:
            return self._renewal[1]
        return self.session

    def _complete(self, step: int) -> bool:
        return all(self._has(step, call) for call in range(self.samples_per_step))

    def _has(self, step: int, call: int) -> bool:
        try:
            self.session.tape.recording(step, call=call)
        except StepMissingError:
            return False
        return True

    def _refuse_or_renew(self, step: int) -> None:
        """A step of which only some samples were recorded is never completed with those of another run."""
        if self._renewal is not None:
            self._renewal[1].close()
            self._renewal = None
        decision = self.session.plan(step)
        if not decision.plays or decision.source is None:
            return
        have = [call for call in range(self.samples_per_step) if self._has(decision.source, call)]
        what = f"step {decision.source} has {len(have)} of its {self.samples_per_step} samples"
        settings = self.session.tape.settings
        if settings.mode is Mode.REPLAY or decision.source != step:
            raise StepMissingError(
                what,
                where=self.session.tape.dir,
                causes=["the run was interrupted while it recorded this step"],
                hint="record the step again: mode auto renews it, mode rewrite replaces it",
            )
        log.warning("%s: the recording was interrupted, and the whole step is recorded again", what)
        renewing = replace(settings, mode=Mode.REWRITE, on_miss=None)
        self._renewal = step, Session(renewing, self.session.wishes)


def comparable(batch: Any) -> Any:
    """The prompts without the random names verl gives them."""
    return batch.exclude("uid", "global_steps")


def _take(batch: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    import transfer_queue as tq

    fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
    return {"batch": batch, "fields": fields, "metrics": dict(metrics)}


def _put(recorded: dict[str, Any], decision: Decision) -> tuple[Any, dict[str, Any]]:
    import transfer_queue as tq

    batch = recorded["batch"]
    if decision.action is Action.SUBSTITUTE:  # played at another step, where these samples are fresh
        fresh = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), decision.step)
        batch.tags = [
            {**tag, **{name: now for name, now in fresh.items() if name in tag}} for tag in batch.tags
        ]
    tq.kv_batch_put(
        keys=list(batch.keys), partition_id=batch.partition_id, fields=recorded["fields"], tags=batch.tags
    )
    return batch, recorded["metrics"]


def _check_size(recorded: int, asked: int, where: str) -> None:
    """Refuse a recording of fewer or more prompts than asked for; groups are never cycled to fill up."""
    if recorded != asked:
        raise MismatchError(
            f"the recorded batch is one of {recorded} prompts, and {asked} are asked for",
            where=where,
            causes=["data.train_batch_size or parameter_sync_step differs from the recorded run"],
            hint="set them as they were, or record again",
        )
