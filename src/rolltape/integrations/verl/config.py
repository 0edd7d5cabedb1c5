"""What a verl configuration says, whatever it is made of: OmegaConf, dicts, dataclasses. Pure.

Knows where verl keeps things; knows nothing of tapes that are open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("rollout", "rollout_tq", "async_rollout")
"""The sections of ``skip`` that verl's trainers use."""

TAPE_PREFIX = "tape:"


def pick(config: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path, or ``default`` where it is absent or empty.

    >>> pick({"data": {"seed": 1}}, "data.seed"), pick({}, "data.seed", 7)
    (1, 7)
    """
    node = config
    for name in path.split("."):
        node = node.get(name) if hasattr(node, "get") else getattr(node, name, None)
        if node is None:
            return default
    return node


@dataclass(frozen=True, slots=True)
class Run:
    """What verl names a directory of dumps after."""

    experiment: str
    project: str
    train_batch: int
    gen_batch: int
    n: int
    prompt_length: int
    response_length: int

    @classmethod
    def of(cls, config: Any) -> Run:
        """Read it from a configuration; early releases kept the names under ``data``."""
        train_batch = int(pick(config, "data.train_batch_size", 0))
        return cls(
            experiment=_name(config, "experiment_name"),
            project=_name(config, "project_name"),
            train_batch=train_batch,
            gen_batch=int(pick(config, "data.gen_batch_size", train_batch)),
            n=int(pick(config, "actor_rollout_ref.rollout.n", 0)),
            prompt_length=int(pick(config, "data.max_prompt_length", 0)),
            response_length=int(pick(config, "data.max_response_length", 0)),
        )

    @property
    def v1_folder(self) -> str:
        """As the documentation of RolloutSkip V1 has it."""
        return (
            f"{self.experiment}_{self.project}"
            f"_TrainGBS{self.train_batch}__InferGBS{self.gen_batch}__N{self.n}"
        )

    @property
    def folder(self) -> str:
        """As RolloutSkip V2 and SkipManager have it."""
        lengths = f"in{self.prompt_length}_out{self.response_length}"
        return f"{self.experiment}_{self.project}/GBS{self.gen_batch}_N{self.n}_{lengths}"


def _name(config: Any, key: str) -> str:
    return str(pick(config, f"trainer.{key}") or pick(config, f"data.{key}") or f"default_{key}")


def fingerprint(config: Any) -> dict[str, Any]:
    """What must be the same for responses of one run to be those of another, in named parts."""
    rollout = {
        key: pick(config, f"actor_rollout_ref.rollout.{key}") for key in ("temperature", "top_p", "top_k")
    }
    lengths = {key: pick(config, f"data.{key}") for key in ("max_prompt_length", "max_response_length")}
    sizes = {key: pick(config, f"data.{key}") for key in ("train_batch_size", "gen_batch_size", "shuffle")}
    return {
        "model": plain(pick(config, "actor_rollout_ref.model.path")),
        "sampling": plain({**rollout, "n": pick(config, "actor_rollout_ref.rollout.n"), **lengths}),
        "data": plain({"train_files": pick(config, "data.train_files"), **sizes}),
        "seed": plain(
            {"data": pick(config, "data.seed"), "rollout": pick(config, "actor_rollout_ref.rollout.seed")}
        ),
        "reward": reward_fingerprint(config),
    }


def reward_fingerprint(config: Any) -> dict[str, Any]:
    """Which rewards the responses were given: the function's source, the manager, the model."""
    function = pick(config, "reward.custom_reward_function") or pick(config, "custom_reward_function")
    path = pick(function, "path") if function is not None else None
    keys = ("reward.reward_manager", "reward.reward_model.enable", "reward.reward_model.model_path")
    found = {key.removeprefix("reward."): plain(pick(config, key)) for key in keys}
    if path:
        found |= {"function": plain(pick(function, "name")), "source": _digest(str(path))}
    return found


def _digest(path: str) -> str:
    try:
        return "sha256:" + hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]
    except OSError:
        return f"unreadable: {path}"


def plain(value: Any) -> Any:
    """Configuration nodes as the JSON they stand for."""
    if isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    return str(value)
