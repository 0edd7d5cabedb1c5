"""Other tools read segments as the Parquet files they are, with the right values and whose each row is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import rolltape
from tests.compacting import folded, segments

STEPS = range(7)
SAMPLES = 300
"""More than a row group."""


def batch_of(step: int, call: int) -> dict[str, Any]:
    rng = np.random.default_rng([step, call])
    return {
        "uid": [f"{step}-{call}-{row}" for row in range(SAMPLES)],
        "logprobs": rng.normal(size=(SAMPLES, 5)).astype(np.float32),
        "reward": rng.normal(size=SAMPLES),
        "tokens": rng.integers(0, 1000, (SAMPLES, 3)),
        "note": [None if row % 3 else f"n{row}" for row in range(SAMPLES)],
    }


EXPECTED = [
    (step, call, reward)
    for step in STEPS
    for call in range(1 + step % 2)
    for reward in batch_of(step, call)["reward"].tolist()
]


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tapes") / "tape"
    with rolltape.Tape(directory, mode="record") as tape:
        rollout = tape.stage("rollout", inputs=True)(batch_of)
        for step in STEPS:
            with tape.step(step):
                for call in range(1 + step % 2):
                    rollout(step, call)
    folded(directory, keep=1)
    return directory


@pytest.fixture(scope="module")
def segment(tape: Path) -> str:
    [found] = [path for path in segments(tape) if not path.name.endswith(".in.parquet")]
    return str(found)


def rows(found: Any) -> list[tuple[int, int, float]]:
    return [(step, int(call), reward) for step, call, reward in found]


IN_SEGMENT = [row for row in EXPECTED if row[0] < max(STEPS)]


def test_duckdb(tape: Path, segment: str) -> None:
    query = f"select _step, _call, reward from '{segment}'"
    assert rows(duckdb.sql(query).fetchall()) == IN_SEGMENT
    [(step, uids)] = duckdb.sql(
        f"select _step, list(uid) from '{segment}' where _step = 4 group by 1"
    ).fetchall()
    assert (step, uids) == (4, batch_of(4, 0)["uid"])
    everything = f"read_parquet('{tape}/train/rollout/*[0-9].parquet', union_by_name = true)"
    assert duckdb.sql(f"select count(*) from {everything}").fetchall() == [(len(EXPECTED),)]
    nulls = duckdb.sql(f"select count(note) from '{segment}' where _step = 2").fetchall()
    assert nulls == [(SAMPLES // 3,)]


def test_polars(segment: str) -> None:
    found = pl.read_parquet(segment)
    assert rows(found.select("_step", "_call", "reward").rows()) == IN_SEGMENT
    lazily = pl.scan_parquet(segment).filter(pl.col("_step") == 3, pl.col("_call") == "1").collect()
    assert np.array_equal(np.stack(lazily["logprobs"].to_list()), batch_of(3, 1)["logprobs"])


def test_pandas(segment: str) -> None:
    found = pd.read_parquet(segment, columns=["_step", "_call", "_rank", "reward"])
    assert rows(found[["_step", "_call", "reward"]].itertuples(index=False)) == IN_SEGMENT
    assert set(found["_rank"]) == {0}


def test_pyarrow_datasets(segment: str) -> None:
    found = ds.dataset(segment).to_table(columns=["tokens"], filter=ds.field("_step") == 5)
    whole = np.concatenate([batch_of(5, call)["tokens"] for call in range(2)])
    assert np.array_equal(np.stack(found["tokens"].to_pylist()), whole)


def test_every_page_matches_its_checksum_and_row_groups_can_be_skipped(segment: str) -> None:
    file = pq.ParquetFile(segment, page_checksum_verification=True)
    assert file.read().num_rows == len(IN_SEGMENT)
    at = file.schema_arrow.names.index("_step")
    bounds = [file.metadata.row_group(group).column(at).statistics for group in range(file.num_row_groups)]
    assert all(one.min == one.max for one in bounds)
    assert len(bounds) == 2 * len({(step, call) for step, call, _ in IN_SEGMENT})
