"""Puts one trainer on a tape: generation and rewards become stages, and its metrics are recorded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.position import Positions
from rolltape.policy import Mode
from rolltape.releases import has, is_too_old, unsupported
from rolltape.settings import resolve
from rolltape.tape import Tape
from rolltape.trusting import Meter

log = logging.getLogger("rolltape")

Live = Callable[[], Any]

NEEDS = (
    "_generate_single_turn(prompt_ids, ...)", "_calculate_rewards(...)", "callback_handler.callbacks",
    "state.global_step", "processing_class.batch_decode", "args",
)  # fmt: skip
"""What is replaced or asked of a trainer; TRL before 0.29 passed prompts to this method, not tokens."""
GENERATES = "_generate_single_turn"
SCORES = "_get_per_token_logps_and_entropies"
"""What computes the trainer's log-probs, for the loss and for others."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")


class Stages:
    """What replaces the methods of one trainer."""

    def __init__(self, trainer: Any, tape: Tape) -> None:
        self._trainer = trainer
        self._tape = tape
        self._positions = Positions(tape)
        self._gives_pair = not is_a(trainer, "RLOOTrainer")
        """RLOO's generation returns tokens; GRPO's returns a pair of tokens and log-probs."""

    def put_in(self, logprobs: bool = False) -> None:
        """Replace the methods of the trainer, and record its metrics."""
        trainer = self._trainer
        if logprobs:
            setattr(trainer, SCORES, self._around_scores(getattr(trainer, SCORES)))
        if getattr(trainer, "rollout_func", None) is not None:
            trainer.rollout_func = self._around_rollout_func(trainer.rollout_func)
        else:
            trainer._generate_single_turn = self._around_single_turn(trainer._generate_single_turn)
        trainer._calculate_rewards = self._around_rewards(trainer._calculate_rewards)
        # Before all other callbacks: some of them remove values from the logs.
        trainer.callback_handler.callbacks.insert(0, tape_callback(self._tape))

    def _around_single_turn(self, live: Callable[..., Any]) -> Callable[..., Any]:
        decode = self._trainer.processing_class.batch_decode

        def rollout(prompt_ids: Sequence[Any], sampling: dict[str, Any], live: Live) -> dict[str, Any]:
            completion_ids, logprobs = self._generated(live())
            return {
                "prompt_ids": prompt_ids,
                "completion_ids": completion_ids,
                "logprobs": logprobs,
                "prompt_text": decode(prompt_ids),
                "completion_text": decode(completion_ids, skip_special_tokens=True),
            }

        stage = self._tape.stage("rollout", inputs=["prompt_ids", "sampling"])(rollout)

        def generate(prompt_ids: Sequence[Any], *args: Any, **named: Any) -> Any:
            run = self._position().run
            found = run(stage, prompt_ids, self._sampling(), lambda: live(prompt_ids, *args, **named))
            tokens = found["completion_ids"]
            return (tokens, found["logprobs"]) if self._gives_pair else tokens

        return generate

    def _generated(self, found: Any) -> tuple[Any, Any]:
        """The tokens and log-probs of what TRL generated."""
        if not self._gives_pair:
            return found, None
        if not isinstance(found, tuple) or len(found) != 2:
            raise unsupported("trl", f"does not return tokens and log-probs from {GENERATES}")
        return found

    def _around_rollout_func(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def rollout(prompts: Sequence[Any], sampling: dict[str, Any], live: Live) -> Any:
            return live()

        stage = self._tape.stage("rollout", inputs=["prompts", "sampling"])(rollout)

        def generate(prompts: Sequence[Any], trainer: Any) -> Any:
            # A function may change its arguments, so the inputs are copied before it runs.
            return self._position().run(stage, prompts, self._sampling(), lambda: live(prompts, trainer))

        return generate

    def _around_rewards(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def reward(live: Live) -> dict[str, Any]:
            return {"rewards": live()}

        stage = self._tape.stage("reward", replay=False)(reward)

        def rewards(*args: Any, **named: Any) -> Any:
            return self._position().run(stage, lambda: live(*args, **named))["rewards"]

        return rewards

    def _around_scores(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def logprobs(ids: Any, mask: Any, value: Any) -> dict[str, Any]:
            return {"completion_ids": ids, "completion_mask": mask, "value": value}

        stage = self._tape.stage("probe.logprobs", replay=False)(logprobs)
        meter = Meter(self._tape)

        def score(
            model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **named: Any
        ) -> Any:
            found = live(model, input_ids, attention_mask, logits_to_keep, *args, **named)
            if found[0].requires_grad:  # those of the loss; old ones and a reference have no gradient
                ids, mask = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
                value = found[0].detach()
                position = self._position()
                position.run(stage, ids, mask, value)
                meter.measure(position.step, None, value, mask=mask)
            return found

        return score

    def _position(self) -> Any:
        split = "train" if self._trainer.model.training else "val"
        return self._positions.at(self._trainer.state.global_step, split)

    def _sampling(self) -> dict[str, Any]:
        trainer = self._trainer
        found = {name: getattr(trainer, name) for name in SAMPLING if hasattr(trainer, name)}
        number = "num_generations" if trainer.model.training else "num_generations_eval"
        found["num_generations"] = getattr(trainer, number, None)
        found["generation_kwargs"] = trainer.args.generation_kwargs
        return found


def tape_callback(tape: Tape) -> Any:
    """Records metrics, and makes sure that a checkpoint is never ahead of the tape.

    Transformers is imported here: a script may set variables for it before it imports TRL.
    """
    from transformers import TrainerCallback

    class TapeCallback(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if logs and any(name.startswith("eval_") for name in logs):
                tape.log(logs, step=state.global_step, split="val")
            elif logs:  # training metrics belong to the step that has just been counted
                tape.log(logs, step=max(state.global_step - 1, 0))

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            tape.flush()  # a run that continues from this checkpoint finds all earlier steps on the tape

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            tape.flush()  # report write errors now, and not when the process ends

    return TapeCallback()


_MARK = "_rolltape"


def instrument(trainer: Any, tape: Tape | None = None, *, logprobs: bool = False) -> Tape:
    """Record or replay what a ``GRPOTrainer`` or ``RLOOTrainer`` generates; returns its tape.

    Without ``tape`` it uses the one that ``ROLLTAPE_*`` variables name, or none. If several processes train,
    each has its own shard: a tape without ``world_size`` is opened again as the shard of this process.
    ``logprobs`` records the log-probs of every loss too, so that ``rolltape trust`` can tell how far a replay
    may be trusted, and a replay warns at the step where it leaves the noise.
    """
    known: Tape | None = getattr(trainer, _MARK, None)
    if known is not None and tape is None:
        return known
    if known is not None and not known.is_off:
        raise ConfigError(
            "the trainer is already on a tape",
            where=known.dir,
            causes=[
                "instrument was called twice",
                "it was created after install(), or by a script run with python -m rolltape.integrations.trl",
                "under rolltape run it has trained already",
            ],
            hint="use only one of them",
        )
    if not hasattr(trainer, GENERATES) and not is_a(trainer, "GRPOTrainer", "RLOOTrainer"):
        raise ConfigError(
            f"{type(trainer).__name__} is not supported: its generation method is unknown",
            causes=["it is neither a GRPOTrainer nor an RLOOTrainer"],
            hint='pip install "rolltape[trl]", or declare your own stage: see docs/tape.md',
        )
    if (resolve({}, os.environ) if tape is None else tape.settings).mode is not Mode.OFF:
        check(trainer)
    found = _opened(trainer) if tape is None else _shard(tape, trainer)
    if not found.is_off:
        if logprobs and not has(trainer, f"{SCORES}(...)"):
            raise unsupported("trl", f"has no {type(trainer).__name__}.{SCORES}")
        Stages(trainer, found).put_in(logprobs)
        name = type(trainer).__name__
        log.info("rolltape: TRL's %s uses tape %s, mode %s", name, found.dir, found.settings.mode)
    if not found.is_off or tape is not None:  # a script that gives one that is off has decided, too
        setattr(trainer, _MARK, found)
    return found


def is_a(trainer: Any, *names: str) -> bool:
    """Whether its class, or one that it is made of, has one of these names."""
    return any(base.__name__ in names for base in type(trainer).__mro__)


def check(trainer: Any) -> None:
    """Refuse a trainer that lacks what is replaced or asked, before anything is changed."""
    missing = [need for need in NEEDS if not has(trainer, need)]
    if missing:
        raise unsupported("trl", f"has no {type(trainer).__name__}.{', '.join(missing)}")
    if is_too_old("trl"):
        raise unsupported("trl", f"does not return from {GENERATES} what later releases do")


def _opened(trainer: Any) -> Tape:
    """The tape that the environment names, with the fingerprint of this run."""
    rank, world_size = _processes(trainer)
    config = getattr(trainer.model, "config", None)
    said = {"model": str(getattr(config, "_name_or_path", "")), "seed": trainer.args.seed}
    return Tape(settings=resolve({"rank": rank, "world_size": world_size}, os.environ, {"fingerprint": said}))


def _shard(tape: Tape, trainer: Any) -> Tape:
    rank, world_size = _processes(trainer)
    own = tape.settings
    if tape.is_off or (own.rank, own.world_size) == (rank, world_size):
        return tape
    if own.world_size != 1:
        raise ConfigError(
            f"the tape is shard {own.rank} of {own.world_size}, but this process is {rank} of {world_size}",
            where=tape.dir,
            hint="omit rank and world_size: the trainer knows them",
        )
    return Tape(settings=replace(own, dir=tape.dir, rank=rank, world_size=world_size))


def _processes(trainer: Any) -> tuple[int, int]:
    return trainer.accelerator.process_index, trainer.accelerator.num_processes
