"""Tensors keep their memory too: as views, storages, in autograd. None of it is used again too soon."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rolltape
from rolltape.codec.recycled import RECYCLE_FROM, RecycledMemory
from tests.exact import assert_same

SHAPE = (8, RECYCLE_FROM // 32)


def graph(tensor: torch.Tensor) -> Any:
    weight = torch.ones((), requires_grad=True)
    return (tensor * weight).sum()  # keeps the tensor for its backward pass


KEPT_BY: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "a view": lambda tensor: tensor.view(-1),
    "a slice": lambda tensor: tensor[2:3, 5:7],
    "its storage": lambda tensor: tensor.untyped_storage(),
    "an array": lambda tensor: tensor.numpy()[1:],
    "another dtype": lambda tensor: tensor.view(torch.int32)[:, 3:],
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "a detached one": lambda tensor: tensor.detach(),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor),
    "a graph": graph,
    "unbound rows": lambda tensor: tensor.unbind()[-1],
    "a TensorDict": lambda tensor: TensorDict({"x": tensor}, batch_size=[8])[2:4],
    "as_strided": lambda tensor: torch.as_strided(tensor, (3,), (7,), 11),
    "a capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "dlpack of an array": lambda tensor: torch.from_dlpack(tensor.numpy()),
    "a tensor of a buffer": lambda tensor: torch.frombuffer(tensor.numpy(), dtype=torch.uint8)[5:],
    "a data set": lambda tensor: torch.utils.data.TensorDataset(tensor),
    "one that needs a gradient": lambda tensor: tensor.requires_grad_()[1:] * 2,
}


@pytest.mark.parametrize("kept", KEPT_BY)
def test_memory_that_anyone_can_see_is_not_used_again(kept: str) -> None:
    memory = RecycledMemory(2**30)
    array = memory.array(SHAPE, np.dtype("float32"))
    assert array is not None
    tensor = torch.from_numpy(array)
    del array
    tensor.fill_(1)
    seen, where = KEPT_BY[kept](tensor), tensor.data_ptr()
    del tensor
    gc.collect()
    other = memory.array(SHAPE, np.dtype("float32"))
    assert other is not None
    assert other.__array_interface__["data"][0] != where
    del seen
    gc.collect()
    again = memory.array(SHAPE, np.dtype("float32"))
    assert again is not None
    assert again.__array_interface__["data"][0] == where


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_every_dtype_in_used_memory(tmp_path: Path, dtype: torch.dtype) -> None:
    def batch(step: int) -> dict[str, torch.Tensor]:
        width = 4 * RECYCLE_FROM // 8
        made = torch.zeros(8, width, dtype=torch.float32)
        for row in range(8):
            made[row, : width // (row + step + 1)] = torch.arange(width // (row + step + 1)) % 7 - 3
        return {"x": made.to(dtype), "y": made.T.contiguous().T.to(dtype)}

    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            rollout = tape.stage("rollout")(batch)
            for step in range(4):
                with tape.step(step):
                    found = rollout(step)
                assert_same(found, batch(step))
                for tensor in found.values():
                    tensor.fill_(1)
