"""The working parts of an open tape: decides what happens to a call, and has it recorded or replayed."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rolltape import random_state
from rolltape.errors import RolltapeError, StepExistsError, StepMissingError, TapeClosedError
from rolltape.key import Key
from rolltape.policy import Action, Decision, Mode, Overwrite, decide
from rolltape.settings import MatchLevel, Settings
from rolltape.steps import MAX_STEP
from rolltape.storage import Storage
from rolltape.tape.call import Call
from rolltape.tape.inputs import Inputs, copy_inputs
from rolltape.tape.manifest import Manifest
from rolltape.tape.metrics import logged_steps
from rolltape.tape.missing import explain_missing
from rolltape.tape.player import Played, Player
from rolltape.tape.recorder import Recorder
from rolltape.tape.scope import Scope
from rolltape.tape.shelf import recordings
from rolltape.tape.stage import Stage
from rolltape.tape.summary import Summary, Tally
from rolltape.tape.writer import Job

log = logging.getLogger("rolltape")


class Deck:
    """What ``Tape`` is made of while it is open. Any number of threads may call at once."""

    def __init__(
        self, storage: Storage, settings: Settings, manifest: Manifest, out: Deck | None = None
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.manifest = manifest
        self.out = out
        """That of the second tape, for what a replay computes anew."""
        self.closed = False
        self._last: Summary | None = None
        self.load()
        _open.add(self)

    def load(self) -> None:
        """Put in the working parts. After a fork, too: a child must not share its parent's locks."""
        self._tally = Tally()
        self.recorder = Recorder(self.storage, self.settings, self._tally, self.manifest.digest)
        self.player = Player(self.storage, self.settings, self._tally, self.manifest)
        self._live: set[Key] = set()
        self._logged: dict[str, set[int]] = {}
        self._renewed: set[tuple[str, int]] = set()
        self._strides: dict[tuple[str, str], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def usable(self) -> Deck:
        """This deck, unless it is closed; raises what could not be recorded meanwhile."""
        if self.closed:
            raise TapeClosedError(f"the tape {self.storage.location} is closed", hint="open it again")
        self.recorder.raise_failure()
        if self.out is not None:
            self.out.usable()
        return self

    # -- one call --------------------------------------------------------------------------------------

    def key(self, stage: str, step: int, split: str | None = None, call: int | str = 0) -> Key:
        """The key of a call in this process."""
        return Key(
            split=split or self.settings.split, stage=stage, step=step, call=call,
            rank=self.settings.rank, world_size=self.settings.world_size,
        )  # fmt: skip

    def decide(self, key: Key, *, replays: bool = True) -> Decision:
        """What happens to a call. One look at the tape, however much is on it."""
        shelf = self.recorder.shelf
        decision = decide(key.step, shelf.steps(key), self.settings.policy, replays=replays)
        substitute = decision.source if decision.action is Action.SUBSTITUTE else None
        if substitute is not None and not shelf.holds(replace(key, step=substitute)):
            shelf.forget(key)  # another process has deleted it
            return decide(key.step, shelf.steps(key), self.settings.policy)
        return decision

    def begin(self, stage: Stage, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Decide what happens to a call, and copy its inputs while they are as given."""
        key = self.key(stage.name, scope.step, scope.split, scope.next_call(stage.name))
        return self._begin(stage, scope, key, args, kwargs)

    def replays(self, stage: Stage) -> bool:
        """Whether recordings of a stage are handed out in this run."""
        only = self.settings.stages
        return stage.replay if only is None else stage.name in only

    def _begin(
        self, stage: Stage, scope: Scope, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        decision = self.decide(key, replays=self.replays(stage))
        self._tally.add(missing=decision.missed)
        if decision.error is StepMissingError:
            raise explain_missing(self.storage, key, decision)
        if decision.error is not None:
            raise decision.error(
                decision.reason, where=f"{self.storage.location}/{key.path}", hint=decision.hint
            )
        if decision.action is Action.REPLAY and key in self.recorder.recorded:
            log.warning("%s was recorded by this very run; entering the step again replays it", key.path)
        if decision.action is Action.LIVE and self.out is not None:
            self._tally.add(live=1)
            return self.out._begin(stage, scope, key, args, kwargs)
        inputs = self._inputs(stage, key, decision, args, kwargs)
        call = Call(self, stage, key, scope, decision, scope.called - 1, inputs)
        if decision.saves:
            self._claim(key)
        return call

    def read(self, call: Call) -> Played:
        """The recording in place of a live call; begins to read the one that will probably follow."""
        if call.decision.source is not None:
            self.recorder.writer.wait(replace(call.key, step=call.decision.source).path)
        played = self.player.play(call)
        if self.player.reads_ahead and (ahead := self._following(call)) is not None:
            self.player.read_ahead(ahead)
        return played

    def hand_over(self, call: Call, played: Played) -> Any:
        """The recorded value, with what the live call left behind: its calls counted, its random state."""
        for stage, number in call.scope.skip(played.about.get("inside", {})):
            self.player.played.add(replace(played.key, stage=stage, call=number))
        if self.settings.random_state and call.decision.action is Action.REPLAY and "random" in played.about:
            random_state.restore(played.about["random"])
        return played.value

    def copy(self, call: Call, value: Any, seconds: float, inside: Mapping[str, int]) -> Job | None:
        """Copy the result of a live call, where it is to be recorded, for ``submit``."""
        self._tally.add(seconds_live=seconds, live=not call.decision.saves)
        return self.recorder.copy(call, value, seconds, inside) if call.decision.saves else None

    def submit(self, job: Job | None) -> None:
        """Have a copy written; waits while too much is pending."""
        if job is not None:
            self.recorder.submit(job)
        self.recorder.raise_failure()

    def end(self, call: Call) -> None:
        """A live call that was begun is over, well or not."""
        if call.decision.saves:
            with self._lock:
                self._live.discard(call.key)

    # -- metrics, closing ------------------------------------------------------------------------------

    def keep_metrics(self, split: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Write metrics, unless those on the tape belong to a recording that stays as it is."""
        mode, overwrite = self.settings.mode, self.settings.overwrite
        if not metrics or mode is Mode.REPLAY:
            if self.out is not None:
                self.out.keep_metrics(split, step, metrics)
            return
        new = False
        with self._lock:
            if mode is Mode.AUTO or (mode is Mode.RECORD and overwrite is Overwrite.KEEP):
                if split not in self._logged:
                    self._logged[split] = logged_steps(self.storage, split, self.settings.rank)
                if step in self._logged[split]:
                    return
            elif mode is Mode.REWRITE or overwrite is Overwrite.REWRITE:
                new = (split, step) not in self._renewed
                self._renewed.add((split, step))
        self.recorder.append_metrics(split, step, metrics, new=new)

    def flush(self) -> None:
        """Wait until everything is on disk; raises what went wrong."""
        self.recorder.writer.wait()
        self.recorder.raise_failure()
        if self.out is not None:
            self.out.flush()

    def summary(self) -> Summary:
        """What was done so far. Lists the stages that were replayed."""
        if self._last is not None:
            return self._last
        try:
            return self._tally.summary(tuple(self._never_played()))
        except RolltapeError as error:
            log.warning("what was never played cannot be told: %s", error)
            return self._tally.summary()

    def close(self) -> None:
        """Write what is pending, say what was done; raises what went wrong."""
        if not self.closed:
            self.recorder.writer.close()
            self.player.close()
            self.closed = True
            _open.discard(self)
            self._last = self.summary()
            loud = logging.WARNING if self._last.lost else logging.INFO
            log.log(loud, "tape %s: %s", self.storage.location, self._last)
        if self.out is not None:
            self.out.close()
        self.recorder.raise_failure()

    # -- parts -----------------------------------------------------------------------------------------

    def _claim(self, key: Key) -> None:
        """Refuse two live calls of one name at once: only one of them could be replayed."""
        with self._lock:
            if key in self._live:
                raise StepExistsError(
                    f"call {key.call!r} of stage {key.stage!r} at step {key.step} is being recorded already",
                    where=f"{self.storage.location}/{key.path}",
                    causes=["several threads or tasks entered the same step, each counting its calls from 0"],
                    hint='tell them apart: tape.step(n, key="…") in each, or one tape.step(n) around all',
                )
            self._live.add(key)

    def _inputs(
        self, stage: Stage, key: Key, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Inputs | None:
        ignored = self.settings.match.get("inputs") is MatchLevel.IGNORE
        checked = decision.action is Action.REPLAY and not ignored
        if stage.inputs is None or not (checked or decision.saves):
            return None
        try:
            return copy_inputs(stage.inputs.choose(args, kwargs))
        except RolltapeError as error:
            if checked:
                raise
            self.recorder.failed(replace(key, inputs=True).path, error)
            self.recorder.raise_failure()
            return None

    def _following(self, call: Call) -> Key | None:
        """What will probably be asked for next: the next call of the step, or the first of the next step."""
        key = call.key
        if isinstance(key.call, str):
            return None
        with self._lock:
            last, stride = self._strides.get((key.split, key.stage), (None, 1))
            if last is not None and key.step > last:
                stride = key.step - last
            self._strides[key.split, key.stage] = key.step, stride
        again = replace(key, call=key.call + 1)
        if call.decision.action is Action.REPLAY and self.recorder.shelf.holds(again):
            return again
        if key.step + stride > MAX_STEP:
            return None
        after = replace(key, step=key.step + stride, call=0)
        source = self.decide(after).source
        return None if source is None else replace(after, step=source)

    def _never_played(self) -> Iterator[str]:
        shard = self.settings.rank, self.settings.world_size
        known = self.player.played | self.recorder.recorded
        for split, stage in sorted({(key.split, key.stage) for key in self.player.played.copy()}):
            for key in recordings(self.storage, split, stage):
                mine = (key.rank, key.world_size) == shard and key.step in self.settings.steps
                if mine and key not in known:
                    yield key.path


_open: weakref.WeakSet[Deck] = weakref.WeakSet()


def _close_all() -> None:
    failures = []
    for deck in list(_open):
        try:
            deck.close()
        except RolltapeError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _after_fork() -> None:
    for deck in list(_open):
        deck.load()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
