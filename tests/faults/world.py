"""A training run in numpy, small and whole: what each stage returns follows from what came before.

Everything is kept sample by sample, without padding, as doubles that the dtype holds; ``layout`` lays it out.
A fault changes what one stage returns, and the rest of the run goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

Result: TypeAlias = dict[str, Any]
"""What a stage returns: a list of rows or numbers per sample, or a value that belongs to no sample."""


@dataclass(frozen=True)
class Moment:
    """Where a run is, for a fault to look at."""

    world: World
    step: int
    stage: str
    done: dict[str, Result]
    """The stages of this step so far."""
    before: dict[str, Result]
    """Those of the step before, by the same names; empty at the first."""


Fault: TypeAlias = Callable[[Moment, Result], Result]
"""Gets what a stage returned and gives what the faulty one returns; leaves what it got as it was."""


@dataclass(frozen=True)
class World:
    """What a run is made of."""

    seed: int = 0
    steps: int = 3
    prompts: int = 4
    n: int = 4
    shortest: int = 3
    longest: int = 12
    dtype: str = "float32"
    """Of log-probs and losses."""
    rewards: str = "continuous"
    """``continuous``, ``steps`` of a quarter, or ``binary``."""
    tools: bool = False
    """Whether responses hold what a tool said, which is not trained on."""
    kl: float = 0.1
    lr: float = 1e-2
    scale: float = 1.0
    """Of gradients and moments."""
    clock: bool = False
    """Whether the time that a step took is logged, which no two runs share."""

    @property
    def samples(self) -> int:
        return self.prompts * self.n

    def random(self, *what: object) -> np.random.Generator:
        """Random numbers that depend on nothing but the seed and what they are for."""
        return np.random.default_rng([self.seed, *(hash_of(str(part)) for part in what)])


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(text.encode()[-8:].rjust(8, b"\0"), "big")


@dataclass
class Run:
    """What a run leaves behind."""

    world: World
    stages: list[dict[str, Result]] = field(default_factory=list)
    """By step: stage -> what it returned, in the order of the step."""
    metrics: list[dict[str, float]] = field(default_factory=list)


def simulate(world: World, fault: Fault | None = None) -> Run:
    """Run from the start to the end."""
    run = Run(world)
    weights = {
        "layer": cast(world.random("w").normal(size=(6, 5)), "float32"),
        "head": cast(world.random("h").normal(size=(7,)), "float32"),
    }
    moments = {name: np.zeros_like(w) for name, w in weights.items()}
    for step in range(world.steps):
        done: dict[str, Result] = {}
        for stage, make in STAGES.items():
            found = make(world, step, done, weights, moments)
            if fault is not None:
                found = fault(Moment(world, step, stage, done, run.stages[-1] if step else {}), found)
            done[stage] = found
        weights, moments = done["update"]["model"], done["update"]["moments"]
        run.stages.append(done)
        logged = {
            "reward": float(np.mean(done["reward"]["reward"])),
            "loss": done["update"]["loss"],
            "grad_norm": float(np.sqrt(sum((g**2).sum() for g in done["update"]["grads"].values()))),
            "lr": done["update"]["lr"],
        }
        if world.clock:
            took = float(np.random.default_rng().uniform(1, 2))
            logged |= {"timing_s/step": took, "perf/throughput": 1000 / took, "train_runtime": took}
        if fault is not None:
            logged = fault(Moment(world, step, "metrics", done, run.stages[-2] if step else {}), logged)
        run.metrics.append({name: float(np.float32(value)) for name, value in logged.items()})
    return run


def cast(values: Any, dtype: str) -> np.ndarray:
    """Doubles that the dtype holds."""
    return torch.as_tensor(np.asarray(values, np.float64)).to(getattr(torch, dtype)).double().numpy()


def _rollout(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    random = world.random("rollout", step)
    count = world.samples
    lengths = random.integers(world.shortest, world.longest + 1, count)
    prompts = [random.integers(5, 900, random.integers(2, 6)) for _ in range(world.prompts)]
    masks = [np.ones(length, np.int64) for length in lengths]
    if world.tools:
        for mask in masks:
            if len(mask) > 4:
                mask[2:4] = 0
    return {
        "prompt_ids": [prompts[at // world.n] for at in range(count)],
        "responses": [random.integers(5, 900, length) for length in lengths],
        "mask": masks,
        "rollout_log_probs": [
            cast(-random.gamma(1.0, 1.0, length) - 0.05, world.dtype) for length in lengths
        ],
    }


def _reward(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    drawn = world.random("reward", step).normal(size=world.samples)
    if world.rewards == "steps":
        drawn = np.round(drawn * 4) / 4
    elif world.rewards == "binary":
        drawn = (drawn > 0).astype(float)
    return {"reward": list(cast(drawn, "float32"))}


def _advantage(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    rewards = np.array(done["reward"]["reward"]).reshape(world.prompts, world.n)
    centred = rewards - rewards.mean(1, keepdims=True)
    found = centred / (rewards.std(1, keepdims=True) + 1e-4)
    return {"advantage": list(cast(found.reshape(-1), "float32"))}


def _ref_logprob(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    random = world.random("ref", step)
    rows = done["rollout"]["rollout_log_probs"]
    return {"ref_log_probs": [cast(row + 0.2 * random.normal(size=len(row)), world.dtype) for row in rows]}


def _loss(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    random = world.random("new", step)
    told = float(np.sin(weights["layer"].sum() + weights["head"].sum()))
    news, losses = [], []
    masks = done["rollout"]["mask"]
    for old, ref, advantage, mask in zip(
        done["rollout"]["rollout_log_probs"], done["ref_logprob"]["ref_log_probs"],
        done["advantage"]["advantage"], masks, strict=True,
    ):  # fmt: skip
        new = cast(old + 0.1 * random.normal(size=len(old)) + 0.01 * told, world.dtype)
        ratio = np.exp(new - old)
        gain = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        drift = np.exp(ref - new) - (ref - new) - 1
        news.append(new)
        losses.append(cast((world.kl * drift - gain) * mask, world.dtype))
    return {"log_probs": news, "token_losses": losses}


def _update(world: World, step: int, done: Any, weights: Any, moments: Any) -> Result:
    rows, masks = done["loss"]["token_losses"], done["rollout"]["mask"]
    total = float(np.sum([row.sum() for row in rows]) / np.sum([mask.sum() for mask in masks]))
    drive = np.tanh(np.mean([row.sum() for row in done["loss"]["log_probs"]]) + total)
    grads, model, squares = {}, {}, {}
    for name, weight in weights.items():
        direction = world.random("grad", step, name).normal(size=weight.shape)
        grads[name] = cast(world.scale * drive * direction, "float32")
        squares[name] = cast(0.9 * moments[name] + 0.1 * grads[name] ** 2, "float32")
        spread = np.sqrt(squares[name]) + 1e-12
        model[name] = cast(weight - world.lr * grads[name] / spread, "float32")
    lr = float(np.float32(world.lr))
    return {"loss": float(np.float32(total)), "lr": lr, "grads": grads, "model": model, "moments": squares}


STAGES = {
    "rollout": _rollout,
    "reward": _reward,
    "advantage": _advantage,
    "ref_logprob": _ref_logprob,
    "loss": _loss,
    "update": _update,
}
TOKENS = {"rollout_log_probs", "ref_log_probs", "log_probs", "token_losses"}
"""Columns of floats with one for every token."""


def dtype_of(world: World, column: str) -> str:
    """The dtype that a column of samples has."""
    if column in TOKENS:
        return world.dtype
    return "int64" if column in ("prompt_ids", "responses", "mask") else "float32"


def copied(result: Result) -> Result:
    """A copy down to the rows."""

    def copy(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: copy(one) for name, one in value.items()}
        if isinstance(value, list):
            return [copy(one) for one in value]
        return value.copy() if isinstance(value, np.ndarray) else value

    return {name: copy(value) for name, value in result.items()}


__all__ = ["Fault", "Moment", "Result", "Run", "World", "cast", "copied", "dtype_of", "replace", "simulate"]
