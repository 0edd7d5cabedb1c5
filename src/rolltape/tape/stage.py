"""Turns a function into a stage: a thin wrapper around what the tape decides, sync or async."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rolltape.batch import register_visible_classes
from rolltape.errors import StageError
from rolltape.tape.inputs import check_input_names

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class Stage:
    """A declared stage."""

    name: str
    function: Callable[..., Any]
    inputs: bool | Sequence[str] = False
    """Which arguments are recorded too."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Dtypes that columns must have, by column."""


def wrap(tape: Tape, stage: Stage) -> Callable[..., Any]:
    """The function people call instead."""
    function = stage.function
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise StageError(
            f"{function.__qualname__} yields its results one by one and cannot be a stage",
            hint="return the finished batch, or record the function that collects it",
        )
    check_input_names(function, stage.inputs)
    register_visible_classes(function)
    return _async(tape, stage) if inspect.iscoroutinefunction(function) else _sync(tape, stage)


def _sync(tape: Tape, stage: Stage) -> Callable[..., Any]:
    @functools.wraps(stage.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tape.is_off:
            return stage.function(*args, **kwargs)
        begun = tape._begin(stage, args, kwargs)
        if begun.decision.plays:
            return tape._play(begun)
        started = time.perf_counter()
        value = stage.function(*args, **kwargs)
        tape._finish(begun, value, time.perf_counter() - started)
        return value

    return call


def _async(tape: Tape, stage: Stage) -> Callable[..., Any]:
    @functools.wraps(stage.function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if tape.is_off:
            return await stage.function(*args, **kwargs)
        begun = tape._begin(stage, args, kwargs)
        if begun.decision.plays:
            return await asyncio.to_thread(tape._play, begun)
        started = time.perf_counter()
        value = await stage.function(*args, **kwargs)
        tape._finish(begun, value, time.perf_counter() - started)
        return value

    return call
