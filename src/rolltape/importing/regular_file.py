"""Opens regular files only: a pipe or a device in the place of a dump must not hold us up."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rolltape.errors import CorruptFileError


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file; ``CorruptFileError`` for anything else, and for more than ``most`` bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptFileError("this is no regular file", where=path)
        if most is not None and found.st_size > most:
            raise CorruptFileError(f"it has {found.st_size:,} bytes, more than {most:,}", where=path)
        return file.read()
