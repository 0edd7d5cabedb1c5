"""``score``: the log-probs of given response tokens under any model.

A prompt is read once for all of its responses. Only the logits that predict a response token are computed, a
piece at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rolltape.engines.api.completion import Logprobs
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.libraries import library
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.transformers.tensor_inputs import (
    Encoded,
    Share,
    encode_prompt,
    plan_batches,
    split_by_media,
)
from rolltape.errors import ConfigError, PromptError

_MOST_LOGITS = 1 << 27
"""How many logits are in memory at once: half a gigabyte in single precision."""
_LONGEST_PIECE = 256
"""How many tokens of a response are read together: rows that end within a piece are dropped after it."""


def score(
    model_or_engine: Any,
    rollout: Rollout,
    *,
    temperature: float = 1.0,
    token_budget: int | None = None,
    processor: Any = None,
) -> list[Logprobs]:
    """The log-prob of every response token under a model or an engine: a float32 array per completion.

    The logits are divided by ``temperature`` and not changed otherwise: at 1 the log-probs are of the
    ``raw`` kind. ``token_budget`` limits the tokens in memory at once; it changes the result only by
    rounding. ``processor`` is needed for prompts with images if a model is passed instead of an engine.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature must be above 0 for scoring, not {temperature}")
    if isinstance(model_or_engine, Engine):
        return model_or_engine.score(rollout, temperature=temperature, token_budget=token_budget)
    library("torch", extra="transformers", for_what="score")
    library("transformers", extra="transformers", for_what="score")
    from rolltape.engines.transformers.loading import evaluating

    model = model_or_engine
    rows = rollout.groups()
    prompts = [_prompt(rollout, at, group, processor) for at, group in enumerate(rows)]
    lengths = [len(prompt.ids) for prompt in prompts]
    longest = [max((len(rollout.response_ids[row]) for row in group), default=0) for group in rows]
    scored: list[Logprobs] = [np.empty(0, np.float32)] * len(rollout)
    with evaluating(model):
        for batch in plan_batches(lengths, list(map(len, rows)), longest, token_budget or 65536):
            for shares in split_by_media(batch, prompts):
                found = _score_batch(model, prompts, rows, shares, rollout, temperature)
                for row, values in found.items():
                    scored[row] = values
    return scored


def _prompt(rollout: Rollout, position: int, group: range, processor: Any) -> Encoded:
    """The prompt of the completions: the recorded ids, and tensors made from the images again."""
    prompt = rollout.prompts[position]
    ids = rollout.prompt_ids[group[0]].tolist() if group else [0]
    if not prompt.images and not prompt.videos:
        return Encoded(ids)
    if processor is None:
        raise PromptError(
            f"prompt {position} has images, but the model was passed without its processor",
            where=f"prompts[{position}].images",
            hint="pass processor=, or an engine that has one",
        )
    encoded = encode_prompt(prompt, None, processor, position)
    if encoded.ids != ids:
        raise PromptError(
            f"for prompt {position} the processor makes other tokens than those it was sampled with",
            where=f"prompts[{position}]",
            causes=["the processor of another model", "another size limit for images"],
        )
    return encoded


def _score_batch(
    model: Any,
    prompts: Sequence[Encoded],
    groups: Sequence[range],
    shares: Sequence[Share],
    rollout: Rollout,
    temperature: float,
) -> dict[int, Logprobs]:
    import torch

    from rolltape.engines.transformers.prefill import Running

    running = Running(model, [prompts[share.prompt] for share in shares], [len(share) for share in shares])
    rows = [row for share in shares for row in groups[share.prompt][share.start : share.stop]]
    pieces: dict[int, list[Logprobs]] = {row: [] for row in rows}
    width = max(1, max(len(rollout.response_ids[row]) for row in rows))
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    for at, row in enumerate(rows):
        tokens[at, : len(rollout.response_ids[row])] = torch.from_numpy(rollout.response_ids[row])
    tokens = tokens.to(model.device)
    start, logits = 0, running.logits[:, None]
    while True:  # ``logits`` predict the tokens starting at ``start``
        stop = start + logits.shape[1]
        found = _logprobs(logits, tokens[:, start:stop], temperature)
        for at, row in enumerate(rows):
            pieces[row].append(found[at, : max(len(rollout.response_ids[row]) - start, 0)])
        left = [at for at, row in enumerate(rows) if len(rollout.response_ids[row]) > stop]
        if not left:
            return {row: np.concatenate(parts) for row, parts in pieces.items()}
        if len(left) < len(rows):
            kept = torch.tensor(left, device=model.device)
            running.keep(kept)
            rows, tokens = [rows[at] for at in left], tokens[kept]
        end = max(len(rollout.response_ids[row]) for row in rows)
        piece = min(_LONGEST_PIECE, max(1, _MOST_LOGITS // (len(rows) * logits.shape[-1])), end - stop)
        start, logits = stop, running.advance(tokens[:, stop - 1 : stop - 1 + piece])


def _logprobs(logits: Any, tokens: Any, temperature: float) -> np.ndarray:
    """The log-softmax of one token at each position, in single precision."""
    logits = logits.float()
    if temperature != 1:
        logits = logits / temperature
    chosen = logits.gather(-1, tokens[..., None])[..., 0] - logits.logsumexp(-1)
    return np.asarray(chosen.cpu().numpy(), np.float32)
