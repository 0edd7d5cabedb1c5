"""Finds pickled dumps of verl's own skip and reports them; never opens them."""

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
    """Report pickled dumps in the directory of the tape, and how to import them."""
    if Path(folder).is_file():
        raise NotATapeError(
            "a tape must be a directory, but this is a file, probably a pickled dump of RolloutSkip V1",
            where=folder,
            hint=f"mv {folder} {folder}.dump && rolltape import {folder}.dump --to {folder}",
        )
    found = find_dumps(folder)
    if found:
        log.warning(
            "%s has pickled dumps of verl (%d steps, %s to %s), which cannot be replayed directly; "
            "import them with: rolltape import %s --to %s",
            folder, len(found), found[0].name, found[-1].name, folder, folder,
        )  # fmt: skip


def notice_old_dump(file: str, tape: str) -> None:
    """Report the one pickled dump that RolloutSkip V1 left beside the tape, and how to import it."""
    path = Path(file).expanduser()
    if path.is_file():
        log.warning(
            "%s is a pickled dump of verl's RolloutSkip, which cannot be replayed directly; "
            "import it with: rolltape import %s --to %s",
            path, path, tape,
        )  # fmt: skip
