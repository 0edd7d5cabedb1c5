"""Tensors without dense bits of their own are refused by field and type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import rolltape
from rolltape.batch import dismantle
from rolltape.codec.pack import pack


class Subclass(torch.Tensor):
    pass


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8)


KINDS: dict[str, tuple[Any, str]] = {
    "sparse coo": (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "sparse csr": (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
    "quantized": (quantized, "torch.Tensor"),
    "subclass": (lambda: torch.rand(3).as_subclass(Subclass), "Subclass"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "generator": (torch.Generator, "Generator"),
    "module": (lambda: torch.nn.Linear(1, 1), "Linear"),
    "named result": (lambda: torch.rand(3, 2).max(dim=1), "torch.return_types.max"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_refused_by_field_and_type(kind: str) -> None:
    make, word = KINDS[kind]
    bad = make()
    places = {"a.b": {"a": {"b": bad}}, "a.1": {"a": (0, bad)}, "a.0": {"uid": [1, 2], "a": [bad, bad]}}
    for place, value in places.items():
        with pytest.raises(rolltape.UnsupportedValueError, match=f"cannot store {place}: ") as caught:
            pack(dismantle(value))
        assert word in str(caught.value)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore")
def test_distributed_tensors_say_how_to_convert_them() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    tensor = distribute_tensor(torch.rand(4, 2), init_device_mesh("cpu", (1,)))
    with pytest.raises(
        rolltape.UnsupportedValueError, match=r"cannot store logits: .*DTensor.*full_tensor"
    ) as caught:
        dismantle({"uid": [1, 2, 3, 4], "logits": tensor})
    assert caught.value.where == "logits"
