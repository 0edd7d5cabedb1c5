"""Puts calls on the tape, many to a file, on a thread of its own.

The file that calls go into is published anew while it grows, as a whole each time, until it is full: what is
on the tape is always a complete recording that every reader understands, and after ``kill -9`` every call
that was answered more than a moment ago is there. Files are small enough that writing them again costs
little, and large enough that thousands of calls are a few files.

On an object store all of that is about the spool of this machine, which is as durable as a disk. A store
that is away cannot say which numbers are free, and a file that it refuses later would be lost: there the
files have names that no other server gives.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rolltape.batch import dismantle
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.errors import RolltapeError, StepExistsError
from rolltape.key import Key
from rolltape.serving.call import CIRCUMSTANCES, Call, columns, row, without_typed
from rolltape.storage import Pending, Storage
from rolltape.storage.store_client import DEADLINE, seconds
from rolltape.tape.manifest import Manifest

log = logging.getLogger("rolltape")

EVERY, LATEST = 0.2, 0.6
"""Seconds after which what has come in is published: sooner where that is quick, later where it is not."""

SHARE = 0.2
"""How much of a core may go into writing files again."""

MOST_CALLS, MOST_BYTES = 128, 4 * 1024 * 1024
"""When a file is not written again: whichever comes first."""

MOST_AT_ONCE = 512
"""How many calls go into one file where so many come at once."""

OVERDUE = 0.75
"""Seconds after which a call that is not on the tape yet makes new ones wait: the machine is too slow."""

MOMENT = 2.0
"""Seconds that a store which answers gets in a flush."""

MOST_PENDING = 256 * 1024 * 1024
"""Bytes that may wait to be written before new calls have to."""


@dataclass(slots=True)
class _Segment:
    """A file that calls go into."""

    key: Key | None = None
    """Where it is on the tape, once it is."""
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing more goes into it once it is published."""
        return len(self.rows) >= MOST_CALLS or self.nbytes >= MOST_BYTES

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= MOST_AT_ONCE or self.nbytes >= MOST_BYTES


