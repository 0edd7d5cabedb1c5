"""``rolltape diff``: the sentence, the proofs, the chain, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rolltape
from tests.cli_tapes import in_terminal, run

LENGTHS = (5, 3, 4, 6)


def train(tape: rolltape.Tape, *, steps=4, off=None, state=False):
    """A run of four samples. ``off`` is (step, sample, token, error); what it spoils stays spoiled."""
    values = {"weights": 1.0}

    @tape.stage("rollout")
    def generate(step):
        random = np.random.default_rng(step)
        return {
            "uid": [f"{step}.{at}" for at in range(4)],
            "response_ids": [random.integers(0, 500, n) for n in LENGTHS],
            "response": ["a", "b", "c", "d"],
        }

    @tape.stage("state")
    def started():
        return {"weights": np.array([values["weights"]])}

    @tape.stage("loss", replay=False)
    def loss(batch, step):
        rows = [np.sin(ids * values["weights"]).astype(np.float32) for ids in batch["response_ids"]]
        if off is not None and step == off[0]:
            rows[off[1]][off[2]] += np.float32(off[3])
        return {"uid": batch["uid"], "log_probs": rows, "total": float(sum(row.sum() for row in rows))}

    with tape:
        for step in range(steps):
            with tape.step(step):
                if state:
                    values["weights"] = float(started()["weights"][0])
                batch = generate(step)
                found = loss(batch, step)
                values["weights"] += found["total"] / 64
                tape.log({"loss": found["total"], "norm": abs(found["total"])})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    train(rolltape.Tape(tmp_path / "base", mode="record", fingerprint={"lr": 0.1}), state=True)
    return tmp_path / "base"


def candidate(base, name="new", **options):
    mine = {"state": True, **options}
    train(rolltape.Tape(base, mode="replay", out=base.parent / name), **mine)
    return base.parent / name


def test_the_answer_comes_first(base):
    new = candidate(base, off=(2, 1, 2, 0.25))
    done = run("diff", base, new)
    assert done.exit_code == 1, done.output
    answer, hint = done.stdout.splitlines()[:2]
    token = rolltape.Tape(base, mode="replay").recording(2).value()["response_ids"][1][2]
    assert answer.startswith(
        f"First divergence: step 2, stage `loss`, `log_probs`, sample 1 (uid 2.1, 0), token 2 (id {token}): "
    )
    assert "float32 ULP (" in answer
    assert answer.endswith(
        "; 1 of 18 values differ; `total` follows at step 2, `loss` at step 2, `norm` at step 2,"
        " `weights` at step 3."  # which is the state that the update of step 2 led to
    )
    assert hint == "Looks like: sample 1 alone differs, of 4."


def test_then_what_it_rests_on(base):
    done = run("diff", base, candidate(base, off=(2, 1, 2, 0.25)), "--per-step")
    assert "yes  rollout: the candidate replayed those of tape" in done.stdout
    assert "4 files, blake2b" in done.stdout
    assert "yes  state: the candidate replayed those of tape" in done.stdout
    assert "Replayed by the candidate (or never called): rollout, state" in done.stdout
    assert "Noise floor: not measured" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["loss", "log_probs", "diverged", "2", "2"] in [row[:5] for row in rows]
    assert ["train", "2", "loss/log_probs", "made", "here"] in rows
    assert ["train", "3", "none"] in rows


def test_a_clean_candidate(base):
    done = run("diff", base, candidate(base))
    assert done.exit_code == 0
    assert done.stdout.startswith("No divergence: 24 things over 4 steps compared, at worst bitwise.")


def test_carried_errors_are_told_from_those_made_in_a_step(base):
    new = candidate(base, off=(1, 0, 0, 0.5), state=False)
    origins = {o["step"]: o["origin"] for o in json.loads(run("diff", base, new, "--json").stdout)["steps"]}
    unknown = "made here or carried"  # its weights are its own, and it does not say what they were
    assert origins == {0: "", 1: unknown, 2: unknown, 3: unknown}
    again = base.parent / "again"
    train(rolltape.Tape(again, mode="record"), state=True, off=(1, 0, 0, 0.5))
    origins = {o["step"]: o["origin"] for o in json.loads(run("diff", base, again, "--json").stdout)["steps"]}
    assert origins == {0: "", 1: "made here", 2: "carried from before", 3: "carried from before"}


def test_a_run_that_does_not_say_its_configuration_is_not_said_to_have_another(base):
    document = json.loads(run("diff", base, candidate(base), "--json").stdout)
    proof = next(proof for proof in document["proofs"] if proof["what"] == "configuration")
    assert (proof["same"], proof["how"]) == (None, "the candidate has no fingerprint")
    assert document["configuration"] == []


def test_configuration_and_environment_are_compared(base):
    other = base.parent / "other"
    train(rolltape.Tape(other, mode="record", fingerprint={"lr": 0.2}), state=True)
    document = json.loads(run("diff", base, other, "--json").stdout)
    assert document["configuration"] == [{"name": "lr", "before": "0.1", "after": "0.2"}]
    assert {p["what"]: p["same"] for p in document["proofs"]}["configuration"] is False
    manifest = json.loads((other / "tape.json").read_text())
    manifest["environment"]["numpy"] = "0.0"
    (other / "tape.json").write_text(json.dumps(manifest))
    document = json.loads(run("diff", base, other, "--json").stdout)
    assert [change["name"] for change in document["environment"]] == ["numpy"]


def test_json_has_everything(base):
    document = json.loads(run("diff", base, candidate(base, off=(2, 1, 2, float("nan"))), "--json").stdout)
    assert document["verdict"] == "diverged"
    first = document["first"]
    assert (first["step"], first["stage"], first["name"]) == (2, "loss", "log_probs")
    assert first["first"] == {"sample": ["2.1", 0], "row": 1, "token": [2], "length": 3}
    assert [cause["pattern"] for cause in document["causes"]] == ["not finite", "one sample only"]
    assert len(document["entries"]) == 24


def test_only_some_steps(base):
    new = candidate(base, off=(2, 1, 2, 0.25))
    assert run("diff", base, new, "--steps", "0-1").exit_code == 0
    assert run("diff", base, new, "--steps", "2-").exit_code == 1
    nothing = run("diff", base, new, "--steps", "7")
    assert (nothing.exit_code, nothing.stdout.splitlines()[0][:18]) == (3, "Nothing to compare")


def test_a_missing_tape_is_an_error(base):
    done = run("diff", base, base.parent / "nowhere")
    assert done.exit_code == 2
    assert "next:" in done.stderr


def test_a_step_that_the_candidate_did_not_reach_is_a_finding(base):
    new = candidate(base, steps=3)
    done = run("diff", base, new)
    assert done.exit_code == 1
    assert done.stdout.startswith("First divergence: step 3, stage `loss`: the candidate did not record it")


def test_a_damaged_file_is_an_error_and_no_verdict(base):
    new = candidate(base)
    file = new / "train" / "loss" / "step_000001.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    assert run("diff", base, new).exit_code == 2


def test_in_a_terminal_there_is_colour_and_no_wrapped_table(base):
    code, shown = in_terminal("diff", base, candidate(base, off=(2, 1, 2, 0.25)), columns=160)
    assert code == 1
    assert "\x1b[" in shown
    assert "First divergence" in shown


def test_a_stage_that_the_candidate_stopped_calling_is_a_finding(tmp_path: Path) -> None:
    def train(tape: rolltape.Tape, *, loss: bool) -> None:
        stages = {
            name: tape.stage(name, replay=name == "rollout")(lambda: {"x": [1.0, 2.0]})
            for name in ("rollout", "reward", "loss")
        }
        with tape, tape.step(0):
            for name, stage in stages.items():
                if loss or name != "loss":
                    stage()

    train(rolltape.Tape(tmp_path / "base", mode="record"), loss=True)
    train(rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "new"), loss=False)
    done = run("diff", tmp_path / "base", tmp_path / "new")
    assert done.exit_code == 1
    assert "stage `loss`" in done.stdout
    assert "rollout" not in done.stdout.splitlines()[0]
