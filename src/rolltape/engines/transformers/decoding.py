"""Samples a batch token by token until every row has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rolltape.engines.api.completion import FinishReason
from rolltape.engines.api.sampling import SamplingParams
from rolltape.engines.transformers.drawing import Drawn, StopTexts, draw
from rolltape.engines.transformers.prefill import Running
from rolltape.engines.transformers.tensor_inputs import Encoded
from rolltape.errors import EngineError


def routers(model: Any) -> list[torch.nn.Module]:
    """The routers of a mixture-of-experts model, in order of layers; empty for other models."""
    kinds: set[type] = set()
    for module in model.modules():
        recorded = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        for one in recorded if isinstance(recorded, (list, tuple)) else [recorded]:
            kind = getattr(one, "target_class", one)
            if isinstance(kind, type) and kind is not torch.nn.Linear:  # which says nothing about experts
                kinds.add(kind)
    return [module for module in model.modules() if type(module) in kinds]


class Routing:
    """Collects what the routers of a model choose inside the block."""

    def __init__(self, model: Any) -> None:
        self._routers = routers(model)
        self._heard: list[torch.Tensor] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Routing:
        self._hooks = [router.register_forward_hook(self._hear) for router in self._routers]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self, rows: int) -> np.ndarray:
        """The experts of the last forward pass, ``(rows, tokens, layers, experts per token)``."""
        heard, self._heard = self._heard, []
        layers = [experts.reshape(rows, -1, experts.shape[-1]) for experts in heard]
        routes: np.ndarray = torch.stack(layers, 2).to("cpu", torch.int16).numpy()
        return routes

    def _hear(self, router: torch.nn.Module, given: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        chosen = [part for part in parts if torch.is_tensor(part) and not part.is_floating_point()]
        if len(chosen) != 1:
            raise EngineError(
                f"the routers of the model ({type(router).__name__}) do not return which experts they chose",
                where="SamplingParams.routes",
            )
        self._heard.append(chosen[0])


@dataclass(slots=True)
class Row:
    """One completion while it is sampled."""

    random: np.ndarray
    """One random number per token; their count is the limit of tokens."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    routes: list[np.ndarray] = field(default_factory=list)
    """Pieces of ``(tokens, layers, experts per token)``, the prompt's first; empty unless asked for."""
    text: str | None = None
    """Set only if a stop text ended it."""
    finish_reason: FinishReason = FinishReason.LENGTH
    told: Callable[[Row], None] | None = None
    """Called when it has ended."""


def decode(
    model: Any,
    prompts: Sequence[Encoded],
    rows: Sequence[Sequence[Row]],
    params: SamplingParams,
    ends: Collection[int],
    stops: StopTexts | None,
) -> None:
    """Sample all rows of each prompt to the end; ``ends`` are the tokens that end a row."""
    with Routing(model) if params.routes else nullcontext() as routing:
        running = Running(model, prompts, [len(group) for group in rows])
        if routing is not None:
            for routes, prompt, group in zip(routing.take(len(prompts)), prompts, rows, strict=True):
                for (
                    row
                ) in group:  # each has the routes of its prompt, without those of the padding on the left
                    row.routes.append(routes[len(routes) - len(prompt.ids) :])
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
        if ended * 16 >= len(live):  # ended rows cost as much as others; removing them costs a little
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
    """Append one token to every row that has not ended, and check which rows end with it."""
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
        if done[at] and row.told is not None:
            row.told(row)


def _matrix(rows: Sequence[Row]) -> np.ndarray:
    """The random numbers of all rows; rows with a lower limit end before the zeros."""
    matrix = np.zeros((len(rows), max(len(row.random) for row in rows)))
    for at, row in enumerate(rows):
        matrix[at, : len(row.random)] = row.random
    return matrix
