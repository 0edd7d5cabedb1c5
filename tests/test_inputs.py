"""Inputs are recorded as they were given, and a replay that is given others is told where they differ."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import (
    MismatchError,
    MisplacedFileError,
    StageError,
    StepMissingError,
    UnsupportedValueError,
)
from tests.taping import failing, files, same

INPUTS = "train/rollout/step_000000.in.parquet"


def call(directory: Path, mode: str, function: Any, *args: Any, inputs: Any = True, **kwargs: Any) -> Any:
    """One call of a stage at step 0 of a tape."""
    options = kwargs.pop("options", {})
    with rolltape.Tape(directory, mode=mode, **options) as tape, tape.step(0):
        return tape.stage("rollout", inputs=inputs)(function)(*args, **kwargs)


def generate(prompts: Any, n: int = 2, *, sampling: Any = None) -> list[str]:
    return ["x"]


PROMPTS = ["why?", "how?", "when?"]
IDS = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0]])


def recorded_inputs(directory: Path) -> Any:
    return rolltape.Tape(directory, mode="replay").recording(0, inputs=True).value()


def test_all_arguments_are_recorded_by_name_with_their_defaults(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS, sampling={"temperature": 0.7})
    assert same(
        recorded_inputs(tmp_path / "t"), {"prompts": PROMPTS, "n": 2, "sampling": {"temperature": 0.7}}
    )
    assert call(tmp_path / "t", "replay", generate, PROMPTS, 2, sampling={"temperature": 0.7}) == ["x"]


def test_only_the_named_ones(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS, sampling=object(), inputs=["n", "prompts"])
    assert same(recorded_inputs(tmp_path / "t"), {"n": 2, "prompts": PROMPTS})
    call(tmp_path / "t", "replay", generate, PROMPTS, sampling="another", inputs=["n", "prompts"])


def test_positional_and_keyword_rests(tmp_path: Path) -> None:
    def generate(first: int, *rest: int, **options: Any) -> list[int]:
        return [first]

    call(tmp_path / "t", "record", generate, 1, 2, 3, top_k=5)
    assert same(recorded_inputs(tmp_path / "t"), {"first": 1, "rest": (2, 3), "options": {"top_k": 5}})
    with pytest.raises(MismatchError, match=r"options\.top_k = 5, now options\.top_k = 6"):
        call(tmp_path / "t", "replay", generate, 1, 2, 3, top_k=6)


def test_inputs_are_those_before_the_call_changed_them(tmp_path: Path) -> None:
    def generate(prompts: list[str], ids: np.ndarray) -> list[str]:
        prompts.clear()
        ids[:] = -1
        return ["x"]

    call(tmp_path / "t", "record", generate, list(PROMPTS), IDS.copy())
    assert same(recorded_inputs(tmp_path / "t"), {"prompts": PROMPTS, "ids": IDS})
    call(tmp_path / "t", "replay", generate, list(PROMPTS), IDS.copy())


MISMATCHES = {
    "text": (PROMPTS, ["why?", "who?", "when?"], "prompts[1] = 'how?'", "prompts[1] = 'who?'"),
    "token": (IDS, IDS + np.eye(3, 4, 1, int), "prompts[0][1] = 2", "prompts[0][1] = 3"),
    "order": (PROMPTS, PROMPTS[::-1], "prompts[0] = 'why?'", "prompts[0] = 'when?'"),
    "number of samples": (PROMPTS, PROMPTS[:2], "3 samples", "2 samples"),
    "dtype": (IDS, IDS.astype(np.int32), "prompts[0] is int64 [4]", "prompts[0] is int32 [4]"),
    "width": (IDS, IDS[:, :3], "prompts[0] is int64 [4]", "prompts[0] is int64 [3]"),
    "an option": ({"t": 0.7, "n": [1]}, {"t": 1.0, "n": [1]}, "prompts.t = 0.7", "prompts.t = 1.0"),
    "an array beside the samples": (
        {"ids": IDS, "table": np.arange(2)}, {"ids": IDS, "table": np.arange(1, 3)},
        "table = int64 [0, 1]", "table = int64 [1, 2]",
    ),
    "a batch inside": ({"ids": IDS}, {"ids": IDS * 2}, "prompts: ids[0][0] = 1", "prompts: ids[0][0] = 2"),
    "negative zero": ([0.0, 1.0], [-0.0, 1.0], "prompts[0] = 0.0", "prompts[0] = -0.0"),
    "ragged": ([[1, 2], [3]], [[1, 2], [4]], "prompts[1][0] = 3", "prompts[1][0] = 4"),
    "nothing": (None, [1], "0 samples", "1 sample"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_names_argument_sample_and_both_values(tmp_path: Path, case: str) -> None:
    recorded, given, old, new = MISMATCHES[case]
    call(tmp_path / "t", "record", generate, recorded)
    call(tmp_path / "t", "replay", generate, recorded)
    with pytest.raises(MismatchError) as caught:
        call(tmp_path / "t", "replay", generate, given)
    assert f"inputs: recorded {old}, now {new}" in str(caught.value)
    assert "step_000000.parquet" in str(caught.value)
    assert "match={'inputs': 'warn'}" in str(caught.value)


def test_a_long_prompt_is_cut_around_the_difference(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, ["system " * 500 + "a" + " user" * 500])
    with pytest.raises(MismatchError) as caught:
        call(tmp_path / "t", "replay", generate, ["system " * 500 + "b" + " user" * 500])
    assert "system a user" in str(caught.value)
    assert "system b user" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_nan_inputs_are_the_same_and_the_order_of_options_does_not_matter(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, [float("nan")], sampling={"a": 1, "b": np.nan})
    call(tmp_path / "t", "replay", generate, [float("nan")], sampling={"b": np.nan, "a": 1})


def test_a_mismatch_can_be_a_warning_or_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS)
    options: dict[str, Any] = {"match": {"inputs": "warn"}}
    assert call(tmp_path / "t", "replay", generate, ["other"], options=options) == ["x"]
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "inputs differs from the recording" in warning
    assert "3 samples, now 1 sample" in warning
    caplog.clear()
    options = {"match": {"inputs": "ignore"}}
    assert call(tmp_path / "t", "replay", generate, object(), options=options) == ["x"], "not even packed"
    assert not caplog.records


def test_inputs_that_were_not_recorded_are_never_the_same(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS, inputs=False)
    assert INPUTS not in files(tmp_path / "t")
    with pytest.raises(MismatchError, match="not recorded: inputs=True was not set"):
        call(tmp_path / "t", "replay", generate, PROMPTS)
    with pytest.raises(StepMissingError, match="recorded without inputs=True"):
        rolltape.Tape(tmp_path / "t", mode="replay").recording(0, inputs=True)
    call(tmp_path / "t", "replay", generate, PROMPTS, inputs=False)


def test_a_substitute_is_not_compared(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="last") as tape, tape.step(5):
        assert tape.stage("rollout", inputs=True)(generate)(["others"]) == ["x"]


def test_inputs_that_are_gone_still_count(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS)
    (tmp_path / "t" / INPUTS).unlink()
    call(tmp_path / "t", "replay", generate, PROMPTS)
    with pytest.raises(MismatchError, match="others, which cannot be read"):
        call(tmp_path / "t", "replay", generate, PROMPTS[:1])


def test_inputs_of_another_recording_are_not_taken_for_these(tmp_path: Path) -> None:
    for name, prompts in (("a", PROMPTS), ("b", ["other"])):
        call(tmp_path / name, "record", generate, prompts)
    (tmp_path / "a" / INPUTS).write_bytes((tmp_path / "b" / INPUTS).read_bytes())
    with pytest.raises(MisplacedFileError, match="a recording of another tape"):
        call(tmp_path / "a", "replay", generate, ["other"])


def test_rewriting_without_inputs_removes_the_old_ones(tmp_path: Path) -> None:
    call(tmp_path / "t", "record", generate, PROMPTS)
    call(tmp_path / "t", "rewrite", generate, PROMPTS, inputs=False)
    assert INPUTS not in files(tmp_path / "t")


def test_where_a_result_is_visible_its_inputs_are_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug = failing(monkeypatch, lambda: OSError("pulled the plug"), "step_000000.parquet")
    with plug, pytest.raises(rolltape.RecordError):
        call(tmp_path / "t", "record", generate, PROMPTS)
    assert files(tmp_path / "t") == {"tape.json", INPUTS}
    call(tmp_path / "t", "record", generate, ["tried again"])
    assert same(recorded_inputs(tmp_path / "t")["prompts"], ["tried again"])


def test_unsupported_inputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnsupportedValueError, match="sampling"):
        call(tmp_path / "t", "record", generate, PROMPTS, sampling=object())
    options = {"on_error": "warn"}
    assert call(tmp_path / "w", "record", generate, PROMPTS, sampling=object(), options=options) == ["x"]
    assert files(tmp_path / "w") == {"tape.json", "train/rollout/step_000000.parquet"}
    assert f"LOST: {INPUTS}" in caplog.text


def test_names_are_checked_when_the_stage_is_declared(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    with pytest.raises(StageError, match="generate has no argument 'prompt' to record") as caught:
        tape.stage("rollout", inputs=["prompt"])(generate)
    assert "prompts, n, sampling" in str(caught.value)
    with pytest.raises(StageError, match=r"inputs=\['prompts'\]"):
        tape.stage("rollout", inputs="prompts")(generate)
    with pytest.raises(StageError, match="does not say what its arguments are"):
        tape.stage("rollout", inputs=True)(min)
    tape.stage("rollout")(min)


def test_self_is_no_input(tmp_path: Path) -> None:
    class Trainer:
        def generate(self, prompts: list[str]) -> list[str]:
            return ["x"]

    call(tmp_path / "a", "record", Trainer().generate, PROMPTS)
    call(tmp_path / "b", "record", Trainer.generate, Trainer(), PROMPTS)
    assert same(recorded_inputs(tmp_path / "a"), {"prompts": PROMPTS})
    assert same(recorded_inputs(tmp_path / "b"), {"prompts": PROMPTS})
