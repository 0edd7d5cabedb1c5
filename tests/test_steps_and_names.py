"""Which steps, splits, stages and keys a tape can have; others are refused before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import KeyNameError
from rolltape.steps import MAX_STEP
from tests.taping import Rollout, files, record, same


@pytest.mark.parametrize("step", [0, 999_999, 1_000_000, MAX_STEP - 1, MAX_STEP])
def test_the_range_of_steps(tmp_path: Path, step: int) -> None:
    recorded = record(tmp_path / "t", [step])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert same(Rollout(tape).run([step])[step], recorded[step])
        assert [recording.key.step for recording in tape.recordings()] == [step]


@pytest.mark.parametrize(
    "step", [-1, 2**63, 10**40, True, False, 1.0, "1", None, np.bool_(True), np.float32(1), np.int8(-1)]
)
def test_what_is_no_step(tmp_path: Path, step: Any) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        with pytest.raises(KeyNameError, match="must be a whole number"), tape.step(step):
            raise AssertionError("entered")
        for ask in (tape.plan, tape.recording, lambda step: tape.log({}, step=step)):
            if step is not None or ask in (tape.plan, tape.recording):
                with pytest.raises(KeyNameError):
                    ask(step)
        assert files(tmp_path / "t") == {"tape.json"}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numpy_steps(tmp_path: Path, kind: Any) -> None:
    recorded = record(tmp_path / "t", [kind(7)])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert same(Rollout(tape).run([7])[7], recorded[7])
        assert tape.recording(kind(7)).about["step"] == 7
        assert tape.plan(kind(7)).plays


BAD_NAMES = [
    "..",
    "../x",
    "a/b",
    "a\0b",
    "x" * 300,
    "",
    ".hidden",
    "a b",
    "café",
    "nul",
    "tape.json",
    "a\\b",
    7,
    None,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_no_split_or_stage_can_have(tmp_path: Path, name: Any) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        with pytest.raises(KeyNameError, match="stage name"):
            tape.stage(name)
        if name:  # an empty split, or None, is the split of the settings
            with pytest.raises(KeyNameError, match="split name"), tape.step(0, split=name):
                raise AssertionError("entered")
            with pytest.raises(KeyNameError):
                tape.log({"a": 1}, step=0, split=name)
            with pytest.raises(rolltape.ConfigError):
                rolltape.Tape(tmp_path / "t", split=name)
    assert files(tmp_path / "t") == {"tape.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]


@pytest.mark.parametrize("key", ["a/../../b", "..", "a\0b", "req 7", "é", "%2e", "x" * 200])
def test_a_key_may_be_any_text(tmp_path: Path, key: str) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            assert same(Rollout(tape).run([1], key=key)[1]["text"][0], "step 1 sample 0")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert len(files(tmp_path / "t" / "train" / "rollout")) == 1


@pytest.mark.parametrize("key", ["", "x" * 201, "é" * 90, "\ud800"])
def test_a_key_that_cannot_be_a_file_name_is_refused_when_the_block_is_entered(
    tmp_path: Path, key: str
) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    with pytest.raises(KeyNameError, match="call"), tape.step(0, key=key):
        raise AssertionError("entered")


def test_splits_do_not_mix(tmp_path: Path) -> None:
    """In ROLL the domains of one step overwrite each other's file."""
    with rolltape.Tape(tmp_path / "t", mode="record", split="math") as tape:
        rollout = Rollout(tape)
        with tape.step(0):
            rollout.generate(1)
        with tape.step(0, split="code"):
            rollout.generate(2)
    with rolltape.Tape(tmp_path / "t", mode="replay", split="math") as tape:
        rollout = Rollout(tape, inputs=False)
        assert rollout.run([0])[0]["meta"]["step"] == 1
        assert rollout.run([0], split="code")[0]["meta"]["step"] == 2
