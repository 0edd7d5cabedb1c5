"""Damaged, foreign, newer, unwritable and vanished tapes: a clear error each, and nothing lost."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.codec import file as codec
from rolltape.errors import (
    CorruptFileError,
    FormatVersionError,
    NotATapeError,
    StepMissingError,
    StorageError,
    TapeNotFoundError,
    TapeReadOnlyError,
)
from tests.taping import ROOT, Rollout, batch_of, files, record, same

STEP = "train/rollout/step_000001.parquet"


@pytest.fixture
def tape_dir(tmp_path: Path) -> Path:
    record(tmp_path / "t")
    return tmp_path / "t"


def replay(directory: Path, step: int = 1, **options: Any) -> Any:
    with rolltape.Tape(directory, mode="replay", **options) as tape:
        return Rollout(tape).run([step])[step]


# -- the directory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["record", "replay", "auto", "rewrite"])
def test_the_tape_is_a_file(tmp_path: Path, mode: str) -> None:
    (tmp_path / "t").write_text("not a tape")
    with pytest.raises(NotATapeError) as caught:
        rolltape.Tape(tmp_path / "t", mode=mode)
    assert isinstance(caught.value, NotADirectoryError)
    assert caught.value.where == str(tmp_path / "t")
    assert (tmp_path / "t").read_text() == "not a tape"


def test_a_folder_of_tapes_is_not_a_tape(tmp_path: Path) -> None:
    for name in ("run-a", "run-b"):
        record(tmp_path / name, [0])
    with pytest.raises(TapeNotFoundError, match="it contains tapes: run-a, run-b") as caught:
        rolltape.Tape(tmp_path, mode="replay")
    assert "give the tape itself" in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TapeNotFoundError, match=r"it has no tape\.json"):
        rolltape.Tape(tmp_path / "empty", mode="replay")


AS_NOBODY = """
import os, sys, tempfile
import numpy.random
import rolltape
from tests.taping import Rollout, record
# Import all there is to import while it can be read: the interpreter may be where only root can.
with tempfile.TemporaryDirectory() as warm:
    record(warm + "/t"), Rollout(rolltape.Tape(warm + "/t", mode="replay", on_miss="last")).run([0, 5])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    tape = rolltape.Tape(sys.argv[1], mode=sys.argv[2], **eval(sys.argv[3]))
    Rollout(tape).run([1, 2] if sys.argv[2] == "replay" else [1])
    tape.close()
except rolltape.RolltapeError as error:
    print(type(error).__name__, error)
else:
    print("done")
