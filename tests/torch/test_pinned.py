"""``pin=True``: tensors of a replay lie in page-locked memory; where there can be none, that is said once.

There is no device here: torch's allocator is stood in for where it is to succeed.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rolltape
from rolltape.codec.pinned import PinnedMemory
from rolltape.codec.recycled import RECYCLE_FROM
from tests.exact import assert_same

WIDTH = RECYCLE_FROM // 4
DTYPES = (torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.uint16, torch.float8_e4m3fn)


def batch() -> dict[str, Any]:
    inside = torch.arange(WIDTH) < torch.tensor([3, WIDTH, 70, 0])[:, None]
    values = torch.arange(WIDTH).remainder(90) * inside
    found = {str(dtype): values.to(dtype) for dtype in DTYPES}
    plain = np.arange(4 * WIDTH).reshape(4, WIDTH)
    return found | {"cube": torch.rand(4, 8, WIDTH // 8), "plain": plain, "few": torch.ones(4)}


def replay(path: Path, **options: Any) -> Any:
    if not path.exists():
        with rolltape.Tape(path, mode="record") as tape:
            rollout = tape.stage("rollout")(batch_of_this_test)
            for step in range(3):
                with tape.step(step):
                    rollout()
    with rolltape.Tape(path, mode="replay", **options) as tape:
        rollout = tape.stage("rollout")(lambda: None)
        for step in range(3):
            with tape.step(step):
                value = rollout()
            yield value


torch.manual_seed(0)
BATCH = batch()


def batch_of_this_test() -> dict[str, Any]:
    return BATCH


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors that torch was asked to page-lock."""
    found: list[Any] = []

    def allocate(self: PinnedMemory, size: int) -> torch.Tensor:
        found.append(torch.full((size,), 0xEE, dtype=torch.uint8))
        return found[-1]

    monkeypatch.setattr(PinnedMemory, "_pinned", allocate)
    return found


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_tensors_are_those_that_torch_allocated(
    tmp_path: Path, allocated: list[Any], lazy: bool, prefetch: bool
) -> None:
    for value in replay(tmp_path / "t", pin=True, lazy=lazy, prefetch=prefetch):
        assert_same(dict(value), BATCH)
        storages = {one.untyped_storage()._cdata for one in allocated}
        for name, tensor in value.items():
            if name not in ("few", "plain"):
                assert tensor.untyped_storage()._cdata in storages, name
        assert value["few"].untyped_storage()._cdata not in storages


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_where_memory_cannot_be_page_locked_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for value in replay(tmp_path / "t", pin=True):
            assert_same(value, BATCH)
    said = [record.message for record in caplog.records if "pin:" in record.message]
    assert len(said) == 1
    assert "cannot be page-locked" in said[0]


def test_without_torch_it_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(replay(tmp_path / "t"))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(rolltape.MissingDependencyError, match="torch") as caught:
        rolltape.Tape(tmp_path / "t", mode="replay", pin=True)
    assert 'pip install "rolltape[torch]"' in str(caught.value)
