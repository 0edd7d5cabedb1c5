"""Runs verl's own program of a release in a process of its own, and reads what it left behind."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "src"
STEPS = 3
TIMEOUT = 600
EXEMPT = ("timing", "perf/")


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    code: int
    output: str
    generated: int
    """Batches generated for training."""
    weights: list[str]
    """The weight after every step, exact."""
    metrics: dict[int, dict[str, float]]
    """Everything logged, exact, by step; times are left out."""


def run(work, name, *overrides, overlay="", command=(), module="verl.trainer.main_ppo", **env):
    """Run the program in `work`/`name`; `command` goes before it, as in `rolltape run ... --`."""
    folder = Path(work) / name
    folder.mkdir(parents=True)
    journal, log = folder / "journal.jsonl", folder / "metrics.jsonl"
    journal.touch()
    paths = [overlay, str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLTAPE_", "RAY_"))}
    environ = ours | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "VERL_USE_EXTERNAL_MODULES": "rolltape_standin", "ROLLTAPE_TEST_JOURNAL": str(journal),
        "VERL_FILE_LOGGER_PATH": str(log), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1", "RAY_ADDRESS": "local", "RAY_RUNTIME_ENV_HOOK": "",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo",  # on loopback alone
    } | env  # fmt: skip
    trainer = [sys.executable, "-m", module, *settings(Path(work), folder), *overrides]
    done = subprocess.run(
        [*command, *trainer], cwd=folder, env=environ, timeout=TIMEOUT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (folder / "output.txt").write_text(done.stdout)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    lines = log.read_text().splitlines() if log.exists() else []
    return Finished(
        code=done.returncode,
        output=done.stdout,
        generated=sum(event["event"] == "generate" and not event["validate"] for event in events),
        weights=[event["weight"] for event in events if event["event"] == "weights"],
        metrics={line["step"]: _exact(line["data"]) for line in map(json.loads, lines)},
    )


def _exact(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith(EXEMPT)}


def settings(work, folder, steps=STEPS):
    """The trainer's configuration: keys that every release has."""
    groups = {
        "trainer": {
            "device": "cpu", "nnodes": 1, "n_gpus_per_node": 1, "logger": "[file]", "total_epochs": 4,
            "project_name": "proj", "experiment_name": "exp", "total_training_steps": steps, "save_freq": 2,
            "test_freq": -1, "val_before_train": False,
            "balance_batch": False, "default_local_dir": folder / "checkpoints",
        },
        "ray_kwargs.ray_init": {"num_cpus": 2},
        "+ray_kwargs.ray_init": {"include_dashboard": False, "object_store_memory": 100_000_000},
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_files": work / "train.parquet", "val_files": work / "val.parquet", "train_batch_size": 4,
            "max_prompt_length": 48, "max_response_length": 6, "dataloader_num_workers": 0, "shuffle": True,
            "filter_overlong_prompts": False,
        },
        "++data": {"seed": 5},
        "actor_rollout_ref.model": {"path": work / "model"},
        "actor_rollout_ref.actor": {
            "strategy": "fsdp", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 8,
            "use_kl_loss": False,
        },
        "actor_rollout_ref.rollout": {
            "name": "vllm", "n": 2, "tensor_model_parallel_size": 1, "log_prob_micro_batch_size_per_gpu": 8,
        },
        "custom_reward_function": {"path": HERE / "reward.py"},
        "hydra": {"run.dir": folder / "hydra"},
    }  # fmt: skip
    return [f"{group}.{key}={value}" for group, keys in groups.items() for key, value in keys.items()]
