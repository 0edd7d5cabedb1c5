"""Samples tokens from logits: temperature, top-k, top-p, one random number per token, both log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rolltape.engines.api.encoding import cut_at_stop
from rolltape.engines.api.sampling import LogprobKind, SamplingParams


class StopTexts:
    """Texts that end a response, checked with every new token."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        # A token has at least one byte, and the text may begin inside one.
        self._window = max(len(text.encode("utf-8", "surrogatepass")) for text in texts) + 4

    def text_before(self, tokens: Sequence[int]) -> str | None:
        """If the last token completed a stop text, the text before it; else None."""
        tail = self._decode(tokens[-self._window :])
        if not cut_at_stop(tail, self._texts)[1]:
            return None
        text = self._decode(tokens)
        start = max(len(text) - len(tail), 0)
        before, found = cut_at_stop(text[start:], self._texts)
        return text[:start] + before if found else None

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row."""

    tokens: torch.Tensor
    logprobs: torch.Tensor
    """Of the kind asked for, float32."""
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


def draw(
    logits: torch.Tensor, params: SamplingParams, random: torch.Tensor, banned: torch.Tensor | None
) -> Drawn:
    """Sample one token per row of ``(rows, vocabulary)`` logits.

    ``random`` has one number in [0, 1) per row. ``banned`` tokens cannot be sampled; the model's own
    distribution, and so its raw log-probs, ignores that.
    """
    logits = logits.float()
    allowed = logits if banned is None else logits.index_fill(1, banned, -torch.inf)
    tokens, every = (allowed.argmax(-1), None) if params.is_greedy else _sample(allowed, params, random)
    if params.logprobs is LogprobKind.RAW:
        if not params.top_logprobs:  # then the log-softmax of the other tokens is not needed
            return Drawn(tokens, logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1))
        every = torch.log_softmax(logits, -1)
    elif every is None:  # greedy: all of it on one token
        every = torch.full_like(allowed, -torch.inf).scatter_(1, tokens[:, None], 0.0)
    chosen = every.gather(1, tokens[:, None])[:, 0]
    if not params.top_logprobs:
        return Drawn(tokens, chosen)
    best = every.topk(min(params.top_logprobs, every.shape[1]), -1)
    return Drawn(tokens, chosen, best.indices, best.values)


def _sample(
    logits: torch.Tensor, params: SamplingParams, random: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens, and if asked for the log-probs of the whole distribution they were sampled from."""
    scaled = logits if params.temperature == 1 else logits / params.temperature
    order = None
    if params.top_k and params.top_k < scaled.shape[1]:
        scaled, order = scaled.topk(params.top_k, -1)
    elif params.top_p < 1:
        scaled, order = scaled.sort(-1, descending=True)
    if params.top_p < 1:
        probs = scaled.softmax(-1)
        # A token stays if those before it sum to less than top_p; the first one always stays.
        scaled = scaled.masked_fill(probs.cumsum(-1) - probs >= params.top_p, -torch.inf)
    # Sums in double: over a large vocabulary single precision would shift the boundaries between tokens.
    sums = scaled.softmax(-1).double().cumsum(-1)
    at = torch.searchsorted(sums, (random * sums[:, -1])[:, None], right=True)
    at = at.clamp_(max=sums.shape[1] - 1)
    tokens = (at if order is None else order.gather(1, at))[:, 0]
    if params.logprobs is LogprobKind.RAW:
        return tokens, None
    kept = torch.log_softmax(scaled, -1)
    return tokens, kept if order is None else torch.full_like(logits, -torch.inf).scatter_(1, order, kept)
