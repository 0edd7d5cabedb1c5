"""A batch of completions in progress: a prompt is read once, and all of its completions go on from there."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from rolltape.engines.cache import expand
from rolltape.engines.inputs import Encoded, collate


class Running:
    """The state of the model after some tokens of each row: its cache, mask and positions."""

    def __init__(self, model: Any, prompts: Sequence[Encoded], counts: Sequence[int]) -> None:
        """Read the prompts, and make ``counts[i]`` rows of prompt ``i``."""
        self.model = model
        batch = collate(prompts, model.device)
        self._cache = DynamicCache(config=model.config)
        positions, shift = _positions(model, batch.ids, batch.mask, batch.extra)
        logits = model(
            input_ids=batch.ids,
            attention_mask=None if batch.is_dense else batch.mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            **_last_only(model),
            **batch.extra,
        ).logits[:, -1]
        rows = torch.repeat_interleave(
            torch.arange(len(prompts), device=model.device), torch.tensor(counts, device=model.device)
        )
        expand(self._cache, rows)
        self.logits = logits[rows]
        """What follows the prompts: ``(rows, vocabulary)``."""
        self._next = (batch.lengths + shift)[rows]
        self._mask = None if batch.is_dense else batch.mask[rows]
        self._three = positions.ndim == 3

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append ``(rows, new)`` tokens; the logits after each of them, ``(rows, new, vocabulary)``."""
        new = tokens.shape[1]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), new)], 1)
        positions = self._next[:, None] + torch.arange(new, device=tokens.device)
        self._next = self._next + new
        logits: torch.Tensor = self.model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions.expand(3, -1, -1) if self._three else positions,
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        return logits

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only."""
        for layer in self._cache.layers:
            layer.reorder_cache(rows)
        self._next = self._next[rows]
        self._mask = None if self._mask is None else self._mask[rows]


def _last_only(model: Any) -> dict[str, int]:
    """Asks for the logits after the prompt alone: those inside it are as large as they are useless."""
    knows = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if knows else {}


def _positions(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, extra: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions that do not count padding, and by how much those after the prompt differ from its length.

    Models that place pictures in two dimensions say themselves where their tokens are.
    """
    plain = (mask.cumsum(1) - 1).clamp_(min=0)
    inner: Any = getattr(model, "model", None)
    if not hasattr(inner, "get_rope_index"):
        return plain, torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    grids = {name: extra.get(name) for name in ("image_grid_thw", "video_grid_thw")}
    if all(grid is None for grid in grids.values()):
        return plain.expand(3, -1, -1), torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    types = extra["mm_token_type_ids"]
    positions, shift = inner.get_rope_index(ids, mm_token_type_ids=types, attention_mask=mask, **grids)
    return positions, shift.reshape(-1).to(ids.device)
