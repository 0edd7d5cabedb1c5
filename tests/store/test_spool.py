"""Recording to a store that is away: what waits is safe on this machine, bounded, and taken there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

import rolltape
from rolltape.errors import StorageError, StoreUnreachableError
from rolltape.storage import ObjectStorage, Spool, SpooledStorage
from rolltape.storage.uploads import AT_ONCE
from tests.cli_tapes import run
from tests.object_servers.azure import AzureServer
from tests.object_servers.fault_proxy import FaultProxy, Faults
from tests.object_servers.s3 import S3Server
from tests.serve.engine import until
from tests.store.runs import assert_whole, batch_of, train

ROOT = Path(__file__).resolve().parents[2]
NAME = "train/rollout/step_{:06d}.parquet"

RECORDS = """
import os, sys
sys.path.insert(0, {root!r})
from tests.store.runs import train
def each(step):
    print(step, flush=True)
    if step == {away_at}:
        assert sys.stdin.readline() == "away\\n"
train({url!r}, "{mode}", range({steps}), each, flush=True)
"""


def spool_of(tmp_path: Path, most: int = 2**30) -> Spool:
    return Spool(str(tmp_path / "spool"), most)


def waiting() -> int:
    return sum(one.files for one in Spool(os.environ["ROLLTAPE_SPOOL"], 0).waiting().values())


def test_a_store_that_is_away_for_the_middle_third_loses_nothing(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    def each(step: int) -> None:
        s3_proxy.away = 20 <= step < 40
        waited.append(waiting())

    summary = train(s3_url, "record", range(60), each, flush=True)
    assert max(waited) > 15  # they did wait here
    assert (summary.recorded, summary.lost, summary.waiting) == (60, (), ())
    assert waiting() == 0
    assert_whole(s3_url, range(60))


def test_a_store_that_takes_questions_and_never_answers_does_not_hold_the_trainer(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About as long as for one that is away, and not for as long as one request may take."""
    monkeypatch.setattr("rolltape.storage.spooled.ASKING", 0.5)
    monkeypatch.setenv("ROLLTAPE_STORE_TIMEOUT", "60")
    waited: list[float] = []
    with rolltape.Tape(s3_url, mode="record") as tape:
        stage = tape.stage("rollout")(lambda: batch_of(0))
        for step in range(4):
            s3_proxy.faults = Faults(hang=1.0 if step else 0.0)
            started = time.monotonic()
            with tape.step(step):
                stage()
            waited.append(time.monotonic() - started)
        s3_proxy.faults = Faults()
    assert max(waited) < 50, "one request may take 60 seconds"
    assert tape.summary().recorded == 4
    assert waiting() == 0


def test_what_is_not_up_when_the_run_ends_is_told_and_drained_later(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "2")

    def each(step: int) -> None:
        s3_proxy.away = step >= 3

    with pytest.raises(StoreUnreachableError, match="rolltape drain"):
        train(s3_url, "record", range(8), each)
    assert waiting() >= 4
    doctor = run("doctor", s3_url)
    assert "not up yet" in doctor.stdout
    assert doctor.exit_code == 1
    drained = rolltape_command("drain")
    assert drained.returncode == 1
    assert "left" in drained.stdout
    s3_proxy.away = False
    monkeypatch.delenv("ROLLTAPE_STORE_DEADLINE")
    until = time.monotonic() + 100  # what this process has is left to it, and it pauses at times
    while (drained := rolltape_command("drain", s3_url)).returncode:
        assert time.monotonic() < until, drained.stdout + drained.stderr
    assert waiting() == 0
    assert_whole(s3_url, range(8))
    assert "nothing waits" in run("drain").stdout


def rolltape_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rolltape", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_after_kill_9_the_next_run_finds_and_uploads_what_waited(
    s3_url: str, s3_proxy: FaultProxy, mode: str
) -> None:
    code = RECORDS.format(root=str(ROOT), url=s3_url, steps=12, away_at=4, mode="record")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    for line in process.stdout:
        if line == "4\n":
            s3_proxy.away = True
            process.stdin.write("away\n")
            process.stdin.flush()
        if line == "11\n":
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    left = waiting()
    assert left > 5
    s3_proxy.away = False
    # In mode auto the steps that wait count as recorded; a run that records goes on with the next step.
    summary = train(s3_url, mode, range(12, 15) if mode == "record" else range(15))
    assert (summary.recorded, summary.waiting) == (3, ())
    assert summary.replayed == (12 if mode == "auto" else 0)
    assert waiting() == 0
    assert_whole(s3_url, range(15))


def test_a_full_spool_makes_recording_wait_and_says_so(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    storage = SpooledStorage(ObjectStorage(s3_url), spool_of(tmp_path, most=1000))
    s3_proxy.away = True
    storage.publish(NAME.format(0), [bytes(900)], replace=False)
    done = threading.Event()

    def publish() -> None:
        storage.publish(NAME.format(1), [bytes(900)], replace=False)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: "full" in caplog.text)
    assert not done.is_set()
    s3_proxy.away = False
    assert done.wait(60)
    thread.join()
    assert storage.settle(60).names == ()
    s3_proxy.away = True
    storage.publish(NAME.format(2), [bytes(900)], replace=False)
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "0.5")
    with pytest.raises(StorageError, match="spool is full"):
        storage.publish(NAME.format(3), [bytes(900)], replace=False)
    s3_proxy.away = False
    assert storage.settle(60).names == ()
    assert [len(ObjectStorage(s3_url).read(NAME.format(n))) for n in range(3)] == [900] * 3


