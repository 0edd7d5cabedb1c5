"""Imports optional packages when they are needed, and raises an error that says how to install them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from rolltape.errors import MissingDependencyError
from rolltape.releases import check_needs, refuse_too_old


def library(name: str, *, extra: str, for_what: str, needs: Sequence[str] = ()) -> Any:
    """Import an optional package; ``extra`` is the extra of Rolltape that installs it.

    A release that is too old, or lacks what ``needs`` says, is refused.
    """
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != top:  # it is installed, but something it needs is not
            raise
        raise MissingDependencyError(
            f"{for_what} needs {top}, which is not installed",
            hint=f'pip install "rolltape[{extra}]"',
        ) from None
    refuse_too_old(name)
    check_needs(name, found, needs)
    return found
