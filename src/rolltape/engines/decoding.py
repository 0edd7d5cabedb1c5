"""Samples a batch token by token until every row has ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rolltape.engines.completion import FinishReason
from rolltape.engines.drawing import Drawn, draw
from rolltape.engines.inputs import Encoded
from rolltape.engines.prefill import Running
from rolltape.engines.routing import Routing
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.stopping import StopTexts


@dataclass(slots=True)
class Row:
    """One completion while it is sampled."""

    random: np.ndarray
    """One number for each token it may have; their count is its limit."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    routes: list[np.ndarray] = field(default_factory=list)
    """Pieces of ``(tokens, layers, experts per token)``, the prompt's first, where they were asked for."""
    text: str | None = None
    """Known here only where a stop text ended it."""
    finish_reason: FinishReason = FinishReason.LENGTH


def decode(
    model: Any,
    prompts: Sequence[Encoded],
    rows: Sequence[Sequence[Row]],
    params: SamplingParams,
    ends: Collection[int],
    stops: StopTexts | None,
) -> None:
    """Sample all rows of each prompt to their end; ``ends`` are the tokens that end one."""
    with Routing(model) if params.routes else nullcontext() as routing:
        running = Running(model, prompts, [len(group) for group in rows])
        if routing is not None:
            _keep_prompt_routes(routing.take(len(prompts)), prompts, rows)
        _go_on(running, [row for group in rows for row in group], params, ends, stops, routing)


def _go_on(
    running: Running,
    live: list[Row],
    params: SamplingParams,
    ends: Collection[int],
    stops: StopTexts | None,
    routing: Routing | None,
) -> None:
    device = running.logits.device
    ending = torch.tensor(sorted(ends), dtype=torch.long, device=device)
    random = torch.from_numpy(_matrix(live)).to(device)
    logits = running.logits
    done = [False] * len(live)
    for step in range(max(len(row.random) for row in live)):
        banned = ending if step < params.min_tokens and len(ending) else None
        drawn = draw(logits, params, random[:, step], banned)
        _keep(live, done, drawn, ends, step + 1 >= params.min_tokens, stops)
        ended = sum(done)
        if ended == len(live):
            return
        tokens = drawn.tokens
        if ended * 16 >= len(live):  # rows that ended cost as much as others; moving the rest costs a little
            left = torch.tensor([at for at, over in enumerate(done) if not over], device=device)
            running.keep(left)
            live = [row for row, over in zip(live, done, strict=True) if not over]
            random, tokens, done = random[left], tokens[left], [False] * len(live)
        logits = running.advance(tokens[:, None])[:, -1]
        if routing is not None:
            for row, routes, over in zip(live, routing.take(len(live)), done, strict=True):
                if not over:
                    row.routes.append(routes)


def _keep(
    live: list[Row],
    done: list[bool],
    drawn: Drawn,
    ends: Collection[int],
    may_end: bool,
    stops: StopTexts | None,
) -> None:
    """Write one token to every row that has not ended, and see which ends with it."""
    tokens, logprobs = drawn.tokens.tolist(), drawn.logprobs.tolist()
    top = (drawn.top_ids.tolist(), drawn.top_logprobs.tolist()) if drawn.top_logprobs is not None else None  # type: ignore[union-attr]
    for at, row in enumerate(live):
        if done[at]:
            continue
        row.tokens.append(tokens[at])
        row.logprobs.append(logprobs[at])
        if top is not None:
            row.top_ids.append(top[0][at])
            row.top_logprobs.append(top[1][at])
        if may_end and tokens[at] in ends:
            row.finish_reason, done[at] = FinishReason.STOP, True
        elif may_end and stops is not None and (text := stops.text_before(row.tokens)) is not None:
            row.finish_reason, row.text, done[at] = FinishReason.STOP, text, True
        elif len(row.tokens) == len(row.random):
            done[at] = True


def _keep_prompt_routes(found: np.ndarray, prompts: Sequence[Encoded], rows: Sequence[Sequence[Row]]) -> None:
    """Give every completion the routes of its prompt, without those of the padding on the left."""
    for routes, prompt, group in zip(found, prompts, rows, strict=True):
        for row in group:
            row.routes.append(routes[len(routes) - len(prompt.ids) :])


def _matrix(rows: Sequence[Row]) -> np.ndarray:
    """The random numbers of all rows; rows with a lower limit end before the zeros."""
    matrix = np.zeros((len(rows), max(len(row.random) for row in rows)))
    for at, row in enumerate(rows):
        matrix[at, : len(row.random)] = row.random
    return matrix
