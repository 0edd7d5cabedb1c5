"""Renames trajectories: to repeat whole groups, or to assign them to other prompts.

TransferQueue names a trajectory ``<uid of its prompt>_<session>_<index>``; the uid is also one of its fields.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Chosen = list[tuple[int, str]]
"""The row of each trajectory, and its uid."""


def uid_of(key: str) -> str:
    """The prompt that a trajectory belongs to.

    >>> uid_of("3f1c_0_1")
    '3f1c'
    """
    return key.partition("_")[0]


def cycled(keys: Sequence[str], asked: int, salt: str) -> Chosen:
    """``asked`` groups: all groups, repeated as often as needed, each complete, rows in order.

    The first round keeps its uids. Later rounds get new uids, which are the same at every call.

    >>> chosen = cycled(["a_0_0", "b_0_0", "a_1_0"], 3, "step 5")
    >>> [row for row, _ in chosen], len({uid for _, uid in chosen})
    ([0, 1, 2, 0, 2], 3)
    >>> cycled(["a_0_0", "b_0_0", "a_1_0"], 1, "step 5")
    [(0, 'a'), (2, 'a')]
    """
    uids = list(dict.fromkeys(map(uid_of, keys)))
    chosen: Chosen = []
    for turn, start in enumerate(range(0, asked, len(uids))):
        names = {uid: _renamed(uid, salt, turn) for uid in uids[: asked - start]}
        chosen += [(row, names[uid]) for row, key in enumerate(keys) if (uid := uid_of(key)) in names]
    return chosen


def _renamed(uid: str, salt: str, turn: int) -> str:
    return uid if turn == 0 else str(uuid.uuid5(uuid.NAMESPACE_OID, f"{uid} {salt} {turn}"))


def given_to(keys: Sequence[str], recorded: Sequence[str], now: Sequence[str]) -> Chosen:
    """The same trajectories for prompts with other uids in this run, in the order of the prompts."""
    names = dict(zip(recorded, now, strict=True))
    return [(row, names[uid_of(key)]) for row, key in enumerate(keys)]


def regrouped(recorded: Mapping[str, Any], chosen: Chosen) -> dict[str, Any]:
    """A recorded sample (``batch``, ``fields``, …) of the chosen rows, under their uids."""
    from tensordict import NonTensorStack
    from verl.utils.tensordict_utils import index_select_tensor_dict

    batch, fields = recorded["batch"], recorded["fields"]
    rows, uids = [row for row, _ in chosen], [uid for _, uid in chosen]
    if rows != list(range(len(batch.keys))):
        fields = index_select_tensor_dict(fields, rows)
    if "uid" in fields.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
        fields["uid"] = NonTensorStack(*uids)
    keys = [f"{uid}_{batch.keys[row].partition('_')[2]}" for row, uid in chosen]
    renamed = type(batch)(
        partition_id=batch.partition_id,
        keys=keys,
        tags=[dict(batch.tags[row]) for row in rows],
        fields=batch.fields,
        extra_info=batch.extra_info,
    )
    return {**recorded, "batch": renamed, "fields": fields}
