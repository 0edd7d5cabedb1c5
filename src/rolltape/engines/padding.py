"""A rollout as rectangles: prompts padded on the left, responses on the right, masks and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.engines.libraries import library
from rolltape.errors import BatchError

if TYPE_CHECKING:
    from rolltape.engines.rollout import Rollout


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """One row per completion. Torch tensors, or numpy arrays where those were asked for."""

    prompts: Any
    """Token ids, int64, padded on the left."""
    responses: Any
    """Token ids, int64, padded on the right."""
    input_ids: Any
    """Both side by side."""
    attention_mask: Any
    """int64: 1 where there is a token."""
    position_ids: Any
    """int64: counts tokens from 0, not padding."""
    response_mask: Any
    """int64, as wide as the responses."""
    rollout_log_probs: Any
    """float32, as wide as the responses, 0 in the padding."""

    def columns(self) -> dict[str, Any]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def pad(
    rollout: Rollout,
    pad_token_id: int,
    prompt_length: int | None,
    response_length: int | None,
    as_torch: bool,
) -> Padded:
    """See :meth:`Rollout.to_padded`."""
    left = _width("prompt", rollout.prompt_ids, prompt_length)
    right = _width("response", rollout.response_ids, response_length)
    rows = len(rollout)
    prompts = np.full((rows, left), pad_token_id, np.int64)
    responses = np.full((rows, right), pad_token_id, np.int64)
    mask = np.zeros((rows, left + right), np.int64)
    logprobs = np.zeros((rows, right), np.float32)
    for row in range(rows):
        asked, answered = rollout.prompt_ids[row], rollout.response_ids[row]
        prompts[row, left - len(asked) :] = asked
        responses[row, : len(answered)] = answered
        mask[row, left - len(asked) : left + len(answered)] = 1
        logprobs[row, : len(answered)] = rollout.logprobs[row]
    padded = Padded(
        prompts=prompts,
        responses=responses,
        input_ids=np.concatenate([prompts, responses], 1),
        attention_mask=mask,
        position_ids=np.maximum(mask.cumsum(1) - 1, 0),
        response_mask=mask[:, left:].copy(),
        rollout_log_probs=logprobs,
    )
    if not as_torch:
        return padded
    torch = library("torch", extra="torch", for_what="to_padded")
    return Padded(**{name: torch.from_numpy(column) for name, column in padded.columns().items()})


def to_dataproto(
    rollout: Rollout, pad_token_id: int, prompt_length: int | None, response_length: int | None
) -> Any:
    """See :meth:`Rollout.to_dataproto`."""
    protocol = library("verl.protocol", extra="verl", for_what="to_dataproto")
    padded = pad(rollout, pad_token_id, prompt_length, response_length, True)
    return protocol.DataProto.from_dict(
        tensors=padded.columns(),
        non_tensors={
            "uid": np.array(rollout.uid, object),
            "index": rollout.index.astype(object),
            "response_text": np.array(rollout.texts, object),
            "finish_reason": np.array([str(reason) for reason in rollout.finish_reasons], object),
        },
        meta_info={
            "temperature": rollout.sampling.temperature,
            "logprob_kind": str(rollout.logprob_kind),
            "engine": rollout.engine,
            "engine_version": rollout.engine_version,
        },
    )


def _width(what: str, rows: Sequence[np.ndarray], length: int | None) -> int:
    longest = max(map(len, rows), default=0)
    if length is None:
        return longest
    if longest > length:
        row = next(row for row, ids in enumerate(rows) if len(ids) > length)
        raise BatchError(
            f"the {what} of completion {row} has {len(rows[row])} tokens and {what}_length is {length}",
            where=f"rollout.{what}_ids[{row}]",
            hint=f"a larger {what}_length; cutting it here would train on what was never sampled",
        )
    return length
