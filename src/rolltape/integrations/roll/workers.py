"""Gets ``install()`` into Ray's workers, where ROLL's schedulers run.

An actor class is sent by name, so a patch in the driver would never arrive. Ray runs a function of ours in
every new worker instead (``worker_process_setup_hook``), on every node; ``RAY_RUNTIME_ENV_HOOK`` adds it
inside ROLL's own ``ray.init``. Ray itself is not imported here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.integrations import ray_env
from rolltape.integrations.roll.config import DRIVER_CWD

HOOK = "rolltape.integrations.roll.workers.runtime_env"
SETUP = "rolltape.integrations.roll.install"
_KEY = "worker_process_setup_hook"


def reach() -> None:
    """Have every Ray worker that this process starts from now on call ``install()`` first."""
    if os.environ.get(ray_env.VARIABLE) == HOOK or _in_worker():
        return
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise RolltapeError(
            "Ray is running already, and its workers cannot be reached any more",
            hint="call rolltape.integrations.roll.install() before ray.init(), or before ROLL's init()",
        )
    ray_env.hook_into(os.environ)  # keeps a hook that is there, and carries ROLLTAPE_* along
    os.environ[ray_env.VARIABLE] = HOOK


def leave() -> None:
    """Take our hook out of the environment again."""
    if os.environ.get(ray_env.VARIABLE) == HOOK:
        del os.environ[ray_env.VARIABLE]
        if before := os.environ.pop(ray_env.BEFORE, None):
            os.environ[ray_env.VARIABLE] = before


def runtime_env(given: dict[str, Any] | None) -> dict[str, Any]:
    """The runtime environment of a job, with our setup; one that the program has runs after it.

    Named in ``RAY_RUNTIME_ENV_HOOK`` by hand it does without ``install()`` in the driver.
    """
    found = ray_env.forward(given)
    found["env_vars"] = {DRIVER_CWD: os.getcwd(), **found["env_vars"]}
    theirs = found.get(_KEY)
    if theirs is None:
        found[_KEY] = SETUP
    elif theirs != SETUP:
        found[_KEY] = _both(theirs)
    return found


def runtime_env_if_used(given: dict[str, Any] | None) -> dict[str, Any]:
    """The same for any program, as ``rolltape run`` names it: without ROLL, variables and no setup.

    Whoever starts ROLL has imported it when it calls ``ray.init``.
    """
    return runtime_env(given) if "roll" in sys.modules else ray_env.forward(given)


def _both(theirs: str | Callable[[], Any]) -> Callable[[], None]:
    def setup() -> None:
        from rolltape.integrations.roll import install

        install()
        if callable(theirs):
            theirs()
        else:
            module, _, name = theirs.rpartition(".")
            getattr(importlib.import_module(module), name)()

    return setup


def _in_worker() -> bool:
    """Whether this is a Ray worker: its job has the hook already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == 1
