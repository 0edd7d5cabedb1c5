"""Where each library lets metrics out: the one method that all ways of logging a number pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Found: TypeAlias = "tuple[Mapping[str, Any], int | None]"
"""Metrics, and the step they are of; None for the step of the tape that is entered."""
Arguments: TypeAlias = "Mapping[str, Any]"
"""The arguments of a call by name, ``self`` included."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """A method, and how its arguments are read."""

    module: str
    owner: str
    method: str
    read: Callable[[Arguments], Iterator[Found]]


def _scalar(given: Arguments) -> Iterator[Found]:
    yield {given["tag"]: given["scalar_value"]}, given["global_step"]


def _scalars(given: Arguments) -> Iterator[Found]:
    main = given["main_tag"]
    yield {f"{main}/{tag}": v for tag, v in given["tag_scalar_dict"].items()}, given["global_step"]


def _wandb(given: Arguments) -> Iterator[Found]:
    yield given["data"], given["self"].step if given["step"] is None else given["step"]


def _mlflow_metric(given: Arguments) -> Iterator[Found]:
    yield {given["key"]: given["value"]}, given["step"] or 0


def _mlflow_batch(given: Arguments) -> Iterator[Found]:
    by_step: dict[int, dict[str, Any]] = {}
    for metric in given["metrics"]:
        by_step.setdefault(metric.step, {})[metric.key] = metric.value
    for step, metrics in by_step.items():
        yield metrics, step


def _trackio(given: Arguments) -> Iterator[Found]:
    yield given["metrics"], given["self"]._next_step if given["step"] is None else given["step"]


OUTLETS: dict[str, tuple[Outlet, ...]] = {
    "tensorboard": (
        Outlet("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar", _scalar),
        Outlet("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalars", _scalars),
    ),
    # Not `Run.log`: `wandb.log` is bound to it when a run begins, and would not notice.
    "wandb": (Outlet("wandb.sdk.wandb_run", "Run", "_log", _wandb),),
    "mlflow": (
        Outlet("mlflow.tracking.client", "MlflowClient", "log_metric", _mlflow_metric),
        Outlet("mlflow.tracking.client", "MlflowClient", "log_batch", _mlflow_batch),
    ),
    "trackio": (Outlet("trackio.run", "Run", "log", _trackio),),
}