class CallWriter:
    """Writes calls in the background; after a failure nothing more is taken, and ``failure`` says why."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        split: str,
        run: str | None = None,
        *,
        spooled: bool = False,
    ) -> None:
        self._storage = storage
        self._name = os.urandom(6).hex() if spooled else None
        """What the names of its files begin with; None: they are numbered."""
        self._manifest = manifest
        self._split = split
        self._run = run or manifest.id
        self._open: dict[tuple[str, int], _Segment] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        """The next call number to try, by stage and step."""
        self._waiting: list[Call] = []
        self._changed = threading.Condition()
        self._closed = False
        self._oldest = self._writing = 0.0
        """When the first of the calls that wait was taken, and of those being written; 0: there is none."""
        self.pending_bytes = 0
        self.written = 0
        """How many calls are on the tape by now."""
        self.placed: Callable[[Call, Storage, Key, int], None] | None = None
        """Told where a call is, once it is on the tape; on the thread that writes."""
        self.failure: BaseException | None = None
        self.left = Pending()
        """What was not in the store when this was closed."""
        self._thread = threading.Thread(target=self._work, name="rolltape-calls", daemon=True)
        self._thread.start()

    def add(self, call: Call) -> None:
        """Take a call that has ended."""
        with self._changed:
            self._waiting.append(call)
            self._oldest = self._oldest or time.monotonic()
            self.pending_bytes += call.nbytes
            self._changed.notify()

    @property
    def has_room(self) -> bool:
        """Whether a new call may come: not while those before it are too many, or wait too long."""
        since = self._writing or self._oldest
        return self.pending_bytes < MOST_PENDING and (not since or time.monotonic() - since < OVERDUE)

    def flush(self) -> None:
        """Wait until everything taken so far is on the tape, or has failed; a store is given a moment."""
        with self._changed:
            self._changed.wait_for(lambda: not self.pending_bytes or self.failure is not None)
        self._storage.settle(MOMENT, patient=False)

    def waiting(self) -> Pending:
        """What is not in the store yet."""
        return self.left if self._closed else self._storage.settle(0, patient=False)

    def close(self) -> None:
        """Write what is left, give the store its time, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.left = self._storage.settle(seconds(DEADLINE))
        self._note_refusals()

    def _note_refusals(self) -> None:
        """What the store would not have is a failure, however long ago the call was."""
        for name, error in self._storage.take_failures():
            log.error("%s could not be taken to the store: %s", name, error)
            self.failure = self.failure or error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                calls, self._waiting = self._waiting, []
                self._writing, self._oldest = self._oldest, 0.0
                if not calls:
                    return
            started = time.monotonic()
            try:
                if self.failure is None:
                    self._write(calls)
                    self._note_refusals()
            except BaseException as error:  # whatever it was: the server has to tell its clients
                log.error("calls could not be recorded: %s", error)
                self.failure = error
            with self._changed:
                self._writing = 0.0
                self.pending_bytes -= sum(call.nbytes for call in calls)
                self._changed.notify_all()
                if self.failure is None:  # let more come in before the file is written again
                    took = time.monotonic() - started
                    rest = min(max(took / SHARE, EVERY), LATEST) - 2 * took  # the next one takes as long
                    self._changed.wait_for(lambda: self._closed, timeout=max(rest, 0))

    def _write(self, calls: list[Call]) -> None:
        touched: dict[tuple[str, int], _Segment] = {}
        rows: list[tuple[Call, _Segment, int]] = []
        for call in calls:
            place = call.stage, call.step
            segment = self._open.setdefault(place, _Segment())
            rows.append((call, segment, len(segment.rows)))
            segment.rows.append(_row(call))
            segment.nbytes += call.nbytes
            segment.seconds += call.latency
            touched[place] = segment
            if segment.is_full:
                self._publish(place, segment)
                del self._open[place], touched[place]
        for place, segment in touched.items():
            self._publish(place, segment)
            if segment.is_done:
                del self._open[place]
        for place in [place for place in self._open if place not in touched]:
            if place[0] in {stage for stage, _ in touched}:  # the stage has gone on to another step
                del self._open[place]
        self.written += len(calls)
        for call, segment, at in rows:
            if self.placed is not None and segment.key is not None:
                self.placed(call, self._storage, segment.key, at)

    def _publish(self, place: tuple[str, int], segment: _Segment) -> None:
        packed = _packed(segment.rows)
        if segment.key is not None:
            self._put(packed, segment.key, segment, replace=True)
            return
        while True:  # another server may write to the same step of the same tape
            number = self._numbers.get(place, 0)
            self._numbers[place] = number + 1
            call = number if self._name is None else f"{self._name}-{number:06d}"
            key = Key(split=self._split, stage=place[0], step=place[1], call=call)
            try:  # a name of our own is free, and nobody need be asked
                self._put(packed, key, segment, replace=self._name is not None)
            except StepExistsError:
                continue
            segment.key = key
            return

    def _put(self, packed: Any, key: Key, segment: _Segment, *, replace: bool) -> None:
        about = {
            "split": key.split, "stage": key.stage, "step": key.step, "call": key.call,
            "rank": 0, "world_size": 1, "position": 0, "order": 0 if key.stage == "calls" else 1,
            "recorded": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "live_seconds": segment.seconds,
            "blocked_seconds": 0.0,
            "fingerprint": self._manifest.digest,
            "run": self._run,
            "circumstances": list(CIRCUMSTANCES),
            "tape": self._manifest.id,
        }  # fmt: skip
        self._storage.publish(key.path, encode(packed, **about), replace=replace)


def _row(call: Call) -> Mapping[str, Any]:
    try:
        return row(call)
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        log.warning("only the bytes of a call are recorded: %s: %s", type(error).__name__, error)
        return row(call, typed=False)


def _packed(rows: list[Mapping[str, Any]]) -> Any:
    """The rows as they go into a file. What one request says must not cost the others their place."""
    try:
        return pack(dismantle(columns(rows)))
    except (RolltapeError, ValueError, TypeError, RecursionError):
        for at, one in enumerate(rows):
            try:
                pack(dismantle(columns([one])))
            except (RolltapeError, ValueError, TypeError, RecursionError) as error:
                log.warning("only the bytes of a call are recorded: %s", str(error)[:200])
                rows[at] = without_typed(one)
        return pack(dismantle(columns(rows)))
