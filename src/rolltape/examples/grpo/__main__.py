"""Runs the example; ``torchrun --nproc-per-node 2 -m rolltape.examples.grpo …`` for two processes."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

import torch
import torch.distributed as dist

import rolltape
from rolltape.examples.grpo.layouts import LAYOUTS
from rolltape.examples.grpo.train import Options, Step, train


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rolltape.examples.grpo", description="GRPO on a small model."
    )
    parser.add_argument("--dir", help="the tape")
    parser.add_argument("--mode", default="auto", help="record, replay, …")
    parser.add_argument("--out", help="in replay: a second tape for what this run computes")
    parser.add_argument("--layout", choices=LAYOUTS, default="padded")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--state", action="store_true", help="begin each step from the recorded weights")
    for option in fields(Options):
        if option.type in ("int", "float"):
            kind = int if option.type == "int" else float
            parser.add_argument(f"--{option.name.replace('_', '-')}", type=kind, default=option.default)
    given = vars(parser.parse_args())
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    first = int(os.environ.get("RANK", "0")) == 0
    place = {name: given.pop(name) for name in ("dir", "mode", "out")}
    # One process records for all: the others get the rollouts from it.
    with rolltape.Tape(**place) if first and place["dir"] else rolltape.Tape(mode="off") as tape:
        result = train(Options(**given), tape, show if first else lambda step: None)
    if first:
        print(f"weights {result.weights}")
    if dist.is_initialized():
        dist.destroy_process_group()


def show(step: Step) -> None:
    print(
        f"step {step.step:3d}  reward {step.reward:.3f}  loss {step.loss:+.5f}  |g| {step.grad_norm:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
