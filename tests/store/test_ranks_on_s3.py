"""Ranks on a real S3 server: racing writers, a rank that is killed, another number of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from benchmarks import scale_model
from rolltape.key import Key
from rolltape.storage import ObjectStorage, storage_at
from rolltape.tape.commits import Committer, read_commit
from tests.object_servers.fault_proxy import FaultProxy
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
    assert Committer(storage, "", rolltape.open(tape).id).complete(key)
    assert rolltape.open(tape).steps() == [3]


@pytest.mark.parametrize(("recorded", "replayed"), [(4, 2), (2, 4)])
def test_another_number_of_ranks_replays(recorded: int, replayed: int, s3_url: str) -> None:
    whole = np.arange(24.0).reshape(8, 3)
    record(f"{s3_url}/t", [{"x": whole[part]} for part in parts(8, recorded)])
    for rank, part in enumerate(parts(8, replayed)):
        assert np.array_equal(replay(f"{s3_url}/t", rank, replayed)["x"], whole[part])


RANKS = 24


def record_ranks(tape: str, ranks: Iterable[int], steps: int = 1, **options: Any) -> None:
    """Each of so many ranks records its shards and is done, before the next one begins."""
    for rank in ranks:
        given = {"mode": "record", "rank": rank, "world_size": RANKS, **options}
        with rolltape.Tape(tape, **given) as one:
            stage = one.stage("rollout")(lambda rank=rank: {"by": [rank]})
            for step in range(steps):
                with one.step(step):
                    stage()


def test_of_many_ranks_only_the_last_one_reads_all_shards(s3_url: str, s3_proxy: FaultProxy) -> None:
    """As docs/scale.md has it: a look or a few, a list where these found nothing missing, one that reads."""
    record_ranks(s3_url, range(RANKS - 2), steps=2)
    found = []
    for rank in (RANKS - 2, RANKS - 1):
        with rolltape.Tape(s3_url, mode="record", rank=rank, world_size=RANKS) as tape:
            stage = tape.stage("rollout")(lambda rank=rank: {"by": [rank]})
            for step in range(2):
                s3_proxy.forget()
                with tape.step(step):
                    stage()
                tape.flush()
            found.append(Counter(s3_proxy.requests))
    # The last but one looks once. The last one looks for 8, lists, claims, reads all and commits.
    usual = Counter(scale_model.RECORDED) + Counter(scale_model.SHARED)
    assert found[0] == usual + Counter(GET=1)
    more = found[1] - usual
    assert more["GET"] == scale_model.LOOKS + RANKS - 1 + scale_model.COMMITTED["GET"]
    assert more == Counter(PUT=1 + scale_model.COMMITTED["PUT"], LIST=1, POST=1, GET=more["GET"])
    assert rolltape.open(s3_url).steps() == [0, 1]
    assert by(s3_url, 1, RANKS) == list(range(RANKS))


def test_who_claims_and_dies_does_not_keep_the_others_from_it(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is there, and nobody who holds it: that is asked again, and at the end waited for in vain."""
    monkeypatch.setattr("rolltape.tape.commits._WAITING", (0.1,))
    store, key = ObjectStorage(s3_url), Key(step=0, world_size=RANKS)
    record_ranks(s3_url, range(RANKS - 1))
    assert store.claim(key.commit, 60)
    with rolltape.Tape(s3_url, mode="record", rank=RANKS - 1, world_size=RANKS) as tape:
        with tape.step(0):
            tape.stage("rollout")(lambda: {"by": [RANKS - 1]})()
        tape.flush()
        assert read_commit(storage_at(s3_url), key) is None
        tape.flush()
        assert read_commit(storage_at(s3_url), key) is None
    assert rolltape.open(s3_url).steps() == [0]


def test_who_finds_that_another_one_completes_a_step_reads_only_that_it_did(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    store, key = ObjectStorage(s3_url), Key(step=0, world_size=RANKS)
    record_ranks(s3_url, range(RANKS - 1))
    assert store.claim(key.commit, 60)
    with rolltape.Tape(s3_url, mode="record", rank=RANKS - 1, world_size=RANKS) as tape:
        with tape.step(0):
            tape.stage("rollout")(lambda: {"by": [RANKS - 1]})()
        tape.flush()
        assert Committer(storage_at(s3_url), "", rolltape.open(s3_url).id).complete(key), (
            "the other one does it"
        )
        s3_proxy.forget()
        tape.flush()
        assert s3_proxy.requests["GET"] == 1
    assert rolltape.open(s3_url).steps() == [0]


def test_a_claim_is_for_one_until_it_is_released_or_too_old(s3_url: str) -> None:
    store, other = ObjectStorage(s3_url), ObjectStorage(s3_url)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: ObjectStorage(s3_url).claim("train/rollout/a", 60), range(8)))
    assert won.count(True) == 1
    assert other.claim("train/rollout/b", 60)
    other.release("train/rollout/a")
    assert store.claim("train/rollout/a", 60)
    assert not other.claim("train/rollout/a", 60)
    assert other.claim("train/rollout/a", 0), "a dead process does not hold it for ever"
    assert list(store.everything()) == []


def test_old_shards_that_are_all_there_complete_nothing(s3_url: str) -> None:
    """A list does not tell of which launch a shard is; whoever reads them does."""
    record_ranks(s3_url, range(RANKS))
    storage, key = storage_at(s3_url), Key(step=0, world_size=RANKS)
    record_ranks(s3_url, range(RANKS - 1), mode="rewrite")
    assert read_commit(storage, key) is None
    assert rolltape.open(s3_url).steps() == []
    record_ranks(s3_url, [RANKS - 1], mode="rewrite")
    assert rolltape.open(s3_url).steps() == [0]


def test_a_list_from_the_middle_has_the_shards_of_one_call_only(s3_url: str) -> None:
    store = ObjectStorage(s3_url)
    names = [
        f"train/rollout/step_{step:06d}{call}.r{rank}of{world}{kind}.parquet"
        for step in (11, 12) for call in ("", ".c1") for world in (10, 12) for rank in (0, 9)
        for kind in ("", ".in")
    ]  # fmt: skip
    for name in (*names, "train/rollout/step_000012.parquet", "train/rollout/step_000012.of10.commit"):
        store.publish(name, [b"x"], replace=False)
    found = list(store.names_between("train/rollout/step_000012.r", "train/rollout/step_000012.r:"))
    assert sorted(found) == sorted(name for name in names if "step_000012.r" in name)
    assert list(store.names_between("train/rollout/step_000099.r", "train/rollout/step_000099.r:")) == []
