"""Puts results and metrics on the tape: copies now, writes in the background, drops what is too old."""

from __future__ import annotations

import datetime as dt
import logging
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from rolltape import random_state
from rolltape.batch import dismantle, dismantle_one
from rolltape.batch.one_sample import is_one
from rolltape.codec.file import encode
from rolltape.codec.pack import Packed, pack
from rolltape.errors import (
    ExpectationError,
    RecordError,
    RolltapeError,
    StepExistsError,
    StoreUnreachableError,
)
from rolltape.hooks import hook
from rolltape.key import MORE, Key, metrics_path
from rolltape.policy import Action, Mode, Overwrite
from rolltape.settings import OnError, Settings
from rolltape.storage import Pending, Storage
from rolltape.tape.commits import Committer
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.expected_dtypes import check_expected, dtypes_of
from rolltape.tape.manifest import Manifest
from rolltape.tape.metrics import metrics_line
from rolltape.tape.open_samples import OpenSteps, is_recorded
from rolltape.tape.open_step import OpenStep
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import NAME as REPLAYED
from rolltape.tape.replayed import replayed_line
from rolltape.tape.retention import Retention
from rolltape.tape.sessions import announce, new_attempt
from rolltape.tape.stage import Call
from rolltape.tape.step_index import StepIndex
from rolltape.tape.summary import Tally, amount
from rolltape.tape.writer import Job, Writer

log = logging.getLogger("rolltape")


