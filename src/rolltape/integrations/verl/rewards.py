"""Recomputes the rewards of replayed responses with verl's own reward workers.

verl computes rewards inside generation, so a replay returns the recorded ones. With ``recompute``, for
people who edit a reward function, the recorded responses are scored again, and the score is put where verl
puts it.
"""

from __future__ import annotations

from typing import Any

from rolltape.errors import ConfigError

_MODEL_INPUTS = ("prompts", "responses", "input_ids", "attention_mask", "position_ids")


async def recompute(manager: Any, prompts: Any, output: Any) -> Any:
    """Replace ``rm_scores`` and what came with them; returns the output."""
    handles = getattr(manager, "reward_loop_worker_handles", None)
    if not handles:
        raise ConfigError(
            "rewards should be recomputed, but this run has no reward workers",
            causes=["the reward model runs in the trainer, which scores replayed responses anyway"],
            hint="leave ROLLTAPE_VERL_REWARD unset",
        )
    results = await handles[0].compute_score_batch.remote(_question(prompts, output))
    return with_scores(output, results)


def _question(prompts: Any, output: Any) -> Any:
    """The request to the reward workers: prompts with their answers, and the recorded responses."""
    import numpy as np

    stale = output.meta_info.get("reward_extra_keys", ())
    extras = {name: column for name, column in output.non_tensor_batch.items() if name not in stale}
    turns = extras.pop("__num_turns__", None)
    fields = np.empty(len(output), dtype=object)
    fields[:] = [{name: column[row] for name, column in extras.items()} for row in range(len(output))]
    columns = {**prompts.non_tensor_batch, "tool_extra_fields": fields}
    if turns is not None:
        columns["__num_turns__"] = turns
    batch = output.batch.select(*[name for name in _MODEL_INPUTS if name in output.batch])
    return type(output)(batch=batch, non_tensor_batch=columns)


def with_scores(output: Any, results: list[dict[str, Any]]) -> Any:
    """Put scores at the last token of each response, and the reward's extra values in their columns."""
    import numpy as np
    import torch

    width = output.batch["responses"].shape[1]
    last = output.batch["attention_mask"][:, -width:].sum(dim=1) - 1
    scores = torch.zeros_like(output.batch["response_mask"], dtype=torch.float32)
    values = torch.tensor([result["reward_score"] for result in results], dtype=torch.float32)
    scores[torch.arange(len(results)), last] = values
    output.batch["rm_scores"] = scores
    for name in output.meta_info.get("reward_extra_keys", ()):
        output.non_tensor_batch.pop(name, None)
    keys = list(results[0].get("reward_extra_info", {})) if results else []
    for name in keys:
        output.non_tensor_batch[name] = np.array([result["reward_extra_info"][name] for result in results])
    output.meta_info["reward_extra_keys"] = keys
    return output
