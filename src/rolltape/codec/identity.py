"""Who each sample is: the framework's own uid, or a hash of its prompt, and its index in that group.

Kept as the columns ``_uid`` and ``_index``, so that runs can be compared sample by sample in any order.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.dtypes import NATIVE
from rolltape.batch.roles import PROMPTS, columns_with, names_of
from rolltape.batch.tree import Dismantled
from rolltape.codec.cells import cell_parts


def identify(parts: Dismantled, call: str = "") -> tuple[list[str], np.ndarray]:
    """The uid of every sample and its index among the samples of that uid.

    Where neither a uid nor a prompt is there, the name of the call says whose they are.
    The index is the framework's own, where that tells the samples of a uid apart in any order, else counted.
    """
    uids = _framework_uids(parts) or _prompt_hashes(parts) or [call] * parts.samples
    named = ((name, own_indices(parts.columns[name])) for name in columns_with(parts.columns, "index"))
    return uids, indices(uids, ((name, own) for name, own in named if own is not None))


def indices(
    uids: Sequence[str], named: Iterable[tuple[str, np.ndarray]], *, again: bool = False
) -> np.ndarray:
    """Which of its uid each sample is: as the first of these columns says that can be, else counted.

    One can be that tells the samples of a uid apart; with ``again``, also where all come several times.
    """
    sizes = Counter(uids)
    for name, own in named:
        times = Counter(zip(uids, own.tolist(), strict=True))
        rounds = max(times.values(), default=1)
        # What is called just ``index`` may be the row of a dataset: then it does not count from 0.
        row = name.rsplit("/", 1)[-1] == "index"
        counts = not row or own.max(initial=0) < max(sizes.values(), default=1) // rounds
        if counts and (rounds == 1 or (again and min(times.values()) == rounds)):
            return own
    seen: Counter[str] = Counter()
    index = np.empty(len(uids), np.int32)
    for at, uid in enumerate(uids):
        index[at] = seen[uid]
        seen[uid] += 1
    return index


def own_indices(column: Column) -> np.ndarray | None:
    """The whole numbers of a column that may say which of its uid a sample is; None where it has others."""
    if isinstance(column, ArrayColumn) and column.data.ndim == 1 and column.data.dtype.kind in "iu":
        values = column.data
    elif isinstance(column, ObjectColumn) and all(type(value) is int for value in column.values):
        values = np.array(column.values, object)
    else:
        return None
    fits = not len(values) or (values.min() >= 0 and values.max() < 2**31)
    return values.astype(np.int32) if fits else None


def _framework_uids(parts: Dismantled) -> list[str] | None:
    for column in _columns(parts, "uid"):
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
    for column in _columns(parts, *PROMPTS):
        return _hashes(column, parts)
    for name in names_of(*PROMPTS):  # prompts that are records have become a column for each of their fields
        fields = [column for path, column in parts.columns.items() if name in path.split("/")[:-1]]
        if fields:
            rows = zip(*(_hashes(column, parts) for column in fields), strict=True)
            return [_hash("".join(row).encode()) for row in rows]
    return None


def _hashes(column: Column, parts: Dismantled) -> list[str]:
    if not isinstance(column, ObjectColumn):
        found: list[str] = []
        last: bytes | None = None
        for row in _rows(column, parts):
            bits = row.tobytes()
            # Samples of one prompt often lie together: what is one after the other is hashed once.
            found.append(found[-1] if found and bits == last else _hash(_canonical(row)))
            last = bits
        return found
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
    for mask in _columns(parts, "prompt_mask", "attention_mask"):
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


def _columns(parts: Dismantled, *roles: str) -> Iterator[Column]:
    return (parts.columns[name] for name in columns_with(parts.columns, *roles))


def _hash_value(value: Any) -> str:
    if type(value) is str:
        return _hash(value.encode("utf-8", "surrogatepass"))
    return _hash(*cell_parts(value, ()))


def _hash(*data: bytes) -> str:
    state = hashlib.blake2b(digest_size=8)
    for piece in data:
        state.update(piece)
    return state.hexdigest()
