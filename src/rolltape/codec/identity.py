"""Who each sample is: the framework's own uid, or a hash of its prompt, and its index in that group.

Kept as the columns ``_uid`` and ``_index``, so that runs can be compared sample by sample in any order.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.dtypes import NATIVE
from rolltape.batch.tree import Dismantled
from rolltape.codec.cells import cell_parts

UID_NAMES = ("uid", "uids", "sample_uid", "prompt_uid", "group_uid", "group_id", "prompt_id", "group_index")
PROMPT_NAMES = (
    "prompts", "prompt_ids", "raw_prompt_ids", "prompt_token_ids", "prompt", "raw_prompt", "messages",
    "query", "queries", "question", "questions", "input_ids", "tokens",
)  # fmt: skip
MASK_NAMES = ("prompt_mask", "prompt_attention_mask", "attention_mask")
"""What says which of the prompt's tokens are padding, most telling first."""


def identify(parts: Dismantled) -> tuple[list[str], np.ndarray]:
    """The uid of every sample and its index among the samples of that uid."""
    uids = _framework_uids(parts) or _prompt_hashes(parts) or [""] * parts.samples
    seen: Counter[str] = Counter()
    index = np.empty(parts.samples, np.int32)
    for row, uid in enumerate(uids):
        index[row] = seen[uid]
        seen[uid] += 1
    return uids, index


def _framework_uids(parts: Dismantled) -> list[str] | None:
    for column in _columns_named(parts, UID_NAMES):
        if isinstance(column, ObjectColumn) and any(value is not None for value in column.values):
            return [_uid(value) for value in column.values]
        if isinstance(column, ArrayColumn) and column.data.ndim == 1 and column.data.dtype.kind in "iuUS":
            return [_uid(value) for value in column.data.tolist()]
    return None


def _uid(value: Any) -> str:
    if type(value) is int:
        return str(value) if -(2**63) <= value < 2**64 else hex(value)
    if isinstance(value, (str, np.integer, uuid.UUID)):
        return str(value)
    return _hash_value(value)


def _prompt_hashes(parts: Dismantled) -> list[str] | None:
    for column in _columns_named(parts, PROMPT_NAMES):
        if isinstance(column, ObjectColumn):
            known: dict[int, str] = {}  # samples of one prompt often share the very same object
            for value in column.values:
                if id(value) not in known:
                    known[id(value)] = _hash_value(value)
            return [known[id(value)] for value in column.values]
        return [_hash(_canonical(row)) for row in _rows(column, parts)]
    return None


def _rows(column: ArrayColumn | RaggedColumn, parts: Dismantled) -> Iterator[np.ndarray]:
    """The prompt of each sample without padding: it is the same prompt however far it is padded."""
    if isinstance(column, RaggedColumn):
        ends = np.cumsum(column.lengths).tolist()
        return (column.values[e - n : e] for e, n in zip(ends, column.lengths.tolist(), strict=True))
    if column.data.ndim != 2 or not column.data.shape[1] or column.data.dtype.kind not in "iu":
        return iter(column.data)
    kept = _kept(column.data, parts)
    if kept is None:
        left, right = _padding(column.data), _padding(column.data[:, ::-1])
        bounds = zip(left.tolist(), (column.data.shape[1] - right).tolist(), strict=True)
    else:
        stops = kept.shape[1] - kept[:, ::-1].argmax(axis=1)
        bounds = zip(kept.argmax(axis=1).tolist(), np.where(kept.any(axis=1), stops, 0).tolist(), strict=True)
    return (row[start:stop] for row, (start, stop) in zip(column.data, bounds, strict=True))


def _kept(tokens: np.ndarray, parts: Dismantled) -> np.ndarray | None:
    """Which tokens a mask of the batch says are there; a mask of all tokens begins with the prompt's."""
    for mask in _columns_named(parts, MASK_NAMES):
        if isinstance(mask, ArrayColumn) and mask.data.ndim == 2 and mask.data.shape[1] >= tokens.shape[1]:
            return np.asarray(mask.data[:, : tokens.shape[1]] != 0)
    return None


def _padding(rows: np.ndarray) -> np.ndarray:
    """How many elements each row begins with that are padding, judged by the longest run of one value.

    A value that no row repeats is not padding: many prompts begin with the same token.
    """
    other = rows != rows[:, :1]
    runs = np.where(other.any(axis=1), other.argmax(axis=1), rows.shape[1])
    longest = int(runs.argmax())
    if runs[longest] < 2:
        return np.zeros(len(rows), np.int64)
    return np.where(rows[:, 0] == rows[longest, 0], runs, 0)


def _canonical(row: np.ndarray) -> bytes:
    """Token ids are the same ids in every integer dtype."""
    row = np.asarray(row)
    return (row.astype("<i8") if row.dtype.kind in "iu" and row.dtype.name in NATIVE else row).tobytes()


def _columns_named(parts: Dismantled, wanted: Iterable[str]) -> Iterator[Column]:
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(parts.columns))}
    return (parts.columns[by_last[name]] for name in wanted if name in by_last)


def _hash_value(value: Any) -> str:
    if type(value) is str:
        return _hash(value.encode("utf-8", "surrogatepass"))
    return _hash(*cell_parts(value, ()))


def _hash(*data: bytes) -> str:
    state = hashlib.blake2b(digest_size=8)
    for piece in data:
        state.update(piece)
    return state.hexdigest()
