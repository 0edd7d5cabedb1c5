"""Reads the options of a tape from a trainer's config: a mapping, a dataclass, OmegaConf, YAML or JSON.

Knows nothing of what the options mean; ``settings.resolve`` checks them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolltape.errors import ConfigError, MissingDependencyError

__all__ = ["load_file"]

_SECTION = "rolltape"
_LARGEST = {".json": 2**24, ".yaml": 2**20, ".yml": 2**20}
"""Bytes of a file: reading a megabyte of YAML takes seconds."""


def load_file(source: object) -> Mapping[str, Any]:
    """The options in a mapping, a dataclass, an OmegaConf config, or the YAML or JSON file of that path.

    If the config has a ``rolltape`` section, only that is read; otherwise the whole config is the section.

    >>> load_file({"trainer": {"epochs": 3}, "rolltape": {"mode": "replay"}})
    {'mode': 'replay'}
    """
    where = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fsdecode(source)).expanduser()
        source, where = read_config(path), path
    config = _plain(source, where)
    return _plain(config[_SECTION], where) if _SECTION in config else config


def _plain(config: object, where: Path | None) -> Mapping[str, Any]:
    """One level of a config as a mapping; ``None``, an empty YAML section, has no options."""
    if config is None:
        return {}
    # Whoever has an OmegaConf config has imported omegaconf; nobody else should pay for it.
    omegaconf: Any = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(config):
        return _from_omegaconf(config, omegaconf)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return dict(config)
    raise ConfigError(
        f"a config must be a mapping of options, not {type(config).__name__}",
        where=where,
        hint="write `rolltape: {mode: replay, dir: runs/baseline}`",
    )


def _from_omegaconf(config: Any, omegaconf: Any) -> Mapping[str, Any]:
    # Only the section is resolved: the rest of a trainer's config may have interpolations that fail here.
    try:
        if omegaconf.OmegaConf.is_dict(config) and _SECTION in config:
            config = config[_SECTION]
        plain = omegaconf.OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise ConfigError(f"the config cannot be resolved: {error}") from error
    return _plain(plain, None)


def read_config(path: Path) -> object:
    """What a YAML or JSON file holds, whatever it is."""
    suffix = path.suffix.lower()
    if suffix not in _LARGEST:
        raise ConfigError("a config must be YAML or JSON", where=path, hint="name it .yaml, .yml or .json")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would make us wait, a device would never end
            raise ValueError("this is no regular file")
        if path.stat().st_size > _LARGEST[suffix]:
            raise ValueError(f"it has more than {_LARGEST[suffix]:,} bytes")
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if suffix == ".json" else _read_yaml(text, path)
    except RecursionError:
        raise ConfigError("the config file is nested too deep to be read", where=path) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the config file cannot be read: {error}", where=path) from error


def _read_yaml(text: str, path: Path) -> object:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise MissingDependencyError(
            "reading a YAML config needs PyYAML", where=path, hint='pip install "rolltape[yaml]"'
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
