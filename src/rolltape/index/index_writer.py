"""Takes recordings into the index while a run records them: rows are kept, and stored from time to time.

What a killed process had not stored is read from its recordings by whoever opens the index next.
"""

from __future__ import annotations

import threading

from rolltape.index.index_building import Pending, merge_parts
from rolltape.index.index_rows import Known
from rolltape.index.sample_index import SampleIndex, indexed
from rolltape.key import Key
from rolltape.reader.run import open as open_run
from rolltape.storage import Stat, Storage

MOST_ROWS = 2**17
"""Rows that are kept until they are stored."""
MOST_PARTS = 16
"""Parts of this process from which they are merged into one."""
MOMENT = 2.0
"""Seconds that a merge waits for parts on their way to a store; else it is left for another time."""


class IndexWriter:
    """The part of the index that one process writes. Others write theirs; none touches another's."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pending: dict[tuple[str, str], Pending] = {}
        self._parts: dict[tuple[str, str], list[str]] = {}
        self._lock = threading.Lock()

    def wrote(self, key: Key, known: Known | None = None) -> None:
        """A recording was written; ``known`` is what need not be read from it."""
        found = indexed(self._storage, Stat(key.path, 0, ""), known=known)
        if found is None:
            return
        with self._lock:
            place = key.split, key.stage
            pending = self._pending.setdefault(place, Pending(self._storage, *place))
            pending.add(*found)
            if pending.rows >= MOST_ROWS:
                self._store(place)

    def store(self) -> None:
        """Store what is kept."""
        with self._lock:
            for place in self._pending:
                self._store(place)

    def _store(self, place: tuple[str, str]) -> None:
        name = self._pending[place].publish()
        if name is None:
            return
        mine = self._parts.setdefault(place, [])
        mine.append(name)
        # A store that is away, or slow, holds nobody up: the parts are as good as what is made of them.
        if len(mine) > MOST_PARTS and not self._storage.settle(MOMENT, patient=False).names:
            index = SampleIndex(open_run(self._storage.location), place[1], place[0], read=False)
            self._parts[place] = merge_parts(index, mine)
