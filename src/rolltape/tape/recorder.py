"""Puts results and metrics on the tape: copies now, writes in the background, drops what is too old."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rolltape.batch import dismantle
from rolltape.batch.columns import ObjectColumn
from rolltape.batch.tree import Dismantled
from rolltape.codec.file import encode
from rolltape.codec.pack import Packed, pack
from rolltape.errors import ExpectationError, RecordError, RolltapeError, StepExistsError
from rolltape.key import Key, metrics_path
from rolltape.policy import Mode, Overwrite
from rolltape.settings import OnError, Settings
from rolltape.storage import Storage
from rolltape.tape.metrics import metrics_line
from rolltape.tape.shelf import RecordedSteps
from rolltape.tape.summary import Summary
from rolltape.tape.writer import Job, Writer

log = logging.getLogger("rolltape")


class Recorder:
    """The writing half of a tape."""

    def __init__(self, storage: Storage, settings: Settings, summary: Summary) -> None:
        self._storage = storage
        self._settings = settings
        self._summary = summary
        self._failures: list[tuple[str, Exception]] = []
        self._lock = threading.Lock()
        self.writer = Writer(
            background=settings.background,
            max_pending_bytes=settings.max_pending_bytes,
            fail=self._failed,
        )

    def save(
        self,
        key: Key,
        value: Any,
        *,
        seconds: float,
        inputs: Packed | None,
        replacing: bool,
        expect: Mapping[str, str],
    ) -> None:
        """Copy a result and hand it to the writer."""
        started = time.perf_counter()
        try:
            parts = dismantle(value)
            check_expected({name: _dtype(parts, name) for name in expect}, expect, key.path)
            packed = pack(parts)
        except RolltapeError as error:
            self._failed(key.path, error)
            self.raise_failure()
            return
        about = {
            "split": key.split, "stage": key.stage, "step": key.step, "call": key.call,
            "rank": key.rank, "world_size": key.world_size,
            "recorded": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "live_seconds": seconds,
            "blocked_seconds": time.perf_counter() - started,
        }  # fmt: skip
        if inputs is not None:
            about["inputs"] = inputs.digest()
        nbytes = packed.nbytes + (inputs.nbytes if inputs is not None else 0)
        self.writer.submit(Job(key.path, lambda: self._write(key, packed, inputs, about, replacing), nbytes))

    def append_metrics(self, split: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Hand one line of metrics to the writer."""
        line = metrics_line(step, metrics)
        name = metrics_path(split)
        self.writer.submit(Job(name, lambda: self._storage.append(name, line), len(line)))

    def flush(self) -> None:
        """Wait until everything is on disk; raises what went wrong."""
        self.writer.wait()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Tell the caller about a recording that failed, once; with ``on_error: warn`` only count it."""
        with self._lock:
            failures, self._failures = self._failures, []
        if not failures:
            return
        if self._settings.on_error is OnError.WARN:
            return
        name, error = failures[0]
        if isinstance(error, RolltapeError):
            raise error
        raise RecordError(
            f"recording {name} failed: {error!r}",
            where=f"{self._storage.location}/{name}",
            hint="set on_error: warn to train on without this recording",
        ) from error

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, StepExistsError) and self._keeps_first():
            self._summary.kept += 1
            log.info("%s was recorded by another process meanwhile; its recording is kept", name)
            return
        with self._lock:
            self._failures.append((name, error))
            self._summary.lost.append(name)
        if self._settings.on_error is OnError.WARN:
            log.warning("LOST: %s could not be recorded; training goes on: %s", name, error)

    def _keeps_first(self) -> bool:
        return self._settings.mode in (Mode.AUTO, Mode.REPLAY) or self._settings.overwrite is Overwrite.KEEP

    def _write(
        self, key: Key, packed: Packed, inputs: Packed | None, about: dict[str, Any], replacing: bool
    ) -> None:
        # Inputs first: where a result is visible, what it was made of is too.
        if inputs is not None:
            pieces = encode(inputs, **about)
            self._storage.publish(replace(key, inputs=True).path, pieces, replace=True)
        written = self._storage.publish(key.path, encode(packed, **about), replace=replacing)
        self._summary.recorded += 1
        self._summary.bytes_written += written
        if self._settings.max_keep is not None:
            self._drop_old(key)

    def _drop_old(self, key: Key) -> None:
        """Keep the newest ``max_keep`` steps of this stage, and the pinned ones."""
        limit, pinned = self._settings.max_keep or 0, self._settings.pin_steps
        names = self._storage.names(f"{key.split}/{key.stage}/")
        mine = [
            k for n in names if (k := Key.parse(n)) and (k.rank, k.world_size) == (key.rank, key.world_size)
        ]
        steps = sorted({k.step for k in mine if k.step not in pinned})
        dropped = set(steps[:-limit])
        for old in mine:
            if old.step in dropped:
                self._storage.delete(old.path)


def check_expected(found: Mapping[str, str | None], expect: Mapping[str, str], where: str) -> None:
    """Raise if a column has another dtype than the stage expects."""
    for name, wanted in expect.items():
        if found[name] != wanted:
            has = "there is no such column" if found[name] is None else f"it is {found[name]}"
            raise ExpectationError(
                f"column {name!r} is expected to be {wanted}, but {has}",
                where=where,
                causes=["the recording was made with another precision or another version of the stage"],
                hint="record again, or change expect=",
            )


def _dtype(parts: Dismantled, name: str) -> str | None:
    column = parts.columns.get(name)
    if column is None:
        return None
    return "objects" if isinstance(column, ObjectColumn) else column.dtype


__all__ = ["Recorder", "RecordedSteps", "check_expected"]
