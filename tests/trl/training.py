"""A real TRL run of a few steps, and what is left of it. Also a script, for several processes:

torchrun --nproc_per_node 2 tests/trl/training.py '{"model": …, "folder": …, "tape": …, "mode": …}'
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS = [f"Count to {number}: " for number in range(3, 43)]


@dataclass
class Run:
    """What a run left behind."""

    weights: str
    """A hash of every parameter."""
    logs: list[dict[str, float]]
    """What it logged, without what depends on the clock."""
    trainer: Any

    def same_as(self, other: Run) -> bool:
        return (self.weights, self.logs) == (other.weights, other.logs)


def digits(completion_ids, **others) -> list[float]:
    """Rewards an even spread of bytes; differs from sample to sample."""
    return [len(set(ids)) / 16 + sum(i < 64 for i in ids) / len(ids) for ids in completion_ids]


def build(model: str, folder: Path, kind: str = "grpo", **changes):
    """A trainer; ``changes`` are of its configuration, or what only its constructor takes."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    config, trainer = (GRPOConfig, GRPOTrainer) if kind == "grpo" else (RLOOConfig, RLOOTrainer)
    special = {name: changes.pop(name) for name in ("rollout_func", "callbacks") if name in changes}
    options = {
        "output_dir": str(folder), "max_steps": 8, "per_device_train_batch_size": 4, "num_generations": 4,
        "max_completion_length": 12, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "use_cpu": True, "bf16": False, "seed": 5, "disable_tqdm": True,
    }  # fmt: skip
    data = Dataset.from_dict({"prompt": changes.pop("prompts", PROMPTS)})
    return trainer(
        model=model, args=config(**options | changes), reward_funcs=digits,
        train_dataset=data, eval_dataset=data.select(range(min(4, len(data)))), **special,
    )  # fmt: skip


def run(trainer, **options) -> Run:
    """Train, and look at the outcome."""
    trainer.train(**options)
    return outcome(trainer)


def outcome(trainer) -> Run:
    digest = hashlib.sha256()
    for name, value in sorted(trainer.accelerator.unwrap_model(trainer.model).state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return Run(digest.hexdigest(), [timeless(entry) for entry in trainer.state.log_history], trainer)


def timeless(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if "time" not in name and "per_second" not in name}


def refuse(*args, **named):
    raise AssertionError("a replay generated")


def main(options: dict[str, Any]) -> None:
    """One process of a run: leaves what it found in a file of its rank."""
    import torch

    from rolltape import Tape
    from rolltape.integrations.trl import instrument

    torch.set_num_threads(1)
    folder, tape, mode = Path(options.pop("folder")), options.pop("tape", None), options.pop("mode", None)
    trainer = build(options.pop("model"), folder, **options)
    if mode == "replay":
        trainer._generate_single_turn = refuse
    if tape is not None:
        instrument(trainer, Tape(tape, mode=mode))
    found = run(trainer)
    result = {"weights": found.weights, "logs": found.logs}
    (folder / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
