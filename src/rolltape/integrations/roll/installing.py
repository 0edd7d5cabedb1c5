"""Installs tapes in ROLL's own schedulers: now, or when ROLL is imported, here and in Ray's workers.

Cheap to call anywhere, even if ROLL is never imported. Changes nothing for a run without an enabled
``rollout_mock``.
"""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import Any

from rolltape.integrations.import_hook import ImportHook, Patch
from rolltape.integrations.roll import workers
from rolltape.integrations.roll.mixin import RolloutMockMixin, with_rollout_mock
from rolltape.integrations.roll.mock_config import dump_dir
from rolltape.releases import check_needs, has_module, unsupported

log = logging.getLogger("rolltape.roll")

_originals: list[tuple[Any, str, Any]] = []
_ABSENT = object()

_SCHEDULERS = "roll.distributed.scheduler"
_NEEDS = {
    "roll.configs.base_config": ("RolloutMockConfig",),
    f"{_SCHEDULERS}.rollout_mock_mixin": (
        "RolloutMockMixin._init_rollout_mock()", "RolloutMockMixin._should_load_mock(global_step)",
        "RolloutMockMixin._maybe_dump_batch(batch, global_step)",
        "RolloutMockMixin._load_mock_batch(global_step)",
    ),
    f"{_SCHEDULERS}.rollout_scheduler": ("RolloutScheduler.get_batch(data, batch_size, ...)",),
    f"{_SCHEDULERS}.generate_scheduler": ("DynamicSamplingScheduler.get_batch(data, batch_size, ...)",),
}  # fmt: skip
"""What is replaced or asked in ROLL's modules."""
_BY_HAND = "upgrade Rolltape, or put @with_rollout_mock on get_batch of the scheduler yourself"


def install() -> None:
    """Install tapes in ROLL's schedulers, in this process and in the Ray workers it starts from now on."""
    workers.reach()
    if _hook in sys.meta_path:
        return
    _hook.start()
    log.info("[Rollout Mock] rollout_mock uses tapes (process %d)", os.getpid())


def uninstall() -> None:
    """Restore ROLL's own dump and mock, in this process."""
    workers.leave()
    _hook.stop()
    while _originals:
        owner, name, value = _originals.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _check_modules(package: ModuleType) -> None:
    """Refuse a ROLL that has its schedulers in other modules, where they would not be found."""
    gone = [name for name in _NEEDS if not has_module(name)]
    if gone:
        raise unsupported("roll", f"has no {', '.join(gone)}", package.__file__, _BY_HAND)


def _checked(patch: Patch) -> Patch:
    def patch_if_known(module: ModuleType) -> None:
        check_needs("roll", module, _NEEDS[module.__name__], _BY_HAND)
        patch(module)

    return patch_if_known


def _patch_mixin(module: ModuleType) -> None:
    for name, value in vars(RolloutMockMixin).items():
        if not name.startswith("__"):
            _replace(module.RolloutMockMixin, name, value)


def _patch_scheduler(module: ModuleType) -> None:
    name, _, _ = _NEEDS[module.__name__][0].partition(".")
    scheduler = getattr(module, name)
    _replace(scheduler, "get_batch", with_rollout_mock(scheduler.get_batch))


def _patch_config(module: ModuleType) -> None:
    """Resolve ``dump_dir`` where the config is created: actors may have other working directories."""
    config = module.RolloutMockConfig
    original = config.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.dump_dir = dump_dir({"rollout_mock": {"dump_dir": self.dump_dir}})

    _replace(config, "__init__", init)


_PATCHES: dict[str, Patch] = {
    "roll.configs.base_config": _patch_config,
    f"{_SCHEDULERS}.rollout_mock_mixin": _patch_mixin,
    f"{_SCHEDULERS}.rollout_scheduler": _patch_scheduler,
    f"{_SCHEDULERS}.generate_scheduler": _patch_scheduler,
}
_hook = ImportHook({"roll": _check_modules, **{name: _checked(patch) for name, patch in _PATCHES.items()}})


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)
