"""verl's real trainer on CPU: a replay of the run is exact; with another learning rate it leaves the noise.

Slow: three runs of about a minute each.
"""

import subprocess
import sys

import numpy as np
import pytest

import rolltape
from rolltape.trusting import Verdict
from tests.verl.cpu import trainer


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verl")
    subprocess.run(
        [sys.executable, str(trainer.HERE / "workload.py"), str(folder)], check=True, capture_output=True
    )
    return folder


def train(work, name, tape, *overrides, out=None):
    mode = "record" if out is None else "replay"
    env = {"ROLLTAPE_MODE": mode, "ROLLTAPE_DIR": str(tape), "ROLLTAPE_VERL_LOGPROBS": "1"}
    env["ROLLTAPE_VERL_VAL"] = "1"
    env |= {} if out is None else {"ROLLTAPE_OUT": str(out)}
    return trainer.run(work, name, *overrides, v1=False, env=env)


def rows(tape, step, column):
    samples = rolltape.open(tape).samples(step, "old_log_prob")
    return np.stack(samples.cells(column))


def test_how_far_replays_of_verl_may_be_trusted(work):
    base, same, other = (work / name for name in ("tape", "same", "other"))
    before = train(work, "recorded", base)
    assert train(work, "again", base, out=same).weights == before.weights
    found = rolltape.trust(same)
    assert (found.verdict, found.left_at) == (Verdict.EXACT, None)
    assert len(found.steps) == trainer.STEPS
    train(work, "moved", base, "actor_rollout_ref.actor.optim.lr=0.05", out=other)
    found = rolltape.trust(other)
    assert found.steps[0].verdict is Verdict.EXACT
    for one in found.steps:
        on = rows(base, one.step, "response_mask").astype(bool)
        drift = rows(other, one.step, "old_log_probs")[on].astype(np.float64) - rows(
            base, one.step, "old_log_probs"
        )[on].astype(np.float64)
        assert one.drift_k2 == pytest.approx(np.mean(drift**2) / 2)
        limit = 4 * max(one.floor_k2, 5e-13) if one.floor_k2 is not None else None
        beyond = np.mean(np.expm1(drift) - drift) > 1e-3 if limit is None else one.drift_k2 > limit
        if one.step <= found.left_at:
            assert bool(beyond) == (one.step == found.left_at)
