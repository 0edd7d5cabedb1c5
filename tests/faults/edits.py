"""What goes wrong in a trainer, as functions of what a stage returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.faults.world import TOKENS, Fault, Moment, Result, Run, cast, copied, dtype_of

Rows = list[Any]
Change = Callable[[Moment, Rows], Rows]


def on(where: str, change: Change, since: int = 1, only: bool = False) -> Fault:
    """Change one column from a step on, or at that step only; what follows from it follows."""
    stage, _, column = where.partition("/")

    def fault(moment: Moment, result: Result) -> Result:
        if moment.stage != stage or moment.step < since or (only and moment.step > since):
            return result
        result = copied(result)
        rows = change(moment, result[column])
        dtype = dtype_of(moment.world, column)
        result[column] = [np.asarray(row, np.int64) if dtype == "int64" else cast(row, dtype) for row in rows]
        return result

    return fault


def value(where: str, change: Callable[[Any], Any], since: int = 1) -> Fault:
    """Change a value that belongs to no sample: ``update/grads/layer``, ``metrics/loss``."""
    stage, *path = where.split("/")

    def fault(moment: Moment, result: Result) -> Result:
        if moment.stage != stage or moment.step < since:
            return result
        result = copied(result)
        inner = result
        for name in path[:-1]:
            inner = inner[name]
        found = change(inner[path[-1]])
        inner[path[-1]] = (
            cast(found, "float32") if isinstance(found, np.ndarray) else float(np.float32(found))
        )
        return result

    return fault


def formula(where: str, change: Callable[[Moment], Rows], since: int = 1) -> Fault:
    """Compute a column in another way, from the stages before it."""
    return on(where, lambda moment, rows: change(moment), since)


# -- changes of rows ---------------------------------------------------------------------------------------


def each(function: Callable[[Any], Any]) -> Change:
    return lambda moment, rows: [function(row) for row in rows]


def some(which: Iterable[int], function: Callable[[Any], Any]) -> Change:
    chosen = set(which)
    return lambda moment, rows: [function(row) if at in chosen else row for at, row in enumerate(rows)]


def at(sample: int, token: int | None, function: Callable[[float], float]) -> Change:
    def change(moment: Moment, rows: Rows) -> Rows:
        if token is None:
            rows[sample] = function(rows[sample])
        else:
            rows[sample][token] = function(rows[sample][token])
        return rows

    return change


def scale(factor: float) -> Change:
    return each(lambda row: row * factor)


def add(amount: float) -> Change:
    return each(lambda row: row + amount)


def place(token: int, function: Callable[[float], float]) -> Change:
    """Change one place of every row, the last being -1."""

    def change(row: np.ndarray) -> np.ndarray:
        row[token] = function(row[token])
        return row

    return each(change)


def swap(one: int, other: int) -> Change:
    def change(moment: Moment, rows: Rows) -> Rows:
        rows[one], rows[other] = rows[other], rows[one]
        return rows

    return change


def roll(by: int) -> Change:
    return lambda moment, rows: rows[-by:] + rows[:-by]


def shift(by: int) -> Change:
    return each(lambda row: np.roll(row, by))


def late_of(column: str) -> Change:
    """What the step before had."""
    return lambda moment, rows: moment.before[moment.stage][column]


def column_of(stage: str, column: str) -> Change:
    """Another column of the same step."""
    return lambda moment, rows: [np.array(row) for row in moment.done[stage][column]]


def by_length(power: int) -> Change:
    def change(moment: Moment, rows: Rows) -> Rows:
        lengths = [len(row) for row in moment.done["rollout"]["responses"]]
        return [row * float(length) ** power for row, length in zip(rows, lengths, strict=True)]

    return change


def normalised(
    std: bool = True, ddof: int = 0, epsilon: float = 1e-4, groups: str = "prompt"
) -> Callable[[Moment], Rows]:
    """Advantages, in one of the ways that people compute them."""

    def compute(moment: Moment) -> Rows:
        rewards = np.array(moment.done["reward"]["reward"])
        rewards = rewards.reshape(moment.world.prompts, -1) if groups == "prompt" else rewards.reshape(1, -1)
        found = rewards - rewards.mean(1, keepdims=True)
        if std:
            found = found / (rewards.std(1, ddof=ddof, keepdims=True) + epsilon)
        return list(found.reshape(-1))

    return compute


def whitened(moment: Moment, rows: Rows) -> Rows:
    every = np.concatenate([np.reshape(row, -1) for row in rows])
    return [(row - every.mean()) / every.std() for row in rows]


# -- edits of a run, from which nothing follows ------------------------------------------------------------


def both(*edits: Callable[[Run], None]) -> Callable[[Run], None]:
    def edit(run: Run) -> None:
        for one in edits:
            one(run)

    return edit


def noise(size: float = 0.5, columns: Iterable[str] = TOKENS, seed: int = 1) -> Callable[[Run], None]:
    """Rounding on every value: random, of no sign, up to ``size`` steps of the dtype."""

    def edit(run: Run) -> None:
        random = np.random.default_rng(seed)
        step = STEP[run.world.dtype]
        for done in run.stages:
            for stage in done.values():
                for name in stage:
                    if name in columns:
                        stage[name] = [
                            cast(row * (1 + size * step * random.uniform(-1, 1, len(row))), run.world.dtype)
                            for row in stage[name]
                        ]

    return edit


STEP = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
        "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}  # fmt: skip


def rows_of(where: str, change: Callable[[Rows], Rows], step: int = 1) -> Callable[[Run], None]:
    """Change one column at one step, and nothing else."""
    stage, _, column = where.partition("/")

    def edit(run: Run) -> None:
        found = copied(run.stages[step][stage])
        found[column] = change(found[column])
        dtype = dtype_of(run.world, column)
        if dtype != "int64":
            found[column] = [cast(row, dtype) for row in found[column]]
        run.stages[step] = {**run.stages[step], stage: found}

    return edit


def masked_out(number: float, where: str = "loss/log_probs") -> Callable[[Run], None]:
    """Put something into the places that the mask leaves out, at every step."""
    stage, _, column = where.partition("/")

    def edit(run: Run) -> None:
        for done in run.stages:
            rows = [row.copy() for row in done[stage][column]]
            for row, mask in zip(rows, done["rollout"]["mask"], strict=True):
                row[mask == 0] = number
            done[stage] = {**done[stage], column: rows}

    return edit


def drop(where: str, step: int | None = None) -> Callable[[Run], None]:
    """Take a stage, a column, a value or a metric away, at one step or at all."""
    stage, _, column = where.partition("/")

    def edit(run: Run) -> None:
        for at, done in enumerate(run.stages):
            if step is not None and at != step:
                continue
            if stage == "metrics":
                run.metrics[at] = {name: one for name, one in run.metrics[at].items() if name != column}
            elif column:
                done[stage] = {name: one for name, one in done[stage].items() if name != column}
            else:
                del done[stage]

    return edit


def cut_samples(stage: str, keep: slice, step: int = 1) -> Callable[[Run], None]:
    """Lose samples of a stage."""

    def edit(run: Run) -> None:
        run.stages[step] = {
            **run.stages[step],
            stage: {name: rows[keep] for name, rows in run.stages[step][stage].items()},
        }

    return edit


def moved(rows, sample, token, amount):
    rows[sample] = rows[sample].copy()
    rows[sample][token] += amount
    return rows


def gaussian(where, size, seed=5):
    """Noise of no sign, in multiples of the column's RMS."""
    random = np.random.default_rng(seed)

    def change(rows):
        rms = np.sqrt(np.mean(np.concatenate(rows) ** 2))
        return [row + size * rms * random.normal(size=len(row)) for row in rows]

    return rows_of(where, change)
