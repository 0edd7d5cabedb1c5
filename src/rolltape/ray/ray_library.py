"""Ray and Ray Data, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from rolltape.errors import MissingDependencyError


def ray_library(name: str, for_what: str) -> Any:
    """Import a module of Ray; an error that says what to install where it, or what it needs, is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        raise MissingDependencyError(
            f"{for_what} needs {missing}, which is not installed",
            causes=[str(error)] if missing != "ray" else [],
            hint='pip install "rolltape[ray-data]", which brings ray[data]',
        ) from None


def connected(for_what: str) -> Any:
    """Ray, connected: to the cluster that this process uses already, else to the one that Ray finds."""
    ray = ray_library("ray", for_what)
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return ray
