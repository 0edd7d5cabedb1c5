"""The rollout viewer on a long run: how soon its pages are there, and how much memory they take.

    python -m benchmarks --only viewer        in the environment of the stack `viewer`

The tape has 1,000 steps of 1,024 samples. Its steps are further names of the same few files: the viewer
takes the step from the name of a file, so each is read and decoded as if it were one of its own.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import rolltape
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.tape.metrics import metrics_line

STEPS, DISTINCT, GROUPS, PER_GROUP = 1000, 4, 128, 8
TOKENS = 2048
"""The longest response; a fifth of that on average."""


def section(folder: Path, rounds: int) -> Part:
    """Measure and print."""
    tape = make_tape(folder / "viewer")
    files = sum(file.stat().st_size for file in (tape / "train").rglob("step_000000.parquet"))
    console.print(
        f"[bold]viewer[/]: {STEPS} steps of {GROUPS * PER_GROUP} samples, {files / 1e6:.1f} MB a step"
    )
    taken: dict[str, list[float]] = {
        "from the command to the first page": [],
        "first page": [],
        "step page": [],
        "sample page": [],
        "the step, loaded whole": [],
    }
    memory, random = 0, np.random.default_rng(0)
    for _ in range(rounds):
        with serving(tape) as (address, started, process):
            taken["first page"].append(fetch(f"{address}t/0"))
            taken["from the command to the first page"].append(time.perf_counter() - started)
            for _ in range(3):
                step, sample = random.integers(STEPS), random.integers(GROUPS * PER_GROUP)
                taken["sample page"].append(fetch(f"{address}t/0/train/rollout/{step}/{sample}"))
                taken["step page"].append(fetch(f"{address}t/0/train/rollout/{random.integers(STEPS)}"))
            for _ in range(5):
                fetch(f"{address}series/0/train/rollout")
            memory = max(memory, resident(process.pid))
        taken["the step, loaded whole"].append(load_whole(tape, int(random.integers(STEPS))))
    table = Table("", "fastest ms", "median ms", "slowest ms")
    for name, seconds in taken.items():
        table.add_row(name, *(f"{1000 * of(seconds):.0f}" for of in (min, statistics.median, max)))
    console.print(table)
    figures = {
        f"{name}, seconds": Figure(min(seconds), statistics.median(seconds))
        for name, seconds in taken.items()
    }
    return Part(figures | {"memory, MB": Figure(memory / 1e6)})


def make_tape(path: Path) -> Path:
    """A long run: rollout, reward, advantage and log-probs of the trainer, and thirty metrics."""
    random = np.random.default_rng(0)
    with rolltape.Tape(path, mode="record") as tape:
        stages = {
            name: tape.stage(name)(lambda value: value) for name in ("rollout", "reward", "advantage", "loss")
        }
        for step in range(DISTINCT):
            with tape.step(step):
                for name, value in batch(random, step).items():
                    stages[name](value)
    for name in stages:
        repeat(path, name, STEPS)
    with (path / "train" / "metrics.jsonl").open("wb") as file:
        for step in range(STEPS):
            values = {
                f"actor/metric_{at}": float(value) for at, value in enumerate(random.standard_normal(30))
            }
            file.write(metrics_line(step, values) + b"\n")
    return path


def repeat(path: Path, stage: str, steps: int) -> None:
    """Write what the first steps have under every further step."""
    for recording in list(rolltape.open(path).recordings(stage)):
        file = recording.open_whole()
        columns = file.columns(list(file.stored_columns))
        packed = pack(file.tree.taken_apart(file.samples, columns, {}))
        for step in range(DISTINCT + recording.key.step, steps, DISTINCT):
            pieces = encode(packed, **{**file.about, "step": step})
            (path / "train" / stage / f"step_{step:06d}.parquet").write_bytes(b"".join(pieces))


def batch(random: np.random.Generator, step: int) -> dict[str, dict[str, Any]]:
    samples = GROUPS * PER_GROUP
    ids = {
        "uid": [f"{step}-{at // PER_GROUP}" for at in range(samples)],
        "index": np.arange(samples) % PER_GROUP,
    }
    lengths = np.minimum(random.geometric(5 / TOKENS, samples), TOKENS)
    words = ["alpha ", "beta ", "gamma ", "so ", "then ", "hence ", "we ", "have ", "1 ", "+ ", "= "]
    drawn = random.integers(len(words), size=int(lengths.sum()))
    tokens = np.split(drawn.astype(np.int64) + 1000, np.cumsum(lengths)[:-1])
    logprobs = [-random.random(n).astype(np.float32) for n in lengths]
    prompts = [f"Question {at} of step {step}: " + "how many are there? " * 12 for at in range(GROUPS)]
    rollout = {
        "prompt": [prompts[at // PER_GROUP] for at in range(samples)],
        "response": ["".join(words[i - 1000] for i in row) for row in tokens],
        "response_ids": tokens,
        "logprobs": logprobs,
        "finish_reason": ["length" if n == TOKENS else "stop" for n in lengths],
    }
    return {
        "rollout": ids | rollout,
        "reward": ids | {"reward": random.random(samples).astype(np.float32)},
        "advantage": ids | {"advantage": random.standard_normal(samples).astype(np.float32)},
        "loss": ids | {"log_probs": [row + np.float32(1e-3) for row in logprobs]},
    }


@contextmanager
def serving(*tapes: Path) -> Any:
    """``rolltape view`` in a process of its own: its address, when it was started, and the process."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "rolltape", "view", *map(str, tapes), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0], started, process  # type: ignore[index]
    finally:
        process.terminate()
        process.communicate()


def fetch(address: str) -> float:
    """Seconds until the whole answer is here."""
    started = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        answer.read()
    return time.perf_counter() - started


def load_whole(tape: Path, step: int) -> float:
    """Seconds to load all stages of a step, as a viewer without partial reads would."""
    started = time.perf_counter()
    with rolltape.Tape(tape, mode="replay", prefetch=False) as opened:
        for stage in ("rollout", "reward", "advantage", "loss"):
            opened.recording(step, stage=stage).value()
    return time.perf_counter() - started


def resident(pid: int) -> int:
    """The most memory the process ever held, in bytes."""
    line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert line is not None
    return int(line[1]) * 1024
