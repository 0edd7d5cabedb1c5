"""What is on a tape: which recordings exist, listed no more often than needed.

Asking for one step costs one look at its file, however many there are; the folder is listed only when a
substitute or a summary is asked for, or when old steps are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.writer import Writer


class RecordedSteps(Collection[int]):
    """The recorded steps of one call of one stage, as ``policy.decide`` wants to see them."""

    def __init__(self, storage: Storage, writer: Writer, key: Key) -> None:
        self._storage = storage
        self._writer = writer
        self._key = key

    def __contains__(self, step: object) -> bool:
        path = replace(self._key, step=step).path
        return self._writer.pending(path) or self._storage.exists(path)

    def __iter__(self) -> Iterator[int]:
        self._writer.wait()
        like = replace(self._key, step=0)
        found = (Key.parse(name) for name in self._storage.names(f"{like.split}/{like.stage}/"))
        return iter(sorted(key.step for key in found if key is not None and replace(key, step=0) == like))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def recordings(storage: Storage, split: str | None = None, stage: str | None = None) -> Iterator[Key]:
    """Every recording on a tape, in the order of split, stage, step and call; inputs are not listed."""
    for split_folder in sorted(storage.folders("")):
        if split not in (None, split_folder.rstrip("/")):
            continue
        for folder in sorted(storage.folders(split_folder)):
            if stage not in (None, folder.rstrip("/").rsplit("/", 1)[-1]):
                continue
            keys = [key for name in storage.names(folder) if (key := Key.parse(name)) and not key.inputs]
            yield from sorted(keys, key=_order)


def _order(key: Key) -> tuple[int, bool, int, str, int]:
    named = isinstance(key.call, str)
    return key.step, named, key.call if isinstance(key.call, int) else 0, str(key.call), key.rank
