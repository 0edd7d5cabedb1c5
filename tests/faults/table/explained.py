"""A whole column that is wrong, in a way that has a name or in one that has none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.faults import edits as e
from tests.faults.case import Case
from tests.faults.layout import Layout
from tests.faults.table.worlds import (
    ADV,
    EVEN,
    LEFT,
    LOSS,
    NEW,
    RAGGED,
    REF,
    REW,
    RIGHT,
    THREE_CALLS,
    TWO_RANKS,
)
from tests.faults.world import World


def explained() -> Iterator[Case]:
    """A whole column is wrong in a way that has a name."""
    for factor in (2.0, 0.5, 1.1, 1 / 3, 8.0, 0.01):
        yield Case(f"log-probs times {factor:.3g}", NEW, e.on(NEW, e.scale(factor)), cause="scaled")
    for where, layout in ((LOSS, LEFT), (REW, TWO_RANKS), (ADV, THREE_CALLS), (REF, RAGGED)):
        yield Case(f"{where} doubled", where, e.on(where, e.scale(2.0)), cause="scaled", base=layout)
        yield Case(
            f"{where} of the other sign", where, e.on(where, e.scale(-1.0)), cause="sign flipped", base=layout
        )
        yield Case(f"{where} plus 0.25", where, e.on(where, e.add(0.25)), cause="offset", base=layout)
    for dtype in ("float64", "float16", "bfloat16"):
        world = World(dtype=dtype)
        yield Case(f"losses of {dtype} doubled", LOSS, e.on(LOSS, e.scale(2.0)), cause="scaled", world=world)
        yield Case(
            f"losses of {dtype} negated", LOSS, e.on(LOSS, e.scale(-1.0)), cause="sign flipped", world=world
        )
        # Added before rounding: where little is left, numbers are finer than what they were made of.
        yield Case(
            f"log-probs of {dtype} plus 0.7", NEW, e.on(NEW, _added(0.7, dtype)), cause="offset", world=world
        )
    for by, layout in ((1, RIGHT), (-1, LEFT), (1, RAGGED), (-1, Layout(uid="int", mask="completion_mask"))):
        yield Case(
            f"log-probs shifted by {by}, {layout.pad}",
            NEW,
            e.on(NEW, e.shift(by)),
            base=layout,
            cause="shifted by one",
        )
    yield Case("reference log-probs shifted", REF, e.on(REF, e.shift(1)), cause="shifted by one")
    for one, other in ((2, 7), (0, 1), (14, 15)):
        yield Case(
            f"rewards of {one} and {other} swapped",
            REW,
            e.on(REW, e.swap(one, other)),
            cause="swapped samples",
        )
    yield Case("advantages of the neighbour", ADV, e.on(ADV, e.roll(1)), cause="swapped samples")
    yield Case(
        "log-probs of two samples swapped", NEW, e.on(NEW, e.swap(3, 9)), world=EVEN, cause="swapped samples"
    )
    yield Case("losses re-ordered", LOSS, e.on(LOSS, e.roll(5)), world=EVEN, cause="swapped samples")
    for ddof, world in ((1, World()), (1, World(prompts=2, n=8)), (1, World(rewards="steps"))):
        yield Case(
            f"deviation of a sample, groups of {world.n}, {world.rewards}",
            ADV,
            world=world,
            fault=e.formula(ADV, e.normalised(ddof=ddof)),
            cause="sample deviation",
        )
    yield Case(
        "deviation of all where the baseline has that of a sample",
        ADV,
        cause="sample deviation",
        step=0,
        apart=_with_ddof(1),
        edit=_with_ddof(0),
    )
    yield Case(
        "advantages without deviation", ADV, e.formula(ADV, e.normalised(std=False)), cause="scaled by group"
    )
    yield Case("large epsilon", ADV, e.formula(ADV, e.normalised(epsilon=0.1)), cause="scaled by group")
    yield Case(
        "rewards of two values doubled", REW, apart=_two_valued(1.0), edit=_two_valued(2.0), step=0, sample=0
    )
    yield Case(
        "rewards of two values doubled in every other group",
        REW,
        apart=_two_valued(1.0),
        edit=_two_valued(2.0, every=2),
        step=0,
        sample=0,
        world=World(prompts=8),
    )
    yield Case("advantages over the batch", ADV, e.formula(ADV, e.normalised(groups="batch")))
    yield Case("advantages whitened", REW, e.on(REW, e.whitened), cause="affine")
    yield Case("log-probs affine", NEW, e.on(NEW, e.each(lambda row: 0.9 * row - 0.2)), cause="affine")
    yield Case("reward a step late", REW, e.on(REW, e.late_of("reward")), cause="one step late")
    yield Case("advantage a step late", ADV, e.on(ADV, e.late_of("advantage")), cause="one step late", step=1)
    yield Case(
        "reference a step late", REF, e.on(REF, e.late_of("ref_log_probs")), world=EVEN, cause="one step late"
    )
    yield Case(
        "rollout's log-probs for the reference's",
        REF,
        e.on(REF, e.column_of("rollout", "rollout_log_probs")),
        cause="equal to another column",
    )
    yield Case(
        "rewards for advantages",
        ADV,
        e.on(ADV, e.column_of("reward", "reward")),
        cause="equal to another column",
        also=("affine",),
    )
    yield Case(
        "old log-probs for the new",
        NEW,
        e.on(NEW, e.column_of("rollout", "rollout_log_probs")),
        cause="equal to another column",
        base=RAGGED,
    )
    for dtype, coarse in (
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("float64", "bfloat16"),
        ("float32", "float8_e4m3fn"),
        ("float16", "float8_e5m2"),
    ):
        yield Case(
            f"losses of {dtype} kept in {coarse}",
            LOSS,
            world=World(dtype=dtype),
            cause="rounded",
            fault=e.on(LOSS, e.each(lambda row, c=coarse: e.cast(row, c))),
        )
    for power in (1, -1):
        yield Case(
            f"losses times length to {power}", LOSS, e.on(LOSS, e.by_length(power)), cause="scaled by length"
        )
        yield Case(
            f"rewards times length to {power}", REW, e.on(REW, e.by_length(power)), cause="scaled by length"
        )
    yield Case("losses all 0", LOSS, e.on(LOSS, e.scale(0.0)), cause="zero")
    yield Case("all log-probs NaN", NEW, e.on(NEW, e.scale(np.nan)), cause="not finite")
    yield Case(
        "one infinite loss",
        LOSS,
        e.on(LOSS, e.at(8, 2, lambda x: -np.inf)),
        sample=8,
        token=2,
        cause="not finite",
        also=("one sample only",),
    )
    yield Case("another KL estimate", LOSS, e.on(LOSS, _with_kl(0.2)))
    yield Case("no KL", LOSS, e.on(LOSS, _with_kl(0.0)))
    yield Case("diffuse errors just past the tolerance", NEW, edit=e.rows_of(NEW, _diffuse))
    yield Case(
        "diffuse errors of bfloat16", NEW, edit=e.rows_of(NEW, _diffuse), world=World(dtype="bfloat16")
    )
    yield Case("log-probs drawn anew", NEW, e.on(NEW, _drawn))
    yield Case("rewards drawn anew", REW, e.on(REW, _drawn))


def _with_ddof(ddof):
    def edit(run):
        for done in run.stages:
            rewards = np.array(done["reward"]["reward"]).reshape(run.world.prompts, -1)
            found = (rewards - rewards.mean(1, keepdims=True)) / (
                rewards.std(1, ddof=ddof, keepdims=True) + 1e-4
            )
            done["advantage"] = {"advantage": list(e.cast(found.reshape(-1), "float32"))}

    return edit


def _added(by, dtype):
    """Added to what the values were before they were rounded to the dtype."""
    half = {"float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    return e.each(lambda row: row * (1 + half * np.cos(1e4 * row)) + by)


def _two_valued(size, every=1):
    """Rewards of one size and either sign: any factor is as much one per group as one of all.

    Those of every so many-th group have this size, others have 1.
    """

    def edit(run):
        for done in run.stages:
            groups = [at // run.world.n for at in range(run.world.samples)]
            sizes = [size if group % every == 0 else 1.0 for group in groups]
            rewards = [
                one * (-1) ** (at + group) for at, (one, group) in enumerate(zip(sizes, groups, strict=True))
            ]
            done["reward"] = {"reward": [np.float64(one) for one in rewards]}

    return edit


def _with_kl(coefficient):
    """The losses with another weight of the KL term, taken against the rollout's log-probs."""

    def change(moment, rows):
        done = moment.done
        found = []
        for row, ref, old, mask in zip(
            rows,
            done["ref_logprob"]["ref_log_probs"],
            done["rollout"]["rollout_log_probs"],
            done["rollout"]["mask"],
            strict=True,
        ):
            drift = np.exp(ref - old) - (ref - old) - 1
            found.append(row + (coefficient - moment.world.kl) * drift * mask)
        return found

    return change


def _diffuse(rows):
    random = np.random.default_rng(7)
    every = np.concatenate(rows)
    coarse = np.array_equal(e.cast(every, "bfloat16"), every)
    size = 8e-2 if coarse else 8e-6
    return [row + size * random.choice([-1, 1], len(row)) * (1 + np.abs(row)) for row in rows]


def _drawn(moment, rows):
    random = np.random.default_rng(11)
    return [np.asarray(random.normal(size=np.shape(row))) for row in rows]
