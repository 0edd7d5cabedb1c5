"""Segments in a real S3 bucket: folded, replayed, pruned, killed and raced for as in a directory."""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

import rolltape
from rolltape.key import Key
from rolltape.storage import ObjectStorage, segmented, storage_at
from rolltape.storage.segment_index import Segment
from rolltape.tape.compaction import compact
from tests.cli_tapes import run
from tests.compacting import Died, Dying, around, everything, findings, folded, replayed
from tests.object_servers.fault_proxy import FaultProxy
from tests.taping import Rollout, batch_of, record, same


@pytest.fixture
def tape(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tape of twelve steps. Lists are believed for a moment only, so that a test does not wait for long."""
    monkeypatch.setattr(segmented, "FRESH", 0.05)
    monkeypatch.setattr(segmented, "GRACE", 0.15)
    record(f"{s3_url}/tape", range(12))
    return f"{s3_url}/tape"


def objects(tape: str) -> list[str]:
    return sorted(stat.name for stat in ObjectStorage(tape).everything())


def test_every_file_stays_what_it_is_and_is_replayed(tape: str) -> None:
    before = everything(tape)
    reader = rolltape.open(tape)
    early = reader.recording(Key(step=5))
    assert early.samples == 4
    assert folded(tape, keep=2).recordings == 10
    names = objects(tape)
    assert sum("/step_" in name for name in names) == 2
    assert sum("/segment_" in name for name in names) == 1
    assert everything(tape) == before
    assert findings(tape) == []
    assert all(same(value, batch_of(step)) for step, value in enumerate(replayed(tape, range(12))))
    assert same(early.batch(["reward"])["reward"], batch_of(5)["reward"]), "a reader from before goes on"
    assert reader.steps() == list(range(12))


def test_of_the_index_of_many_steps_a_bounded_part_is_read(s3_url: str, s3_proxy: FaultProxy) -> None:
    """100,000 folded steps: whoever opens the tape and asks for one reads as much as with 30,000."""
    asked = []
    for count in (30_000, 100_000):
        storage = storage_at(f"{s3_url}/{count}")
        dice = random.Random(0)  # sizes of real recordings differ, which makes an index larger
        sizes = [dice.randrange(10_000, 40_000) for _ in range(count)]
        offsets = [0, *itertools.accumulate(sizes)]
        ranges = {Key(step=at).path: (offsets[at], sizes[at]) for at in range(count)}
        name = "train/rollout/segment_000000-099999.1800000000-000000001.parquet"
        segment = Segment(name, offsets[-1], offsets[-1], "")
        storage.change(lambda index, made=segment, ranges=ranges: index.with_segment(made, ranges))
        s3_proxy.forget()
        assert storage_at(f"{s3_url}/{count}").stat(Key(step=7).path).size == sizes[7]
        asked.append((dict(s3_proxy.requests), s3_proxy.received["GET"]))
    assert asked[0][0] == asked[1][0] == {"LIST": 1, "HEAD": 1, "GET": 2}, "the end, and one block"
    assert asked[1][1] < 100_000
    assert asked[1][1] == pytest.approx(asked[0][1], rel=0.2)


def test_pruning_recording_and_writing_anew(tape: str) -> None:
    folded(tape)
    assert run("prune", tape, "--steps", "0-3", "--yes").exit_code == 0
    with rolltape.Tape(tape, mode="rewrite") as anew, anew.step(6):
        anew.stage("rollout")(lambda step: batch_of(106))(6)
    with rolltape.Tape(tape, mode="auto", max_keep=7) as more:
        rollout = Rollout(more)
        rollout.run([7, 12])
        assert rollout.live == [12]
    run_ = rolltape.open(tape)
    assert run_.steps() == [6, 7, 8, 9, 10, 11, 12]
    assert same(run_.recording(Key(step=6)).value(), batch_of(106))
    folded(tape)
    assert run_.steps() == [6, 7, 8, 9, 10, 11, 12]
    assert same(rolltape.open(tape).recording(Key(step=6)).value(), batch_of(106))
    assert sum("/segment_" in name for name in objects(tape)) == 1
    assert findings(tape) == []


def test_killed_after_any_change(s3_url: str, tape: str) -> None:
    before = everything(tape)
    for changes in range(0, 30, 3):
        with suppress(Died):
            compact(around(Dying(ObjectStorage(tape), changes)), keep=0, settled=0, size=30_000)
        assert everything(tape) == before, changes
    folded(tape, size=30_000)
    assert everything(tape) == before
    assert findings(tape) == []


def test_of_two_compactions_one_is_first(tape: str) -> None:
    before = everything(tape)
    done: list[Any] = []
    barrier = threading.Barrier(3)

    def work() -> None:
        storage = storage_at(tape)
        barrier.wait()
        done.append(compact(storage, keep=0, settled=0))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(done) == 3
    assert everything(tape) == before
    assert {name for name in objects(tape) if "/segment_" in name} == set(storage_at(tape).index().segments)
    assert findings(tape) == []


def test_a_replayed_step_costs_one_more_look_at_most(tape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "FRESH", 60.0)
    asked: list[str] = []

    def count(method: str) -> None:
        original = getattr(ObjectStorage, method)

        def counted(self: ObjectStorage, *args: Any, **options: Any) -> Any:
            asked.append(method)
            return original(self, *args, **options)

        monkeypatch.setattr(ObjectStorage, method, counted)

    for method in ("read", "read_end", "read_ranges", "stat", "exists", "names", "entries"):
        count(method)
    plain, segments = [], []
    for found in (plain, segments):
        steps = replayed(tape, range(12), prefetch=False)
        next(steps)
        asked.clear()
        for _ in range(5):
            next(steps)
        found += asked
        steps.close()
        folded(tape)
    assert len(segments) <= len(plain) + 5, (plain, segments)


def test_other_tools_read_a_segment_from_the_bucket(tape: str, s3_server: Any) -> None:
    folded(tape)
    [segment] = storage_at(tape).index().segments
    env = s3_server.env()
    store = fs.S3FileSystem(
        access_key=env["AWS_ACCESS_KEY_ID"],
        secret_key=env["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=env["AWS_ENDPOINT_URL"],
        region=env["AWS_REGION"],
    )
    path = tape.removeprefix("s3://")
    found = ds.dataset(f"{path}/{segment}", filesystem=store).to_table(filter=ds.field("_step") == 7)
    assert found["reward"].to_pylist() == batch_of(7)["reward"]
    assert duckdb.sql("select count(*) from found where _call = '0'").fetchall() == [(4,)]
