"""Turns a function into a stage: a thin wrapper around what the tape decides, sync or async."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolltape.batch import Dismantled, register_visible_classes
from rolltape.batch.one_sample import SampleChoice
from rolltape.errors import StageError
from rolltape.key import Key
from rolltape.policy import Decision
from rolltape.tape.call_arguments import Arguments, Naming
from rolltape.tape.inputs import Chooser, Inputs
from rolltape.tape.open_step import living
from rolltape.tape.scope import Scope, counting_calls

if TYPE_CHECKING:
    from rolltape.tape.dispatcher import Dispatcher
    from rolltape.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Call:
    """What was called, what will be done, and what it was given."""

    dispatcher: Dispatcher
    """That of the tape it is played from or saved to."""
    stage: Stage
    key: Key
    scope: Scope
    decision: Decision
    position: int = 0
    """How many calls of stages had been begun in this step before it."""
    inputs: Inputs | None = None
    """A copy, where they are recorded or checked."""
    beside: bool = False
    """Whether it is made beside a replay: to be compared, and not returned."""
    arguments: Arguments | None = None
    """Digests, where they are recorded or checked."""
    outlived: bool = False
    """Whether it was begun after the block of its step had ended, by a task that was started in it."""
    by_content: ByContent | None = None
    """What is noted of a call whose samples can be found by their prompts."""


@dataclass(frozen=True, slots=True)
class ByContent:
    """What is noted of a call whose samples can be found by their prompts."""

    noted: Mapping[str, Any]
    """Which arguments say what; kept with the recording."""
    who: Callable[[Dismantled], tuple[list[str], Any]]
    """The uid and the index of every sample of what the call returned."""
    known: Callable[[Dismantled, list[str], Any], Any] = lambda parts, uids, index: None
    """What an index would otherwise have to read from the recording, given who the samples are."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A declared stage."""

    name: str
    function: Callable[..., Any]
    inputs: Chooser | None = None
    """Which arguments are recorded too."""
    naming: Naming | None = None
    """What the arguments are called that are compared by their digests; None where none is."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Dtypes that columns must have, by column."""
    replay: bool = True
    """False if it is computed anew in every run: what a change in the trainer is judged by."""
    samples: SampleChoice = SampleChoice.AUTO
    """What a sample is."""
    by_content: Callable[[tuple[Any, ...], dict[str, Any]], ByContent] | None = None
    """What is noted of a call with these arguments, of a stage that is asked by the content of prompts."""
    lacks: Callable[[int, str, Mapping[str, Any]], int] | None = None
    """How many samples such a stage has to generate at a step of a split for a call with these arguments."""

    @property
    def origin(self) -> str:
        """Where the function comes from. Declared again, in a notebook or after a reload, it has the same."""
        function = self.function
        name = getattr(function, "__qualname__", None)
        if name is None or "<lambda>" in name:
            return repr(function)
        return f"{getattr(function, '__module__', '?')}.{name}"


def wrap(tape: Tape, stage: Stage) -> Callable[..., Any]:
    """The function people call instead."""
    function = stage.function
    if not callable(function):
        raise StageError(
            f"{function!r} cannot be a stage: it is not a function",
            hint='write @tape.stage("rollout") above a function, or tape.stage("rollout")(function)',
        )
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise StageError(
            f"{stage.origin} yields its results one by one and cannot be a stage",
            hint="return the finished batch, or record the function that collects it",
        )
    register_visible_classes(function)
    return _async(tape, stage) if is_async(function) else _sync(tape, stage)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function is to be awaited."""
    return _is(inspect.iscoroutinefunction, function)


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether a function, or the ``__call__`` of an object, is of a kind."""
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004


def _sync(tape: Tape, stage: Stage) -> Callable[..., Any]:
    @functools.wraps(stage.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if (dispatcher := tape._dispatcher) is None:
            return stage.function(*args, **kwargs)
        call = dispatcher.usable().begin(stage, tape._scope(stage), args, kwargs)
        return make_call(call, args, kwargs)

    return run


def make_call(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call that was begun: live and recorded, or replayed."""
    stage, dispatcher = call.stage, call.dispatcher
    if call.decision.plays:
        played = dispatcher.read(call)
        if (beside := dispatcher.beside(call, played, args, kwargs)) is not None:
            with beside.dispatcher.kept_apart(beside):
                beside.dispatcher.keep(beside, stage.function(*args, **kwargs))
        return dispatcher.hand_over(call, played)
    try:
        with counting_calls(call.scope) as inside, living(dispatcher, call, args, kwargs):
            started = time.perf_counter()
            value = stage.function(*args, **kwargs)
            seconds = time.perf_counter() - started
        if inspect.isawaitable(value):
            raise _not_async(stage, value)
        dispatcher.submit(dispatcher.copy(call, value, seconds, inside))
    finally:
        dispatcher.end(call)
    return value


def _async(tape: Tape, stage: Stage) -> Callable[..., Any]:
    @functools.wraps(stage.function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        if (dispatcher := tape._dispatcher) is None:
            return await stage.function(*args, **kwargs)
        call = dispatcher.usable().begin(stage, tape._scope(stage), args, kwargs)
        return await await_call(call, args, kwargs)

    return run


async def await_call(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same of a function that is to be awaited."""
    stage, dispatcher = call.stage, call.dispatcher
    if call.decision.plays:
        # Read on a thread, handed over here: tasks that run meanwhile must not draw from its state.
        played = await asyncio.to_thread(dispatcher.read, call)
        if (beside := dispatcher.beside(call, played, args, kwargs)) is not None:
            with beside.dispatcher.kept_apart(beside):
                beside.dispatcher.keep(beside, await stage.function(*args, **kwargs))
        return dispatcher.hand_over(call, played)
    try:
        with counting_calls(call.scope) as inside, living(dispatcher, call, args, kwargs):
            started = time.perf_counter()
            value = await stage.function(*args, **kwargs)
            seconds = time.perf_counter() - started
        # The copy is made here, before anyone can edit the value; a thread may wait for the disk.
        job = dispatcher.copy(call, value, seconds, inside)
        if job is not None and dispatcher.recorder.writer.waits(job):
            await asyncio.to_thread(dispatcher.submit, job)
        else:
            dispatcher.submit(job)
    finally:
        dispatcher.end(call)
    return value


def _not_async(stage: Stage, value: Any) -> StageError:
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
    return StageError(
        f"{stage.origin} returned something to be awaited, but it is not an async function",
        hint="make it `async def` and await inside, so that what is recorded is the result",
    )
