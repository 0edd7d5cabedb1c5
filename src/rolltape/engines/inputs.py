"""Prompts as tensors: encoded with the model's tokenizer or processor, then padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rolltape.engines.batching import Share
from rolltape.engines.encoding import encode, render_with_media
from rolltape.engines.prompt import Prompt
from rolltape.errors import PromptError


@dataclass(frozen=True, slots=True)
class Encoded:
    """One prompt, ready for the model."""

    ids: list[int]
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors of ``(1, tokens)`` beside the ids, such as token types."""
    media: dict[str, torch.Tensor] = field(default_factory=dict)
    """Pixels and their grids, whose first axis counts images, frames or patches."""


def encode_prompt(prompt: Prompt, tokenizer: Any, processor: Any, position: int) -> Encoded:
    """Token ids of a prompt, and tensors of its images and videos."""
    if not prompt.images and not prompt.videos:
        return Encoded(encode(prompt, tokenizer, position))
    media = {"images": list(prompt.images), "videos": list(prompt.videos)}
    text = render_with_media(prompt, processor, position)
    options: dict[str, Any] = {name: given for name, given in media.items() if given}
    if prompt.messages is not None:
        options["add_special_tokens"] = False  # they are in the chat template
    try:
        made = processor(text=[text], return_tensors="pt", **options)
    except Exception as error:  # processors raise what they like: the prompt is what the user can act on
        raise PromptError(
            f"the processor cannot take prompt {position}: {type(error).__name__}: {error}",
            where=f"prompts[{position}].{'images' if prompt.images else 'videos'}",
            causes=["the text mentions another number of images than there are", "not an image"],
        ) from error
    ids = made.pop("input_ids")
    made.pop("attention_mask", None)
    per_token = {name: made.pop(name) for name in list(made) if tuple(made[name].shape) == tuple(ids.shape)}
    return Encoded(ids[0].tolist(), per_token, dict(made))


def mixes(first: Encoded, second: Encoded) -> bool:
    """Whether two prompts can be one batch: their pictures, if any, have tensors that can be joined."""
    shapes = [{name: tuple(t.shape[1:]) for name, t in one.media.items()} for one in (first, second)]
    return shapes[0] == shapes[1] or not (shapes[0] and shapes[1])


@dataclass(frozen=True, slots=True)
class PaddedPrompts:
    """A batch of prompts, padded on the left."""

    ids: torch.Tensor
    mask: torch.Tensor
    """1 where there is a token; bool would be slower to build masks from."""
    lengths: torch.Tensor
    extra: dict[str, torch.Tensor]
    """What else the model's forward takes: pixels, grids, token types."""

    @property
    def is_dense(self) -> bool:
        """Whether nothing is padded."""
        return bool((self.lengths == self.ids.shape[1]).all())


def collate(prompts: Sequence[Encoded], device: torch.device) -> PaddedPrompts:
    """Pad prompts to the longest. Padding is token 0 and is masked, so that its value does not matter."""
    width = max(len(prompt.ids) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt.ids) :] = torch.tensor(prompt.ids)
        mask[row, width - len(prompt.ids) :] = 1
    extra = {}
    for name in {name for prompt in prompts for name in prompt.per_token}:
        extra[name] = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            if name in prompt.per_token:
                extra[name][row, width - len(prompt.ids) :] = prompt.per_token[name][0]
    for name in {name for prompt in prompts for name in prompt.media}:
        extra[name] = torch.cat([prompt.media[name] for prompt in prompts if name in prompt.media])
    extra = {name: tensor.to(device) for name, tensor in extra.items()}
    return PaddedPrompts(ids.to(device), mask.to(device), mask.sum(1).to(device), extra)


def split_by_media(batch: Sequence[Share], encoded: Sequence[Encoded]) -> list[list[Share]]:
    """Shares whose pictures cannot be joined into one tensor go into batches of their own."""
    split: list[list[Share]] = []
    for share in batch:
        for shares in split:
            if all(mixes(encoded[share.prompt], encoded[other.prompt]) for other in shares):
                shares.append(share)
                break
        else:
            split.append([share])
    return split
