"""Whether torch can multiply bf16 matrices on this CPU, found out in a process that may die of it.

    python -I cpu_probe.py        prints the answer as JSON

Some virtual machines announce instructions (AMX) that their host does not grant. oneDNN, which torch
multiplies with, believes the CPU, and the process ends with SIGILL. A limit in ONEDNN_MAX_CPU_ISA cures it.
Standard library only, and nothing of this package: `make` runs this file before the package is anywhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass

VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""The environment variable by which oneDNN is told what it may use at most."""

LIMITS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""What to set it to, the fastest first."""

PATIENCE = 120.0
"""Seconds for one try; importing torch from a cold disk takes tens of them."""

PRODUCTS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it may die, and must leave nothing
sys.path[:] = [place for place in sys.path if place]  # a folder here that is called torch is another one
import torch
layer = torch.nn.Linear(256, 512, dtype=torch.bfloat16)
rows = torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True)
layer(rows).float().square().mean().backward()
heads = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16, requires_grad=True)
(heads @ heads.transpose(-1, -2) @ heads).float().mean().backward()
torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).float().mean().backward()
"""
"""What a training step does with matrices: a layer, batched products and attention, forward and backward."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the tries found out."""

    died_by: str | None = None
    """The signal that ended the products as things are, as in ``SIGILL``; None if none did."""
    limit: str | None = None
    """The first of the limits under which they do not die; None if none is needed, or none helps."""
    failed: str | None = None
    """Why nothing could be found out, as when torch cannot be imported."""


def ask(limit: str | None = None) -> Answer:
    """Do the products in a child; the environment as it is decides, or this limit in place of its own."""
    environ = {**os.environ, "PYTHON_COLORS": "0"} | ({} if limit is None else {VARIABLE: limit})
    command = [sys.executable, "-c", PRODUCTS]
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(failed=f"no answer within {PATIENCE:g} s")
    if done.returncode < 0:
        return Answer(died_by=signal.Signals(-done.returncode).name)
    if done.returncode > 0:
        return Answer(failed=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return Answer()


def find() -> Answer:
    """Whether the products die with the environment as it is, and the limit that saves them."""
    found = ask()
    if found.died_by is None:
        return found
    return Answer(found.died_by, next((limit for limit in LIMITS if ask(limit) == Answer()), None))


def has_torch() -> bool:
    """Whether there is a torch to ask; looked up, not imported."""
    return importlib.util.find_spec("torch") is not None


if __name__ == "__main__":
    print(json.dumps(asdict(find())))
