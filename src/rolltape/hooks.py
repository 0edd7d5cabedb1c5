"""How what lies below reaches what lies above: by a name, under which those above register.

Nothing in here imports anything of Rolltape, and a layer that asks never names a module of a higher one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_makers: dict[str, Callable[[], Any]] = {}


def register_hook(name: str, make: Callable[[], Any]) -> None:
    """Offer something under a name; ``make`` is called each time somebody asks for it."""
    _makers[name] = make


def hook(name: str) -> Any:
    """What was offered under this name; a ``LookupError`` where nothing was."""
    return _makers[name]()
