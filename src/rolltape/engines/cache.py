"""The keys and values of a batch with room to grow, so that a token costs no copy of all tokens before it."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

_LEAST = 64


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of transformers' ``DynamicCache`` that is written in place."""

    keys: torch.Tensor
    values: torch.Tensor
    """Views of what is used of the room."""

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
    """Give every completion the cache of its prompt: row ``i`` becomes what row ``rows[i]`` was."""
    for at, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[at] = RoomyLayer(layer, rows)
        else:  # sliding windows and others keep what they are
            layer.reorder_cache(rows)