"""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A tape in a folder that every user can enter; pytest closes its own to others at any time."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        record(Path(folder) / "t")
        yield Path(folder) / "t"


def as_nobody(directory: Path, mode: str, **options: Any) -> str:
    """Use a tape as a user who owns none of it; the tests may run as root, whom no permission stops."""
    command = [sys.executable, "-c", AS_NOBODY, str(directory), mode, repr(options)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("mode", ["record", "auto", "rewrite"])
def test_a_read_only_tape_is_refused_when_it_is_opened_for_recording(open_dir: Path, mode: str) -> None:
    said = as_nobody(open_dir, mode)
    assert said.startswith("TapeReadOnlyError")
    assert str(open_dir) in said
    assert ("set mode=replay" in said) == (mode == "auto")
    assert issubclass(TapeReadOnlyError, PermissionError)


@pytest.mark.parametrize("options", [{}, {"on_miss": "cycle"}, {"on_miss": "live"}])
def test_a_read_only_tape_can_be_replayed(open_dir: Path, options: dict[str, str]) -> None:
    assert as_nobody(open_dir, "replay", **options).startswith("done")


def test_a_tape_that_may_not_be_read(open_dir: Path) -> None:
    (open_dir / STEP).chmod(0o600)
    said = as_nobody(open_dir, "replay")
    assert said.startswith("StorageError")
    assert STEP in said


def test_a_tape_that_vanishes_while_it_is_recorded(tape_dir: Path) -> None:
    tape = rolltape.Tape(tape_dir, mode="auto")
    rollout = Rollout(tape)
    shutil.rmtree(tape_dir)
    rollout.run([5])
    with pytest.raises(StorageError, match="disappeared while it was in use"):
        tape.close()
    assert not tape_dir.exists(), "it is not created again, empty, without its past"


def test_a_tape_that_vanishes_while_it_is_replayed(tape_dir: Path) -> None:
    with rolltape.Tape(tape_dir, mode="replay", prefetch=False) as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        shutil.rmtree(tape_dir)
        with pytest.raises(StepMissingError, match=r"tape\.json is not there any more"):
            rollout.run([1])


# -- tape.json ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "\0" * 50,
        "[" * 99999,
        *(f'{{"format": {f}}}' for f in ("1", '"1"', 0, "true")),
    ],
    ids=lambda text: text[:15].replace("\0", "0"),
)
def test_a_damaged_tape_json(tape_dir: Path, text: str) -> None:
    (tape_dir / "tape.json").write_text(text)
    for mode in ("replay", "record", "auto", "rewrite"):
        with pytest.raises(CorruptFileError, match=r"tape\.json cannot be read") as caught:
            rolltape.Tape(tape_dir, mode=mode)
        assert caught.value.where == str(tape_dir / "tape.json")
    assert (tape_dir / "tape.json").read_text() == text, "nothing is repaired by overwriting it"


@pytest.mark.parametrize("change", [{"fingerprint": []}, {"environment": None}, {"id": 7}, {"earlier": [1]}])
def test_a_tape_json_with_the_wrong_kinds(tape_dir: Path, change: dict[str, Any]) -> None:
    node = json.loads((tape_dir / "tape.json").read_text())
    (tape_dir / "tape.json").write_text(json.dumps(node | change))
    with pytest.raises(CorruptFileError):
        rolltape.Tape(tape_dir, mode="replay")


def test_a_newer_tape(tape_dir: Path) -> None:
    node = json.loads((tape_dir / "tape.json").read_text())
    (tape_dir / "tape.json").write_text(json.dumps({"format": 3, "producer": "rolltape 9.9", "new": node}))
    for mode in ("replay", "auto"):
        with pytest.raises(FormatVersionError, match="format 3; this Rolltape reads up to 2") as caught:
            rolltape.Tape(tape_dir, mode=mode)
        assert "rolltape 9.9" in str(caught.value)
        assert "pip install --upgrade rolltape" in str(caught.value)


def test_a_field_that_a_later_version_adds_is_no_matter(tape_dir: Path) -> None:
    node = json.loads((tape_dir / "tape.json").read_text())
    (tape_dir / "tape.json").write_text(json.dumps(node | {"comment": "added by hand"}))
    assert same(replay(tape_dir), batch_of(1))


# -- recordings --------------------------------------------------------------------------------------


def foreign_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2]}), sink)
    return bytes(sink.getvalue())


DAMAGES = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "zeros": lambda data: b"\0" * len(data),
    "text": lambda data: b"hello world\n" * 20,
    "another tool's Parquet": lambda data: foreign_parquet(),
    "a flipped bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_recording_is_named(tape_dir: Path, damage: str) -> None:
    path = tape_dir / STEP
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for prefetch in (True, False):
        with pytest.raises(CorruptFileError) as caught:
            replay(tape_dir, prefetch=prefetch)
        assert caught.value.where == str(path)
        assert caught.value.hint
        assert isinstance(caught.value, ValueError)
    for step in (0, 2):
        assert same(replay(tape_dir, step), batch_of(step)), "the others are fine"


def test_a_damaged_column_is_named(tape_dir: Path) -> None:
    path = tape_dir / STEP
    data = bytearray(path.read_bytes())
    named = set()
    for at in range(8, 400, 16):
        data[at] ^= 255
        path.write_bytes(data)
        try:
            assert same(replay(tape_dir), batch_of(1)), "a byte between the columns, which nobody reads"
        except CorruptFileError as error:
            named.add(error.what.partition("'")[2].partition("'")[0])
        data[at] ^= 255
    assert named & {"responses", "logprobs", "text", "uid", "reward"}


def test_a_recording_of_a_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(codec, "FORMAT", 2)
        record(tmp_path / "t")
    with pytest.raises(FormatVersionError, match="the file has format 2") as caught:
        replay(tmp_path / "t")
    assert str(caught.value.where).endswith(STEP)


def test_a_damaged_recording_is_never_recorded_over_by_auto(tape_dir: Path) -> None:
    """It may be all that is left of a run; the user decides."""
    (tape_dir / STEP).write_bytes(b"damaged")
    with rolltape.Tape(tape_dir, mode="auto") as tape, pytest.raises(CorruptFileError):
        Rollout(tape).run([1])
    assert (tape_dir / STEP).read_bytes() == b"damaged"


def test_other_files_in_a_tape_are_left_alone(tape_dir: Path) -> None:
    for name in (
        "train/rollout/notes.txt",
        "train/rollout/step_1.parquet",
        "README.md",
        "train/rollout/.DS_Store",
    ):
        (tape_dir / name).write_text("mine")
    (tape_dir / "my plots" / "a").mkdir(parents=True)
    with rolltape.Tape(tape_dir, mode="auto", max_keep=1) as tape:
        assert [recording.key.step for recording in tape.recordings()] == [0, 1, 2]
        Rollout(tape).run([0, 3])
    assert {"train/rollout/notes.txt", "train/rollout/step_1.parquet", "README.md"} <= files(tape_dir)


def test_a_tape_that_was_never_written_is_closed_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rolltape")
    with rolltape.Tape(tmp_path / "t", mode="record"):
        pass
    assert "nothing recorded, nothing replayed" in caplog.text
