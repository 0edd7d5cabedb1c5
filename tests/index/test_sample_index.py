"""The index of samples: made as recording goes or later, by several writers, merged, checked and shown."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rolltape
from rolltape.cli import main
from rolltape.index import SampleIndex, canonical, index_building, index_writer, prompt_digest
from rolltape.index.index_building import build_index, check_index
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from tests.index.generating import Generation
from tests.index.test_by_prompt import recorded


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "samples.index/train/rollout").iterdir())


def test_recording_makes_it(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    index = SampleIndex(rolltape.open(tmp_path / "tape"), read=False)
    assert (len(index), index.unindexed(), len(index.parts)) == (48, [], 1)
    assert check_index(rolltape.open(tmp_path / "tape")) == []
    assert inspect(LocalStorage(str(tmp_path / "tape"))).findings == []
    assert rolltape.open(tmp_path / "tape").splits == ["train"]


def test_what_it_says_of_a_sample(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(4):
        tape.stage("rollout", inputs=True)(
            lambda prompts: {
                "uid": ["x", "x", "y", "y"],
                "response_ids": [[1, 2], [3], [4, 5, 6], []],
                "reward": [0.5, 1.0, float("nan"), -1.0],
                "finish_reason": ["stop", "length", "stop", None],
                "weights_version": np.array([3, 3, 4, 4]),
            }
        )(["a", [1, 2]])
    index = SampleIndex(rolltape.open(tmp_path / "tape"))
    first, second = index.samples_of("a")
    assert (first.step, first.row, first.uid, first.index, first.reward) == (4, 0, "x", 0, 0.5)
    assert (second.row, second.index, second.finish, second.policy) == (1, 1, "length", 3)
    third, fourth = index.samples_of(np.array([1, 2], np.int16))
    assert (third.response_tokens, third.reward, third.version) == (3, None, 4)
    assert (fourth.finish, fourth.reward) == (None, -1.0)
    assert index.samples_of([1, 2, 3]) == []
    table = next(index.tables(("split", "path", "step", "row")))
    assert table.to_pylist()[0].keys() == {"split", "path", "step", "row"}


def test_a_killed_writer_costs_nothing_but_reading(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    for part in parts(tmp_path / "tape"):
        part.unlink()
    index = SampleIndex(rolltape.open(tmp_path / "tape"))
    assert (len(index), len(index.unindexed())) == (48, 3)
    assert len(index.samples_of("a1")) == 8
    assert not parts(tmp_path / "tape"), "looking writes nothing"


def _write(folder: str, rank: int) -> None:
    with rolltape.Tape(folder, mode="auto") as tape:
        stage = Generation(rank).stage(tape)
        for step in range(3):
            with tape.step(step, key=f"writer {rank}"):
                stage([f"{rank} {step}", f"all {step}"], n=2)


def test_several_writers(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    rolltape.Tape(folder, mode="record").close()
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(folder), rank)) for rank in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    index = SampleIndex(rolltape.open(folder), read=False)
    assert index.unindexed() == []
    assert sum(len(index.samples_of(f"{rank} {step}")) for rank in range(3) for step in range(3)) == 18
    before = {
        digest: index.find(digest) for digest in (prompt_digest(canonical(f"all {s}")) for s in range(3))
    }
    assert build_index(rolltape.open(folder)).read == 0
    assert len(parts(folder)) == 1
    index.refresh()
    assert {digest: index.find(digest) for digest in before} == before
    assert check_index(rolltape.open(folder)) == []


def test_a_long_run_merges_its_own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "MOST_ROWS", 1)
    monkeypatch.setattr(index_writer, "MOST_PARTS", 3)
    recorded(tmp_path / "tape", steps=9, n=2)
    assert len(parts(tmp_path / "tape")) <= 4
    index = SampleIndex(rolltape.open(tmp_path / "tape"), read=False)
    assert (len(index), index.unindexed()) == (36, [])


def test_a_merge_that_was_killed_leaves_every_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tape"
    monkeypatch.setattr(index_writer, "MOST_ROWS", 1)
    recorded(folder, steps=4, n=2)
    old = {part: part.read_bytes() for part in parts(folder)}
    assert len(old) > 1
    build_index(rolltape.open(folder))
    for part, data in old.items():  # those that a killed merge had not deleted yet
        part.write_bytes(data)
    assert len(SampleIndex(rolltape.open(folder))) == 16
    build_index(rolltape.open(folder))
    assert len(parts(folder)) == 1


def test_large_indexes_are_read_group_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_building, "PART_ROWS", 200)
    monkeypatch.setattr("rolltape.index.index_part.GROUP_ROWS", 16)
    monkeypatch.setattr("rolltape.index.index_part.SMALL", 0)
    generation = Generation()
    folder = tmp_path / "tape"
    with rolltape.Tape(folder, mode="record") as tape:
        stage = generation.stage(tape)
        for step in range(10):
            with tape.step(step):
                stage([f"{step} {at}" for at in range(10)] + ["of all steps"], n=5)
                generation.made.clear()
    index_building.drop_index(rolltape.open(folder), "rollout", "train")
    build_index(rolltape.open(folder))
    index = SampleIndex(rolltape.open(folder), read=False)
    assert len(index.parts) > 1
    for step in range(10):
        for at in range(10):
            assert [one.row for one in index.samples_of(f"{step} {at}")] == list(range(5 * at, 5 * at + 5))
    assert [one.step for one in index.samples_of("of all steps")] == [
        step for step in range(10) for _ in range(5)
    ]
    assert len(index) == 550
    assert check_index(rolltape.open(folder)) == []


def test_copies_make_their_own(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    done = CliRunner().invoke(main, ["push", str(tmp_path / "tape"), str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "copy/samples.index").exists()
    assert len(SampleIndex(rolltape.open(tmp_path / "copy")).samples_of("bb2")) == 8


def invoke(*words: str) -> Any:
    return CliRunner().invoke(main, ["index", *words])


def test_the_command(tmp_path: Path) -> None:
    folder = str(tmp_path / "tape")
    recorded(tmp_path / "tape")
    for part in parts(tmp_path / "tape"):
        part.unlink()
    shown = json.loads(invoke("show", folder, "--json").stdout)["stages"]["train/rollout"]
    assert (shown["recordings"], shown["indexed"], shown["samples"]) == (3, 0, 0)
    assert invoke("check", folder).exit_code == 0
    done = invoke("build", folder)
    assert done.exit_code == 0
    assert "48 samples of 3 recordings" in done.output
    assert invoke("check", folder).exit_code == 0
    (tmp_path / "tape/train/rollout/step_000001.parquet").unlink()
    done = invoke("check", folder)
    assert done.exit_code == 1
    assert "stale" in done.output
    assert json.loads(invoke("build", folder, "--json").stdout)["stages"]["train/rollout"]["samples"] == 32
    assert invoke("build", folder, "--stage", "nothing").exit_code == 3
    assert invoke("show", str(tmp_path / "nowhere")).exit_code == 2


def test_a_damaged_recording_is_named_and_left_out(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    for part in parts(tmp_path / "tape"):
        part.unlink()
    damaged = tmp_path / "tape/train/rollout/step_000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    done = invoke("build", str(tmp_path / "tape"))
    assert done.exit_code == 1
    assert "step_000001.parquet" in done.output
    assert len(SampleIndex(rolltape.open(tmp_path / "tape"))) == 32
