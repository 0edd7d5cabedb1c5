"""Compactions beside each other and beside runs: one is first, nothing is lost, nothing is there twice."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.key import Key
from rolltape.storage import LocalStorage, segment_index, segmented, storage_at
from rolltape.storage.segment_index import SegmentIndex
from rolltape.tape.compaction import compact
from tests.compacting import Meddling, around, everything, findings, folded, plain, segments
from tests.taping import Rollout, batch_of, record, same


@pytest.fixture(params=["index read at once", "index read block by block"])
def tape(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tape of twelve steps, whose index is read like a small one, or like that of many steps."""
    if request.param == "index read block by block":
        monkeypatch.setattr(segmented, "TAIL", 16)
        monkeypatch.setattr(segment_index, "_IN_A_BLOCK", 2)
    record(tmp_path / "tape", range(12))
    return tmp_path / "tape"


def _compact(directory: Path, barrier: Any) -> None:
    barrier.wait()
    compact(storage_at(directory), keep=0, settled=0, size=30_000)


def test_compactions_at_the_same_time(tape: Path) -> None:
    before = everything(tape)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    workers = [context.Process(target=_compact, args=(tape, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert everything(tape) == before
    assert findings(tape) == []
    named = {tape / name for name in storage_at(tape).index().segments}
    assert set(segments(tape)) == named, "who was second leaves nothing behind"


@pytest.mark.parametrize("moment", ["segment_", "segments.index/"])
def test_whoever_is_second_stops_and_leaves_nothing(tape: Path, moment: str) -> None:
    """The other one does everything right before our segment, or our index, is published."""
    before = everything(tape)
    others: list[int] = []

    def overtake(what: str, name: str) -> None:
        if moment in name and name != "segments.index/000001" and not others:
            others.append(folded(tape).segments)

    done = compact(around(Meddling(LocalStorage(tape), overtake)), keep=0, settled=0)
    assert others == [1]
    assert done.overtaken
    assert done.segments == 0
    assert everything(tape) == before
    assert len(segments(tape)) == 1
    assert findings(tape) == []


def test_an_index_far_behind_does_not_hold(tape: Path) -> None:
    """Others published several while we made ours, and removed the first: its number is free again."""
    before = everything(tape)
    folded(tape, keep=8)
    stale = storage_at(tape)
    index = stale.index()

    def go_ahead(what: str, name: str) -> None:
        if name.startswith("segments.index/") and storage_at(tape).index().generation == index.generation:
            for keep in (6, 4, 2):
                folded(tape, keep=keep, size=1)
                folded(tape, keep=keep, size=10**8)
            storage = storage_at(tape)
            for _ in range(3):
                storage.change(lambda newest: newest.numbered(newest.generation + 1))

    ours = around(Meddling(LocalStorage(tape), go_ahead))
    doomed = "train/rollout/step_000001.parquet"
    ours.delete(doomed)
    assert everything(tape) == {name: data for name, data in before.items() if name != doomed}


def test_an_index_that_is_gone_before_all_of_it_was_read_is_read_anew(tape: Path) -> None:
    """By whoever looks a file up, lists, deletes or writes."""
    before = everything(tape)
    folded(tape, keep=6, size=10_000)
    acts = {
        "read": lambda reader: reader.read("train/rollout/step_000004.parquet"),
        "stat": lambda reader: reader.stat("train/rollout/step_000003.parquet"),
        "exists": lambda reader: reader.exists("train/rollout/step_000002.parquet"),
        "list": lambda reader: sorted(reader.names("train/rollout/")),
        "everything": lambda reader: sorted(stat.name for stat in reader.everything()),
        "dead bytes": lambda reader: reader.dead_bytes(),
        "whole": lambda reader: len(reader.whole_index()),
    }
    for name, act in acts.items():
        reader = storage_at(tape)
        assert reader.index().generation > 0  # read as far as its head
        for _ in range(3):  # the index before the last one is kept
            storage_at(tape).change(lambda newest: newest.numbered(newest.generation + 1))
        assert act(reader) == act(storage_at(tape)), name
    assert everything(tape) == before


def test_a_recording_that_is_written_anew_while_it_is_folded_is_kept(tape: Path) -> None:
    """At every moment of a compaction: the new one is what the tape has."""
    for moment in ("publish train", "publish segments.index/000003", "delete train"):
        step = {"publish train": 2, "publish segments.index/000003": 3, "delete train": 4}[moment]
        done: list[str] = []

        def rewrite(what: str, name: str, at: str = moment, step: int = step, done: Any = done) -> None:
            if f"{what} {name}".startswith(at) and not done:
                done.append(name)
                with rolltape.Tape(tape, mode="rewrite") as anew, anew.step(step):
                    anew.stage("rollout")(lambda step: batch_of(100 + step))(step)

        compact(around(Meddling(LocalStorage(tape), rewrite)), keep=0, settled=0)
        if moment != "delete train":  # there it has just been looked at
            assert same(rolltape.open(tape).recording(Key(step=step)).value(), batch_of(100 + step)), moment
        assert rolltape.open(tape).steps() == list(range(12))


def test_recording_and_compacting_go_on_beside_each_other(tape: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep_folding() -> None:
        try:
            while not stop.is_set():
                compact(storage_at(tape), settled=0, keep=1, size=50_000)
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=keep_folding)
    worker.start()
    try:
        with rolltape.Tape(tape, mode="auto") as more:
            rollout = Rollout(more, inputs=True)
            rollout.run(range(12, 60))
        with rolltape.Tape(tape, mode="replay") as again:
            rollout = Rollout(again)
            found = rollout.run(range(60))
            assert rollout.live == []
    finally:
        stop.set()
        worker.join()
    assert failures == []
    assert all(same(value, batch_of(step)) for step, value in found.items())
    assert rolltape.open(tape).steps() == list(range(60))
    assert findings(tape) == []


def test_a_reader_whose_segment_is_written_anew_meanwhile_reads_on(tape: Path) -> None:
    folded(tape)
    reader = rolltape.open(tape)
    recording = reader.recording(Key(step=5))
    assert recording.samples == 4
    storage_at(tape).delete("train/rollout/step_000001.parquet")
    [old] = segments(tape)
    folded(tape)
    assert old not in segments(tape)
    assert same(recording.value(), batch_of(5))
    assert same(recording.batch(["reward"])["reward"], batch_of(5)["reward"])
    assert len(plain(tape)) == 0


def test_who_lists_while_files_move_sees_each_once(tape: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        storage, turn = storage_at(tape), 0
        while not stop.is_set():
            turn += 1
            with rolltape.Tape(tape, mode="rewrite") as anew:
                Rollout(anew).run([turn % 12])
            compact(storage, settled=0, keep=turn % 3)

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        reader = storage_at(tape)
        expected = sorted(Key(step=step).path for step in range(12))
        for _ in range(60):
            assert sorted(reader.names("train/rollout/")) == expected
            assert sorted(stat.name for stat in reader.entries("train/rollout/")) == expected
            assert all(reader.exists(name) for name in expected)
    finally:
        stop.set()
        worker.join()


def test_an_index_that_others_keep_changing_is_changed_in_the_end(tape: Path) -> None:
    folded(tape)
    threads = [
        threading.Thread(
            target=lambda step=step: storage_at(tape).delete(f"train/rollout/step_{step:06d}.parquet")
        )
        for step in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rolltape.open(tape).steps() == [8, 9, 10, 11]
    index: SegmentIndex = storage_at(tape).index()
    assert len(index) == 4
