"""Reads the next recording ahead while the trainer works on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rolltape.key import Key
from rolltape.storage import Storage


class Sized(Protocol):
    """Something read, and the memory it takes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True, slots=True)
class _Ahead(Generic[T]):
    key: Key
    revision: str
    """Of the file when it was read."""
    future: Future[T | None]


class Prefetch(Generic[T]):
    """Holds at most one decoded recording per stage, within a number of bytes, and hands each out once.

    ``read`` is given the memory there is; a recording that needs more it returns None for, and such a one
    is read when it is asked for, by then out of the page cache.
    """

    def __init__(self, storage: Storage, read: Callable[[Key, int], T | None], limit: int) -> None:
        self._storage = storage
        self._read = read
        self._limit = limit
        self._pool = ThreadPoolExecutor(1, "rolltape-prefetch")
        self._ahead: dict[tuple[str, str], _Ahead[T]] = {}
        self._lock = threading.Lock()

    def start(self, key: Key) -> None:
        """Begin to read a recording that will probably be asked for next."""
        found = self._storage.stat(key.path)
        if found is None:
            return
        with self._lock:
            before = self._ahead.pop((key.split, key.stage), None)
            if before is not None:
                before.future.cancel()
            future = self._pool.submit(self._read_ahead, key)
            self._ahead[key.split, key.stage] = _Ahead(key, found.revision, future)

    def take(self, key: Key) -> T | None:
        """The recording, if it was read ahead and not replaced meanwhile; raises what reading it raised."""
        with self._lock:
            ahead = self._ahead.pop((key.split, key.stage), None)
        if ahead is None:
            return None
        if ahead.key != key:
            ahead.future.cancel()
            return None
        found = self._storage.stat(key.path)
        if found is None or found.revision != ahead.revision:
            return None
        return ahead.future.result()

    def close(self) -> None:
        """Stop reading ahead and let go of what was read."""
        with self._lock:
            self._ahead.clear()
        self._pool.shutdown(cancel_futures=True)

    def _read_ahead(self, key: Key) -> T | None:
        with self._lock:
            done = [a.future for a in self._ahead.values() if a.future.done() and not a.future.cancelled()]
        held = sum(read.nbytes for f in done if f.exception() is None and (read := f.result()) is not None)
        return self._read(key, max(self._limit - held, 0))
