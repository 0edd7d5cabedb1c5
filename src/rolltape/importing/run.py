"""Deprecated: ``import_dumps`` is in ``rolltape.importing``."""

from __future__ import annotations

import warnings
from typing import Any

from rolltape import importing


def __getattr__(name: str) -> Any:
    if name not in ("Report", "import_dumps"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from rolltape.importing", DeprecationWarning, stacklevel=2)
    return getattr(importing, name)
