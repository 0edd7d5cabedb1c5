"""From logits to tokens: temperature, top-k, top-p, one random number per token, log-probs of both kinds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rolltape.engines.sampling import LogprobKind, SamplingParams


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

    ``random`` has one number in [0, 1) per row. ``banned`` tokens cannot be drawn; the model's own
    distribution, and so its log-probs, do not know about that.
    """
    logits = logits.float()
    allowed = logits if banned is None else logits.index_fill(1, banned, -torch.inf)
    if params.is_greedy:
        tokens = allowed.argmax(-1)
        sampled = None
    else:
        tokens, sampled = _sample(allowed, params, random)
    if params.logprobs is LogprobKind.RAW:
        whole = None if params.top_logprobs else _of(logits, tokens)
        every = torch.log_softmax(logits, -1) if params.top_logprobs else None
    else:
        whole = None
        every = _point_mass(allowed, tokens) if sampled is None else sampled
    chosen = whole if every is None else every.gather(1, tokens[:, None])[:, 0]
    assert chosen is not None
    if not params.top_logprobs or every is None:
        return Drawn(tokens, chosen)
    best = every.topk(min(params.top_logprobs, every.shape[1]), -1)
    return Drawn(tokens, chosen, best.indices, best.values)


def _of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-softmax of one token per row, without that of all the others."""
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def _sample(
    logits: torch.Tensor, params: SamplingParams, random: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens, and the log-probs of the whole distribution they were drawn from where those are asked for."""
    scaled = logits if params.temperature == 1 else logits / params.temperature
    order = None
    if params.top_k and params.top_k < scaled.shape[1]:
        scaled, order = scaled.topk(params.top_k, -1)
    elif params.top_p < 1:
        scaled, order = scaled.sort(-1, descending=True)
    if params.top_p < 1:
        probs = scaled.softmax(-1)
        # A token stays while those before it have less than top_p; the first one always does.
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


def _point_mass(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, -torch.inf).scatter_(1, tokens[:, None], 0.0)
