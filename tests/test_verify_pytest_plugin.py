"""The pytest plugin, in test suites of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"
SUITE = """
import os
import numpy as np
import pytest
from rolltape.pytest_plugin import assert_matches_tape

calls = []

def train(tape, factor=1.0):
    @tape.stage("rollout")
    def generate(step):
        calls.append(step)
        return {"uid": ["a", "b"], "response_ids": np.arange(6).reshape(2, 3) + step}

    @tape.stage("loss", replay=False)
    def loss(batch):
        found = np.sin(batch["response_ids"].astype(np.float32)) * np.float32(factor)
        return {"uid": batch["uid"], "log_probs": found}

    for step in range(2):
        with tape.step(step):
            found = loss(generate(step))
            tape.log({"loss": float(found["log_probs"].mean())})

@pytest.mark.parametrize("name", ["a b/c", "d"])
def test_training(rolltape_tape, name):
    train(rolltape_tape, float(os.environ.get("FACTOR", "1")))
    assert bool(calls) == (os.environ["MAKES"] == "1")
    gate = {"rules": [{"match": "*", "rtol": float(os.environ["RTOL"])}]} if "RTOL" in os.environ else None
    assert_matches_tape(rolltape_tape, gate=gate)
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "test_it.py").write_text(SUITE)

    def run(*args, makes=False, **environ):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "rolltape.pytest_plugin",
            "-p",
            "no:cacheprovider",
            *args,
        ]
        env = {**os.environ, "PYTHONPATH": str(SRC), "MAKES": "1" if makes else "0", **environ}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # it is named above, installed or not
        done = subprocess.run(command, cwd=tmp_path / "suite", capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr

    return run


def test_record_once_then_replay_and_compare(suite, tmp_path):
    code, said = suite()
    assert code == 1
    assert "run pytest --rolltape=record" in said
    assert suite("--rolltape=record", makes=True)[0] == 0
    tapes = sorted(path.name for path in (tmp_path / "suite" / "tapes").iterdir())
    assert tapes == ["test_it.test_training_a_b_c", "test_it.test_training_d"]
    assert suite()[0] == 0
    code, said = suite(FACTOR="1.5")
    assert code == 1
    assert "First divergence: step 0, stage `loss`, `log_probs`" in said
    assert "Looks like: scaled by 1.5" in said
    assert suite(FACTOR="1.05", RTOL="0.2")[0] == 0


def test_record_keeps_what_is_there_and_rewrite_does_not(suite):
    assert suite("--rolltape=record", makes=True)[0] == 0
    assert suite("--rolltape=record", FACTOR="1.5")[0] == 1
    assert suite("--rolltape=rewrite", makes=True, FACTOR="1.5")[0] == 0
    assert suite(FACTOR="1.5")[0] == 0
    assert suite()[0] == 1


def test_where_tapes_are_is_a_setting(suite, tmp_path):
    (tmp_path / "suite" / "pytest.ini").write_text("[pytest]\nrolltape_dir = golden/runs\n")
    assert suite("--rolltape=record", makes=True)[0] == 0
    assert (tmp_path / "suite" / "golden" / "runs" / "test_it.test_training_d" / "tape.json").is_file()


def test_pytest_finds_it_where_it_is_installed():
    (found,) = metadata.entry_points(group="pytest11", name="rolltape")
    assert found.value == "rolltape.pytest_plugin"


def test_every_name_it_adds_to_a_suite_is_its_own(suite):
    """It is loaded wherever it is installed: a fixture of a common name would get into the way of others."""
    said = suite("--fixtures", "-q")[1]
    fixtures = re.findall(r"^(\w+).*rolltape/pytest_plugin", said, re.MULTILINE)
    assert sorted(fixtures) == ["rolltape_serve", "rolltape_tape"]
