"""Batches as verl's trainer makes them, from a seed."""

import uuid

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto


def objects(values):
    """An object array of one element per value, whatever the values are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def prompts_for(step, prompts=2, n=2, **meta):
    """What `generate_sequences` is given: every prompt n times, under a random uid."""
    rows = [(step * prompts + at, str(uuid.uuid4())) for at in range(prompts) for _ in [0]]
    rows = [row for row in rows for _ in range(n)]
    columns = {
        "raw_prompt": objects([[{"role": "user", "content": f"question {number}"}] for number, _ in rows]),
        "reward_model": objects([{"style": "rule", "ground_truth": str(number)} for number, _ in rows]),
        "uid": objects([uid for _, uid in rows]),
    }
    dummy = TensorDict({"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)}, batch_size=len(rows))
    return DataProto(batch=dummy, non_tensor_batch=columns, meta_info={"temperature": 1.0, **meta})


def output_for(prompts, seed):
    """What a rollout engine could return for them."""
    random = torch.Generator().manual_seed(seed)
    rows, width = len(prompts), 4
    lengths = torch.randint(1, width + 1, (rows,), generator=random)
    mask = (torch.arange(width) < lengths[:, None]).long()
    batch = {
        "responses": torch.randint(1, 900, (rows, width), generator=random) * mask,
        "response_mask": mask,
        "rollout_log_probs": torch.randn(rows, width, generator=random) * mask,
        "rm_scores": torch.rand(rows, width, generator=random).bfloat16(),
    }
    extra = {"__num_turns__": np.full(rows, 2, dtype=np.int32), "acc": np.linspace(0, 1, rows)}
    return DataProto(
        batch=TensorDict(batch, batch_size=rows), non_tensor_batch=extra, meta_info={"timing": {"gen": 0.25}}
    )


def assert_same(left, right):
    """Two DataProto are the same in every bit, dtype and key."""
    assert list(left.batch.keys()) == list(right.batch.keys())
    for name, tensor in left.batch.items():
        assert tensor.dtype == right.batch[name].dtype, name
        assert torch.equal(tensor, right.batch[name]), name
    assert list(left.non_tensor_batch) == list(right.non_tensor_batch)
    for name, column in left.non_tensor_batch.items():
        other = right.non_tensor_batch[name]
        assert column.dtype == other.dtype, name
        assert column.tolist() == other.tolist(), name
    assert left.meta_info == right.meta_info
