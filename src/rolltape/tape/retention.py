"""Keeps the newest steps of each stage and drops the others, as ``max_keep`` and ``pin_steps`` say.

Newest is what was written last; of the steps that were there before, the highest. So a run that starts over
at step 0 keeps what it records. A folder is listed once, at its first write.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from rolltape.key import Key
from rolltape.settings import Settings
from rolltape.storage import Storage

_Steps: TypeAlias = "OrderedDict[int, set[int | str]]"
"""Steps that may be dropped, oldest first, and the calls of each."""


class Retention:
    """Drops old recordings of this process's shard, with their inputs."""

    def __init__(self, storage: Storage, settings: Settings, dropped: Callable[[Key], None]) -> None:
        self._storage = storage
        self._limit = settings.max_keep
        self._pinned = settings.pin_steps
        self._dropped = dropped
        self._kept: dict[tuple[str, str], _Steps] = {}
        self._lock = threading.Lock()

    def wrote(self, key: Key) -> int:
        """Make room after a recording was written; returns how many steps had to go."""
        if self._limit is None or key.step in self._pinned:
            return 0
        with self._lock:
            steps = self._kept.get((key.split, key.stage))
            if steps is None:
                steps = self._kept[key.split, key.stage] = self._list(key)
            steps.setdefault(key.step, set()).add(key.call)
            steps.move_to_end(key.step)
            before = len(steps)
            while len(steps) > self._limit:
                oldest = next(iter(steps))
                self._drop(key, oldest, steps[oldest])
                del steps[oldest]
            return before - len(steps)

    def _list(self, like: Key) -> _Steps:
        found: dict[int, set[int | str]] = {}
        for key in filter(None, map(Key.parse, self._storage.names(f"{like.split}/{like.stage}/"))):
            if (key.rank, key.world_size) == (like.rank, like.world_size) and key.step not in self._pinned:
                found.setdefault(key.step, set()).add(key.call)
        return OrderedDict(sorted(found.items()))

    def _drop(self, like: Key, step: int, calls: set[int | str]) -> None:
        # Call 0 first: without it the step is missing, and never a step that lacks some of its calls.
        for call in sorted(calls, key=lambda call: (isinstance(call, str), call)):
            key = replace(like, step=step, call=call)
            if key.is_shard:  # the commit goes first: a step that lacks shards is not complete
                self._storage.delete(key.commit)
            self._storage.delete(key.path)
            self._storage.delete(replace(key, inputs=True).path)
            self._dropped(key)
