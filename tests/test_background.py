"""Writing happens behind the trainer's back: bounded, in order, and never quietly lost."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import DiskFullError, RecordError, TapeClosedError
from rolltape.storage import LocalStorage
from rolltape.tape.writer import Job, Writer
from tests.taping import Gate, Rollout, batch_of, failing, files, held_back, same

FIRST = "train/rollout/step_000000.parquet"


def disk_full() -> DiskFullError:
    return DiskFullError("no space to publish the file: it needed 12 bytes", where="disk")


def writer(limit: int = 100, background: bool = True) -> tuple[Writer, list[tuple[str, BaseException]]]:
    failures: list[tuple[str, BaseException]] = []
    return Writer(
        background=background,
        max_pending_bytes=limit,
        fail=lambda name, error: failures.append((name, error)),
    ), failures


def test_the_trainer_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, held_back(monkeypatch) as gate:
        Rollout(tape).run(range(5))
        assert gate.reached.wait(60)
        assert files(tmp_path / "t") == {"tape.json"}
        gate.opened.set()
        tape.flush()
        assert len(files(tmp_path / "t")) == 6


def test_what_is_pending_counts_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto", on_miss="record") as tape, held_back(monkeypatch) as gate:
        rollout = Rollout(tape)
        rollout.run([0, 1])
        assert tape.plan(1).plays
        waiting = ThreadPoolExecutor(1).submit(rollout.run, [1])
        assert gate.reached.wait(60)
        gate.opened.set()
        assert same(waiting.result()[1], batch_of(1))
        assert rollout.live == [0, 1]


def test_jobs_run_in_the_order_they_were_given() -> None:
    work, failures = writer()
    ran: list[int] = []
    for number in range(50):
        work.submit(Job(f"job {number}", lambda number=number: ran.append(number), 10))  # type: ignore[misc]
    work.close()
    assert (ran, failures) == (list(range(50)), [])


@pytest.mark.parametrize("size", [40, 100, 1000])
def test_memory_is_bounded(size: int) -> None:
    """A trainer that is faster than the disk is slowed down; a job larger than the limit goes alone."""
    work, _ = writer(limit=100)
    held: list[int] = []
    most, lock = [0], threading.Lock()
    gate = Gate()

    def run() -> None:
        gate.passes()
        with lock:
            held.pop()

    def produce() -> None:
        for _ in range(10):
            work.submit(Job("job", run, size))
            with lock:
                held.append(size)
                most[0] = max(most[0], sum(held))

    thread = threading.Thread(target=produce)
    thread.start()
    assert gate.reached.wait(60)
    thread.join(0.05)
    assert thread.is_alive(), "the producer waits for room"
    gate.opened.set()
    thread.join(60)
    work.close()
    # One more may be counted here between leaving the queue and being noted as held.
    assert most[0] <= max(100, size) + size
    assert not work.waits(Job("job", run, 10**9)), "an empty queue takes anything"


def test_back_pressure_through_the_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record", max_pending_bytes=1)
    rollout = Rollout(tape)
    with held_back(monkeypatch) as gate, ThreadPoolExecutor(1) as pool:
        running = pool.submit(rollout.run, range(3))
        assert gate.reached.wait(60)
        while len(rollout.live) < 2:  # the second call is made, and waits for the first one's write
            assert not running.done()
        assert not running.done()
        gate.opened.set()
        running.result()
    assert tape.close().recorded == 3


def test_the_thread_lives_only_while_there_is_work(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        Rollout(tape).run(range(3))
        tape.flush()
        for thread in threading.enumerate():
            if thread.name == "rolltape-writer":
                assert not thread.daemon
                thread.join(60)
        Rollout(tape).run([3])
    assert tape.summary().recorded == 4


@pytest.mark.parametrize("background", [True, False])
def test_an_error_surfaces_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record", background=background)
    rollout = Rollout(tape)
    with failing(monkeypatch, disk_full):
        if background:
            with held_back(monkeypatch) as gate:
                rollout.run([0])
                gate.opened.set()
            tape._dispatcher.recorder.writer.wait()  # type: ignore[union-attr]
        with pytest.raises(DiskFullError, match="needed 12 bytes"):
            rollout.run([1 if background else 0])
    assert rollout.live == [0], "nothing more was generated for nothing"
    rollout.run([2])
    assert tape.close().lost == (FIRST,)
    assert files(tmp_path / "t") == {"tape.json", "train/rollout/step_000002.parquet"}


@pytest.mark.parametrize("surface", ["flush", "close", "step", "log", "metrics"])
def test_an_error_surfaces_wherever_the_tape_is_used_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surface: str
) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    use: dict[str, Any] = {
        "flush": tape.flush,
        "close": tape.close,
        "step": lambda: tape.step(1).__enter__(),
        "log": lambda: tape.log({"a": 1}, step=1),
        "metrics": tape.metrics,
    }
    with failing(monkeypatch, lambda: OSError("no such disk")):
        gate = Gate()
        tape._dispatcher.recorder.writer.submit(Job("gate", gate.passes, 0))  # type: ignore[union-attr]
        Rollout(tape).run([0])
        gate.opened.set()
        if surface in ("step", "log"):
            tape._dispatcher.recorder.writer.wait()  # type: ignore[union-attr]
        with pytest.raises(RecordError, match=r"step_000000.*no such disk") as caught:
            use[surface]()
    assert isinstance(caught.value.__cause__, OSError)
    assert "on_error=warn" in str(caught.value)
    tape.close()  # said once
    assert tape.summary().lost == (FIRST,)


def test_several_errors_are_counted_in_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    with failing(monkeypatch, disk_full):
        with held_back(monkeypatch):
            Rollout(tape).run(range(3))
        with pytest.raises(DiskFullError, match="2 more could not be written"):
            tape.close()
    assert len(tape.summary().lost) == 3


def test_with_warn_training_goes_on_and_the_loss_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record", on_error="warn") as tape:
        rollout = Rollout(tape)
        with failing(monkeypatch, disk_full, "step_000001.parquet"):
            assert list(rollout.run(range(4))) == [0, 1, 2, 3]
            tape.flush()
        with tape.step(4):
            assert tape.stage("odd")(lambda: object())() is not None
    summary = tape.summary()
    assert summary.lost == ("train/rollout/step_000001.parquet", "train/odd/step_000004.parquet")
    assert (summary.recorded, str(summary)) == (
        3,
        f"3 recorded ({summary.bytes_written / 1000:.1f} kB), 2 LOST",
    )
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(text.startswith("LOST: ") for text in said) == 2
    assert "2 LOST" in said[-1]


def test_a_lost_step_can_be_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record", on_error="warn") as tape:
        rollout = Rollout(tape)
        with failing(monkeypatch, disk_full):
            rollout.run([0])
            tape.flush()
        rollout.run([0])
    assert files(tmp_path / "t") == {"tape.json", FIRST}


def test_a_closed_tape_says_so(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    rollout = Rollout(tape)
    rollout.run([0])
    first = tape.close()
    assert first.recorded == 1
    assert tape.close() == first == tape.summary()
    tape.flush()
    for use in (lambda: rollout.run([1]), lambda: tape.log({"a": 1}, step=0)):
        with pytest.raises(TapeClosedError, match="is closed") as caught:
            use()
        assert isinstance(caught.value, RuntimeError)
    assert [recording.key.step for recording in tape.recordings()] == [0], "reading needs nothing open"
    assert same(tape.recording(0).value(), batch_of(0))


def test_a_call_that_ends_after_the_tape_was_closed_is_loud(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    gate = Gate()

    @tape.stage("rollout")
    def generate() -> list[int]:
        gate.passes()
        return [1]

    def work() -> None:
        with tape.step(0):
            generate()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        assert gate.reached.wait(60)
        tape.close()
        gate.opened.set()
        with pytest.raises(TapeClosedError, match="came after the tape was closed"):
            running.result()
    assert files(tmp_path / "t") == {"tape.json"}


def test_the_error_of_the_training_loop_is_not_hidden_by_one_of_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        with rolltape.Tape(tmp_path / "t", mode="record") as tape, held_back(monkeypatch):
            Rollout(tape).run([0])
            raise ZeroDivisionError

    with failing(monkeypatch, disk_full), pytest.raises(ZeroDivisionError):
        train()
    assert "the tape could not be closed well either: no space" in caplog.text


@pytest.mark.parametrize("background", [True, False])
def test_ctrl_c_leaves_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    publish = LocalStorage.publish

    def interrupted(self: LocalStorage, name: str, chunks: Any, *, replace: bool) -> int:
        if name.endswith("step_000001.parquet"):
            raise KeyboardInterrupt
        return publish(self, name, chunks, replace=replace)

    monkeypatch.setattr(LocalStorage, "publish", interrupted)
    tape = rolltape.Tape(tmp_path / "t", mode="record", background=background)
    rollout = Rollout(tape)
    rollout.run([0])
    # On the writer's own thread it is a failure like any other; on the trainer's it is the trainer's.
    if background:
        rollout.run([1])
        with pytest.raises(RecordError, match="KeyboardInterrupt"):
            tape.flush()
    else:
        with pytest.raises(KeyboardInterrupt):
            rollout.run([1])
    tape.close()
    assert FIRST in files(tmp_path / "t")
    assert "train/rollout/step_000001.parquet" not in files(tmp_path / "t")
