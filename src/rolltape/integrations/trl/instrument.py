"""Puts one trainer on a tape: generation and rewards become stages, and its metrics are recorded."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.position import Positions
from rolltape.policy import Mode
from rolltape.releases import has, is_too_old, unsupported
from rolltape.settings import By, MatchLevel, resolve
from rolltape.tape import Tape
from rolltape.trusting import Meter

log = logging.getLogger("rolltape")

Live = Callable[[], Any]
Part = Callable[[Sequence[Any], Sequence[int]], Any]
"""Generates for some of the prompts, given them and their places."""

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

        def rollout(
            prompt_ids: Sequence[Any], images: Any, sampling: dict[str, Any], rows: Sequence[int], live: Part
        ) -> dict[str, Any]:
            completion_ids, logprobs = self._generated(live(prompt_ids, rows))
            return {
                "prompt_ids": prompt_ids,
                "completion_ids": completion_ids,
                "logprobs": logprobs,
                "prompt_text": decode(prompt_ids),
                "completion_text": decode(completion_ids, skip_special_tokens=True),
            }

        inputs = ["prompt_ids", "sampling"]
        stage = self._asked(rollout, inputs, "prompt_ids")
        # Of prompts with images it takes both to know them.
        with_images = self._asked(rollout, inputs, ["prompt_ids", "images"])

        def generate(prompt_ids: Sequence[Any], *args: Any, **named: Any) -> Any:
            images = named.get("images", args[0] if args else None)
            part = _Part(self._trainer, live, len(prompt_ids), args, named)
            chosen = stage if images is None else with_images
            found = self._position().run(
                chosen, prompt_ids, images, self._sampling(), list(range(len(prompt_ids))), part
            )
            tokens = found["completion_ids"]
            return (tokens, found["logprobs"]) if self._gives_pair else tokens

        return generate

    def _asked(self, rollout: Callable[..., Any], inputs: list[str], prompts: Any) -> Callable[..., Any]:
        """The stage, asked by its step or by its prompts as the tape's options say."""
        own = self._tape.settings
        if own.by is By.STEP:
            return self._tape.stage("rollout", inputs=inputs)(rollout)
        return self._tape.stage(
            "rollout", inputs=inputs, by="prompt", prompts=prompts, n=1, sampling="sampling", along="rows",
            version=own.version, draw=own.draw, gather=self._gather(),
        )(rollout)  # fmt: skip

    def _gather(self) -> Callable[[Any], Sequence[Any]] | None:
        """How processes tell each other what they ask for; with tools they ask in no fixed order."""
        trainer = self._trainer
        if trainer.accelerator.num_processes == 1 or getattr(trainer, "tools", None):
            return None
        gather = importlib.import_module("accelerate.utils").gather_object
        return lambda said: list(gather([said]))

    def _generated(self, found: Any) -> tuple[Any, Any]:
        """The tokens and log-probs of what TRL generated."""
        if not self._gives_pair:
            return found, None
        if not isinstance(found, tuple) or len(found) != 2:
            raise unsupported("trl", f"does not return tokens and log-probs from {GENERATES}")
        return found

    def _around_rollout_func(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def rollout(prompts: Sequence[Any], sampling: dict[str, Any], rows: Sequence[int], live: Part) -> Any:
            return live(prompts, rows)

        stage = self._asked(rollout, ["prompts", "sampling"], "prompts")

        def generate(prompts: Sequence[Any], trainer: Any) -> Any:
            # A function may change its arguments, so the inputs are copied before it runs.
            rows = list(range(len(prompts)))
            run = self._position().run
            return run(stage, prompts, self._sampling(), rows, lambda part, rows: live(part, trainer))

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


class _Part:
    """Generates for some of the prompts of one call of TRL's, with what belongs to them."""

    def __init__(
        self, trainer: Any, live: Callable[..., Any], count: int, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self._trainer, self._live, self._count = trainer, live, count
        self._args, self._named = args, named

    def __call__(self, prompt_ids: Sequence[Any], rows: Sequence[int]) -> Any:
        """What TRL generates for these; all of them is a call as TRL makes it."""
        if list(rows) == list(range(self._count)):
            return self._live(prompt_ids, *self._args, **self._named)
        args = [self._of(value, rows) for value in self._args]
        named = {name: self._of(value, rows) for name, value in self._named.items()}
        with _one_each(self._trainer, prompt_ids, args, named):
            return self._live(prompt_ids, *args, **named)

    def _of(self, value: Any, rows: Sequence[int]) -> Any:
        """What belongs to some of the prompts."""
        if isinstance(value, Mapping):
            return {name: self._of(one, rows) for name, one in value.items()}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)) and len(value) == self._count:
            return [value[row] for row in rows]
        if getattr(value, "shape", None) and value.shape[0] == self._count:
            return value[list(rows)]
        raise ConfigError(
            'with by="prompt" only some of these prompts have to be generated, but their images are '
            "in one piece that cannot be told apart",
            causes=["TRL generates with transformers from prompts with images"],
            hint="generate with vLLM, or leave by out",
        )


