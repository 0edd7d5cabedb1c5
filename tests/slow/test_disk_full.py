"""A disk that is full, for real: nothing half-written stays, nothing old is lost, and later it goes on.

The small disk is a tmpfs of 4 MiB. Where this process may not mount one, and besides in any case, a limit on
the size of files stops the writer in the middle, as a quota does.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import DiskFullError, StorageError, TapeReadOnlyError
from rolltape.storage import LocalStorage
from tests.slow.soak import each_round

MIB = 1 << 20
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(rolltape.__file__)))

LIMITED = """
import os, resource, signal, sys
from rolltape.errors import DiskFullError
from rolltape.storage import LocalStorage

MIB = 1 << 20
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails with EFBIG
storage = LocalStorage(sys.argv[1])
storage.publish("train/rollout/old", [b"o" * MIB], replace=False)
storage.append("train/metrics.jsonl", b"first")
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, most))
for name, replace in (("train/rollout/new", False), ("train/rollout/old", True)):
    try:
        storage.publish(name, [b"n" * MIB] * 3, replace=replace)
    except DiskFullError as error:
        assert f"needed {3 * MIB} bytes" in str(error) and "ulimit -f" in str(error), error
    else:
        raise AssertionError("three MiB were written past a limit of two")
    assert os.listdir(f"{storage.location}/.tmp") == []
try:
    storage.append("train/metrics.jsonl", b"x" * (3 * MIB))
except DiskFullError:
    pass
assert storage.read("train/metrics.jsonl") == b"first\\n"
assert storage.read("train/rollout/old") == b"o" * MIB
assert not storage.exists("train/rollout/new")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
storage.publish("train/rollout/new", [b"n" * MIB] * 3, replace=False)
assert storage.read("train/rollout/new") == b"n" * (3 * MIB)
print("as promised")
"""


def run_limited(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "as promised\n", done.stderr


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 4 MiB at ``folder``; False where this process may not mount one."""
    folder.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:  # no mount command
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take every byte that is left."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_a_limit_in_the_middle_of_a_file(tmp_path: Path) -> None:
    run_limited(tmp_path / "tape")


@pytest.mark.parametrize("replace", [False, True])
def test_a_disk_that_fills_up_in_the_middle_of_a_publish(tmp_path: Path, replace: bool) -> None:
    with small_disk(tmp_path / "disk") as mounted:
        if mounted:
            fill_up_in_the_middle(tmp_path / "disk", replace)
        else:
            run_limited(tmp_path / "disk" / "tape")


def fill_up_in_the_middle(disk: Path, replace: bool) -> None:
    storage = LocalStorage(disk / "tape")
    name = "train/rollout/old" if replace else "train/rollout/new"
    storage.publish("train/rollout/old", [b"o" * MIB], replace=False)
    filler = disk / "filler"
    filler.write_bytes(bytes(MIB))
    free = storage.free_bytes()
    assert MIB < free < 3 * MIB

    with pytest.raises(DiskFullError) as caught:
        storage.publish(name, [b"n" * MIB] * 3, replace=replace)
    needed, said_free = map(int, re.findall(r"(\d+) bytes", str(caught.value)))
    assert needed == 3 * MIB
    assert said_free == free == storage.free_bytes()
    assert os.listdir(f"{storage.location}/.tmp") == []
    assert list(storage.names("train/rollout/")) == ["train/rollout/old"]
    assert storage.read("train/rollout/old") == b"o" * MIB

    filler.unlink()
    storage.publish(name, [b"n" * (MIB // 2)] * 4, replace=replace)
    assert storage.read(name) == b"n" * (2 * MIB)


def test_a_disk_without_a_single_free_byte(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as mounted:
        if mounted:
            write_without_a_free_byte(tmp_path / "disk")
        else:
            run_limited(tmp_path / "disk" / "tape")


def write_without_a_free_byte(disk: Path) -> None:
    storage = LocalStorage(disk / "tape")
    storage.publish("train/rollout/old", [b"o" * MIB], replace=False)
    storage.append("train/metrics.jsonl", b"first")
    filler = fill(disk)

    with pytest.raises(DiskFullError, match="and 0 bytes"):
        storage.publish("train/rollout/new", [b"n"], replace=False)
    with pytest.raises(DiskFullError, match="and 0 bytes"):
        storage.append("train/metrics.jsonl", b"x" * 20_000)
    assert os.listdir(f"{storage.location}/.tmp") == []
    assert storage.read("train/metrics.jsonl") == b"first\n"
    assert storage.read("train/rollout/old") == b"o" * MIB

    filler.unlink()
    storage.publish("train/rollout/new", [b"n"], replace=False)
    storage.append("train/metrics.jsonl", b"x" * 20_000)
    assert storage.read("train/metrics.jsonl") == b"first\n" + b"x" * 20_000 + b"\n"


def test_a_file_system_that_takes_no_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="file system of the kernel"):  # nobody can make a directory there
        LocalStorage("/sys/tape").check_writable()
    with small_disk(tmp_path / "disk") as mounted:
        storage = LocalStorage(tmp_path / "disk" / "tape")
        storage.publish("train/rollout/old", [b"o"], replace=False)
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
            for again in (storage, LocalStorage(storage.location)):
                with pytest.raises(TapeReadOnlyError, match="mounted read-only"):
                    again.check_writable()
                with pytest.raises(TapeReadOnlyError, match="mounted read-only"):
                    again.publish("train/rollout/new", [b"n"], replace=False)
        assert storage.read("train/rollout/old") == b"o"


AT_RANDOM = """
import os, random, resource, signal, sys
from rolltape.errors import DiskFullError
from rolltape.storage import LocalStorage

KIB, rng, storage = 1024, random.Random(int(sys.argv[2])), LocalStorage(f"{sys.argv[1]}/tape")
if sys.argv[3] == "by a limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * KIB, 1024 * KIB))
kept, lines, full = {}, b"first\\n", 0
storage.append("train/metrics.jsonl", b"first")
for turn in range(60):
    name = f"train/rollout/{rng.randrange(6)}"
    pieces = [bytes([turn]) * rng.randrange(1, 400 * KIB) for _ in range(rng.randrange(1, 5))]
    line = bytes([65 + turn % 26]) * rng.choice([10, 50_000, 500_000])
    try:
        if rng.random() < 0.3:
            storage.append("train/metrics.jsonl", line)
            lines += line + b"\\n"
        else:
            storage.publish(name, pieces, replace=name in kept)
            kept[name] = b"".join(pieces)
    except DiskFullError:
        full += 1
    assert os.listdir(f"{storage.location}/.tmp") == [], turn
    assert sorted(storage.names("train/rollout/")) == sorted(kept), turn
    assert all(storage.read(name) == data for name, data in kept.items()), turn
    assert storage.read("train/metrics.jsonl") == lines, turn
    if kept and rng.random() < 0.3:
        storage.delete(kept.popitem()[0])
print(full)
"""


@each_round
def test_a_disk_that_fills_up_and_is_freed_again_and_again(tmp_path: Path, soak_round: int) -> None:
    with small_disk(tmp_path / "disk") as mounted:
        how = "by being small" if mounted else "by a limit"
        command = [sys.executable, "-c", AT_RANDOM, str(tmp_path / "disk"), str(soak_round), how]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout), "the disk was never full: the test has shown nothing"
