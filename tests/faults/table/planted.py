"""One value that is off, in every layout and dtype."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.table.worlds import DTYPES, LAYOUTS, LOSS, NEW, REW
from tests.faults.world import World


def planted() -> Iterator[Case]:
    """One value, anywhere, in any layout and dtype, over rounding everywhere else."""
    spots = [(9, 1), (0, 0), (15, 2), (6, 1), (3, 0), (12, 2), (5, 1), (7, 0), (10, 2)]
    for (name, layout), (sample, token) in zip(LAYOUTS.items(), spots, strict=True):
        yield Case(
            f"one log-prob, {name}",
            NEW,
            sample=sample,
            token=token,
            base=layout,
            cause="one sample only",
            edit=e.both(e.noise(), e.rows_of(NEW, lambda r, s=sample, t=token: _bumped(r, s, t, 1.5))),
        )
    for dtype, (sample, token) in zip(DTYPES, spots, strict=False):
        yield Case(
            f"one loss of {dtype}",
            LOSS,
            sample=sample,
            token=token,
            world=World(dtype=dtype),
            edit=e.both(e.noise(), e.rows_of(LOSS, lambda r, s=sample, t=token: _bumped(r, s, t, 3.0))),
            cause="one sample only",
        )
        yield Case(
            f"one NaN of {dtype} over rounding",
            NEW,
            sample=9,
            token=2,
            world=World(dtype=dtype),
            edit=e.both(e.noise(), e.rows_of(NEW, lambda r: _bumped(r, 9, 2, np.nan))),
            cause="not finite",
            also=("one sample only",),
        )
    for size in (2e-5, 1e-4, 1e-3, 1.0):
        yield Case(
            f"one log-prob off by {size:g}",
            NEW,
            sample=4,
            token=1,
            cause="one sample only",
            edit=e.rows_of(NEW, lambda r, s=size: e.moved(r, 4, 1, s)),
        )
    for step in (0, 2):
        yield Case(
            f"one reward at step {step}",
            REW,
            step=step,
            sample=11,
            cause="one sample only",
            fault=e.on(REW, e.at(11, None, lambda x: x + 0.7), since=step, only=True),
        )


def _bumped(rows, sample, token, factor):
    rows[sample] = rows[sample].copy()
    rows[sample][token] = rows[sample][token] * factor + (0.01 if factor == factor else 0)
    return rows