def test_what_waits_is_read_as_if_it_were_there(s3_url: str, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    storage = SpooledStorage(ObjectStorage(s3_url), spool_of(tmp_path), assume_new=True)
    storage.publish(NAME.format(0), [b"up"], replace=False)
    assert storage.settle(60).names == ()
    s3_proxy.away = True
    storage.publish(NAME.format(1), [b"0123456789"], replace=False)
    assert storage.exists(NAME.format(1))
    assert not storage.exists(NAME.format(2))
    stat, end = storage.read_end(NAME.format(1), 4)
    assert (stat.size, end) == (10, b"6789")
    assert storage.read(NAME.format(1), 2, 3, stat.revision) == b"234"
    assert storage.read_ranges(NAME.format(1), [(0, 1), (9, 1)]) == [b"0", b"9"]
    with pytest.raises(rolltape.StepExistsError):
        storage.publish(NAME.format(1), [b"again"], replace=False)
    s3_proxy.away = False
    assert set(storage.names("train/rollout/")) == {NAME.format(0), NAME.format(1)}
    assert list(storage.folders("")) == ["train/"]
    storage.settle(60)
    with pytest.raises(rolltape.FileReplacedError):
        storage.read(NAME.format(1), 2, 3, stat.revision)
    assert storage.read(NAME.format(1)) == b"0123456789"


def test_a_step_that_somebody_else_recorded_meanwhile_is_told(
    s3_url: str, s3_proxy: FaultProxy, s3_server: S3Server
) -> None:
    with rolltape.Tape(s3_url, mode="record") as tape:
        stage = tape.stage("rollout")(batch_of)
        with tape.step(0):
            stage(0)
        tape.flush()
        s3_proxy.away = True
        with tape.step(1):
            stage(1)
        tape.flush()
        past_the_proxy = from_url(
            s3_url, endpoint=f"http://127.0.0.1:{s3_server.port}", client_options={"allow_http": True}
        )
        obstore.put(past_the_proxy, NAME.format(1), b"theirs")
        s3_proxy.away = False
        tape._dispatcher.storage.settle(60)  # type: ignore[union-attr]
        with pytest.raises(rolltape.StepExistsError, match="step_000001"), tape.step(2):
            stage(2)
    assert ObjectStorage(s3_url).read(NAME.format(1)) == b"theirs"


def test_two_who_drain_the_same_spool_do_everything_once(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLTAPE_STORE_DEADLINE", "1")
    s3_proxy.away = True
    code = (
        "import os\n"
        "from rolltape.storage import ObjectStorage, Spool, SpooledStorage\n"
        f"s = SpooledStorage(ObjectStorage({s3_url!r}), Spool(os.environ['ROLLTAPE_SPOOL'], 2**30))\n"
        "for n in range(30):\n"
        "    s.publish(f'train/rollout/step_{n:06d}.parquet', [b'%d' % n], replace=False)\n"
        "    s.append('train/metrics.jsonl', b'%d' % n)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert waiting() == 60
    assert ": 0 files taken there; 60 files" in rolltape_command("drain", s3_url).stdout
    s3_proxy.away = False
    monkeypatch.delenv("ROLLTAPE_STORE_DEADLINE")
    drains = [
        subprocess.Popen([sys.executable, "-m", "rolltape", "drain", s3_url], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    for drain in drains:
        drain.wait()
    rolltape_command("drain", s3_url)
    assert waiting() == 0
    storage = ObjectStorage(s3_url)
    assert bytes(storage.read("train/metrics.jsonl")) == b"".join(b"%d\n" % n for n in range(30))
    assert len(list(storage.names("train/rollout/"))) == 30


def test_files_that_the_store_refuses_keep_no_other_waiting(
    az_url: str, az_server: AzureServer, tmp_path: Path
) -> None:
    """However many they are: here one more than are taken to the store at once."""
    storage, held = SpooledStorage(ObjectStorage(az_url), spool_of(tmp_path)), range(AT_ONCE + 1)
    folder = az_url.rpartition("/")[2]
    for number in held:
        storage.publish(NAME.format(number), [b"old"], replace=False)
    assert storage.settle(60).names == ()
    for number in held:
        az_server.lease(f"{folder}/{NAME.format(number)}")
        storage.publish(NAME.format(number), [b"new"], replace=True)
    storage.publish(NAME.format(99), [b"free"], replace=False)
    assert storage._uploads is not None
    assert storage._uploads.wait(60, NAME.format(99))
    assert ObjectStorage(az_url).read(NAME.format(99)) == b"free"
    assert sorted(storage.settle(0).names) == [NAME.format(number) for number in held]
    assert all("status 412" in str(error) for _, error in storage.take_failures())
    for number in held:
        az_server.let_go(f"{folder}/{NAME.format(number)}")
    assert storage.settle(60).names == (), "they were tried again"
    assert all(ObjectStorage(az_url).read(NAME.format(number)) == b"new" for number in held)
