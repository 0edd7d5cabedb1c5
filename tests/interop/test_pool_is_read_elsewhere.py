"""Pools in Polars and DuckDB; what is filtered to Parquet is read there, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import polars
import pytest

import rolltape
from rolltape.pooling import filter_tapes, frameworks
from tests.pooling.random_tapes import make_tapes


def test_polars_and_duckdb_have_the_same_rows(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 3)
    pool = rolltape.pool([str(tape) for tape in tapes])
    frame = pool.polars(["marker", "reward", "rollout_log_probs", "step"])
    assert isinstance(frame, polars.DataFrame)
    assert frame["marker"].to_list() == [row.marker for row in known]
    assert frame["reward"].to_list() == [row.reward for row in known]
    assert [len(row) for row in frame["rollout_log_probs"]] == [row.response_tokens for row in known]
    samples = pool.arrow()
    ((count,),) = duckdb.sql("select count(*) from samples where reward >= 1").fetchall()
    assert count == len(pool.where("reward >= 1"))
    done = filter_tapes(list(map(str, tapes)), tmp_path / "out.parquet", "reward >= 1")
    assert polars.read_parquet(tmp_path / "out.parquet").height == done.samples == count
    assert samples.num_rows == len(known)


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(rolltape.MissingDependencyError, match=r"pool\.x\(\) needs not_there") as error:
        frameworks.library("not_there.inside", "pool.x()", '"rolltape[x]"')
    assert error.value.hint == 'pip install "rolltape[x]"'


def test_a_pool_needs_no_torch(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 1)
    code = (
        "import sys, rolltape\n"
        f"pool = rolltape.pool({str(tapes[0])!r})\n"
        "pool.training(); pool.arrow()\n"
        "print(len(pool), 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(sum(row.tape == 0 for row in known)), "False"]
