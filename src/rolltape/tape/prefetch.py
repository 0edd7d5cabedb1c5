"""Reads recordings before they are asked for: as far ahead as it takes, within a number of bytes.

One step ahead is enough for a disk. Where the trainer had to wait for a recording that was being read, as it
does where every read takes long and several can be under way at once, the next ones are begun earlier.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.storage import Storage

DEEPEST = 8
"""How many recordings of a stage are read ahead at most."""
WORTH_WAITING = 0.002
"""Seconds that the trainer may wait before reading begins earlier."""


class Sized(Protocol):
    """Something read, the memory it takes, and the file it is of."""

    @property
    def nbytes(self) -> int: ...
    @property
    def revision(self) -> str: ...


T = TypeVar("T", bound=Sized)


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
        self._ahead: dict[Key, Future[T | None]] = {}
        self._lock = threading.Lock()

    def start(self, keys: Iterable[Key]) -> None:
        """Begin to read recordings of one stage that will probably be asked for, in this order."""
        wanted = list(keys)
        for key in wanted:
            if key not in self._ahead:
                with self._lock:
                    self._ahead[key] = self._pool.submit(self._read_ahead, key)
        stages = {(key.split, key.stage) for key in wanted}
        self._drop(lambda key: (key.split, key.stage) in stages and key not in wanted)

    def holds(self, key: Key) -> bool:
        """Whether it is read, or being read."""
        return key in self._ahead

    def take(self, key: Key) -> T | None:
        """The recording, if it was read ahead and not replaced meanwhile."""
        with self._lock:
            ahead = self._ahead.pop(key, None)
        if ahead is None:
            self._drop(lambda other: (other.split, other.stage) == (key.split, key.stage))  # guessed wrong
            return None
        found = self._storage.stat(key.path)
        started = time.perf_counter()
        try:
            read = ahead.result()
        except RolltapeError:  # it came, or was replaced, since then: whoever asks reads it again
            return None
        if read is not None and time.perf_counter() - started > WORTH_WAITING:
            self.depth = min(self.depth + 1, DEEPEST)
        return read if read is None or (found and found.revision == read.revision) else None

    def close(self) -> None:
        """Stop reading ahead and let go of what was read."""
        with self._lock:
            self._ahead.clear()
        self._pool.shutdown(cancel_futures=True)

    def _drop(self, unwanted: Callable[[Key], bool]) -> None:
        with self._lock:
            for key in [key for key in self._ahead if unwanted(key)]:
                self._ahead.pop(key).cancel()

    def _read_ahead(self, key: Key) -> T | None:
        with self._lock:
            done = [each for each in self._ahead.values() if each.done() and not each.cancelled()]
        held = sum(read.nbytes for f in done if f.exception() is None and (read := f.result()) is not None)
        return self._read(key, max(self._limit - held, 0))
