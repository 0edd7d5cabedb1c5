"""Passes ``ROLLTAPE_*`` variables to Ray workers, also to those of a cluster started without them.

Ray calls ``forward`` inside ``ray.init`` because ``RAY_RUNTIME_ENV_HOOK`` names it. Does not use tapes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from typing import Any

HOOK = "rolltape.integrations.ray_env.forward"
ROLL_HOOK = "rolltape.integrations.roll.workers.runtime_env_if_used"
"""Does the same, and installs tapes in ROLL's schedulers in the workers of a program that uses ROLL."""
VARIABLE = "RAY_RUNTIME_ENV_HOOK"
BEFORE = "ROLLTAPE_RAY_HOOK_BEFORE"
"""Keeps the hook that was set before ours; it is called first."""
MODULES = "VERL_USE_EXTERNAL_MODULES"
VERL_PLUGIN = "rolltape.integrations.verl.plugin"
"""What a verl without entry points is to import in every process, and the variable that says so."""


def forward(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """The runtime environment with our variables added; values set by the program stay."""
    before = os.environ.get(BEFORE)
    if before:
        module, _, name = before.rpartition(".")
        runtime_env = getattr(importlib.import_module(module), name)(runtime_env)
    found = dict(runtime_env or {})
    ours = {name: value for name, value in os.environ.items() if name.startswith("ROLLTAPE_")}
    found["env_vars"] = {**ours, **(found.get("env_vars") or {})}
    if VERL_PLUGIN in os.environ.get(MODULES, "").split(","):
        found["env_vars"].setdefault(MODULES, os.environ[MODULES])
        name_plugin(found["env_vars"])
    return found


def name_plugin(environ: MutableMapping[str, str]) -> None:
    """Have verl import our plugin in the processes of an environment, after modules that it names already."""
    named = [name for name in environ.get(MODULES, "").split(",") if name]
    if VERL_PLUGIN not in named:
        environ[MODULES] = ",".join([*named, VERL_PLUGIN])


def hook_into(environ: MutableMapping[str, str], hook: str = HOOK) -> None:
    """Set our hook in an environment; keep another program's hook, and do not replace one of ours."""
    present = environ.get(VARIABLE)
    if present and is_ours(present):
        return
    if present:
        environ[BEFORE] = present
    environ[VARIABLE] = hook


def is_ours(hook: str) -> bool:
    """Whether a hook is one of Rolltape's, each of which also does what ``forward`` does."""
    return hook.startswith("rolltape.")
