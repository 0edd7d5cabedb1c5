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
INDEX_NAMES = ("index_in_group", "sample_index", "completion_index", "index")
MASK_NAMES = ("prompt_mask", "prompt_attention_mask", "attention_mask")
"""What says which of the prompt's tokens are padding, most telling first."""


def identify(parts: Dismantled) -> tuple[list[str], np.ndarray]:
    """The uid of every sample and its index among the samples of that uid.

    The index is the framework's own, where that tells the samples of a uid apart in any order, else counted.
    """
    uids = _framework_uids(parts) or _prompt_hashes(parts) or [""] * parts.samples
    own = _own_indices(parts, uids)
    if own is not None:
        return uids, own
    seen: Counter[str] = Counter()
    index = np.empty(parts.samples, np.int32)
    for row, uid in enumerate(uids):
        index[row] = seen[uid]
        seen[uid] += 1
    return uids, index


def _own_indices(parts: Dismantled, uids: list[str]) -> np.ndarray | None:
    for name in INDEX_NAMES:
        for column in _columns_named(parts, (name,)):
            own = _indices(column)
            if own is None:
                continue
            pairs = set(zip(uids, own.tolist(), strict=True))
            # What is called just ``index`` may be the row of a dataset: then it does not count from 0.
            counts = name != "index" or own.max(initial=0) < max(Counter(uids).values(), default=1)
            if len(pairs) == len(uids) and counts:
                return own
    return None


def _indices(column: Column) -> np.ndarray | None:
    if isinstance(column, ArrayColumn) and column.data.ndim == 1 and column.data.dtype.kind in "iu":
        values = column.data
    elif isinstance(column, ObjectColumn) and all(type(value) is int for value in column.values):
        values = np.array(column.values, object)
    else:
        return None
    fits = not len(values) or (values.min() >= 0 and values.max() < 2**31)
    return values.astype(np.int32) if fits else None


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
        return _hashes(column, parts)
    for name in PROMPT_NAMES:  # prompts that are records have become a column for each of their fields
        fields = [column for path, column in parts.columns.items() if name in path.split("/")[:-1]]
        if fields:
            rows = zip(*(_hashes(column, parts) for column in fields), strict=True)
            return [_hash("".join(row).encode()) for row in rows]
    return None


def _hashes(column: Column, parts: Dismantled) -> list[str]:
    if not isinstance(column, ObjectColumn):
        return [_hash(_canonical(row)) for row in _rows(column, parts)]
    known: dict[int, str] = {}  # samples of one prompt often share the very same object
    for value in column.values:
        if id(value) not in known:
            known[id(value)] = _hash_value(value)
    return [known[id(value)] for value in column.values]


def _rows(column: ArrayColumn | RaggedColumn, parts: Dismantled) -> Iterator[np.ndarray]:
    """The prompt of each sample without padding: it is the same prompt however far it is padded."""
    if isinstance(column, RaggedColumn):
        ends = np.cumsum(column.lengths).tolist()
        return (column.values[e - n : e] for e, n in zip(ends, column.lengths.tolist(), strict=True))
    if column.data.ndim != 2 or not column.data.shape[1] or column.data.dtype.kind not in "iu":
        return iter(column.data)
    kept = _kept(column.data, parts)
    if kept is None:
        starts, stops = _inside(column.data)
    else:
        stops = np.where(kept.any(axis=1), kept.shape[1] - kept[:, ::-1].argmax(axis=1), 0)
        starts = kept.argmax(axis=1)
    bounds = zip(column.data, starts.tolist(), stops.tolist(), strict=True)
    return (row[start:stop] for row, start, stop in bounds)


def _kept(tokens: np.ndarray, parts: Dismantled) -> np.ndarray | None:
    """Which tokens a mask of the batch says are there; a mask of all tokens begins with the prompt's."""
    for mask in _columns_named(parts, MASK_NAMES):
        if isinstance(mask, ArrayColumn) and mask.data.ndim == 2 and mask.data.shape[1] >= tokens.shape[1]:
            return np.asarray(mask.data[:, : tokens.shape[1]] != 0)
    return None


def _inside(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where rows begin and end without a mask: padding is on the side of the longest run of one value.

    A value that no row repeats is not padding: many prompts begin or end with the same token.
    """
    width = rows.shape[1]
    left, right = _runs(rows), _runs(rows[:, ::-1])
    longest = max(left.max(), right.max())
    everything = np.zeros(len(rows), np.int64), np.full(len(rows), width)
    if longest < 2:
        return everything
    if left.max() == longest:
        pad = rows[left.argmax(), 0]
        return np.where(rows[:, 0] == pad, left, 0), everything[1]
    pad = rows[right.argmax(), -1]
    return everything[0], width - np.where(rows[:, -1] == pad, right, 0)


def _runs(rows: np.ndarray) -> np.ndarray:
    """How many elements each row begins with that are all the same."""
    other = rows != rows[:, :1]
    return np.asarray(np.where(other.any(axis=1), other.argmax(axis=1), rows.shape[1]))


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
