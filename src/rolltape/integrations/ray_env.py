"""Carries ``ROLLTAPE_*`` into Ray workers, also those of a cluster that was started without them.

Ray calls ``forward`` inside ``ray.init`` because ``RAY_RUNTIME_ENV_HOOK`` names it. Knows nothing of tapes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from typing import Any

HOOK = "rolltape.integrations.ray_env.forward"
ROLL_HOOK = "rolltape.integrations.roll.workers.runtime_env_if_used"
"""Does the same, and puts tapes under ROLL's schedulers in the workers of a program that uses ROLL."""
VARIABLE = "RAY_RUNTIME_ENV_HOOK"
BEFORE = "ROLLTAPE_RAY_HOOK_BEFORE"
"""Keeps the hook that was set before ours; it is called first."""


def forward(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """The runtime environment with our variables in it; what the program set itself stays."""
    before = os.environ.get(BEFORE)
    if before:
        module, _, name = before.rpartition(".")
        runtime_env = getattr(importlib.import_module(module), name)(runtime_env)
    found = dict(runtime_env or {})
    ours = {name: value for name, value in os.environ.items() if name.startswith("ROLLTAPE_")}
    found["env_vars"] = {**ours, **(found.get("env_vars") or {})}
    return found


def hook_into(environ: MutableMapping[str, str], hook: str = HOOK) -> None:
    """Name a hook of ours in an environment, keeping one that is there; one of ours is not replaced."""
    present = environ.get(VARIABLE)
    if present and is_ours(present):
        return
    if present:
        environ[BEFORE] = present
    environ[VARIABLE] = hook


def is_ours(hook: str) -> bool:
    """Whether a hook is one of Rolltape's, each of which also does what ``forward`` does."""
    return hook.startswith("rolltape.")
