"""The arithmetic of GRPO: log-probs, advantages, the clipped loss with its KL penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rolltape.examples.grpo.layouts import Micro, Sample


@dataclass(frozen=True, slots=True)
class Clip:
    """The two numbers of the objective."""

    range: float
    """How far the ratio of new to old probability may move from 1."""
    kl: float
    """The weight of the penalty for drifting from the reference."""


def log_probs(model: Any, micro: Micro, samples: Sequence[Sample]) -> list[torch.Tensor]:
    """For each sample of a forward pass, the log-prob of every response token."""
    logits = model(
        input_ids=micro.tokens, position_ids=micro.positions, attention_mask=micro.mask
    ).logits.float()
    # Each position predicts the token after it.
    following = logits[:, :-1].log_softmax(-1).gather(-1, micro.tokens[:, 1:, None])[..., 0]
    places = zip(micro.rows, micro.places, strict=True)
    return [following[line, response_mask(samples[row], start)] for row, (line, start) in places]


def response_mask(sample: Sample, start: int) -> slice:
    """The positions that predict the response, for a sample that starts at ``start`` of its row."""
    return slice(start + sample.prompt - 1, start + len(sample.tokens) - 1)


def advantages(rewards: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """How much better each completion is than the average of its prompt, in standard deviations."""
    rewards = rewards.astype(np.float32)
    out = np.zeros_like(rewards)
    for group in dict.fromkeys(groups):
        members = np.array([name == group for name in groups])
        spread = rewards[members].std()
        out[members] = (rewards[members] - rewards[members].mean()) / (spread + 1e-4)
    return out


def token_losses(
    new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, advantage: float, clip: Clip
) -> torch.Tensor:
    """The loss of each token of one completion."""
    ratio = (new - old).exp()
    bounded = ratio.clamp(1 - clip.range, 1 + clip.range)
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    drift = (reference - new).exp() - (reference - new) - 1
    return clip.kl * drift - gain
