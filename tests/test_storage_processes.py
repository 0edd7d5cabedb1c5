"""A tape in a directory survives races between processes, kill -9, and what dead writers leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolltape.storage import LocalStorage, posix
from tests.storing import NAME, finish, needs_proc, start, temporary_files


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "tape")


# -- several processes ---------------------------------------------------------------------------

TOGETHER = """
import errno, json, os, sys
from rolltape.errors import StepExistsError
from rolltape.storage import LocalStorage

def together(count, work):
    # All processes wait at one gate: it opens when this process closes its end.
    behind, gate = os.pipe()
    for me in range(count):
        if os.fork() == 0:
            os.close(gate)
            os.read(behind, 1)
            work(me)
            os._exit(0)
    os.close(gate)
    assert all(os.wait()[1] == 0 for _ in range(count))

print("ready", flush=True)
sys.stdin.readline()
root = sys.argv[1]
"""

RACE = f"""{TOGETHER}
def refuse(*_, **options):
    raise OSError(errno.EPERM, "no hard links here")

if sys.argv[2] == "without links":
    os.link = refuse

def race(me):
    storage = LocalStorage(root)
    for step in range(25):
        try:
            storage.publish(f"train/rollout/{{step}}", [bytes([me]) * (50_000 + me)], replace=False)
            os.write(claims, bytes([step, me]))
        except StepExistsError:
            pass

claimed, claims = os.pipe()
together(8, race)
os.close(claims)
print(json.dumps(list(os.read(claimed, 60_000))))
"""


@pytest.mark.parametrize("links", ["with links", "without links"])
def test_of_many_processes_exactly_one_publishes_a_name(storage: LocalStorage, links: str) -> None:
    claims = finish(start(RACE, storage.location, links))
    steps, winners = claims[::2], claims[1::2]
    assert sorted(steps) == list(range(25))
    for step, winner in zip(steps, winners, strict=True):
        assert storage.read(f"train/rollout/{step}") == bytes([winner]) * (50_000 + winner)
    assert len(list(storage.names("train/rollout/"))) == 25
    assert temporary_files(storage) == []


APART = f"""{TOGETHER}
def write(me):
    storage = LocalStorage(root)
    for step in range(20):
        mine = b"%d %d " % (me, step)
        storage.publish(f"train/stage_{{step % 3}}/{{me}}_{{step}}", [mine * 5000], replace=False)
        storage.append("train/metrics.jsonl", mine * 500)

together(5, write)
print(json.dumps([]))
"""


def test_processes_that_write_side_by_side_lose_nothing(storage: LocalStorage) -> None:
    finish(start(APART, storage.location))
    for me in range(5):
        for step in range(20):
            assert storage.read(f"train/stage_{step % 3}/{me}_{step}") == b"%d %d " % (me, step) * 5000
    lines = storage.read("train/metrics.jsonl").splitlines()
    assert sorted(lines) == sorted(b"%d %d " % (me, step) * 500 for me in range(5) for step in range(20))


# -- crashes -------------------------------------------------------------------------------------

KILLED = """
import json, os, random, signal, sys, time
from rolltape.storage import LocalStorage

def content(value):
    return [bytes([value]) * 65536] * (16 * (1 + value % 6))

def is_whole(data):
    return data == b"".join(content(data[0]))

def write_for_ever(root, number, started):
    storage = LocalStorage(root)
    os.write(started, b"!")
    for step in range(10_000):
        value = (number + step) % 256
        storage.publish(f"train/rollout/{number}_{step}", content(value), replace=False)
        storage.publish("train/latest", content(value), replace=True)

root = sys.argv[1]
delays = random.Random(7)
published = stale = 0
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    started, child_started = os.pipe()
    pid = os.fork()
    if pid == 0:
        write_for_ever(root, number, child_started)
    os.read(started, 1)
    time.sleep(delays.uniform(0, 0.03))  # the moment of death is the test's input
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(started), os.close(child_started)

    storage = LocalStorage(root)  # the next run opens the tape
    storage.check_writable()
    stale += storage.clean(3600)
    assert os.listdir(f"{root}/.tmp") == []
    for name in list(storage.names("train/rollout/")):
        assert is_whole(storage.read(name)), name
        os.unlink(f"{root}/{name}")
        published += 1
    assert not storage.exists("train/latest") or is_whole(storage.read("train/latest"))
print(json.dumps([published, stale]))
"""


@needs_proc
def test_a_writer_killed_at_any_time_leaves_whole_files_only(storage: LocalStorage) -> None:
    published, stale = finish(start(KILLED, storage.location))
    assert published > 0
    assert stale > 0, "no writer was killed in the middle of its work: the test has shown nothing"


CRASH_AT_EACH_CALL = """
import json, os, signal, sys
from rolltape.storage import LocalStorage

