"""Tensors that a stage is given are compared by value, dtype and shape, wherever they lie."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rolltape
from rolltape import MismatchError
from rolltape.batch.digest import digest
from rolltape.batch.registry import adapter_for
from tests.taping import same
from tests.trainers import Trainer, padded

IDS = torch.arange(12).reshape(3, 4)


def call(directory: Path, mode: str, given: Any) -> Any:
    with rolltape.Tape(directory, mode=mode) as tape, tape.step(0):
        return tape.stage("rollout")(lambda given: [1])(given)


OTHERS = {
    "a token": (
        IDS,
        IDS + torch.eye(3, 4, dtype=int) * torch.tensor([[0], [1], [0]]),
        "`given[1]`, now another",
    ),
    "order": (IDS, IDS.flip(0), "the same 3 entries in another order"),
    "more": (IDS, torch.cat([IDS, IDS]), "int64 [3, 4], now int64 [6, 4]"),
    "dtype": (IDS, IDS.int(), "int64 [3, 4], now int32 [3, 4]"),
    "mask": (IDS > 3, IDS > 4, "`given["),
    "batch": ({"input_ids": IDS}, {"input_ids": IDS * 2}, "`given.input_ids[0]`"),
    "tensordict": (TensorDict({"ids": IDS}, [3]), TensorDict({"ids": IDS * 2}, [3]), "`given.items.ids[0]`"),
    "rows": ([IDS[0], IDS[1, :2]], [IDS[0], IDS[1, 1:3]], "`given[1]`, now another one"),
    "jagged": (
        torch.nested.nested_tensor([IDS[0], IDS[1, :2]], layout=torch.jagged),
        torch.nested.nested_tensor([IDS[0], IDS[1, :3]], layout=torch.jagged),
        "`given`",
    ),
    "size of log-probs": (IDS / 7, IDS[:2] / 7, "float32 [3, 4], now float32 [2, 4]"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_tensor_is_an_error_that_names_it(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded, other, text = OTHERS[case]
    call(tmp_path / "t", "record", recorded)
    call(tmp_path / "t", "replay", recorded)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    with pytest.raises(MismatchError) as caught:
        call(tmp_path / "t", "replay", other)
    assert text in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn"])
def test_floats_are_warned_about(tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    one = {"w": torch.zeros(4).to(getattr(torch, dtype)), "step": torch.tensor(3)}
    call(tmp_path / "t", "record", one)
    call(tmp_path / "t", "replay", {**one, "w": torch.ones(4).to(getattr(torch, dtype))})
    [alarm] = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert f"`given.w` ({dtype} [4]), now other values" in alarm


def test_where_it_lies_and_whether_it_trains_make_no_difference() -> None:
    weights = torch.arange(6.0).reshape(2, 3)
    alike = [weights, weights.clone().requires_grad_(), torch.nn.Parameter(weights), weights.T.contiguous().T]
    assert len({str(digest(one, "given")) for one in alike}) == 1
    assert (
        digest(IDS, "given")
        == digest(IDS.numpy(), "given")
        == digest(torch.arange(24)[::2].reshape(3, 4) // 2, "given")
    )
    parts = adapter_for(TensorDict({"ids": IDS}, [3], device="cpu")).to_parts  # type: ignore[union-attr]
    recorded = digest(parts(TensorDict({"ids": IDS}, [3], device="cpu")) | {"device": "cuda:0"}, "given")[0]
    given = digest(TensorDict({"ids": IDS}, [3], device="cpu"), "given")[0]
    assert recorded is not None
    assert given is not None
    assert recorded.exact == given.exact, "a recording comes back on the CPU"


def test_models_and_what_has_no_bits_are_left_out() -> None:
    for value in (torch.nn.Linear(2, 2), torch.Generator(), torch.zeros(2, device="meta"), IDS.to_sparse()):
        found, left = digest(value, "given")
        assert found is None
        assert [one.path for one in left] == ["given"]


def tensors(prompts: list[str]) -> Any:
    return torch.from_numpy(padded(prompts))


def batches(prompts: list[str]) -> Any:
    ids = torch.from_numpy(padded(prompts))
    return {"uid": np.array(prompts), "input_ids": ids, "attention_mask": ids != 0}


def tensor_dicts(prompts: list[str]) -> Any:
    return TensorDict({"input_ids": torch.from_numpy(padded(prompts))}, [len(prompts)])


KINDS: tuple[Callable[[list[str]], Any], ...] = (tensors, batches, tensor_dicts)


def words(step: int, rank: int) -> list[str]:
    return [f"{word} {step} {rank}" for word in ("why", "is", "the", "sky")]


@pytest.mark.parametrize("number", range(9))
def test_trainers_of_many_kinds(tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer.numbered(number, KINDS)
    recorded = trainer.run(tmp_path / "t", "record", words)
    assert same(recorded, trainer.run(tmp_path / "t", "replay", words))
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    for other in (
        lambda step, rank: words(step, rank)[::-1],
        lambda step, rank: [one.upper() for one in words(step, rank)],
    ):
        with pytest.raises(MismatchError, match="batch"):
            trainer.run(tmp_path / "t", "replay", other)
