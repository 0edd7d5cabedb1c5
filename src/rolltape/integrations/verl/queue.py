"""Generation through TransferQueue (verl's V1 trainers) as a stage.

The trainer submits prompts, workers put trajectories into the queue, the replay buffer samples a batch of
them. That batch is recorded: keys, tags and fields of every trajectory, in the order the trainer
got them, with the metrics of the sampler. On replay nothing is submitted, the trajectories go back into the
queue under their own keys, and the buffer returns the recorded batch. Asynchronous trainers submit ahead:
a replay draws the same prompts from the data loader, so that it stays aligned.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolltape.errors import ConfigError, MismatchError, StepMissingError
from rolltape.integrations.verl.config import pick
from rolltape.integrations.verl.groups import cycled, given_to, regrouped, uid_of
from rolltape.integrations.verl.logprobs import TrainerLogprobs
from rolltape.integrations.verl.options import GROUPS, Groups, Rewards
from rolltape.integrations.verl.prompts import columns_of, plain_rows
from rolltape.integrations.verl.session import Session
from rolltape.policy import Action, Decision, Mode

_TENSORS = ("prompts", "responses", "input_ids", "position_ids")
_OF_OUTPUTS = ("extra_fields", "metrics", "multi_modal_inputs", "num_turns")
"""Columns that generation adds to those of a prompt."""


def score_again(trainer: Any, keys: Sequence[str], fields: Any) -> Any:
    """The fields with new ``rm_scores`` and ``reward_extra_info``."""
    handles = trainer.reward_loop_manager.reward_loop_worker_handles
    if not handles:
        raise ConfigError(
            "rewards should be recomputed, but this run has no reward workers",
            causes=["the reward model runs in the trainer, which scores replayed responses anyway"],
            hint="leave ROLLTAPE_VERL_REWARD unset",
        )
    rows, columns = conversations(keys), columns_of(fields)
    asked = [
        handles[at % len(handles)].compute_score.remote(_question(columns, found))
        for at, found in enumerate(rows)
    ]
    results = importlib.import_module("ray").get(asked)
    answers = {row: result for found, result in zip(rows, results, strict=True) for row in found}
    return with_scores(fields, [answers[row] for row in range(len(keys))])


def conversations(keys: Sequence[str]) -> list[list[int]]:
    """The rows of each conversation (``uid_session``), its outputs in order.

    >>> conversations(["a_0_1", "a_1_0", "a_0_0"])
    [[2, 0], [1]]
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        name, _, index = key.rpartition("_")
        found.setdefault(name, []).append((int(index), row))
    return [[row for _, row in sorted(outputs)] for outputs in found.values()]


def with_scores(fields: Any, results: Sequence[Mapping[str, Any]]) -> Any:
    """Put scores at the last token of each response, and add the reward's extra values."""
    import torch
    from tensordict import NonTensorStack

    scores = []
    for mask, result in zip(fields["response_mask"].unbind(), results, strict=True):
        score = torch.zeros_like(mask, dtype=torch.float32)
        score[-1] = result["reward_score"]
        scores.append(score)
    nested = fields["response_mask"].is_nested
    fields["rm_scores"] = (
        torch.nested.as_nested_tensor(scores, layout=torch.jagged) if nested else torch.stack(scores)
    )
    extras = [
        {**extra, "reward_extra_info": result.get("reward_extra_info", {})}
        for extra, result in zip(plain_rows(fields["extra_fields"]), results, strict=True)
    ]
    fields["extra_fields"] = NonTensorStack(*extras)
    return fields


