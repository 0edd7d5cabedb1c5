"""Reads the next recording ahead while the trainer works on this one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rolltape.key import Key
from rolltape.storage import Storage


class Prefetch:
    """Holds at most one decoded recording per stage, and hands each out once."""

    def __init__(self, storage: Storage, read: Callable[[Key], Any]) -> None:
        self._storage = storage
        self._read = read
        self._pool = ThreadPoolExecutor(1, "rolltape-prefetch")
        self._ahead: dict[tuple[str, str], tuple[Key, str, Future[Any]]] = {}

    def start(self, key: Key) -> None:
        """Begin to read a recording that will probably be asked for next."""
        found = self._storage.stat(key.path)
        if found is not None:
            future = self._pool.submit(self._read, key)
            self._ahead[key.split, key.stage] = key, found.revision, future

    def take(self, key: Key) -> Any:
        """The recording: the one read ahead if it is that one and was not replaced meanwhile."""
        ahead = self._ahead.pop((key.split, key.stage), None)
        if ahead is not None and ahead[0] == key:
            found = self._storage.stat(key.path)
            if found is not None and found.revision == ahead[1]:
                return ahead[2].result()
        return self._read(key)

    def close(self) -> None:
        """Stop reading ahead and let go of what was read."""
        self._ahead.clear()
        self._pool.shutdown(cancel_futures=True)
