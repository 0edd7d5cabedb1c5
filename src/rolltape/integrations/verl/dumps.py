"""Pickled dumps of verl's own skip: noticed and named, never opened."""

from __future__ import annotations

import logging
from pathlib import Path

from rolltape.errors import NotATapeError

log = logging.getLogger("rolltape")

PATTERNS = ("*/gen_batch.dp", "*/tq_batch.pt", "*/*/tq_batch.pt")


def find_dumps(folder: str) -> list[Path]:
    """The step folders that hold a pickled dump of verl."""
    root = Path(folder)
    if not root.is_dir():
        return []
    found = {path.relative_to(root).parts[0] for pattern in PATTERNS for path in root.glob(pattern)}
    return [root / name for name in sorted(found, key=lambda name: (len(name), name))]


def notice_dumps(folder: str) -> None:
    """Say that dumps lie where the tape is, and how to bring them along."""
    if Path(folder).is_file():
        raise NotATapeError(
            "where the tape should be lies a file, probably a pickled dump of RolloutSkip V1",
            where=folder,
            hint=f"mv {folder} {folder}.dump && rolltape import {folder}.dump --to {folder}",
        )
    found = find_dumps(folder)
    if found:
        log.warning(
            "%s holds pickled dumps of verl (%d steps, %s to %s), which are not replayed as they are; "
            "bring them along with: rolltape import %s --to %s",
            folder, len(found), found[0].name, found[-1].name, folder, folder,
        )  # fmt: skip
