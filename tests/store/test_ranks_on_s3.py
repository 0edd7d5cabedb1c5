"""Ranks on a real S3 server: racing writers, a rank that is killed, another number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.key import Key
from rolltape.storage import storage_at
from rolltape.tape.commits import Committer
from tests.test_ranks import COMMIT, by, launch
from tests.test_resharding import parts, record, replay


def test_sixteen_racing_writers_commit_every_step_exactly_once(s3_url: str) -> None:
    """Two of them are for the same shard: one of the two is kept, and the step is complete with it."""
    tape = f"{s3_url}/t"
    results, commits = launch(tape, [*range(15), 7], 15, [0, 1], names=[*range(15), 99])
    assert not [result for result in results if result is None or "error" in result]
    assert sorted(commits) == [COMMIT.format(0, 15), COMMIT.format(1, 15)]
    assert rolltape.open(tape).steps() == [0, 1]
    for step in (0, 1):
        found = by(tape, step, 15)
        assert found[7] in (7, 99)
        assert [rank for rank in found if rank not in (7, 99)] == [rank for rank in range(15) if rank != 7]


def test_a_killed_rank_leaves_a_step_that_all_ranks_record_again(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other machines: what the dead rank had not sent yet stays where it was."""
    tape = f"{s3_url}/t"
    launch(tape, range(2), 2, [0], die={1: "before shard"}, names=[10, 11])
    run = rolltape.open(tape)
    assert run.steps() == []
    assert [str(one) for one in run.incomplete()] == ["rank 1 of 2 is missing at train/rollout step 0"]
    monkeypatch.setenv("ROLLTAPE_SPOOL", str(tmp_path))
    results, commits = launch(tape, range(2), 2, [0], names=[20, 21])
    assert [result["live"] for result in results if result] == [[True]] * 2
    assert commits == [COMMIT.format(0, 2)]
    assert by(tape, 0, 2) == [20, 21]


def test_a_lost_commit_is_completed_by_a_repair(s3_url: str) -> None:
    tape = f"{s3_url}/t"
    record(tape, [{"x": np.arange(4)}, {"x": np.arange(4)}])
    storage, key = storage_at(tape), Key(step=3, world_size=2)
    storage.delete(key.commit)
    assert rolltape.open(tape).steps() == []
    assert Committer(storage, "").complete(key)
    assert rolltape.open(tape).steps() == [3]


@pytest.mark.parametrize(("recorded", "replayed"), [(4, 2), (2, 4)])
def test_another_number_of_ranks_replays(recorded: int, replayed: int, s3_url: str) -> None:
    whole = np.arange(24.0).reshape(8, 3)
    record(f"{s3_url}/t", [{"x": whole[part]} for part in parts(8, recorded)])
    for rank, part in enumerate(parts(8, replayed)):
        assert np.array_equal(replay(f"{s3_url}/t", rank, replayed)["x"], whole[part])
