"""The noise floor, and the recipe of docs/ci.md, as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rolltape.storage import LocalStorage
from rolltape.verify.rules.noise_floor import read_floor
from tests.cli_tapes import run
from tests.stacks import optional

DOC = Path(__file__).resolve().parent.parent / "docs" / "ci.md"
SRC = Path(__file__).resolve().parent.parent / "src"
TRAINER = """
import os, time
from pathlib import Path
import numpy as np
import rolltape

noise = float(os.environ.get("NOISE", "0"))
run = len(list(Path().glob("run-*")))  # each run is off by more than the one before
Path(f"run-{run}").touch()
tape = rolltape.Tape.from_env()

@tape.stage("rollout")
def generate(step):
    return {"uid": ["a", "b"], "response_ids": np.arange(6).reshape(2, 3) + step}

@tape.stage("reward", replay=False)
def reward(batch):
    return {"uid": batch["uid"], "reward": batch["response_ids"].sum(axis=1).astype(np.float32)}

@tape.stage("loss", replay=False)
def loss(batch):
    found = np.sin(batch["response_ids"].astype(np.float32)) * np.float32(os.environ.get("FACTOR", "1"))
    return {"uid": batch["uid"], "log_probs": found}

with tape:
    for step in range(3):
        with tape.step(step):
            batch = generate(step)
            reward(batch)
            shown = float(loss(batch)["log_probs"].mean())
            tape.log({"loss": shown, "grad_norm": abs(shown) + noise * run / 4, "time/step": time.time()})
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a trainer, where `python` and `rolltape` are those that run the tests."""
    (tmp_path / "train.py").write_text(TRAINER)
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, words in (("python", ""), ("rolltape", " -m rolltape")):
        (bin / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        (bin / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    return tmp_path


def shell(line, **environ):
    return subprocess.run(line, shell=True, capture_output=True, text=True, env={**os.environ, **environ})


def record(project, **environ):
    done = shell("python train.py", ROLLTAPE_MODE="record", ROLLTAPE_DIR="tapes/baseline", **environ)
    assert done.returncode == 0, done.stderr


def test_each_metric_has_its_own_noise(project):
    record(project, NOISE="1e-3")
    done = shell("rolltape noise tapes/baseline --runs 2 -- python train.py", NOISE="1e-3")
    assert done.returncode == 0, done.stderr
    floor = read_floor(LocalStorage(str(project / "tapes/baseline")))
    assert (floor.runs, floor.command) == (2, ("python", "train.py"))
    assert floor.of("loss", "log_probs") == 0.0
    assert floor.of("metrics", "grad_norm") == pytest.approx(0.5e-3)
    assert floor.of("metrics", "entropy") is None
    env = {"ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": "tapes/baseline", "NOISE": "1e-3"}
    assert shell("python train.py", ROLLTAPE_OUT="tapes/new", **env).returncode == 0
    entries = json.loads(run("diff", "tapes/baseline", "tapes/new", "--json").stdout)["entries"]
    verdicts = {entry["verdict"] for entry in entries if entry["name"] == "grad_norm"}
    assert verdicts == {"noise"}
    assert shell("python train.py", ROLLTAPE_OUT="tapes/worse", **{**env, "NOISE": "0.5"}).returncode == 0
    done = run("diff", "tapes/baseline", "tapes/worse")
    assert done.exit_code == 1
    assert re.search(r"metric `grad_norm`.*× the noise", done.stdout)
    assert "Noise floor: 2 runs of 20" in done.stdout


def test_a_command_that_fails_or_replays_nothing_is_an_error(project):
    record(project)
    assert run("noise", "tapes/baseline", "--", "false").exit_code == 2
    done = run("noise", "tapes/baseline", "--", "true")
    assert done.exit_code == 3
    assert "replayed nothing" in done.stderr
    assert read_floor(LocalStorage(str(project / "tapes/baseline"))) is None


def test_a_damaged_floor_is_an_error(project):
    record(project)
    (project / "tapes/baseline/noise.json").write_text("{}")
    assert run("diff", "tapes/baseline", "tapes/baseline").exit_code == 2


def recipe(name):
    """A block of the recipe: its text, or the commands in it, each with the variables its comment names."""
    text = re.search(rf"<!-- recipe: {name} -->\n```\w+\n(.*?)```", DOC.read_text(), re.DOTALL)[1]
    if name == "gate":
        return text
    found = []
    for line in text.splitlines():
        command, _, comment = line.removeprefix("$ ").partition("  #")
        found.append((command.strip(), dict(re.findall(r"(ROLLTAPE_\w+)=(\S+)", comment))))
    return found


def follow(name, **environ):
    """Run a block as written; the exit code of its last command."""
    code = 0
    for command, variables in recipe(name):
        done = shell(command, **variables, **environ)
        code = done.returncode
        print(command, code, done.stdout, done.stderr)
    return code


def test_the_recipe_works_as_written(project):
    optional("yaml")
    (project / "gate.yaml").write_text(recipe("gate"))
    assert follow("record") == 0
    assert follow("noise") == 0
    assert follow("compare") == 0
    assert (project / "rolltape.xml").is_file()
    subprocess.run(["rm", "-r", "tapes/candidate"], check=True)
    assert follow("compare", FACTOR="1.01") == 1
    assert follow("accept") == 0
    subprocess.run(["rm", "-r", "tapes/candidate"], check=True)
    assert follow("noise", FACTOR="1.01") == 0
    assert follow("compare", FACTOR="1.01") == 0
    subprocess.run(["rm", "-r", "tapes/candidate"], check=True)
    assert follow("compare") == 1
