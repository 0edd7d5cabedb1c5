"""TensorDicts of every kind come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, tensorclass

import rolltape
from rolltape.batch import dismantle
from tests.exact import assert_roundtrip, assert_same, open_bytes, roundtrip, to_bytes


def nested() -> TensorDict:
    inner = TensorDict({"z": torch.rand(2, 3, 4)}, batch_size=[2, 3])
    return TensorDict(
        {"a": torch.rand(2, 5), "inner": inner, "empty": TensorDict({}, batch_size=[2])}, batch_size=[2]
    )


def jagged() -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)


KINDS: dict[str, Any] = {
    "nested": nested,
    "no batch size": lambda: TensorDict({"a": torch.rand(3), "b": torch.tensor(1)}, batch_size=[]),
    "nothing": lambda: TensorDict({}, batch_size=[]),
    "zero samples": lambda: TensorDict({"a": torch.rand(0, 3)}, batch_size=[0]),
    "named": lambda: TensorDict({"a": torch.rand(2, 3, 4)}, batch_size=[2, 3], names=["batch", None]),
    "on a device": lambda: TensorDict({"a": torch.rand(2)}, batch_size=[2], device="cpu"),
    "locked": lambda: nested().lock_(),
    "jagged": lambda: TensorDict({"ids": jagged(), "a": torch.rand(2)}, batch_size=[2]),
    "value": lambda: TensorDict({"v": NonTensorData({"x": (1, "é")}, batch_size=[2])}, batch_size=[2]),
    "values": lambda: TensorDict(
        {"v": NonTensorStack("a", "b"), "w": NonTensorStack({"n": 1}, None)}, batch_size=[2]
    ),
    "arrays as values": lambda: TensorDict(
        {"v": NonTensorData(np.arange(4), batch_size=[2])}, batch_size=[2]
    ),
    "values of two axes": lambda: NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d")),
    "lazy stack": lambda: LazyStackedTensorDict(nested(), nested(), stack_dim=0),
    "lazy stack of differing shapes": lambda: LazyStackedTensorDict(
        TensorDict({"a": torch.rand(3)}, batch_size=[]),
        TensorDict({"a": torch.rand(5)}, batch_size=[]),
        stack_dim=0,
    ),
    "lazy stack along the second axis": lambda: LazyStackedTensorDict(nested(), nested(), stack_dim=1),
    "lazy stack in a tensordict": lambda: TensorDict(
        {"s": LazyStackedTensorDict(nested(), nested())}, batch_size=[2]
    ),
    "named lazy stack": lambda: LazyStackedTensorDict(nested(), nested(), stack_dim=0, stack_dim_name="t"),
    "locked lazy stack": lambda: LazyStackedTensorDict(nested(), nested()).lock_(),
    "single value": lambda: NonTensorData("alone"),
    "gradient": lambda: TensorDict({"a": torch.rand(2, requires_grad=True)}, batch_size=[2]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    assert_roundtrip(KINDS[kind]())
    assert_roundtrip(
        {"td": KINDS[kind](), "list": [KINDS[kind](), KINDS[kind]()], "tuple": (KINDS[kind](), 1)}
    )


def test_entries_are_columns_of_their_own() -> None:
    td = TensorDict(
        {"ids": jagged(), "text": NonTensorStack("a", "b"), "x": torch.rand(2, 3)}, batch_size=[2]
    )
    file = open_bytes(to_bytes(td))
    assert {"ids", "x"} <= set(file.stored_columns)
    assert any(entry.cells == "text" for entry in file.stored_columns.values())


def test_a_device_other_than_the_cpu_becomes_the_cpu() -> None:
    assert roundtrip(TensorDict({}, batch_size=[2], device="cuda:0")).device == torch.device("cpu")


@tensorclass
class Rollout:
    tokens: torch.Tensor
    text: str


def test_tensor_classes_go_on_working() -> None:
    rollout = Rollout(tokens=torch.arange(6).reshape(2, 3), text="t", batch_size=[2])
    for back in (roundtrip(rollout), roundtrip([rollout, rollout])[1]):
        assert type(back) is Rollout
        assert_same(back.tokens, rollout.tokens)
        assert back.text == "t"
        back.tokens = back.tokens + 1
        assert back[0].tokens.tolist() == [1, 2, 3]


def test_hooks_are_refused() -> None:
    stack = LazyStackedTensorDict(nested(), nested(), hook_out=lambda td: td)
    with pytest.raises(rolltape.UnsupportedValueError, match=r"batch.*LazyStackedTensorDict.*hooks"):
        dismantle({"batch": stack})
