"""`rolltape doctor` says what the machine and the directory are like, and leaves no trace."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rolltape.cli import machine_facts as probe
from rolltape.determinism import WATCHED
from tests.cli_tapes import in_process, record, run


@pytest.fixture(autouse=True)
def no_torch_to_try(monkeypatch):
    """What torch does on this CPU is the matter of test_cpu_probe.py, and takes seconds each time."""
    monkeypatch.setattr(probe.cpu_probe, "has_torch", lambda: False)


@pytest.fixture(autouse=True)
def no_disk_is_slow(monkeypatch):
    """How busy the disk of this machine is at the moment is nobody's fault."""
    monkeypatch.setattr(probe, "SLOW_SYNC", float("inf"))


def facts(*args, env=None, exit_code=0):
    done = run("doctor", *args, "--json", env=env)
    assert done.exit_code == exit_code, done.stdout
    return {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}


def test_all_is_well_on_a_good_tape(tmp_path):
    tape = record(tmp_path / "t")
    done = run("doctor", tape)
    assert done.exit_code == 0, done.stdout
    assert done.stdout.endswith("all is well\n")
    known = facts(tape)
    assert known["python"]["value"] == platform.python_version()
    assert known["numpy"]["value"] == np.__version__
    assert known["directory"]["value"] == str(tape)
    assert "tape " in known["directory"]["note"]
    assert known["writable"]["value"].startswith("yes, fsync takes")


def test_nothing_is_left_behind(tmp_path):
    assert facts(tmp_path / "not/there/yet")["directory"]["note"] == "will be created"
    facts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_packages_are_asked_for_and_not_imported(tmp_path):
    code = (
        "import sys; from rolltape.cli import machine_facts\n"
        "list(machine_facts.versions()), list(machine_facts.processor({}))\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_file_in_place_of_the_tape_needs_attention(tmp_path):
    (tmp_path / "f").write_text("x")
    known = facts(tmp_path / "f", exit_code=1)
    assert "file" in known["directory"]["attention"]


def test_a_tape_that_cannot_be_read_needs_attention(tmp_path):
    tape = record(tmp_path / "t")
    (tape / "tape.json").write_text('{"format": 999}')
    assert "999" in facts(tape, exit_code=1)["directory"]["attention"]


@pytest.mark.parametrize(("free", "code"), [(10, 1), (10**12, 0)])
def test_little_space_needs_attention(tmp_path, monkeypatch, free, code):
    monkeypatch.setattr(probe.posix, "free_bytes", lambda path: free)
    facts(tmp_path, exit_code=code)


def test_a_directory_that_cannot_be_written_needs_attention(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(probe.tempfile, "TemporaryFile", refuse)
    assert facts(tmp_path, exit_code=1)["writable"]["value"] == "no: Permission denied"


def test_a_slow_disk_needs_attention(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "SLOW_SYNC", 0.1)
    clock = iter(range(100))
    monkeypatch.setattr(probe.time, "perf_counter", lambda: next(clock))
    assert "slow" in facts(tmp_path, exit_code=1)["writable"]["attention"]


def test_a_ray_session_folder_needs_attention(tmp_path):
    folder = tmp_path / "ray/session_2026-01-01/runtime"
    folder.mkdir(parents=True)
    assert "elsewhere" in facts(folder, exit_code=1)["Ray session"]["attention"]
    assert "elsewhere" in facts(folder.parent, exit_code=1)["Ray session"]["attention"]


def test_settings_in_force_are_listed_and_wrong_ones_blamed(tmp_path):
    env = {"ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": str(tmp_path)}
    known = facts(env=env)
    assert known["ROLLTAPE_MODE"]["value"] == "replay"
    assert known["directory"]["value"] == str(tmp_path)
    wrong = facts(tmp_path, env={"ROLLTAPE_MODE": "recrod"}, exit_code=1)
    assert "recrod" in wrong["ROLLTAPE_MODE"]["attention"]
    assert facts(tmp_path, env={"ROLLTAPE_RANK": "3"}, exit_code=1)["ROLLTAPE_RANK"]["attention"]


def test_determinism_flags_are_explained_and_compared_with_the_tape(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    tape = record(tmp_path / "t")
    known = facts(tape, env={"NCCL_ALGO": "Tree", "PYTHONHASHSEED": "0"})
    assert known["NCCL_ALGO"]["value"] == "Tree (on the tape: Ring)"
    assert known["CUBLAS_WORKSPACE_CONFIG"]["value"] == "not set"
    assert all(known[name]["note"] for name in WATCHED)


def test_it_works_where_the_current_directory_is(tmp_path):
    done = in_process("doctor", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert str(Path(os.path.abspath(tmp_path))) in done.stdout


def test_each_framework_is_tested_or_expected_to_work_or_refused(tmp_path, monkeypatch):
    """By its release: one that is tested, one in between, one that is newer, one that is too old."""
    there = {"verl": "0.9.1", "trl": "1.3.0", "ray": "99.0.0", "slime": "0.1.0", "transformers": "4.40.0"}
    theirs = probe.metadata.version
    monkeypatch.setattr(probe.metadata, "version", lambda name: there.get(name) or theirs(name))
    found = {fact.name: fact for fact in probe.versions()}
    assert found["verl"].note == "tested"
    assert found["trl"].note == "expected to work: between releases that are tested"
    assert found["ray"].note.startswith("expected to work: newer than ")
    assert found["slime"].note.startswith("expected to work")
    assert found["transformers"].note.startswith("refused: by TransformersEngine: the oldest release ")
    assert not any(found[name].attention for name in there)
    there["verl"] = "0.5.0"
    old = {fact.name: fact for fact in probe.versions()}["verl"]
    assert old.note.startswith("refused: the oldest release that works is ")
    assert old.attention == old.note
