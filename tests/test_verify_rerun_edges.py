"""What ``rerun`` is honest about: what it leaves out, micro-batches, padding, settings, others' functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.verify.rerun.formulas import grpo, policy_loss
from tests.cli_tapes import run

LENGTHS = (3, 5, 2, 4, 3, 1)
UID = [f"p{at // 3}" for at in range(6)]
SRC = Path(__file__).resolve().parents[1] / "src"


def record(path, *, calls=((0, 1, 2, 3, 4, 5),), pad=None, side="right", uid=True, rollout=True, wrong=None,
           order=None):  # fmt: skip
    """A step of GRPO whose loss is computed in several calls, with rows as they are or padded to a width."""
    draw = np.random.default_rng(0)
    old = [draw.normal(size=n).astype(np.float32) for n in LENGTHS]
    new = [row + np.float32(0.3) * np.cos(row) for row in old]
    reward = draw.normal(size=6).astype(np.float32)
    advantage = grpo(reward, UID)["advantage"]
    losses = policy_loss(new, old, advantage)["token_losses"]
    if wrong is not None:
        losses[wrong][0] += 0.5

    def rows(found, at):
        picked = [found[row] for row in at]
        if pad is None:
            return picked
        out = np.zeros((len(at), pad), np.float32)
        for line, row in zip(out, picked, strict=True):
            line[slice(None, len(row)) if side == "right" else slice(pad - len(row), None)] = row
        return out

    with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
        if rollout:
            ids = [np.arange(n) for n in LENGTHS]
            tape.stage("rollout")({"uid": UID, "response_ids": ids, "logprobs": old}.copy)()
            tape.stage("reward")({"uid": UID, "reward": reward}.copy)()
        tape.stage("advantage")({"uid": UID, "advantage": advantage}.copy)()
        loss = tape.stage("loss")(lambda value: value)
        for at in calls:
            who = {"uid": [UID[row] for row in at], "index_in_group": [row % 3 for row in at]} if uid else {}
            loss({**who, "log_probs": rows(new, at), "token_losses": rows(losses, at)})
    return path


LAYOUTS = {
    "one call": {},
    "two calls": {"calls": ((0, 1, 2), (3, 4, 5))},
    "groups apart, out of order": {"calls": ((4, 1), (0, 5), (3, 2))},
    "padded wider": {"pad": 9},
    "padded in front": {"pad": 9, "side": "left"},
    "padded, two calls": {"pad": 7, "calls": ((5, 0), (1, 2, 3, 4))},
    "no uids": {"uid": False},
    "no uids, two calls": {"uid": False, "calls": ((0, 1, 2, 3), (4, 5))},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loss_is_computed_again_however_it_was_recorded(tmp_path, layout):
    good = record(tmp_path / "good", **LAYOUTS[layout])
    done = run("rerun", good, 0, "--json")
    assert done.exit_code == 0, done.output
    found = {one["stage"]: [e["verdict"] for e in one["entries"]] for one in json.loads(done.stdout)}
    assert set(found) == {"advantage", "loss"}
    assert set(found["loss"]) <= {"bitwise", "ulp"}
    bad = record(tmp_path / "bad", wrong=3, **LAYOUTS[layout])
    done = run("rerun", bad, 0)
    assert done.exit_code == 1, done.output
    assert "First disagreement: stage `loss`, `token_losses`" in done.stdout
    if LAYOUTS[layout].get("uid", True):
        assert "(uid p1, 0)" in done.stdout


def test_a_stage_that_is_left_out_is_said_and_is_no_agreement(tmp_path):
    tape = record(tmp_path / "a", rollout=False)
    with rolltape.Tape(tape, mode="record", overwrite="keep") as more, more.step(0):
        more.stage("zz_advantage")({"uid": UID, "advantage": np.zeros(6, np.float32)}.copy)()
    done = run("rerun", tape, 0)
    assert done.exit_code == 3, done.output  # nothing at all could be computed again
    tape = record(tmp_path / "b")
    with rolltape.Tape(tape, mode="record", overwrite="keep") as more, more.step(1):
        more.stage("rollout")({"uid": UID, "response_ids": [np.arange(2)] * 6}.copy)()
        more.stage("reward")({"uid": UID, "reward": np.arange(6, dtype=np.float32)}.copy)()
        advantage = grpo(np.arange(6, dtype=np.float32), UID)["advantage"]
        more.stage("advantage")({"uid": UID, "advantage": advantage}.copy)()
        more.stage("loss")({"uid": UID, "token_losses": [np.zeros(2, np.float32)] * 6}.copy)()
    done = run("rerun", tape, 1)
    assert done.exit_code == 1, done.output
    assert "very stage" not in done.stdout
    assert done.stdout.startswith("`advantage` agrees with its recording; left out: `loss`.")
    assert "loss: left out: policy_loss needs log_probs, old_log_probs" in done.stdout
    left = json.loads(run("rerun", tape, 1, "--json").stdout)[-1]
    assert (left["stage"], left["entries"]) == ("loss", [])
    assert "needs log_probs" in left["left_out"]


def test_rows_that_cannot_be_told_from_padding_are_refused_with_the_place(tmp_path):
    with rolltape.Tape(tmp_path / "a", mode="record", background=False) as tape, tape.step(0):
        draw = np.random.default_rng(0)
        before = {"uid": ["a", "b"], "old_log_probs": draw.normal(size=(2, 4)), "advantage": np.ones(2)}
        tape.stage("prepare")(before.copy)()
        wide = draw.normal(size=(2, 6))
        tape.stage("loss")({"uid": ["a", "b"], "log_probs": wide, "token_losses": wide}.copy)()
    done = run("rerun", tmp_path / "a", 0, "--stage", "loss")
    assert done.exit_code == 2
    assert "internal error" not in done.stderr
    assert "`log_probs` has 6 and `old_log_probs` 4 places in sample 0" in done.stderr


@pytest.mark.parametrize("word", ["false", "False", "FALSE"])
def test_false_is_false(tmp_path, word):
    reward = np.array([1, 2, 4, 0, 1, 5], np.float32)
    with rolltape.Tape(tmp_path / "a", mode="record", background=False) as tape, tape.step(0):
        tape.stage("reward")({"uid": UID, "reward": reward}.copy)()
        tape.stage("advantage")({"uid": UID, **grpo(reward, UID, std=False)}.copy)()
    done = run("rerun", tmp_path / "a", 0, "--set", f"std={word}")
    assert done.exit_code == 0, done.output
    assert "std=False" in done.stdout
    assert run("rerun", tmp_path / "a", 0, "--set", "std=true").exit_code == 1
    done = run("rerun", tmp_path / "a", 0, "--set", "std=maybe")
    assert done.exit_code == 2
    assert "std of grpo is true or false, not 'maybe'" in done.stderr


MINE = """
def good(reward, uid):
    from rolltape.verify.rerun.formulas import grpo
    return grpo(reward, uid)

