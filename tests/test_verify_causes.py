"""Each diagnosis is made on the fault it is for, and on no other; noise is never explained."""

from __future__ import annotations

import numpy as np
import pytest

from rolltape.verify.diagnose.causes import diagnose
from rolltape.verify.diagnose.evidence import Evidence

LENGTHS = [9, 4, 12, 7, 3, 15, 6, 11, 8, 5, 10, 14]
GROUPS = [f"p{at // 3}" for at in range(len(LENGTHS))]


def rows(seed=0):
    random = np.random.default_rng(seed)
    return [-np.abs(random.normal(size=length)) - 0.1 for length in LENGTHS]


def per_sample(seed=0):
    return [np.array(value) for value in np.random.default_rng(seed).normal(size=len(LENGTHS))]


def causes(before, after, **more):
    more = {"groups": GROUPS, "tokens": LENGTHS, "rtol": 1.3e-6, "atol": 1e-5} | more
    return diagnose(Evidence(before, after, **more))


def patterns(before, after, *, noise=0.0, **more):
    if noise:
        random = np.random.default_rng(9)
        after = [b + noise * random.normal(size=b.shape) for b in after]
    return [cause.pattern for cause in causes(before, after, **more)]


def only(at, change, base=None):
    """The rows with some of them changed."""
    base = rows() if base is None else base
    places = at if isinstance(at, (list, range)) else [at]
    return [change(row.copy()) if row_at in places else row for row_at, row in enumerate(base)]


def nan_at(place):
    def change(row):
        row[place] = np.nan
        return row

    return change


def bfloat(row):
    wide = np.asarray(row, np.float32).view(np.uint32)
    return ((wide + 0x8000) & 0xFFFF0000).view(np.float32).astype(float)


def bump(place):
    def change(row):
        row[place] *= 1.5 + len(row) * 7 % 5
        return row

    return change


def swapped(base, a, b):
    base = list(base)
    base[a], base[b] = base[b], base[a]
    return base


EVERY = range(len(LENGTHS))
FAULTS = {
    "shifted later": (rows(), only(EVERY, lambda r: np.roll(r, 1)), ["shifted by one"]),
    "shifted earlier": (rows(), only(EVERY, lambda r: np.roll(r, -1)), ["shifted by one"]),
    "sign": (rows(), only(EVERY, lambda r: -r), ["sign flipped"]),
    "sign of one sample": (rows(), only(3, lambda r: -r), ["sign flipped", "one sample only"]),
    "two replicas": (rows(), only(EVERY, lambda r: 2 * r), ["scaled"]),
    "temperature": (rows(), only(EVERY, lambda r: r / 0.7), ["scaled"]),
    "one eighth": (per_sample(), [p / 8 for p in per_sample()], ["scaled"]),
    "sum against mean": (
        per_sample(), [p * n for p, n in zip(per_sample(), LENGTHS, strict=True)], ["scaled by length"],
    ),
    "mean against sum": (
        per_sample(), [p / n for p, n in zip(per_sample(), LENGTHS, strict=True)], ["scaled by length"],
    ),
    "off by a constant": (per_sample(), [p + 0.5 for p in per_sample()], ["offset"]),
    "swapped": (per_sample(), swapped(per_sample(), 2, 7), ["swapped samples"]),
    "one NaN": (rows(), only(5, nan_at(2)), ["not finite", "one sample only"]),
    "padding": (
        rows(), [np.pad(r, (0, 15 - len(r))) for r in rows()], ["padding counted"],
    ),
    "mask everywhere": (
        [(np.arange(15) < n).astype(float) for n in LENGTHS], [np.ones(15)] * 12, ["padding counted"],
    ),
    "bfloat16": (rows(), [bfloat(r) for r in rows()], ["rounded"]),
    "float16": (rows(), [r.astype(np.float16).astype(float) for r in rows()], ["rounded"]),
    "last micro-batch": (rows(), only(range(8, 12), lambda r: r * 0 + 1.0), ["last rows only"]),
    "one group": (per_sample(), only(range(3, 6), lambda r: r**2 + 3, per_sample()), ["one group only"]),
    "last token": (rows(), only(EVERY, bump(-1)), ["last token only"]),
    "first token": (rows(), only(EVERY, bump(0)), ["first token only"]),
    "grows with length": (
        rows(), [r + 0.01 * np.arange(len(r)) ** 2 for r in rows()], ["grows with length"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_from_its_pattern(fault):
    before, after, wanted = FAULTS[fault]
    assert patterns(before, after) == wanted


@pytest.mark.parametrize(
    "fault", ["two replicas", "sign", "shifted later", "off by a constant", "swapped", "one NaN"]
)
def test_rounding_noise_under_it_does_not_hide_the_fault(fault):
    before, after, wanted = FAULTS[fault]
    assert patterns(before, after, noise=1e-7)[:1] == wanted[:1]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_noise_is_not_explained(seed, size):
    random = np.random.default_rng(seed + 100)
    for base in (rows(seed), per_sample(seed)):
        after = [row + size * random.normal(size=row.shape) for row in base]
        assert patterns(base, after) == []


def advantages(ddof=0, epsilon=1e-4, seed=0):
    rewards = np.random.default_rng(seed).normal(size=(4, 3))
    found = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=ddof, keepdims=True) + epsilon)
    return [np.array(value) for value in found.reshape(-1)]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-4])