class Recorder:
    """The writing half of a tape."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        tally: Tally,
        manifest: Manifest,
        run: str | None,
        session: str,
        is_others: Callable[[Key], bool] | None,
    ) -> None:
        self._storage = storage
        self._tape = manifest.id
        self._settings = settings
        self._tally = tally
        self._fingerprint = manifest.digest
        self._replayed: dict[str, str] = {}
        self._run = run
        """The run that rewrites the whole tape; None if none ever did."""
        self.writer_name = uuid.uuid4().hex[:12]
        """Tells what this process records from what others do, on the same tape and at the same time."""
        self._committer = Committer(storage, session, manifest.id)
        self._announced = False
        self._since = ""
        """When this process said that it writes the shards of its rank."""
        self._arriving: list[tuple[Key, str, bool]] = []
        """The shards that were written, and may not have arrived where others see them, or whose calls others
        are about to complete; their attempts, and whether the latter is so."""
        self._failures: list[tuple[str, BaseException]] = []
        self._lock = threading.Lock()
        self.writer = Writer(
            background=settings.background, max_pending_bytes=settings.max_pending_bytes, fail=self.failed
        )
        self.step_index = StepIndex(
            storage,
            self.writer,
            is_others,
            reshard=settings.reshard,
            plays=settings.mode is not Mode.RECORD,
        )
        self._retention = Retention(storage, settings, self.step_index.remove)
        self._steps: dict[tuple[str, str], tuple[int, int | None]] = {}
        """The last step of each stage that was recorded, and the one before."""
        self.recorded: set[Key] = set()
        """What this run put on the tape."""
        self.open_steps = OpenSteps(
            storage,
            self.writer_name,
            background=settings.background,
            max_pending_bytes=settings.max_pending_bytes,
        )
        """Keeps samples as they finish, until their step is recorded."""
        self.open_calls: dict[Key, OpenStep] = {}
        """The live calls that have such samples."""
        self._indexing: Any = None
        """Takes the samples of recordings into the index, once there are some that it is to have."""

    def begin(self) -> None:
        """Before the first live call of a shard: say who writes the shards of this rank from now on."""
        with self._lock:
            new, self._announced = not self._announced, True
        if new:
            own, self._since = self._settings, _now()
            try:
                announce(self._storage, self._tape, self._committer.session, own.rank, own.world_size)
            except RolltapeError as error:
                self.failed(RUNS, error)

    def copy(
        self, call: Call, value: Any, seconds: float, inside: Mapping[str, int], order: int
    ) -> Job | None:
        """Copy a result, on the thread that has it, into a job that writes it; None if that failed.

        ``inside`` counts the calls of other stages that the call made: replay will not make them. ``order``
        counts those of the step that had ended before it did.
        """
        started = time.perf_counter()
        key = call.key
        try:
            named = key.call if isinstance(key.call, str) else ""
            one = is_one(value, call.stage.samples, named=bool(named))
            parts = dismantle_one(value) if one else dismantle(value)
            check_expected(dtypes_of(parts), call.stage.expect, f"{self._storage.location}/{key.path}")
            who = call.by_content.who(parts) if call.by_content is not None else None
            packed = pack(parts, who, call=named)
            known = None if call.by_content is None or who is None else call.by_content.known(parts, *who)
        except ExpectationError:
            raise  # the stage is wrong, not the recording: no matter for on_error
        except Exception as error:
            self.failed(key.path, error)
            return None
        blocked = time.perf_counter() - started + (call.arguments.seconds if call.arguments else 0.0)
        about: dict[str, Any] = {
            "split": key.split, "stage": key.stage, "step": key.step, "call": key.call,
            "rank": key.rank, "world_size": key.world_size, "position": call.position,
            "order": order, "writer": self.writer_name, "turn": call.scope.turn,
            "recorded": _now(),
            "live_seconds": seconds,
            "blocked_seconds": blocked,
            "fingerprint": self._fingerprint,
            "run": self._run or self._tape,
            "tape": self._tape,
        }  # fmt: skip
        if key.is_shard:
            about["attempt"] = new_attempt(self._committer.session)
        if self._settings.random_state:
            about["random"] = random_state.capture()
        if not call.stage.replay:
            about["replay"] = False
        if call.outlived:
            about["outlived"] = True
        if call.beside:
            about["returned"] = False
        if inside:
            about["inside"] = dict(inside)
        if call.by_content is not None:
            about["by"] = dict(call.by_content.noted)
        if call.arguments is not None:
            about["arguments"] = call.arguments.to_json()
            if collecting := call.arguments.changed:
                about["collecting"] = collecting
        if self._settings.max_keep is not None:
            about["max_keep"] = self._settings.max_keep
        if (before := self._before(key)) is not None:
            about["previous"] = before
        if (opened := self.open_calls.pop(key, None)) is not None:
            about |= opened.noted()
            self._tell_resumed(opened)
        nbytes = packed.nbytes
        if call.inputs is not None:
            about["inputs"] = call.inputs.digest
            nbytes += call.inputs.packed.nbytes
        inputs = None if call.inputs is None else call.inputs.packed
        replacing = call.decision.action is Action.REWRITE
        self.recorded.add(key)
        self.step_index.add(key)
        write = partial(self._write, key, packed, inputs, about, replacing, known, opened)
        return Job(key.path, write, nbytes)

    def submit(self, job: Job) -> None:
        """Hand a job to the writer; waits while too much is pending."""
        try:
            self.writer.submit(job)
        except RolltapeError as error:
            self.failed(job.name, error)

    def append_metrics(self, split: str, step: int, metrics: Mapping[str, Any], *, new: bool) -> None:
        """Hand one line of metrics to the writer."""
        rank = self._settings.rank if self._settings.world_size > 1 else None
        line = metrics_line(step, metrics, rank, new=new, run=self._run, tape=self._tape, split=split)
        name = metrics_path(split)
        self._tally.add(logged=1)
        self.submit(Job(name, lambda: self._storage.append(name, line), len(line)))

    def note_replayed(self, path: str, digest: str, waited: float) -> None:
        """Keep what a recording held when the run that writes this tape was given it, and how long that run
        waited for it; once each.
        """
        with self._lock:
            if self._replayed.get(path) == digest:
                return
            self._replayed[path] = digest
        line = replayed_line(path, digest, self._tape, waited)
        self.submit(Job(REPLAYED, lambda: self._storage.append(REPLAYED, line), len(line)))

    def failed(self, name: str, error: BaseException) -> None:
        """Note that a file could not be written: to be raised at the next call, or counted."""
        key = Key.parse(name)
        if key is not None and not key.inputs:
            self.step_index.remove(key)
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

    def note_refusals(self) -> None:
        """Count what was taken down here, and what the store has refused since."""
        for refused in self._storage.take_failures():
            self._refused(*refused)

    def raise_failure(self) -> None:
        """Tell the caller, once, about what could not be recorded."""
        self.note_refusals()
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

    def not_up(self, left: Pending) -> None:
        """Tell that the store has not taken everything; it is kept here, and nothing is lost."""
        what = f"{len(left.names)} files ({amount(left.nbytes)}) are not in the store yet; they are kept here"
        hint = f"when the store answers again: rolltape drain {shlex.quote(self._storage.location)}"
        error = StoreUnreachableError(what, where=left.where, hint=hint)
        log.error("tape %s: %s", self._storage.location, error)
        if self._settings.on_error is OnError.RAISE:
            with self._lock:
                self._failures.append((left.names[0], error))

    def _refused(self, name: str, error: RolltapeError) -> None:
        """A file that was written down here, and that the store does not take."""
        if isinstance(error, StepExistsError):
            if (key := Key.parse(name)) is not None and key.is_shard:
                with self._lock:
                    self._arriving = [one for one in self._arriving if one[0] != key]
                with suppress(RolltapeError):
                    self._committer.lost(key, self._run or self._tape, self._since)
            if (key := Key.parse(name)) is not None and not key.inputs:
                self._withdraw_inputs(key)
            self._tally.add(recorded=-1)
            self.failed(name, error)
        elif self._settings.on_error is OnError.WARN:
            log.warning("%s is not in the store, but on this machine; training goes on: %s", name, error)
        else:
            with self._lock:
                self._failures.append((name, error))

    def _before(self, key: Key) -> int | None:
        """The step that this run recorded of the stage before this one; a check can tell if it is gone."""
        with self._lock:
            last, before = self._steps.get((key.split, key.stage), (None, None))
            if last != key.step:
                self._steps[key.split, key.stage] = key.step, last
                return last
            return before

    def _keeps_first(self) -> bool:
        return self._settings.mode in (Mode.AUTO, Mode.REPLAY) or self._settings.overwrite is Overwrite.KEEP

    @property
    def renews(self) -> bool:
        """Whether this run writes steps anew that are on the tape."""
        return self._settings.mode is Mode.REWRITE or self._settings.overwrite is Overwrite.REWRITE

    def _write(
        self,
        key: Key,
        packed: Packed,
        inputs: Packed | None,
        about: dict[str, Any],
        replacing: bool,
        known: Any = None,
        opened: OpenStep | None = None,
    ) -> None:
        self._drop_older_calls(key, by_content="by" in about)
        if replacing and key.is_shard:
            self._committer.begin(key)
        written = self._write_inputs(key, inputs, about, replacing)
        try:
            written += self._storage.publish(key.path, encode(packed, **about), replace=replacing)
        except StepExistsError as error:
            self._withdraw_inputs(key)
            if opened is not None:
                self.open_steps.fold(opened.key, key)
                self.sweep()
            if key.is_shard:
                with suppress(RolltapeError):  # then the step is not complete, and that is told
                    self._committer.lost(key, about["run"], self._since)
            if self.renews:  # it was not there when the step began
                error.causes = ("another process writes the same step of this tape at this very time",)
                error.hint = "give each process its rank and world_size, or a tape of its own"
            raise
        self._tally.add(recorded=1, bytes_written=written)
        if "by" in about:
            self._index(key, known)
        if key.is_shard:
            with self._lock:
                self._arriving.append((key, about["attempt"], False))
            self.complete()
        if opened is not None:
            self.open_steps.fold(opened.key, key)
        self.sweep()
        try:
            self._tally.add(dropped=self._retention.wrote(key))
        except RolltapeError as error:  # the recording itself is safe
            log.warning("%s is recorded, but old steps could not be dropped: %s", key.path, error)

    # -- samples of steps that are not recorded yet ----------------------------------------------------

    def is_over(self, key: Key) -> bool:
        """Whether a call is on the tape, by all of its ranks."""
        return is_recorded(self._storage, key)

    def is_over_before(self, key: Key) -> bool:
        """Whether what an earlier process left of a call is of no use: the call is recorded, and stays."""
        return not self.renews and self.is_over(key)

    def about_open(self) -> dict[str, Any]:
        """What is noted with samples as they finish."""
        return {
            "fingerprint": self._fingerprint, "run": self._run or self._tape, "tape": self._tape,
            "writer": self.writer_name, "recorded": _now(),
        }  # fmt: skip

    def sweep(self) -> None:
        """Remove finished samples of the calls that are recorded by now."""
        self.open_steps.sweep(self.is_over)

    def _tell_resumed(self, opened: OpenStep) -> None:
        if opened.resumed:
            key = opened.key
            self._tally.resume(key.step, opened.resumed, opened.asked)
            log.info(
                "%s/%s: resumed %d of %d samples of step %d",
                key.split, key.stage, opened.resumed, opened.asked, key.step,
            )  # fmt: skip

    def _index(self, key: Key, known: Any) -> None:
        """Have the samples of a recording indexed: it can be done later, so that nothing is lost here."""
        try:
            if self._indexing is None:
                self._indexing = hook("indexing")(self._storage)  # what knows prompts lies above
            self._indexing.wrote(key, known)
        except Exception as error:
            log.warning("%s is recorded, but not in the index: %s", key.path, error)

    def store_index(self) -> None:
        """Store what was indexed since; what is lost here is read from the recordings again."""
        try:
            if self._indexing is not None:
                self._indexing.store()
        except Exception as error:
            log.warning("the index of %s is not up to date: %s", self._storage.location, error)

    def complete(self, *, last: bool = False) -> None:
        """Say of every call whose last shard is ours that it is complete, once that shard has arrived.

        The ``last`` time, what another rank is about to complete is waited for.
        """
        with self._lock:
            waiting, self._arriving = self._arriving, []
        if not waiting:
            return
        pending = set(self._storage.settle(0, patient=False).names)
        for key, attempt, again in waiting:
            if not pending.isdisjoint((RUNS, key.path, replace(key, inputs=True).path)):
                with self._lock:
                    self._arriving.append((key, attempt, again))
                continue
            run = self._run or self._tape
            try:
                if not self._committer.arrived(key, run, attempt, again=again, last=last):
                    with self._lock:
                        self._arriving.append((key, attempt, True))
            except RolltapeError as error:  # the shard itself is safe; without a commit it is not replayed
                self.failed(key.commit, error)

    def _write_inputs(self, key: Key, inputs: Packed | None, about: dict[str, Any], replacing: bool) -> int:
        # Inputs first: where a result is visible, what it was made of is too.
        name = replace(key, inputs=True).path
        if inputs is not None and (replacing or not self._storage.exists(key.path)):
            return self._storage.publish(name, encode(inputs, **about, holds="inputs"), replace=True)
        if inputs is None and replacing:
            self._storage.delete(name)
        return 0

    def _withdraw_inputs(self, key: Key) -> None:
        """After a lost race, do not leave our inputs beside the winner's result."""
        inputs = replace(key, inputs=True)
        with suppress(RolltapeError):  # there may be none
            theirs, there = Recording(self._storage, key).about, Recording(self._storage, inputs).about
            if there.writer == self.writer_name and there.inputs != theirs.inputs:
                self._storage.delete(inputs.path)

    def _drop_older_calls(self, key: Key, *, by_content: bool) -> None:
        """When a step is written anew, calls beyond those it now has must not survive from the old run."""
        if not self.renews or key.call != 0:
            return
        later: list[Key] = []
        while self._storage.exists((after := replace(key, call=len(later) + 1)).path):
            later.append(after)
        if by_content:
            later += self._added_to(key)
        for old in reversed(later):
            if old not in self.recorded:
                if old.is_shard:
                    self._storage.delete(old.commit)
                self._storage.delete(old.path)
                self._storage.delete(replace(old, inputs=True).path)
                self.step_index.remove(old)

    def _added_to(self, key: Key) -> list[Key]:
        """The calls that added samples to a step."""
        found = map(Key.parse, self._storage.names(f"{key.split}/{key.stage}/"))
        return [
            one for one in found
            if one is not None and not one.inputs and isinstance(one.call, str) and one.call.startswith(MORE)
            and replace(one, call=key.call) == key
        ]  # fmt: skip


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
