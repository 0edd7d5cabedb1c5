"""Reads recordings before they are asked for: as far ahead as it takes, within a number of bytes.

One step ahead is enough for a disk. Where the trainer had to wait for a recording that was being read, as it
does where every read takes long and several can be under way at once, the next ones are begun earlier. What
comes next is found out in the background too: that takes a look or two at the tape.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Generic, Protocol, TypeAlias, TypeVar

from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.storage import Stat, Storage
from rolltape.tape.turns import short_turns

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

Fits: TypeAlias = Callable[[int], bool]
"""Whether there is room for so many bytes; where there is, they are kept free for whoever asked."""


class Prefetch(Generic[T]):
    """Holds decoded recordings, within a number of bytes, and hands each out once.

    ``read`` asks whether a recording fits before it is decoded, and returns None for one that does not; such
    a one is read when it is asked for, by then out of the page cache.
    """

    def __init__(self, storage: Storage, read: Callable[[Key, Fits], T | None], limit: int) -> None:
        self._depth = 1
        """How many recordings of a stage are worth reading ahead."""
        self._storage = storage
        self._read = read
        self._limit = limit
        self._planning = ThreadPoolExecutor(1, "rolltape-prefetch-what")
        self._reading = ThreadPoolExecutor(DEEPEST, "rolltape-prefetch")
        self._plans: dict[tuple[str, str], Future[None]] = {}
        """Of each stage: whether it is known what comes next."""
        self._ahead: dict[Key, Future[T | None]] = {}
        self._sizes: dict[Key, int] = {}
        """The bytes of those among them that are decoded, or being decoded."""
        self._closed = False
        self._lock = threading.Lock()

    def start(self, after: Key, following: Iterator[Key]) -> None:
        """Begin to read the recordings of a stage that will probably be asked for after this one."""
        stage = after.split, after.stage
        with self._lock:
            if self._closed:
                return
            before = self._plans.get(stage)
            self._plans[stage] = self._planning.submit(self._plan, stage, following)
        if before is not None:
            before.cancel()

    def holds(self, key: Key) -> bool:
        """Whether it is read, or being read."""
        return key in self._ahead

    def take(self, key: Key, seen: Stat | None) -> T | None:
        """The recording, if it was read ahead and not replaced since; ``seen`` is its file now, if known."""
        stage = key.split, key.stage
        started = time.perf_counter()
        try:
            with self._lock:
                plan = self._plans.pop(stage, None)
            if plan is not None:
                plan.result()
            with self._lock:
                ahead = self._ahead.pop(key, None)
                self._sizes.pop(key, None)
            if ahead is None:
                self._keep(stage, [])  # the guess was wrong
                return None
            found = seen or self._storage.stat(key.path)
            read = ahead.result()
        except RolltapeError:  # it came, or was replaced, since then: whoever asks reads it again
            return None
        except CancelledError:  # another thread plays the same stage, or has closed the tape
            return None
        if read is not None and time.perf_counter() - started > WORTH_WAITING:
            self._depth = min(self._depth + 1, DEEPEST)
        return read if read is None or (found and found.revision == read.revision) else None

    def close(self) -> None:
        """Stop reading ahead and let go of what was read."""
        with self._lock:
            self._closed = True
        self._planning.shutdown(cancel_futures=True)
        self._reading.shutdown(cancel_futures=True)
        with self._lock:
            self._ahead.clear()
            self._sizes.clear()

    def _plan(self, stage: tuple[str, str], following: Iterator[Key]) -> None:
        wanted: list[Key] = []
        for key in islice(following, self._depth):
            wanted.append(key)
            with self._lock:
                if self._closed:
                    return
                if key not in self._ahead:
                    self._ahead[key] = self._reading.submit(self._read_ahead, key)
        self._keep(stage, wanted)

    def _keep(self, stage: tuple[str, str], wanted: list[Key]) -> None:
        """Let go of what nobody will ask for."""
        with self._lock:
            for key in [key for key in self._ahead if (key.split, key.stage) == stage and key not in wanted]:
                self._ahead.pop(key).cancel()
                self._sizes.pop(key, None)

    def _read_ahead(self, key: Key) -> T | None:
        size = 0
        try:
            with short_turns():
                found = self._read(key, partial(self._fits, key))
            size = 0 if found is None else found.nbytes
            return found
        finally:
            with self._lock:
                self._hold(key, size)

    def _fits(self, key: Key, nbytes: int) -> bool:
        with self._lock:
            held = sum(size for other, size in self._sizes.items() if other != key)
            fits = held + nbytes <= self._limit
            if fits:
                self._hold(key, nbytes)
            return fits

    def _hold(self, key: Key, nbytes: int) -> None:
        if key in self._ahead:  # else somebody waits for it, or nobody wants it any more
            self._sizes[key] = nbytes
