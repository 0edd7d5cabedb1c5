"""Rewards of trajectories replayed through TransferQueue, computed again by verl's own reward workers.

verl's agent loops ask for one score per conversation, over all of its outputs, and give it to each of them.
The same question is asked here of what was recorded.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from rolltape.errors import ConfigError

_TENSORS = ("prompts", "responses", "input_ids", "position_ids")
_OF_OUTPUTS = ("extra_fields", "metrics", "multi_modal_inputs", "num_turns")
"""What generation added to the columns of a prompt."""


def score_again(trainer: Any, keys: Sequence[str], fields: Any) -> Any:
    """The fields with new ``rm_scores`` and ``reward_extra_info``."""
    handles = trainer.reward_loop_manager.reward_loop_worker_handles
    if not handles:
        raise ConfigError(
            "rewards are to be computed again, but this run has no reward workers",
            causes=["the reward model runs in the trainer, which scores replayed responses anyway"],
            hint="leave ROLLTAPE_VERL_REWARD unset",
        )
    rows, columns = conversations(keys), _columns(fields)
    asked = [
        handles[at % len(handles)].compute_score.remote(_question(columns, found))
        for at, found in enumerate(rows)
    ]
    results = importlib.import_module("ray").get(asked)
    answers = {row: result for found, result in zip(rows, results, strict=True) for row in found}
    return with_scores(fields, [answers[row] for row in range(len(keys))])


def conversations(keys: Sequence[str]) -> list[list[int]]:
    """The rows of each conversation (``uid_session``), its outputs in order.

    >>> conversations(["a_0_1", "a_1_0", "a_0_0"])
    [[2, 0], [1]]
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        name, _, index = key.rpartition("_")
        found.setdefault(name, []).append((int(index), row))
    return [[row for _, row in sorted(outputs)] for outputs in found.values()]


def with_scores(fields: Any, results: Sequence[Mapping[str, Any]]) -> Any:
    """Put scores at the last token of each response, and the reward's extra values beside them."""
    import torch
    from tensordict import NonTensorStack

    scores = []
    for mask, result in zip(fields["response_mask"].unbind(), results, strict=True):
        score = torch.zeros_like(mask, dtype=torch.float32)
        score[-1] = result["reward_score"]
        scores.append(score)
    nested = fields["response_mask"].is_nested
    fields["rm_scores"] = (
        torch.nested.as_nested_tensor(scores, layout=torch.jagged) if nested else torch.stack(scores)
    )
    extras = [
        {**extra, "reward_extra_info": result.get("reward_extra_info", {})}
        for extra, result in zip(_plain(fields["extra_fields"]), results, strict=True)
    ]
    fields["extra_fields"] = NonTensorStack(*extras)
    return fields


def _columns(fields: Any) -> dict[str, Sequence[Any]]:
    """Every field as one value per row."""
    import torch

    return {
        name: value.unbind() if isinstance(value, torch.Tensor) else _plain(value)
        for name, value in fields.items()
    }


def _plain(value: Any) -> list[Any]:
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _question(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> Any:
    """What a reward worker is asked about one conversation."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    of = {name: [column[row] for row in rows] for name, column in columns.items()}
    tensors = {name: of[name] for name in _TENSORS if name in of}
    tensors["attention_mask"] = [torch.ones_like(ids) for ids in tensors["input_ids"]]
    batch = {
        name: torch.nn.utils.rnn.pad_sequence(values, batch_first=True) for name, values in tensors.items()
    }
    stale = "reward_extra_info"
    extras = [{name: value for name, value in extra.items() if name != stale} for extra in of["extra_fields"]]
    asked = {
        name: _objects(values)
        for name, values in of.items()
        if name not in _OF_OUTPUTS and not isinstance(values[0], torch.Tensor)
    }
    asked |= {
        "tool_extra_fields": _objects(extras),
        "__num_turns__": np.array([int(turns) for turns in of["num_turns"]]),
        "prompt_len": np.array([len(row) for row in of["prompts"]]),
        "response_len": np.array([len(row) for row in of["responses"]]),
    }
    return DataProto(batch=TensorDict(batch, batch_size=len(rows)), non_tensor_batch=asked)


def _objects(values: list[Any]) -> Any:
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
