"""Runs verl's real trainer, three steps of GRPO on CPU, and reads what it left behind."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "src"
STEPS = 3
TIMEOUT = 900
EXEMPT = ("perf/time_per_step", "perf/throughput", "actor/perf/cpu_memory_used_gb")
"""With everything under `timing`: what depends on the clock and on the machine, not on the run."""


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    output: str
    generated: int
    """Sequences the engine generated."""
    metrics: dict[int, dict[str, float]]
    """Everything logged, exact, by step; times are left out."""
    weights: list[str]
    """A hash over all weights, each time the engine got them."""


def run(work, name, *overrides, v1, env=None, command=(), steps=STEPS, ranks=1):
    """Run the trainer in `work`/`name`; `command` goes before it, as in `rolltape run ... --`."""
    folder = Path(work) / name
    folder.mkdir(parents=True)
    journal, log = folder / "journal.jsonl", folder / "metrics.jsonl"
    journal.touch()
    paths = os.pathsep.join([str(SOURCE), str(HERE), os.environ.get("PYTHONPATH", "")])
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ROLLTAPE_")} | {
        "PYTHONPATH": paths, "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "rolltape_cpu_platform", "ROLLTAPE_TEST_JOURNAL": str(journal),
        "VERL_FILE_LOGGER_PATH": str(log), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo",  # on loopback alone
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
    } | (env or {})  # fmt: skip
    trainer = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        *settings(Path(work), folder, v1, steps, ranks),
        *overrides,
    ]
    done = subprocess.run(
        [*command, *trainer], cwd=folder, env=environ, timeout=TIMEOUT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (folder / "output.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:]
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return Finished(
        output=done.stdout,
        generated=sum(event["event"] == "generate" for event in events),
        metrics={
            line["step"]: _exact(line["data"]) for line in map(json.loads, log.read_text().splitlines())
        },
        weights=[event["sha256"] for event in events if event["event"] == "weights"],
    )


def _exact(metrics):
    return {
        name: value for name, value in metrics.items() if not name.startswith("timing") and name not in EXEMPT
    }


def settings(work, folder, v1, steps, ranks):
    """The trainer's configuration: tiny, fp32; of training workers and of engines one for each rank."""
    samples = 4 * 4 // ranks
    groups = {
        "trainer": {
            "use_v1": v1, "device": "cpu", "nnodes": 1, "n_gpus_per_node": ranks,
            "logger": "[console,file]",
            "project_name": "tapes", "experiment_name": "cpu", "total_epochs": 1,
            "total_training_steps": steps,
            "save_freq": -1, "test_freq": steps, "val_before_train": False, "resume_mode": "disable",
            "default_local_dir": folder / "checkpoints",
        },
        "ray_kwargs.ray_init": {"num_cpus": 4 + 4 * ranks},  # V1 has more actors for each rank
        "+ray_kwargs.ray_init": {
            "num_gpus": ranks, "include_dashboard": False, "object_store_memory": 200_000_000,
        },
        "transfer_queue.backend.SimpleStorage": {"num_data_storage_units": 1},
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_files": work / "train.parquet", "val_files": work / "val.parquet", "train_batch_size": 4,
            "max_prompt_length": 48, "max_response_length": 12, "dataloader_num_workers": 0, "shuffle": True,
            "filter_overlong_prompts": False, "seed": 5,
        },
        "actor_rollout_ref.model": {
            "path": work / "model", "use_remove_padding": False, "enable_gradient_checkpointing": False,
        },
        "+actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa"},
        "actor_rollout_ref.actor": {
            "strategy": "fsdp2", "optim.lr": 1e-3, "ppo_mini_batch_size": 4,
            "ppo_micro_batch_size_per_gpu": samples,
            "use_kl_loss": False, "use_torch_compile": False, "fsdp_config.use_torch_compile": False,
            "fsdp_config.model_dtype": "fp32", "fsdp_config.dtype": "float32",
        },
        "actor_rollout_ref.rollout": {
            "name": "tiny", "n": 4, "tensor_model_parallel_size": 1, "n_gpus_per_node": ranks,
            "log_prob_micro_batch_size_per_gpu": samples, "calculate_log_probs": True, "agent.num_workers": 1,
        },
        "reward": {"num_workers": 1, "custom_reward_function.path": HERE / "reward.py"},
        "hydra": {"run.dir": folder / "hydra"},
    }  # fmt: skip
    return [f"{group}.{key}={value}" for group, keys in groups.items() for key, value in keys.items()]
