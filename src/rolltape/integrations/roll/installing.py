"""Puts tapes under ROLL's own schedulers: now, or as soon as ROLL is imported, here and in Ray's workers.

Cheap to call anywhere, also where ROLL is never imported. Changes nothing for a run that has no
``rollout_mock`` enabled.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.integrations.roll import workers
from rolltape.integrations.roll.config import dump_dir
from rolltape.integrations.roll.mixin import RolloutMockMixin, with_rollout_mock

log = logging.getLogger("rolltape.roll")

_originals: list[tuple[Any, str, Any]] = []
_ABSENT = object()


def install() -> None:
    """Put tapes under ROLL's schedulers, in this process and in the Ray workers it starts from now on."""
    workers.reach()
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, patch in _PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    log.info("[Rollout Mock] rollout_mock uses tapes (process %d)", os.getpid())


def uninstall() -> None:
    """Give ROLL its own dump and mock back, in this process."""
    workers.leave()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    while _originals:
        owner, name, value = _originals.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _patch_mixin(module: ModuleType) -> None:
    theirs = _found(module, "RolloutMockMixin")
    for name, value in vars(RolloutMockMixin).items():
        if not name.startswith("__"):
            _replace(theirs, name, value)


def _patch_scheduler(module: ModuleType, name: str) -> None:
    scheduler = _found(module, name)
    _replace(scheduler, "get_batch", with_rollout_mock(_found(scheduler, "get_batch")))


def _patch_config(module: ModuleType) -> None:
    """Resolve ``dump_dir`` where the config is made: actors may have other working directories."""
    config = _found(module, "RolloutMockConfig")
    original = config.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.dump_dir = dump_dir({"rollout_mock": {"dump_dir": self.dump_dir}})

    _replace(config, "__init__", init)


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "roll.configs.base_config": _patch_config,
    "roll.distributed.scheduler.rollout_mock_mixin": _patch_mixin,
    "roll.distributed.scheduler.rollout_scheduler": lambda m: _patch_scheduler(m, "RolloutScheduler"),
    "roll.distributed.scheduler.generate_scheduler": lambda m: _patch_scheduler(
        m, "DynamicSamplingScheduler"
    ),
}


def _found(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise RolltapeError(
            f"this ROLL has no {owner.__name__}.{name}, which Rolltape puts tapes under",
            where=getattr(owner, "__file__", None),
            causes=["ROLL has changed since"],
            hint="upgrade Rolltape, or put @with_rollout_mock on get_batch of the scheduler yourself",
        ) from None


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find ROLL's modules, and patches them once they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = _PATCHES.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and not isinstance(finder, _Finder) else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, patch)
                return spec  # type: ignore[no-any-return]
        return None


class _Loader(importlib.abc.Loader):
    """Loads as the loader it wraps does, and then patches."""

    def __init__(self, loader: Any, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for tracebacks
        return getattr(self._loader, name)
