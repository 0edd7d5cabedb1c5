"""In which order the samples of a pool come, which come together, and which come twice. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def batch_rows(
    groups: np.ndarray, size: int, seed: int | None, *, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """The rows of each batch of ``size`` samples; samples of one group are never in two batches.

    Groups come in their order, or shuffled by a seed: the same seed, the same batches, on every machine. A
    group goes into the next batch where this one has no room for it. One that is larger than a batch is a
    batch of its own.

    >>> [rows.tolist() for rows in batch_rows(np.array([0, 0, 1, 1, 2]), 3, None)]
    [[0, 1], [2, 3, 4]]
    """
    order, starts = np.argsort(groups, kind="stable"), None
    ranked = groups[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else np.zeros(0, int)
    members = np.split(order, starts[1:]) if len(order) else []
    members.sort(key=lambda rows: int(rows[0]))
    if seed is not None:
        members = [members[at] for at in np.random.Generator(np.random.PCG64(seed)).permutation(len(members))]
    batch: list[np.ndarray] = []
    held = 0
    for rows in members:
        if batch and held + len(rows) > size:
            yield np.concatenate(batch)
            batch, held = [], 0
        batch.append(rows)
        held += len(rows)
    if batch and not (drop_last and held < size):
        yield np.concatenate(batch)


def first_of_each(*keys: np.ndarray) -> np.ndarray:
    """The first row of each combination of keys, in order.

    >>> first_of_each(np.array([3, 3, 1]), np.array([0, 0, 0])).tolist()
    [0, 2]
    """
    together = np.stack(keys, axis=1) if len(keys[0]) else np.zeros((0, len(keys)), np.int64)
    _, first = np.unique(together, axis=0, return_index=True)
    return np.sort(first)
