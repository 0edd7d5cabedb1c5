"""Captures what is logged: through a library, inside a block, or through your own function."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.tape import Tape

Found: TypeAlias = "tuple[Mapping[str, Any], int | None]"
"""Metrics and their step; None for the current step of the tape."""
Arguments: TypeAlias = "Mapping[str, Any]"
"""The arguments of a call by name, including ``self``."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """A method, and how its arguments are read."""

    module: str
    owner: str
    method: str
    read: Callable[[Arguments], Iterable[Found]]


def _batch(given: Arguments) -> Iterable[Found]:
    by_step: dict[int, dict[str, Any]] = {}
    for metric in given["metrics"]:
        by_step.setdefault(metric.step, {})[metric.key] = metric.value
    return [(metrics, step) for step, metrics in by_step.items()]


def _scalars(given: Arguments) -> Iterable[Found]:
    main = given["main_tag"]
    return [({f"{main}/{tag}": v for tag, v in given["tag_scalar_dict"].items()}, given["global_step"])]


def _one(name: str, next_step: str) -> Callable[[Arguments], Iterable[Found]]:
    """All metrics in one argument; without a step, the attribute of the run that says the next one."""

    def read(given: Arguments) -> Iterable[Found]:
        step = given["step"]
        return [(given[name], getattr(given["self"], next_step) if step is None else step)]

    return read


_WRITER = "torch.utils.tensorboard.writer", "SummaryWriter"
_CLIENT = "mlflow.tracking.client", "MlflowClient"
OUTLETS: dict[str, tuple[Outlet, ...]] = {
    "tensorboard": (
        Outlet(*_WRITER, "add_scalar", lambda g: [({g["tag"]: g["scalar_value"]}, g["global_step"])]),
        Outlet(*_WRITER, "add_scalars", _scalars),
    ),
    # Not `Run.log`: `wandb.log` is bound to it when a run starts, and would not see the change.
    "wandb": (Outlet("wandb.sdk.wandb_run", "Run", "_log", _one("data", "step")),),
    "mlflow": (
        Outlet(*_CLIENT, "log_metric", lambda g: [({g["key"]: g["value"]}, g["step"] or 0)]),
        Outlet(*_CLIENT, "log_batch", _batch),
    ),
    "trackio": (Outlet("trackio.run", "Run", "log", _one("metrics", "_next_step")),),
}


log = logging.getLogger("rolltape")


class Keeper:
    """Puts metrics on a tape, and logs once per name what it leaves out."""

    def __init__(self, tape: Tape, split: str | None = None) -> None:
        self._tape = tape
        self._split = split
        self._left_out: set[str] = set()

    def keep(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Record the metrics of a step; without one, of the current step of the tape."""
        found = self._chosen(metrics, "")
        if found:
            self._tape.log(found, step=step, split=self._split)

    def _chosen(self, metrics: Mapping[str, Any], inside: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                found[str(name)] = self._chosen(value, f"{inside}{name}/")
            elif is_number(value) or value is None or isinstance(value, str):
                found[str(name)] = value
            elif f"{inside}{name}" not in self._left_out:
                self._left_out.add(f"{inside}{name}")
                log.info("%s%s is a %s, not a number: not on the tape", inside, name, type(value).__name__)
        return found


def is_number(value: Any) -> bool:
    """Whether a value is one number: Python's, numpy's, or a tensor with one element."""
    if isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return value.size == 1 and value.dtype.kind in "biuf"
    return hasattr(value, "detach") and hasattr(value, "numel") and value.numel() == 1


class TapeHandler(logging.Handler):
    """Puts on the tape what is logged as a mapping: ``log.info(metrics)``, ``log.info("%(loss)f", metrics)``.

    The step is the value of ``step`` in the mapping; without it, the current step of the tape.
    """

    def __init__(self, tape: Tape, *, step: str = "step", split: str | None = None) -> None:
        super().__init__()
        self._keeper = Keeper(tape, split)
        self._step = step

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging. Unlike other handlers, it raises errors."""
        for metrics in (record.msg, record.args):
            if isinstance(metrics, Mapping):
                found: dict[str, Any] = dict(metrics)
                self._keeper.keep(found, found.pop(self._step, None))
                return


@contextmanager
def capture(tape: Tape, *libraries: str, split: str | None = None) -> Iterator[None]:
    """Inside the block, metrics logged with these libraries also go on the tape, at the same step.

    They are captured as they were passed, before a library rounds them to 32 bits or turns them into text.
    """
    keeper = Keeper(tape, split)
    with ExitStack() as captured:
        for library in _checked(libraries):
            for outlet in OUTLETS[library]:
                captured.enter_context(_captured(library, outlet, keeper))
        yield


def through(tape: Tape, function: Callable[..., Any], *, split: str | None = None) -> Callable[..., Any]:
    """A function that calls ``function`` and also puts the mapping it was called with on the tape.

    The step is its argument ``step`` or ``global_step``; without one, the current step of the tape.
    """
    names = list(inspect.signature(function).parameters)
    step = next((name for name in ("step", "global_step") if name in names), None)
    return _heard(function, Keeper(tape, split), lambda g: [(g[names[0]], None if step is None else g[step])])


def _heard(
    function: Callable[..., Any], keeper: Keeper, read: Callable[[Arguments], Iterable[Found]]
) -> Callable[..., Any]:
    """The same function, whose arguments are read and kept before it is called."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def log(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        given.apply_defaults()
        for metrics, step in read(given.arguments):
            keeper.keep(metrics, step)
        return function(*args, **named)

    return log


def _checked(libraries: tuple[str, ...]) -> tuple[str, ...]:
    for library in libraries:
        if library not in OUTLETS:
            raise ConfigError(
                f"unknown logger {library!r}; the known ones are {', '.join(OUTLETS)}",
                hint="for another logger use log = through(tape, log), or tape.log(metrics, step=step)",
            )
    if not libraries:
        raise ConfigError("name at least one logger", hint=f"capture(tape, {next(iter(OUTLETS))!r})")
    return libraries


@contextmanager
def _captured(library: str, outlet: Outlet, keeper: Keeper) -> Iterator[None]:
    try:
        owner = getattr(importlib.import_module(outlet.module), outlet.owner)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"cannot capture what is logged to {library}: {error}", hint=f"pip install {library}"
        ) from None
    method = getattr(owner, outlet.method)
    setattr(owner, outlet.method, _heard(method, keeper, outlet.read))
    try:
        yield
    finally:
        setattr(owner, outlet.method, method)
