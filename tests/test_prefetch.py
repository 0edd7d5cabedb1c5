"""Replay reads the next recording while the trainer works: the right one, a fresh one, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.key import Key
from rolltape.steps import MAX_STEP
from rolltape.storage import LocalStorage
from rolltape.tape.prefetch import Fits, Prefetch
from tests.taping import Rollout, batch_of, record, same


class Reads:
    """What is read, in order, and how often each file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        read = LocalStorage.read_end

        def watched(storage: LocalStorage, name: str, length: int, whole: int = 0) -> Any:
            if name.endswith(".parquet"):
                self.names.append(name.rpartition("step_00000")[2].removesuffix(".parquet"))
            return read(storage, name, length, whole)

        monkeypatch.setattr(LocalStorage, "read_end", watched)


@dataclass(frozen=True)
class Held:
    """Something read."""

    nbytes: int
    revision: str = ""


def settle(tape: rolltape.Tape) -> None:
    """Wait until what is being read ahead has been read."""
    prefetch = tape._dispatcher.player._ahead  # type: ignore[union-attr]
    for plan in list(prefetch._plans.values()) if prefetch else ():
        plan.exception()
    for ahead in list(prefetch._ahead.values()) if prefetch else ():
        ahead.exception()


def test_the_next_step_is_read_ahead_and_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "t", range(4))
    reads = Reads(monkeypatch)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        for step in range(4):
            assert same(rollout.run([step])[step], batch_of(step))
            settle(tape)
            assert reads.names == [str(n) for n in range(min(step + 2, 4))]


def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "t", range(3))
    reads = Reads(monkeypatch)
    with rolltape.Tape(tmp_path / "t", mode="replay", prefetch=False) as tape:
        Rollout(tape).run(range(2))
    assert reads.names == ["0", "1"]


def test_refills_are_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After call 0 comes call 1 of the step, where there is one; no read is wasted."""
    for mode in ("record", "replay"):
        reads = Reads(monkeypatch)
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            rollout = Rollout(tape)
            for step, calls in enumerate((2, 1, 3)):
                with tape.step(step):
                    for _ in range(calls):
                        rollout.generate(step)
                        settle(tape)
    assert reads.names == ["0", "0.c1", "1", "2", "2.c1", "2.c2"]


def test_a_stride_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation every third step: what is read ahead is the next one."""
    record(tmp_path / "t", range(0, 10, 3))
    reads = Reads(monkeypatch)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        for step in (0, 3, 6):
            rollout.run([step])
            settle(tape)
    assert reads.names == ["0", "3", "6", "9"]


def test_substitutes_are_read_ahead_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "t", range(2))
    reads = Reads(monkeypatch)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="cycle") as tape:
        rollout = Rollout(tape)
        for step in range(5):
            assert rollout.run([step])[step]["meta"]["step"] == step % 2
            settle(tape)
    assert reads.names == ["0", "1", "0", "1", "0", "1"]


def test_the_last_possible_step(tmp_path: Path) -> None:
    record(tmp_path / "t", [MAX_STEP - 1, MAX_STEP])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert list(Rollout(tape).run([MAX_STEP - 1, MAX_STEP])) == [MAX_STEP - 1, MAX_STEP]


def test_a_file_replaced_meanwhile_is_read_again(tmp_path: Path) -> None:
    record(tmp_path / "t", range(2))
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        settle(tape)
        with rolltape.Tape(tmp_path / "t", mode="rewrite") as other, other.step(1):
            other.stage("rollout")(lambda: batch_of(77))()
        assert same(rollout.run([1])[1], batch_of(77))


def test_a_file_deleted_meanwhile_is_missing(tmp_path: Path) -> None:
    record(tmp_path / "t", range(2))
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        settle(tape)
        (tmp_path / "t/train/rollout/step_000001.parquet").unlink()
        with pytest.raises(StepMissingError, match="the recorded run ended at step 0"):
            rollout.run([1])


def test_edits_to_a_replayed_batch_stay_the_trainers(tmp_path: Path) -> None:
    record(tmp_path / "t", range(2))
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        for _ in range(3):
            for step in range(2):
                batch = rollout.run([step])[step]
                assert same(batch, batch_of(step))
                batch["responses"][:] = -1
                batch["text"].clear()
                batch["meta"].clear()


