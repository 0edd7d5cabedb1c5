"""Where a chain of stages diverges: which made the error, which input explains the others, which samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.verify.rerun.formulas import gae, grpo, policy_loss
from tests.cli_tapes import run

UID = [f"p{at // 4}" for at in range(8)]
LENGTHS = (3, 5, 2, 4, 3, 1, 6, 4)


def train(path, wrong="", *, settings=None, order=range(8), sample=None, **options):
    """GRPO in five stages, all of them computed anew; ``wrong`` spoils what one of them returns."""
    chosen = {"epsilon": 1e-4, "std": True, "ddof": 0, "clip_range": 0.2, "kl": 0.04, **(settings or {})}

    def spoil(name, rows):
        if name != wrong:
            return rows
        at = [sample] if sample is not None else range(len(rows))
        found = [np.array(row, np.float32) for row in rows]
        for row in at:
            found[row] = found[row] * np.float32(1.5) + np.float32(0.1 * (row % 3))
        return np.array(found) if np.ndim(found[0]) == 0 else found

    with rolltape.Tape(path, background=False, **options) as tape:
        stage = {
            name: tape.stage(name, replay=name == "rollout")(lambda value: value())
            for name in ("rollout", "reward", "advantage", "ref_logprob", "loss")
        }
        for step in range(2):
            draw = np.random.default_rng(step)
            old = [draw.normal(size=n).astype(np.float32) for n in LENGTHS]
            reward = draw.normal(size=8).astype(np.float32)
            with tape.step(step):
                ids = [np.arange(n) for n in LENGTHS]
                stage["rollout"](lambda: {"uid": UID, "response_ids": ids, "logprobs": old})  # noqa: B023
                reward = spoil("reward", reward)
                stage["reward"](lambda: {"uid": UID, "reward": reward})  # noqa: B023
                own = {name: chosen[name] for name in ("epsilon", "std", "ddof")}
                advantage = spoil("advantage", grpo(reward, UID, **own)["advantage"])
                stage["advantage"](lambda: {"uid": UID, "advantage": advantage})  # noqa: B023
                reference = spoil("ref_logprob", [row + np.float32(0.1) for row in old])
                stage["ref_logprob"](lambda: {"uid": UID, "ref_logprobs": reference})  # noqa: B023
                new = spoil("log_probs", [row + np.float32(0.3) * np.cos(row) for row in old])
                own = {name: chosen[name] for name in ("clip_range", "kl")}
                losses = spoil("loss", policy_loss(new, old, advantage, reference, **own)["token_losses"])
                who = {"uid": [UID[at] for at in order], "index_in_group": [at % 4 for at in order]}
                rows = {name: [found[at] for at in order] for name, found in
                        (("log_probs", new), ("token_losses", losses))}  # fmt: skip
                stage["loss"](lambda: {**who, **rows})  # noqa: B023
    return path


def told(base, new):
    found = json.loads(run("diff", base, new, "--json").stdout)["attributions"]
    return {one["stage"]: (one["made_here"], tuple(one["inputs"])) for one in found}


CHAINS = {
    "reward": {"reward": (True, ()), "advantage": (False, ("reward/reward",)),
               "loss": (False, ("advantage/advantage",))},
    "advantage": {"advantage": (True, ()), "loss": (False, ("advantage/advantage",))},
    "ref_logprob": {"ref_logprob": (True, ()), "loss": (False, ("ref_logprob/ref_logprobs",))},
    "loss": {"loss": (True, ())},
    "log_probs": {"loss": (True, ())},
}  # fmt: skip
SETTINGS = [{}, {"std": False}, {"ddof": 1, "epsilon": 1e-6, "kl": 0.01}, {"clip_range": 0.3, "kl": 0.1}]


@pytest.mark.parametrize("wrong", CHAINS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("replayed", [True, False])
def test_the_stage_that_errs_is_told_from_those_that_pass_it_on(tmp_path, wrong, settings, replayed):
    base = train(tmp_path / "a", settings=settings, mode="record")
    if replayed:
        train(base, wrong, settings=settings, mode="replay", out=tmp_path / "b")
    else:
        train(tmp_path / "b", wrong, settings=settings, order=[5, 0, 2, 7, 1, 3, 4, 6], mode="record")
    assert told(base, tmp_path / "b") == CHAINS[wrong]


def test_other_settings_are_an_error_of_the_stage(tmp_path):
    base = train(tmp_path / "a", mode="record")
    train(base, settings={"ddof": 1}, mode="replay", out=tmp_path / "b")
    assert told(base, tmp_path / "b") == {
        "advantage": (True, ()),
        "loss": (False, ("advantage/advantage",)),
    }


def test_the_samples_that_carry_the_error_are_named(tmp_path):
    base = train(tmp_path / "a", mode="record")
    train(base, "advantage", sample=6, mode="replay", out=tmp_path / "b")
    report = rolltape.compare(base, tmp_path / "b")
    for one in report.attributions:
        assert [(c.uid, c.index, round(c.share, 6)) for c in one.samples] == [("p1", 2, 1.0)]
    assert "most of the error is in uid p1, 2 (100%)" in str(report.attributions[0])
    train(base, "advantage", mode="replay", out=tmp_path / "c")
    assert all(not one.samples for one in rolltape.compare(base, tmp_path / "c").attributions)


def test_a_formula_that_does_not_give_the_baseline_says_nothing_of_the_candidate(tmp_path):
    """An algorithm of one's own under the usual names: where the error enters is told, and no more."""
    strange = {"epsilon": 0.37}
    base = train(tmp_path / "a", settings=strange, mode="record")
    train(base, "reward", settings=strange, mode="replay", out=tmp_path / "b")
    assert told(base, tmp_path / "b") == {"reward": (True, ()), "loss": (False, ("advantage/advantage",))}


