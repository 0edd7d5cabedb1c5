"""A pool as the libraries that train have it; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.errors import MissingDependencyError

if TYPE_CHECKING:
    from rolltape.pooling.sample_pool import Pool


def library(name: str, for_what: str, install: str) -> Any:
    """An optional library; an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        raise MissingDependencyError(
            f"{for_what} needs {missing}, which is not installed", hint=f"pip install {install}"
        ) from None


def polars_frame(pool: Pool, columns: Sequence[str] | None) -> Any:
    """A Polars frame."""
    return library("polars", "pool.polars()", "polars").from_arrow(pool.arrow(columns))


def hugging_face_dataset(pool: Pool, columns: Sequence[str] | None) -> Any:
    """A ``datasets.Dataset``, in memory."""
    datasets = library("datasets", "pool.dataset()", "datasets")
    return datasets.Dataset(datasets.table.InMemoryTable(pool.arrow(columns)))


def torch_dataset(pool: Pool) -> Any:
    """A map-style PyTorch dataset."""
    library("torch", "pool.torch()", '"rolltape[torch]"')
    from rolltape.pooling.torch_data import PoolDataset

    return PoolDataset(pool)


def torch_batches(
    pool: Pool, size: int, seed: int | None, together: str | None, drop_last: bool, pad: int
) -> Any:
    """An iterable PyTorch dataset of padded batches."""
    library("torch", "pool.torch_batches()", '"rolltape[torch]"')
    from rolltape.pooling.torch_data import PoolBatches

    return PoolBatches(pool, size, seed=seed, together=together, drop_last=drop_last, pad=pad)


def data_proto(pool: Pool, pad: int) -> Any:
    """verl's ``DataProto``. Rewards stand on the last token of a response, where verl looks for them."""
    protocol = library("verl.protocol", "pool.data_proto()", '"rolltape[verl]"')
    torch = library("torch", "pool.data_proto()", '"rolltape[torch]"')
    found = pool.training()
    arrays = found.padded(pad)
    if not np.isnan(found.reward).all():
        scores = np.zeros(arrays["responses"].shape, np.float32)
        for at, ids in enumerate(found.response_ids):
            if len(ids):
                scores[at, len(ids) - 1] = found.with_rewards().reward[at]
        arrays["rm_scores"] = scores
    plain = {
        "uid": np.array(group_names(found.uid, found.group), object),
        "index": found.index,
        "weights_version": found.version,
        "recorded_step": found.step,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return protocol.DataProto.from_dict(tensors=tensors, non_tensors=plain)


def group_names(uids: Sequence[str], groups: np.ndarray) -> list[str]:
    """A name for each group: its uid, with a number where two groups have the same.

    >>> group_names(["a", "a", "b"], np.array([0, 1, 2])), group_names(["a", "a"], np.array([4, 4]))
    (['a (0)', 'a (1)', 'b'], ['a', 'a'])
    """
    owners: dict[str, set[int]] = {}
    for uid, group in zip(uids, groups.tolist(), strict=True):
        owners.setdefault(uid, set()).add(group)
    return [
        uid if uid and len(owners[uid]) == 1 else f"{uid} ({group})"
        for uid, group in zip(uids, groups.tolist(), strict=True)
    ]


def trl_columns(pool: Pool) -> dict[str, list[Any]]:
    """What a ``rollout_func`` of TRL returns, with prompts, completions and rewards beside it."""
    found = pool.training()
    columns: dict[str, list[Any]] = {
        "prompt": [_plain_prompt(one) for one in pool.prompts()],
        "completion": pool.responses(),
        "prompt_ids": [ids.tolist() for ids in found.prompt_ids],
        "completion_ids": [ids.tolist() for ids in found.response_ids],
        "completion_mask": [mask.astype(int).tolist() for mask in found.response_mask],
        "reward": [None if np.isnan(one) else float(one) for one in found.reward],
        "group": found.group.tolist(),
        "weights_version": found.version.tolist(),
    }
    if found.logprobs is not None:
        columns["logprobs"] = [np.asarray(row, np.float64).tolist() for row in found.logprobs]
    return columns


def _plain_prompt(prompt: Any) -> Any:
    """A prompt as datasets have it: text, or a chat."""
    for name in ("text", "messages"):
        value = getattr(prompt, name, None) if not isinstance(prompt, str) else None
        if value:
            return value
    return prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
