"""``rolltape filter``: samples and prompts that match, as tapes and as Parquet, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.index.index_building import build_index
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape.compaction import compact
from tests.cli_tapes import run as command
from tests.pooling.random_tapes import make_tapes
from tests.pooling.test_pool_bad_input import record, rows
from tests.pooling.test_pool_rows import same_rows


def run(*words: object) -> Any:
    return command("filter", *map(str, words))


def told(*words: object) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code in (0, 3), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_samples_become_a_tape_that_is_one(tmp_path: Path) -> None:
    for seed in range(5):
        tapes, known = make_tapes(tmp_path / str(seed), seed)
        out = tmp_path / f"out{seed}"
        done = told(*tapes, "--where", "response_tokens > 2", "--to", out)
        wanted = [row for row in known if row.response_tokens > 2]
        assert (done["samples"], done["of"], done["tapes"]) == (len(wanted), len(known), len(tapes))
        if not wanted:
            assert not out.exists()
            continue
        assert inspect(LocalStorage(str(out))).findings == []
        pool = rolltape.pool(out)
        markers = [int(uid) for uid in pool.facts["uid"].to_pylist()]
        by_marker = {row.marker: row for row in wanted}
        assert sorted(markers) == sorted(by_marker), "each sample that matches once, and no other"
        same_rows(pool, [by_marker[marker] for marker in markers])  # rewards of other stages come along
        steps = {(row.tape, row.step) for row in wanted}
        assert {row.step for row in wanted} == set(rolltape.open(out).steps("rollout"))
        assert len(steps) >= len(rolltape.open(out).steps("rollout"))


def test_samples_become_parquet(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path / "tapes", 5)
    out = tmp_path / "out.parquet"
    assert told(*tapes, "--where", "reward is not None", "--to", out)["format"] == "parquet"
    table = pq.read_table(out)
    wanted = [row for row in known if row.reward is not None]
    assert table["marker"].to_pylist() == [row.marker for row in wanted]
    assert table["reward"].to_pylist() == [row.reward for row in wanted]
    assert {"tape", "step", "uid", "pass_rate", "prompt", "truncated", "policy"} <= set(table.column_names)


@pytest.mark.parametrize("form", ["tape", "parquet"])
def test_prompts_with_how_they_did(tmp_path: Path, form: str) -> None:
    tapes, known = make_tapes(tmp_path / "tapes", 4)
    out = tmp_path / "out"
    text = run(*tapes, "--prompts", "--where", "reward is not None", "--to", out, "--format", form).stdout
    scored = [row for row in known if row.reward is not None]
    prompts = list(dict.fromkeys(row.prompt for row in scored))
    assert f"{len(scored)} samples of {len(known)} match" in text
    assert f"{len(prompts)} prompt" in text
    if form == "parquet":
        found = pq.read_table(out).to_pylist()
    else:
        samples = rolltape.open(out).samples(0, "prompts")
        found = [{name: samples[at][name] for name in samples.stored} for at in range(len(samples))]
    assert [row["prompt"] for row in found] == prompts
    for row in found:
        rewards = [one.reward for one in scored if one.prompt == row["prompt"]]
        assert (row["samples"], row["scored"]) == (len(rewards), len(rewards))
        assert row["mean_reward"] == pytest.approx(np.mean(rewards))
        assert row["pass_rate"] == pytest.approx(np.mean([one >= 1 for one in rewards]))
        assert row["group_size"] == sum(one.prompt == row["prompt"] for one in known)


def test_prompts_that_only_the_arguments_have_come_along(tmp_path: Path) -> None:
    place, out = tmp_path / "tape", tmp_path / "out"
    with rolltape.Tape(place, mode="record") as tape, tape.step(0):
        tape.stage("rollout", inputs=True)(
            lambda prompts, temperature: {"response": list("stuvwxyz"), "reward": [0.0, 1.0] * 4}
        )(["a", "b"], temperature=0.5)
    assert told(place, "--where", "reward > 0", "--to", out)["samples"] == 4
    assert rolltape.pool(out).prompts() == ["a", "a", "b", "b"]
    assert inspect(LocalStorage(str(out))).findings == []
    again = told(out, "--to", tmp_path / "again", "--unique", "prompt")
    assert (again["samples"], again["of"], again["prompts"]) == (2, 4, 2)


def test_folded_tapes_and_tapes_of_several_ranks(tmp_path: Path) -> None:
    place = record(tmp_path / "tape", {0: rows(), 1: rows("v", reward=[1.0, 1.0])})
    build_index(rolltape.open(place))
    compact(rolltape.open(place).storage)
    assert told(place, "--where", "reward > 0.5", "--to", tmp_path / "out")["samples"] == 3
    assert sorted(rolltape.pool(tmp_path / "out").facts["reward"].to_pylist()) == [1.0] * 3
    ranks = tmp_path / "ranks"
    for rank in range(2):
        with rolltape.Tape(ranks, mode="record", rank=rank, world_size=2) as tape, tape.step(0):
            tape.stage("rollout")(lambda: rows(f"r{rank}"))()  # noqa: B023
    assert told(ranks, "--where", "rank == 1 and reward > 0", "--to", tmp_path / "one")["samples"] == 1
    assert rolltape.pool(tmp_path / "one").facts["uid"].to_pylist() == ["r1"]


def test_nothing_is_written_over_and_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    place = record(tmp_path / "tape", {0: rows()})
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    for target in (out, tmp_path / "tape"):
        result = run(place, "--to", target)
        assert (result.exit_code, "exists already" in result.stderr) == (2, True)
    assert out.read_text() == "mine"
    result = run(place, "--where", "reward > 7", "--to", tmp_path / "none")
    assert (result.exit_code, (tmp_path / "none").exists()) == (3, False)
    assert "no sample of 2 matches" in result.stderr
    result = run(place, "--where", "rewrd > 7", "--to", tmp_path / "none")
    assert (result.exit_code, "did you mean reward?" in result.stderr) == (2, True)
    result = run(place, "--to", "s3://bucket/out.parquet")
    assert (result.exit_code, "to this machine" in result.stderr) == (2, True)
    result = run(tmp_path / "nowhere", "--to", tmp_path / "none")
    assert result.exit_code == 2
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    place = record(tmp_path / "tape", {0: rows(reward=[float("nan"), 1.0]), 1: rows("v")})
    file = place / "train/rollout/step_000001.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    result = run(place, "--to", tmp_path / "out")
    assert result.exit_code == 1
    assert "left out, because it cannot be read" in result.stderr
    assert "1 sample of 2 without a reward" in result.stderr
    assert len(rolltape.pool(tmp_path / "out")) == 2


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rolltape.pooling import filtering

    place = record(tmp_path / "tape", {0: rows(), 1: rows("v")})

    def failing(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(filtering, "write_manifest", failing)
    assert run(place, "--to", tmp_path / "out").exit_code == 2
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
