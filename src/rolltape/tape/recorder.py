"""Puts results and metrics on the tape: copies now, writes in the background, drops what is too old."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rolltape import random_state
from rolltape.batch import dismantle
from rolltape.codec.file import encode
from rolltape.codec.pack import Packed, pack
from rolltape.errors import ExpectationError, RecordError, RolltapeError, StepExistsError
from rolltape.key import Key, metrics_path
from rolltape.policy import Action, Mode, Overwrite
from rolltape.settings import OnError, Settings
from rolltape.storage import Storage
from rolltape.tape.call import Call
from rolltape.tape.dtypes import check_expected, dtypes_of
from rolltape.tape.metrics import metrics_line
from rolltape.tape.recording import Recording
from rolltape.tape.retention import Retention
from rolltape.tape.shelf import Shelf
from rolltape.tape.summary import Tally
from rolltape.tape.writer import Job, Writer

log = logging.getLogger("rolltape")


class Recorder:
    """The writing half of a tape."""

    def __init__(self, storage: Storage, settings: Settings, tally: Tally, fingerprint: str) -> None:
        self._storage = storage
        self._settings = settings
        self._tally = tally
        self._fingerprint = fingerprint
        self._failures: list[tuple[str, BaseException]] = []
        self._lock = threading.Lock()
        self.writer = Writer(
            background=settings.background, max_pending_bytes=settings.max_pending_bytes, fail=self.failed
        )
        self.shelf = Shelf(storage, self.writer)
        self._retention = Retention(storage, settings, self.shelf.remove)
        self.recorded: set[Key] = set()
        """What this run put on the tape."""

    def copy(self, call: Call, value: Any, seconds: float, inside: Mapping[str, int]) -> Job | None:
        """Copy a result, on the thread that has it, into a job that writes it; None if that failed.

        ``inside`` counts the calls of other stages that the call made: replay will not make them.
        """
        started = time.perf_counter()
        key = call.key
        try:
            parts = dismantle(value)
            check_expected(dtypes_of(parts), call.stage.expect, f"{self._storage.location}/{key.path}")
            packed = pack(parts)
        except ExpectationError:
            raise  # the stage is wrong, not the recording: no matter for on_error
        except Exception as error:
            self.failed(key.path, error)
            return None
        about = {
            "split": key.split, "stage": key.stage, "step": key.step, "call": key.call,
            "rank": key.rank, "world_size": key.world_size, "position": call.position,
            "recorded": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "live_seconds": seconds,
            "blocked_seconds": time.perf_counter() - started,
            "fingerprint": self._fingerprint,
        }  # fmt: skip
        if self._settings.random_state:
            about["random"] = random_state.capture()
        if not call.stage.replay:
            about["replay"] = False
        if inside:
            about["inside"] = dict(inside)
        nbytes = packed.nbytes
        if call.inputs is not None:
            about["inputs"] = call.inputs.digest
            nbytes += call.inputs.packed.nbytes
        inputs = None if call.inputs is None else call.inputs.packed
        replacing = call.decision.action is Action.REWRITE
        self.recorded.add(key)
        self.shelf.add(key)
        return Job(key.path, lambda: self._write(key, packed, inputs, about, replacing), nbytes)

    def submit(self, job: Job) -> None:
        """Hand a job to the writer; waits while too much is pending."""
        try:
            self.writer.submit(job)
        except RolltapeError as error:
            self.failed(job.name, error)

    def append_metrics(self, split: str, step: int, metrics: Mapping[str, Any], *, new: bool) -> None:
        """Hand one line of metrics to the writer."""
        rank = self._settings.rank if self._settings.world_size > 1 else None
        line = metrics_line(step, metrics, rank, new=new)
        name = metrics_path(split)
        self.submit(Job(name, lambda: self._storage.append(name, line), len(line)))

    def failed(self, name: str, error: BaseException) -> None:
        """Note that a file could not be written: to be raised at the next call, or counted."""
        key = Key.parse(name)
        if key is not None and not key.inputs:
            self.shelf.remove(key)
            self.recorded.discard(key)
        if isinstance(error, StepExistsError) and self._keeps_first():
            self._tally.add(kept=1)
            log.warning(
                "%s was recorded by another process meanwhile; its recording is kept, not this one. "
                "If they are ranks of one run, give each its rank and world_size",
                name,
            )
            return
        self._tally.lose(name)
        if self._settings.on_error is OnError.WARN:
            log.warning("LOST: %s could not be recorded; training goes on: %s", name, error)
            return
        log.error("%s could not be recorded: %s", name, error)
        with self._lock:
            self._failures.append((name, error))

    def raise_failure(self) -> None:
        """Tell the caller, once, about what could not be recorded."""
        with self._lock:
            failures, self._failures = self._failures, []
        if not failures:
            return
        name, error = failures[0]
        if not isinstance(error, RolltapeError):
            failure = RecordError(
                f"recording {name} failed: {error!r}", where=f"{self._storage.location}/{name}"
            )
            failure.__cause__ = error
            error = failure
        if len(failures) > 1:
            error.causes += (f"{len(failures) - 1} more could not be written; see tape.summary().lost",)
        error.hint = error.hint or "set on_error=warn to train on without this recording"
        raise error

    def _keeps_first(self) -> bool:
        return self._settings.mode in (Mode.AUTO, Mode.REPLAY) or self._settings.overwrite is Overwrite.KEEP

    def _write(
        self, key: Key, packed: Packed, inputs: Packed | None, about: dict[str, Any], replacing: bool
    ) -> None:
        self._drop_older_calls(key)
        written = self._write_inputs(key, inputs, about, replacing)
        try:
            written += self._storage.publish(key.path, encode(packed, **about), replace=replacing)
        except StepExistsError:
            self._withdraw_inputs(key, about)
            raise
        self._tally.add(recorded=1, bytes_written=written)
        try:
            self._tally.add(dropped=self._retention.wrote(key))
        except RolltapeError as error:  # the recording itself is safe
            log.warning("%s is recorded, but old steps could not be dropped: %s", key.path, error)

    def _write_inputs(self, key: Key, inputs: Packed | None, about: dict[str, Any], replacing: bool) -> int:
        # Inputs first: where a result is visible, what it was made of is too.
        name = replace(key, inputs=True).path
        if inputs is not None and (replacing or not self._storage.exists(key.path)):
            return self._storage.publish(name, encode(inputs, **about), replace=True)
        if inputs is None and replacing:
            self._storage.delete(name)
        return 0

    def _withdraw_inputs(self, key: Key, about: Mapping[str, Any]) -> None:
        """After a lost race, do not leave our inputs beside the winner's result."""
        inputs = replace(key, inputs=True)
        with suppress(RolltapeError):  # there may be none
            theirs = Recording(self._storage, key).about.get("inputs")
            if theirs != about.get("inputs") == Recording(self._storage, inputs).about.get("inputs"):
                self._storage.delete(inputs.path)

    def _drop_older_calls(self, key: Key) -> None:
        """When a step is written anew, calls beyond those it now has must not survive from the old run."""
        renews = self._settings.mode is Mode.REWRITE or self._settings.overwrite is Overwrite.REWRITE
        if not renews or key.call != 0:
            return
        later: list[Key] = []
        while self._storage.exists((after := replace(key, call=len(later) + 1)).path):
            later.append(after)
        for old in reversed(later):
            if old not in self.recorded:
                self._storage.delete(old.path)
                self._storage.delete(replace(old, inputs=True).path)
                self.shelf.remove(old)
