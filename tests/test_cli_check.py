"""`rolltape check` finds every kind of damage, names it, and changes nothing."""

import json
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

import rolltape
from rolltape.storage import posix
from rolltape.tape.metrics import metrics_line
from tests.cli_tapes import damage, file_of, in_terminal, record, rollout, run
from tests.storing import needs_proc


@pytest.fixture
def tape(tmp_path):
    return record(tmp_path / "t", inputs=True)


def found(tape, exit_code=1):
    """The findings as (kind, file, columns)."""
    done = run("check", tape, "--json")
    assert done.exit_code == exit_code, done.stderr
    (report,) = json.loads(done.stdout)["tapes"]
    return [(finding["kind"], finding["file"], finding["columns"]) for finding in report["findings"]]


def test_a_sound_tape_is_clean(tape):
    done = run("check", tape)
    assert done.exit_code == 0
    assert done.stdout == f"{tape}: 8 files, {done.stdout.split(', ')[1]}"
    assert done.stdout.endswith(": clean\n")
    assert found(tape, exit_code=0) == []


def test_every_tape_below_a_directory_is_checked(tmp_path):
    record(tmp_path / "a", {0: rollout()})
    record(tmp_path / "b/c", {0: rollout()})
    file_of(tmp_path / "b/c", 0).write_bytes(b"PAR1")
    done = run("check", tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path}/a: " in done.stdout
    assert f"{tmp_path}/b/c: 3 files" in done.stdout


def test_damaged_columns_are_named(tape):
    damage(file_of(tape, 0), "rewards")
    damage(file_of(tape, 2), "responses")
    damage(file_of(tape, 2), "uid")
    assert found(tape) == [
        ("damaged", "train/rollout/step_000000.parquet", ["rewards"]),
        ("damaged", "train/rollout/step_000002.parquet", ["responses", "uid"]),
    ]
    text = run("check", tape).stdout
    assert f"rolltape repair {tape} --from COPY" in run("check", tape).stderr
    assert "column 'rewards' does not match its checksum" in text
    assert "columns responses, uid do not match their checksums" in text


@pytest.mark.parametrize("cut", [0, 1, 500, -1])
def test_truncated_files_are_damaged(tape, cut):
    file = file_of(tape, 1)
    file.write_bytes(file.read_bytes()[:cut])
    assert found(tape) == [("damaged", "train/rollout/step_000001.parquet", [])]


def test_damaged_inputs_and_manifest_count_too(tape):
    damage(file_of(tape, 1, suffix=".in"), "_uid")
    (tape / "tape.json").write_text("{")
    assert [(kind, file) for kind, file, _ in found(tape)] == [
        ("damaged", "tape.json"),
        ("damaged", "train/rollout/step_000001.in.parquet"),
    ]


def test_missing_inputs_and_missing_results_are_told_apart(tape):
    file_of(tape, 0, suffix=".in").unlink()
    file_of(tape, 2).unlink()
    assert [(kind, file) for kind, file, _ in found(tape)] == [
        ("inputs", "train/rollout/step_000000.parquet"),
        ("leftover", "train/rollout/step_000002.in.parquet"),
    ]


def test_a_renamed_recording_is_misplaced(tmp_path):
    tape = record(tmp_path / "t", {3: rollout()})
    file_of(tape, 3).rename(file_of(tape, 4))
    assert found(tape) == [("misplaced", "train/rollout/step_000004.parquet", [])]
    assert "recorded as step 3" in run("check", tape).stdout


def test_foreign_files_are_named_wherever_they_are(tape):
    (tape / "notes.txt").write_text("hello")
    (tape / "train/other.bin").write_text("x")
    (tape / "train/rollout/step_7.parquet").write_text("x")
    (tape / "train/rollout/deep").mkdir()
    (tape / "train/rollout/deep/x").write_text("x")
    assert {file for kind, file, _ in found(tape) if kind == "foreign"} == {
        "notes.txt", "train/other.bin", "train/rollout/step_7.parquet", "train/rollout/deep/x",
    }  # fmt: skip


def test_damaged_lines_of_metrics_are_named_one_by_one(tape):
    file = tape / "train/metrics.jsonl"
    lines = file.read_bytes().splitlines()
    assert len(lines) == 3
    lines[1] = lines[1].replace(b'"step":1', b'"step":7')  # still JSON, still a step and its metrics
    lines += [
        metrics_line(9, {"a": 1.5}),
        b'{"step": 10, "metrics": {"a": 1}}',
        b"\xff",
        sealed(b'"step":1.5}'),
    ]
    file.write_bytes(b"\n".join([*lines, metrics_line(11, {"a": 2.5})[:-4]]))
    done = run("check", tape)
    assert done.exit_code == 1
    assert found(tape) == [("metrics", "train/metrics.jsonl", [])] * 5
    said = {
        2: "does not match its checksum", 5: "does not match its checksum", 6: "does not match its checksum",
        7: "cannot be read", 8: "was cut short",
    }  # fmt: skip
    text = " ".join(done.stdout.split())
    for number in range(1, 9):
        assert (f"line {number} {said[number]}" in text) if number in said else f"line {number} " not in text
    assert text.count("train/metrics.jsonl") == 5


def sealed(body):
    """A line of metrics with a right checksum, whatever is in it."""
    return b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body


@needs_proc
def test_half_files_of_dead_writers_are_told_and_are_no_findings(tape):
    """Nothing ever reads them: a tape is as clean after a kill as before."""
    folder = tape / ".tmp"
    folder.mkdir(exist_ok=True)
    (folder / posix.temporary_name()).write_bytes(b"half")  # this process lives
    code = "from rolltape.storage import posix; print(posix.temporary_name())"
    dead = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    (folder / dead).write_bytes(b"half")
    done = run("check", tape)
    assert done.exit_code == 0
    assert "1 file of killed processes" in done.stderr
    assert "1 file in progress" in done.stderr
    (report,) = json.loads(run("check", tape, "--json").stdout)["tapes"]
    assert report["leftovers"] == [f".tmp/{dead}"]


def test_nothing_to_check(tmp_path):
    done = run("check", tmp_path)
    assert done.exit_code == 3
    assert "nothing to check" in done.stderr


def test_nothing_is_changed(tape):
    damage(file_of(tape, 0), "rewards")
    before = {path: path.read_bytes() for path in tape.rglob("*") if path.is_file()}
    run("check", tape)
    assert {path: path.read_bytes() for path in tape.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_finding(tape):
    file_of(tape, 0).chmod(0)
    assert [kind for kind, _, _ in found(tape)] == ["damaged"]


def test_a_terminal_sees_progress(tape):
    code, screen = in_terminal("check", tape)
    assert code == 0
    assert "100%" in screen
    assert "clean" in screen


@pytest.mark.parametrize(
    "value", [{"prompt": "a", "reward": np.float32(0.5), "n": np.array(3), "ids": [1, 2]}, "text"]
)
def test_a_recording_that_is_one_sample_is_sound(value, tmp_path):
    with rolltape.Tape(tmp_path, mode="record") as tape, tape.step(0, key="request 7"):
        tape.stage("rollout")(lambda: value)()
    done = run("check", tmp_path)
    assert done.exit_code == 0, done.output
