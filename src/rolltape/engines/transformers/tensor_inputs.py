"""Prompts as tensors: encoded with the model's tokenizer or processor, then padded on the left.

Engines are named by programs that only replay, so torch is imported by what makes tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolltape.engines.api.encoding import encode, render_with_media
from rolltape.engines.api.prompt import Prompt
from rolltape.errors import PromptError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Share:
    """Some completions of one prompt."""

    prompt: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def plan_batches(
    lengths: Sequence[int], sizes: Sequence[int], room: Sequence[int], budget: int
) -> list[list[Share]]:
    """Batches in which (longest prompt + longest response) times rows stays within ``budget``.

    ``lengths`` are those of the prompts, ``sizes`` the number of completions of each, ``room`` the longest
    responses. Prompts of similar length go together, longest first: so running out of memory shows early.
    A group is split only if it is too large by itself.

    >>> plan_batches([4, 9, 5], [2, 2, 2], [10, 10, 10], 60)
    [[Share(prompt=1, start=0, stop=2)], [Share(prompt=2, start=0, stop=2), Share(prompt=0, start=0, stop=2)]]
    """
    batches: list[list[Share]] = []
    rows = width = tail = 0
    size = [(length + most, length) for length, most in zip(lengths, room, strict=True)]
    for prompt in sorted(range(len(lengths)), key=size.__getitem__, reverse=True):
        start = 0
        while start < sizes[prompt]:
            wider, longer = max(width, lengths[prompt]), max(tail, room[prompt])
            fits = budget // (wider + longer) - rows
            left = sizes[prompt] - start
            if rows and fits < left:  # a new batch, so that the prompt is read once
                rows = width = tail = 0
                continue
            take = min(left, max(fits, 1))
            if not rows:
                batches.append([])
            batches[-1].append(Share(prompt, start, start + take))
            rows, width, tail, start = rows + take, wider, longer, start + take
    return batches


@dataclass(frozen=True, slots=True)
class Encoded:
    """One prompt, ready for the model."""

    ids: list[int]
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors of ``(1, tokens)`` in addition to the ids, such as token types."""
    media: dict[str, torch.Tensor] = field(default_factory=dict)
    """Pixels and their grids; the first axis counts images, frames or patches."""


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
    except Exception as error:  # processors raise anything; the prompt is what the user can fix
        raise PromptError(
            f"the processor refuses prompt {position}: {type(error).__name__}: {error}",
            where=f"prompts[{position}].{'images' if prompt.images else 'videos'}",
            causes=["the text has placeholders for a different number of images", "not an image"],
        ) from error
    ids = made.pop("input_ids")
    made.pop("attention_mask", None)
    per_token = {name: made.pop(name) for name in list(made) if tuple(made[name].shape) == tuple(ids.shape)}
    return Encoded(ids[0].tolist(), per_token, dict(made))


def mixes(first: Encoded, second: Encoded) -> bool:
    """Whether two prompts fit in one batch: the tensors of their images, if any, can be joined."""
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
    import torch

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
    """Puts shares into separate batches if the tensors of their images cannot be joined."""
    split: list[list[Share]] = []
    for share in batch:
        for shares in split:
            if all(mixes(encoded[share.prompt], encoded[other.prompt]) for other in shares):
                shares.append(share)
                break
        else:
            split.append([share])
    return split
