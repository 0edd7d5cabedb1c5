"""Optional packages, imported where they are needed, and the error for one that is absent."""

from __future__ import annotations

import importlib
from typing import Any

from rolltape.errors import MissingDependencyError


def library(name: str, *, extra: str, for_what: str) -> Any:
    """Import an optional package; ``extra`` is the one of Rolltape's that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != top:  # it is there, and lacks something of its own
            raise
        raise MissingDependencyError(
            f"{for_what} needs {top}, which is not installed here",
            hint=f'pip install "rolltape[{extra}]"',
        ) from None
