"""What was tried before, one small file for each trial, so that no trial is run twice.

A search that was killed goes on from here: whatever it had learned is on the disk, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rolltape.bisecting.trial import Trial

LARGEST = 2**20
"""Bytes of a result: the end of what a command printed is the most of it."""


def default_cache(environ: Mapping[str, str]) -> Path:
    """Where results and working trees are kept if nobody says otherwise."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "rolltape", "bisect")


def key_of(*parts: Sequence[str]) -> str:
    """A name for all that a result depends on.

    >>> key_of(["a", "b"], ["c"]) == key_of(["a"], ["b", "c"])
    False
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class TrialCache:
    """The results below a folder, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "results"

    def get(self, key: str, timeout: float | None) -> Trial | None:
        """What came out of a trial; None where it was never run, or was ended too early to tell."""
        try:
            trial = Trial.from_json(json.loads(_read(self.folder / f"{key}.json")))
            early = trial.limit is not None and (timeout is None or timeout > trial.limit)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not there, or nothing of ours
            return None
        return None if early else trial

    def put(self, key: str, trial: Trial) -> None:
        """Keep a result: all of it, or nothing."""
        if not trial.lasting:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(trial.to_json(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.folder / f"{key}.json")
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise


def _read(path: Path) -> bytes:
    """A small regular file; an OSError for anything else: a pipe would be waited for, a device never ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise OSError(f"{path} is no result of a trial")
        return file.read(LARGEST)
