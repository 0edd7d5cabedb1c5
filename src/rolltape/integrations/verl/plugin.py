"""What verl loads in every process. Light, and silent by default.

verl 0.9 finds it by its entry point (group ``verl.plugins``). Before that there are none: ``rolltape run``
names it in ``VERL_USE_EXTERNAL_MODULES``, and without that Hydra, which starts verl's programs, finds
``hydra_plugins.rolltape_verl``.

verl hides errors in a plugin. So this does very little: it waits until verl's SkipManager or trainer is
imported and adds thin wrappers. Opening a tape, which may fail, happens where the trainer starts, where
errors reach the user.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from rolltape.integrations import ray_env
from rolltape.integrations.import_hook import ImportHook
from rolltape.integrations.verl.wrappers import hook
from rolltape.releases import has_module, unsupported
from rolltape.storage import is_relative, placed

log = logging.getLogger("rolltape")

SKIP_MANAGER = "verl.utils.skip.skip_manager"
RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
ROLLOUT_SKIP = "verl.utils.rollout_skip"
TRAINERS = "verl.trainer"
"""Imported by every program that trains."""


def load() -> None:
    """Called once per process, while verl is being imported or before its program starts."""
    asked = asked_by_environment(os.environ)
    if asked:
        _prepare_environment()
    if not has_module(SKIP_MANAGER):
        ray_env.name_plugin(os.environ)  # inherited by the workers of a cluster that this process starts
        if asked or any("tape:" in word or "rolltape." in word for word in sys.argv):
            ray_env.hook_into(os.environ)
    hooks = {SKIP_MANAGER: _hook_manager, RAY_TRAINER: _hook_trainer, ROLLOUT_SKIP: _hook_skip}
    old = has_module(RAY_TRAINER) and has_module(ROLLOUT_SKIP)
    if asked and not old and not has_module(SKIP_MANAGER):
        hooks = {TRAINERS: _refuse}
    ImportHook(hooks).start()


def asked_for(config: Any) -> bool:
    """Whether this run opted in; the code that reads its configuration is imported only here."""
    from rolltape.integrations.verl.options import opted_in

    return opted_in(config, os.environ)


def asked_by_environment(environ: Mapping[str, str]) -> bool:
    """Whether the environment alone opts in."""
    switch = environ.get("ROLLTAPE_VERL", "").strip().lower()
    return switch not in ("0", "false", "no", "off") and bool(
        switch or environ.get("ROLLTAPE_DIR", "").strip()
    )


def _prepare_environment() -> None:
    """In the first process of a run: make paths absolute, and make Ray pass our variables on."""
    os.environ.setdefault("ROLLTAPE_CWD", os.getcwd())
    folder = os.environ.get("ROLLTAPE_DIR", "").strip()
    if folder and is_relative(folder):
        os.environ["ROLLTAPE_DIR"] = placed(folder, os.environ["ROLLTAPE_CWD"])
        log.warning("ROLLTAPE_DIR is a relative path; the tape is %s", os.environ["ROLLTAPE_DIR"])
    ray_env.hook_into(os.environ)


def _refuse(module: ModuleType) -> None:
    where = f"neither {SKIP_MANAGER} nor {RAY_TRAINER} with {ROLLOUT_SKIP}"
    raise unsupported("verl", f"has {where}", module.__file__)


def _hook_manager(module: ModuleType) -> None:
    from rolltape.integrations.verl.internals import MANAGER, refused

    if not refused(module, MANAGER, "SkipManager.init", asked_for):
        hook(module.SkipManager, asked_for)


def _hook_trainer(module: ModuleType) -> None:
    """For releases before SkipManager: the trainer itself starts its tape."""
    if has_module(SKIP_MANAGER):
        return
    from rolltape.integrations.verl.internals import TRAINER, refused
    from rolltape.integrations.verl.ray_trainer import hook_trainer

    if not refused(module, TRAINER, "RayPPOTrainer.__init__", asked_for):
        hook_trainer(module.RayPPOTrainer, asked_for)


def _hook_skip(module: ModuleType) -> None:
    from rolltape.integrations.verl.internals import SKIP, refused
    from rolltape.integrations.verl.ray_trainer import hook_skip

    if not refused(module, SKIP, "RolloutSkip.__init__", asked_for):
        hook_skip(module.RolloutSkip, asked_for)


load()
