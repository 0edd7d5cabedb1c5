"""How a run is written onto a tape: padded, ragged, in calls, in shards, in an order, with these uids."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rolltape
from tests.faults.world import Result, Run, dtype_of

NUMPY = ("float16", "float32", "float64", "int64")


@dataclass(frozen=True)
class Layout:
    """One way to write a run."""

    pad: str = "right"
    """Where padding is: ``right``, ``left``, or ``none`` for rows of their own lengths."""
    wider: int = 0
    """How many places rows are wider than the longest."""
    fill: float = 0.0
    """What stands in the padding of floats."""
    mask: str | None = "response_mask"
    """What the mask is called; None where there is none, which takes ragged rows."""
    uid: str = "text"
    """``text``, ``int``, ``uuid`` (others in every run), or ``none``."""
    index: bool = True
    """Whether a column says which of its group a sample is."""
    order: int | None = None
    """The seed of another order of the samples."""
    calls: int = 1
    """How many calls of each stage hold the samples of a step."""
    ranks: int = 1
    """How many ranks hold a shard of them each."""
    strided: bool = False
    """Whether a rank has every so many-th sample, instead of a block."""
    whole: bool = True
    """Whether what belongs to no sample is written too."""


def write(run: Run, path: Path, layout: Layout) -> Path:
    """Write a run onto a tape of its own."""
    names = [uuid.uuid4().hex for _ in range(run.world.prompts * run.world.steps)]
    for rank in range(layout.ranks):
        with rolltape.Tape(
            path, mode="record", background=False, rank=rank, world_size=layout.ranks, random_state=False
        ) as tape:
            stages = {name: tape.stage(name)(lambda value: value) for name in run.stages[0]}
            for step, done in enumerate(run.stages):
                with tape.step(step):
                    for stage, result in done.items():
                        for part in _parts(run, step, stage, result, layout, rank, names):
                            stages[stage](part)
                    tape.log(run.metrics[step])
    return path


def order_of(run: Run, layout: Layout) -> list[int]:
    """Which sample stands in which row, as calls and ranks have them one after the other."""
    everyone = np.arange(run.world.samples)
    if layout.order is not None:
        everyone = np.random.default_rng(layout.order).permutation(everyone)
    ranks = [everyone[rank :: layout.ranks] for rank in range(layout.ranks)]
    if not layout.strided:
        ranks = np.array_split(everyone, layout.ranks)
    return [int(at) for at in np.concatenate(ranks)]


def _parts(
    run: Run, step: int, stage: str, result: Result, layout: Layout, rank: int, names: list[str]
) -> list[dict[str, Any]]:
    """What each call of a stage returns on one rank."""
    columns = {name: rows for name, rows in result.items() if isinstance(rows, list)}
    if not columns:
        return [_values(result)] if layout.whole and rank == 0 else []
    there = len(next(iter(columns.values())))
    mine = np.array_split(order_of(run, layout), layout.ranks)[rank]
    mine = mine[mine < there]
    return [
        _laid_out(run, step, stage, columns, layout, rows, names)
        for rows in np.array_split(mine, layout.calls)
    ]


def _values(result: Result) -> dict[str, Any]:
    def single(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: single(one) for name, one in value.items()}
        return value.astype(np.float32) if isinstance(value, np.ndarray) else value

    return {name: single(value) for name, value in result.items()}


def _laid_out(
    run: Run, step: int, stage: str, columns: Result, layout: Layout, rows: np.ndarray, names: list[str]
) -> dict[str, Any]:
    world = run.world
    group = [int(at) // world.n for at in rows]
    found: dict[str, Any] = {}
    if layout.uid == "text":
        found["uid"] = [f"{step}.{at}" for at in group]
    elif layout.uid == "int":
        found["uid"] = np.array([100 * step + at for at in group])
    elif layout.uid == "uuid":
        found["uid"] = [names[step * world.prompts + at] for at in group]
    if layout.index and layout.uid != "none":
        found["index"] = np.array([int(at) % world.n for at in rows])
    masks = run.stages[step]["rollout"]["mask"]
    tokens = any(isinstance(column[0], np.ndarray) and column[0].ndim for column in columns.values())
    for name, column in columns.items():
        if name != "mask":
            found[name] = _column([column[at] for at in rows], dtype_of(world, name), name, layout)
    if tokens and layout.mask is not None:
        mask = [masks[at] for at in rows] if "mask" not in columns else [columns["mask"][at] for at in rows]
        found[layout.mask] = _column(mask, "int64", "mask", layout)
    return found


def _column(rows: list[Any], dtype: str, name: str, layout: Layout) -> Any:
    if not np.ndim(rows[0]):
        return _typed(np.array(rows), dtype)
    if layout.pad == "none" or name == "prompt_ids":
        return [_typed(np.asarray(row), dtype) for row in rows]
    width = max(map(len, rows)) + layout.wider
    fill = layout.fill if dtype != "int64" else 0
    laid = np.full((len(rows), width), fill, np.float64)
    for at, row in enumerate(rows):
        laid[at, slice(len(row)) if layout.pad == "right" else slice(width - len(row), None)] = row
    return _typed(laid, dtype)


def _typed(values: np.ndarray, dtype: str) -> Any:
    """A numpy array where numpy has the dtype, else a tensor."""
    if dtype in NUMPY:
        return values.astype(dtype)
    return torch.as_tensor(values).to(getattr(torch, dtype))
