"""A fault of random kind, place and size, planted a thousand times: beyond its limit, it is found there.

Size and place are judged by ``oracle``, on the arrays themselves. What is so near to a limit that the last
bit decides is drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import rolltape
from tests.faults import oracle
from tests.faults.edits import noise
from tests.faults.layout import Layout, order_of, write
from tests.faults.world import Run, World, cast, copied, simulate

TRIALS, PARTS = 1000, 8
DTYPES = ("float64", "float32", "float32", "float16", "bfloat16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
STAGE, COLUMN = "loss", "log_probs"


@dataclass(frozen=True)
class Trial:
    """One planted fault, and what has to be said of it."""

    before: Run
    after: Run
    base: Layout
    other: Layout
    kind: str
    place: tuple[int, tuple[int, ...]] | None
    """The row and the token beyond the limit; None where nothing is."""


def drawn(seed: int) -> Trial:
    """A trial whose outcome does not hang on a last bit."""
    for again in range(100):
        random = np.random.default_rng([seed, again])
        trial = _trial(random)
        if trial is not None:
            return trial
    raise AssertionError(f"nothing could be drawn from seed {seed}")


def _trial(random: np.random.Generator) -> Trial | None:
    world = World(
        seed=int(random.integers(1 << 30)),
        steps=1,
        prompts=int(random.integers(1, 5)),
        n=int(random.integers(1, 5)),
        shortest=int(random.integers(1, 5)),
        longest=int(random.integers(5, 15)),
        dtype=str(random.choice(DTYPES)),
        tools=bool(random.random() < 0.3),
    )
    before = simulate(world)
    after = simulate(world)
    for run in (before, after):
        run.stages = [{"rollout": run.stages[0]["rollout"], "loss": {COLUMN: run.stages[0]["loss"][COLUMN]}}]
        run.metrics = [{"loss": 1.0}]
    if random.random() < 0.5:
        noise(0.5, seed=int(random.integers(1 << 30)))(after)
        after.stages[0]["rollout"] = before.stages[0]["rollout"]
    kind = str(random.choice(list(KINDS)))
    found = copied(after.stages[0]["loss"])
    masks = [mask != 0 for mask in before.stages[0]["rollout"]["mask"]]
    KINDS[kind](random, found[COLUMN], masks)
    found[COLUMN] = [cast(row, world.dtype) for row in found[COLUMN]]
    after.stages[0] = {**after.stages[0], "loss": found}
    base, other = _layout(random, world), _layout(random, world)
    rows = before.stages[0]["loss"][COLUMN], found[COLUMN]
    if _on_the_edge(*rows, masks, world.dtype):
        return None
    place = oracle.first_place(*rows, masks, world.dtype, order_of(before, base))
    return Trial(before, after, base, other, kind, place)


def _layout(random: np.random.Generator, world: World) -> Layout:
    calls = int(random.choice([1, 1, 1, 2]))
    return Layout(
        pad=str(random.choice(["right", "left", "none"])),
        wider=int(random.integers(0, 4)),
        order=None if random.random() < 0.5 else int(random.integers(1000)),
        calls=calls if world.samples > 4 else 1,
        whole=False,
    )


def _on_the_edge(
    before: list[np.ndarray], after: list[np.ndarray], live: list[np.ndarray], dtype: str
) -> bool:
    """Whether some value is about as far off as it may be."""
    for a, b, limit, on in zip(before, after, oracle.limits(before, live, dtype), live, strict=True):
        error = np.abs(b - a)
        if (np.isfinite(error) & on & (error > 0.99 * limit) & (error < 1.01 * limit)).any():
            return True
    return False


def _somewhere(random, masks):
    """A sample and one of its live places."""
    sample = int(random.integers(len(masks)))
    live = np.flatnonzero(masks[sample])
    return sample, int(random.choice(live))


def _one_value(random, rows, masks):
    sample, token = _somewhere(random, masks)
    rows[sample][token] += random.choice([-1, 1]) * 10 ** random.uniform(-9, 1)


def _not_finite(random, rows, masks):
    sample, token = _somewhere(random, masks)
    rows[sample][token] = random.choice([np.nan, -np.inf])


def _one_sample(random, rows, masks):
    sample, _ = _somewhere(random, masks)
    rows[sample] = rows[sample] * (1 + random.choice([-1, 1]) * 10 ** random.uniform(-8, 0.5))


def _some_samples(random, rows, masks):
    for sample in random.permutation(len(rows))[: int(random.integers(1, len(rows) + 1))]:
        rows[sample] = rows[sample] + 10 ** random.uniform(-8, 0.5)


def _some_values(random, rows, masks):
    for _ in range(int(random.integers(2, 6))):
        _one_value(random, rows, masks)


def _swapped(random, rows, masks):
    sample, _ = _somewhere(random, masks)
    rows[sample] = rows[sample][::-1].copy()


def _masked_out(random, rows, masks):
    for row, mask in zip(rows, masks, strict=True):
        row[~mask] = 77.0


def _nothing(random, rows, masks):
    pass


KINDS = {
    "one value": _one_value,
    "not finite": _not_finite,
    "one sample": _one_sample,
    "some samples": _some_samples,
    "some values": _some_values,
    "turned round": _swapped,
    "masked out": _masked_out,
    "nothing": _nothing,
}


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_beyond_its_limit_is_found_where_it_is(part, tmp_path):
    wrong, beyond = [], 0
    for seed in range(part, TRIALS, PARTS):
        trial = drawn(seed)
        baseline = write(trial.before, tmp_path / f"a{seed}", trial.base)
        candidate = write(trial.after, tmp_path / f"b{seed}", trial.other)
        said = rolltape.compare(baseline, candidate)
        first = said.first
        if first is not None and str(first.verdict) == "biased":
            first = None  # a fault too small for a limit may show in the mean of all
        found = first and (first.path, first.first and (first.first.row, first.first.token))
        wanted = trial.place and (f"{STAGE}/{COLUMN}", trial.place)
        beyond += trial.place is not None
        if found != wanted:
            what = f"seed {seed}, {trial.kind}, {trial.before.world.dtype}"
            wrong.append(f"{what}: {found} for {wanted}: {said.sentence}")
    assert not wrong, "\n".join([f"{len(wrong)} of {TRIALS // PARTS}", *wrong[:20]])
    assert beyond > TRIALS // PARTS / 3
