"""The stages of a TRL trainer: ``rollout``, which is replayed, and ``reward``, which always runs.

The step is the trainer's ``global_step`` when it generates, so the step that consumes the rollout first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rolltape.integrations.position import Positions
from rolltape.tape import Tape

Live = Callable[[], Any]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")


class Stages:
    """What replaces the methods of one trainer."""

    def __init__(self, trainer: Any, tape: Tape) -> None:
        self._trainer = trainer
        self._tape = tape
        self._positions = Positions(tape)
        self._gives_pair = not any(base.__name__ == "RLOOTrainer" for base in type(trainer).__mro__)
        """RLOO's generation returns tokens, that of GRPO a pair of tokens and log-probs."""

    def put_in(self) -> None:
        """Replace the methods of the trainer, and have what it logs kept."""
        from rolltape.integrations.trl.callback import TapeCallback

        trainer = self._trainer
        if getattr(trainer, "rollout_func", None) is not None:
            trainer.rollout_func = self._around_rollout_func(trainer.rollout_func)
        else:
            trainer._generate_single_turn = self._around_single_turn(trainer._generate_single_turn)
        if hasattr(trainer, "_calculate_rewards"):
            trainer._calculate_rewards = self._around_rewards(trainer._calculate_rewards)
        # First of all callbacks: others take values out of the logs.
        trainer.callback_handler.callbacks.insert(0, TapeCallback(self._tape))

    def _around_single_turn(self, live: Callable[..., Any]) -> Callable[..., Any]:
        decode = self._trainer.processing_class.batch_decode

        def rollout(prompt_ids: Sequence[Any], sampling: dict[str, Any], live: Live) -> dict[str, Any]:
            found = live()
            completion_ids, logprobs = found if self._gives_pair else (found, None)
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

    def _around_rollout_func(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def rollout(prompts: Sequence[Any], sampling: dict[str, Any], live: Live) -> Any:
            return live()

        stage = self._tape.stage("rollout", inputs=["prompts", "sampling"])(rollout)

        def generate(prompts: Sequence[Any], trainer: Any) -> Any:
            # A function may take apart what it is given, and the inputs are copied before it runs.
            return self._position().run(stage, prompts, self._sampling(), lambda: live(prompts, trainer))

        return generate

    def _around_rewards(self, live: Callable[..., Any]) -> Callable[..., Any]:
        def reward(live: Live) -> dict[str, Any]:
            return {"rewards": live()}

        stage = self._tape.stage("reward", replay=False)(reward)

        def rewards(*args: Any, **named: Any) -> Any:
            return self._position().run(stage, lambda: live(*args, **named))["rewards"]

        return rewards

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
