"""A task with words that a model of a few thousand weights learns by reward alone: climb the dictionary.

The prompt is a word, and a right answer climbs from it, each word later in the dictionary than the last:
``door:`` → ``flame grass king moon queen tree``. Every step up earns a share, so there is something to learn
from the start. A big jump leaves no room to climb, and stopping early or running on costs reward.
"""

from __future__ import annotations

import random

WORDS = (
    "apple bread cloud door earth flame grass house ink jewel king leaf moon night ocean paper queen river "
    "stone tree umbrella valley water xylem yarn zebra"
).split()
"""As a dictionary has them."""
ANSWER = 6


def prompts(step: int, count: int, seed: int) -> list[str]:
    """The prompts of a step; always the same for the same seed."""
    return [f"{word}:" for word in random.Random(f"{seed}/{step}").choices(WORDS[:16], k=count)]


def reward(prompt: str, response: str) -> float:
    """The share of words that climb, minus a penalty for extra words.

    >>> reward("door:", "flame grass king moon queen tree"), reward("door:", "flame grass king apple")
    (1.0, 0.5)
    """
    words = response.split()
    before = [prompt.rstrip(":"), *words]
    climbs = sum(earlier < later for earlier, later in zip(before, words[:ANSWER], strict=False))
    return (climbs - max(len(words) - ANSWER, 0)) / ANSWER
