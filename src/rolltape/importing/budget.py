"""How much a dump may grow when it is read: small files that unfold into huge data are refused."""

from __future__ import annotations

from rolltape.importing.errors import refused

SLACK = 2**30
GROWTH = 256
"""Values shared between samples (``n`` responses to one prompt) are one in the dump and ``n`` on the tape."""


class Budget:
    """What one file may become, in bytes."""

    def __init__(self, size: int, where: str) -> None:
        self.limit = SLACK + GROWTH * size
        self.used = 0
        self.where = where

    def spend(self, nbytes: int) -> None:
        """Account for data; raises when it is out of proportion to the file."""
        self.used += nbytes
        if self.used > self.limit:
            raise refused(f"memory out of proportion (over {self.limit:,} bytes)", self.where)
