"""The entry point that verl loads in every process (group ``verl.plugins``). Light, and silent unless asked.

verl hides what goes wrong in a plugin. So this does next to nothing: it waits until verl's SkipManager is
imported and adds thin wrappers. What may fail, opening a tape, happens in ``SkipManager.init``, where errors
reach the user.
"""

from __future__ import annotations

import importlib.abc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rolltape.integrations.ray_env import hook_into
from rolltape.integrations.verl.hooks import hook

log = logging.getLogger("rolltape")

SKIP_MANAGER = "verl.utils.skip.skip_manager"


def load() -> None:
    """Called once per process, while verl is being imported."""
    if asked_by_environment(os.environ):
        _prepare_environment()
    if SKIP_MANAGER in sys.modules:
        hook(sys.modules[SKIP_MANAGER].SkipManager, asked_for)
    else:
        sys.meta_path.insert(0, _Watch())


def asked_for(config: Any) -> bool:
    """Whether this run opted in; what reads its configuration is imported only here."""
    from rolltape.integrations.verl.options import opted_in

    return opted_in(config, os.environ)


def asked_by_environment(environ: Mapping[str, str]) -> bool:
    """Whether the environment alone opts in."""
    switch = environ.get("ROLLTAPE_VERL", "").strip().lower()
    return switch not in ("0", "false", "no", "off") and bool(
        switch or environ.get("ROLLTAPE_DIR", "").strip()
    )


def _prepare_environment() -> None:
    """In the first process of a run: fix what relative paths mean, and see to it that Ray hands ours on."""
    os.environ.setdefault("ROLLTAPE_CWD", os.getcwd())
    folder = os.environ.get("ROLLTAPE_DIR", "").strip()
    if folder and not os.path.isabs(os.path.expanduser(folder)) and "://" not in folder:
        os.environ["ROLLTAPE_DIR"] = os.path.join(os.environ["ROLLTAPE_CWD"], folder)
        log.warning("ROLLTAPE_DIR is relative; the tape is %s", os.environ["ROLLTAPE_DIR"])
    hook_into(os.environ)


class _Watch(importlib.abc.MetaPathFinder):
    """Hooks SkipManager as soon as its module has been executed, then goes away."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SKIP_MANAGER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            hook(module.SkipManager, asked_for)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


load()
