"""Stages computed again from a tape alone, and small tapes cut out of large ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify.rerun.formulas import gae, grpo, policy_loss
from rolltape.verify.rerun.recompute import rerun
from tests.cli_tapes import run
from tests.comparing import compared

LENGTHS = (3, 5, 2, 4, 3, 1)


def train(path, *, wrong=None, inputs=False, steps=2, reverse=False):
    """GRPO by hand; ``wrong`` spoils a stage."""
    random = np.random.default_rng(0)
    with rolltape.Tape(path, mode="record", background=False) as tape:
        stage = {
            n: tape.stage(n)(lambda value: value) for n in ("rollout", "reward", "advantage", "ref_logprob")
        }

        @tape.stage("loss", inputs=inputs)
        def loss(log_probs, uid, mask=None):
            return {"uid": uid, "log_probs": log_probs, "token_losses": made["losses"]}

        for step in range(steps):
            with tape.step(step):
                uid = [f"p{at // 3}" for at in range(6)]
                rows = [random.normal(size=n).astype(np.float32) for n in LENGTHS]
                stage["rollout"](
                    {"uid": uid, "response_ids": [np.arange(n) for n in LENGTHS], "logprobs": rows}
                )
                reward = random.normal(size=6).astype(np.float32)
                stage["reward"]({"uid": uid, "reward": reward})
                advantage = grpo(reward, uid)["advantage"]
                if wrong == "advantage":
                    advantage[4] += 1
                order = list(range(6))[::-1] if reverse else list(range(6))
                who = {"uid": [uid[at] for at in order], "index": [at % 3 for at in order]}
                stage["advantage"]({**who, "advantage": advantage[order]})
                reference = [row + np.float32(0.1) for row in rows]
                stage["ref_logprob"]({"uid": uid, "ref_logprobs": reference})
                new = [row + np.float32(0.3) * np.cos(row) for row in rows]
                made = {"losses": policy_loss(new, rows, advantage, reference, kl=0.1)["token_losses"]}
                if wrong == "loss":
                    made["losses"][2][1] += 0.5
                loss(new, uid)
                tape.log({"loss": 1.0, "step": step})
    return path


def by_hand(log_probs, uid):
    return {"uid": uid, "log_probs": [np.asarray(row) for row in log_probs]}


def test_a_tape_alone_is_enough(tmp_path):
    done = run("rerun", train(tmp_path / "a"), 1, "--set", "kl=0.1")
    assert done.exit_code == 0, done.output
    assert "agrees with its recording" in done.stdout
    assert "advantage/advantage by grpo(epsilon=0.0001, std=True, ddof=0): bitwise" in done.stdout
    assert "policy_loss(kl=0.1, clip_range=0.2, clip_high=None): bitwise" in done.stdout


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("advantage", "First disagreement: stage `advantage`, `advantage`, sample 4 (uid p1, 1)"),
        ("loss", "First disagreement: stage `loss`, `token_losses`, sample 2 (uid p0, 2), token 1"),
    ],
)
def test_the_first_stage_that_disagrees_is_named(tmp_path, wrong, said):
    done = run("rerun", train(tmp_path / "a", wrong=wrong), 1, "--set", "kl=0.1")
    assert done.exit_code == 1
    assert done.stdout.startswith(said)


def test_a_wrong_parameter_disagrees(tmp_path):
    assert run("rerun", train(tmp_path / "a"), 0, "--stage", "loss", "--set", "kl=0.2").exit_code == 1


def test_only_some_samples(tmp_path):
    tape = train(tmp_path / "a", wrong="loss")
    assert run("rerun", tape, 1, "--stage", "loss", "--set", "kl=0.1", "--sample", "0-1,3-5").exit_code == 0
    assert run("rerun", tape, 1, "--stage", "loss", "--set", "kl=0.1", "--sample", "2").exit_code == 1
    assert run("rerun", tape, 1, "--stage", "loss", "--set", "kl=0.1", "--sample", "99").exit_code == 3


def test_a_function_of_ones_own_from_recorded_inputs(tmp_path):
    tape = train(tmp_path / "a", inputs=True)
    own = f"{__name__}:by_hand"
    done = run("rerun", tape, 0, "--stage", "loss", "--fn", own, "--json")
    assert done.exit_code == 0, done.output
    [one] = json.loads(done.stdout)
    assert [entry["name"] for entry in one["entries"]] == ["log_probs"]


def test_what_cannot_be_computed_again_is_refused_with_the_reason(tmp_path):
    tape = train(tmp_path / "a")
    done = run("rerun", tape, 0, "--stage", "advantage", "--fn", "gae")
    assert done.exit_code == 3
    assert "not on the tape: token_rewards, values" in done.stderr
    assert "on the tape: " in done.stderr
    assert run("rerun", tape, 0, "--stage", "nothing", "--fn", "grpo").exit_code == 3
    assert run("rerun", tape, 0, "--stage", "advantage", "--fn", "no.such:thing").exit_code == 2
    assert run("rerun", tape, 0, "--stage", "reward").exit_code == 2
    assert run("rerun", tape, 0, "--stage", "advantage", "--set", "kl=1").exit_code == 2


def test_gae_is_the_sum_it_stands_for():
    random = np.random.default_rng(1)
    reward, value = random.normal(size=6), random.normal(size=6)
    gamma, lam = 0.97, 0.9
    found = gae([reward], [value], gamma, lam)
    errors = reward + gamma * np.append(value[1:], 0) - value
    wanted = [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, 6)) for t in range(6)]
    np.testing.assert_allclose(found["advantages"][0], wanted, rtol=1e-12)
    np.testing.assert_allclose(found["returns"][0], np.array(wanted) + value, rtol=1e-12)
    white = np.concatenate(gae([reward, value], [value, reward], gamma, lam, whiten=True)["advantages"])
    assert (white.mean(), white.std()) == (pytest.approx(0, abs=1e-9), pytest.approx(1, rel=1e-6))


def test_the_policy_loss_clips_on_both_sides():
    new, old = [np.log(np.array([1.5, 0.5, 1.0], np.float32))], [np.zeros(3, np.float32)]
    up = policy_loss(new, old, [1.0])["token_losses"][0]
    down = policy_loss(new, old, [-1.0])["token_losses"][0]
    np.testing.assert_allclose(up, [-1.2, -0.5, -1.0], rtol=1e-6)
    np.testing.assert_allclose(down, [1.5, 0.8, 1.0], rtol=1e-6)


# -- cut ---------------------------------------------------------------------------------------------------


def test_a_cut_tape_has_the_steps_and_samples_of_every_stage(tmp_path):
    tape = train(tmp_path / "a", reverse=True, inputs=True)
    done = run("cut", tape, "--steps", "1", "--samples", "1-2", "--out", tmp_path / "bug")
    assert done.exit_code == 0, done.output
    small, large = (rolltape.Tape(path, mode="replay") for path in (tmp_path / "bug", tape))
    assert {r.key.step for r in small.recordings()} == {1}
    assert {r.key.stage for r in small.recordings()} == {r.key.stage for r in large.recordings()}
    assert small.metrics() == {1: large.metrics()[1]}
    value, whole = small.recording(1).value(), large.recording(1).value()
    assert value["uid"] == whole["uid"][1:3]
    for a, b in zip(value["logprobs"], whole["logprobs"][1:3], strict=True):
        assert a.tobytes() == b.tobytes()
    own = small.recording(1, "advantage").value()
    theirs = large.recording(1, "advantage").value()  # which was recorded in the other order
    assert own["index"] == [2, 1]
    assert own["advantage"].tolist() == theirs["advantage"][[3, 4]].tolist()
    assert run("check", tmp_path / "bug").exit_code == 0


def test_steps_alone_are_copied_bit_for_bit(tmp_path):
    tape = train(tmp_path / "a", steps=4)
    assert run("cut", tape, "--steps", "1-2", "--out", tmp_path / "bug").exit_code == 0
    for step in (1, 2):
        file = f"train/loss/step_{step:06d}.parquet"
        assert (tmp_path / "bug" / file).read_bytes() == (tape / file).read_bytes()
    found = compared(LocalStorage(str(tape)), LocalStorage(str(tmp_path / "bug")), steps=range(1, 3))
    assert found.first is None


def test_a_cut_that_cannot_be_made_is_refused(tmp_path):
    tape = train(tmp_path / "a")
    assert run("cut", tape, "--steps", "9", "--out", tmp_path / "bug").exit_code == 3
    assert run("cut", tape, "--steps", "0", "--samples", "50", "--out", tmp_path / "bug2").exit_code == 3
    assert run("cut", tape, "--steps", "0", "--out", tape).exit_code == 2


def test_what_belongs_to_no_sample_is_taken_whole(tmp_path):
    with rolltape.Tape(tmp_path / "a", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a", "b"], "x": np.arange(2)})()
        tape.stage("state")(lambda: {"weights": np.arange(12.0).reshape(3, 4)})()
    done = run("cut", tmp_path / "a", "--steps", "0", "--samples", "1", "--out", tmp_path / "bug")
    assert "belongs to none of these samples: train/state/step_000000.parquet" in done.stderr
    small = rolltape.Tape(tmp_path / "bug", mode="replay")
    assert small.recording(0, "state").value()["weights"].shape == (3, 4)
    assert small.recording(0).value()["uid"] == ["b"]


def replay(base, out, *, wrong=False):
    """A replay in which the loss alone is computed anew."""
    with rolltape.Tape(base, mode="replay", out=out) as tape:
        stages = [
            tape.stage(name)(lambda: pytest.fail("computed"))
            for name in ("rollout", "reward", "advantage", "ref_logprob")
        ]

        @tape.stage("loss", replay=False)
        def loss(rollout, advantage, reference):
            new = [row + np.float32(0.3) * np.cos(row) for row in rollout["logprobs"]]
            losses = policy_loss(
                new, rollout["logprobs"], advantage["advantage"], reference["ref_logprobs"], kl=0.1
            )
            if wrong:
                losses["token_losses"][2][1] += 0.5
            return {"uid": rollout["uid"], "log_probs": new, **losses}

        for step in range(2):
            with tape.step(step):
                rollout, _, advantage, reference = [stage() for stage in stages]
                loss(rollout, advantage, reference)
    return out


def test_a_candidate_is_computed_again_from_what_it_replayed(tmp_path):
    base = train(tmp_path / "a")
    done = run("rerun", replay(base, tmp_path / "good"), 1, "--set", "kl=0.1")
    assert done.exit_code == 0, done.output
    assert "loss/token_losses by policy_loss(kl=0.1, clip_range=0.2, clip_high=None): bitwise" in done.stdout
    done = run("rerun", replay(base, tmp_path / "bad", wrong=True), 1, "--stage", "loss", "--set", "kl=0.1")
    assert done.exit_code == 1, done.output
    assert (
        "First disagreement: stage `loss`, `token_losses`, sample 2 (uid p0, 2), token 1 (id 1)"
        in done.stdout
    )


def test_a_stage_whose_inputs_are_gone_is_refused_with_the_reason(tmp_path):
    base, out = train(tmp_path / "a"), tmp_path / "b"
    replay(base, out)
    base.rename(tmp_path / "elsewhere")
    done = run("rerun", out, 1, "--stage", "loss")
    assert done.exit_code == 2
    assert "policy_loss needs old_log_probs, advantage: not on the tape" in done.stderr
    done = run("rerun", out, 1)
    assert done.exit_code == 3
    assert "stage 'loss' is not computed again: policy_loss needs old_log_probs, advantage" in done.stderr


def test_groups_that_are_cut_apart_are_said(tmp_path):
    base = train(tmp_path / "a")
    done = run("cut", base, "--steps", 1, "--samples", "1-4", "--out", tmp_path / "b")
    assert "of p0, p1 some samples are left behind" in done.stderr
    done = run("cut", base, "--steps", 1, "--samples", "3-5", "--out", tmp_path / "c")
    assert "left behind" not in done.stderr
    assert run("rerun", tmp_path / "c", 1, "--set", "kl=0.1").exit_code == 0


def test_settings_that_the_tape_has_are_used_and_said(tmp_path):
    own = {name: np.log(np.array([[a, b]], np.float32)) for name, a, b in
           (("log_probs", 0.5, 0.9), ("old_log_probs", 0.9, 0.2))}  # fmt: skip
    advantage = np.array([1.0], np.float32)
    losses = policy_loss(**own, advantage=advantage, clip_range=0.5)["token_losses"]
    with rolltape.Tape(tmp_path / "tape", mode="record", background=False) as tape, tape.step(0):
        prepared = {"uid": ["a"], "advantage": advantage, "clip_range": 0.5} | own
        tape.stage("prepare")(prepared.copy)()
        tape.stage("loss")({"uid": ["a"], "token_losses": np.stack(losses)}.copy)()
    found = rerun(rolltape.open(tmp_path / "tape"), "train", 0, "loss", "policy_loss", {})
    assert {str(entry.verdict) for entry in found.entries} == {"bitwise"}
    assert found.settings["clip_range"] == 0.5
