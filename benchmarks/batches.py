"""Realistic rollout batches: the tensors and fields that a verl ``DataProto`` carries after generation.

Knows shapes, padding and value distributions; refuses to know any storage format.
"""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import dataclass

import numpy as np
import torch

VOCABULARY = 151_643
PAD = 151_643


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a batch is."""

    prompts: int
    per_prompt: int
    prompt_width: int
    response_width: int
    mean_response: float

    @property
    def samples(self) -> int:
        return self.prompts * self.per_prompt


LARGE = Shape(prompts=128, per_prompt=8, prompt_width=1024, response_width=8192, mean_response=2000.0)
WIDE = Shape(prompts=96, per_prompt=8, prompt_width=1024, response_width=6144, mean_response=1800.0)
LONG = Shape(prompts=32, per_prompt=8, prompt_width=1024, response_width=131_072, mean_response=2000.0)
SMALL = Shape(prompts=16, per_prompt=8, prompt_width=512, response_width=1024, mean_response=300.0)


def seed() -> int:
    """What batches are drawn by: ``BENCH_SEED``, to have those of an earlier run again, or any number."""
    return int(os.environ.get("BENCH_SEED") or random.SystemRandom().randrange(2**32))


def drawn(seed: int) -> Shape:
    """A shape that nobody has chosen, of 60 to 450 MB."""
    rng = np.random.default_rng(seed)
    while True:
        width = int(rng.integers(512, 16_384))
        shape = Shape(
            prompts=int(rng.integers(8, 256)),
            per_prompt=int(rng.choice([1, 4, 8, 16])),
            prompt_width=int(rng.integers(64, 4096)),
            response_width=width,
            mean_response=float(width * rng.uniform(0.1, 0.6)),
        )
        dense = shape.samples * (32 * shape.prompt_width + 48 * width)
        if 60e6 < dense < 450e6:
            return shape


def make(shape: Shape, seed: int = 0) -> dict[str, object]:
    """Build one batch: eight padded tensors and the per-sample fields that travel with them."""
    rng = np.random.default_rng(seed)
    n = shape.samples
    prompt_lengths = np.repeat(_lengths(rng, shape.prompts, 220.0, shape.prompt_width), shape.per_prompt)
    response_lengths = _lengths(rng, n, shape.mean_response, shape.response_width)

    prompts = np.full((n, shape.prompt_width), PAD, np.int64)
    responses = np.full((n, shape.response_width), PAD, np.int64)
    log_probs = np.zeros((n, shape.response_width), np.float32)
    rewards = rng.integers(0, 2, n).astype(np.float32)
    for i, (p, r) in enumerate(zip(prompt_lengths, response_lengths, strict=True)):
        if i % shape.per_prompt:
            prompts[i] = prompts[i - 1]
        else:
            prompts[i, shape.prompt_width - p :] = _tokens(rng, p)
        responses[i, :r] = _tokens(rng, r)
        log_probs[i, :r] = _log_probs(rng, r)
    lengths = prompt_lengths, response_lengths
    return _tensors(prompts, responses, lengths, log_probs, rewards) | _fields(rng, shape)


def tight(batch: dict[str, object]) -> dict[str, object]:
    """As many samples with the same tokens, laid out anew so that no response is padded."""
    arrays = {name: value.numpy() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    inside = arrays["response_mask"] != 0
    n, tokens = len(inside), int(inside.sum())
    width = tokens // n
    responses, log_probs = (
        arrays[name][inside][: n * width].reshape(n, width) for name in ("responses", "rollout_log_probs")
    )
    prompt_width = arrays["prompts"].shape[1]
    prompt_lengths = arrays["attention_mask"][:, :prompt_width].sum(axis=1)
    rewards = arrays["rm_scores"].sum(axis=1)
    lengths = prompt_lengths, np.full(n, width)
    others = {name: value for name, value in batch.items() if not isinstance(value, torch.Tensor)}
    return _tensors(arrays["prompts"], responses, lengths, log_probs, rewards) | others


def _tensors(
    prompts: np.ndarray,
    responses: np.ndarray,
    lengths: tuple[np.ndarray, np.ndarray],
    log_probs: np.ndarray,
    rewards: np.ndarray,
) -> dict[str, object]:
    """The tensors of a batch, from its tokens."""
    (n, prompt_width), width = prompts.shape, prompts.shape[1] + responses.shape[1]
    attention_mask = np.zeros((n, width), np.int64)
    scores = np.zeros(responses.shape, np.float32)
    for i, (p, r) in enumerate(zip(*lengths, strict=True)):
        attention_mask[i, prompt_width - p : prompt_width + r] = 1
        scores[i, r - 1] = rewards[i]
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention_mask,
        "position_ids": np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None),
        "response_mask": attention_mask[:, prompt_width:].copy(),
        "rollout_log_probs": log_probs,
        "rm_scores": scores,
    }
    return {name: torch.from_numpy(array) for name, array in tensors.items()}


def trimmed(batch: dict[str, object], prompt_width: int) -> dict[str, object]:
    """The same tokens in rows that are no longer than the longest response."""
    mask = batch["response_mask"]
    assert isinstance(mask, torch.Tensor)
    longest = int(mask.sum(1).max())
    ends = {
        "responses": longest,
        "response_mask": longest,
        "rollout_log_probs": longest,
        "rm_scores": longest,
    }
    return {
        name: value[:, : ends.get(name, prompt_width + longest)].clone()
        if isinstance(value, torch.Tensor) and name != "prompts"
        else value
        for name, value in batch.items()
    }


def zero_padded(batch: dict[str, object]) -> dict[str, object]:
    """The same batch with zeros wherever there is no token."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    mask, inside = tensors["attention_mask"], tensors["response_mask"]
    before = mask[:, : tensors["prompts"].shape[1]]
    masks = {"input_ids": mask, "position_ids": mask, "responses": inside, "prompts": before}
    return batch | {name: tensors[name] * kept for name, kept in masks.items()}


def dense_bytes(batch: dict[str, object]) -> int:
    """Bytes of all tensors as the trainer holds them."""
    return sum(value.nbytes for value in batch.values() if isinstance(value, torch.Tensor))


def _lengths(rng: np.random.Generator, count: int, mean: float, limit: int) -> np.ndarray:
    sigma = 0.8
    raw = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(raw, 8, limit).astype(np.int64)


def _tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(rng.zipf(1.2, count), VOCABULARY) % VOCABULARY


def _log_probs(rng: np.random.Generator, count: int) -> np.ndarray:
    """Most tokens are near certain, some are not: log of a Beta(4, 0.5) sample."""
    return np.log(np.clip(rng.beta(4.0, 0.5, count), 1e-9, 1.0)).astype(np.float32)


def _fields(rng: np.random.Generator, shape: Shape) -> dict[str, object]:
    uids, messages, truths = [], [], []
    for _ in range(shape.prompts):
        uid = str(uuid.UUID(bytes=rng.bytes(16), version=4))
        a, b = (int(x) for x in rng.integers(100, 999, 2))
        chat = [
            {"role": "system", "content": "You are a careful mathematician. Think step by step."},
            {"role": "user", "content": f"What is {a} * {b} + {b}? Answer with one number."},
        ]
        for _ in range(shape.per_prompt):
            uids.append(uid)
            messages.append([dict(turn) for turn in chat])
            truths.append({"ground_truth": str(a * b + b), "style": "rule"})
    return {
        "uid": np.array(uids, dtype=object),
        "raw_prompt": _objects(messages),
        "reward_model": _objects(truths),
        "data_source": np.array(["arithmetic"] * shape.samples, dtype=object),
    }


def _objects(values: list[object]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
