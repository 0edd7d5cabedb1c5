"""DuckDB, Polars, pandas and pyarrow read the files of a tape as they are, with the types one expects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

import rolltape
from tests.fixtures import content

SAMPLES = 6
LENGTHS = [4, 9, 1, 7, 3, 5]
Read = Callable[[Path, str], list[Any]]


def rollout(step: int = 0) -> dict[str, Any]:
    """A batch as a trainer has it, with padded tensors of many dtypes and plain values."""
    width = max(LENGTHS) + 2
    mask = torch.arange(width) < torch.tensor(LENGTHS)[:, None]
    ids = torch.from_numpy((content.noise(SAMPLES, width, salt=step) % 150_000).astype(np.int64))
    noise = torch.from_numpy(content.log_probs(SAMPLES, width)) * (step + 1)
    return {
        "responses": torch.where(mask, ids, 151_643),
        "response_mask": mask.long(),
        "log_probs": torch.where(mask, noise, 0),
        "entropy": torch.where(mask, noise, 0).double() / 3,
        "half": torch.where(mask, noise, 0).half(),
        "brain": torch.where(mask, noise, 0).bfloat16(),
        "flags": (ids % 3 == 0) & mask,
        "huge": torch.where(mask, ids + 2**40, 0),
        "rewards": torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 1.0]) * (step + 1),
        "solved": torch.tensor([False, True, False, False, True, True]),
        "turns": np.array([1, 2, 1, 1, 3, 2], np.int8),
        "uid": np.array([f"prompt-{i // 2}" for i in range(SAMPLES)], dtype=object),
        "text": ["", "naïve", "日本", "a\nb", "🙂", '"quoted"'],
        "messages": [
            [{"role": "user", "content": f"What is {i} + {step}?", "turn": i}] for i in range(SAMPLES)
        ],
        "truth": [i / 4 for i in range(SAMPLES)],
        "note": ["seen", None, "seen", None, None, "new"],
        "tools": [["search"] * i for i in range(SAMPLES)],
    }


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interop") / "tape"
    with rolltape.Tape(folder, mode="record") as tape:
        generate = tape.stage("rollout", inputs=True)(rollout)
        for step in range(3):
            with tape.step(step):
                generate(step)
    return folder


@pytest.fixture(scope="module")
def file(tape: Path) -> Path:
    return tape / "train" / "rollout" / "step_000000.parquet"


def duckdb_read(file: Path, column: str) -> list[Any]:
    return [row[0] for row in duckdb.sql(f"""SELECT "{column}" FROM '{file}'""").fetchall()]


def polars_read(file: Path, column: str) -> list[Any]:
    return pl.read_parquet(file, columns=[column])[column].to_list()


def pandas_read(file: Path, column: str) -> list[Any]:
    values = pd.read_parquet(file, engine="pyarrow", columns=[column])[column]
    return [None if value is None or value is pd.NA else value for value in values.astype(object)]


def pyarrow_read(file: Path, column: str) -> list[Any]:
    return pq.read_table(file, columns=[column])[column].to_pylist()


TOOLS: dict[str, Read] = {
    "duckdb": duckdb_read,
    "polars": polars_read,
    "pandas": pandas_read,
    "pyarrow": pyarrow_read,
}


@pytest.fixture(params=TOOLS)
def read(request: pytest.FixtureRequest) -> Read:
    return TOOLS[request.param]


@pytest.mark.parametrize("column", ["responses", "huge"])
def test_token_ids_are_lists_of_ints(file: Path, read: Read, column: str) -> None:
    rows = [row[:n].tolist() for row, n in zip(rollout()[column], LENGTHS, strict=True)]
    found = [list(row) for row in read(file, column)]
    assert found == rows
    assert all(isinstance(value, (int, np.integer)) for row in found for value in row)


@pytest.mark.parametrize("column", ["log_probs", "entropy", "half", "brain"])
def test_numbers_are_lists_of_floats_without_padding(file: Path, read: Read, column: str) -> None:
    """The very numbers, whatever the precision they were recorded in."""
    rows = [row[:n].double().tolist() for row, n in zip(rollout()[column], LENGTHS, strict=True)]
    assert [[float(value) for value in row] for row in read(file, column)] == rows


def test_flags_are_booleans(file: Path, read: Read) -> None:
    """False is padding here, so any of it may be cut off at the ends of a row."""
    for found, recorded in zip(read(file, "flags"), rollout()["flags"].tolist(), strict=True):
        assert bits(found).strip("0") == bits(recorded).strip("0")
        assert len(found) <= len(recorded)


def bits(row: Any) -> str:
    assert all(isinstance(value, (bool, np.bool_)) for value in row)
    return "".join("01"[bool(value)] for value in row)


@pytest.mark.parametrize("column", ["rewards", "solved", "turns", "truth"])
def test_one_number_per_sample_is_a_plain_column(file: Path, read: Read, column: str) -> None:
    expected = np.asarray(rollout()[column])
    assert np.array(read(file, column), expected.dtype).tolist() == expected.tolist()


@pytest.mark.parametrize("column", ["text", "uid"])
def test_text_is_text(file: Path, read: Read, column: str) -> None:
    assert read(file, column) == list(rollout()[column])


def test_none_is_null(file: Path, read: Read) -> None:
    assert [value if isinstance(value, str) else None for value in read(file, "note")] == rollout()["note"]


@pytest.mark.parametrize("column", ["messages", "tools"])
def test_messages_are_json(file: Path, read: Read, column: str) -> None:
    assert [json.loads(text) for text in read(file, column)] == rollout()[column]


def test_samples_have_an_identity(file: Path, read: Read) -> None:
    assert read(file, "_uid") == [f"prompt-{i // 2}" for i in range(SAMPLES)]
    assert [int(value) for value in read(file, "_index")] == [0, 1, 0, 1, 0, 1]


def test_duckdb_types(file: Path) -> None:
    columns = duckdb.sql(f"SELECT * FROM '{file}'")
    found = dict(zip(columns.columns, map(str, columns.types), strict=True))
    expected = {
        "responses": "INTEGER[]",
        "huge": "BIGINT[]",
        "log_probs": "FLOAT[]",
        "entropy": "DOUBLE[]",
        "half": "FLOAT[]",
        "brain": "FLOAT[]",
        "flags": "BOOLEAN[]",
        "rewards": "FLOAT",
        "solved": "BOOLEAN",
        "turns": "INTEGER",
        "text": "VARCHAR",
        "messages": "VARCHAR",
        "truth": "DOUBLE",
        "_uid": "VARCHAR",
        "_index": "INTEGER",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_duckdb_looks_into_messages(file: Path) -> None:
    query = f"""SELECT messages->>'$[0].content', json_extract(messages, '$[0].turn')::INT FROM '{file}'"""
    assert duckdb.sql(query).fetchall() == [(f"What is {i} + 0?", i) for i in range(SAMPLES)]


def test_duckdb_over_all_steps(tape: Path) -> None:
    """Mean response length and reward of each prompt, with the step taken from the name of the file."""
    query = f"""
        SELECT _uid, parse_filename(filename, true) AS step, avg(len(responses)), avg(rewards)
        FROM read_parquet('{tape}/train/rollout/*[0-9].parquet', filename = true, union_by_name = true)
        GROUP BY ALL ORDER BY ALL
    """
    rewards = [0.5, 0.25, 1.0]
    lengths = [sum(LENGTHS[2 * i : 2 * i + 2]) / 2 for i in range(3)]
    assert duckdb.sql(query).fetchall() == [
        (f"prompt-{i}", f"step_{step:06d}", lengths[i], rewards[i] * (step + 1))
        for i in range(3)
        for step in range(3)
    ]


def test_polars_over_all_steps(tape: Path) -> None:
    frame = pl.scan_parquet(
        f"{tape}/train/rollout/*[0-9].parquet", missing_columns="insert", extra_columns="ignore"
    )
    means = frame.group_by("_uid").agg(pl.col("rewards").mean()).sort("_uid").collect()
    assert means.rows() == [("prompt-0", 1.0), ("prompt-1", 0.5), ("prompt-2", 2.0)]


def test_pandas_over_all_steps(tape: Path) -> None:
    files = sorted((tape / "train" / "rollout").glob("*[0-9].parquet"))
    frame = pd.concat(pd.read_parquet(file, columns=["_uid", "rewards"]) for file in files)
    assert frame.groupby("_uid").rewards.mean().to_dict() == {
        "prompt-0": 1.0,
        "prompt-1": 0.5,
        "prompt-2": 2.0,
    }


@pytest.mark.parametrize("name", ["format1.tape", "format1-torch.tape"])
def test_every_type_can_be_read(name: str, read: Read) -> None:
    """All columns of the fixtures, helper columns included, give the same number of rows to every tool."""
    fixtures = Path(content.__file__).parent / name
    for file in fixtures.rglob("*.parquet"):
        for column in pq.read_schema(file).names:
            assert len(read(file, column)) == pq.read_metadata(file).num_rows
