"""A dump that crashes its reader, runs for ever or is no file at all: named, and the others are imported."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import CorruptFileError, MemoryLimitError, UnsupportedValueError
from rolltape.importing import import_dumps, tape_import
from rolltape.importing import worker as worker_module
from rolltape.importing.dump_layouts import SLIME, Dump, find_dumps
from rolltape.key import Key
from rolltape.steps import ALL_STEPS


def pickled(*parts: bytes) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(b"\x80\x04" + b"".join(parts) + b".")


def colliding(file: Path) -> None:
    items = b"".join(_long(n * (2**61 - 1)) + b"K\x01" for n in range(1, 60_000))
    file.write_bytes(b"\x80\x04}(" + items + b"u.")


def _long(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(2**40)


BAD: dict[str, Callable[[Path], None]] = {
    "a key nested 300,000 deep": pickled(b"}", b")", b"\x85" * 300_000, b"K\x01s"),
    "keys that collide": colliding,
    "a value nested 300,000 deep": pickled(b")", b"\x85" * 300_000),
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a file of holes": sparse,
    "nothing": lambda file: file.write_bytes(b""),
    "a number": pickled(b"K\x07"),
}


def test_a_record_of_two_hundred_thousand_fields_is_one_column(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    wide = {f"field{n}": n for n in range(200_000)}
    (tmp_path / "d/3.pt").write_bytes(pickle.dumps({"samples": [wide], "rollout_id": 3}))
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert report.problems == []
    recording = rolltape.open(tmp_path / "tape").recording(Key(step=3))
    assert len(recording.columns) < 10
    assert recording.value()["samples"][0] == wide


def test_the_time_on_the_clock_is_limited_where_a_dump_only_waits(tmp_path: Path) -> None:
    """A reader that sleeps takes no processor time, and is ended all the same."""
    waiting = worker_module.Worker({})
    code = "import sys, time; sys.stdin.readline(); print('\"reading\"', flush=True); time.sleep(600)"
    waiting._process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    started = time.monotonic()
    with pytest.raises(CorruptFileError, match="more than the 10 s that its size allows"):
        waiting.ask({"files": {}}, 2_600_000)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("size", [0, 1, 10**6, 3 * 10**6])
def test_what_a_small_dump_may_take_is_ten_seconds(size: int) -> None:
    assert worker_module.clock_seconds(size) <= 10
    assert worker_module.cpu_seconds(size) < 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dumps").mkdir()
    for number, make in enumerate(BAD.values()):
        make(tmp_path / "dumps" / f"step_{number}.pkl")
    return tmp_path / "dumps"


def test_every_bad_dump_is_named_and_none_stops_the_others(folder: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    report = import_dumps(folder, tmp_path / "tape")
    assert report is not None
    assert report.imported == []
    named = {Path(problem.file).name: problem for problem in report.problems}
    files = [f"step_{n}.pkl" for n, kind in enumerate(BAD) if kind != "a folder"]
    assert sorted(named) == sorted(files)
    said = " ".join(problem.message for problem in report.problems)
    assert "crashed its reader (SIGSEGV)" in said or "deep" in said
    assert {problem.kind for problem in report.problems} <= {
        "damaged",
        "unreadable",
        "unsupported",
        "refused",
    }
    assert time.monotonic() - started < 240


@pytest.mark.parametrize(
    ("meta", "what"),
    [
        ("[" * 100_000 + "]" * 100_000, "meta.json"),
        ('{"global_steps": ' + "9" * 6000 + "}", "meta.json"),
        ('{"global_steps": -1}', "global_steps"),
        ('{"global_steps": 99999999999999999999}', "global_steps"),
        ('{"global_steps": true}', "global_steps"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "meta.json"),
    ],
    ids=["deep", "6,000 digits", "negative", "above the highest", "no number", "no JSON"],
)
def test_a_bad_meta_is_a_problem_of_its_own_dump(tmp_path: Path, meta: str, what: str) -> None:
    for number in (1, 2):
        (tmp_path / f"d/{number}").mkdir(parents=True)
        (tmp_path / f"d/{number}/gen_batch.dp").write_bytes(b"x")
        (tmp_path / f"d/{number}/meta.json").write_text(f'{{"global_steps": {number}}}')
    (tmp_path / "d/1/meta.json").write_text(meta)
    found = find_dumps(tmp_path / "d")
    assert found is not None
    problems = {dump.step: dump.problem for dump in found.dumps}
    assert problems[2] is None
    assert what in (problems[1] or "")


def test_steps_out_of_range_are_named(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / f"d/step_{'9' * 150}.pkl").write_bytes(b"x")
    (tmp_path / f"d/step_{2**63}.pkl").write_bytes(b"x")
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert ["above the highest" in problem.message for problem in report.problems] == [True, True]


def test_a_reader_that_does_not_answer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/step_1.pkl").write_bytes(b"x")
    monkeypatch.setattr(worker_module, "_line", lambda process, deadline: None)
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert ["it took too long to read" in problem.message for problem in report.problems] == [True]


@pytest.mark.parametrize("error", [ValueError("odd"), UnsupportedValueError("odd"), MemoryLimitError("odd")])
def test_a_value_that_cannot_be_stored_is_a_problem_of_its_own_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (tmp_path / "3.pt").write_bytes(pickle.dumps({"samples": [{"reward": 0.5}], "rollout_id": 3}))
    target = tape_import._Target(set())

    def put(*_: object) -> None:
        raise error

    monkeypatch.setattr(target, "put", put, raising=True)
    report = tape_import.Report("", "", "")
    dump = Dump({"rollout": tmp_path / "3.pt"}, 3)
    tape_import._import(dump, SLIME, target, report, "rollout", ALL_STEPS)
    assert [Path(problem.file).name for problem in report.problems] == ["3.pt"]
    assert report.imported == []