_GROUPS = ("num_generations", "num_generations_eval")


@contextmanager
def _one_each(
    trainer: Any, prompt_ids: Sequence[Any], args: list[Any], named: dict[str, Any]
) -> Iterator[None]:
    """TRL asks vLLM's server for the first prompt of each group only; where groups are not whole, for each.

    How large they are, an argument says, or the trainer.
    """
    names = list(inspect.signature(getattr(type(trainer), GENERATES)).parameters)[2:]
    at = names.index(_GROUPS[0]) if _GROUPS[0] in names[: len(args)] else None
    asked = named.get(_GROUPS[0]) if at is None else args[at]
    size = max(int(asked or getattr(trainer, _GROUPS[not trainer.model.training], None) or 1), 1)
    starts = range(0, len(prompt_ids), size)
    if len(prompt_ids) % size == 0 and all(
        prompt_ids[row] == prompt_ids[start] for start in starts for row in range(start, start + size)
    ):
        yield
        return
    if at is not None:
        args[at] = 1
    elif _GROUPS[0] in named:
        named[_GROUPS[0]] = 1
    kept = {name: getattr(trainer, name) for name in _GROUPS if hasattr(trainer, name)}
    try:
        for name in kept:
            setattr(trainer, name, 1)
        yield
    finally:
        for name, before in kept.items():
            setattr(trainer, name, before)


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
        if found.settings.by is By.PROMPT:
            _check_alone(trainer, found)
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


def _check_alone(trainer: Any, tape: Tape) -> None:
    """Refuse processes that can only generate together: by prompts each lacks other samples, or none."""
    if trainer.accelerator.num_processes == 1:
        return
    kind = str(getattr(trainer.accelerator, "distributed_type", "")).rpartition(".")[2]
    args = trainer.args
    shared = getattr(args, "vllm_mode", "server") == "server" or (
        getattr(args, "vllm_tensor_parallel_size", 1) > 1
    )
    why = f"the model is spread over processes ({kind})" if kind in ("FSDP", "DEEPSPEED") else None
    if getattr(args, "use_vllm", False) and shared:
        why = "they share a vLLM engine"
    if why is not None:
        raise ConfigError(
            f'with by="prompt" each process generates what it lacks, but these only do so together: {why}',
            where=tape.dir,
            hint="leave by out, or use one process, or vllm_mode=colocate without tensor parallelism",
        )


def _opened(trainer: Any) -> Tape:
    """The tape that the environment names, with the fingerprint of this run."""
    rank, world_size = _processes(trainer)
    config = getattr(trainer.model, "config", None)
    said = {"model": str(getattr(config, "_name_or_path", "")), "seed": trainer.args.seed}
    given = {"rank": rank, "world_size": world_size}
    found = resolve(given, os.environ, {"fingerprint": said})
    if found.by is By.PROMPT:  # data in another order is what it is for
        found = replace(found, match={"seed": MatchLevel.WARN, **found.match})
    return Tape(settings=found)


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
