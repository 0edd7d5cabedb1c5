"""A mismatch that is a bug in the plumbing is called by its name; noise and training are not called bugs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rolltape.trusting import Pairs, find_structure
from rolltape.trusting.structure import Known
from tests.trust_policies import (
    PAD,
    World,
    bf16,
    drifted,
    int8,
    log_softmax,
    noisy,
    sample,
    top_p,
    without_eos,
)

SEEDS = range(4)


def kinds(pairs: Pairs) -> list[str]:
    return [one.kind for one in find_structure(pairs)]


def usual(seed, **more) -> tuple[World, Pairs]:
    world = World(seed, **more)
    return world, world.pairs(log_softmax(noisy(world.logits, 0.01, seed)))


def rolled(pairs, by, rows) -> Pairs:
    moved = pairs.trainer.copy()
    for at in rows:
        moved[pairs.row(at)] = np.roll(moved[pairs.row(at)], by)
    return replace(pairs, trainer=moved)


CLEAN = {
    **{
        f"noise {size}": (lambda logits, seed, size=size: noisy(logits, size, seed))
        for size in (1e-6, 1e-3, 0.02, 0.2)
    },
    **{
        f"{count} updates": (lambda logits, seed, count=count: drifted(logits, count, seed))
        for count in (1, 3, 8, 20)
    },
    "bf16": lambda logits, seed: bf16(logits),
    "int8": lambda logits, seed: int8(logits),
}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_invented_where_there_is_only_noise_or_training(name, seed):
    world = World(
        100 + seed, prompts=(8, 16, 32, 64)[seed], n=(2, 4, 8, 4)[seed], longest=(12, 24, 40, 60)[seed]
    )
    pairs = world.pairs(log_softmax(CLEAN[name](world.logits, seed)))
    versions = np.repeat(np.random.default_rng(seed).integers(3, 6, len(pairs.lengths)), pairs.lengths)
    images = np.where(np.arange(len(pairs.lengths)) % 2, 16, 0)
    assert kinds(pairs) == []
    assert kinds(replace(pairs, versions=versions, images=images, ids=None, finished=None)) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by", [1, -1])
def test_shifted_by_one(seed, by):
    _, pairs = usual(seed)
    assert kinds(rolled(pairs, by, range(256))) == ["shifted by one"]
    assert kinds(rolled(pairs, by, range(0, 256, 10))) == ["shifted by one"]
    longest = int(np.argmax(pairs.lengths))
    (found,) = find_structure(rolled(pairs, by, [longest]))
    assert (found.kind, found.affected) == ("shifted by one", 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_shifted_from_a_place_on(seed):
    _, pairs = usual(seed, longest=60)
    moved = pairs.trainer.copy()
    for at in range(0, 256, 2):
        row = pairs.row(at)
        if row.stop - row.start > 24:
            moved[row.start + 10 : row.stop] = np.roll(moved[row.start + 10 : row.stop], 1)
    (found,) = find_structure(replace(pairs, trainer=moved))
    assert found.kind == "shifted by one"
    assert "from place 1" in found.message


@pytest.mark.parametrize("seed", SEEDS)
def test_vision_tokens_misaligned(seed):
    _, pairs = usual(seed)
    images = np.where(np.arange(256) % 2, 5, 0)
    with_images = np.flatnonzero(images)
    assert kinds(replace(rolled(pairs, 5, with_images), images=images)) == ["vision tokens misaligned"]
    other = pairs.trainer.copy()  # further away than a response is long
    for at in with_images:
        row = pairs.row(at)
        other[row] = -np.random.default_rng(at).exponential(4, row.stop - row.start)
    assert kinds(replace(pairs, trainer=other, images=50 * images)) == ["vision tokens misaligned"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fill", [0.0, -1.0])
def test_padding_and_prompts_counted(seed, fill):
    _, pairs = usual(seed)
    rng = np.random.default_rng(seed)
    tail = pairs.within >= (pairs.lengths - rng.integers(0, 6, 256))[pairs.sequence]
    ids = np.where(tail, PAD, pairs.ids)
    assert kinds(replace(pairs, engine=np.where(tail, fill, pairs.engine), ids=ids)) == ["padding counted"]
    assert kinds(replace(pairs, trainer=np.where(tail, fill, pairs.trainer), ids=ids)) == ["padding counted"]
    head = pairs.within < 3
    assert kinds(replace(pairs, engine=np.where(head, fill, pairs.engine))) == ["prompt counted"]


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_that_both_sides_fill_alike_makes_means_look_better(seed):
    _, pairs = usual(seed)
    tail = pairs.within >= (pairs.lengths - 4)[pairs.sequence]
    same = {name: np.where(tail, 0.0, getattr(pairs, name)) for name in ("engine", "trainer")}
    assert kinds(replace(pairs, **same, ids=np.where(tail, PAD, pairs.ids))) == ["padding counted"]


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_in_front_is_no_prompt(seed):
    """Rows are padded left, and the mask is too wide: one id over and over, of unequal numbers."""
    _, pairs = usual(seed)
    head = pairs.within < np.random.default_rng(seed).integers(0, 6, 256)[pairs.sequence]
    ids = np.where(head, PAD, pairs.ids)
    assert kinds(replace(pairs, engine=np.where(head, 0.0, pairs.engine), ids=ids)) == ["padding counted"]
    alike = {name: np.where(head, 0.0, getattr(pairs, name)) for name in ("engine", "trainer")}
    assert kinds(replace(pairs, **alike, ids=ids)) == ["padding counted"]


@pytest.mark.parametrize("seed", SEEDS)
def test_eos_dropped(seed):
    world, pairs = usual(seed)
    lost = world.pairs(log_softmax(without_eos(noisy(world.logits, 0.01))))
    assert kinds(lost) == ["eos dropped"]
    assert kinds(replace(lost, ids=None)) == ["eos dropped"]
    last = (pairs.starts + pairs.lengths - 1)[world.finished]
    filled = pairs.trainer.copy()
    filled[last] = 0.0
    assert kinds(replace(pairs, trainer=filled)) == ["eos dropped"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.9, 1.3, 2.0])
def test_temperature(seed, temperature):
    world = World(seed)
    (found,) = find_structure(world.pairs(log_softmax(noisy(world.logits, 0.005) / temperature)))
    assert found.kind == "temperature"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kept", [0.7, 0.9, 0.95])
def test_surviving_mass(seed, kept):
    """A ratio off by what top-p kept (TRL #6789), whichever side renormalises."""
    world = World(seed)
    whole = log_softmax(noisy(world.logits, 0.005))
    part = top_p(world.engine, kept)
    world.ids[:] = sample(np.random.default_rng(seed), part)
    assert kinds(world.pairs(whole, part)) == ["surviving mass"]
    assert kinds(world.pairs(part, whole)) == ["surviving mass"]


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_and_bases(seed):
    _, pairs = usual(seed)
    assert kinds(replace(pairs, trainer=pairs.engine - 0.1)) == ["constant offset"]
    assert kinds(replace(pairs, trainer=pairs.engine / np.log(2))) == ["scaled"]
    (found,) = find_structure(replace(pairs, trainer=pairs.engine / np.log(2)))
    assert "base of the logarithm" in found.message


@pytest.mark.parametrize("seed", SEEDS)
def test_log_probs_of_other_tokens(seed):
    """A KL of 30 that was a gather of the wrong tokens (LightRFT #53)."""
    world = World(seed)
    assert kinds(world.pairs(np.roll(world.engine, 7, axis=1))) == ["gather misaligned"]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_swapped(seed):
    _, pairs = usual(seed)
    moved = pairs.trainer.copy()
    order = np.argsort(pairs.lengths, kind="stable")
    for one, other in zip(order[::2], order[1::2], strict=True):
        if pairs.lengths[one] == pairs.lengths[other]:
            a, b = pairs.row(one), pairs.row(other)
            moved[a], moved[b] = pairs.trainer[b], pairs.trainer[a]
    assert kinds(replace(pairs, trainer=moved)) == ["rows swapped"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("left", [False, True])
def test_rows_sorted_by_length_and_not_put_back(seed, left):
    """Padded rows: what is in the places of a row are those of a row of another length, and its padding."""
    _, pairs = usual(seed)
    width = int(pairs.lengths.max())
    on = np.arange(width) < pairs.lengths[:, None]
    on = on[:, ::-1] if left else on
    padded = np.zeros(on.shape)
    padded[on] = pairs.trainer
    moved = padded[np.argsort(pairs.lengths, kind="stable")][on]
    assert kinds(replace(pairs, trainer=moved)) == ["rows swapped"]


@pytest.mark.parametrize("share", [0.15, 0.2])
def test_sequences_that_are_off_hundreds_of_times(share):
    """15 to 20 % of the sequences off by 100 to 670 times (NeMo-RL #2100)."""
    world = World(1)
    size = np.full(256, 0.003)
    many = int(share * 256)
    size[:many] = np.random.default_rng(0).uniform(100, 670, many) * 0.003
    size = np.random.default_rng(1).permutation(size)
    pairs = world.pairs(log_softmax(noisy(world.logits, np.repeat(size, world.lengths)[:, None], 2)))
    (found,) = find_structure(pairs)
    assert found.kind == "broken sequences"
    assert 0.9 * many <= found.affected <= many


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_sequences_that_a_mean_hides(seed):
    """1 % of the sequences off by 100 times: named, with how many."""
    world = World(seed)
    size = np.full(256, 0.01)
    size[[3, 77, 200]] = 1.0
    size = np.repeat(size, world.lengths)[:, None]
    (found,) = find_structure(world.pairs(log_softmax(noisy(world.logits, size, seed))))
    assert (found.kind, found.affected, found.is_bug) == ("broken sequences", 3, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_growth_is_told_and_is_no_bug(seed):
    world, pairs = usual(seed)
    along = world.pairs(log_softmax(noisy(world.logits, (0.01 * (1 + pairs.within))[:, None])))
    (found,) = find_structure(along)
    assert (found.kind, found.is_bug) == ("grows with position", False)
    length = (0.001 * pairs.lengths[pairs.sequence] ** 1.5)[:, None]
    assert kinds(world.pairs(log_softmax(noisy(world.logits, length)))) == ["grows with length"]


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_weights_version(seed):
    world = World(seed)
    versions = np.repeat(np.random.default_rng(seed).integers(3, 6, 256), world.lengths)
    older = world.pairs(log_softmax(noisy(world.logits, (0.005 + 0.1 * (versions - 3))[:, None])))
    assert kinds(replace(older, versions=versions)) == ["wrong weights version"]
    aged = world.pairs(log_softmax(noisy(world.logits, (0.005 + 0.1 * (5 - versions))[:, None])))
    assert kinds(replace(aged, versions=versions)) == []


def test_numbers_that_are_no_log_probs():
    _, pairs = usual(0)
    assert kinds(replace(pairs, trainer=np.exp(pairs.trainer))) == ["not log-probs"]
    hole = pairs.trainer.copy()
    hole[[4, 9]] = np.nan, -np.inf
    (found,) = find_structure(replace(pairs, trainer=hole))
    assert found.kind == "not numbers"
    assert "2 counted tokens" in found.message


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_hardly_any_tokens_are_no_error(count):
    rows = [[-1.0] * 3] * count
    assert find_structure(Pairs.of(rows, rows)) == []


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0])
def test_a_temperature_of_nothing_is_no_error(temperature):
    """Greedy decoding is recorded as temperature 0."""
    _, pairs = usual(0)
    assert find_structure(pairs, Known(temperature)) == []
