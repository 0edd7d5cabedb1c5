"""A batch of completions in progress: a prompt is read once, and all of its completions continue from it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rolltape.engines.transformers.tensor_inputs import Encoded, collate

_LEAST = 64


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of transformers' ``DynamicCache`` that is written in place."""

    keys: torch.Tensor
    values: torch.Tensor
    """Views of the used part."""

    def __init__(self, layer: Any, rows: torch.Tensor | None = None) -> None:
        super().__init__()
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True
        self._adopt(layer.keys, layer.values, rows)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append, and return everything."""
        used = self.keys.shape[-2]
        end = used + key_states.shape[-2]
        if end > self._room[0].shape[-2]:
            self._adopt(self.keys, self.values, None, end)
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, used:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self._room)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        self._adopt(self.keys, self.values, beam_idx)

    def _adopt(
        self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor | None, least: int = 0
    ) -> None:
        used = keys.shape[-2]
        size = max(used, least)
        size += max(_LEAST, size // 4)
        self._room = [self._copied(old, rows, used, size) for old in (keys, values)]
        self.keys, self.values = (room[:, :, :used] for room in self._room)

    def _copied(self, old: torch.Tensor, rows: torch.Tensor | None, used: int, size: int) -> torch.Tensor:
        count = old.shape[0] if rows is None else len(rows)
        room = old.new_empty(count, old.shape[1], size, old.shape[3])
        room[:, :, :used] = old if rows is None else old.index_select(0, rows)
        return room


def expand(cache: Any, rows: torch.Tensor) -> None:
    """Give every completion the cache of its prompt: row ``i`` becomes a copy of row ``rows[i]``."""
    for at, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[at] = RoomyLayer(layer, rows)
        else:  # sliding windows and others keep their class
            layer.reorder_cache(rows)


class Running:
    """The state of the model after some tokens of each row: its cache, mask and positions."""

    def __init__(self, model: Any, prompts: Sequence[Encoded], counts: Sequence[int]) -> None:
        """Read the prompts, and make ``counts[i]`` rows for prompt ``i``."""
        self.model = model
        batch = collate(prompts, model.device)
        self._cache = DynamicCache(config=model.config)
        positions, shift = _positions(model, batch.ids, batch.mask, batch.extra)
        knows = "logits_to_keep" in inspect.signature(model.forward).parameters
        last_only = (
            {"logits_to_keep": 1} if knows else {}
        )  # those inside the prompt are large, and not needed
        logits = model(
            input_ids=batch.ids,
            attention_mask=None if batch.is_dense else batch.mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            **last_only,
            **batch.extra,
        ).logits[:, -1]
        rows = torch.repeat_interleave(
            torch.arange(len(prompts), device=model.device), torch.tensor(counts, device=model.device)
        )
        expand(self._cache, rows)
        self.logits = logits[rows]
        """The logits after the prompts: ``(rows, vocabulary)``."""
        self._next = (batch.lengths + shift)[rows]
        self._mask = None if batch.is_dense else batch.mask[rows]
        self._three = positions.ndim == 3

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append ``(rows, new)`` tokens; return the logits after each, ``(rows, new, vocabulary)``."""
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
        """Continue with these rows only."""
        for layer in self._cache.layers:
            layer.reorder_cache(rows)
        self._next = self._next[rows]
        self._mask = None if self._mask is None else self._mask[rows]


def _positions(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, extra: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions that skip padding, and the offset of those after the prompt from its length.

    Models with two-dimensional positions for images compute the positions themselves.
    """
    plain = (mask.cumsum(1) - 1).clamp_(min=0)
    none = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    inner: Any = getattr(model, "model", None)
    if not hasattr(inner, "get_rope_index"):
        return plain, none
    grids = {name: extra.get(name) for name in ("image_grid_thw", "video_grid_thw")}
    if all(grid is None for grid in grids.values()):
        return plain.expand(3, -1, -1), none
    types = extra["mm_token_type_ids"]
    positions, shift = inner.get_rope_index(ids, mm_token_type_ids=types, attention_mask=mask, **grids)
    return positions, shift.reshape(-1).to(ids.device)
