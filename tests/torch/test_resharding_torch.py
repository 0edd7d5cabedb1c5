"""Tensors and TensorDicts that some ranks recorded, replayed by another number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rolltape
from tests.exact import assert_same
from tests.test_resharding import parts, record, replay


def tensors(n: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(n)
    return {
        "ids": torch.arange(n * 4).reshape(n, 4),
        "half": torch.randn(n, 3).to(torch.bfloat16),
        "mask": torch.rand(n, 4) > 0.5,
        "deep": torch.randn(n, 2, 3, dtype=torch.float64),
        "one": torch.arange(n, dtype=torch.uint8),
    }


def build(kind: str, part: slice, n: int) -> Any:
    found = {name: tensor[part].clone() for name, tensor in tensors(n).items()}
    size = len(found["one"])
    if kind == "dict":
        return {**found, "uid": [f"u{at}" for at in range(n)][part]}
    if kind == "jagged":
        rows = [torch.arange(at % 3 + 1) for at in range(n)][part]
        return {"rows": torch.nested.as_nested_tensor(rows, layout=torch.jagged), "one": found["one"]}
    inner = TensorDict({"z": found.pop("deep")}, batch_size=[size, 2])
    return TensorDict({**found, "inner": inner}, batch_size=[size])


@pytest.mark.parametrize("kind", ["dict", "jagged", "tensordict"])
@pytest.mark.parametrize(("recorded", "replayed"), [(4, 2), (2, 4), (3, 2), (6, 1), (1, 6)])
def test_each_rank_gets_its_part(kind: str, recorded: int, replayed: int, tmp_path: Path) -> None:
    record(tmp_path / "t", [build(kind, part, 12) for part in parts(12, recorded)])
    for rank, part in enumerate(parts(12, replayed)):
        assert_same(replay(tmp_path / "t", rank, replayed), build(kind, part, 12))


def test_widths_that_differ_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "t", [{"ids": torch.ones(2, width)} for width in (3, 4)])
    with pytest.raises(rolltape.MismatchError, match=r"column 'ids' is rows of the shape \[3\] in one"):
        replay(tmp_path / "t", 0, 1)
    assert_same(replay(tmp_path / "t", 1, 4), {"ids": torch.ones(1, 3)})
    assert_same(replay(tmp_path / "t", 2, 4), {"ids": torch.ones(1, 4)})
