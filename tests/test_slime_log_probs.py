"""slime's log-probs as they come: figures among its metrics, and a warning where a replay leaves the noise.

slime calls ``--rollout-data-postprocess-path`` with what a rank has of a rollout, and then reports whatever
is in it: of a list of numbers the mean over all ranks.
"""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from rolltape.errors import RolltapeError
from rolltape.integrations.slime import log_probs, measure
from tests.trust_policies import World, log_softmax, noisy

ARGS = Namespace(n_samples_per_prompt=4)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(log_probs, "_said", set())
    monkeypatch.delenv("ROLLTAPE_MODE", raising=False)


def rank(noise: float, **more) -> dict:
    """What a rank has of a rollout; the last token of each sample is that of a tool, which no loss counts."""
    world = World(3, prompts=8)
    pairs = world.pairs(log_softmax(noisy(world.logits, noise)))
    rows = [pairs.row(at) for at in range(32)]
    masks = [np.arange(row.stop - row.start) < row.stop - row.start - 1 for row in rows]
    trainer = [np.where(mask, pairs.trainer[row], -50.0) for row, mask in zip(rows, masks, strict=True)]
    engine = [pairs.engine[row] for row in rows]
    return {
        "log_probs": trainer, "rollout_log_probs": engine, "sample_indices": list(range(32)),
        "loss_masks": [mask.astype(int) for mask in masks],
    } | more  # fmt: skip


def test_figures_go_beside_the_data_where_slime_reports_them():
    data = rank(0.2)
    measure(ARGS, 0, data)
    d = np.concatenate(
        [(b - a)[:-1] for a, b in zip(data["rollout_log_probs"], data["log_probs"], strict=True)]
    )
    sums = np.array(
        [(b - a)[:-1].sum() for a, b in zip(data["rollout_log_probs"], data["log_probs"], strict=True)]
    )
    prompts = np.exp(sums).reshape(8, 4).mean(axis=1)
    shown = {name: sum(found) / len(found) for name, found in data.items() if name.startswith("trust/")}
    assert shown["trust/k3"] == pytest.approx(np.mean(np.expm1(d) - d))
    assert shown["trust/reverse_k1"] == pytest.approx(np.mean(np.exp(d) * d))
    assert shown["trust/ess_prompts"] == pytest.approx(prompts.sum() ** 2 / (8 * (prompts**2).sum()))
    assert shown["trust/cut_2"] == np.count_nonzero(np.exp(d) > 2)
    assert shown["trust/not_numbers"] == 0
    assert all(len(found) == 32 for name, found in data.items() if name.startswith("trust/"))


def test_a_replay_warns_once_where_it_leaves_the_noise(monkeypatch, caplog):
    measure(ARGS, 0, rank(0.3))
    assert not caplog.records, "nothing is replayed"
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    monkeypatch.setenv("ROLLTAPE_DIR", "tape")
    for rollout, noise in enumerate((0.001, 0.3, 0.3)):
        measure(ARGS, rollout, rank(noise))
    (warned,) = (one.getMessage() for one in caplog.records)
    assert warned.startswith("step 1 leaves the noise: k3 is ")


def test_every_rank_has_the_same_names_whatever_it_has():
    """slime takes the names of one rank and asks all others for them."""
    usual, nothing, hole = rank(0.1), rank(0.1), rank(0.1)
    nothing["loss_masks"] = [np.zeros_like(mask) for mask in nothing["loss_masks"]]
    hole["log_probs"] = [np.full_like(row, np.nan) for row in hole["log_probs"]]
    for data in (usual, nothing, hole):
        measure(ARGS, 0, data)
    assert usual.keys() == nothing.keys() == hole.keys()
    assert hole["trust/not_numbers"][0] > 0


def test_what_cannot_be_measured_is_said_once_and_stops_nothing(caplog):
    for _ in range(2):
        short = rank(0.1, loss_masks=[[1]] * 32)
        measure(ARGS, 0, short)  # as with context parallelism, where a rank has a part of each row
        assert not [name for name in short if name.startswith("trust/")]
    (warned,) = (one.getMessage() for one in caplog.records)
    assert "cannot be measured" in warned
    elsewhere = {"loss_masks": [[1]], "rollout_log_probs": [[-1.0]]}
    measure(ARGS, 0, elsewhere)  # not the last stage of the pipeline
    assert len(elsewhere) == 2


def test_your_own_function_is_called_too(monkeypatch):
    called = []
    monkeypatch.setattr("tests.trust_policies.drifted", lambda *given: called.append(given))
    monkeypatch.setenv(log_probs.FUNCTION, "tests.trust_policies.drifted")
    data = rank(0.1)
    measure(ARGS, 7, data)
    ((args, rollout_id, given),) = called
    assert (args, rollout_id) == (ARGS, 7)
    assert given is data
    assert "trust/k3" in given


def test_a_release_that_gives_no_data_is_told():
    with pytest.raises(RolltapeError, match="gives no data"):
        measure(ARGS)
