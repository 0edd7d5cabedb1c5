"""``Completion``: one answer of an engine to one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rolltape.choices import NamedOption
from rolltape.errors import EngineError

Ids: TypeAlias = np.ndarray
"""Token ids, int64."""
Logprobs: TypeAlias = np.ndarray
"""Log-probs, float32."""


class FinishReason(NamedOption):
    """Why a response ends where it does."""

    STOP = "stop"
    """The model's end of sequence, a stop token or a stop text."""
    LENGTH = "length"
    """``max_tokens``, or the end of the model's context."""
    ABORT = "abort"
    """The engine was told to stop; the tokens sampled until then are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One response and everything known about how it was sampled. Arrays become int64 and float32."""

    prompt_ids: Ids
    """What the model was given, including special tokens and image placeholders."""
    response_ids: Ids
    """What it sampled, including the token that ended it."""
    text: str
    """The response without special tokens and without the stop text."""
    logprobs: Logprobs
    """One per sampled token; ``Rollout`` says of which kind."""
    finish_reason: FinishReason | str
    weights_version: int
    """The version of the weights that sampled it."""
    top_ids: Ids | None = None
    """The k most likely tokens at each position, most likely first: ``(tokens, k)``."""
    top_logprobs: Logprobs | None = None
    """Their log-probs, of the same kind."""
    routes: np.ndarray | None = None
    """The experts of each token, ``(tokens, layers, experts per token)``: of the prompt and the response,
    except the last token, which the model never read. Becomes int16."""

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS.items():
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else np.asarray(value, dtype))
        object.__setattr__(self, "finish_reason", FinishReason.parse(self.finish_reason))


def not_a_number(logprobs: Sequence[float] | Logprobs, index: int, position: int) -> EngineError:
    """The error for a completion whose log-probs contain NaN."""
    token = int(np.isnan(logprobs).argmax())
    return EngineError(
        f"the log-prob of token {token} of completion {index} of prompt {position} is not a number",
        where=f"prompts[{position}]",
        causes=["the weights contain NaN or infinity", "a half-precision overflow"],
    )


ARRAYS: dict[str, type] = {
    "prompt_ids": np.int64, "response_ids": np.int64, "top_ids": np.int64,
    "logprobs": np.float32, "top_logprobs": np.float32, "routes": np.int16,
}  # fmt: skip
"""What the arrays of a completion become."""
