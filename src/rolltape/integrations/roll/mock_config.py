"""Reads a ROLL config: the ``rollout_mock`` section, and what must match between dump and mock.

Takes ROLL's dataclasses, plain mappings and OmegaConf. Opens no tape.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from rolltape.determinism import WATCHED
from rolltape.errors import ConfigError
from rolltape.storage import absolute, placed

DRIVER_CWD = "ROLLTAPE_CWD"
MODES = {"dump": "record", "mock": "replay"}

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "num_beams", "num_return_sequences", "max_new_tokens",
    "repetition_penalty", "stop_strings",
)  # fmt: skip
_LENGTHS = ("prompt_length", "sequence_length", "val_prompt_length", "val_sequence_length")
_SIZES = ("rollout_batch_size", "val_batch_size")


def field(config: Any, path: str, default: Any = None) -> Any:
    """A field of a config by its dotted path; ``default`` if any part of the path is missing or null."""
    for name in path.split("."):
        found = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if found is None:
            return default
        config = found
    return config


def tape_options(config: Any) -> dict[str, Any] | None:
    """The options of the tape for this run; None if the run uses no tape.

    ``rollout_mock`` counts as the config file: a ``ROLLTAPE_*`` variable takes precedence over it, and
    ``ROLLTAPE_DIR`` alone is enough. As in ROLL, dumping a step again replaces it.
    """
    options: dict[str, Any] = {"overwrite": "rewrite"}
    if "system_envs" in fingerprint(config):
        options["match"] = {"system_envs": "warn"}
    if field(config, "rollout_mock.enable", False):
        mode = field(config, "rollout_mock.mode", "dump")
        if mode not in MODES:
            raise ConfigError(
                f"rollout_mock.mode must be dump or mock, not {mode!r}", hint="dump saves, mock loads"
            )
        options |= {"mode": MODES[mode], "dir": dump_dir(config)}
    elif not os.environ.get("ROLLTAPE_DIR"):
        return None
    return options


def dump_dir(config: Any) -> str:
    """``rollout_mock.dump_dir``, absolute. A Ray worker uses the working directory of its driver."""
    given = str(field(config, "rollout_mock.dump_dir", "./rollout_mock_dumps"))
    return absolute(placed(given, os.environ.get(DRIVER_CWD, "")))


def stage_name(config: Any, domains: list[str]) -> str:
    """The stage that a scheduler for these domains records.

    ROLL runs one scheduler per domain, all at the same steps: if a run has several domains, each has its
    own stage. A scheduler that serves all of them, as in validation, needs none.
    """
    known = field(config, "actor_train.data_args.domain_interleave_probs") or field(config, "rewards") or {}
    if len(domains) != 1 or len(set(known)) < 2:
        return "rollout"
    return f"rollout.{''.join(c if c.isalnum() and c.isascii() else '_' for c in domains[0])}"


def fingerprint(config: Any) -> dict[str, Any]:
    """What determines the rollouts, in named parts. Trainer options are not part of it: users change them."""
    infer = "actor_infer.generating_args."
    parts = {
        "model": field(config, "pretrain") or field(config, "actor_infer.model_args.model_name_or_path"),
        "sampling": _present({name: field(config, infer + name) for name in _SAMPLING}),
        "seed": field(config, "seed"),
        "lengths": _present({name: field(config, name) for name in _LENGTHS}),
        "batch": _present({name: field(config, name) for name in _SIZES}),
        "data": field(config, "actor_train.data_args.file_name"),
        "environments": field(config, "train_env_manager.tags"),
        "system_envs": _present({name: field(config, f"system_envs.{name}") for name in WATCHED}, str),
    }
    return {name: _plain(part) for name, part in parts.items() if part not in (None, {}, [])}


def _present(values: Mapping[str, Any], convert: Any = lambda value: value) -> dict[str, Any]:
    return {name: convert(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Config nodes of OmegaConf and dataclasses as plain dicts and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else str(value)
