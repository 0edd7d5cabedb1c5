"""``Tape``: records what stages return, and returns what they recorded."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rolltape.batch.tree import Dismantled
from rolltape.codec.pack import Packed
from rolltape.errors import NoStepError, StageError, StepMissingError, TapeClosedError
from rolltape.key import Key, check_name
from rolltape.policy import Action, Decision, Mode, decide
from rolltape.settings import Settings, load_file, resolve
from rolltape.steps import as_step
from rolltape.storage import LocalStorage
from rolltape.tape.dtypes import expected_dtypes
from rolltape.tape.inputs import chosen_inputs, pack_inputs
from rolltape.tape.metrics import plain_metrics, read_metrics
from rolltape.tape.missing import explain_missing
from rolltape.tape.opening import open_tape, resolved_dir
from rolltape.tape.player import Player
from rolltape.tape.recorder import Recorder
from rolltape.tape.recording import Recording
from rolltape.tape.scope import Scope, current, entered
from rolltape.tape.shelf import RecordedSteps, recordings
from rolltape.tape.stage import Stage, wrap
from rolltape.tape.summary import Summary

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Begun:
    """A stage call for which it is decided what happens."""

    stage: Stage
    key: Key
    decision: Decision
    inputs: tuple[Dismantled, Packed] | None


class Tape:
    """What was recorded of one run: a directory that stages write to, or are replayed from.

    >>> import tempfile
    >>> with Tape(tempfile.mkdtemp() + "/run", mode="record") as tape:
    ...     @tape.stage("rollout")
    ...     def generate(prompts):
    ...         return {"responses": [p.upper() for p in prompts]}
    ...     with tape.step(0):
    ...         batch = generate(["a", "b"])
    >>> batch
    {'responses': ['A', 'B']}
    """

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        *,
        on_miss: str | None = None,
        beyond: str | None = None,
        steps: Any = None,
        overwrite: str | None = None,
        split: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        match: Mapping[str, str] | None = None,
        max_keep: int | None = None,
        pin_steps: Any = None,
        on_error: str | None = None,
        background: bool | None = None,
        prefetch: bool | None = None,
        max_pending_bytes: int | str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Open a tape. What is not given comes from ``ROLLTAPE_*`` variables, then from the defaults.

        The options are those of :class:`rolltape.Settings`, where each is explained.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "settings")}
        self.settings = settings or resolve(given, os.environ)
        self.is_off = self.settings.mode is Mode.OFF
        self._stages: dict[str, Stage] = {}
        self._summary = Summary()
        self._closed = False
        self._lock = threading.Lock()
        self._logged: dict[str, set[int]] = {}
        if self.is_off:
            return
        self.dir = resolved_dir(self.settings.dir or ".")
        self._storage = LocalStorage(self.dir)
        self.manifest = open_tape(self._storage, self.settings)
        self._recorder = Recorder(self._storage, self.settings, self._summary)
        self._player = Player(self._storage, self.settings, self._summary)
        atexit.register(_close_at_exit, weakref.ref(self))
        log.info("tape %s, mode %s", self.dir, self.settings.mode)

    @classmethod
    def from_config(cls, config: Any, **arguments: Any) -> Tape:
        """A tape from a mapping, a dataclass, an OmegaConf config or a YAML/JSON file, or a section ``rolltape`` of it."""
        return cls(settings=resolve(arguments, os.environ, load_file(config)))

    @classmethod
    def from_env(cls) -> Tape:
        """A tape from ``ROLLTAPE_*`` variables alone; off if they name no directory."""
        return cls(settings=resolve({}, os.environ))

    def __repr__(self) -> str:
        return "Tape(off)" if self.is_off else f"Tape({self.dir!r}, mode={str(self.settings.mode)!r})"

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    def stage(
        self,
        name: str,
        *,
        inputs: bool | Sequence[str] = False,
        expect: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a function, a method or a coroutine function a stage whose result is recorded and replayed.

        ``inputs`` records its arguments too (all, or those named), and replay checks them. ``expect`` maps
        columns to the dtype they must have.
        """
        check_name("stage", name)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            stage = Stage(name, function, inputs, expected_dtypes(expect or {}))
            self._declare(stage)
            return wrap(self, stage)

        return decorate

    @contextmanager
    def step(self, step: int, *, split: str | None = None, key: str | None = None) -> Iterator[None]:
        """The step that stages called inside belong to: in this thread, or in this asyncio task.

        ``key`` names the calls made inside, for pipelines where many run at once in no fixed order.
        """
        scope = Scope(as_step(step), check_name("split", split or self.settings.split), key)
        if self.is_off:
            yield
            return
        self._usable()
        with entered(id(self), scope):
            try:
                yield
            finally:
                self._keep_metrics(scope.split, scope.step, scope.metrics)
        self._recorder.raise_failure()

    def log(self, metrics: Mapping[str, Any], *, step: int | None = None, split: str | None = None) -> None:
        """Put numbers of this step on the tape, exactly. In replay nothing is written."""
        plain = plain_metrics(metrics)
        if self.is_off:
            return
        self._usable()
        scope = current(id(self))
        if step is not None:
            self._keep_metrics(check_name("split", split or self.settings.split), as_step(step), plain)
        elif scope is not None:
            scope.metrics.update(plain)
        else:
            raise _no_step("tape.log")

    def metrics(self, split: str | None = None) -> dict[int, dict[str, Any]]:
        """Everything logged on the tape, by step."""
        self._usable()
        self.flush()
        return read_metrics(self._storage, split or self.settings.split)

    def plan(self, step: int, stage: str = "rollout", split: str | None = None) -> Decision:
        """What would happen at this step, and why. Nothing is done."""
        if self.is_off:
            return decide(step, (), self.settings.policy)
        return self._decide(self._key(stage, as_step(step), split or self.settings.split, 0))

    def needs_engine(self, steps: Iterable[int], stage: str = "rollout", split: str | None = None) -> bool:
        """Whether any of these steps would run live, so that an inference engine has to be started."""
        return any(self.plan(step, stage, split).calls_live for step in steps)

    def recordings(self, split: str | None = None, stage: str | None = None) -> Iterator[Recording]:
        """Everything on the tape, in order; reads names only."""
        self._usable()
        return (Recording(self._storage, key) for key in recordings(self._storage, split, stage))

    def recording(
        self,
        step: int,
        stage: str = "rollout",
        split: str | None = None,
        call: int | str = 0,
        *,
        inputs: bool = False,
    ) -> Recording:
        """One recording, to read all or part of; ``inputs`` for the inputs of that call."""
        self._usable()
        key = replace(self._key(stage, as_step(step), split or self.settings.split, call), inputs=inputs)
        self._recorder.writer.wait(replace(key, inputs=False).path)
        if not self._storage.exists(key.path):
            raise explain_missing(self._storage, key)
        return Recording(self._storage, key)

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk; raises what went wrong."""
        if not self.is_off:
            self._recorder.flush()

    def summary(self) -> Summary:
        """What this tape has done so far."""
        if not self.is_off and self._player.played:
            stages = {(key.split, key.stage) for key in self._player.played}
            unplayed = [
                key.path
                for split, stage in sorted(stages)
                for key in recordings(self._storage, split, stage)
                if key not in self._player.played and key.rank == self.settings.rank
            ]
            self._summary.never_played = unplayed
        return self._summary

    def close(self) -> Summary:
        """Write what is pending, say what was done, and let go of the tape. Raises what went wrong."""
        if self.is_off or self._closed:
            return self._summary
        self._recorder.writer.close()
        self._player.close()
        self._closed = True
        summary = self.summary()
        loud = logging.WARNING if summary.lost else logging.INFO
        log.log(loud, "tape %s: %s", self.dir, summary)
        self._recorder.raise_failure()
        return summary

    def _declare(self, stage: Stage) -> None:
        known = self._stages.get(stage.name)
        if known is not None and _origin(known) != _origin(stage):
            raise StageError(
                f"there are two stages of the name {stage.name!r}: "
                f"{'.'.join(_origin(known))} and {'.'.join(_origin(stage))}",
                hint="give each function a stage name of its own",
            )
        self._stages[stage.name] = stage

    def _usable(self) -> None:
        if self._closed:
            raise TapeClosedError(f"the tape {self.dir} is closed", hint="open it again")

    def _key(self, stage: str, step: int, split: str, call: int | str) -> Key:
        return Key(
            split=split, stage=stage, step=step, call=call,
            rank=self.settings.rank, world_size=self.settings.world_size,
        )  # fmt: skip

    def _decide(self, key: Key) -> Decision:
        recorded = RecordedSteps(self._storage, self._recorder.writer, key)
        return decide(key.step, recorded, self.settings.policy)

    def _begin(self, stage: Stage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun:
        """Decide what happens to a call, and copy its inputs while they are as given."""
        self._usable()
        self._recorder.raise_failure()
        scope = current(id(self))
        if scope is None:
            raise _no_step(f"stage {stage.name!r}")
        key = self._key(stage.name, scope.step, scope.split, scope.next_call(stage.name))
        decision = self._decide(key)
        with self._lock:
            self._summary.missing += (
                decision.action is Action.SUBSTITUTE or decision.error is StepMissingError
            )
        if decision.error is StepMissingError:
            raise explain_missing(self._storage, key, decision)
        if decision.error is not None:
            raise decision.error(decision.reason, where=f"{self.dir}/{key.path}", hint=decision.hint)
        inputs = None
        if stage.inputs and (decision.plays or decision.saves):
            inputs = pack_inputs(chosen_inputs(stage.function, stage.inputs, args, kwargs))
        return Begun(stage, key, decision, inputs)

    def _play(self, begun: Begun) -> Any:
        key, decision = begun.key, begun.decision
        if decision.source is not None:
            self._recorder.writer.wait(replace(key, step=decision.source).path)

        def following() -> Key | None:
            after = replace(key, step=key.step + 1)
            ahead = self._decide(after)
            return replace(after, step=ahead.source) if ahead.plays and ahead.source is not None else None

        return self._player.play(
            key, decision, expect=begun.stage.expect, inputs=begun.inputs, following=following
        )

    def _finish(self, begun: Begun, value: Any, seconds: float) -> None:
        """Record the result of a live call, where that was decided."""
        with self._lock:
            self._summary.seconds_live += seconds
            self._summary.live += not begun.decision.saves
        if begun.decision.saves:
            self._recorder.save(
                begun.key,
                value,
                seconds=seconds,
                inputs=None if begun.inputs is None else begun.inputs[1],
                replacing=begun.decision.action is Action.REWRITE,
                expect=begun.stage.expect,
            )

    def _keep_metrics(self, split: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Write metrics, unless this run replays: then the tape's are those of the recorded run."""
        if not metrics or self.settings.mode is Mode.REPLAY:
            return
        if self.settings.mode is Mode.AUTO:
            with self._lock:
                if split not in self._logged:
                    self._logged[split] = set(read_metrics(self._storage, split))
            if step in self._logged[split]:
                return
        self._recorder.append_metrics(split, step, metrics)


def _no_step(what: str) -> NoStepError:
    return NoStepError(
        f"{what} was called outside a step",
        causes=[
            "the call is not inside `with tape.step(n):`",
            "it runs in another thread, which does not see the step of the one that started it",
        ],
        hint="enter `with tape.step(n):` around the call, in the thread that makes it",
    )


def _origin(stage: Stage) -> tuple[str, str]:
    function = stage.function
    name = getattr(function, "__qualname__", repr(function))
    unique = f"#{id(function)}" if "<lambda>" in name else ""
    return getattr(function, "__module__", "?") or "?", name + unique


def _close_at_exit(reference: weakref.ref[Tape]) -> None:
    tape = reference()
    if tape is not None:
        tape.close()
