"""A tape in a directory survives races, kill -9, dead writers, failing disks and a vanished directory."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import (
    CorruptFileError,
    DiskFullError,
    NotATapeError,
    StepExistsError,
    StorageError,
    TapeReadOnlyError,
)
from rolltape.storage import LocalStorage, posix

NAME = "train/rollout/step_000000.parquet"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(rolltape.__file__)))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "tape")


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script in a process of its own, and wait until it has printed ``ready``."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> list[int]:
    """Let the script go on; return the list it prints at its end."""
    output, _ = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    return json.loads(output)


def temporary_files(storage: LocalStorage) -> list[str]:
    return [name for name in os.listdir(f"{storage.location}/.tmp") if name.endswith(".tmp")]


def fail_with(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


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
def refuse(*_):
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

def publish(storage): storage.publish("train/rollout/x", [NEW], replace=False)
def replace(storage): storage.publish("train/rollout/x", [NEW], replace=True)
def append(storage): storage.append("train/rollout/x", NEW)

ALLOWED = {
    publish: {None, NEW},
    replace: {b"old" * 500, NEW},
    append: {b"line\\n", b"line\\n" + NEW + b"\\n", b"line\\n" + NEW[:1000]},
}

def survives(root, act, number, moment):
    storage = LocalStorage(root)
    storage.check_writable()
    storage.delete("train/rollout/x")
    if act is not publish:
        storage.publish("train/rollout/x", [b"old" * 500 if act is replace else b"line\\n"], replace=True)
    pid = os.fork()
    if pid == 0:
        die_at(number, moment)
        act(LocalStorage(root))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    found = bytes(storage.read("train/rollout/x")) if storage.exists("train/rollout/x") else None
    assert found in ALLOWED[act], (act.__name__, number, moment)
    assert status or found == max(ALLOWED[act] - {None}, key=len)
    assert set(storage.names("train/rollout/")) <= {"train/rollout/x"}
    storage.clean(3600)
    assert os.listdir(f"{root}/.tmp") == []
    storage.append("train/rollout/x", b"next")
    assert storage.read("train/rollout/x").splitlines()[-1] == b"next"
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


def test_a_temporary_file_goes_with_its_writer_and_not_before(storage: LocalStorage) -> None:
    writer = start(LEAVES_A_FILE, storage.location)
    assert storage.clean(older_than_seconds=-1) == 0
    assert len(temporary_files(storage)) == 1
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, but its parent has not reaped it
    assert storage.clean(older_than_seconds=3600) == 1
    assert temporary_files(storage) == []
    writer.communicate()


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


# -- how a publish is done -----------------------------------------------------------------------


def test_a_publish_is_a_write_two_syncs_and_a_link(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("train/rollout/first", [b"x"], replace=False)
    calls: list[str] = []
    for name in ("open", "writev", "fsync", "link", "unlink", "replace", "mkdir", "scandir", "listdir"):
        original = getattr(os, name)

        def record(
            *arguments: object, name: str = name, original: Callable[..., object] = original
        ) -> object:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(os, name, record)
    storage.publish("train/rollout/second", [b"x"], replace=False)
    assert calls == ["open", "writev", "fsync", "link", "unlink", "open", "fsync"]
    calls.clear()
    storage.publish("train/rollout/second", [b"y"], replace=True)
    assert calls == ["open", "writev", "fsync", "replace", "open", "fsync"]


def test_the_folders_above_a_first_file_are_synced_too(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        posix, "sync_folder", lambda folder: synced.append(os.path.relpath(folder, storage.location))
    )
    storage.publish(NAME, [b"x"], replace=False)
    assert synced == ["..", "train/rollout", "train", "."]
    synced.clear()
    storage.append("train/metrics.jsonl", b"{}")
    assert synced == ["train"]
    storage.append("train/metrics.jsonl", b"{}")
    assert synced == ["train"]


@pytest.mark.parametrize("links", ["with links", "without links"])
def test_a_name_taken_while_the_file_was_being_written(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, links: str
) -> None:
    storage.check_writable()
    if links == "without links":
        monkeypatch.setattr(os, "link", fail_with(errno.EPERM))
    sync = os.fsync

    def be_overtaken(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        LocalStorage(storage.location).publish(NAME, [b"first"], replace=False)

    monkeypatch.setattr(os, "fsync", be_overtaken)
    with pytest.raises(StepExistsError):
        storage.publish(NAME, [b"second"], replace=False)
    assert storage.read(NAME) == b"first"
    assert temporary_files(storage) == []


def test_a_link_that_was_made_and_then_denied(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system that repeats a request may answer the second time."""
    link = os.link

    def link_and_deny(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_deny)
    storage.publish(NAME, [b"x"], replace=False)
    assert storage.read(NAME) == b"x"
    assert temporary_files(storage) == []


def test_a_kernel_that_takes_a_few_bytes_at_a_time(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", lambda fd, buffers: os.write(fd, bytes(buffers[0])[:7]))
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 5), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, [views[0][:3]], offset))
    data = bytes(range(256))
    storage.publish(NAME, [data[:100], data[100:101], data[101:]], replace=False)
    assert storage.read(NAME) == data
    assert storage.read(NAME, 17, 111) == data[17:128]


