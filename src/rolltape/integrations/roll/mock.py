"""``RolloutMock``: the tape of one scheduler. Dumps what a live ``get_batch`` returns, or loads it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from rolltape.errors import DiskFullError, StepExistsError, StepMissingError
from rolltape.integrations.roll.estimate import Estimate, megabytes, shortage
from rolltape.integrations.roll.explaining import TITLE, import_command, missing_step, pickled
from rolltape.key import Key
from rolltape.policy import Action
from rolltape.tape import Recording, Tape
from rolltape.tape.missing import ranges

log = logging.getLogger("rolltape.roll")

Inputs = Mapping[str, Any]
_NOTHING = object()


class Run:
    """One running call of ``get_batch``."""

    def __init__(self, live: Callable[[], Any], refuse: Callable[[], None]) -> None:
        self._live = live
        self._refuse = refuse
        self.ran = False
        self.noted: Any = _NOTHING
        """The batch that the scheduler passed to be dumped: complete, while its result may be a reference."""
        self.result: Any = None

    def sync(self) -> Any:
        """Run live; return what to record."""
        with self._running():
            self.result = self._live()
        return self._recorded()

    async def asynchronous(self) -> Any:
        """Run live; return what to record."""
        with self._running():
            self.result = await self._live()
        return self._recorded()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self._refuse()
        self.ran = True
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _recorded(self) -> Any:
        self._refuse()
        return self.result if self.noted is _NOTHING else self.noted


_current: ContextVar[Run | None] = ContextVar("rolltape_roll_run", default=None)


def current_run() -> Run | None:
    """The live ``get_batch`` that the caller runs inside, if any."""
    return _current.get()


def _live(run: Run, batch_size: Any = None, generation_config: Any = None) -> Any:
    return run.sync()


async def _live_async(run: Run, batch_size: Any = None, generation_config: Any = None) -> Any:
    return await run.asynchronous()


class RolloutMock:
    """What the tape does for one scheduler: one split, one stage."""

    def __init__(self, tape: Tape, split: str, stage: str, estimate: Estimate) -> None:
        self.tape = tape
        self.split = split
        self.stage = stage
        self._estimate = estimate
        self._calls: Counter[int] = Counter()
        self._dumped: set[int] = set()
        self._at_first = frozenset(recording.key.step for recording in tape.recordings(split, stage))

    def look_ahead(self, max_steps: int) -> None:
        """Warn before the first step about what will fail later."""
        if self.saves():
            self._warn_of_shortage()
        elif self.split == "train" and self._at_first and max_steps > max(self._at_first) + 1:
            found = ranges(sorted(self._at_first))
            log.warning("%s max_steps is %d, but the recorded steps are %s", TITLE, max_steps, found)

    def loads(self, step: int) -> bool:
        """Whether this step comes from the tape, or should but is missing."""
        plan = self.tape.plan(step, self.stage, self.split)
        return plan.plays or plan.error is StepMissingError

    def saves(self) -> bool:
        """Whether anything is dumped in this run."""
        return str(self.tape.settings.mode) in ("record", "rewrite", "auto")

    def get(self, step: int, inputs: Inputs | None, live: Callable[[], Any]) -> Any:
        """The batch of a step: recorded, or live and then dumped."""
        key, run = self._begin(step, live)
        stage = self._declared(_live, key, inputs)
        with self._explaining(key, run), self._entered(key):
            value = stage(run, **(inputs or {}))
        return self._end(key, run, value)

    async def get_async(self, step: int, inputs: Inputs | None, live: Callable[[], Awaitable[Any]]) -> Any:
        """The same for a coroutine."""
        key, run = self._begin(step, live)
        stage = self._declared(_live_async, key, inputs)
        with self._explaining(key, run), self._entered(key):
            value = await stage(run, **(inputs or {}))
        return await asyncio.to_thread(self._end, key, run, value)

    def _begin(self, step: int, live: Callable[[], Any]) -> tuple[Key, Run]:
        number = self._calls[step]
        self._calls[step] += 1
        key = Key(split=self.split, stage=self.stage, step=step, call=f"call-{number}" if number else 0)
        if number and self.loads(step) and not self._holds(key):
            log.warning("%s step %d was dumped only once and is loaded again", TITLE, step)
            key = replace(key, call=0)
        return key, Run(live, lambda: self._refuse_another_writer(key))

    def _holds(self, key: Key) -> bool:
        return any(recording.key == key for recording in self.tape.recordings(key.split, key.stage))

    def _entered(self, key: Key) -> contextlib.AbstractContextManager[None]:
        name = key.call if isinstance(key.call, str) else None
        return self.tape.step(key.step, split=key.split, key=name)

    def _declared(self, function: Callable[..., Any], key: Key, inputs: Inputs | None) -> Callable[..., Any]:
        """The stage, with inputs if there are any to compare: imported dumps of ROLL have none."""
        compared = inputs is not None
        if compared and self.loads(key.step):
            recording = self._recording(key)
            compared = recording is None or recording.about.inputs is not None
        names = list(inputs or ()) if compared else False
        return self.tape.stage(self.stage, inputs=names)(function)

    def _refuse_another_writer(self, key: Key) -> None:
        """Two schedulers that dump the same step would overwrite each other, as ROLL's domains do."""
        if key.call or key.step in self._at_first or key.step in self._dumped:
            return
        if self.tape.plan(key.step, key.stage, key.split).action is not Action.REWRITE:
            return
        raise StepExistsError(
            f"{TITLE} another scheduler of this run has dumped step {key.step} to the same file",
            where=f"{self.tape.dir}/{key.path}",
            causes=["two schedulers have the same mode and do not serve separate domains"],
            hint="give each its own stage: override _get_mock_stage() in the scheduler",
        )

    @contextlib.contextmanager
    def _explaining(self, key: Key, run: Run) -> Iterator[None]:
        try:
            yield
        except StepMissingError:
            if run.ran:  # it is the scheduler's own
                raise
            raise missing_step(self.tape, key) from None
        except DiskFullError as error:
            raise self._disk_full(key, error) from error

    def _end(self, key: Key, run: Run, value: Any) -> Any:
        """Wait until the dump is on disk: Ray may kill an actor once the pipeline has its last batch."""
        if not run.ran:
            recording = self._recording(key)
            log.info("%s Loaded step %d: %s", TITLE, key.step, _shown(recording))
            return value
        with self._explaining(key, run):
            self.tape.flush()
        if (recording := self._recording(key)) is not None:  # else it was not saved, or was lost
            size = f"size={megabytes(recording.size)}"
            log.info("%s Dumped step %d: %s", TITLE, key.step, _shown(recording, size))
            self._dumped.add(key.step)
            first = not self._estimate.measured
            self._estimate = self._estimate.after(recording.size)
            if first:
                self._warn_of_shortage()
        return run.result

    def _recording(self, key: Key) -> Recording | None:
        with contextlib.suppress(StepMissingError):
            return self.tape.recording(key.step, key.stage, key.split, key.call)
        return None

    def _warn_of_shortage(self) -> None:
        free = shutil.disk_usage(str(self.tape.dir)).free
        if message := shortage(self._estimate, len(self._dumped), free):
            log.warning("%s %s", TITLE, message)

    def _disk_full(self, key: Key, error: DiskFullError) -> DiskFullError:
        done = f"steps {ranges(sorted(self._dumped))} are complete" if self._dumped else "no step was dumped"
        left = self._estimate.remaining(len(self._dumped))
        needed = f"; the rest of the run needs about {megabytes(left)}" if left else ""
        return DiskFullError(
            f"{TITLE} no space left for step {key.step}: {error.what}",
            where=error.where,
            causes=[*error.causes, f"{done}{needed}"],
            hint="free space, lower max_steps, or set rollout_mock.dump_dir to a larger disk",
        )


def announce(tape: Tape, split: str) -> None:
    """Log what a scheduler's tape does, and which older dumps it does not use."""
    mode = {"record": "dump", "replay": "mock"}.get(str(tape.settings.mode), tape.settings.mode)
    log.info("%s Rollout Mock enabled: mode=%s, dir=%s, scheduler_mode=%s", TITLE, mode, tape.dir, split)
    there = {(recording.key.split, recording.key.step) for recording in tape.recordings()}
    pickles = [dump for dump in pickled(str(tape.dir)) if (dump.split, dump.step) not in there]
    if pickles:
        command = import_command(str(tape.dir))
        log.warning("%s %d pickled dumps are not used; to use them, run: %s", TITLE, len(pickles), command)


def _shown(recording: Recording | None, *more: str) -> str:
    """A recording in the form of ROLL's log lines."""
    if recording is None:  # another step was substituted, which the tape has logged
        return "from another step"
    return f"{recording.where} ({', '.join([f'samples={recording.samples}', *more])})"
