"""Installs tapes in ROLL's own schedulers: now, or when ROLL is imported, here and in Ray's workers.

Cheap to call anywhere, even if ROLL is never imported. Changes nothing for a run without an enabled
``rollout_mock``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.integrations.import_hook import ImportHook
from rolltape.integrations.roll import workers
from rolltape.integrations.roll.mixin import RolloutMockMixin, with_rollout_mock
from rolltape.integrations.roll.mock_config import dump_dir

log = logging.getLogger("rolltape.roll")

_originals: list[tuple[Any, str, Any]] = []
_ABSENT = object()


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


def _patch_mixin(module: ModuleType) -> None:
    theirs = _found(module, "RolloutMockMixin")
    for name, value in vars(RolloutMockMixin).items():
        if not name.startswith("__"):
            _replace(theirs, name, value)


def _patch_scheduler(module: ModuleType, name: str) -> None:
    scheduler = _found(module, name)
    _replace(scheduler, "get_batch", with_rollout_mock(_found(scheduler, "get_batch")))


def _patch_config(module: ModuleType) -> None:
    """Resolve ``dump_dir`` where the config is created: actors may have other working directories."""
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
_hook = ImportHook(_PATCHES)


def _found(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise RolltapeError(
            f"the installed ROLL has no {owner.__name__}.{name}, which Rolltape needs",
            where=getattr(owner, "__file__", None),
            causes=["ROLL has changed since this Rolltape was released"],
            hint="upgrade Rolltape, or put @with_rollout_mock on get_batch of the scheduler yourself",
        ) from None


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)