def bad(reward, uid):
    return {"advantage": reward / nothing}

class Inside:
    @staticmethod
    def good(reward, uid):
        return good(reward, uid)
"""


def shell(folder, *words):
    """As people call it: a script that has not the working directory on its path."""
    code = "import sys; sys.path[:] = [p for p in sys.path if p]; from rolltape.cli.app import app; app()"
    env = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=folder, capture_output=True, text=True, env=env
    )


def test_a_function_in_the_working_directory_is_found(tmp_path):
    record(tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rewards.py").write_text(MINE)
    for name in ("good", "Inside.good"):
        done = shell(tmp_path, "rerun", "a", 0, "--stage", "advantage", "--fn", f"mine.rewards:{name}")
        assert done.returncode == 0, done.stderr
    done = shell(tmp_path, "rerun", "a", 0, "--stage", "advantage", "--fn", "mine.rewards:none")
    assert done.returncode == 2
    assert "mine.rewards has no 'none'" in done.stderr


def test_an_exception_in_it_is_its_own(tmp_path):
    record(tmp_path / "a")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    done = shell(tmp_path, "rerun", "a", 0, "--stage", "advantage", "--fn", "mine:bad")
    assert done.returncode == 2
    assert "internal error" not in done.stderr
    assert "mine:bad raised NameError: name 'nothing' is not defined" in done.stderr
    assert "mine.py:7, in bad" in done.stderr
    done = shell(tmp_path, "rerun", "a", 0, "--stage", "advantage", "--fn", "broken:f")
    assert done.returncode == 2
    assert "broken:f raised ModuleNotFoundError: No module named 'nothing_of_this_name'" in done.stderr
    done = shell(tmp_path, "rerun", "a", 0, "--stage", "advantage", "--fn", "absent:f")
    assert "is no function: No module named 'absent'" in done.stderr
