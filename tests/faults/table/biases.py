"""Columns that lean to one side, no value of which is beyond its limit."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.table.worlds import LEFT, LOSS, MANY, NEW, RAGGED, REF, TWO_RANKS
from tests.faults.world import replace


def biases() -> Iterator[Case]:
    """Every value a little off to one side, none beyond its limit."""
    for dtype, sizes in (
        ("bfloat16", (1.2e-2, -1.2e-2, 0.9e-2)),
        ("float16", (9e-4, -9e-4)),
        ("float64", (8e-8, -7e-8)),
        ("float8_e4m3fn", (0.1,)),
        ("float8_e5m2", (-0.2,)),
    ):
        for at, size in enumerate(sizes):
            where = (NEW, LOSS, REF)[at]
            yield Case(
                f"{where} of {dtype} {size:+.2g} everywhere",
                where,
                verdict="biased",
                somewhere=True,
                world=replace(MANY, dtype=dtype),
                also=("scaled",),
                edit=e.rows_of(where, lambda r, s=size: [row * (1 + s) for row in r]),
            )
    for where, size in ((NEW, 6e-6), (LOSS, -7e-6), (REF, 8e-6), (NEW, -5e-6)):
        yield Case(
            f"{where} of float32 {size:+.2g} everywhere",
            where,
            verdict="biased",
            somewhere=True,
            world=MANY,
            edit=e.rows_of(where, lambda r, s=size: [row + s for row in r]),
            also=("offset",),
        )
    for layout in (LEFT, RAGGED, TWO_RANKS):
        yield Case(
            f"bfloat16 log-probs 1.2 % too high, {layout.pad} {layout.ranks}",
            NEW,
            verdict="biased",
            base=layout,
            world=replace(MANY, dtype="bfloat16"),
            also=("scaled",),
            somewhere=True,
            edit=e.rows_of(NEW, lambda r: [row * 1.012 for row in r]),
        )
    for size in (5e-3, -4e-3):
        yield Case(
            f"{size:+.2%} under a noise floor",
            NEW,
            verdict="biased",
            world=MANY,
            noise=1.2e-2,
            also=("scaled",),
            edit=e.both(
                e.gaussian(NEW, 3e-3), e.rows_of(NEW, lambda r, s=size: [row * (1 + s) for row in r])
            ),
            somewhere=True,
        )
