"""Which completions run together: as many as a token budget allows, of similar length. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

    ``lengths`` are those of the prompts, ``sizes`` the completions of each, ``room`` what a response may
    take. Prompts of similar length go together, longest first, so that what does not fit in memory shows at
    once; a group is only split where it alone is too large.

    >>> plan_batches([4, 9, 5], [2, 2, 2], [10, 10, 10], 60)
    [[Share(prompt=1, start=0, stop=2)], [Share(prompt=2, start=0, stop=2), Share(prompt=0, start=0, stop=2)]]
    """
    batches: list[list[Share]] = []
    rows = width = tail = 0
    for prompt in sorted(
        range(len(lengths)), key=lambda at: (lengths[at] + room[at], lengths[at]), reverse=True
    ):
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
