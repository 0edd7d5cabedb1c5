"""Nothing below a tape is followed out of it, and nothing but a regular file is opened."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import MemoryLimitError, RolltapeError, StorageError
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage, posix
from tests.taping import ROOT, Rollout, record

STEP = "train/rollout/step_000001.parquet"


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    record(tmp_path / "t", range(4))
    record(tmp_path / "other", range(4))
    return tmp_path / "t"


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def _stage_is_a_link(tape: Path) -> Path:
    shutil.rmtree(tape / "train/rollout")
    (tape / "train/rollout").symlink_to(tape.parent / "other/train/rollout")
    return tape


@pytest.mark.usefixtures("_stage_is_a_link")
class TestALinkInThePlaceOfAFolder:
    def test_nothing_is_deleted_through_it(self, tape: Path) -> None:
        before = content(tape.parent / "other")
        storage = LocalStorage(tape)
        with pytest.raises(StorageError, match="a symbolic link in the place of a folder"):
            storage.delete(STEP)
        command = [sys.executable, "-m", "rolltape", "prune", str(tape), "--keep", "1", "--yes"]
        subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120)
        assert content(tape.parent / "other") == before

    def test_nothing_is_written_through_it(self, tape: Path) -> None:
        before = content(tape.parent / "other")
        storage = LocalStorage(tape)
        for replace in (True, False):
            with pytest.raises(StorageError, match="symbolic link"):
                storage.publish("train/rollout/step_000009.parquet", [b"x"], replace=replace)
        with pytest.raises(StorageError, match="symbolic link"):
            storage.append("train/rollout/lines.jsonl", b"x")
        with pytest.raises(RolltapeError), rolltape.Tape(tape, mode="auto", max_keep=1) as writer:
            Rollout(writer).run([7])
        assert content(tape.parent / "other") == before

    def test_nothing_is_read_through_it_and_it_is_said(
        self, tape: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = LocalStorage(tape)
        with pytest.raises(StorageError, match="symbolic link") as caught:
            storage.read(STEP)
        assert caught.value.where == str(tape / "train/rollout")
        with caplog.at_level(logging.WARNING):
            assert list(storage.folders("train/")) == []
        assert "train/rollout is a symbolic link in the place of a folder" in caplog.text
        with rolltape.Tape(tape, mode="replay") as reader, pytest.raises(StorageError, match="symbolic link"):
            Rollout(reader).run([1])
        found = [(finding.kind, finding.file) for finding in inspect(storage).findings]
        assert found == [("foreign", "train/rollout")]


def test_metrics_are_not_appended_through_a_link(tape: Path) -> None:
    other = tape.parent / "elsewhere"
    other.write_text("mine\n")
    (tape / "train/metrics.jsonl").unlink(missing_ok=True)
    (tape / "train/metrics.jsonl").symlink_to(other)
    with pytest.raises(StorageError, match="a symbolic link in the place of a file"):
        LocalStorage(tape).append("train/metrics.jsonl", b"{}")
    assert other.read_text() == "mine\n"


def test_nothing_is_swept_through_a_link(tape: Path) -> None:
    elsewhere = tape.parent / "elsewhere"
    elsewhere.mkdir()
    left = elsewhere / posix.temporary_name().replace(str(os.getpid()), "4000000")
    left.write_text("mine")
    os.utime(left, (0, 0))
    shutil.rmtree(tape / ".tmp", ignore_errors=True)
    (tape / ".tmp").symlink_to(elsewhere)
    for act in (lambda: LocalStorage(tape).clean(0), lambda: LocalStorage(tape).check_writable()):
        with pytest.raises(StorageError, match="symbolic link"):
            act()
    assert left.read_text() == "mine"


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tape: Path) -> None:
    other = tape.parent / "other" / STEP
    before = other.read_bytes()
    (tape / STEP).unlink()
    (tape / STEP).symlink_to(other)
    with pytest.raises(StorageError, match="symbolic link"), rolltape.Tape(tape, mode="rewrite") as writer:
        Rollout(writer).run([1])
    LocalStorage(tape).publish(STEP, [b"x"], replace=True)
    assert other.read_bytes() == before
    assert not (tape / STEP).is_symlink()


def test_the_tape_itself_may_be_a_link(tape: Path) -> None:
    (tape.parent / "link").symlink_to(tape)
    assert rolltape.open(tape.parent / "link").steps() == [0, 1, 2, 3]
    LocalStorage(tape.parent / "link").publish("train/x", [b"x"], replace=False)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = {"a pipe": pipe, "a socket": unix_socket, "a link to a device": device, "a folder": Path.mkdir}
PLACES = [STEP, "tape.json", "train/metrics.jsonl"]


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", PLACES)
def test_no_command_waits_for_what_is_no_file(tape: Path, name: str, make: Callable[[Path], None]) -> None:
    (tape / name).unlink(missing_ok=True)
    make(tape / name)
    with pytest.raises(RolltapeError):
        LocalStorage(tape).read(name)
    out = str(tape.parent / "out.jsonl")
    commands = [["check"], ["show"], ["export", "--to", out], ["diff", str(tape.parent / "other")]]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "rolltape", words[0], str(tape), *words[1:]],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        for words in commands
    ]  # fmt: skip
    for process in running:
        said, _ = process.communicate(timeout=120)
        assert "Traceback" not in said, said
    if name == STEP:
        with rolltape.Tape(tape, mode="replay") as reader, pytest.raises(RolltapeError):
            Rollout(reader).run([1])
    findings = {finding.file for finding in inspect(LocalStorage(tape)).findings}
    assert name in findings or (make is Path.mkdir and name != STEP)
    assert Key.parse(STEP) is not None


@pytest.mark.parametrize(
    "name", ["tape.json", "train/metrics.jsonl", STEP, "dropped.jsonl", "noise.json", "accepted.jsonl"]
)
class TestAFileOfHoles:
    """It says that it has terabytes and takes no room: nothing is allocated for it, and the rest works."""

    @pytest.fixture(autouse=True)
    def _holes(self, tape: Path, name: str) -> None:
        with (tape / name).open("wb") as file:
            file.truncate(2**43)

    def test_reading_it_is_an_error_of_ours(self, tape: Path, name: str) -> None:
        with pytest.raises(MemoryLimitError, match="above the limit") as caught:
            LocalStorage(tape).read(name)
        assert str(caught.value.where) == str(tape / name)

    def test_the_check_goes_on(self, tape: Path, name: str) -> None:
        found = {finding.file for finding in inspect(LocalStorage(tape)).findings}
        assert found == {name}

    def test_metrics_leave_it_out_and_say_so(self, tape: Path, name: str) -> None:
        if name != "tape.json":
            damaged: list[RolltapeError] = []
            rolltape.open(tape).metrics("train", 0, damaged)
            assert [str(error.where) for error in damaged] == (
                [str(tape / name)] if "metrics" in name else []
            )
