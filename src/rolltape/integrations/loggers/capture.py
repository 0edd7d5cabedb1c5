"""Takes what goes to a logger: of a library, for as long as a block lasts, or of a function of your own."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.integrations.loggers.numbers import Keeper
from rolltape.integrations.loggers.outlets import OUTLETS, Outlet
from rolltape.tape import Tape


@contextmanager
def capture(tape: Tape, *libraries: str, split: str | None = None) -> Iterator[None]:
    """Inside the block, metrics that are logged with these libraries go on the tape too, at the same step.

    They are taken as they were given, before a library makes 32 bits or text of them.
    """
    keeper = Keeper(tape, split)
    with ExitStack() as captured:
        for library in _checked(libraries):
            for outlet in OUTLETS[library]:
                captured.enter_context(_captured(library, outlet, keeper))
        yield


def through(tape: Tape, function: Callable[..., Any], *, split: str | None = None) -> Callable[..., Any]:
    """The function, which also puts the mapping it is called with on the tape.

    The step is its argument ``step`` or ``global_step``; without one, the step of the tape that is entered.
    """
    keeper = Keeper(tape, split)
    signature = inspect.signature(function)
    names = list(signature.parameters)
    step = next((name for name in ("step", "global_step") if name in names), None)

    @functools.wraps(function)
    def log(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        given.apply_defaults()
        keeper.keep(given.arguments[names[0]], None if step is None else given.arguments[step])
        return function(*args, **named)

    return log


def _checked(libraries: tuple[str, ...]) -> tuple[str, ...]:
    for library in libraries:
        if library not in OUTLETS:
            raise ConfigError(
                f"there is no logger {library!r}; there are {', '.join(OUTLETS)}",
                hint="for another one: log = through(tape, log), or tape.log(metrics, step=step)",
            )
    if not libraries:
        raise ConfigError("no logger is named", hint=f"capture(tape, {next(iter(OUTLETS))!r})")
    return libraries


@contextmanager
def _captured(library: str, outlet: Outlet, keeper: Keeper) -> Iterator[None]:
    try:
        owner = getattr(importlib.import_module(outlet.module), outlet.owner)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"what goes to {library} cannot be captured: {error}", hint=f"pip install {library}"
        ) from None
    method = getattr(owner, outlet.method)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def log(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        given.apply_defaults()
        for metrics, step in outlet.read(given.arguments):
            keeper.keep(metrics, step)
        return method(*args, **named)

    setattr(owner, outlet.method, log)
    try:
        yield
    finally:
        setattr(owner, outlet.method, method)
