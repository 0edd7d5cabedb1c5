"""Gets ``install()`` into Ray's workers, where ROLL's schedulers run.

An actor class is sent by name, so a patch in the driver would not reach it. Ray runs a function of ours in
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
from rolltape.integrations.roll.mock_config import DRIVER_CWD
from rolltape.releases import has, unsupported

HOOK = "rolltape.integrations.roll.workers.runtime_env"
SETUP = "rolltape.integrations.roll.install"
_KEY = "worker_process_setup_hook"


def reach() -> None:
    """Make every Ray worker that this process starts from now on call ``install()`` first."""
    if os.environ.get(ray_env.VARIABLE) == HOOK or _in_worker():
        return
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        raise RolltapeError(
            "Ray is already running, so it is too late to set up its workers",
            hint="call rolltape.integrations.roll.install() before ray.init(), or before ROLL's init()",
        )
    ray_env.hook_into(os.environ)  # keeps another hook, and passes ROLLTAPE_* on
    os.environ[ray_env.VARIABLE] = HOOK


def leave() -> None:
    """Remove our hook from the environment."""
    if os.environ.get(ray_env.VARIABLE) == HOOK:
        del os.environ[ray_env.VARIABLE]
        if before := os.environ.pop(ray_env.BEFORE, None):
            os.environ[ray_env.VARIABLE] = before


def runtime_env(given: dict[str, Any] | None) -> dict[str, Any]:
    """The runtime environment of a job, with our setup; the program's own setup runs after it.

    If ``RAY_RUNTIME_ENV_HOOK`` is set to this by hand, the driver does not need ``install()``.
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
    """The same for any program; used by ``rolltape run``: without ROLL, only the variables, no setup.

    A program that uses ROLL has imported it before it calls ``ray.init``.
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
    """Whether this is a Ray worker: its job already has the hook."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    if not has(context, "worker.mode"):
        raise unsupported("ray", "does not say whether this is a worker (get_runtime_context().worker.mode)")
    return bool(context.worker.mode == 1)
