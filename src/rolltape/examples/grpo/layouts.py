"""How samples are laid out for a forward pass: what people change to make a trainer faster.

    padded   micro-batches of a fixed number of samples, padded to the longest
    dynamic  micro-batches of at most a number of tokens, samples of similar length together
    packed   samples end to end in one row, separated by their positions and a mask

All of them compute the same log-probs, except for the order in which numbers are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

LAYOUTS = ("padded", "dynamic", "packed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, as the loss needs it."""

    tokens: np.ndarray
    """Prompt and response."""
    prompt: int
    """How many of them belong to the prompt."""

    @property
    def response(self) -> np.ndarray:
        return self.tokens[self.prompt :]


@dataclass(frozen=True, slots=True)
class Micro:
    """One forward pass."""

    rows: list[int]
    """Which samples are in it."""
    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    """(rows, 1, to, from): 0 where a token may attend, minus infinity where it may not."""
    places: list[tuple[int, int]]
    """For each sample, its row and where it starts in that row."""


def micro_batches(
    samples: Sequence[Sample], layout: str, micro_batch_size: int, token_budget: int
) -> Iterator[Micro]:
    """Every sample once, in forward passes of the chosen layout."""
    rows = list(range(len(samples)))
    if layout == "padded":
        chunks = [rows[at : at + micro_batch_size] for at in range(0, len(rows), micro_batch_size)]
        yield from (_padded(samples, chunk) for chunk in chunks)
    elif layout == "dynamic":
        rows.sort(key=lambda row: len(samples[row].tokens))
        yield from (_padded(samples, chunk) for chunk in _by_budget(samples, rows, token_budget, padded=True))
    elif layout == "packed":
        yield from (
            _packed(samples, chunk) for chunk in _by_budget(samples, rows, token_budget, padded=False)
        )
    else:
        raise ValueError(f"layout {layout!r} is not one of {', '.join(LAYOUTS)}")


def _by_budget(
    samples: Sequence[Sample], rows: list[int], budget: int, *, padded: bool
) -> Iterator[list[int]]:
    chunk: list[int] = []
    for row in rows:
        lengths = [len(samples[at].tokens) for at in [*chunk, row]]
        size = max(lengths) * len(lengths) if padded else sum(lengths)
        if chunk and size > budget:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _padded(samples: Sequence[Sample], rows: list[int]) -> Micro:
    width = max(len(samples[row].tokens) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    for at, row in enumerate(rows):
        tokens[at, : len(samples[row].tokens)] = torch.from_numpy(samples[row].tokens)
    positions = torch.arange(width).expand(len(rows), width)
    # Padding lies behind every sample, where a causal mask keeps it from being seen.
    mask = _mask(positions[:1], torch.zeros(1, width, dtype=torch.long)).expand(len(rows), -1, -1, -1)
    return Micro(rows, tokens, positions, mask, [(at, 0) for at in range(len(rows))])


def _packed(samples: Sequence[Sample], rows: list[int]) -> Micro:
    lengths = [len(samples[row].tokens) for row in rows]
    tokens = torch.cat([torch.from_numpy(samples[row].tokens) for row in rows])[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    owner = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))[None]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return Micro(rows, tokens, positions, _mask(positions, owner), [(0, start) for start in starts])


def _mask(positions: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """A token sees those of its own sample up to itself."""
    seen = (owner[:, :, None] == owner[:, None, :]) & (positions[:, :, None] >= positions[:, None, :])
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[:, None]
