"""The `train.py` that the pages of the documentation speak of: GRPO by hand, steered from outside."""

import os
import sys

import numpy as np

import rolltape
from rolltape.verify.rerun.formulas import grpo, policy_loss

SAMPLES, GROUP = 16, 4
steps = [int(step) for step in os.environ.get("STEPS", "0,1,2").split(",")]
tape = rolltape.Tape.from_env()


@tape.stage("rollout")
def generate(step):
    random = np.random.default_rng(step)
    lengths = 3 + np.arange(SAMPLES) % 5
    uid = [f"prompt-{row // GROUP}" for row in range(SAMPLES)]
    return {
        "uid": uid,
        "prompt": [f"What is {row // GROUP} + {step}?" for row in range(SAMPLES)],
        "responses": [random.integers(1, 1000, size) for size in lengths],
        "logprobs": [random.normal(size=size).astype(np.float32) for size in lengths],
        "reward": random.random(SAMPLES).astype(np.float32),
    }


@tape.stage("reward")
def score(batch):
    return {"uid": batch["uid"], "reward": batch["reward"]}


@tape.stage("advantage", replay=False)
def advantages(reward, uid):
    return {"uid": uid, **grpo(reward, uid)}


@tape.stage("loss", replay=False)
def loss(batch, advantage):
    new = [row + np.float32(0.3) * np.cos(row) for row in batch["logprobs"]]
    found = policy_loss(new, batch["logprobs"], advantage["advantage"], kl=0.0)
    return {"uid": batch["uid"], "log_probs": new, **found}


with tape:
    for step in steps:
        with tape.step(step):
            batch = generate(step)
            rewards = score(batch)
            losses = loss(batch, advantages(rewards["reward"], rewards["uid"]))
            total = float(np.concatenate(losses["token_losses"]).mean())
            tape.log({"loss": total, "grad_norm": abs(total), "time/step": 0.5})
print("trained", *sys.argv[1:])