def _question(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> Any:
    """The request to a reward worker for one conversation."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    of = {name: [column[row] for row in rows] for name, column in columns.items()}
    tensors = {name: of[name] for name in _TENSORS if name in of}
    tensors["attention_mask"] = [torch.ones_like(ids) for ids in tensors["input_ids"]]
    batch = {
        name: torch.nn.utils.rnn.pad_sequence(values, batch_first=True) for name, values in tensors.items()
    }
    stale = "reward_extra_info"
    extras = [{name: value for name, value in extra.items() if name != stale} for extra in of["extra_fields"]]
    asked = {
        name: _objects(values)
        for name, values in of.items()
        if name not in _OF_OUTPUTS and not isinstance(values[0], torch.Tensor)
    }
    asked |= {
        "tool_extra_fields": _objects(extras),
        "__num_turns__": np.array([int(turns) for turns in of["num_turns"]]),
        "prompt_len": np.array([len(row) for row in of["prompts"]]),
        "response_len": np.array([len(row) for row in of["responses"]]),
    }
    return DataProto(batch=TensorDict(batch, batch_size=len(rows)), non_tensor_batch=asked)


def _objects(values: list[Any]) -> Any:
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


log = logging.getLogger("rolltape")

_UNFINISHED = ("pending", "running")


class Queue:
    """Runs submitting and sampling through a tape."""

    def __init__(self, session: Session, config: Any) -> None:
        self.session = session
        mode = pick(config, "trainer.v1.trainer_mode", "sync")
        self.samples_per_step = int(pick(config, f"trainer.v1.{mode}.parameter_sync_step", 1))
        self.prompts_per_step = int(pick(config, "data.train_batch_size", 0))
        self._trainer: Any = None
        self._prompts: dict[str, Any] = {}
        self._refilled = 0
        self._renewals: dict[str, tuple[int, Session]] = {}
        self.logprobs = TrainerLogprobs(session)

    def plays(self, step: int, split: str = "train", samples: int | None = None) -> bool:
        """Whether all samples of the step come from the tape."""
        decision = self.session.plan(step, split)
        if not decision.plays or decision.source is None:
            return False
        return len(self._recorded(decision.source, split, samples)) == (samples or self.samples_per_step)

    def submit(self, trainer: Any) -> None:
        """Replaces ``_add_batch_to_generate``: draws prompts, and submits them unless replayed."""
        step = int(trainer.global_steps)
        batch = trainer._next_train_batch()
        self._trainer, self._prompts["train"] = trainer, batch
        if self._generates(step, "train", self.samples_per_step):
            trainer._submit_batch_to_rollout(batch)
        self._refilled = 0

    def count_refill(self, prompts: int) -> None:
        """Count prompts drawn for groups that failed, were filtered out or became stale."""
        self._refilled += prompts

    def warm_up(self, trainer: Any, live: Callable[..., Any], *args: Any) -> Any:
        """Replaces ``_add_async_warmup_batches``; a replay draws the prompts but does not generate.

        verl omits it if its own skip is enabled, so that the recording would be of a different run.
        """
        own, replayed = trainer.config.skip.rollout_tq, self.plays(int(trainer.global_steps))
        enabled, own.enable = own.enable, False
        if replayed:
            trainer._submit_batch_to_rollout = len
        try:
            return live(trainer, *args)
        finally:
            own.enable = enabled
            if replayed:
                del trainer._submit_batch_to_rollout

    def forget_inflight(self) -> None:
        """Clear unfinished prompts of a checkpoint: nothing will finish them, and a live step would wait."""
        import transfer_queue as tq

        items = (tq.kv_list("train") or {}).get("train", {})
        prompts = {
            key for key, tag in items.items() if tag.get("is_prompt") and tag.get("status") in _UNFINISHED
        }
        if keys := [key for key in items if uid_of(key) in prompts]:
            tq.kv_clear(keys=keys, partition_id="train")

    def validate(self, trainer: Any, live: Callable[..., Any]) -> Any:
        """Replaces ``_validate``: every batch is a call of the split ``val``, if asked for."""
        if not self.session.wishes.val:
            return live(trainer)
        step, samples = int(trainer.global_steps), len(trainer.val_dataloader)
        manager, self._trainer = trainer.agent_loop_manager, trainer
        generates = self._generates(step, "val", samples)
        trainer.agent_loop_manager = _Validation(self._prompts, manager if generates else None)
        try:
            return live(trainer)
        finally:
            trainer.agent_loop_manager = manager

    def sample(self, buffer: Any, live: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces ``ReplayBuffer.sample``: the batch and the metrics of the sampler."""
        names = ("global_steps", "partition_id", "batch_size")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        split, step = given.get("partition_id"), int(given["global_steps"])
        if split != "train" and not (split == "val" and self.session.wishes.val):
            return live(buffer, *args, **kwargs)
        session = self._session(step, split)
        decision, position = session.plan(step, split), session.enter(step, split)
        batch = self._prompts.get(split) if split == "val" or position.call == 0 else None
        ran: list[Any] = []

        def rollout(prompts: Any) -> dict[str, Any]:
            ran.append(live(buffer, *args, **kwargs))
            refilled, self._refilled = self._refilled, 0
            uids = list(batch["uid"]) if split == "val" and batch is not None else None
            return {**_take(*ran[0]), "asked": given["batch_size"], "refilled": refilled, "uids": uids}

        stage = session.tape.stage("rollout", inputs=["prompts"])(rollout)
        prompts = self._comparable(batch, decision, split, position.call)
        recorded = position.run(stage, prompts)
        if ran:
            return ran[0]
        if recorded["asked"] != given["batch_size"]:
            recorded = self._resized(recorded, given["batch_size"], decision, split)
        return self._played(recorded, decision, batch)

    def _resized(
        self, recorded: dict[str, Any], asked: int, decision: Decision, split: str
    ) -> dict[str, Any]:
        """A recorded sample, with as many groups as asked for."""
        have = recorded["asked"]
        self._check_size(have, asked, decision, split)
        self.session.count_resized(
            f"step {decision.step} asks for {asked} prompts, but step {decision.source} has {have}; "
            f"its groups are {'repeated' if have < asked else 'cut'}"
        )
        return regrouped(recorded, cycled(recorded["batch"].keys, asked, f"step {decision.step}"))

    def _played(self, recorded: dict[str, Any], decision: Decision, batch: Any) -> Any:
        """Put a recorded sample into the queue, as this run needs it."""
        if recorded.get("uids"):  # a validation: verl counts the answers to each of its own uids
            chosen = given_to(recorded["batch"].keys, recorded["uids"], list(batch["uid"]))
            recorded = regrouped(recorded, chosen)
        if self.session.wishes.rewards is Rewards.RECOMPUTE:
            recorded["fields"] = score_again(self._trainer, recorded["batch"].keys, recorded["fields"])
        if decision.action is Action.REPLAY and recorded.get("refilled") and self._trainer is not None:
            self._trainer._next_train_batch(recorded["refilled"])
        return _put(recorded, decision)

    def _comparable(self, batch: Any, decision: Decision, split: str, call: int) -> Any:
        """The prompts to compare: without their random names; the recorded ones if groups are cycled."""
        if batch is None or decision.action is not Action.REPLAY or decision.source is None:
            return None if batch is None else comparable(batch)
        try:
            kept = self.session.tape.recording(decision.source, split=split, call=call, inputs=True)
        except StepMissingError:  # imported, or recorded without: the tape says so
            return comparable(batch)
        if kept.samples == len(batch):
            return comparable(batch)
        self._check_size(kept.samples, len(batch), decision, split)
        return kept.value()["prompts"]

    def _check_size(self, recorded: int, asked: int, decision: Decision, split: str) -> None:
        """Refuse a recording of fewer or more prompts than asked for, unless groups are cycled."""
        if split == "train" and self.session.wishes.groups is Groups.CYCLE:
            return
        hint = "use the recorded values, or record again"
        raise MismatchError(
            f"the recorded batch has {recorded} prompts, but {asked} are asked for",
            where=f"{self.session.tape.dir}, {split}, step {decision.source}",
            causes=[f"data.{split}_batch_size or parameter_sync_step differs from the recorded run"],
            hint=f"{hint}, or repeat groups: {GROUPS}=cycle" if split == "train" else hint,
        )

    def _generates(self, step: int, split: str, samples: int) -> bool:
        """Whether the prompts of a step are submitted; not if sampling will refuse the step."""
        if self.plays(step, split, samples) or self.session.plan(step, split).action is Action.ERROR:
            return False
        self._refuse_or_renew(step, split, samples)
        return True

    def _session(self, step: int, split: str) -> Session:
        renewed = self._renewals.get(split)
        return renewed[1] if renewed is not None and renewed[0] == step else self.session

    def _recorded(self, step: int, split: str, samples: int | None) -> list[int]:
        """Which samples of a step are on the tape."""
        return [call for call in range(samples or self.samples_per_step) if self._has(step, split, call)]

    def _has(self, step: int, split: str, call: int) -> bool:
        try:
            self.session.tape.recording(step, split=split, call=call)
        except StepMissingError:
            return False
        return True

    def _refuse_or_renew(self, step: int, split: str, samples: int) -> None:
        """A step with only some samples recorded is never completed with those of another run."""
        self._renewals.pop(split, None)
        self.session.rewritten(split)
        decision = self.session.plan(step, split)
        if not decision.plays or decision.source is None:
            return
        have = self._recorded(decision.source, split, samples)
        what = f"step {decision.source} has only {len(have)} of its {samples} samples"
        settings = self.session.tape.settings
        if settings.mode is Mode.REPLAY or decision.source != step:
            raise StepMissingError(
                what,
                where=f"{self.session.tape.dir}, split {split}",
                causes=["the run was interrupted while it recorded this step"],
                hint="record the step again with mode auto or mode rewrite",
            )
        log.warning("%s: the recording was interrupted, so the whole step is recorded again", what)
        self._renewals[split] = step, self.session.rewriting(split)


class _Validation:
    """Replaces the manager of agent loops during validation; without a manager, nothing is generated."""

    def __init__(self, prompts: dict[str, Any], manager: Any) -> None:
        self._prompts = prompts
        self._manager = manager

    def generate_sequences(self, batch: Any) -> Any:
        """Keep the prompts, and generate or clear them."""
        import transfer_queue as tq

        self._prompts["val"] = batch
        if self._manager is not None:
            return self._manager.generate_sequences(batch)
        return tq.kv_clear(keys=list(batch["uid"]), partition_id="val")  # registered by the trainer


def comparable(batch: Any) -> Any:
    """The prompts without the random names verl gives them."""
    return batch.exclude("uid", "global_steps")


def _take(batch: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    import transfer_queue as tq

    fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
    return {"batch": batch, "fields": fields, "metrics": dict(metrics)}


def _put(recorded: dict[str, Any], decision: Decision) -> tuple[Any, dict[str, Any]]:
    import transfer_queue as tq

    batch = recorded["batch"]
    if decision.action is Action.SUBSTITUTE:  # played at another step: the samples count as fresh
        fresh = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), decision.step)
        batch.tags = [
            {**tag, **{name: now for name, now in fresh.items() if name in tag}} for tag in batch.tags
        ]
    tq.kv_batch_put(
        keys=list(batch.keys), partition_id=batch.partition_id, fields=recorded["fields"], tags=batch.tags
    )
    return batch, recorded["metrics"]
