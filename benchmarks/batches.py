"""Realistic rollout batches: the tensors and fields that a verl ``DataProto`` carries after generation.

Knows shapes, padding and value distributions; refuses to know any storage format.
"""

from __future__ import annotations

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
SMALL = Shape(prompts=16, per_prompt=8, prompt_width=512, response_width=1024, mean_response=300.0)


def make(shape: Shape, seed: int = 0) -> dict[str, object]:
    """Build one batch: eight padded tensors and the per-sample fields that travel with them."""
    rng = np.random.default_rng(seed)
    n = shape.samples
    prompt_lengths = np.repeat(_lengths(rng, shape.prompts, 220.0, shape.prompt_width), shape.per_prompt)
    response_lengths = _lengths(rng, n, shape.mean_response, shape.response_width)
    width = shape.prompt_width + shape.response_width

    prompts = np.full((n, shape.prompt_width), PAD, np.int64)
    responses = np.full((n, shape.response_width), PAD, np.int64)
    attention_mask = np.zeros((n, width), np.int64)
    log_probs = np.zeros((n, shape.response_width), np.float32)
    scores = np.zeros((n, shape.response_width), np.float32)
    rewards = rng.integers(0, 2, n).astype(np.float32)
    for i, (p, r) in enumerate(zip(prompt_lengths, response_lengths, strict=True)):
        if i % shape.per_prompt:
            prompts[i] = prompts[i - 1]
        else:
            prompts[i, shape.prompt_width - p :] = _tokens(rng, p)
        responses[i, :r] = _tokens(rng, r)
        attention_mask[i, shape.prompt_width - p : shape.prompt_width + r] = 1
        log_probs[i, :r] = _log_probs(rng, r)
        scores[i, r - 1] = rewards[i]
    position_ids = np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None)

    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention_mask,
        "position_ids": position_ids,
        "response_mask": attention_mask[:, shape.prompt_width :].copy(),
        "rollout_log_probs": log_probs,
        "rm_scores": scores,
    }
    return {name: torch.from_numpy(array) for name, array in tensors.items()} | _fields(rng, shape)


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
