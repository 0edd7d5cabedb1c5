"""Reads a verl configuration made of OmegaConf, dicts or dataclasses. Pure.

Knows verl's keys; does not use open tapes.
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
    """The value at a dotted path, or ``default`` if it is missing or empty.

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
    """The values in the name of verl's dump directory."""

    experiment: str
    project: str
    train_batch: int
    gen_batch: int
    n: int
    prompt_length: int
    response_length: int
    dump_names: tuple[str, str] = ("", "")
    """The experiment and the project where RolloutSkip V1 looked for them."""

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
            dump_names=(
                str(pick(config, "data.experiment_name", "")),
                str(pick(config, "data.project_name", "")),
            ),
        )

    @property
    def v1_folder(self) -> str:
        """The folder name of RolloutSkip V1, as documented."""
        return (
            f"{self.experiment}_{self.project}"
            f"_TrainGBS{self.train_batch}__InferGBS{self.gen_batch}__N{self.n}"
        )

    @property
    def v1_file(self) -> str:
        """The name of the one dump that RolloutSkip V1 of verl 0.6 and 0.7 writes."""
        return f"{self.dump_names[0]}_{self.dump_names[1]}_GBS{self.gen_batch}__N{self.n}"

    @property
    def folder(self) -> str:
        """The folder name of RolloutSkip V2 and SkipManager."""
        lengths = f"in{self.prompt_length}_out{self.response_length}"
        return f"{self.experiment}_{self.project}/GBS{self.gen_batch}_N{self.n}_{lengths}"


def _name(config: Any, key: str) -> str:
    return str(pick(config, f"trainer.{key}") or pick(config, f"data.{key}") or f"default_{key}")


def fingerprint(config: Any) -> dict[str, Any]:
    """What must match for two runs to have the same responses, in named parts."""
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


def unseeded(config: Any) -> list[str]:
    """The switches that are off and without which weights begin at random: a critic's value head does.

    >>> unseeded({"algorithm": {"adv_estimator": "gae"}, "critic": {"fsdp": {"full_determinism": False}}})
    ['critic.fsdp.full_determinism']
    """
    wanted = pick(config, "critic.enable")
    if not (pick(config, "algorithm.adv_estimator") == "gae" if wanted is None else wanted):
        return []
    found: list[str] = []
    for part in ("critic", "actor_rollout_ref.actor"):
        section = plain(pick(config, part)) or {}
        engines = [name for name, engine in section.items() if pick(engine, "full_determinism") is not None]
        found += [
            f"{part}.{name}.full_determinism" for name in engines if not section[name]["full_determinism"]
        ]
    return found


def reward_fingerprint(config: Any) -> dict[str, Any]:
    """What determines the rewards: the function's source, the manager, the model."""
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
    """Configuration nodes as plain JSON values."""
    if isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    return str(value)
