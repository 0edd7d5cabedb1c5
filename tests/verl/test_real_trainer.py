"""verl's real trainers, three steps of GRPO on CPU: recorded once, replayed without generating anything.

Slow: twelve runs of about a minute each. V0 is the trainer that passes batches, V1 the one that goes through
TransferQueue.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape import Tape
from rolltape.trusting import Verdict
from tests.object_servers.fixtures import objects
from tests.slow.soak import SOAKING
from tests.verl.cpu import trainer

SEQUENCES = trainer.STEPS * 4 * 4 + 4
"""Every step, and the validation after the last one."""
RUN_FOLDER = "cpu_tapes/GBS4_N4_in48_out12"


@dataclass(frozen=True)
class Recorded:
    v1: bool
    work: Path
    dumps: Path
    run: trainer.Finished

    @property
    def tape(self):
        return self.dumps / RUN_FOLDER


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The model and the prompts, made once."""
    folder = tmp_path_factory.mktemp("verl")
    subprocess.run(
        [sys.executable, str(trainer.HERE / "workload.py"), str(folder)], check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["V0", "V1"])
def recorded(request, work):
    """A live run with `rolltape run` in front of it, and nothing in its configuration."""
    version = "v1" if request.param else "v0"
    dumps = work / f"dumps-{version}"
    run_command = (
        "import sys; from rolltape.cli.commands.run import command; "
        "sys.exit(command.main(standalone_mode=False))"
    )
    command = [sys.executable, "-c", run_command, "--mode", "record", "--dir", str(dumps / RUN_FOLDER), "--"]
    env = {"ROLLTAPE_VERL_VAL": "1", "ROLLTAPE_VERL_LOGPROBS": "1"}
    run = trainer.run(work, f"{version}-recorded", v1=request.param, command=command, env=env)
    return Recorded(request.param, work, dumps, run)


def test_the_recorded_run_was_a_real_one(recorded):
    run = recorded.run
    assert run.generated == SEQUENCES
    assert len(set(run.weights)) == trainer.STEPS + 1
    assert sorted(run.metrics) == [1, 2, 3]
    assert all(value is not None for metrics in run.metrics.values() for value in metrics.values())
    assert {"actor/grad_norm", "actor/pg_loss", "critic/score/mean"} <= set(run.metrics[1])
    assert run.output.count("rolltape: verl uses tape") == 1
    assert "has 7 recordings, 7 of them new" in run.output
    assert any(name.startswith("val-core/letters/") for name in run.metrics[3])
    with Tape(recorded.tape, mode="replay") as tape:
        found = [(at.key.stage, at.key.split, at.key.step, at.samples) for at in tape.recordings()]
    steps = [("train", 1, 16), ("train", 2, 16), ("train", 3, 16)]
    assert sorted(found) == sorted(
        [(stage, *step) for stage in ("rollout", "old_log_prob") for step in steps]
        + [("rollout", "val", 3, 4)]
    )


def test_replayed_through_skip_manager(recorded):
    role = "rollout_tq" if recorded.v1 else "rollout"
    skip = {"enable": True, "steps": "[1,2,3]", "action": "cache", "dump_dir": f"tape:{recorded.dumps}"}
    overrides = [f"skip.{role}.{name}={value}" for name, value in skip.items()] + ["+rolltape.verl.val=true"]
    name = f"{'v1' if recorded.v1 else 'v0'}-by-config"
    same_run(trainer.run(recorded.work, name, *overrides, v1=recorded.v1), recorded.run)


def replay_and_measure(recorded, name, *overrides):
    """A replay by the environment alone that writes the trainer's log-probs to a second tape."""
    name = f"{'v1' if recorded.v1 else 'v0'}-{name}"
    out = recorded.work / f"{name}-tape"
    env = {
        "ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": str(recorded.tape), "ROLLTAPE_VERL_VAL": "1",
        "ROLLTAPE_VERL_LOGPROBS": "1", "ROLLTAPE_OUT": str(out),
    }  # fmt: skip
    return trainer.run(recorded.work, name, *overrides, v1=recorded.v1, env=env), out


def test_replayed_through_the_environment_alone_it_may_be_trusted_for_anything(recorded):
    run, out = replay_and_measure(recorded, "by-environment")
    same_run(run, recorded.run)
    found = rolltape.trust(out)
    assert (found.verdict, found.left_at, len(found.steps)) == (Verdict.EXACT, None, trainer.STEPS)
    assert found.tokens is not None, "engine and trainer are compared too"
    assert "leaves the noise" not in run.output


def test_with_another_learning_rate_it_leaves_the_noise_where_numpy_says(recorded):
    for step, metrics in rolltape.open(recorded.tape).metrics().items():
        assert 0 <= metrics["trust/k3"] < 1e-3, f"engine and trainer hold the same weights at step {step}"
        assert metrics["trust/ess_tokens"] > 0.99
    run, out = replay_and_measure(recorded, "moved", "actor_rollout_ref.actor.optim.lr=0.05")
    found = rolltape.trust(out)
    assert found.steps[0].verdict is Verdict.EXACT
    logged = rolltape.open(out).metrics()
    left = []
    for one in found.steps:
        drift = apart(trained(recorded.tape, one.step), trained(out, one.step))
        floor = apart(sampled(recorded.tape, one.step), trained(recorded.tape, one.step))
        assert one.drift_k2 == pytest.approx(drift)
        assert one.floor_k2 == pytest.approx(floor, rel=1e-6)
        assert logged[one.step]["trust/drift_k2"] == pytest.approx(drift)
        assert logged[one.step]["trust/floor_k2"] == pytest.approx(floor, rel=1e-6)
        left += [one.step] if drift > 4 * max(floor, 5e-13) else []
    assert left == list(range(found.left_at, trainer.STEPS + 1))
    assert (
        run.output.count("leaves the noise")
        == run.output.count(f"step {found.left_at} leaves the noise")
        == 1
    )


