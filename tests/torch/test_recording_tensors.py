"""Tensors on a tape: copied when the stage returns, no random number drawn, used from forked workers."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rolltape
from rolltape.errors import ExpectationError, MismatchError, UnsupportedValueError
from tests.taping import files, held_back


def batch(step: int) -> dict[str, torch.Tensor]:
    tokens = torch.arange(12).reshape(3, 4) + step
    return {"responses": tokens, "logprobs": (tokens / -7).to(torch.bfloat16), "mask": tokens > 5}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def play(directory: Path, mode: str, function: Any, *args: Any, **options: Any) -> Any:
    with rolltape.Tape(directory, mode=mode) as tape, tape.step(0):
        return tape.stage("rollout", **options)(function)(*args)


def test_the_trainer_gets_the_very_tensors_and_may_edit_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(0)
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    stage = tape.stage("rollout")(lambda: made)
    with held_back(monkeypatch) as gate:
        with tape.step(0):
            assert stage() is made
        assert gate.reached.wait(60)
        made["responses"].fill_(-1)
        made["logprobs"].mul_(0)
        made["mask"].logical_not_()
    tape.close()
    assert equal(play(tmp_path / "t", "replay", lambda: None), batch(0))


def test_no_random_number_is_drawn(tmp_path: Path) -> None:
    torch.manual_seed(3)
    states = [random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()]
    play(tmp_path / "t", "record", lambda: batch(0))
    play(tmp_path / "t", "replay", lambda: None)
    assert states == [
        random.getstate(),
        np.random.get_state()[1].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    ]


def test_a_replay_is_fresh_memory_each_time(tmp_path: Path) -> None:
    play(tmp_path / "t", "record", lambda: batch(0))
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        stage = tape.stage("rollout")(lambda: None)
        for _ in range(3):
            with tape.step(0):
                found = stage()
            assert equal(found, batch(0))
            found["responses"].zero_()


def test_expected_dtypes(tmp_path: Path) -> None:
    play(tmp_path / "t", "record", lambda: batch(0), expect={"logprobs": torch.bfloat16, "mask": torch.bool})
    with pytest.raises(ExpectationError, match="'logprobs' is expected to be float32, but it is bfloat16"):
        play(tmp_path / "t", "replay", lambda: None, expect={"logprobs": torch.float32})


def test_inputs_that_are_tensors(tmp_path: Path) -> None:
    def generate(prompts: torch.Tensor) -> torch.Tensor:
        return prompts.mul_(2)

    prompts = torch.arange(6).reshape(2, 3)
    play(tmp_path / "t", "record", generate, prompts.clone(), inputs=True)
    play(tmp_path / "t", "replay", generate, prompts.clone(), inputs=True)
    with pytest.raises(MismatchError, match=r"recorded prompts\[1\]\[2\] = 5, now prompts\[1\]\[2\] = 6"):
        play(tmp_path / "t", "replay", generate, prompts + (prompts == 5), inputs=True)


def test_metrics_are_the_numbers_that_tensors_hold(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        with tape.step(0):
            loss = torch.tensor(0.1, requires_grad=True)
            tape.log({"loss": loss, "bf16": torch.tensor([0.1], dtype=torch.bfloat16), "n": torch.tensor(3)})
            with pytest.raises(UnsupportedValueError, match="one number, and this has 2"):
                tape.log({"two": torch.zeros(2)})
        assert tape.metrics() == {0: {"loss": loss.item(), "bf16": 0.10009765625, "n": 3}}


def test_a_torch_integer_is_a_step(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: batch(0))
        with tape.step(torch.tensor(7)):  # type: ignore[arg-type]
            stage()
        with pytest.raises(rolltape.KeyNameError), tape.step(torch.tensor(True)):  # type: ignore[arg-type]
            raise AssertionError("entered")
    assert "train/rollout/step_000007.parquet" in files(tmp_path / "t")


class Prompts(torch.utils.data.Dataset[Any]):
    """A dataset whose items are made by a stage, in worker processes."""

    def __init__(self, tape: rolltape.Tape) -> None:
        self.tape = tape
        self.tokenize = tape.stage("tokenize")(lambda item: torch.full((2,), item))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> torch.Tensor:
        with self.tape.step(0, key=f"item {item}"):
            found: torch.Tensor = self.tokenize(item)
            return found


def test_a_tape_in_forked_dataloader_workers(tmp_path: Path) -> None:
    found = {}
    for mode in ("record", "replay"):
        tape = rolltape.Tape(tmp_path / "t", mode=mode)
        data = Prompts(tape)
        with tape.step(1, key="parent"):
            data.tokenize(9)  # the parent has a thread and a recording of its own
        loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context="fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[mode] = [int(item[0, 0]) for item in loader]
        tape.close()
    assert found["record"] == found["replay"] == [0, 1, 2, 3]
    assert len(files(tmp_path / "t")) == 1 + 5
