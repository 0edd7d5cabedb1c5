"""The processes of a data-parallel run, or the only one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_T = TypeVar("_T")


class World:
    """What the processes of a run do together; works with a single process too."""

    def __init__(self) -> None:
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0

    def from_first(self, make: Callable[[], _T]) -> _T:
        """The result of the first process, given to all of them."""
        box: list[Any] = [make() if self.rank == 0 else None]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[no-any-return]

    def gather(self, mine: dict[int, _T]) -> dict[int, _T]:
        """The entries of all processes."""
        boxes: list[Any] = [mine]
        if self.size > 1:
            boxes = [None] * self.size
            dist.all_gather_object(boxes, mine)
        return {key: value for box in boxes for key, value in box.items()}

    def add_up(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Sum tensors over the processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                if tensor is not None:
                    dist.all_reduce(tensor)

    def mine(self, count: int) -> list[int]:
        """This process's share of ``count`` things."""
        return list(range(self.rank, count, self.size))
