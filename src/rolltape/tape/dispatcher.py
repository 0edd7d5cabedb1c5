"""The working parts of an open tape: decides what happens to a call, and has it recorded or replayed."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rolltape import random_state
from rolltape.errors import (
    MismatchError,
    RolltapeError,
    StepExistsError,
    StepMissingError,
    TapeClosedError,
)
from rolltape.key import Key, metrics_path
from rolltape.policy import Action, Decision, Mode, Overwrite, decide
from rolltape.settings import MatchLevel, Settings
from rolltape.steps import MAX_STEP
from rolltape.storage import Storage
from rolltape.storage.store_client import DEADLINE, seconds
from rolltape.tape.blocks import Blocks
from rolltape.tape.call_arguments import Arguments
from rolltape.tape.current_run import current_run, other_run
from rolltape.tape.inputs import Inputs, copy_inputs
from rolltape.tape.manifest import Manifest
from rolltape.tape.metrics import logged_steps
from rolltape.tape.missing import explain_missing
from rolltape.tape.open_step import LiveCall
from rolltape.tape.opening import tell_run
from rolltape.tape.player import Played, Player
from rolltape.tape.recorder import Recorder
from rolltape.tape.scope import Scope
from rolltape.tape.sessions import this_session
from rolltape.tape.shards import over_incomplete
from rolltape.tape.shortfall import CallsMade
from rolltape.tape.stage import Call, Stage
from rolltape.tape.step_index import recordings
from rolltape.tape.summary import Summary, Tally
from rolltape.tape.writer import Job

log = logging.getLogger("rolltape")

_MOMENT = 2.0
"""Seconds that a store which answers is given to take what was just recorded."""
STATE = "state"
"""The stage that a replay with a second tape also calls live: what it then returns shows the last update."""


class Dispatcher:
    """What ``Tape`` is made of while it is open. Any number of threads may call at once."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        manifest: Manifest,
        out: Dispatcher | None = None,
        run: str | None = None,
        session: str | None = None,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.manifest = manifest
        current = current_run(storage) if run is None else None
        self.run = current.id if current is not None else run
        """The run that rewrites the whole tape; None if none ever did."""
        self.session = session or this_session()
        """Names the process that writes, and those it sent its tape to."""
        self.out = out
        """That of the second tape, for what a replay computes anew."""
        self.closed = False
        self._last: Summary | None = None
        self._is_others = other_run(storage)
        self.load()
        if (
            settings.world_size > 1 and self.recorder.renews
        ):  # what this rank has here is of an earlier launch
            self.recorder.begin()
        _open.add(self)

    def load(self) -> None:
        """Put in the working parts. After a fork, too: a child must not share its parent's locks.

        Without a question to the storage: most children never use the tape, and a store may be away.
        """
        self._tally = Tally()
        self.recorder = Recorder(
            self.storage,
            self.settings,
            self._tally,
            self.manifest,
            self.run,
            self.session,
            self._is_others,
        )
        world_of = self.recorder.step_index.other_world
        self.player = Player(self.storage, self.settings, self._tally, self.manifest, world_of)
        self._live: set[Key] = set()
        self.running: list[LiveCall] = []
        """The calls whose functions run now."""
        self._left_out: set[tuple[str, str]] = set()
        self._logged: dict[str, set[int]] = {}
        """The steps that had metrics when they were first asked for, by split."""
        self._renewed: set[tuple[str, int]] = set()
        self._states: dict[str, Key] = {}
        """The recording of the stage `state` that each split was given last."""
        self._strides: dict[tuple[str, str], tuple[int, int]] = {}
        self.blocks = Blocks()
        self.calls_made = CallsMade(self.storage, self.settings, self.blocks, self.player, self.recorder)
        self._lock = threading.Lock()

    def usable(self) -> Dispatcher:
        """This dispatcher, unless it is closed; raises what could not be recorded meanwhile."""
        if self.closed:
            raise TapeClosedError(f"the tape {self.storage.location} is closed", hint="open it again")
        self.recorder.raise_failure()
        if self.out is not None:
            self.out.usable()
        return self

    @contextmanager
    def block(self, scope: Scope) -> Iterator[None]:
        """Around the block of a step: notes its turn and how it ended; refuses one with too few calls."""
        scope.turn = self.blocks.enter(scope.split, scope.step)
        try:
            yield
            if not self.closed:
                self.calls_made.end_block(scope)
        except BaseException:
            self.blocks.leave(scope.split, scope.step, raised=True)
            raise
        self.blocks.leave(scope.split, scope.step, raised=False)

    # -- one call --------------------------------------------------------------------------------------

    def key(self, stage: str, step: int, split: str | None = None, call: int | str = 0) -> Key:
        """The key of a call in this process."""
        return Key(
            split=split or self.settings.split, stage=stage, step=step, call=call,
            rank=self.settings.rank, world_size=self.settings.world_size,
        )  # fmt: skip

    def decide(self, key: Key, *, replays: bool = True) -> Decision:
        """What happens to a call. One look at the tape, however much is on it."""
        step_index = self.recorder.step_index
        decision = decide(key.step, step_index.steps(key), self.settings.policy, replays=replays)
        substitute = decision.source if decision.action is Action.SUBSTITUTE else None
        if substitute is not None and not step_index.holds(replace(key, step=substitute)):
            step_index.forget(key)  # another process has deleted it
            return decide(key.step, step_index.steps(key), self.settings.policy)
        short = step_index.short(key) if key.is_shard else None
        return decision if short is None else over_incomplete(decision, short, self.settings.policy)

    def begin(self, stage: Stage, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Decide what happens to a call, and copy its inputs while they are as given."""
        return self.begin_as(stage, scope, scope.next_call(stage.name), args, kwargs)

    def begin_as(
        self, stage: Stage, scope: Scope, number: int | str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """The same for a call whose number is known already."""
        return self._begin(stage, scope, self.key(stage.name, scope.step, scope.split, number), args, kwargs)

    def replays(self, stage: Stage) -> bool:
        """Whether recordings of a stage are handed out in this run."""
        only = self.settings.stages
        return stage.replay if only is None else stage.name in only

    def _begin(
        self, stage: Stage, scope: Scope, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        decision = self.decide(key, replays=self.replays(stage))
        self._tally.add(missing=decision.missed and not decision.saves)
        if decision.error is StepMissingError:
            short = self.recorder.step_index.short(key)
            raise explain_missing(self.storage, key, decision, self._has_writer(), short)
        if decision.error is StepExistsError and self._is_out:
            raise self._step_of_earlier_replay(key.step, key.path)
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
        arguments = self._arguments(stage, decision, args, kwargs)
        noted = stage.by_content(args, kwargs) if stage.by_content and decision.saves else None
        call = Call(
            self, stage, key, scope, decision, scope.called - 1, inputs,
            arguments=arguments, outlived=not scope.open, by_content=noted,
        )  # fmt: skip
        if decision.saves:
            self._claim(key)
            if key.is_shard:
                self.recorder.begin()
        return call

    def read(self, call: Call) -> Played:
        """The recording in place of a live call; begins to read the one that will probably follow."""
        if call.decision.source is not None:
            self.recorder.writer.wait(replace(call.key, step=call.decision.source).path)
        played = self.player.play(call, self.recorder.step_index.seen(call.key))
        if self.out is not None:
            for at, (path, digest) in enumerate(played.digests):
                self.out.recorder.note_replayed(path, digest, 0.0 if at else played.waited)
        if self.player.reads_ahead:
            self._read_ahead(call)
        return played

    def beside(
        self, call: Call, played: Played, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """The live call that is made beside a replay of `state`, for the tape ``out``; None for none.

        A run that is given its state at every step has, before it gets the next, what its own update made of
        the last: the one thing that it computes and no other stage shows.
        """
        if self.out is None or call.stage.name != STATE or call.decision.action is not Action.REPLAY:
            return None
        follows = self._follows(call.key)
        self._states[call.key.split] = call.key
        if not follows or played.about.inside:
            return None
        return replace(self.out._begin(call.stage, call.scope, call.key, args, kwargs), beside=True)

    def _follows(self, key: Key) -> bool:
        """Whether this run has gone from the recorded state before this one to here."""
        last, index = self._states.get(key.split), self.recorder.step_index
        if not isinstance(key.call, int):
            return False
        if key.call:
            return last == replace(key, call=key.call - 1)
        steps = index.in_order(key)
        at = bisect_left(steps, key.step)
        if last is None or not at:
            return last is None and not at  # what it began with
        again = replace(last, call=last.call + 1) if isinstance(last.call, int) else last
        return last.step == steps[at - 1] and not index.holds(again)

    @contextmanager
    def kept_apart(self, call: Call) -> Iterator[None]:
        """Around a live call beside a replay: what it draws or breaks is not the trainer's."""
        drawn = random_state.capture()
        try:
            yield
        except RolltapeError:
            raise
        except Exception as error:
            self.recorder.failed(call.key.path, error)
            self.recorder.raise_failure()
        finally:
            random_state.restore(drawn)
            self.end(call)

    def keep(self, call: Call, value: Any) -> None:
        """Record what a live call beside a replay returned."""
        self.submit(self.copy(call, value, 0.0, {}))

    def hand_over(self, call: Call, played: Played) -> Any:
        """The recorded value, with what the live call left behind: its calls counted, its random state."""
        for stage, number in call.scope.skip(played.about.inside):
            self.player.played.add(replace(played.key, stage=stage, call=number))
        call.scope.end_call()
        if call.decision.action is Action.REPLAY:
            call.scope.note_replayed(call.stage.name)
        self.calls_made.note(call, played)
        random = played.about.random
        if self.settings.random_state and call.decision.action is Action.REPLAY and random is not None:
            random_state.restore(random)
        return played.value

    def begin_rest(
        self, stage: Stage, scope: Scope, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """A live call for what no recording answers, to be recorded beside what was."""
        decision = Decision(Action.RECORD, key.step, "what is not on the tape runs live and is saved")
        noted = stage.by_content(args, kwargs) if stage.by_content else None
        inputs = self._inputs(stage, key, decision, args, kwargs)
        self._claim(key)
        return Call(self, stage, key, scope, decision, scope.called - 1, inputs, by_content=noted)

    def tell_by_content(self, answered: int, generated: int) -> None:
        """Count samples that were answered by content, and those that were generated beside them."""
        self._tally.add(by_content=answered, generated=generated)

    def copy(self, call: Call, value: Any, seconds: float, inside: Mapping[str, int]) -> Job | None:
        """Copy the result of a live call, where it is to be recorded, for ``submit``."""
        self._tally.add(seconds_live=seconds, live=not call.decision.saves)
        order = call.scope.end_call()
        return self.recorder.copy(call, value, seconds, inside, order) if call.decision.saves else None

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
        keeps = mode is Mode.AUTO or (mode is Mode.RECORD and overwrite is Overwrite.KEEP)
        refuses = self._is_out and overwrite is Overwrite.ERROR
        with self._lock:
            if keeps or refuses:
                if split not in self._logged:
                    self._logged[split] = logged_steps(self.storage, split, self.settings.rank)
                if step in self._logged[split] and refuses:
                    raise self._step_of_earlier_replay(step, metrics_path(split))
                if step in self._logged[split]:
                    return
            elif mode is Mode.REWRITE or overwrite is Overwrite.REWRITE:
                new = (split, step) not in self._renewed
                self._renewed.add((split, step))
        self.recorder.append_metrics(split, step, metrics, new=new)

    def flush(self) -> None:
        """Wait until everything is written down; raises what went wrong.

        For an object store that is in the spool of this machine: the store itself is given a moment.
        """
        self.recorder.writer.wait()
        self.recorder.open_steps.wait()
        self.recorder.store_index()
        self.storage.settle(_MOMENT, patient=False)
        self.recorder.complete()
        self.recorder.raise_failure()
        if self.out is not None:
            self.out.flush()

    def summary(self) -> Summary:
        """What was done so far. Lists the stages that were replayed."""
        if self._last is not None:
            return self._last
        waiting = tuple(self.storage.settle(0).names)
        try:
            return self._tally.summary(tuple(self._never_played()), waiting)
        except RolltapeError as error:
            log.warning("what was never played cannot be told: %s", error)
            return self._tally.summary(waiting=waiting)

    def close(self, *, failing: bool = False) -> None:
        """Write what is pending, say what was done; raises what went wrong.

        ``failing`` if it is closed because of an error: then the step it was in is not over.
        """
        first = not self.closed
        if first:
            self.recorder.writer.close()
            self.recorder.open_steps.wait()
            self.recorder.store_index()
            left = self.storage.settle(seconds(DEADLINE))
            self.recorder.complete(last=True)
            self.recorder.sweep()
            self.recorder.note_refusals()  # the summary is to have them
            self.player.close()
            self.closed = True
            _open.discard(self)
            self._last = self.summary()
            loud = logging.WARNING if self._last.lost or self._last.waiting else logging.INFO
            log.log(loud, "tape %s: %s", self.storage.location, self._last)
            tell_run(self.storage.location, self.settings.mode, self._last.replayed)
            if left.names:
                self.recorder.not_up(left)
        if self.out is not None:
            self.out.close()
        self.recorder.raise_failure()
        if first and not failing and self._last is not None:
            self.calls_made.at_close(self._last.never_played)

    # -- parts -----------------------------------------------------------------------------------------

    @property
    def _is_out(self) -> bool:
        """Whether this is the second tape of a replay, which that replay writes."""
        return self.manifest.baseline is not None and self.settings.mode is Mode.RECORD

    def _step_of_earlier_replay(self, step: int, path: str) -> StepExistsError:
        return StepExistsError(
            f"the tape `out` has step {step} already: an earlier replay wrote it",
            where=f"{self.storage.location}/{path}",
            hint="set overwrite=rewrite to replace what that replay wrote, or give another directory as out",
        )

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

    def _arguments(
        self, stage: Stage, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """The digests of the arguments, where they are recorded (instead of the arguments) or checked."""
        checked = (
            decision.action is Action.REPLAY and self.settings.match.get("inputs") is not MatchLevel.IGNORE
        )
        if stage.naming is None or not (checked or (decision.saves and stage.inputs is None)):
            return None
        named = stage.naming.named(args, kwargs)
        if stage.inputs is not None:
            named = {name: named[name] for name in stage.inputs.names if name in named}
        found = Arguments.of(named, stage.naming)
        self._tell_left_out(stage, found, decision)
        return found

    def _tell_left_out(self, stage: Stage, arguments: Arguments, decision: Decision) -> None:
        with self._lock:
            new = [left for left in arguments.left_out if (stage.name, left.path) not in self._left_out]
            self._left_out.update((stage.name, left.path) for left in new)
        if not new:
            return
        listed = ", ".join(f"`{left.path}` ({left.kind})" for left in new)
        data = decision.saves and any(left.is_data for left in new)
        log.log(
            logging.WARNING if data else logging.INFO,
            "stage %r: %s cannot be digested, so a replay does not compare it%s",
            stage.name,
            listed,
            "; give a list instead of an iterator, teach Rolltape other types with rolltape.register_adapter"
            if data
            else "",
        )

    def _read_ahead(self, call: Call) -> None:
        """Begin to read what will probably be asked for next; finding out what that is takes time, too."""
        key = call.key
        if isinstance(key.call, str):
            return
        with self._lock:
            last, stride = self._strides.get((key.split, key.stage), (None, 1))
            if last is not None and key.step > last:
                stride = key.step - last
            self._strides[key.split, key.stage] = key.step, stride
        self.player.read_ahead(key, self._following(call, stride))

    def _following(self, call: Call, stride: int) -> Iterator[Key]:
        """What will probably be asked for: the next calls of the step, then those of the next steps."""
        key, replays = call.key, call.decision.action is Action.REPLAY
        while True:
            again = replace(key, call=int(key.call) + 1)
            if replays and self._is_there(again):
                key = again
                yield key
                continue
            if key.step + stride > MAX_STEP:
                return
            key = source = replace(key, step=key.step + stride, call=0)
            replays = self.player.is_read_ahead(key)
            if not replays:
                decision = self.decide(key)
                if decision.source is None:
                    return
                replays = decision.action is Action.REPLAY
                source = replace(key, step=decision.source)
            yield source

    def _is_there(self, key: Key) -> bool:
        return self.player.is_read_ahead(key) or self.recorder.step_index.has_further(key)

    def _has_writer(self) -> bool:
        """Whether another tape of this very program still writes here, and may not have written all."""
        others = [each for each in list(_open) if each is not self and each.settings.mode is not Mode.REPLAY]
        return any(each.storage.location == self.storage.location for each in others)

    def _never_played(self) -> Iterator[str]:
        shard = self.settings.rank, self.settings.world_size
        known = self.player.played | self.recorder.recorded
        for split, stage in sorted({(key.split, key.stage) for key in self.player.played.copy()}):
            for key in recordings(self.storage, split, stage):
                mine = (key.rank, key.world_size) == shard and key.step in self.settings.steps
                if mine and key not in known:
                    yield key.path


_open: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _close_all() -> None:
    failures = []
    failing = getattr(sys, "last_value", None) is not None  # the program ends with a traceback
    for dispatcher in list(_open):
        try:
            dispatcher.close(failing=failing)
        except MismatchError as error:
            log.error("%s", error)
            tell_run(dispatcher.storage.location, dispatcher.settings.mode, mismatch=error.what)
        except RolltapeError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _after_fork() -> None:
    for dispatcher in list(_open):
        dispatcher.load()
        dispatcher.calls_made.alone = False


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
