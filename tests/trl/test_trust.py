"""Real TRL on CPU: a replay of the run is exact; with another learning rate it leaves the noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rolltape
from rolltape.integrations.trl import instrument
from rolltape.trusting import Verdict
from tests.trl.training import build, refuse, run


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(model, folder, tape, out=None, **changes):
    trainer = build(model, folder, max_steps=4, **changes)
    if out is not None:
        trainer._generate_single_turn = refuse
    mode = "record" if out is None else "replay"
    opened = instrument(trainer, rolltape.Tape(tape, mode=mode, out=out), logprobs=True)
    found = run(trainer)
    opened.close()
    return found


def test_how_far_replays_of_trl_may_be_trusted(model, tmp_path, caplog):
    base = tmp_path / "tape"
    before = train(model, tmp_path / "a", base)
    same = train(model, tmp_path / "b", base, tmp_path / "same")
    assert same.same_as(before)
    found = rolltape.trust(tmp_path / "same")
    assert (found.verdict, found.left_at) == (Verdict.EXACT, None)
    assert found.strip == "===="
    caplog.clear()
    train(model, tmp_path / "c", base, tmp_path / "other", learning_rate=1e-1)
    found = rolltape.trust(tmp_path / "other")
    left = []
    for step in range(4):
        ours, theirs = (
            rolltape.open(one).samples(step, "probe.logprobs") for one in (base, tmp_path / "other")
        )
        on = np.stack(ours.cells("completion_mask")).astype(bool)
        d = np.stack(theirs.cells("value"))[on].astype(np.float64) - np.stack(ours.cells("value"))[on]
        if np.mean(np.expm1(d) - d) > 1e-3 or np.mean(np.exp(np.abs(d))) > 1.05:
            left.append(step)
    assert found.left_at == left[0]
    assert found.steps[0].verdict is Verdict.EXACT
    warned = [one.getMessage() for one in caplog.records if "leaves the noise" in one.getMessage()]
    assert len(warned) == 1
    assert warned[0].startswith(f"step {left[0]} ")
