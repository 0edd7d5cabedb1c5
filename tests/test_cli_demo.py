"""`rolltape demo` is honest: what it says happened did happen, and its advice works."""

import re
import shlex

import numpy as np
import pytest

from rolltape.cli import demo, demo_model
from tests.cli_tapes import run

STEPS = 14
"""Enough for the planted bug to show, at step 12."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    tape = tmp_path_factory.mktemp("demo") / "with space"
    done = run("demo", "--dir", tape, "--steps", STEPS)
    assert done.exit_code == 0, done.stderr
    return tape, done.stdout


def test_it_learns(shown):
    rewards = [float(value) for value in re.findall(r"reward (\d\.\d\d)", shown[1])]
    assert rewards[-1] > 5 * rewards[0]


def test_the_replay_is_identical(shown):
    assert f"identical  {STEPS} of {STEPS} steps" in shown[1]
    recorded, replayed = re.search(r"sha256 (\w+)… recorded, (\w+)… replayed", shown[1]).groups()
    assert recorded == replayed


def test_the_bug_shows_at_the_first_long_response(shown):
    assert "first difference, at step 12:" in shown[1]
    assert re.search(r"it has \d+ responses longer than six tokens; 0 in the steps before", shown[1])


def test_its_advice_works(shown):
    advice = [line for line in shown[1].splitlines() if line.startswith("  rolltape ")]
    assert [shlex.split(line)[1] for line in advice] == ["ls", "show", "check"]
    for line in advice:
        done = run(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.stderr
    assert "count on from" in run(*shlex.split(advice[1])[1:]).stdout


def test_a_tape_that_is_there_is_not_overwritten(shown):
    done = run("demo", "--dir", shown[0], "--steps", 2)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr


def test_a_difference_is_never_called_identical(tmp_path, monkeypatch):
    train_on, calls = demo_model.train_on, []

    def drifting(policy, batch, *, bug=False):
        metrics = train_on(policy, batch, bug=bug)
        calls.append(1)
        if len(calls) == 5:  # the third step of the replay
            policy.params["outer"][0, 0] = np.nextafter(policy.params["outer"][0, 0], np.float32(9))
        return metrics

    monkeypatch.setattr(demo_model, "train_on", drifting)
    done = run("demo", "--dir", tmp_path / "t", "--steps", 3)
    assert done.exit_code == 1
    assert "DIFFERENT  final weights" in done.stdout


def test_differences_are_found_to_the_last_bit():
    one = [{"loss": 0.1}, {"loss": 0.0}, {"loss": float("nan")}]
    assert demo.first_difference(one, [dict(metrics) for metrics in one]) is None
    assert demo.first_difference(one, [{"loss": 0.1}, {"loss": -0.0}, {"loss": 1.0}]) == 1
