"""A stage may say which dtypes its columns have; another one is an error, recording and replaying."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.errors import ExpectationError, StageError
from tests.taping import batch_of, files


def test_expected_dtypes_on_record(tmp_path: Path) -> None:
    expect = {"logprobs": np.float32, "responses": np.dtype("int64")}
    for on_error in ("raise", "warn"):
        with rolltape.Tape(tmp_path / on_error, mode="record", on_error=on_error) as tape, tape.step(0):
            tape.stage("rollout", expect=expect)(lambda: batch_of(0))()
            wrong = tape.stage("reward", expect={"logprobs": "bfloat16"})(lambda: batch_of(0))
            with pytest.raises(
                ExpectationError, match="'logprobs' is expected to be bfloat16, but it is float32"
            ):
                wrong()
        assert files(tmp_path / on_error) == {"tape.json", "train/rollout/step_000000.parquet"}


def test_expected_dtypes_on_replay(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: batch_of(0))()
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        stages = {
            "float64, but it is float32": {"logprobs": float},
            "int64, but the columns are .*responses": {"nope": int},
            "int64, but it is objects": {"text": int},
        }
        for message, expect in stages.items():
            with pytest.raises(ExpectationError, match=message) as caught, tape.step(0):
                tape.stage("rollout", expect=expect)(batch_of)(0)
            assert "step_000000.parquet" in str(caught.value)
            assert isinstance(caught.value, TypeError)
        with tape.step(0):
            tape.stage("rollout", expect={"logprobs": "float32"})(batch_of)(0)


def test_an_expected_dtype_that_is_none(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    with pytest.raises(StageError, match="'a' is expected to be 'flaot32', which is not a dtype"):
        tape.stage("rollout", expect={"a": "flaot32"})
    tape.stage("rollout", expect={"a": np.bool_, "b": bool, "c": "bfloat16"})(batch_of)
