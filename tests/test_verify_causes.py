"""Each diagnosis is made on the fault it is for, and on no other; noise is never explained."""

from __future__ import annotations

import numpy as np
import pytest

from rolltape.verify.causes import diagnose
from rolltape.verify.pattern import Evidence

LENGTHS = [9, 4, 12, 7, 3, 15, 6, 11, 8, 5, 10, 14]
GROUPS = [f"p{at // 3}" for at in range(len(LENGTHS))]


def rows(seed=0):
    random = np.random.default_rng(seed)
    return [-np.abs(random.normal(size=length)) - 0.1 for length in LENGTHS]


def per_sample(seed=0):
    return [np.array(value) for value in np.random.default_rng(seed).normal(size=len(LENGTHS))]


def patterns(before, after, *, noise=0.0, **more):
    if noise:
        random = np.random.default_rng(9)
        after = [b + noise * random.normal(size=b.shape) for b in after]
    more = {"groups": GROUPS, "tokens": LENGTHS, "rtol": 1.3e-6, "atol": 1e-5} | more
    return [cause.pattern for cause in diagnose(Evidence(before, after, **more))]


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


def test_nothing_changed_is_not_explained():
    assert patterns(rows(), rows()) == []


def test_too_little_to_tell():
    assert patterns([np.array(2.0)], [np.array(4.0)], groups=(), tokens=()) == []
    assert (
        patterns([np.array(2.0), np.array(2.0)], [np.array(-2.0), np.array(-2.0)], groups=(), tokens=()) == []
    )


def test_the_factor_is_named():
    [cause] = diagnose(Evidence(rows(), [4 * row for row in rows()]))
    assert cause.text == "scaled by 4: a sum over 4 replicas, micro-batches or samples that is not divided"
    [cause] = diagnose(Evidence(rows(), [row / 2 for row in rows()]))
    assert cause.text == "scaled by 0.5: divided by 2 once too often, or one of 2 parts is left out"