def test_gae_too(tmp_path):
    def write(path, factor, **options):
        draw = np.random.default_rng(3)
        reward, value = ([draw.normal(size=n).astype(np.float32) for n in LENGTHS] for _ in range(2))
        with rolltape.Tape(path, background=False, **options) as tape, tape.step(0):
            tape.stage("rollout")({"uid": UID, "response_ids": [np.arange(n) for n in LENGTHS]}.copy)()
            value = [row * np.float32(factor) for row in value]
            tape.stage("values")({"uid": UID, "values": value, "token_rewards": reward}.copy)()
            found = gae(reward, value, gamma=0.99, lam=0.95)
            tape.stage("advantage")({"uid": UID, **found}.copy)()
        return path

    base, new = write(tmp_path / "a", 1, mode="record"), write(tmp_path / "b", 2, mode="record")
    assert told(base, new) == {"values": (True, ()), "advantage": (False, ("values/values",))}


def test_two_inputs_that_both_differ_are_weighed(tmp_path):
    """The one that explains the result is named, and not the one whose difference does not matter."""

    def write(path, *, shifted, tiny, **options):
        draw = np.random.default_rng(3)
        old = [draw.normal(size=n).astype(np.float32) for n in LENGTHS]
        new = [row + np.float32(0.01) for row in old]
        with rolltape.Tape(path, background=False, **options) as tape, tape.step(0):
            advantage = np.linspace(-1, 1, 8, dtype=np.float32) * np.float32(2 if shifted else 1)
            old = [row + np.float32(1e-3 if tiny else 0) for row in old]
            tape.stage("before")({"uid": UID, "old_log_probs": old, "advantage": advantage}.copy)()
            losses = policy_loss(new, old, advantage)["token_losses"]
            tape.stage("loss")({"uid": UID, "log_probs": new, "token_losses": losses}.copy)()
        return path

    base = write(tmp_path / "a", shifted=False, tiny=False, mode="record")
    new = write(tmp_path / "b", shifted=True, tiny=True, mode="record")
    assert told(base, new)["loss"] == (False, ("before/advantage",))
    new = write(tmp_path / "c", shifted=False, tiny=True, mode="record")
    assert told(base, new)["loss"] == (False, ("before/old_log_probs",))


def test_a_number_of_the_whole_batch_is_no_formulas(tmp_path):
    """Where it is all that a stage differs by, nothing is said of the stage, and nothing breaks."""

    def write(path, total):
        old = [np.ones(n, np.float32) for n in LENGTHS]
        losses = policy_loss(old, old, np.ones(8, np.float32))["token_losses"]
        with rolltape.Tape(path, mode="record") as tape, tape.step(0):
            ids = [np.arange(n) for n in LENGTHS]
            tape.stage("rollout")({"uid": UID, "response_ids": ids, "logprobs": old}.copy)()
            tape.stage("advantage")({"uid": UID, "advantage": np.ones(8, np.float32)}.copy)()
            made = {"uid": UID, "log_probs": old, "token_losses": losses, "total": total}
            tape.stage("loss")(made.copy)()
        return path

    base, new = write(tmp_path / "a", 1.0), write(tmp_path / "b", 2.0)
    assert rolltape.compare(base, new).first.path == "loss/total"
    assert told(base, new) == {"loss": (True, ())}
