"""The prompts of a generation: what is compared with the recording, and how prompts are restored.

verl draws a random ``uid`` for every prompt of every run. It is recorded with the responses (so that
samples can be grouped by prompt), is not compared, and is restored together with the prompts when another
step is played.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

log = logging.getLogger("rolltape")

NOTE = "rolltape"
"""The key of ``meta_info`` that lists what a recording added."""


def comparable(prompts: Any) -> Any:
    """A ``DataProto`` of the same prompts without their random names; shares the values."""
    rest = {name: column for name, column in prompts.non_tensor_batch.items() if name != "uid"}
    return type(prompts)(batch=prompts.batch, non_tensor_batch=rest, meta_info=dict(prompts.meta_info))


def contents(count: int, tensors: Any, columns: Mapping[str, Any]) -> list[Any]:
    """What each prompt is that a batch of verl's holds: all that its sample and the score of that depend on.

    That is its messages or its tokens, its tools, images and answer, but not its name, nor where it stood.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        if name not in _OF_A_RUN:
            for row, value in zip(rows, column, strict=True):
                row[name] = _without_place(value) if name == "extra_info" else value
    names = () if tensors is None else set(tensors.keys())
    if {"input_ids", "attention_mask"} <= set(names):
        pairs = zip(tensors["input_ids"], tensors["attention_mask"], strict=True)
        for row, (ids, mask) in zip(rows, pairs, strict=True):
            row["input_ids"] = ids[mask.bool()]
    return list(rows)


def trajectory_prompts(read: Callable[[], Any], arguments: Mapping[str, Any]) -> list[Any] | None:
    """The prompt of each trajectory of a sample of the V1 trainer; None where one has several outputs."""
    given = arguments.get("prompts")
    if given is None or not hasattr(given, "keys"):
        return None
    recorded = read()
    keys, fields = recorded["batch"].keys, columns_of(recorded["fields"])
    names = {str(name) for name in given.keys() if is_column(given.get(name))} - set(_OF_A_RUN)  # noqa: SIM118
    if not names <= set(fields) or not all(str(key).endswith("_0") for key in keys):
        return None
    return contents(len(keys), None, {name: fields[name] for name in sorted(names)})


def columns_of(fields: Any) -> dict[str, Sequence[Any]]:
    """Every field of a TensorDict as one value per row."""
    import torch

    return {
        name: value.unbind() if isinstance(value, torch.Tensor) else plain_rows(value)
        for name, value in fields.items()
        if is_column(value)
    }


def is_column(value: Any) -> bool:
    """Whether a field has a value for each row, and not one for all."""
    return type(value).__name__ != "NonTensorData"


def plain_rows(value: Any) -> list[Any]:
    """The values of a field that is no tensor."""
    return list(value.tolist() if hasattr(value, "tolist") else value)


_OF_A_RUN = ("uid", "index", "priority", "raw_prompt_ids", "global_steps", "dummy_tensor", "session_id")
"""Columns that say where a prompt stands in a run, or the same as another."""


def _without_place(info: Any) -> Any:
    if not isinstance(info, dict):
        return info
    return {name: value for name, value in info.items() if name not in ("index", "split")}


def whole(prompts: Any, batch: Any) -> Any:
    """The prompts with the columns that their trainer kept to itself, such as answers and uids.

    ``batch`` is the trainer's, before each row was repeated; releases before 0.7 pass on what workers need.
    """
    if batch is None or not len(batch) or len(prompts) % len(batch):
        return prompts
    times = len(prompts) // len(batch)
    kept = {
        name: column.repeat(times)
        for name, column in batch.non_tensor_batch.items()
        if name not in prompts.non_tensor_batch
    }
    columns = {**prompts.non_tensor_batch, **kept}
    return type(prompts)(batch=prompts.batch, non_tensor_batch=columns, meta_info=prompts.meta_info)


def with_uids(output: Any, prompts: Any) -> Any:
    """The output as it is recorded: with the uid of each sample, if verl omitted it."""
    uids = prompts.non_tensor_batch.get("uid")
    if uids is None or "uid" in output.non_tensor_batch or len(uids) != len(output):
        return output
    columns = {**output.non_tensor_batch, "uid": uids}
    meta = {**output.meta_info, NOTE: {"added": ["uid"]}}
    return type(output)(batch=output.batch, non_tensor_batch=columns, meta_info=meta)


def as_returned(recorded: Any) -> Any:
    """The output as verl's function returned it."""
    note = recorded.meta_info.pop(NOTE, None)
    for name in (note or {}).get("added", ()):
        recorded.non_tensor_batch.pop(name)
    return recorded


def renamed(output: Any, prompts: Any) -> Any:
    """An output put together of several recordings, with what verl copies into it from its prompts."""
    for name, column in prompts.non_tensor_batch.items():
        if name in output.non_tensor_batch and len(column) == len(output):
            output.non_tensor_batch[name] = column
    return output


def restore(prompts: Any, recorded: Any, uids: Any) -> None:
    """Replace ``prompts`` by the recorded ones, in place: responses of another step need its answers."""
    prompts.batch = recorded.batch
    prompts.non_tensor_batch = dict(recorded.non_tensor_batch)
    if uids is not None:
        prompts.non_tensor_batch["uid"] = uids


def restore_groups(batch: Any, recorded: Any, uids: Any) -> None:
    """The same for the batch before it was repeated n times: one row for each recorded uid.

    Without uids, which the DAPO recipe draws later, prompts lie together as often as each is repeated.
    """
    import numpy as np

    if uids is None:
        rows = np.arange(0, len(recorded), max(1, len(recorded) // max(1, len(batch))))
    else:
        _, first = np.unique(np.asarray(uids, dtype=str), return_index=True)
        rows = np.sort(first)
    if len(rows) != len(batch):
        log.warning(
            "the played step has %d prompts, but this one has %d; answers stay as they are",
            len(rows),
            len(batch),
        )
        return
    known = recorded.non_tensor_batch if uids is None else {**recorded.non_tensor_batch, "uid": uids}
    for name in batch.non_tensor_batch:
        if name in known:
            batch.non_tensor_batch[name] = known[name][rows]
