"""Takes the entries of a spool to the store, in the background, several at once.

The threads live while there is something to do. They are daemons: what they have not done when the process
ends is in the spool, and the next process does it. While the store does not answer they ask again, ever more
seldom, for as long as it takes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rolltape.errors import RolltapeError, StepExistsError, StorageError, StoreUnreachableError
from rolltape.storage.objects import ObjectStorage
from rolltape.storage.spool import Entry, Session, ready
from rolltape.storage.store_client import DEADLINE, seconds
from rolltape.storage.store_lines import Line

log = logging.getLogger("rolltape")

AT_ONCE = 4
TRYING = 10.0
"""Seconds for which one request is tried before the entry is put back."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_LOOK_FOR_LINES = 64
"""Lines after which it is looked whether there are enough to fold."""


@dataclass(frozen=True, slots=True)
class Task:
    """An entry, and the session that keeps it."""

    entry: Entry
    session: Session
    adopted: bool
    """Whether a process that is gone may have done it already."""


class Uploads:
    """What waits, and the threads that do it. Belongs to one process."""

    def __init__(self, remote: ObjectStorage, most_bytes: int) -> None:
        self.pid = os.getpid()
        self._remote = remote.trying_for(min(TRYING, seconds(DEADLINE)))
        self._most = most_bytes
        self._tasks: dict[int, Task] = {}
        """By number, in order."""
        self._names: dict[str, list[Task]] = {}
        self._busy: dict[str, Task] = {}
        """What is being done, by the group of its entry."""
        self._refused: set[str] = set()
        """Groups whose first entry the store refused: after all others, it is tried again."""
        self._bytes = 0
        self._threads = 0
        self._changed = threading.Condition()
        self._away_since: float | None = None
        self._pause = _FIRST_PAUSE
        self._resume_at = 0.0
        """When to ask a store again that did not answer."""
        self._failures: list[tuple[str, RolltapeError]] = []
        self._told: set[str] = set()
        self._lines: dict[str, int] = {}

    # -- taking ------------------------------------------------------------------------------------

    def make_room(self, size: int, within: float, where: str) -> None:
        """Wait until so many bytes more may wait; raises StorageError when it takes too long."""
        with self._changed:
            if self._has_room(size):
                return
            log.warning(
                "the spool for %s is full (%d bytes wait for the store): recording waits for it",
                where, self._bytes,
            )  # fmt: skip
            if not self._changed.wait_for(lambda: self._has_room(size), within):
                raise StorageError(
                    f"the spool is full: {self._bytes} bytes wait for the store, {within:.0f} seconds long",
                    where=where,
                    causes=["the store or the network is away, or slower than the recording"],
                    hint="raise max_spool_bytes (ROLLTAPE_MAX_SPOOL_BYTES), or set on_error=warn",
                )

    def _has_room(self, size: int) -> bool:
        return not self._tasks or self._bytes + size <= self._most

    def add(self, task: Task) -> None:
        """Have an entry done, in place of what it makes superfluous."""
        with self._changed:
            for old in self._superseded(task):
                self._forget(old)
            self._tasks[task.entry.number] = task
            if task.adopted:
                self._tasks = dict(sorted(self._tasks.items()))
            self._names.setdefault(task.entry.name, []).append(task)
            self._bytes += task.entry.size
            if self._threads < AT_ONCE and self._threads < len(self._tasks):
                self._threads += 1
                try:
                    threading.Thread(target=self._work, name="rolltape-uploads", daemon=True).start()
                except RuntimeError:  # the interpreter is ending: the next process does it
                    self._threads -= 1
            self._changed.notify_all()

    def _superseded(self, task: Task) -> list[Task]:
        """What of a file need not be published, since it is to be replaced in any case. The lock is held.

        Not what makes a file: only the store says whether its name was free.
        """
        if task.adopted or not _replaces(task):
            return []
        waiting = [old for old in self._names.get(task.entry.name, []) if old not in self._busy.values()]
        return [old for old in waiting[-1:] if _replaces(old)]

    # -- asking ------------------------------------------------------------------------------------

    @property
    def away(self) -> bool:
        """Whether the store did not answer the last time it was asked."""
        return self._away_since is not None

    def says_nothing(self) -> None:
        """Note that the store did not answer."""
        with self._changed:
            self._note_away()

    def _note_away(self) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("%s does not answer: recordings wait on this machine", self._remote.location)

    def last(self, name: str) -> Task | None:
        """What was wanted last of a file, if it is not done."""
        with self._changed:
            tasks = self._names.get(name)
            return tasks[-1] if tasks else None

    def names(self) -> dict[str, Task]:
        """What was wanted last of every file."""
        with self._changed:
            return {name: tasks[-1] for name, tasks in self._names.items()}

    def numbers(self) -> list[int]:
        """The numbers of the entries that are not done."""
        with self._changed:
            return list(self._tasks)

    def left(self) -> tuple[list[str], int]:
        """The names of what is not done, and its bytes."""
        with self._changed:
            return list(self._names), self._bytes

    def take_failures(self) -> list[tuple[str, RolltapeError]]:
        with self._changed:
            found, self._failures = self._failures, []
            return found

    def wait(self, within: float | None, name: str | None = None, *, patient: bool = True) -> bool:
        """Wait until this file, or everything, is done; False if it takes too long.

        Without patience, not while the store does not answer.
        """

        def done() -> bool:
            waiting = self._tasks if name is None else self._names.get(name)
            return not waiting or (self.away and not patient)

        with self._changed:
            if patient:
                self._pause, self._resume_at = _FIRST_PAUSE, 0.0
                self._changed.notify_all()
            return self._changed.wait_for(done, within)

    # -- doing -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (task := self._next()) is None:
                    if not self._tasks:
                        self._threads -= 1
                        return
                    pause = self._resume_at - time.monotonic()
                    self._changed.wait(pause if pause > 0 else None)
                self._busy[task.entry.group] = task
            error = _failed(lambda task=task: self._do(task))  # type: ignore[misc]
            with self._changed:
                self._busy.pop(task.entry.group, None)
                self._after(task, error)
                self._changed.notify_all()

    def _next(self) -> Task | None:
        """What may be done now; while the store does not answer, one thread at a time asks."""
        if time.monotonic() < self._resume_at or (self.away and self._busy):
            return None
        entries = [task.entry for task in self._tasks.values()]
        entry = ready(entries, self._busy.keys() | self._refused)
        if entry is None and self._refused:
            self._refused.clear()
            entry = ready(entries, self._busy.keys())
        return None if entry is None else self._tasks[entry.number]

    def _do(self, task: Task) -> None:
        entry, remote = task.entry, self._remote
        if entry.do == "delete":
            remote.delete(entry.name)
        elif entry.do == "line":
            key = Line.parse(entry.attempt)
            if key is None:
                raise StorageError("an entry of the spool names no line", where=task.session.folder)
            remote.lines.put(entry.name, key, bytes(task.session.read(entry)))
            self._fold(entry.name)
        elif not (task.adopted and entry.replace and remote.attempt_of(entry.name) == entry.attempt):
            data = task.session.read(entry)
            remote.publish(entry.name, [data], replace=entry.replace, attempt=entry.attempt)

    def _fold(self, name: str) -> None:
        left = self._lines.get(name, _LOOK_FOR_LINES) - 1
        if left <= 0:
            try:
                left = self._remote.lines.fold_if_many(name)
            except RolltapeError as error:  # the lines are there, and whoever folds next has more to do
                log.warning("the lines of %s could not be folded: %s", name, error)
                left = _LOOK_FOR_LINES
        self._lines[name] = left

    def _after(self, task: Task, error: RolltapeError | None) -> None:
        """What follows from how it went. The lock is held."""
        entry = task.entry
        if error is None or isinstance(error, StepExistsError):
            if error is not None:
                self._failures.append((entry.name, error))
            elif self._away_since is not None:
                log.warning(
                    "%s answers again after %.0f seconds; %d files wait for it",
                    self._remote.location, time.monotonic() - self._away_since, len(self._tasks) - 1,
                )  # fmt: skip
            self._away_since, self._pause, self._resume_at = None, _FIRST_PAUSE, 0.0
            self._forget(task)
            return
        if isinstance(error, StoreUnreachableError):
            self._note_away()
        else:  # it is kept, and tried again: credentials may come back
            self._refused.add(entry.group)
            if error.what not in self._told:
                self._told.add(error.what)
                self._failures.append((entry.name, error))
        self._resume_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _forget(self, task: Task) -> None:
        try:
            task.session.remove(task.entry)
        except RolltapeError as error:  # it would be done again, which is the same as once
            log.warning("a file that is in the store cannot be removed from the spool: %s", error)
        self._tasks.pop(task.entry.number, None)
        tasks = self._names[task.entry.name]
        tasks.remove(task)
        if not tasks:
            del self._names[task.entry.name]
        self._bytes -= task.entry.size
        if task.adopted and not any(other.session is task.session for other in self._tasks.values()):
            task.session.end()


def _replaces(task: Task) -> bool:
    return task.entry.do == "publish" and task.entry.replace


def _failed(act: Callable[[], None]) -> RolltapeError | None:
    try:
        act()
    except RolltapeError as error:
        return error
    except Exception as error:
        return StorageError(f"could not be taken to the store: {type(error).__name__}")
    return None
