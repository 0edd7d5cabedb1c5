"""``rolltape noise --perturb``: how far one unit of rounding carries, so that it is told from a bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.batch.floats import ulps, values
from rolltape.tape.perturb import moved
from rolltape.verify.rules.noise_floor import read_floor
from tests.cli_tapes import run

SRC = Path(__file__).resolve().parents[1] / "src"
TRAINER = '''
"""A deterministic trainer in which rounding grows: each step about doubles what its weights are off by."""
import os
import numpy as np
import rolltape

tape = rolltape.Tape.from_env()
BUG = int(os.environ.get("BUG", "-1"))

rollout = tape.stage("rollout")(lambda step: {
    "uid": [f"{step}.{at}" for at in range(16)],
    "reward": [1.0] * 16,
    "logprobs": np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32),
})

def gradient(batch, weights):
    x = batch["logprobs"] * weights
    if os.environ.get("REORDER"):  # the same sum, rounded in another order
        return x[::-1].cumsum(axis=0, dtype=np.float32)[-1]
    return x.sum(axis=0, dtype=np.float32)

@tape.stage("loss", replay=False)
def loss(batch, weights, step):
    found = gradient(batch, weights) * np.float32(1 + 1e-3 * (step == BUG))
    return {"grad": np.tile(found, (2, 1)), "total": float(found.sum())}

with tape:
    weights = np.linspace(0.1, 0.9, 8, dtype=np.float32)
    for step in range(24):
        with tape.step(step):
            found = loss(rollout(step), weights, step)
            weights = np.float32(3.9) * weights * (np.float32(1) - weights)
            weights = weights * (np.float32(0.95) + np.float32(0.05) * np.sin(found["grad"][0]))
            tape.log({"total": found["total"]})
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAINER)
    monkeypatch.chdir(tmp_path)
    train(tmp_path, ROLLTAPE_MODE="record", ROLLTAPE_DIR="base")
    return tmp_path


def train(folder, **environ):
    env = {**os.environ, "PYTHONPATH": str(SRC), **environ}
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def replay(folder, out, **environ):
    train(folder, ROLLTAPE_MODE="replay", ROLLTAPE_DIR="base", ROLLTAPE_OUT=out, **environ)
    return out


def test_carried_rounding_is_told_from_a_bug(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    harmless, broken = replay(project, "harmless", REORDER="1"), replay(project, "broken", BUG="2")
    assert run("diff", "base", harmless).exit_code == 1  # rounding, which has grown past every tolerance
    assert run("noise", "base", "--runs", "1", "--", sys.executable, "train.py").exit_code == 0
    assert run("diff", "base", harmless).exit_code == 1  # runs of the very same code do not differ at all
    done = run("noise", "base", "--perturb", "--runs", "3", "--", sys.executable, "train.py")
    assert done.exit_code == 0, done.output
    assert "with one unit of rounding added" in done.stdout
    done = run("diff", "base", harmless)
    assert done.exit_code == 0, done.output
    found = rolltape.compare("base", broken)
    assert not found.clean
    assert (found.first.step, found.first.path) == (2, "loss/grad")


def test_the_floor_is_kept_for_each_step_and_grows(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    assert run("noise", "base", "--perturb", "--", sys.executable, "train.py").exit_code == 0
    floor = read_floor(rolltape.open("base").storage)
    early, late = (floor.of("loss", "grad", step) for step in (0, 23))
    assert 0 < early < 1e-5 < late
    assert floor.of("loss", "grad", 500) == late
    assert floor.of("loss", "grad") == late


def test_a_run_that_uses_none_of_the_floats_is_said_to(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    (project / "train.py").write_text(
        TRAINER.replace('x = batch["logprobs"] * weights', "x = np.ones((16, 8), np.float32)")
    )
    for path in (project / "base").rglob("*"):
        path.is_file() and path.unlink()
    train(project, ROLLTAPE_MODE="record", ROLLTAPE_DIR="base")
    done = run("noise", "base", "--perturb", "--runs", "1", "--", sys.executable, "train.py")
    assert "nothing moved" in done.stderr


@pytest.mark.parametrize(
    ("dtype", "storage"),
    [("float32", np.uint32), ("float64", np.uint64), ("float16", np.uint16), ("bfloat16", np.uint16),
     ("float8_e4m3fn", np.uint8), ("float8_e5m2", np.uint8), ("float8_e4m3fnuz", np.uint8)],
)  # fmt: skip
def test_every_number_moves_to_a_neighbour_or_stays(dtype, storage):
    draw = np.random.default_rng(0)
    top = 2 ** (8 * np.dtype(storage).itemsize) - 1
    bits = draw.integers(0, top, 4000, dtype=storage, endpoint=True)
    bits[:6] = [
        0,
        1,
        top,
        top >> 1,
        (top >> 1) + 1,
        (top >> 1) + 2,
    ]  # zeros, the smallest, what is not finite
    array = bits.view(dtype) if dtype in ("float32", "float64", "float16") else bits
    found = moved(array, dtype, np.random.default_rng(1))
    before, after = values(array, dtype), values(found, dtype)
    np.testing.assert_array_equal(np.isfinite(before), np.isfinite(after))
    np.testing.assert_array_equal(before == 0, after == 0)
    finite = np.isfinite(before)
    apart = ulps(array.view(storage)[finite], found.view(storage)[finite])
    assert apart.max() == 1
    assert 0.3 < (apart == 1).mean() < 0.6


def test_only_the_first_floats_are_moved_and_nothing_without_the_variable(tmp_path, monkeypatch):
    batch = {"uid": list("ab"), "reward": np.ones(2, np.float32), "logprobs": np.ones((2, 50), np.float32),
             "other": np.ones((2, 3), np.float32), "ids": np.arange(6).reshape(2, 3)}  # fmt: skip
    with rolltape.Tape(tmp_path / "a", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(batch.copy)()
        tape.stage("later")(batch.copy)()

    def given(stage):
        with rolltape.Tape(tmp_path / "a", mode="replay") as tape, tape.step(0):
            first = tape.stage("rollout")(lambda: None)()
            return first if stage == "rollout" else tape.stage("later")(lambda: None)()

    assert (given("rollout")["logprobs"] == 1).all()
    monkeypatch.setenv("ROLLTAPE_PERTURB", "1")
    found = given("rollout")
    assert 0 < (found["logprobs"] != 1).sum() < 100
    for name in ("reward", "other", "ids"):
        np.testing.assert_array_equal(found[name], batch[name])
    assert (given("later")["logprobs"] == 1).all()
    np.testing.assert_array_equal(given("rollout")["logprobs"], found["logprobs"])
    monkeypatch.setenv("ROLLTAPE_PERTURB", "2")
    assert (given("rollout")["logprobs"] != found["logprobs"]).any()
