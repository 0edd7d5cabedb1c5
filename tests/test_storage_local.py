"""How a tape in a directory is written, and what failing disks and a vanished directory do to it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rolltape.errors import (
    CorruptFileError,
    DiskFullError,
    NotATapeError,
    StepExistsError,
    StorageError,
    TapeReadOnlyError,
)
from rolltape.storage import LocalStorage, posix
from tests.storing import NAME, fail_with, finish, start, temporary_files


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "tape")


# -- how a publish is done -----------------------------------------------------------------------


def test_a_publish_is_a_write_two_syncs_and_a_link(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("train/rollout/first", [b"x"], replace=False)
    calls: list[str] = []
    for name in ("open", "writev", "fsync", "link", "unlink", "replace", "mkdir", "scandir", "listdir"):
        original = getattr(os, name)

        def record(
            *arguments: object,
            name: str = name,
            original: Callable[..., object] = original,
            **options: object,
        ) -> object:
            calls.append(name)
            return original(*arguments, **options)

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

    def link_and_deny(source: str, target: str, **options: object) -> None:
        link(source, target, **options)
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
    with pytest.raises(CorruptFileError, match="expected 1000 bytes, but it has 600"):
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
        with pytest.raises(StorageError, match="disappeared while it was in use") as caught:
            attempt()
        assert caught.value.where == storage.location
        assert not os.path.exists(storage.location)


def test_a_tape_that_vanishes_during_a_publish(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.check_writable()
    monkeypatch.setattr(os, "fsync", lambda fd: shutil.rmtree(storage.location))
    with pytest.raises(StorageError, match="disappeared while it was in use"):
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
