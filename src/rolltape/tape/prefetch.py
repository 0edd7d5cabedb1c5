"""Reads recordings before they are asked for: as far ahead as it takes, within a number of bytes.

One step ahead is enough for a disk. Where the trainer had to wait for a recording that was being read, as it
does where every read takes long and several can be under way at once, the next ones are begun earlier.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rolltape.key import Key
from rolltape.storage import Storage

DEEPEST = 8
"""How many recordings of a stage are read ahead at most."""
WORTH_WAITING = 0.002
"""Seconds that the trainer may wait before reading begins earlier."""


class Sized(Protocol):
    """Something read, and the memory it takes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True, slots=True)
class _Ahead(Generic[T]):
    revision: str
    """Of the file when it was read."""
    future: Future[T | None]


class Prefetch(Generic[T]):
    """Holds decoded recordings, within a number of bytes, and hands each out once.

    ``read`` is given the memory there is; a recording that needs more it returns None for, and such a one
    is read when it is asked for, by then out of the page cache.
    """

    def __init__(self, storage: Storage, read: Callable[[Key, int], T | None], limit: int) -> None:
        self.depth = 1
        """How many recordings of a stage are worth reading ahead."""
        self._storage = storage
        self._read = read
        self._limit = limit
        self._pool = ThreadPoolExecutor(DEEPEST, "rolltape-prefetch")
        self._ahead: dict[Key, _Ahead[T]] = {}
        self._lock = threading.Lock()

    def start(self, keys: Iterable[Key]) -> None:
        """Begin to read recordings of one stage that will probably be asked for, in this order."""
        wanted = list(keys)
        for key in wanted:
            if key in self._ahead:
                continue
            found = self._storage.stat(key.path)
            if found is None:
                continue
            with self._lock:
                self._ahead[key] = _Ahead(found.revision, self._pool.submit(self._read_ahead, key))
        stages = {(key.split, key.stage) for key in wanted}
        self._drop(lambda key: (key.split, key.stage) in stages and key not in wanted)

    def holds(self, key: Key) -> bool:
        """Whether it is read, or being read."""
        return key in self._ahead

    def take(self, key: Key) -> T | None:
        """The recording, if it was read ahead and not replaced meanwhile; raises what reading it raised."""
        with self._lock:
            ahead = self._ahead.pop(key, None)
        if ahead is None:
            self._drop(lambda other: (other.split, other.stage) == (key.split, key.stage))  # guessed wrong
            return None
        found = self._storage.stat(key.path)
        if found is None or found.revision != ahead.revision:
            return None
        started = time.perf_counter()
        read = ahead.future.result()
        if read is not None and time.perf_counter() - started > WORTH_WAITING:
            self.depth = min(self.depth + 1, DEEPEST)
        return read

    def close(self) -> None:
        """Stop reading ahead and let go of what was read."""
        with self._lock:
            self._ahead.clear()
        self._pool.shutdown(cancel_futures=True)

    def _drop(self, unwanted: Callable[[Key], bool]) -> None:
        with self._lock:
            for key in [key for key in self._ahead if unwanted(key)]:
                self._ahead.pop(key).future.cancel()

    def _read_ahead(self, key: Key) -> T | None:
        with self._lock:
            done = [a.future for a in self._ahead.values() if a.future.done() and not a.future.cancelled()]
        held = sum(read.nbytes for f in done if f.exception() is None and (read := f.result()) is not None)
        return self._read(key, max(self._limit - held, 0))