CALLS = ["open", "writev", "fsync", "close", "link", "unlink", "replace", "mkdir", "fstat", "pread"]
NEW = b"new" * 1000

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(number, moment):
    seen = 0
    def wrap(name, call):
        def wrapped(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == number and moment == "half-way" and name == "writev":
                os.write(arguments[0], bytes(arguments[1][0])[:1000])
            if seen == number and moment != "after":
                die()
            try:
                return call(*arguments, **options)
            finally:
                if seen == number:
                    die()
        return wrapped
    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))

def publish(storage): storage.publish("train/rollout/x.jsonl", [NEW], replace=False)
def replace(storage): storage.publish("train/rollout/x.jsonl", [NEW], replace=True)
def append(storage): storage.append("train/rollout/x.jsonl", NEW)

ALLOWED = {
    publish: {None, NEW},
    replace: {b"old" * 500, NEW},
    append: {b"line\\n", b"line\\n" + NEW + b"\\n", b"line\\n" + NEW[:1000]},
}

def survives(root, act, number, moment):
    storage = LocalStorage(root)
    storage.check_writable()
    storage.delete("train/rollout/x.jsonl")
    if act is not publish:
        old = b"old" * 500 if act is replace else b"line\\n"
        storage.publish("train/rollout/x.jsonl", [old], replace=True)
    pid = os.fork()
    if pid == 0:
        die_at(number, moment)
        act(LocalStorage(root))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    found = bytes(storage.read("train/rollout/x.jsonl")) if storage.exists("train/rollout/x.jsonl") else None
    assert found in ALLOWED[act], (act.__name__, number, moment)
    assert status or found == max(ALLOWED[act] - {None}, key=len)
    assert set(storage.names("train/rollout/")) <= {"train/rollout/x.jsonl"}
    storage.clean(3600)
    assert os.listdir(f"{root}/.tmp") == []
    storage.append("train/rollout/x.jsonl", b"next")
    assert storage.read("train/rollout/x.jsonl").splitlines()[-1] == b"next"
    return status == 0

root, deaths = sys.argv[1], 0
print("ready", flush=True)
sys.stdin.readline()
for act in (publish, replace, append):
    for moment in ("before", "half-way", "after"):
        number = 1
        while not survives(root, act, number, moment):
            number += 1
        deaths += number - 1
        assert number > 5, (act, number)
print(json.dumps([deaths]))
"""


@needs_proc
def test_death_at_each_single_system_call(storage: LocalStorage) -> None:
    (deaths,) = finish(start(CRASH_AT_EACH_CALL, storage.location))
    assert deaths > 60


# -- what dead writers leave behind --------------------------------------------------------------

LEAVES_A_FILE = """
import os, sys
from rolltape.storage import LocalStorage, posix

LocalStorage(sys.argv[1]).check_writable()
open(f"{sys.argv[1]}/.tmp/{posix.temporary_name()}", "w").close()
print("ready", flush=True)
sys.stdin.readline()
"""


@needs_proc
def test_a_temporary_file_goes_with_its_writer_and_not_before(storage: LocalStorage) -> None:
    writer = start(LEAVES_A_FILE, storage.location)
    assert storage.clean(older_than_seconds=-1) == 0
    assert len(temporary_files(storage)) == 1
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, but its parent has not reaped it
    assert storage.clean(older_than_seconds=3600) == 1
    assert temporary_files(storage) == []
    writer.communicate()


@needs_proc
def test_a_pid_that_was_given_to_another_process_does_not_protect(storage: LocalStorage) -> None:
    storage.check_writable()
    machine, pid, started, _ = posix.temporary_name().split("-")
    mine, earlier = f"{machine}-{pid}-{started}-aa.tmp", f"{machine}-{pid}-{int(started) - 1}-aa.tmp"
    for name in (mine, earlier):
        Path(storage.location, ".tmp", name).touch()
    assert storage.clean(older_than_seconds=-1) == 1
    assert temporary_files(storage) == [mine]


def test_files_of_another_machine_go_by_age(storage: LocalStorage) -> None:
    storage.check_writable()
    young, old, other = (
        Path(storage.location, ".tmp", name)
        for name in ("0123456789ab-1-1-aa.tmp", "0123456789ab-1-1-bb.tmp", "notes.txt")
    )
    for path in (young, old, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    assert storage.clean(older_than_seconds=3600) == 1
    assert young.exists()
    assert other.exists()
    assert not old.exists()


@needs_proc
def test_cleaning_during_a_publish_does_no_harm(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, cleaned = os.fsync, []

    def clean_and_sync(fd: int) -> None:
        cleaned.append(LocalStorage(storage.location).clean(older_than_seconds=-1))
        sync(fd)

    monkeypatch.setattr(os, "fsync", clean_and_sync)
    storage.publish(NAME, [b"x"], replace=False)
    assert storage.read(NAME) == b"x"
    assert set(cleaned) == {0}
