"""Many processes on one tape in a store: forked, pickled, racing, killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.storage import ObjectStorage, storage_at
from tests.object_servers.fault_proxy import FaultProxy
from tests.store.runs import assert_same, batch_of, train

ROOT = Path(__file__).resolve().parents[2]

RECORD_ONE_EACH = """
import os, sys
sys.path.insert(0, {root!r})
import obstore.store  # loaded before the processes part; no store is asked before that
import rolltape
from tests.store.runs import batch_of

url, steps = sys.argv[1], [int(step) for step in sys.argv[2:]]
behind, gate = os.pipe()
told, tell = os.pipe()

def record(at, step):
    os.close(gate)
    try:
        with rolltape.Tape(url, mode="record") as tape:
            stage = tape.stage("rollout")(batch_of)
            os.write(tell, b"ready\\n")
            os.read(behind, 1)  # all wait for this end to be closed
            with tape.step(step):
                stage(step)
                tape.log({{"loss": step / 7}})
        said = "recorded"
    except rolltape.StepExistsError:
        said = "taken"
    os.write(tell, f"{{at}} {{said}}\\n".encode())

for at, step in enumerate(steps):
    if os.fork() == 0:
        try:
            record(at, step)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
os.close(tell)
lines = os.fdopen(told)
assert [lines.readline() for _ in steps] == ["ready\\n"] * len(steps)
os.close(gate)
print(*sorted(lines, key=lambda line: int(line.split()[0])), sep="", end="", flush=True)
assert all(os.wait()[1] == 0 for _ in steps)
"""


def test_sixteen_processes_two_of_them_for_the_same_step(s3_url: str) -> None:
    """All have opened the tape before the first records; in test_racing_writers.py they race for that too."""
    train(s3_url, "record", [100])
    steps = [*range(15), 7]
    command = [sys.executable, "-c", RECORD_ONE_EACH.format(root=str(ROOT)), s3_url, *map(str, steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(said) == len(steps)
    assert [said[at] for at, step in enumerate(steps) if step != 7] == ["recorded"] * 14
    assert sorted(said[at] for at, step in enumerate(steps) if step == 7) == ["recorded", "taken"]
    run = rolltape.open(s3_url)
    assert run.steps("rollout") == [*range(15), 100]
    for step in range(15):
        assert_same(run.recording(rolltape.Key(step=step)).value(), batch_of(step))
    lines = bytes(ObjectStorage(s3_url).read("train/metrics.jsonl")).splitlines()
    assert len(lines) == 16 + 1


def child(storage: ObjectStorage, tape: rolltape.Tape, number: int) -> None:
    storage.publish(f"train/x/step_{number:06d}.parquet", [b"%d" % number], replace=False)
    storage.append("train/metrics.jsonl", b"child %d" % number)
    assert storage.read("train/x/step_000000.parquet") == b"parent"
    with tape.step(number):
        tape.stage("rollout")(batch_of)(number)
    tape.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_any_kind_uses_the_store_as_its_parent_does(s3_url: str, method: str) -> None:
    """After a fork the threads of the parent's client are gone: whoever uses it waits for ever."""
    context = multiprocessing.get_context(method)
    with rolltape.Tape(s3_url, mode="record") as tape:
        storage = ObjectStorage(s3_url)
        storage.publish("train/x/step_000000.parquet", [b"parent"], replace=False)
        storage.append("train/metrics.jsonl", b"parent")
        with tape.step(0):
            tape.stage("rollout")(batch_of)(0)
        tape.flush()
        processes = [context.Process(target=child, args=(storage, tape, number)) for number in (1, 2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        storage.append("train/metrics.jsonl", b"parent again")
    assert set(storage.names("train/x/")) == {f"train/x/step_{n:06d}.parquet" for n in range(3)}
    assert rolltape.open(s3_url).steps("rollout") == [0, 1, 2]
    lines = bytes(storage.read("train/metrics.jsonl")).splitlines()
    assert sorted(lines) == sorted([b"parent", b"child 1", b"child 2", b"parent again"])


def forked(act: Callable[[], object]) -> int:
    """What a forked child ends with; a signal if it hangs."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            act()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("mode", ["record", "auto", "replay"])
def test_a_child_that_does_not_use_the_tape_asks_the_store_for_nothing(
    s3_url: str, s3_proxy: FaultProxy, mode: str
) -> None:
    """The workers of a data loader: they must begin at once, also while the store is away."""
    train(s3_url, "record", range(2))
    with rolltape.Tape(s3_url, mode=mode, prefetch=False) as tape:
        stage = tape.stage("rollout")(lambda step: batch_of(step))
        with tape.step(2 if mode == "record" else 0):
            stage(2 if mode == "record" else 0)
        tape.flush()
        s3_proxy.forget()
        s3_proxy.away = True
        assert forked(lambda: None) == 0
        assert s3_proxy.requests == {}
        s3_proxy.away = False
        assert forked(lambda: tape.recording(1).value()) == 0


def test_a_child_that_is_forked_while_the_index_of_segments_is_read(s3_url: str) -> None:
    train(s3_url, "record", range(1))
    storage = storage_at(s3_url)
    reading, forked_by_now = threading.Event(), threading.Event()

    def read() -> None:
        with storage._lock():
            reading.set()
            forked_by_now.wait()

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait()
    try:
        assert forked(lambda: storage.exists("train/rollout/step_000009.parquet")) == 0
    finally:
        forked_by_now.set()
        thread.join()


KILLED = """
import sys
sys.path.insert(0, {root!r})
from tests.store.runs import train
train({url!r}, "auto", range(1000), lambda step: print(step, flush=True))
"""


def test_killed_at_any_moment_nothing_is_half_and_the_next_run_goes_on(s3_url: str) -> None:
    code = KILLED.format(root=str(ROOT), url=s3_url)
    reached = 0
    for kill in range(int(os.environ.get("ROLLTAPE_SOAK_KILLS", "6"))):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        for line in process.stdout:
            if int(line) >= reached + 3 + kill % 4:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        reached = max(reached, int(line))
        process.stdout.close()
    summary = train(s3_url, "auto", range(reached + 3))
    assert summary.lost == summary.waiting == ()
    run = rolltape.open(s3_url)
    assert run.steps("rollout")[: reached + 3] == list(range(reached + 3))
    for recording in run.recordings():
        assert_same(recording.value(), batch_of(recording.key.step))
    metrics = run.metrics()
    assert all(metrics[step] == {"loss": step / 7} for step in range(reached + 3))


def test_a_tape_pickled_to_another_process_holds_the_url_alone(s3_url: str) -> None:
    storage = pickle.loads(pickle.dumps(ObjectStorage(s3_url)))
    storage.publish("train/x/y", [b"1"], replace=False)
    assert ObjectStorage(s3_url).read("train/x/y") == b"1"
