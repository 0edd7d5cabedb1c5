"""What is exported loads in pandas and DuckDB as it is."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import rolltape
from rolltape.exporting import export_tape


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        rollout = tape.stage("rollout")(
            lambda step: {
                "uid": ["a", "b"],
                "responses": np.array([[1, 2, 0], [3, 0, 0]]) + 10 * step,
                "response_mask": np.array([[1, 1, 0], [1, 0, 0]]),
                "reward": [0.5, 1.5],
                "text": ["x", "y"],
            }
        )
        for step in (0, 1):
            with tape.step(step):
                rollout(step)
    return tmp_path / "tape"


def test_parquet(tape: Path, tmp_path: Path) -> None:
    export_tape(tape, tmp_path / "data", "parquet")
    frame = pd.read_parquet(tmp_path / "data")
    assert [list(row) for row in frame["responses"]] == [[1, 2], [3], [11, 12], [13]]
    what = "select step, sum(reward), max(len(responses))"
    query = f"{what} from '{tmp_path}/data/*.parquet' group by 1 order by 1"
    assert duckdb.sql(query).fetchall() == [(0, 2.0, 2), (1, 2.0, 2)]


def test_jsonl(tape: Path, tmp_path: Path) -> None:
    export_tape(tape, tmp_path / "data.jsonl", "jsonl")
    assert pd.read_json(tmp_path / "data.jsonl", lines=True)["responses"].tolist() == [
        [1, 2],
        [3],
        [11, 12],
        [13],
    ]
    query = f"select uid, text, responses from '{tmp_path}/data.jsonl' where step = 1"
    assert duckdb.sql(query).fetchall() == [("a", "x", [11, 12]), ("b", "y", [13])]