def test_the_deviation_of_a_sample_is_told_whatever_is_added_to_it(before, epsilon):
    wanted = ["sample deviation"]
    assert patterns(advantages(before, epsilon), advantages(1 - before, epsilon)) == wanted
    tokens = [np.full(length, value) for length, value in zip(LENGTHS, advantages(before), strict=True)]
    other = [np.full(length, value) for length, value in zip(LENGTHS, advantages(1 - before), strict=True)]
    assert patterns(tokens, other) == wanted


def test_the_step_before_and_another_column_are_recognised():
    late, other = per_sample(5), per_sample(6)
    assert patterns(per_sample(), late, earlier=lambda: late) == ["one step late"]
    assert patterns(per_sample(), other, others=lambda: {"reward": other}) == ["equal to another column"]
    zeros = [np.array(0.0)] * len(LENGTHS)
    assert patterns(per_sample(), zeros, others=lambda: {"mask": zeros}) == ["zero"]


def test_a_sequence_of_steps_can_be_late():
    numbers = [np.array(value) for value in np.random.default_rng(3).normal(size=8)]
    found = patterns(numbers, [np.array(9.0), *numbers[:-1]], groups=(), tokens=(), steps=True)
    assert found == ["one step late"]


def test_samples_are_never_swapped_with_themselves():
    base = [np.full(6, 1.0) + 1e-6 * at for at in range(12)]  # rows that are all about the same
    random = np.random.default_rng(1)
    after = [row + 2e-5 * random.choice([-1, 1], 6) for row in base]
    assert "swapped samples" not in patterns(base, after)


def test_two_explanations_as_good_are_none():
    pairs = [np.array(value) for value in (0.7, -0.7, 1.1, -1.1, 0.4, -0.4)]
    flipped = [-value for value in pairs]  # in each pair, also the other's value
    assert patterns(pairs, flipped, groups=["a", "a", "b", "b", "c", "c"], tokens=()) == []


def test_the_last_rows_that_are_one_group_are_described():
    found = causes(per_sample(), only(range(9, 12), lambda r: r**2 + 3, per_sample()))
    assert [(cause.pattern, cause.named) for cause in found] == [("last rows or one group", False)]
    assert found[0].text == "only the last 3 of 12 samples differ, and they are all of uid p3"


@pytest.mark.parametrize(("start", "apart"), [(0, 2), (1, 2), (2, 4)])
def test_one_rank_of_several_is_told(start, apart):
    found = patterns(rows(), only(range(start, 12, apart), lambda r: r**2 + 1))
    assert found == ["every k-th row"]


def test_a_mask_that_is_on_in_a_gap_counts_no_padding():
    before = [np.array([1.0, 1, 0, 0, 1, 1, *[0] * at]) for at in range(1, 7)]
    after = [np.ones(len(row)) for row in before]
    assert patterns(before, after, groups=(), tokens=()) == []


def test_a_row_of_chance_length_counts_no_padding():
    random = np.random.default_rng(2)
    assert patterns(rows(), [random.normal(size=15) for _ in LENGTHS]) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda r: r[:-1], "last token lost"),
        (lambda r: r[1:], "first token lost"),
        (lambda r: np.append(r[:1], r), "token added in front"),
        (lambda r: np.append(r, 2.0), "token added behind"),
    ],
)
def test_a_token_at_an_end_is_told(change, wanted):
    assert patterns(rows(), only(EVERY, change)) == [wanted]


def test_large_columns_are_explained_as_small_ones_are():
    random = np.random.default_rng(4)
    base = [random.normal(size=5000) for _ in LENGTHS]
    assert patterns(base, [2 * row for row in base]) == ["scaled"]
    assert patterns(base, only(range(7, 8), lambda r: r + 0.25, base)) == ["offset", "one sample only"]
    nearly = [2 * row for row in base]
    nearly[3][17] += 1.0
    assert patterns(base, nearly) == []


def test_nothing_changed_is_not_explained():
    assert patterns(rows(), rows()) == []


def test_too_little_to_tell():
    assert patterns([np.array(2.0)], [np.array(4.0)], groups=(), tokens=()) == []
    assert (
        patterns([np.array(2.0), np.array(2.0)], [np.array(-2.0), np.array(-2.0)], groups=(), tokens=()) == []
    )


def test_the_factor_is_named():
    [cause] = diagnose(Evidence(rows(), [4 * row for row in rows()]))
    assert cause.text == (
        "scaled by 4: a coefficient, "
        "or the sum over 4 ranks, micro-batches or samples where their mean belongs"
    )
    [cause] = diagnose(Evidence(rows(), [row / 2 for row in rows()]))
    assert cause.text == (
        "scaled by 0.5: a coefficient, "
        "or divided by a number of 2 ranks, micro-batches or samples once too often"
    )