def test_an_error_surfaces_at_its_own_step(tmp_path: Path) -> None:
    record(tmp_path / "t", range(3))
    path = tmp_path / "t/train/rollout/step_000001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        settle(tape)
        rollout.run([2])
        rollout.run([0])
        settle(tape)
        with pytest.raises(CorruptFileError) as caught:
            rollout.run([1])
        assert caught.value.where == str(path)
        rollout.run([2])


def test_what_is_held_is_bounded(tmp_path: Path) -> None:
    """A batch larger than the limit is not decoded ahead; nor are two that exceed it together."""
    big = {"responses": np.arange(40_000).reshape(100, 400), "uid": [str(n) for n in range(100)]}
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        for name in ("a", "b"):
            stage = tape.stage(name)(lambda: big)
            for step in range(2):
                with tape.step(step):
                    stage()
    size = big["responses"].nbytes  # type: ignore[attr-defined]
    for limit, held in ((size // 2, 0), (size + 10_000, 0), (2 * size, 1), (5 * size, 2)):
        with rolltape.Tape(tmp_path / "t", mode="replay", max_pending_bytes=limit) as tape:
            stages = [tape.stage(name)(lambda: None) for name in ("a", "b")]
            with tape.step(0):
                for stage in stages:
                    stage()
                    settle(tape)
            ahead = tape._dispatcher.player._ahead._ahead.values()  # type: ignore[union-attr]
            assert sum(item.result() is not None for item in ahead) == held, limit
            with tape.step(1):
                assert all(same(stage(), big) for stage in stages)


def test_what_is_being_read_at_the_same_time_counts_too(tmp_path: Path) -> None:
    """Several reads that are under way see each other: together they stay within the limit."""
    keys = [Key(step=step) for step in range(1, 5)]
    asking, fitting = threading.Barrier(len(keys)), list[Key]()

    def read(key: Key, fits: Fits) -> Any:
        asking.wait()
        if not fits(60):
            return None
        fitting.append(key)
        asking.wait()
        return Held(60)

    prefetch: Prefetch[Any] = Prefetch(LocalStorage(tmp_path), read, 130)
    prefetch._depth = len(keys)
    prefetch.start(Key(step=0), iter(keys))
    try:
        for key in keys:
            while not prefetch.holds(key):
                threading.Event().wait(0.001)
        while sum(one.done() for one in tuple(prefetch._ahead.values())) < 2:
            threading.Event().wait(0.001)
        assert len(fitting) == 2
    finally:
        asking.abort()
        prefetch.close()


def test_named_calls_come_in_no_order_and_are_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("record", "replay"):
        reads = Reads(monkeypatch)
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            rollout = Rollout(tape)
            for step in range(2):
                for key in "ab":
                    rollout.run([step], key=key)
                    settle(tape)
    assert reads.names == ["0.ka", "0.kb", "1.ka", "1.kb"]


def test_who_closes_the_tape_does_not_break_who_waits_for_a_recording(tmp_path: Path) -> None:
    """What was to be read ahead never will be: whoever asks for it reads it by itself."""
    prefetch: Prefetch[Any] = Prefetch(LocalStorage(tmp_path), lambda key, fits: None, 2**20)
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Key]:
        begun.set()
        go_on.wait()
        yield Key(step=1)

    prefetch.start(Key(step=0), slow())
    begun.wait()
    waiting = Key(step=1, stage="reward")
    prefetch.start(Key(step=0, stage="reward"), iter([waiting]))
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(prefetch.take(waiting, None)))
    asking.start()
    while ("train", "reward") in prefetch._plans:  # until it waits for the plan
        threading.Event().wait(0.001)
    closing = threading.Thread(target=prefetch.close)
    closing.start()
    asking.join()
    go_on.set()
    closing.join()
    assert found == [None]
    assert not prefetch.holds(Key(step=1)), "a plan that was under way begins nothing more"
    prefetch.start(Key(step=0), iter([Key(step=1)]))
    assert prefetch.take(Key(step=1), None) is None
