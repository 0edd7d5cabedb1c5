"""Tensors come back with dtype, shape, memory order, kind and every bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact import assert_roundtrip, assert_same, open_bytes, roundtrip, to_bytes

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point or dtype.is_complex]


def random_tensor(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Every bit at random, NaN payloads included."""
    make = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=make) < 0.5
    size = dtype.itemsize
    data = torch.randint(0, 256, (*shape, size), dtype=torch.uint8, generator=make)
    return data.view(dtype).squeeze(-1) if data.numel() else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype(dtype: torch.dtype) -> None:
    for shape in [(), (1,), (3,), (3, 5), (0,), (3, 0), (2, 3, 4), (3, 70, 40)]:
        tensor = random_tensor(dtype, *shape)
        assert_roundtrip(tensor)
        assert_roundtrip(
            {"uid": ["a", "b", "c"], "t": tensor, "in": [tensor, {"t": tensor}], "tuple": (tensor, 1)}
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_padded_and_derived(dtype: torch.dtype) -> None:
    left, right = random_tensor(dtype, 6, 8), random_tensor(dtype, 6, 12, seed=1)
    for row in range(6):
        left[row, :row] = left[5, 0]
        right[row, 2 * row :] = right[0, 11]
    both = torch.empty(6, 20, dtype=dtype)
    both[:, :8], both[:, 8:] = left, right
    batch = {"a": left, "b": right, "both": both, "again": left.clone(), "part": right[:, 4:]}
    assert_roundtrip(batch)


@given(st.sampled_from(DTYPES), st.data())
@settings(max_examples=80)
def test_views(dtype: torch.dtype, data: Any) -> None:
    tensor = random_tensor(dtype, 3, 2, 4, 3)
    tensor = tensor.permute(data.draw(st.permutations(range(4))))
    if data.draw(st.booleans()):
        tensor = tensor[1:, ..., ::2]
    if data.draw(st.booleans()):
        tensor = tensor[:1].expand(3, *tensor.shape[1:])
    assert_roundtrip(tensor)
    assert_roundtrip({"t": tensor, "rows": list(tensor), "u": [tensor] * 3})


def test_channels_last_keeps_its_order() -> None:
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = roundtrip({"image": image, "other": [image, image]})
    assert back["image"].is_contiguous(memory_format=torch.channels_last)
    assert back["other"][1].stride() == image.stride()


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_lazy_conjugates_and_negatives(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3, 4)
    assert_roundtrip(
        {"conj": tensor.conj(), "neg": tensor.conj().imag if dtype != torch.complex32 else tensor}
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_wanted(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3, 2).requires_grad_()
    batch = {"t": tensor, "p": torch.nn.Parameter(tensor.detach().clone()), "rows": [tensor, tensor.detach()]}
    batch["frozen"] = torch.nn.Parameter(tensor.detach().clone(), requires_grad=False)
    batch["params"] = [batch["p"], batch["frozen"]]
    assert_roundtrip(batch)


def test_results_of_a_computation_come_back_without_its_graph() -> None:
    weight = torch.rand(3, requires_grad=True)
    back = roundtrip({"loss": weight * 2})
    assert back["loss"].is_leaf
    assert back["loss"].requires_grad
    assert torch.equal(back["loss"], weight * 2)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        tensor = torch.rand(2, 3)
        data = to_bytes({"t": tensor})
    assert_same(tensor.clone(), open_bytes(data).value()["t"])


def test_tensors_that_come_back_can_be_edited_and_share_nothing() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    back = roundtrip({"a": tensor, "b": tensor, "rows": [tensor[0], tensor[0]]})
    back["a"] += 1
    back["rows"][0] += 1
    assert_same(back["b"], tensor)
    assert_same(back["rows"][1], tensor[0].clone())


def test_later_edits_do_not_reach_the_recording() -> None:
    from rolltape.batch import dismantle
    from rolltape.codec.file import encode
    from rolltape.codec.pack import pack

    jagged = torch.nested.nested_tensor([torch.arange(3.0), torch.arange(2.0)], layout=torch.jagged)
    value = {
        "t": torch.ones(2, 3),
        "whole": torch.ones(7),
        "rows": [torch.ones(3)] * 2,
        "cell": [{"a": torch.ones(2)}, 1],
    }
    value |= {"jagged": jagged, "numbers": np.ones((2, 2)), "bf16": torch.ones(2, 5, dtype=torch.bfloat16)}
    before = roundtrip(value)
    packed = pack(dismantle(value))
    for tensor in (
        value["t"],
        value["whole"],
        value["rows"][0],
        value["cell"][0]["a"],
        jagged.values(),
        value["bf16"],
    ):
        tensor.zero_()
    value["numbers"][:] = 0
    assert_same(open_bytes(b"".join(bytes(piece) for piece in encode(packed))).value(), before)


def jagged(dtype: torch.dtype = torch.float32, *inner: int) -> torch.Tensor:
    rows = [random_tensor(dtype, n, *inner, seed=n) for n in (3, 0, 5)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def with_holes(offsets: list[int], lengths: list[int]) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(
        torch.rand(10, 2), torch.tensor(offsets), torch.tensor(lengths)
    )


JAGGED = {
    "plain": lambda: jagged(),
    "inner axis": lambda: jagged(torch.bfloat16, 4),
    "int64": lambda: jagged(torch.int64),
    "32 bit offsets": lambda: torch.nested.nested_tensor_from_jagged(
        torch.rand(5), torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    ),
    "ragged axis 2": lambda: jagged(torch.float32, 4).transpose(1, 2),
    "lengths": lambda: with_holes([0, 4, 8, 10], [2, 4, 1]),
    "first row late": lambda: torch.nested.nested_tensor_from_jagged(
        torch.rand(10), torch.tensor([1, 4, 8, 9])
    ),
    "gradient": lambda: jagged().requires_grad_(),
    "other values": lambda: torch.nested.nested_tensor_from_jagged(
        torch.rand(2, 10).T, torch.tensor([0, 4, 8, 10])
    ),
    "empty inner axis": lambda: jagged(torch.float32, 0),
    "strided": lambda: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 4), torch.rand(0, 0)]),
    "strided bf16": lambda: torch.nested.nested_tensor([torch.rand(2).bfloat16(), torch.rand(1).bfloat16()]),
}


