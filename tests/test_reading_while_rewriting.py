"""A step that is rewritten while it is read: the old one or the new one, whole, and never damage."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import FileReplacedError
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording
from tests.taping import ROOT


def write(folder: Path, number: int, mode: str = "rewrite") -> None:
    with rolltape.Tape(folder, mode=mode, background=False) as tape, tape.step(0):
        noise = np.random.default_rng(number).random((50, 40 + number))
        tape.stage("rollout")(
            lambda: {"a": np.full((50, 7), number), "b": noise, "uid": [str(number)] * 50}
        )()


class Rewritten(LocalStorage):
    """A tape whose step is rewritten just before some of the reads."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(root)
        self.times = times

    def read_end(self, name: str, length: int, whole: int = 0) -> Any:
        self._rewrite(name)
        return super().read_end(name, length, whole)

    def read_ranges(self, name: str, spans: Any, revision: str | None = None) -> Any:
        self._rewrite(name)
        return super().read_ranges(name, spans, revision)

    def _rewrite(self, name: str) -> None:
        if self.times and name.endswith(".parquet"):
            self.times -= 1
            write(Path(self.location), self.times + 1)


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_a_partial_read_is_of_one_recording(tmp_path: Path, times: int) -> None:
    write(tmp_path / "t", 0, "record")
    recording = Recording(Rewritten(tmp_path / "t", times), Key(step=0))
    batch = recording.batch(["a", "b"], slice(10, 20))
    number = int(np.asarray(batch["a"])[0, 0])
    assert np.asarray(batch["b"]).shape == (10, 40 + number)
    assert set(recording.identity()[0]) == {str(number)}


def test_one_opened_before_and_read_after_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")
    recording = Recording(LocalStorage(tmp_path / "t"), Key(step=0))
    assert recording.samples == 50
    write(tmp_path / "t", 3)
    assert np.asarray(recording.batch(["b"])["b"]).shape == (50, 43)
    recording.verify()


def test_one_that_is_never_still_says_so(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")
    with pytest.raises(rolltape.StorageError, match="replaced while it was read"):
        Recording(Rewritten(tmp_path / "t", 1000), Key(step=0)).batch(["b"])


def test_columns_counts_and_what_was_noted_are_of_one_recording(tmp_path: Path) -> None:
    for times in range(6):
        write(tmp_path / f"t{times}", 0, "record")
        recording = Recording(Rewritten(tmp_path / f"t{times}", times), Key(step=0))
        assert (recording.samples, set(recording.columns)) == (50, {"a", "b", "uid"})
        number = int(recording.columns["b"].split("[")[1].rstrip("]")) - 40
        value = recording.value()
        assert value["b"].shape == (50, 40 + int(value["a"][0, 0]))
        assert number in range(times + 1)


@pytest.mark.parametrize("times", [1, 2, 4])
def test_rows_without_padding_are_of_one_recording(tmp_path: Path, times: int) -> None:
    write(tmp_path / "t", 0, "record")
    rows = np.asarray(Recording(Rewritten(tmp_path / "t", times), Key(step=0)).jagged(["b"])["b"].values)
    number = len(rows) // 50 - 40
    assert (rows == np.random.default_rng(number).random((50, 40 + number)).ravel()).all()


def test_one_that_is_deleted_while_it_is_read_is_missing_and_not_damaged(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")

    class Deleted(Rewritten):
        def _rewrite(self, name: str) -> None:
            if self.times:
                self.times -= 1
                (tmp_path / "t" / name).unlink()

    recording = Recording(LocalStorage(tmp_path / "t"), Key(step=0))
    assert recording.samples == 50
    recording._storage = Deleted(tmp_path / "t", 1)
    with pytest.raises(rolltape.StepMissingError):
        recording.batch(["b"], slice(10, 20))


@pytest.mark.parametrize("kind", ["a pipe", "a link"])
def test_what_takes_its_place_while_it_is_read_is_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "t", 0, "record")
    write(tmp_path / "other", 1, "record")
    recording = Recording(LocalStorage(tmp_path / "t"), Key(step=0))
    assert recording.samples == 50
    file = tmp_path / "t" / recording.key.path
    file.unlink()
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "other" / recording.key.path)
    with pytest.raises(rolltape.StorageError, match="in the place of a file"):
        recording.batch(["b"], slice(10, 20))


def test_samples_and_exports_of_a_step_that_is_rewritten_all_the_time(tmp_path: Path) -> None:
    """A reader in this process, a writer in another: whatever is read is one of what was written.

    Samples that were opened before are of what was there then: who reads on is told to read again.
    """
    write(tmp_path / "t", 0, "record")
    writes = f"""
import sys; sys.path[:0] = {[str(ROOT), str(ROOT / "src")]!r}
from pathlib import Path
from tests.test_reading_while_rewriting import write
for number in range(1, 40): write(Path({str(tmp_path / "t")!r}), number)
"""
    with subprocess.Popen([sys.executable, "-c", writes], env={**os.environ}) as writer:
        read = 0
        while writer.poll() is None or not read:
            with contextlib.suppress(FileReplacedError):
                samples = rolltape.open(tmp_path / "t").samples(0)
                number = int(samples.ids[0][0])
                assert {uid for uid, _ in samples.ids} == {str(number)}
            batch = Recording(LocalStorage(tmp_path / "t"), Key(step=0)).batch(["a", "b"], slice(3, 9))
            assert np.asarray(batch["b"]).shape == (6, 40 + int(np.asarray(batch["a"])[0, 0]))
            read += 1
    assert writer.returncode == 0


def test_two_that_rewrite_a_step_at_once_leave_one_of_both_whole(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, "record")
    barrier = threading.Barrier(4)
    failed: list[Exception] = []

    def rewrite(number: int) -> None:
        barrier.wait()
        try:
            for _ in range(5):
                write(tmp_path / "t", number)
        except rolltape.StepExistsError as error:  # told to use rewrite, which it does
            failed.append(error)

    threads = [threading.Thread(target=rewrite, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    value = Recording(LocalStorage(tmp_path / "t"), Key(step=0)).value()
    assert value["b"].shape == (50, 40 + int(value["a"][0, 0]))
    assert int(value["a"][0, 0]) in range(1, 5)
    assert inspect(LocalStorage(tmp_path / "t")).findings == []
