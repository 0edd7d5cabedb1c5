"""The error of a search that cannot begin, or cannot go on."""

from __future__ import annotations

from rolltape.errors import RolltapeError


class BisectError(RolltapeError, RuntimeError):
    """A search that cannot begin or go on: an end that is not what it should be, or a refusal of git."""