@pytest.mark.parametrize("kind", JAGGED)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(kind: str) -> None:
    nested = JAGGED[kind]()
    assert_roundtrip(nested)
    assert_roundtrip({"uid": ["a", "b", "c"], "n": nested, "in": [{"n": nested}, nested, 1]})
    objects = np.empty(2, object)
    objects[0], objects[1] = nested, [nested]
    assert_roundtrip({"objects": objects, "pair": (nested, [nested])})


def test_slices_of_a_jagged_column() -> None:
    rows = [torch.arange(float(n)) for n in (3, 0, 5, 1)]
    file = open_bytes(to_bytes({"n": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}))
    column = file.columns(["n"], 1, 3)["n"]
    assert column.lengths.tolist() == [0, 5]
    assert column.values.tolist() == [0, 1, 2, 3, 4]


@dataclasses.dataclass
class Sample:
    tokens: torch.Tensor
    reward: float
    extra: Any = None


def test_lists_of_tensors_of_differing_lengths() -> None:
    rows = [torch.arange(n) for n in (3, 0, 5)]
    assert_roundtrip(rows)
    assert_roundtrip(
        {"ids": rows, "mixed": [rows[0], rows[1].float(), None], "numpy": [r.numpy() for r in rows]}
    )
    assert_roundtrip([{"ids": row, "logp": row.float()} for row in rows])
    assert_roundtrip([{"ids": row, "chat": [{"role": "user"}]} if len(row) else {"ids": row} for row in rows])


def test_groups_of_samples() -> None:
    group = [[Sample(torch.arange(n), n / 3, {"t": torch.ones(n)}) for n in (g, g + 1)] for g in range(4)]
    assert_roundtrip(group)
    assert_roundtrip([*group, []])
    assert_roundtrip([[], []])
    assert_roundtrip(
        [[{"ids": sample.tokens, "r": sample.reward} for sample in samples] for samples in group]
    )
    assert_roundtrip([*group, [Sample(torch.ones(2), 1.0), "not a sample"]])
    assert open_bytes(to_bytes(group)).samples == 8


def test_a_batch_with_its_metrics() -> None:
    batch = {
        "responses": torch.ones(4, 3, dtype=torch.int64),
        "meta": {"dtype": torch.bfloat16, "size": torch.Size([1, 2])},
    }
    metrics = {
        "loss": torch.tensor(0.5),
        "lr": 1e-6,
        "device": torch.device("cuda:1"),
        "per_token": torch.ones(7),
    }
    assert_roundtrip((batch, metrics))
    assert_roundtrip(
        {"a": np.ones(4), "b": torch.ones(4), "c": [1.0] * 4, "d": (torch.ones(4),), "e": [torch.ones(2)] * 4}
    )


def test_booleans_that_are_other_bytes() -> None:
    odd = torch.tensor([[0, 1, 2], [255, 0, 1]], dtype=torch.uint8).view(torch.bool)
    assert_roundtrip({"mask": odd, "rows": [odd[0], odd[1]]})
