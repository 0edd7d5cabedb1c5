"""Puts our rollout function into the arguments of slime and miles; for ``rolltape run``.

Both parse their arguments once, in the driver, and pass them to the workers that generate. What the run had
as its rollout function is kept in them, as the one to record.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rolltape.errors import ConfigError
from rolltape.integrations.import_hook import ImportHook
from rolltape.integrations.slime import rollout_function
from rolltape.policy import Mode
from rolltape.releases import check_needs, has_module, unsupported
from rolltape.settings import resolve

log = logging.getLogger("rolltape")

FUNCTION = "rolltape.integrations.slime.generate_rollout"
CLASS = "rolltape.integrations.miles.RolloutFn"
LEGACY = "MILES_USE_LEGACY_ROLLOUT_V1"
ROLLOUT, EVALUATION = "rollout_function_path", "eval_function_path"
PATHS = {
    ROLLOUT: ("rolltape_rollout_function", rollout_function.FUNCTION),
    EVALUATION: ("rolltape_eval_function", rollout_function.EVAL_FUNCTION),
}
"""The arguments that name a rollout function; where it is kept, and the variable that may name another."""


def hook(package: ModuleType) -> None:
    """Change the arguments that a package parses, now or when it has been imported."""
    name = package.__name__
    if not has_module(f"{name}.utils.arguments"):
        raise unsupported(name, f"has no {name}.utils.arguments", package.__file__, by_hand(name))
    ImportHook({f"{name}.utils.arguments": functools.partial(_wrap, name)}).start()


def by_hand(package: str) -> str:
    """What to do where the arguments cannot be changed."""
    ours = CLASS if package == "miles" else FUNCTION
    return f"upgrade Rolltape, or start with --rollout-function-path {ours}"


def _wrap(package: str, module: ModuleType) -> None:
    check_needs(package, module, ("parse_args(...)",), by_hand(package))
    parse: Callable[..., Any] = module.parse_args

    @functools.wraps(parse)
    def parse_args(*args: Any, **named: Any) -> Any:
        found = parse(*args, **named)
        if resolve({}, os.environ).mode is not Mode.OFF:
            put_into(found, package)
        return found

    setattr(module, "parse_args", parse_args)  # noqa: B010


def put_into(args: Any, package: str) -> None:
    """Name our rollout function in parsed arguments, and keep the one that they named."""
    if missing := [name for name in PATHS if not getattr(args, name, None)]:
        raise unsupported(package, f"parses no {', '.join(missing)}", hint=by_hand(package))
    if getattr(args, "fully_async", False):
        raise ConfigError(
            f"{package} chooses its rollout function itself with --fully-async, so it cannot be recorded",
            hint="leave --fully-async out, or run without rolltape run",
        )
    ours = CLASS if package == "miles" and not _legacy() else FUNCTION
    theirs = {name: getattr(args, name) for name in PATHS}
    backend = _is_backend(args)
    for name, (kept, variable) in PATHS.items():
        if theirs[name].startswith("rolltape."):
            continue
        if name == EVALUATION and backend:
            log.warning("rolltape: %s is not recorded: it evaluates checkpoints", theirs[name])
            continue
        shared = name == EVALUATION and theirs[name] == theirs[ROLLOUT]
        if not (shared or getattr(args, kept, None) or os.environ.get(variable)):
            setattr(args, kept, theirs[name])
        setattr(args, name, ours)
    log.info("rolltape: %s generates with %s", package, ours)


def _is_backend(args: Any) -> bool:
    """Whether miles evaluates checkpoints, by a function that it knows by its class."""
    shares = args.eval_function_path == args.rollout_function_path
    return bool(getattr(args, "eval_uses_snapshots", False)) and not shares


def _legacy() -> bool:
    return os.environ.get(LEGACY, "").strip() not in ("", "0")
