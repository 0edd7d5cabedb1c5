"""A tape for other tools: one row per sample, values exact, padding gone, nothing half written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.cli.app import exit_code
from rolltape.cli.commands.export import command
from rolltape.errors import BatchError, ConfigError
from rolltape.exporting import Choice, export_tape
from rolltape.steps import StepSelector

PROMPTS = np.array([[0, 0, 5], [0, 6, 7], [8, 9, 1], [0, 0, 5]])
RESPONSES = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 7], [0, 0, 0, 0]])
MASK = np.array([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0, 0], [1] * 7, [0, 0, 1, 0, 0, 0, 0]])


def batch(step: int) -> dict[str, Any]:
    scores = np.zeros((4, 4), np.float32)
    scores[0, 1], scores[2, 3] = 0.1, math.nan
    return {
        "uid": np.array(["a", "a", "b", "a"], dtype=object),
        "prompts": PROMPTS,
        "responses": RESPONSES,
        "attention_mask": MASK,
        "input_ids": np.concatenate([PROMPTS, RESPONSES], 1),
        "rm_scores": scores,
        "reward": [0.5, 1.0, 2.5, step + 0.25],
        "prompt": ["p", "q\n", "ä\u2028", "p"],
        "extra": [{"a": 1}, None, [b"x", (1, 2)], {"n": np.int64(3), "f": float("inf")}],
        "index": [7, 8, 9, 10],
        "image": [np.arange(6, dtype=np.uint8).reshape(2, 3)] * 4,
        "meta": {"temperature": 0.7},
    }


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        rollout = tape.stage("rollout")(batch)
        for step in (0, 1, 2):
            with tape.step(step):
                rollout(step)
        with tape.step(0, split="val"):
            rollout(9)
    return tmp_path / "tape"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]


def test_jsonl(tape: Path, tmp_path: Path) -> None:
    report = export_tape(tape, tmp_path / "out.jsonl", "jsonl")
    rows = lines(tmp_path / "out.jsonl")
    assert (report.recordings, report.samples, len(rows)) == (4, 16, 16)
    first, second, third, fourth = rows[:4]
    assert list(first)[:6] == ["step", "uid", "index", "split", "stage", "call"]
    assert [(r["step"], r["uid"], r["index"]) for r in rows[:4]] == [
        (0, "a", 0),
        (0, "a", 1),
        (0, "b", 0),
        (0, "a", 2),
    ]
    assert (first["prompts"], first["responses"], first["input_ids"]) == ([5], [1, 2], [5, 1, 2])
    assert (second["prompts"], second["responses"]) == ([6, 7], [3, 0])
    assert (fourth["prompts"], fourth["responses"], fourth["input_ids"]) == ([5], [], [5])
    assert first["attention_mask"] == [1, 1, 1]
    assert first["rm_scores"] == [0.0, float(np.float32(0.1))]
    assert third["rm_scores"] == [0.0, 0.0, 0.0, None]
    assert [r["prompt"] for r in rows[:3]] == ["p", "q\n", "ä\u2028"]
    assert third["extra"] == ["eA==", [1, 2]]
    assert fourth["extra"] == {"n": 3, "f": None}
    assert first["recorded_index"] == 7
    assert first["image"] == [[0, 1, 2], [3, 4, 5]]
    assert (rows[-1]["split"], rows[-1]["reward"]) == ("val", 9.25)


def test_parquet_for_datasets(tape: Path, tmp_path: Path) -> None:
    report = export_tape(tape, tmp_path / "data", "parquet")
    names = sorted(f.name for f in (tmp_path / "data").iterdir())
    assert names == ["train-00000-of-00001.parquet", "val-00000-of-00001.parquet"]
    assert sorted(Path(f).name for f in report.files) == names
    table = pq.read_table(tmp_path / "data" / names[0])
    assert table.num_rows == 12
    rows = table.to_pylist()
    assert (rows[0]["step"], rows[0]["uid"], rows[0]["responses"], rows[3]["responses"]) == (
        0,
        "a",
        [1, 2],
        [],
    )
    assert math.isnan(rows[2]["rm_scores"][3])
    assert str(table.schema.field("responses").type.value_type) == "int64"
    assert str(table.schema.field("rm_scores").type.value_type) == "float"
    assert json.loads(rows[2]["extra"]) == ["eA==", [1, 2]]
    assert rows[0]["image"] == [[0, 1, 2], [3, 4, 5]]


def test_one_parquet_file(tape: Path, tmp_path: Path) -> None:
    export_tape(tape, tmp_path / "all.parquet", "parquet")
    assert pq.read_table(tmp_path / "all.parquet")["split"].to_pylist() == ["train"] * 12 + ["val"] * 4


def test_recordings_of_different_columns_share_one_schema(tmp_path: Path) -> None:
    values = [
        {"uid": ["a"], "x": np.array([[1, 2]], np.int32), "y": [1], "z": ["t"], "w": [[1]]},
        {"uid": ["b"], "x": np.array([[1.5, 2.5]], np.float32), "y": ["one"], "new": [True], "w": [["s"]]},
    ]
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda step: values[step])
        for step in (0, 1):
            with tape.step(step):
                rollout(step)
    export_tape(tmp_path / "t", tmp_path / "o.parquet", "parquet")
    first, second = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert (first["x"], second["x"]) == ([1.0, 2.0], [1.5, 2.5])
    assert (first["y"], second["y"], first["z"], second["z"], first["new"], second["new"]) == (
        "1", "one", "t", None, None, True,
    )  # fmt: skip
    assert [json.loads(row["w"]) for row in (first, second)] == [[1], ["s"]]


def test_steps_columns_split_and_stage_are_chosen(tape: Path, tmp_path: Path) -> None:
    choice = Choice(StepSelector.parse("1-"), ["responses", "uid"], "rollout", "train")
    export_tape(tape, tmp_path / "o.jsonl", "jsonl", choice)
    rows = lines(tmp_path / "o.jsonl")
    assert {row["step"] for row in rows} == {1, 2}
    assert set(rows[0]) == {"step", "uid", "index", "split", "stage", "call", "responses"}
    with pytest.raises(BatchError, match="no column 'nope'"):
        export_tape(tape, tmp_path / "p.jsonl", "jsonl", Choice(columns=["nope"]))
    assert not list(tmp_path.glob("*p.jsonl*"))


def test_without_a_mask_the_padding_of_the_ids_counts(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        value = {"prompts": PROMPTS, "responses": RESPONSES, "scores": RESPONSES / 2}
        rollout = tape.stage("rollout")(lambda: value)
        with tape.step(0):
            rollout()
    export_tape(tmp_path / "t", tmp_path / "o.jsonl", "jsonl")
    rows = lines(tmp_path / "o.jsonl")
    assert [row["prompts"] for row in rows] == [[5], [6, 7], [8, 9, 1], [5]]
    assert [row["scores"] for row in rows] == [[0.5, 1.0], [1.5], [2.0, 2.5, 3.0, 3.5], []]


def test_a_damaged_recording_is_named_and_the_others_exported(tape: Path, tmp_path: Path) -> None:
    damaged = tape / "train" / "rollout" / "step_000001.parquet"
    data = bytearray(damaged.read_bytes())
    data[20] ^= 1  # in the first column
    damaged.write_bytes(data)
    report = export_tape(tape, tmp_path / "o.jsonl", "jsonl")
    assert list(report.damaged) == ["train/rollout/step_000001.parquet"]
    assert {(row["split"], row["step"]) for row in lines(tmp_path / "o.jsonl")} == {
        ("train", 0),
        ("train", 2),
        ("val", 0),
    }


def test_nothing_is_overwritten_or_left_half_written(
    tape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        export_tape(tape, tmp_path / "there.jsonl", "jsonl")
    before = sorted(tmp_path.iterdir())

    def fail(done: int, total: int, name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for form, name in (("jsonl", "o.jsonl"), ("parquet", "o"), ("parquet", "o.parquet")):
        with pytest.raises(KeyboardInterrupt):
            export_tape(tape, tmp_path / name, form, progress=fail)
        assert sorted(tmp_path.iterdir()) == before


def run(*arguments: object) -> int:
    return exit_code(lambda: command.main([str(a) for a in arguments], standalone_mode=False))


def test_exit_codes(tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tape, "--to", tmp_path / "a.jsonl", "--format", "jsonl") == 0
    assert "16 samples of 4 recordings" in capsys.readouterr().out
    assert run(tape, "--to", tmp_path / "b", "--format", "parquet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 16
    assert run(tape, "--to", tmp_path / "a.jsonl", "--format", "jsonl") == 2
    assert run(tape, "--to", tmp_path / "c.jsonl", "--format", "xml") == 2
    assert run(tmp_path / "nowhere", "--to", tmp_path / "c.jsonl", "--format", "jsonl") == 2
    assert run(tape, "--to", tmp_path / "c.jsonl", "--format", "jsonl", "--steps", "99") == 3
    assert run(tape, "--to", tmp_path / "c.jsonl", "--format", "jsonl", "--stage", "reward") == 3
    assert not (tmp_path / "c.jsonl").exists()
    (tape / "train" / "rollout" / "step_000001.parquet").write_bytes(b"PAR1")
    assert run(tape, "--to", tmp_path / "d.jsonl", "--format", "jsonl") == 1


def test_standard_output(tape: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(tape, "--to", "-", "--format", "jsonl", "--columns", "reward") == 0
    assert len(capfdbinary.readouterr().out.splitlines()) == 16
