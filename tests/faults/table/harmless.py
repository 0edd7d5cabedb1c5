"""Changes that are no fault: nothing may be said of them."""

from __future__ import annotations

import numpy as np

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.layout import Layout
from tests.faults.table.worlds import (
    DTYPES,
    LEFT,
    MANY,
    NEW,
    RAGGED,
    RIGHT,
    STRIDED,
    THREE_CALLS,
    TOOLS,
    TWO_RANKS,
)
from tests.faults.world import World, replace


def harmless() -> list[Case]:
    """Every change that is no fault."""
    found = [Case("nothing changed"), Case("nothing changed, tools", world=TOOLS)]
    for base_name, base in (("padded right", RIGHT), ("ragged", Layout(pad="none")), ("padded left", LEFT)):
        for name, other in {
            "padded right": RIGHT,
            "padded left": LEFT,
            "ragged": Layout(pad="none"),
            "wider": Layout(wider=5),
            "wider left": Layout(pad="left", wider=4),
            "another order": Layout(order=5),
            "another fill": Layout(fill=-100.0, wider=2),
            "NaN in the padding": Layout(fill=float("nan"), wider=2),
        }.items():
            found.append(Case(f"{base_name} against {name}", base=base, other=other))
    split = Layout(whole=False)
    for name, other in {
        "two ranks": TWO_RANKS,
        "four ranks": Layout(ranks=4, whole=False),
        "strided ranks": STRIDED,
        "calls of six": THREE_CALLS,
        "calls of two": Layout(calls=8, whole=False),
        "ranks and calls": Layout(ranks=2, calls=2, whole=False),
        "calls, another order": Layout(calls=4, order=2, whole=False),
    }.items():
        found.append(Case(f"one batch against {name}", base=split, other=other))
        found.append(Case(f"{name} against one batch", base=other, other=split))
    found.append(Case("two ranks against calls", base=TWO_RANKS, other=THREE_CALLS))
    for name, layout in {
        "int uids": Layout(uid="int"),
        "uids without index": Layout(index=False),
        "no uids": Layout(uid="none"),
        "uids of each run": Layout(uid="uuid"),
        "uids of each run, no index": Layout(uid="uuid", index=False),
        "uids of each run, ragged": Layout(uid="uuid", pad="none"),
    }.items():
        found.append(Case(f"{name}, the same", base=layout))
    found.append(
        Case("uids of each run, another order", base=Layout(uid="uuid"), other=Layout(uid="uuid", order=3))
    )
    for mask in ("loss_mask", "completion_mask", "action_mask"):
        found.append(
            Case(
                f"{mask}, other pad side",
                base=Layout(mask=mask),
                other=Layout(mask=mask, pad="left", wider=2),
            )
        )
    for dtype in DTYPES:
        world = World(dtype=dtype)
        size = 0.5
        found.append(Case(f"rounding of {dtype}", world=world, edit=e.noise(size)))
        found.append(
            Case(
                f"rounding of {dtype}, ragged",
                world=world,
                apart=e.noise(size, seed=8),
                edit=e.noise(size),
                base=RAGGED,
            )
        )
        found.append(
            Case(f"rounding of {dtype}, ranks", world=world, edit=e.noise(size), base=split, other=TWO_RANKS)
        )
    for dtype, steps in (("float32", 4.0), ("float64", 1e7), ("float16", 0.9), ("bfloat16", 1.5)):
        world = replace(MANY, dtype=dtype)
        found.append(Case(f"many tokens of {dtype}, errors of both signs", world=world, edit=e.noise(steps)))
    found.append(Case("masked places hold garbage", world=TOOLS, edit=e.masked_out(123.0)))
    found.append(Case("masked places hold NaN", world=TOOLS, edit=e.masked_out(float("nan"))))
    found.append(Case("masked places hold NaN on both sides", world=TOOLS, before=e.masked_out(float("nan"))))
    found.append(Case("other times", world=World(clock=True)))
    found.append(Case("other times, ranks", world=World(clock=True), base=split, other=TWO_RANKS))
    found.append(Case("-0.0 for 0.0", before=_zeros(0.0), edit=_zeros(-0.0)))
    found.append(Case("noise within the floor", world=MANY, noise=1.2e-2, edit=e.gaussian(NEW, 3e-3)))
    return found


def _zeros(zero):
    def edit(run):
        for done in run.stages:
            done["loss"] = {
                **done["loss"],
                "token_losses": [np.concatenate([[zero], row[1:]]) for row in done["loss"]["token_losses"]],
            }

    return edit
