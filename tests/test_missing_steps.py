"""A step that is not on the tape: the error names the cause that really applies, first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import StepMissingError
from tests.taping import Rollout, record


@pytest.fixture
def tape_dir(tmp_path: Path) -> Path:
    record(tmp_path / "t")
    return tmp_path / "t"


def causes(directory: Path, step: int, **options: Any) -> str:
    with pytest.raises(StepMissingError) as caught:
        Rollout(rolltape.Tape(directory, mode="replay", **options)).run([step])
    assert caught.value.where
    assert caught.value.hint
    return "\n".join(caught.value.causes)


def test_the_run_ended_before(tape_dir: Path) -> None:
    assert causes(tape_dir, 7) == "the recorded run ended at step 2\nrecorded steps of train/rollout: 0-2"


def test_a_gap(tmp_path: Path) -> None:
    record(tmp_path / "t", [*range(0, 50, 2), 60])
    said = causes(tmp_path / "t", 7)
    assert "ended" not in said
    assert said == "recorded steps of train/rollout: 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, … 60"


def test_another_split_has_it(tape_dir: Path) -> None:
    assert causes(tape_dir, 1, split="val").splitlines() == [
        "split 'train' has this step; this run asks for split 'val'",
        "stage 'rollout' of split 'val' has no recordings",
    ]


def test_another_stage_has_it(tape_dir: Path) -> None:
    tape = rolltape.Tape(tape_dir, mode="replay")
    with pytest.raises(StepMissingError) as caught, tape.step(1):
        Rollout(tape, "generate").generate(1)
    assert "stage 'rollout' has this step, stage 'generate' does not" in caught.value.causes


def test_another_world_size(tape_dir: Path) -> None:
    said = causes(tape_dir, 1, rank=0, world_size=4)
    assert "it was recorded with world_size 1, and this run has 4" in said


def test_another_rank(tmp_path: Path) -> None:
    for rank in (0, 2):
        record(tmp_path / "t", [1], rank=rank, world_size=4)
    assert "rank 1 did not record it; ranks that did: 0, 2" in causes(tmp_path / "t", 1, rank=1, world_size=4)


def test_an_empty_tape(tmp_path: Path) -> None:
    record(tmp_path / "t", [])
    assert (
        causes(tmp_path / "t", 0)
        == "the tape is empty: nothing was recorded here, or this is another directory"
    )


def test_a_key_that_was_not_recorded(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        for key in ("req-1", "req-2"):
            Rollout(tape).run([1], key=key)
    said = causes(tmp_path / "t", 1)
    assert "call 0 is missing, the step has req-1, req-2: calls are found by the key=" in said


def test_the_tape_that_records_it_is_still_open_here(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record"):
        assert causes(tmp_path / "t", 1).startswith("the tape that records it is still open in this program")
    assert "still open" not in causes(tmp_path / "t", 1)


def test_a_tape_of_metrics_alone_is_not_called_empty(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.log({"loss": 0.5})
    assert causes(tmp_path / "t", 0) == "the tape has metrics, and no recordings: no stage was called"
