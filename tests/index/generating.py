"""A stage whose samples tell themselves apart, and that refuses to make one that was recorded before."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

import rolltape

PAD = 7
"""Not 0, so that nothing that happens to be zero looks like padding."""


class Generation:
    """What was generated: by prompt and number, each as the columns that it was returned with."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.made: dict[tuple[str, int], dict[str, Any]] = {}
        self.calls: list[int] = []
        """How many samples each call was asked for."""

    def stage(self, tape: rolltape.Tape, **options: Any) -> Any:
        """The stage on a tape."""
        options = {"by": "prompt", "prompts": "prompts", "n": "n", "first": "first"} | options
        return tape.stage("rollout", **options)(self.generate)

    def generate(
        self, prompts: list[str], n: int = 1, temperature: float = 1.0, first: Any = None
    ) -> dict[str, Any]:
        """As verl lays it out: padded in front and behind, to the widths that this very call needs."""
        seen: Counter[str] = Counter()
        rows = []
        for at, prompt in enumerate(prompts):
            start = seen[prompt] if first is None else first[at]
            for number in range(start, start + n):
                if (prompt, number) in self.made:
                    raise AssertionError(f"sample {number} of {prompt!r} was recorded already")
                self.made[prompt, number] = self._sample(prompt)
                rows.append(self.made[prompt, number])
            seen[prompt] += n
        self.calls.append(len(rows))
        return padded(rows) | {"meta": {"temperature": temperature}}

    def _sample(self, prompt: str) -> dict[str, Any]:
        length = self.random.randrange(1, 6)
        return {
            "prompt_ids": [ord(letter) for letter in prompt],
            "response_ids": [self.random.randrange(10, 10**6) for _ in range(length)],
            "text": f"{prompt} {self.random.random()}",
            "logprob": np.float32(-self.random.random()),
        }


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples as a batch."""
    left = max(len(row["prompt_ids"]) for row in rows)
    right = max(len(row["response_ids"]) for row in rows)
    prompts, responses = np.full((len(rows), left), PAD), np.full((len(rows), right), PAD)
    mask = np.zeros((len(rows), left + right), np.int64)
    logprobs = np.zeros((len(rows), right), np.float32)
    for at, row in enumerate(rows):
        asked, answered = row["prompt_ids"], row["response_ids"]
        prompts[at, left - len(asked) :] = asked
        responses[at, : len(answered)] = answered
        mask[at, left - len(asked) : left + len(answered)] = 1
        logprobs[at, : len(answered)] = row["logprob"]
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0),
        "response_mask": mask[:, left:],
        "logprobs": logprobs,
        "text": [row["text"] for row in rows],
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Whether two batches are the same, bit for bit, but for widths beyond what their rows need."""
    for name in wanted:
        mine, theirs = found[name], wanted[name]
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype, name
            assert mine.tobytes() == theirs.tobytes(), (name, mine, theirs)
        else:
            assert mine == theirs, name
