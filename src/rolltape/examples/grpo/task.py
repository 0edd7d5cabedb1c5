"""A string task that a model of a few thousand weights learns by reward alone: climb the alphabet.

The prompt is a letter, and a right answer climbs from it, each letter later in the alphabet than the last:
``d:`` → ``fgkmqt``. Every step up earns a share, so there is something to learn from the start. A big jump
leaves no room to climb, and stopping early or running on costs reward.
"""

from __future__ import annotations

import random
import string

LETTERS = string.ascii_lowercase
ANSWER = 6


def prompts(step: int, count: int, seed: int) -> list[str]:
    """The prompts of a step; always the same for the same seed."""
    return [f"{letter}:" for letter in random.Random(f"{seed}/{step}").choices(LETTERS[:16], k=count)]


def reward(prompt: str, response: str) -> float:
    """The share of letters that climb, minus a penalty for extra letters.

    >>> reward("d:", "fgkmqt"), reward("d:", "fgkaaa"), reward("d:", "")
    (1.0, 0.5, 0.0)
    """
    before = prompt[0] + response
    climbs = sum(earlier < later for earlier, later in zip(before, response[:ANSWER], strict=False))
    return (climbs - max(len(response) - ANSWER, 0)) / ANSWER
