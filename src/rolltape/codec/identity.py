"""Who each sample is: the framework's own uid, or a hash of its prompt, and its index in that group.

Kept as the columns ``_uid`` and ``_index``, so that runs can be compared sample by sample in any order.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

from rolltape.batch.columns import ArrayColumn, ObjectColumn
from rolltape.batch.tree import Dismantled

UID_NAMES = ("uid", "uids", "sample_uid", "prompt_uid", "group_uid", "group_id", "prompt_id", "group_index")
PROMPT_NAMES = (
    "prompts", "prompt_ids", "raw_prompt_ids", "prompt_token_ids", "prompt", "raw_prompt", "messages",
    "query", "queries", "question", "questions", "input_ids", "tokens",
)  # fmt: skip

Payload = dict[str, tuple[np.ndarray, np.ndarray]]


def identify(parts: Dismantled, payload: Payload) -> tuple[list[str], np.ndarray]:
    """The uid of every sample and its index among the samples of that uid.

    ``payload`` has the values of array columns without padding, so that a prompt is the same prompt
    however far it is padded.
    """
    uids = _framework_uids(parts) or _prompt_hashes(parts, payload) or [""] * parts.samples
    seen: Counter[str] = Counter()
    index = np.empty(parts.samples, np.int32)
    for row, uid in enumerate(uids):
        index[row] = seen[uid]
        seen[uid] += 1
    return uids, index


def _framework_uids(parts: Dismantled) -> list[str] | None:
    for name in _columns_named(parts, UID_NAMES):
        column = parts.columns[name]
        if isinstance(column, ObjectColumn):
            return [str(value) for value in column.values]
        if isinstance(column, ArrayColumn) and column.data.ndim == 1 and column.data.dtype.kind in "iu":
            return [str(value) for value in column.data.tolist()]
    return None


def _prompt_hashes(parts: Dismantled, payload: Payload) -> list[str] | None:
    for name in _columns_named(parts, PROMPT_NAMES):
        column = parts.columns[name]
        if isinstance(column, ObjectColumn):
            return [_hash(repr(value).encode("utf-8", "replace")) for value in column.values]
        if name in payload:
            values, lengths = payload[name]
            ends = np.cumsum(lengths).tolist()
            return [_hash(values[e - n : e]) for e, n in zip(ends, lengths.tolist(), strict=True)]
    return None


def _columns_named(parts: Dismantled, wanted: tuple[str, ...]) -> list[str]:
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(parts.columns))}
    return [by_last[name] for name in wanted if name in by_last]


def _hash(data: bytes | np.ndarray) -> str:
    return hashlib.blake2b(
        np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data, digest_size=8
    ).hexdigest()