def apart(ours, theirs):
    """Half the mean square of the differences of two sides' log-probs, in float64, token by token."""
    assert ours.keys() == theirs.keys()
    return np.mean(np.concatenate([theirs[name] - ours[name] for name in ours]) ** 2) / 2


def sampled(tape, step):
    """The engine's log-probs of every token that counts, as they are on the tape."""
    return by_response(tape, step, "rollout", "rollout_log_probs")


def trained(tape, step):
    """The trainer's."""
    return by_response(tape, step, "old_log_prob", "old_log_probs")


def by_response(tape, step, stage, column):
    """The trainer may have put the rows in another order; no two say the same here."""
    samples = rolltape.open(tape).samples(step, stage)
    found = {}
    for ids, row, on in zip(*map(samples.cells, ("responses", column, "response_mask")), strict=True):
        on = np.asarray(on, bool)
        found[tuple(np.asarray(ids)[: len(on)][on])] = np.asarray(row, np.float64)[: len(on)][on]
    assert len(found) == 16
    return found


def test_reshuffled_data_at_another_batch_size_generates_what_is_missing_only(recorded, tmp_path):
    """Twelve of sixteen prompts are on the tape; the engine generates for the others alone."""
    tape = tmp_path / "tape"
    shutil.copytree(recorded.tape, tape)
    env = {
        "ROLLTAPE_MODE": "auto", "ROLLTAPE_DIR": str(tape), "ROLLTAPE_BY": "prompt",
        "ROLLTAPE_VERSION": "any",
    }  # fmt: skip
    changes = ["data.train_batch_size=8", "data.seed=6", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    changes += ["trainer.test_freq=-1"]
    name = f"{'v1' if recorded.v1 else 'v0'}-by-content"
    run = trainer.run(recorded.work, name, *changes, v1=recorded.v1, env=env, steps=2)
    on_tape = trainer.STEPS * 4
    assert run.generated == (16 - on_tape) * 4
    assert len(set(run.weights)) == 3
    told = re.findall(r"(\d+) of 32 samples answered by content .*?, (\d+) generated", run.output)
    assert sum(int(found) for found, _ in told) == on_tape * 4
    assert sum(int(made) for _, made in told) == run.generated


def test_rewards_computed_again_by_the_same_function_are_the_same(recorded):
    """verl's real reward workers score the recorded responses; what they say is what was recorded."""
    env = {
        "ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": str(recorded.tape), "ROLLTAPE_VERL_VAL": "1",
        "ROLLTAPE_VERL_REWARD": "recompute",
    }  # fmt: skip
    name = f"{'v1' if recorded.v1 else 'v0'}-scored-again"
    same_run(trainer.run(recorded.work, name, v1=recorded.v1, env=env), recorded.run)


@pytest.mark.parametrize("v1", [False, True] if SOAKING else [False], ids=lambda v1: "V1" if v1 else "V0")
def test_two_ranks_record_to_s3_and_a_fresh_machine_replays_with_the_url_alone(
    v1, work, s3_url, fresh_machine
):
    """Training workers and engines are processes of Ray; the keys reach them as they reach the trainer.

    `make soak` has both trainers: what V0 does not prove of V1 does not depend on the store.
    """
    runs = {}
    for mode in ("record", "replay"):
        machine = fresh_machine()
        env = machine | {"ROLLTAPE_MODE": mode, "ROLLTAPE_DIR": s3_url, "ROLLTAPE_VERL_VAL": "1"}
        name = f"{'v1' if v1 else 'v0'}-store-{mode}"
        runs[mode] = trainer.run(work, name, v1=v1, env=env, steps=2, ranks=2)
        if mode == "record":
            up = objects(s3_url)
            found = [(at.key.split, at.key.step, at.samples) for at in rolltape.open(s3_url).recordings()]
            assert found == [("train", 1, 16), ("train", 2, 16), ("val", 2, 4)]
    recorded = runs["record"]
    assert recorded.generated == 2 * 4 * 4 + 4
    assert len(recorded.weights) == 2 * len(set(recorded.weights)) == 2 * 3, "each rank fills an engine"
    same_run(runs["replay"], recorded)
    assert objects(s3_url) == up, "a replay leaves the store as it was"
    assert not Path(machine["ROLLTAPE_SPOOL"]).exists(), "and has nothing to wait for it"


def same_run(replayed, recorded):
    """Nothing was generated; every metric but times and all weights after every step are the same bits."""
    assert replayed.generated == 0
    assert replayed.weights == recorded.weights
    assert replayed.metrics == recorded.metrics
