"""The training loop. Every stage of a step goes through the tape.

What comes from the engine is replayed. What the trainer computes runs live in every replay and is recorded,
so that the two runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import rolltape
from rolltape.engines import Engine, Prompt, Rollout, SamplingParams, TransformersEngine, score
from rolltape.examples.grpo import loss as objective
from rolltape.examples.grpo import task
from rolltape.examples.grpo.layouts import Sample, micro_batches
from rolltape.examples.grpo.loss import Clip
from rolltape.examples.grpo.model import make_model, make_tokenizer, weights_hash
from rolltape.examples.grpo.world import World
from rolltape.trusting import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What people change in a trainer."""

    steps: int = 60
    prompts: int = 16
    """Prompts per step."""
    n: int = 8
    """Completions per prompt."""
    max_tokens: int = 8
    seed: int = 0
    learning_rate: float = 5e-3
    clip_range: float = 0.2
    kl: float = 0.01
    layout: str = "padded"
    """``padded``, ``dynamic`` or ``packed``: see layouts.py."""
    micro_batch_size: int = 32
    """Samples per forward pass, where the layout is padded; gradients add up over the passes of a step."""
    token_budget: int = 512
    """Tokens per forward pass, in the other layouts."""
    dtype: str = "float32"
    """``float32``, or ``bfloat16`` for the forward pass."""
    state: bool = False
    """Record the weights and the optimizer before every step, and in a replay start each step from the
    recorded ones: then a difference comes from the step itself, not from an earlier one."""


@dataclass(frozen=True, slots=True)
class Step:
    """The numbers to show for one step."""

    step: int
    reward: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    steps: list[Step]
    weights: str
    """A hash over all weights after the last step."""


def train(
    options: Options,
    tape: rolltape.Tape,
    on_step: Callable[[Step], None] = lambda step: None,
    start_engine: Callable[[], Engine] | None = None,
) -> Result:
    """Train from random weights for ``options.steps`` steps."""
    world = World()
    model, reference = make_model(options.seed), make_model(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    stages = Stages(tape, options, model, optimizer, reference, world)
    # A function, not an engine: if every rollout is on the tape, no engine is ever started.
    engine = tape.engine(
        start_engine or (lambda: TransformersEngine(make_model(options.seed), make_tokenizer()))
    )
    meter = Meter(tape)
    done = []
    for step in range(options.steps):
        with tape.step(step):
            if options.state:
                stages.restore(stages.state())
            texts = task.prompts(step, options.prompts, options.seed)
            prompts = [Prompt(text=text, uid=f"{step}.{at}") for at, text in enumerate(texts)]
            sampling = SamplingParams(n=options.n, max_tokens=options.max_tokens, seed=options.seed)
            rollout = world.from_first(lambda: engine.generate(prompts, sampling))  # noqa: B023
            reward = stages.reward(rollout)["reward"]
            advantage = stages.advantage(rollout, reward)["advantage"]
            reference_logprobs = stages.ref_logprob(rollout)["ref_logprobs"]
            optimizer.zero_grad()
            losses = stages.loss(rollout, advantage, reference_logprobs)
            if world.rank == 0:
                meter.measure(step, rollout.logprobs, losses["log_probs"], groups=rollout.uid)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if world.rank == 0:
                engine.update_weights(model.state_dict(), version=step + 1)
            shown = Step(step, float(reward.mean()), float(losses["total"]), float(norm))
            tape.log({"reward": shown.reward, "loss": shown.loss, "grad_norm": shown.grad_norm})
        on_step(shown)
        done.append(shown)
    return Result(done, weights_hash(model))


class Stages:
    """The trainer's part of a step: run live in every mode, and recorded."""

    def __init__(
        self, tape: rolltape.Tape, options: Options, model: Any, optimizer: Any, reference: Any, world: World
    ) -> None:
        self.options = options
        self.model = model
        self.optimizer = optimizer
        self.reference = reference
        self.world = world
        for name in ("reward", "advantage", "ref_logprob", "loss"):
            setattr(self, name, tape.stage(name, replay=False)(getattr(self, name)))
        self.state = tape.stage("state")(self.state)  # type: ignore[method-assign]

    def state(self) -> dict[str, Any]:
        return {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def reward(self, rollout: Rollout) -> dict[str, Any]:
        asked = [rollout.prompts[at].text or "" for at in rollout.group]
        values = [task.reward(prompt, text) for prompt, text in zip(asked, rollout.texts, strict=True)]
        return {**_ids(rollout), "reward": np.array(values, np.float32)}

    def advantage(self, rollout: Rollout, reward: np.ndarray) -> dict[str, Any]:
        return {**_ids(rollout), "advantage": objective.advantages(reward, rollout.uid)}

    def ref_logprob(self, rollout: Rollout) -> dict[str, Any]:
        return {**_ids(rollout), "ref_logprobs": score(self.reference, rollout)}

    def loss(self, rollout: Rollout, advantage: np.ndarray, reference: list[np.ndarray]) -> dict[str, Any]:
        """Forward and backward over all samples; the gradients are those of the mean over all tokens."""
        rows = self.world.mine(len(rollout))
        samples = [
            Sample(
                np.concatenate([rollout.prompt_ids[row], rollout.response_ids[row]]),
                len(rollout.prompt_ids[row]),
            )
            for row in rows
        ]
        tokens = sum(map(len, rollout.response_ids))
        log_probs: dict[int, np.ndarray] = {}
        token_losses: dict[int, np.ndarray] = {}
        options, clip = self.options, Clip(self.options.clip_range, self.options.kl)
        for micro in micro_batches(samples, options.layout, options.micro_batch_size, options.token_budget):
            with self._precision():
                new = objective.log_probs(self.model, micro, samples)
            total = torch.zeros(())
            for at, found in zip(micro.rows, new, strict=True):
                row = rows[at]
                old, ref = torch.from_numpy(rollout.logprobs[row]), torch.from_numpy(reference[row])
                losses = objective.token_losses(found, old, ref, float(advantage[row]), clip)
                total = total + losses.sum()
                log_probs[row], token_losses[row] = found.detach().numpy(), losses.detach().numpy()
            (total / tokens).backward()
        self.world.add_up(parameter.grad for parameter in self.model.parameters())
        log_probs, token_losses = self.world.gather(log_probs), self.world.gather(token_losses)
        everything = [token_losses[row] for row in range(len(rollout))]
        return {
            **_ids(rollout),
            "log_probs": [log_probs[row] for row in range(len(rollout))],
            "token_losses": everything,
            "total": float(np.concatenate(everything).sum(dtype=np.float64) / tokens),
        }

    def _precision(self) -> Any:
        if self.options.dtype == "float32":
            return nullcontext()
        return torch.autocast("cpu", dtype=getattr(torch, self.options.dtype))


def _ids(rollout: Rollout) -> dict[str, Any]:
    """The identity of each sample, so that runs can be compared sample by sample."""
    return {"uid": rollout.uid, "index": rollout.index}
