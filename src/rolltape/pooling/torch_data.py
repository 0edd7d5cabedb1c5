"""A pool as datasets of PyTorch: an item for each sample, or padded batches that keep groups together.

>>> import rolltape, tempfile
>>> folder = tempfile.mkdtemp() + "/base"
>>> with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
...     batch = tape.stage("rollout")(
...         lambda: {"prompt_ids": [[1, 2], [1, 2]], "response_ids": [[3], [4, 5]], "reward": [0.0, 1.0]}
...     )()
>>> data = rolltape.pool(folder).torch()
>>> batch = next(iter(torch.utils.data.DataLoader(data, batch_size=2, collate_fn=data.collate)))
>>> batch["responses"].tolist(), batch["reward"].tolist()
([[3, 0], [4, 5]], [0.0, 1.0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from rolltape.pooling.sample_pool import Pool
from rolltape.pooling.training import Training

_ROWS = ("prompt_ids", "response_ids", "response_mask", "logprobs")
_NUMBERS = ("reward", "version", "group", "index", "step")


def _tensors(found: Training, pad: int) -> dict[str, Any]:
    """A padded batch, with what is known of each sample."""
    batch: dict[str, Any] = {name: torch.from_numpy(array) for name, array in found.padded(pad).items()}
    batch |= {name: torch.from_numpy(np.array(getattr(found, name))) for name in _NUMBERS}
    return batch | {"uid": list(found.uid)}


_Dataset: Any = torch.utils.data.Dataset
_IterableDataset: Any = torch.utils.data.IterableDataset


class PoolDataset(_Dataset):  # type: ignore[misc]
    """An item for each sample: its token rows as tensors, its reward, version and group as numbers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __len__(self) -> int:
        return len(self.pool)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return self.__getitems__([range(len(self))[at]])[0]

    def __getitems__(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Several items, each recording opened once; loaders of PyTorch ask this way."""
        found = self.pool.take(list(places)).training()
        rows = {name: getattr(found, name) for name in _ROWS if getattr(found, name) is not None}
        return [
            {name: torch.from_numpy(np.array(row[at])) for name, row in rows.items()}
            | {name: getattr(found, name)[at].item() for name in _NUMBERS}
            | {"uid": found.uid[at]}
            for at in range(len(found))
        ]

    @staticmethod
    def collate(items: Sequence[dict[str, Any]], pad: int = 0) -> dict[str, Any]:
        """Items as one padded batch: the ``collate_fn`` of a loader."""
        rows = {name: [item[name].numpy() for item in items] if name in items[0] else None for name in _ROWS}
        numbers = {name: np.array([item[name] for item in items]) for name in _NUMBERS}
        return _tensors(Training(**rows, **numbers, uid=[item["uid"] for item in items]), pad)  # type: ignore[arg-type]


class PoolBatches(_IterableDataset):  # type: ignore[misc]
    """Padded batches of a pool, groups kept together; workers of a loader and ranks take turns."""

    def __init__(
        self,
        pool: Pool,
        size: int,
        *,
        seed: int | None,
        together: str | None,
        drop_last: bool = False,
        pad: int = 0,
    ) -> None:
        self._pool, self._size, self._seed = pool, size, seed
        self._together, self._drop_last, self._pad = together, drop_last, pad
        self._epoch = 0
        self._rank, self._world_size = 0, 1

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as this epoch does; the same epoch, the same order."""
        self._epoch = epoch

    def of_rank(self, rank: int, world_size: int) -> PoolBatches:
        """Every ``world_size``-th batch from this one on, for a rank; all ranks get as many."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size}")
        self._rank, self._world_size = rank, world_size
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        seed = None if self._seed is None else (self._seed + 1_000_003 * self._epoch)
        every = list(self._pool._batches(self._size, seed, self._together, self._drop_last))
        whole = len(every) - len(every) % self._world_size
        mine = every[self._rank : whole : self._world_size]
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
        for rows in mine:
            yield _tensors(self._pool._taken(rows).training(), self._pad)
