"""Writes recordings on a thread of its own, so that training does not wait for the disk.

What waits is bounded in bytes: a trainer that records faster than the disk writes is slowed down, never
run out of memory. The thread lives only while there is something to write, and it is not a daemon: a program
that ends without closing its tape, or a worker process that just returns, waits for it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from rolltape.errors import TapeClosedError


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be written."""

    name: str
    """What it writes; for waiting and for messages."""
    run: Callable[[], None]
    nbytes: int
    """What it holds in memory until then."""


class Writer:
    """Runs jobs in the order they were given: at once, or on a background thread."""

    def __init__(
        self, *, background: bool, max_pending_bytes: int, fail: Callable[[str, BaseException], None]
    ) -> None:
        self._background = background
        self._limit = max_pending_bytes
        self._fail = fail
        self._jobs: deque[Job] = deque()
        """What is not finished; the first one may be running."""
        self._names: Counter[str] = Counter()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job; waits while too much is pending. One that is larger than the limit goes alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(job))
            if self._closed:
                raise TapeClosedError(f"{job.name} came after the tape was closed and is not recorded")
            if self._background:
                self._jobs.append(job)
                self._names[job.name] += 1
                self._bytes += job.nbytes
                if self._thread is None:
                    self._thread = self._start()
        if not self._background:
            self._run(job)

    def waits(self, job: Job) -> bool:
        """Whether submitting this job would keep the caller waiting for the disk."""
        with self._changed:
            return not (self._background and self._has_room(job))

    def pending(self) -> frozenset[str]:
        """The names of the jobs that are not finished."""
        with self._changed:
            return frozenset(self._names)

    def is_pending(self, name: str) -> bool:
        """Whether a job of this name is not finished."""
        return name in self._names

    def wait(self, name: str | None = None) -> None:
        """Wait until the jobs of this name, or all jobs, are finished."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._names if name else not self._jobs)

    def close(self) -> None:
        """Take no more jobs, and finish those that are pending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.wait()

    def _has_room(self, job: Job) -> bool:
        return not self._jobs or self._bytes + job.nbytes <= self._limit

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._work, name="rolltape-writer", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads: do without
            while self._jobs:
                self._run(self._jobs[0])
                self._finish(self._jobs[0])
            return None
        return thread

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs[0]
            self._run(job)
            with self._changed:
                self._finish(job)
            del job  # it may hold the last copy of a large batch

    def _finish(self, job: Job) -> None:
        self._jobs.popleft()
        self._bytes -= job.nbytes
        self._names[job.name] -= 1
        if not self._names[job.name]:
            del self._names[job.name]
        self._changed.notify_all()

    def _run(self, job: Job) -> None:
        try:
            job.run()
        except BaseException as error:
            if not (self._background or isinstance(error, Exception)):
                raise  # Ctrl-C on the caller's own thread
            self._fail(job.name, error)  # on ours, whatever it was: the jobs behind it have to be written
