"""Turns the answers of servers into completions: the part that is the same for all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rolltape.engines.api.completion import Completion, FinishReason
from rolltape.engines.api.sampling import LogprobKind, SamplingParams
from rolltape.engines.vllm.vllm_outputs import point_mass
from rolltape.errors import EngineError

Tops = Sequence[Sequence[tuple[int, float]]]
"""Per token: the most likely ids with their log-probs, most likely first."""


def field(container: Any, name: str, position: int, at: str = "") -> Any:
    """A required field of an answer; ``at`` is the path to it: ``choices[0].``."""
    value = container.get(name) if isinstance(container, dict) else None
    if value is None:
        raise EngineError(
            f"the answer to prompt {position} has no {at}{name}",
            where=f"prompts[{position}], {at}{name}",
            causes=["the server returns no token ids or log-probs", "another kind or version of server"],
        )
    return value


def numbers(values: Sequence[Any], tokens: int, position: int, at: str) -> np.ndarray:
    """Log-probs, after checking that there is one number per token."""
    found = np.array([np.nan if value is None else value for value in values], np.float32)
    if len(found) != tokens or np.isnan(found).any():
        missing = int(np.isnan(found).argmax()) if len(found) == tokens else min(len(found), tokens)
        raise EngineError(
            f"the answer to prompt {position} has {tokens} tokens, but no log-prob for token {missing}",
            where=f"prompts[{position}], {at}",
        )
    return found


def completed(
    params: SamplingParams,
    *,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    text: str,
    logprobs: np.ndarray,
    tops: Tops | None,
    finish_reason: FinishReason | str,
    version: int,
) -> Completion:
    """A completion from a server's answer; processed log-probs of greedy sampling are known without it."""
    top_ids = top_logprobs = None
    if tops is not None:
        shape = (len(tops), len(tops[0]) if tops else params.top_logprobs)  # of no tokens, too
        top_ids = np.array([[token for token, _ in place] for place in tops], np.int64).reshape(shape)
        top_logprobs = np.array([[value for _, value in place] for place in tops], np.float32).reshape(shape)
    if params.is_greedy and params.logprobs is LogprobKind.PROCESSED:
        logprobs, top_logprobs = point_mass(logprobs, top_logprobs)
    return Completion(
        prompt_ids=np.asarray(prompt_ids),
        response_ids=np.asarray(tokens),
        text=text,
        logprobs=logprobs,
        finish_reason=finish_reason,
        weights_version=version,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )
