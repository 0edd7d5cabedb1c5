"""``Completion``: one answer of an engine to one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rolltape.word import Word

Ids: TypeAlias = np.ndarray
"""Token ids, int64."""
Logprobs: TypeAlias = np.ndarray
"""Log-probs, float32."""


class FinishReason(Word):
    """Why a response ends where it does."""

    STOP = "stop"
    """The model's end of sequence, a stop token or a stop text."""
    LENGTH = "length"
    """``max_tokens``, or the end of the model's context."""
    ABORT = "abort"
    """The engine was told to stop; what there was by then is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One response and everything known about how it came about. Arrays are made int64 and float32."""

    prompt_ids: Ids
    """What the model was given, special tokens and image placeholders included."""
    response_ids: Ids
    """What it sampled, the token that ended it included."""
    text: str
    """The response without special tokens and without the stop text."""
    logprobs: Logprobs
    """Of each sampled token; which kind, the rollout says."""
    finish_reason: FinishReason | str
    weights_version: int
    """The weights that sampled it."""
    top_ids: Ids | None = None
    """The k most likely tokens at each position, most likely first: ``(tokens, k)``."""
    top_logprobs: Logprobs | None = None
    """Their log-probs, of the same kind."""
    routes: np.ndarray | None = None
    """The experts that tokens went to, ``(tokens, layers, experts per token)``: of the prompt and of the
    response but for its last token, which the model never read. Made int16."""

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "response_ids", "top_ids"):
            self._cast(name, np.int64)
        for name in ("logprobs", "top_logprobs"):
            self._cast(name, np.float32)
        self._cast("routes", np.int16)
        object.__setattr__(self, "finish_reason", FinishReason.parse(self.finish_reason))

    def _cast(self, name: str, dtype: type) -> None:
        value = getattr(self, name)
        if value is not None:
            object.__setattr__(self, name, np.asarray(value, dtype))
