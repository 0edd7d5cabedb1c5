"""Padded tensors without their padding, as nested tensors of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rolltape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64], ids=str)
def test_rows_as_a_nested_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    lengths = torch.tensor([3, 0, 7, 1])
    mask = torch.arange(7) < lengths[:, None]
    values = (torch.rand(4, 7) * 50 * mask).to(dtype)
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: {"response_mask": mask, "values": values})
        with tape.step(0):
            rollout()
    recording = next(rolltape.open(tmp_path / "t").recordings())
    found = recording.jagged(["values"], like="response_mask")["values"]
    assert found.values.dtype == dtype
    nested = found.nested()
    assert nested.is_nested
    assert nested.layout is torch.jagged
    assert nested.values().data_ptr() == found.values.data_ptr()
    for row, length in enumerate(lengths.tolist()):
        kept = values[row, :length].view(torch.uint8)
        assert torch.equal(found.row(row).view(torch.uint8), kept)
    assert torch.equal(nested.offsets().diff(), lengths)
