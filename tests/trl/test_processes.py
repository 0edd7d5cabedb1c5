"""Two processes under torchrun and accelerate, each on its own shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape
from rolltape import Tape

TRAINING = Path(__file__).with_name("training.py")
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"],
    # In its words this is one machine with many processes; whether they have a GPU, the trainer says.
    "accelerate launch": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
                          "--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", "2",
                          "--main_process_port"],
}  # fmt: skip


def python(*arguments, cwd=None, **variables) -> subprocess.CompletedProcess:
    root = str(TRAINING.parents[2])
    package = str(Path(rolltape.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", ""), root])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def train_on_two(launcher, model, folder, tape, mode, port, max_steps=8, **variables) -> list[dict]:
    folder.mkdir()
    options = {
        "model": model, "folder": str(folder), "tape": str(tape), "mode": mode, "num_generations": 4,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_iterations": 2,
        "max_steps": max_steps,
    }  # fmt: skip
    python(*LAUNCHERS[launcher], port, TRAINING, json.dumps(options), cwd=folder, **variables)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture
def port(unused_tcp_port):
    return unused_tcp_port


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_replay_their_own_shards(launcher, model, tmp_path, port) -> None:
    tape = tmp_path / "tape"
    recorded = train_on_two(launcher, model, tmp_path / "a", tape, "record", port)
    replayed = train_on_two(launcher, model, tmp_path / "b", tape, "replay", port)
    assert replayed == recorded
    assert recorded[0]["weights"] == recorded[1]["weights"]
    shards = [Tape(tape, mode="replay", rank=rank, world_size=2) for rank in (0, 1)]
    steps = [0, 2, 4, 6]  # each batch is used for two steps
    samples = [
        [shard.recording(step).batch().columns["completion_ids"] for step in steps] for shard in shards
    ]
    assert samples[0] != samples[1]
    assert [list(shard.metrics()) for shard in shards] == [list(range(8))] * 2
