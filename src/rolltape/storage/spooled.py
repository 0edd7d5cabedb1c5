"""A tape in an object store that a run writes to: what it writes waits on this machine, training does not.

Everything is in the spool, durable, when a call returns; threads take it to the store. What waits counts as
written: it is found and read from here on as if it were there. Lines are the exception: who reads a file of
lines waits for those that were appended here. The few files at the top of a tape go to the store at once,
since several processes agree by them, and so do commits: they speak of what has arrived.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.errors import RolltapeError, StorageError, StoreUnreachableError
from rolltape.storage.contract import (
    BytesLike,
    Mark,
    Pending,
    Span,
    Stat,
    Unfinished,
    check_lines,
    check_name,
    check_prefix,
    check_span,
    flat,
)
from rolltape.storage.file_errors import cut_short, missing, replaced, taken
from rolltape.storage.objects import ObjectStorage
from rolltape.storage.spool import Session, Spool
from rolltape.storage.store_client import DEADLINE
from rolltape.storage.store_client import seconds as store_seconds
from rolltape.storage.store_lines import Line, is_lines, last_time
from rolltape.storage.uploads import Task, Uploads

log = logging.getLogger("rolltape")

_AGREED = (".commit", ".void")
"""How files of ranks end by which they agree."""

ASKING = 3.0
"""Seconds for which a store that answered so far is asked whether it has a file."""


@dataclass(slots=True)
class _Lines:
    """Who appends to a file, in this process."""

    last: int
    writer: str
    count: int = 0


class SpooledStorage:
    """A ``Storage`` in front of an object store.

    With ``assume_new`` a file counts as not there while the store does not answer: a run that records does
    not wait to hear that a step is new. If it was not, the upload is refused, and that is told.
    """

    def __init__(self, remote: ObjectStorage, spool: Spool, *, assume_new: bool = False) -> None:
        self.remote = remote
        self.spool = spool
        self.location = remote.location
        self._asking = remote.trying_for(ASKING)
        self._assume_new = assume_new
        self._lock = threading.Lock()
        self._session_lock = threading.Lock()
        self._uploads: Uploads | None = None
        self._session: Session | None = None
        self._lines: dict[str, _Lines] = {}

    def __repr__(self) -> str:
        return f"SpooledStorage({self.location!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"remote": self.remote, "spool": self.spool, "assume_new": self._assume_new}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # -- writing -----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        self.remote.check_writable()
        self._started()

    def publish(self, name: str, chunks: Sequence[BytesLike], *, replace: bool) -> int:
        buffers = flat(chunks)
        size = sum(map(len, buffers))
        uploads = self._started()
        if "/" not in check_name(name) or is_lines(name) or name.endswith(_AGREED):
            self._wait_for(name)
            return self.remote.publish(name, buffers, replace=replace)
        self.remote.url.key(name)  # what no store takes must not wait for it
        last = uploads.last(name)
        if not replace and last is not None and last.entry.do == "publish":
            raise taken(self._where(name))
        self._add("publish", name, buffers, os.urandom(16).hex(), replace)
        return size

    def append(self, name: str, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("the line must not contain a newline; append adds one")
        check_lines(name)
        self._started()
        with self._lock:
            mine = self._lines.get(name)
            if mine is None:
                mine = self._lines[name] = _Lines(self._last_line(name), os.urandom(8).hex())
            mine.last = max(time.time_ns(), mine.last + 1)
            key = Line(mine.last, mine.writer, mine.count)
            self.remote.lines.line_key(name, key)  # what no store takes must not wait for it
            self._add("line", name, [line], key.key, replace=False)
            mine.count += 1

    def delete(self, name: str) -> None:
        uploads = self._started()
        if "/" not in check_name(name) or is_lines(name) or name.endswith(_AGREED):
            self._wait_for(name)
            self._lines.pop(name, None)
            self.remote.delete(name)
        elif uploads.last(name) is None and not uploads.away:
            self.remote.delete(name)
        else:
            self._add("delete", name, [], "", replace=True)

    def delete_all(self, names: Collection[str]) -> None:
        for name in names:
            self.delete(name)

    @property
    def away(self) -> bool:
        """Whether the store did not answer when it was last asked for something."""
        return self._uploads is not None and self._uploads.pid == os.getpid() and self._uploads.away

    def adopt(self) -> int:
        """Begin to take to the store what processes that ended have left behind; how many entries wait."""
        return sum(1 for _ in self._started().numbers())

    def settle(self, seconds: float | None = None, *, patient: bool = True) -> Pending:
        if self._uploads is None or self._uploads.pid != os.getpid():
            return Pending()
        self._uploads.wait(seconds, patient=patient)
        names, nbytes = self._uploads.left()
        with self._session_lock:
            if self._session is not None and not self._uploads.numbers():
                self._session.end()
                self._session = None
        return Pending(tuple(names), nbytes, self.spool.folder_of(self.location) if names else "")

    def take_failures(self) -> Sequence[tuple[str, RolltapeError]]:
        return () if self._uploads is None else self._uploads.take_failures()

    def clean(self, older_than_seconds: float) -> int:
        return self.remote.clean(older_than_seconds)

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, name: str, offset: int = 0, length: int | None = None, revision: str | None = None
    ) -> bytes | bytearray:
        check_span(offset, length)
        waiting = self._waiting(name)
        if waiting is None:
            return self.remote.read(name, offset, length, revision)
        return self._range(waiting, offset, length, revision)

    def read_ranges(self, name: str, spans: Sequence[Span], revision: str | None = None) -> list[memoryview]:
        waiting = self._waiting(name)
        if waiting is None:
            return self.remote.read_ranges(name, spans, revision)
        return [memoryview(self._range(waiting, *span, revision)) for span in spans]

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes | bytearray]:
        waiting = self._waiting(name)
        if waiting is None:
            return self.remote.read_end(name, length, whole)
        stat = _stat(waiting)
        wanted = stat.size if stat.size <= max(whole, length) else length
        return stat, self._range(waiting, stat.size - wanted, wanted, stat.revision)

    def stat(self, name: str) -> Stat | None:
        waiting = self._waiting(name, missing_is=None)
        if waiting is None:
            return self.remote.stat(name)
        return _stat(waiting) if waiting.entry.do == "publish" else None

    def exists(self, name: str) -> bool:
        waiting = self._waiting(name, missing_is=None)
        if waiting is not None:
            return waiting.entry.do == "publish"
        if not self._assume_new:
            return self.remote.exists(name)
        uploads = self._started()
        if uploads.away:
            return False
        try:
            return self._asking.exists(name)
        except StoreUnreachableError:
            uploads.says_nothing()
            return False

    def names(self, prefix: str) -> Iterator[str]:
        there = (Stat(name, 0, "") for name in self.remote.names(prefix))
        return (stat.name for stat in self._merged(prefix, there))

    def entries(self, prefix: str) -> Iterator[Stat]:
        return self._merged(prefix, self.remote.entries(prefix))

    def folders(self, prefix: str) -> Iterator[str]:
        found = set(self.remote.folders(check_prefix(prefix)))
        for name, task in self._all().items():
            inner, slash, _ = name.removeprefix(prefix).partition("/")
            if name.startswith(prefix) and slash and task.entry.do != "delete":
                found.add(f"{prefix}{inner}/")
        return iter(sorted(found))

    def everything(self) -> Iterator[Stat]:
        return self._merged(None, self.remote.everything())

    def mark(self, prefix: str) -> Mark | None:
        return None

    def unfinished(self, older_than_seconds: float) -> Unfinished:
        return self.remote.unfinished(older_than_seconds)

    def free_bytes(self) -> int | None:
        return None

    # -- parts -------------------------------------------------------------------------------------

    def _started(self) -> Uploads:
        """The uploads of this process, with what processes before it have left behind."""
        uploads = self._uploads
        if uploads is not None and uploads.pid == os.getpid():
            return uploads
        if uploads is not None:  # a forked child: all of that is its parent's
            self._lock, self._session_lock = threading.Lock(), threading.Lock()
            self._session, self._lines = None, {}
        with self._lock:
            if self._uploads is None or self._uploads.pid != os.getpid():
                uploads = Uploads(self.remote, self.spool.most_bytes)
                left: list[Task] = []
                for session in self.spool.left_behind(self.location):
                    found = session.entries()
                    left += [Task(entry, session, adopted=True) for entry in found]
                    if not found:
                        session.end()
                if left:
                    log.warning(
                        "%d files for %s, left behind by a process that ended, are taken there now",
                        len(left), self.location,
                    )  # fmt: skip
                for task in sorted(left, key=lambda task: task.entry.number):
                    uploads.add(task)
                self._uploads = uploads
                atexit.register(_at_exit, self, os.getpid())
            return self._uploads

    def _add(self, do: str, name: str, chunks: Sequence[BytesLike], attempt: str, replace: bool) -> None:
        uploads = self._started()
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        uploads.make_room(size, store_seconds(DEADLINE), self.location)
        with self._session_lock:
            if self._session is None:
                self._session = self._begun()
            entry = self._session.add(do, name, chunks, attempt=attempt, replace=replace)
            uploads.add(Task(entry, self._session, adopted=False))

    def _begun(self) -> Session:
        try:
            return self.spool.begin(self.location)
        except OSError as error:
            raise StorageError(
                f"the spool cannot be made: {error.strerror or error}",
                where=self.spool.root,
                hint="set spool (ROLLTAPE_SPOOL) to a directory on a local disk",
            ) from error

    def _waiting(self, name: str, missing_is: type[RolltapeError] | None = RolltapeError) -> Task | None:
        """What of a file waits to be published; None where the store has all there is of it."""
        check_name(name)
        uploads = self._uploads
        if uploads is None or uploads.pid != os.getpid():
            return None
        if is_lines(name) or "/" not in name:
            self._wait_for(name)
            return None
        task = uploads.last(name)
        if task is not None and task.entry.do == "delete" and missing_is is not None:
            raise missing(self._where(name))
        return task

    def _wait_for(self, name: str) -> None:
        """Wait until what was wanted of a file is done."""
        uploads = self._uploads
        if uploads is None or uploads.pid != os.getpid() or uploads.last(name) is None:
            return
        limit = store_seconds(DEADLINE)
        if not uploads.wait(limit, name):
            raise StoreUnreachableError(
                f"what was written to this file waits for the store, for {limit:.0f} seconds now",
                where=self._where(name),
                hint="read it when the store answers again; nothing is lost",
            )

    def _range(self, task: Task, offset: int, length: int | None, revision: str | None) -> bytes | bytearray:
        where = self._where(task.entry.name)
        stat = _stat(task)
        if revision is not None and stat.revision != revision:
            raise replaced(where)
        wanted = max(stat.size - offset, 0) if length is None else length
        if offset + wanted > stat.size:
            raise cut_short(where, offset + wanted, stat.size)
        try:
            return task.session.read(task.entry, offset, wanted)
        except RolltapeError:  # it went to the store meanwhile, or something newer took its place
            if revision is not None:
                raise replaced(where) from None
            if self._waiting(task.entry.name) is task:
                raise
            return self.read(task.entry.name, offset, length)

    def _merged(self, prefix: str | None, there: Iterator[Stat]) -> Iterator[Stat]:
        waiting = (
            self._all()
        )  # before the store is listed: what goes there in between is told twice, not never
        seen: set[str] = set()
        for stat in there:
            seen.add(stat.name)
            task = waiting.get(stat.name)
            if task is None or task.entry.do == "line":
                yield stat
            elif task.entry.do == "publish":
                yield _stat(task)
        for name, task in waiting.items():
            inside = prefix is None or (name.startswith(prefix) and "/" not in name.removeprefix(prefix))
            if inside and name not in seen and task.entry.do == "publish":
                yield _stat(task)

    def _all(self) -> dict[str, Task]:
        uploads = self._uploads
        return {} if uploads is None or uploads.pid != os.getpid() else uploads.names()

    def _last_line(self, name: str) -> int:
        try:
            return last_time(self._asking.lines.seen(name))
        except StoreUnreachableError:  # then the clock alone orders them
            return 0

    def _where(self, name: str) -> str:
        return f"{self.location}/{name}"


def _stat(task: Task) -> Stat:
    return Stat(task.entry.name, task.entry.size, f"spool-{task.entry.attempt}")


def _at_exit(storage: SpooledStorage, pid: int) -> None:
    """Before the process ends, if its tape was not closed: give what waits its time, and say what is left."""
    if pid == os.getpid() and storage.settle(0).names:
        left = storage.settle(store_seconds(DEADLINE))
        if left.names:
            log.error("%s", not_up(storage.location, left))


def not_up(location: str, left: Pending) -> str:
    """What to say about what is not in the store."""
    return (
        f"{len(left.names)} files ({left.nbytes} bytes) are not in {location} yet; they are safe in "
        f"{left.where}, and are taken there by the next run on this machine that writes to this tape, "
        "or by: rolltape drain"
    )
