"""A recording under another's name is refused, by name, on every way of reading it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import MisplacedFileError
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from rolltape.steps import StepSelector
from rolltape.storage import LocalStorage
from rolltape.verify.baseline.acceptance import accept
from rolltape.verify.baseline.cut_tape import cut
from tests.resealing import resealed


def batch(step: int) -> dict[str, Any]:
    return {"uid": ["a", "b"], "reward": np.array([step, step + 0.5])}


def record(folder: Path, steps: range = range(3), **options: Any) -> Path:
    for split in ("train", "val"):
        with rolltape.Tape(folder, mode="record", split=split, **options) as tape:
            stages = [tape.stage(stage, inputs=True)(batch) for stage in ("rollout", "reward")]
            for step in steps:
                with tape.step(step):
                    for run in stages:
                        run(step), run(step)
    return folder


def move(a: str, b: str) -> Callable[[Path, Path], str]:
    def act(tape: Path, other: Path) -> str:
        os.replace(tape / a, tape / b)
        return b

    return act


def swap(a: str, b: str) -> Callable[[Path, Path], str]:
    def act(tape: Path, other: Path) -> str:
        data = (tape / a).read_bytes(), (tape / b).read_bytes()
        (tape / b).write_bytes(data[0]), (tape / a).write_bytes(data[1])
        return b

    return act


def foreign(name: str) -> Callable[[Path, Path], str]:
    def act(tape: Path, other: Path) -> str:
        shutil.copy(other / name, tape / name)
        return name

    return act


ROLLOUT = "train/rollout/step_000001.parquet"
WRONG: dict[str, Callable[[Path, Path], str]] = {
    "renamed": move(ROLLOUT, "train/rollout/step_000008.parquet"),
    "two steps swapped": swap("train/rollout/step_000000.parquet", ROLLOUT),
    "another stage": swap("train/reward/step_000001.parquet", ROLLOUT),
    "another split": swap("val/rollout/step_000001.parquet", ROLLOUT),
    "another call": swap("train/rollout/step_000001.c1.parquet", ROLLOUT),
    "a shard": move(ROLLOUT, "train/rollout/step_000001.r1of2.parquet"),
    "its own inputs": swap("train/rollout/step_000001.in.parquet", ROLLOUT),
    "the same step of another tape": foreign(ROLLOUT),
}


@pytest.fixture(params=WRONG.values(), ids=WRONG)
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Key]:
    tape, other = record(tmp_path / "t"), record(tmp_path / "other")
    name = request.param(tape, other)
    key = Key.parse(name)
    assert key is not None
    return tape, key


def test_replay_refuses_it(wrong: tuple[Path, Key]) -> None:
    folder, key = wrong
    options = {"rank": key.rank, "world_size": key.world_size} if key.world_size > 1 else {}
    with rolltape.Tape(folder, mode="replay", split=key.split, **options) as tape, tape.step(key.step):
        run = tape.stage(key.stage)(batch)
        with pytest.raises(MisplacedFileError) as caught:
            run(key.step)
    assert caught.value.where == str(folder / key.path)


def test_every_way_of_reading_refuses_it(wrong: tuple[Path, Key]) -> None:
    folder, key = wrong
    run = rolltape.open(folder)
    recording = run.recording(key)
    for read in (
        recording.value,
        recording.batch,
        recording.identity,
        recording.verify,
        lambda: recording.about,
    ):
        with pytest.raises(MisplacedFileError):
            read()
    with pytest.raises(MisplacedFileError):
        run.samples(key.step, key.stage, key.split).ids  # noqa: B018
    found = inspect(LocalStorage(folder)).findings
    assert ("misplaced", key.path) in {(finding.kind, finding.file) for finding in found}


def test_a_copy_of_the_tape_is_the_tape(tmp_path: Path) -> None:
    shutil.copytree(record(tmp_path / "t"), tmp_path / "copy")
    assert inspect(LocalStorage(tmp_path / "copy")).findings == []
    assert rolltape.open(tmp_path / "copy").samples(1)["a", 0]["reward"] == 1.0


def test_what_cut_and_accept_copied_belongs_to_the_new_tape(tmp_path: Path) -> None:
    run = rolltape.open(record(tmp_path / "t"))
    cut(run, LocalStorage(tmp_path / "small"), StepSelector.parse("1"), StepSelector.parse("0-"))
    assert inspect(LocalStorage(tmp_path / "small")).findings == []
    small = rolltape.open(tmp_path / "small")
    cut(small, LocalStorage(tmp_path / "smaller"), StepSelector.parse("1"), StepSelector.parse("0"))
    assert inspect(LocalStorage(tmp_path / "smaller")).findings == []
    accept(run, small, author="a", reason="b", verdict="c")
    assert inspect(LocalStorage(tmp_path / "t")).findings == []


def test_an_older_recording_is_checked_by_its_place_alone(tmp_path: Path) -> None:
    tape, other = record(tmp_path / "t", range(2)), record(tmp_path / "other", range(2))

    def older(header: dict[str, Any]) -> None:
        del header["about"]["tape"]

    for name in ("step_000000", "step_000001"):
        place = tape / f"train/rollout/{name}.parquet"
        place.write_bytes(resealed((other / f"train/rollout/{name}.parquet").read_bytes(), older))
    report = inspect(LocalStorage(tape))
    assert report.findings == []
    assert report.anonymous == 2
    swap("train/rollout/step_000000.parquet", ROLLOUT)(tape, other)
    with pytest.raises(MisplacedFileError, match="step 0"):
        rolltape.open(tape).recording(Key(step=1)).value()


def test_a_header_that_does_not_say_what_it_is_is_refused(tmp_path: Path) -> None:
    tape = record(tmp_path / "t", range(1))
    place = tape / Key(step=0).path

    def anonymous(header: dict[str, Any]) -> None:
        header["about"] = {}

    place.write_bytes(resealed(place.read_bytes(), anonymous))
    with pytest.raises(MisplacedFileError):
        rolltape.open(tape).recording(Key(step=0)).value()


def test_the_tape_id_is_read_again_before_a_recording_is_refused(tmp_path: Path) -> None:
    run = rolltape.open(record(tmp_path / "t"))
    assert run.recording(Key(step=0)).value()
    other = record(tmp_path / "other")
    shutil.copy(other / ROLLOUT, tmp_path / "t" / ROLLOUT)
    node = json.loads((tmp_path / "t" / "tape.json").read_text())
    node["sources"] = [rolltape.open(other).id]
    (tmp_path / "t" / "tape.json").write_text(json.dumps(node))
    assert run.recording(Key(step=1)).value()
