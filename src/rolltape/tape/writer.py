"""Writes recordings on a thread of its own, so that training does not wait for the disk.

What waits is bounded in bytes: a trainer that records faster than the disk writes is slowed down, never
run out of memory. Errors are kept until somebody can be told.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be written."""

    name: str
    """What it writes; for waiting and for messages."""
    run: Callable[[], None]
    nbytes: int


class Writer:
    """Runs jobs in the order they were given: at once, or on a background thread."""

    def __init__(
        self, *, background: bool, max_pending_bytes: int, fail: Callable[[str, Exception], None]
    ) -> None:
        self._background = background
        self._limit = max_pending_bytes
        self._fail = fail
        self._jobs: deque[Job] = deque()
        self._names: dict[str, int] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._closing = False

    def submit(self, job: Job) -> None:
        """Queue a job; waits while too much is pending. One that is larger than the limit goes alone."""
        if not self._background:
            self._run(job)
            return
        self._forget_parent()
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._bytes + job.nbytes <= self._limit)
            self._jobs.append(job)
            self._names[job.name] = self._names.get(job.name, 0) + 1
            self._bytes += job.nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rolltape-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def pending(self, name: str) -> bool:
        """Whether a job of this name has not been finished yet."""
        return name in self._names

    def wait(self, name: str | None = None) -> None:
        """Wait until the job of this name, or every job, is finished."""
        self._forget_parent()
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs if name is None else name not in self._names)

    def close(self) -> None:
        """Finish what is pending and end the thread."""
        self.wait()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job = self._jobs[0]
            self._run(job)
            with self._changed:
                self._jobs.popleft()
                self._bytes -= job.nbytes
                self._names[job.name] -= 1
                if not self._names[job.name]:
                    del self._names[job.name]
                del job  # it may hold the last copy of a large batch
                self._changed.notify_all()

    def _run(self, job: Job) -> None:
        try:
            job.run()
        except Exception as error:
            self._fail(job.name, error)

    def _forget_parent(self) -> None:
        """After a fork the thread and its jobs are the parent's: start afresh."""
        if self._owner == os.getpid():
            return
        self._owner, self._thread, self._bytes = os.getpid(), None, 0
        self._jobs, self._names, self._changed = deque(), {}, threading.Condition()
