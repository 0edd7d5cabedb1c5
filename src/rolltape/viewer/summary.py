"""A step in a few numbers. Needs neither numpy nor a file, so that a page can name them at once."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = {
    "reward": "reward",
    "length": "response length (tokens)",
    "logprob": "log-prob of sampled tokens",
    "entropy": "entropy",
    "mismatch": "mismatch: |trainer − rollout| log-prob of a sample",
    "truncated": "truncated responses (share)",
    "zero_variance": "groups without variance (share)",
}
"""What is summed up, in the order and the words of the page."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One step, in numbers: name -> value, lowest, highest."""

    step: int
    values: dict[str, tuple[float, float | None, float | None]]
