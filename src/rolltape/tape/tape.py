"""``Tape``: records what stages return, and returns what they recorded."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar, overload

from rolltape.batch.one_sample import SampleChoice
from rolltape.config_file import load_file
from rolltape.errors import RolltapeError, StageError
from rolltape.hooks import hook
from rolltape.key import check_name
from rolltape.policy import Mode
from rolltape.settings import Settings, resolve
from rolltape.steps import as_step
from rolltape.tape.call_arguments import Naming
from rolltape.tape.dispatcher import Dispatcher
from rolltape.tape.expected_dtypes import expected_dtypes
from rolltape.tape.inputs import Chooser
from rolltape.tape.manifest import Manifest
from rolltape.tape.metrics import plain_metrics
from rolltape.tape.open_step import LiveCall, SampleName, await_sample, live_call, make_sample
from rolltape.tape.opening import begin_out, check_stages, open_tape, storage_of
from rolltape.tape.probe import Sampling, Watch, probe, watch
from rolltape.tape.questions import Reading
from rolltape.tape.scope import Scope, current, entered, no_step
from rolltape.tape.stage import Stage, is_async, wrap
from rolltape.tape.summary import Summary

_Engine = TypeVar("_Engine")
_Sample = TypeVar("_Sample")

log = logging.getLogger("rolltape")

_numbers = count()


class Tape(Reading):
    """What was recorded of one run: a directory that stages write to, or are replayed from.

    Safe to use from several threads, from asyncio tasks, and after a fork.

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

    settings: Settings
    """The options, read and checked."""
    dir: str | None
    """Where the tape is, as an absolute path; None if it is off."""
    manifest: Manifest | None
    """What ``tape.json`` says; None if the tape is off."""
    out: Tape | None
    """The second tape, which takes what a replay computes anew; None if there is none."""

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        *,
        on_miss: str | None = None,
        beyond: str | None = None,
        steps: Any = None,
        overwrite: str | None = None,
        out: str | os.PathLike[str] | None = None,
        stages: Sequence[str] | str | None = None,
        split: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        reshard: bool | None = None,
        by: str | None = None,
        version: str | None = None,
        draw: int | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        match: Mapping[str, str] | None = None,
        max_keep: int | None = None,
        pin_steps: Any = None,
        on_error: str | None = None,
        background: bool | None = None,
        random_state: bool | None = None,
        prefetch: bool | None = None,
        max_pending_bytes: int | str | None = None,
        recycle: int | str | None = None,
        pin: bool | None = None,
        lazy: bool | None = None,
        spool: str | os.PathLike[str] | None = None,
        max_spool_bytes: int | str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Open a tape. What is not given comes from ``ROLLTAPE_*`` variables, then from the defaults.

        The options are those of :class:`rolltape.Settings`, which explains them; ``settings`` gives all.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "settings")}
        self._open(settings or resolve(given, os.environ))

    def _open(
        self,
        settings: Settings,
        run: str | None = None,
        out_run: str | None = None,
        session: str | None = None,
    ) -> Tape:
        """Open the tape; the others are what another process of this program has begun."""
        self.settings = settings
        self.dir = self.manifest = self.out = None
        self._dispatcher: Dispatcher | None = None
        self._stages: dict[str, Stage] = {}
        self._knows_stages = False
        self._number = next(_numbers)
        if self.is_off:
            return self
        storage = storage_of(self.settings)
        self.dir = storage.location
        self.manifest = open_tape(storage, self.settings)
        if self.settings.out is not None:
            settings, out_run = begin_out(self.settings, self.manifest, self.dir, out_run)
            self.out = _opened(type(self), settings, out_run, session=session)
        self._dispatcher = Dispatcher(
            storage, self.settings, self.manifest, self.out._dispatcher if self.out else None, run, session
        )
        log.info("tape %s, mode %s", self.dir, self.settings.mode)
        return self

    @classmethod
    def from_config(cls, config: Any, **arguments: Any) -> Tape:
        """A tape from a mapping, a dataclass, OmegaConf or a YAML/JSON file, or its ``rolltape`` section."""
        return cls(settings=resolve(arguments, os.environ, load_file(config)))

    @classmethod
    def from_env(cls, **arguments: Any) -> Tape:
        """A tape that is steered from outside, by ``ROLLTAPE_*`` variables; off if they name no directory.

        ``arguments`` are options that the program itself decides, such as its fingerprint. As everywhere they
        beat the environment, so leave out ``dir`` and ``mode``. ``Tape(**arguments)`` is the same.
        """
        return cls(**arguments)

    @property
    def is_off(self) -> bool:
        """Whether the tape does nothing: stages run as if they were not stages."""
        return self.settings.mode is Mode.OFF

    def __repr__(self) -> str:
        return "Tape(off)" if self.is_off else f"Tape({self.dir!r}, mode={str(self.settings.mode)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process, a Ray actor say, it is the same tape, whatever the working directory is there.
        if self._dispatcher is not None:
            self._dispatcher.calls_made.alone = False
        out, run = (self.out.dir, self.out._run) if self.out else (None, None)
        settings = replace(self.settings, dir=self.dir or self.settings.dir, out=out)
        session = self._dispatcher.session if self._dispatcher else None
        return _elsewhere, (type(self), settings, self._run, run, session)

    def __enter__(self) -> Tape:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._close(failing=error is not None)
        except RolltapeError as failure:
            if error is None:
                raise
            log.error("the tape could not be closed well either: %s", failure)  # the first error is the cause

    def stage(
        self,
        name: str,
        *,
        inputs: bool | Sequence[str] | None = None,
        expect: Mapping[str, Any] | None = None,
        replay: bool = True,
        samples: str = "auto",
        by: str = "step",
        prompts: str | Sequence[str] | None = None,
        n: str | int | None = None,
        sampling: str | Sequence[str] | None = None,
        weights: str | None = None,
        first: str | None = None,
        version: str = "same",
        draw: int | None = None,
        pad: int | None = None,
        along: str | Sequence[str] | None = None,
        gather: Callable[[Any], Sequence[Any]] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a function, a method or a coroutine function a stage whose result is recorded and replayed.

        A digest of every argument is recorded, and replay compares it. ``inputs`` records the arguments
        themselves (all, or those named), and only these are compared; with ``inputs=False`` none is.
        ``expect`` maps columns to the dtype they must have. With ``replay=False`` it is recorded, and runs in
        every replay all the same: what it returns there goes to the tape ``out``, to be compared. ``samples``
        says what a sample is: ``rows`` of what a call returns, ``one`` for all of it, or ``auto``, which is
        ``one`` for one object that a call with a ``key`` returned.

        With ``by="prompt"`` samples are answered from wherever the same prompt with the same sampling was
        recorded; what is missing is generated in one call, and recorded. ``prompts`` names the argument that
        holds them (or several that make them up), ``n`` the one that says how many samples each gets (or
        their number), ``sampling`` those that say how they are drawn (default: all others). ``version`` says
        which policy's samples may answer: ``same``, ``any``, ``nearest`` or ``<= 2 old``; the version is the
        argument ``weights``, or the step. ``first`` is told the number of the first sample that is missing of
        each prompt. Of more than are asked for, the first answer, or ``draw`` is the seed that picks them.
        ``pad`` is the padding of token ids that batches of other widths have, where no mask shows it.
        ``along`` names arguments that have an entry for each prompt too, such as answers, and are no part of
        prompts or sampling. ``gather`` lets ranks tell each other what they ask for, so that no two get the
        same sample: it gives what each was given, in their order (``accelerate.utils.gather_object``, say).
        """
        check_name("stage", name)
        dtypes = expected_dtypes(expect or {})
        choice = SampleChoice.parse(samples)
        told: dict[str, Any] = {
            "prompts": prompts,
            "n": n,
            "sampling": sampling,
            "weights": weights,
            "first": first,
        }
        told |= {"draw": draw, "pad": pad, "along": along, "gather": gather}
        by_step = by == "step" and version == "same" and all(value is None for value in told.values())
        # What knows prompts lies above.
        by_prompt = None if by_step else hook("by prompt")(by, version=version, **told)

        def decorate(function: Any) -> Any:
            if isinstance(function, (staticmethod, classmethod)):
                return type(function)(decorate(function.__func__))
            compared = replay and (
                inputs is None or bool(inputs)
            )  # what runs in every replay is judged by its result
            naming = Naming.of(function) if compared else None
            if by_prompt is not None:
                stage, wrapped = by_prompt.wrap(self, name, function, inputs, dtypes, choice)
            else:
                chosen = Chooser.of(function, inputs or False)
                stage = Stage(name, function, chosen, naming, dtypes, replay, choice)
                wrapped = wrap(self, stage)
            self._declare(stage)
            return wrapped

        return decorate

    @overload
    def engine(
        self, engine: Callable[[], _Engine], *, stage: str = ..., by: str | None = ...,
        version: str | None = ..., draw: int | None = ...,
    ) -> _Engine: ...  # fmt: skip
    @overload
    def engine(
        self, engine: _Engine, *, stage: str = ..., by: str | None = ..., version: str | None = ...,
        draw: int | None = ...,
    ) -> _Engine: ...  # fmt: skip
    def engine(
        self,
        engine: Any,
        *,
        stage: str = "rollout",
        by: str | None = None,
        version: str | None = None,
        draw: int | None = None,
    ) -> Any:
        """An engine whose rollouts this tape records and replays, prompts and sampling checked.

        Pass a function that makes the engine: where every step is replayed it is never called. With
        ``by="prompt"`` completions are answered from wherever the same prompt was recorded with the same
        sampling and the same weights, and only what is missing is generated; see :meth:`stage`. What is not
        given is as the options of the tape say.
        """
        own = self.settings
        by = str(own.by) if by is None else by
        if by != "step":  # what is given here is of this engine alone
            version = own.version if version is None else version
            draw = own.draw if draw is None else draw
        return hook("engine")(self, engine, stage, by, version or "same", draw)  # engines lie above the tape

    def sample(
        self, name: SampleName, function: Callable[..., _Sample], /, *args: Any, **kwargs: Any
    ) -> _Sample:
        """Make one sample of a stage, inside its function, as ``function(*args, **kwargs)``, and keep it.

        If the run is killed before the step is recorded, the next one finds the samples that had finished,
        bit for bit, and makes the others only. ``name`` tells the samples of a call apart. What each is given
        is compared, and so are the arguments of the stage: after a change they are refused, never mixed.
        Samples may be made in threads and in asyncio tasks; of an async function, ``await`` the result.

        >>> import tempfile
        >>> with Tape(tempfile.mkdtemp() + "/run", mode="record") as tape:
        ...     @tape.stage("rollout")
        ...     def generate(prompts):
        ...         return [tape.sample(at, str.upper, prompt) for at, prompt in enumerate(prompts)]
        ...     with tape.step(0):
        ...         batch = generate(["a", "b"])
        >>> batch
        ['A', 'B']
        """
        live = None if self._dispatcher is None else self._live_call("tape.sample")
        if is_async(function):
            return await_sample(live, name, function, args, kwargs)  # type: ignore[return-value]
        made: _Sample = make_sample(live, name, function, args, kwargs)
        return made

    def _live_call(self, what: str) -> LiveCall:
        """The call of a stage that the running code is in."""
        found = [self._dispatcher, self.out._dispatcher if self.out is not None else None]
        return live_call(tuple(one for one in found if one is not None), what)

    @contextmanager
    def step(self, step: int, *, split: str | None = None, key: str | None = None) -> Iterator[None]:
        """The step that stages called inside belong to: in this thread, or in this asyncio task.

        Calls of a stage are numbered within the block, so a step is entered once. ``key`` names them instead,
        where many run at once in no fixed order. If the block raises, its metrics are not written.
        """
        scope = Scope(as_step(step), check_name("split", split or self.settings.split), key)
        if self._dispatcher is None:
            yield
            return
        dispatcher = self._dispatcher.usable()
        dispatcher.key("check", scope.step, scope.split, 0 if key is None else key)
        with dispatcher.block(scope), entered(self._number, scope):
            yield
        dispatcher.keep_metrics(scope.split, scope.step, scope.metrics)
        self._check_stages(scope)
        dispatcher.recorder.raise_failure()

    def log(self, metrics: Mapping[str, Any], *, step: int | None = None, split: str | None = None) -> None:
        """Put numbers of this step on the tape, exactly. In replay they go to the tape ``out``, if any.

        Inside ``with tape.step(...)`` they are written together when the block ends; with ``step=`` at once.
        """
        if self._dispatcher is None:
            return
        dispatcher = self._dispatcher.usable()
        scope = current(self._number)
        if scope is None and step is None:
            raise no_step("tape.log")
        if self.settings.mode is Mode.REPLAY and self.out is None:
            return
        plain = plain_metrics(metrics)
        if step is not None:
            dispatcher.keep_metrics(check_name("split", split or self.settings.split), as_step(step), plain)
        elif scope is not None and scope.open:
            scope.metrics.update(plain)
        elif scope is not None:  # a task that outlived its block
            dispatcher.keep_metrics(scope.split, scope.step, plain)

    def probe(
        self,
        name: str,
        value: Any,
        *,
        uid: Sequence[Any] | None = None,
        every: int = 1,
        most: int | None = None,
    ) -> None:
        """Record a tensor from inside a step, to be compared later: in a replay it goes to the tape ``out``.

        ``uid`` says whose row each is. ``every=10`` probes only at steps that 10 divides; of more
        than ``most`` elements evenly spaced ones are kept.
        """
        probe(self, name, value, uid, Sampling(every, most))

    def watch(
        self,
        module: Any,
        pattern: str,
        *,
        of: Sequence[str] = ("forward",),
        every: int = 1,
        most: int | None = 4096,
    ) -> Watch:
        """Probe every submodule of a torch module whose name fits ``pattern``, until ``close()``.

        ``of`` says what: ``forward`` (outputs), ``backward`` (their gradients), ``grad`` (those of weights).
        """
        return watch(self, module, pattern, of, Sampling(every, most))

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk; raises what went wrong."""
        if self._dispatcher is not None:
            self._dispatcher.flush()

    def summary(self) -> Summary:
        """What this tape has done so far. To tell what was never played, it lists the stages that were."""
        return Summary() if self._dispatcher is None else self._dispatcher.summary()

    def close(self) -> Summary:
        """Write what is pending, say what was done, and let go of the tape. Raises what went wrong, once."""
        return self._close(failing=sys.exc_info()[1] is not None)

    def _close(self, *, failing: bool) -> Summary:
        if self._dispatcher is not None:
            self._dispatcher.close(failing=failing)
        return self.summary()

    def _declare(self, stage: Stage) -> None:
        known = self._stages.setdefault(stage.name, stage)
        if known.origin != stage.origin:
            raise StageError(
                f"there are two stages of the name {stage.name!r}: {known.origin} and {stage.origin}",
                hint="give each function a stage name of its own",
            )

    def _check_stages(self, scope: Scope) -> None:
        """After the first step that called a stage: by then those that there are have been declared."""
        if self._dispatcher is not None and scope.called and not self._knows_stages:
            self._knows_stages = True
            check_stages(self._dispatcher.storage, self.settings, self._stages)

    @property
    def _run(self) -> str | None:
        return self._dispatcher.run if self._dispatcher else None

    def _scope(self, stage: Stage) -> Scope:
        scope = current(self._number)
        if scope is None:
            raise no_step(f"stage {stage.name!r}")
        return scope


def _opened(
    cls: type[Tape],
    settings: Settings,
    run: str | None,
    out_run: str | None = None,
    session: str | None = None,
) -> Tape:
    return cls.__new__(cls)._open(settings, run, out_run, session)


def _elsewhere(
    cls: type[Tape], settings: Settings, run: str | None, out_run: str | None, session: str | None
) -> Tape:
    """The same tape in another process."""
    tape = _opened(cls, settings, run, out_run, session)
    if tape._dispatcher is not None:
        tape._dispatcher.calls_made.alone = False
    return tape