def test_a_file_cut_while_it_is_read(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.publish(NAME, [bytes(1000)], replace=False)
    pread = os.pread

    def cut_and_read(fd: int, length: int, offset: int) -> bytes:
        os.truncate(f"{storage.location}/{NAME}", 600)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", cut_and_read)
    with pytest.raises(CorruptFileError, match="1000 bytes were expected, and it has 600"):
        storage.read(NAME)


def test_recording_uses_up_no_random_numbers(storage: LocalStorage) -> None:
    before = random.getstate()
    storage.publish(NAME, [b"x"], replace=False)
    storage.append("train/metrics.jsonl", b"{}")
    assert random.getstate() == before


# -- failures ------------------------------------------------------------------------------------

ERRORS = [
    (errno.ENOSPC, DiskFullError),
    (errno.EDQUOT, DiskFullError),
    (errno.EFBIG, DiskFullError),
    (errno.EROFS, TapeReadOnlyError),
    (errno.EACCES, TapeReadOnlyError),
    (errno.EPERM, TapeReadOnlyError),
    (errno.EIO, StorageError),
]


@pytest.mark.parametrize(("code", "expected"), ERRORS, ids=lambda value: str(value))
@pytest.mark.parametrize("call", ["open", "writev", "fsync", "replace"])
def test_a_failure_is_named_and_leaves_the_old_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, call: str, code: int, expected: type[StorageError]
) -> None:
    storage.publish(NAME, [b"old"], replace=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(code))
        with pytest.raises(expected) as caught:
            storage.publish(NAME, [b"newer"], replace=True)
    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == code
    assert NAME in str(caught.value)
    assert "likely cause" in str(caught.value)
    assert storage.read(NAME) == b"old"
    assert temporary_files(storage) == []


def test_a_line_that_did_not_fit_is_taken_back(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.append("train/metrics.jsonl", b"first")
    written: list[int] = []

    def half(fd: int, buffers: list[memoryview]) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(os.write(fd, buffers[0][:3]))
        return written[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", half)
        with pytest.raises(DiskFullError, match="needed 7 bytes"):
            storage.append("train/metrics.jsonl", b"second")
    assert storage.read("train/metrics.jsonl") == b"first\n"


def test_a_file_system_without_locks_still_appends(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix.fcntl, "flock", fail_with(errno.ENOSYS))
    storage.append("train/metrics.jsonl", b"first")
    storage.append("train/metrics.jsonl", b"second")
    assert storage.read("train/metrics.jsonl") == b"first\nsecond\n"


def test_a_vanished_tape_is_an_error_and_is_not_created_again(storage: LocalStorage) -> None:
    storage.publish(NAME, [b"x"], replace=False)
    shutil.rmtree(storage.location)
    attempts: list[Callable[[], object]] = [
        lambda: storage.publish(NAME, [b"x"], replace=False),
        lambda: storage.publish("tape.json", [b"x"], replace=True),
        lambda: storage.append("train/metrics.jsonl", b"{}"),
        storage.check_writable,
        lambda: list(storage.names("train/rollout/")),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match="vanished") as caught:
            attempt()
        assert caught.value.where == storage.location
        assert not os.path.exists(storage.location)


def test_a_tape_that_vanishes_during_a_publish(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.check_writable()
    monkeypatch.setattr(os, "fsync", lambda fd: shutil.rmtree(storage.location))
    with pytest.raises(StorageError, match="vanished"):
        storage.publish(NAME, [b"x"], replace=False)
    assert not os.path.exists(storage.location)


def test_a_folder_inside_the_tape_comes_back(storage: LocalStorage) -> None:
    storage.publish(NAME, [b"x"], replace=False)
    shutil.rmtree(f"{storage.location}/train")
    shutil.rmtree(f"{storage.location}/.tmp")
    assert storage.clean(0) == 0
    storage.publish(NAME, [b"y"], replace=False)
    assert storage.read(NAME) == b"y"


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_not_a_tape(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("I was here first")
    storage = LocalStorage(tmp_path / path)
    with pytest.raises(NotATapeError):
        storage.check_writable()
    with pytest.raises(NotATapeError):
        storage.publish(NAME, [b"x"], replace=False)
    assert list(storage.names("")) == []


def test_a_file_in_the_place_of_a_folder(storage: LocalStorage) -> None:
    storage.publish("train", [b"a file"], replace=False)
    with pytest.raises(StorageError, match="a part of the path is a file"):
        storage.publish(NAME, [b"x"], replace=False)
    assert temporary_files(storage) == []


READ_ONLY = """
import json, os, shutil, sys, tempfile
from rolltape.errors import TapeReadOnlyError
from rolltape.storage import LocalStorage

print("ready", flush=True)
sys.stdin.readline()
home = tempfile.mkdtemp()
storage, other = LocalStorage(f"{home}/tape"), LocalStorage(f"{home}/other/tape")
attempts = [
    storage.check_writable,
    other.check_writable,
    lambda: storage.publish("train/y", [b"y"], replace=False),
    lambda: storage.publish("train/x", [b"y"], replace=True),
    lambda: storage.append("train/metrics.jsonl", b"{}"),
    lambda: storage.delete("train/x"),
]
storage.publish("train/x", [b"x"], replace=False)
os.umask(0)
for folder in ("tape/train", "tape/.tmp", "tape", "."):
    os.chmod(f"{home}/{folder}", 0o555)
child = os.fork()
if child == 0:
    if os.geteuid() == 0:  # permissions do not stop root
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
    refused = 0
    for attempt in attempts:
        try:
            attempt()
        except TapeReadOnlyError as error:
            assert isinstance(error, PermissionError) and home in str(error) and "next:" in str(error)
            refused += 1
    os._exit(refused if storage.read("train/x") == b"x" else 0)
refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for folder in (".", "tape", "tape/.tmp", "tape/train"):
    os.chmod(f"{home}/{folder}", 0o755)
shutil.rmtree(home)
print(json.dumps([refused, len(attempts)]))
"""


def test_a_tape_of_somebody_else_can_be_read_but_not_written(storage: LocalStorage) -> None:
    refused, attempts = finish(start(READ_ONLY))
    assert refused == attempts
