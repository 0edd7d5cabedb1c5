"""How far two arrays are apart: checked against numpy, on random values and on the nasty ones."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rolltape.batch.floats import FLOATS, ulps, values
from rolltape.verify import Limits, Verdict, judge, measure
from rolltape.verify.measure import difference
from rolltape.verify.measure.limits import TOLERANCES

WIDTHS = {"float16": "u2", "bfloat16": "u2", "float32": "u4", "float64": "u8"} | {
    name: "u1" for name in FLOATS if "8_" in name
}
"""Every float dtype and the integers that carry its bits."""
NUMPY = ("float16", "float32", "float64")


def bits(dtype, count=4096, seed=0):
    """Random bit patterns: every exponent, denormals, infinities and NaN of every payload."""
    random = np.random.default_rng([seed, len(dtype)])
    return random.integers(0, 256, count * np.dtype(WIDTHS[dtype]).itemsize, np.uint8).view(WIDTHS[dtype])


@pytest.mark.parametrize("dtype", NUMPY)
def test_steps_are_those_that_numpy_counts(dtype):
    a = bits(dtype, seed=1)
    a = a[np.isfinite(a.view(dtype))]
    for steps in (1, 2, 5, 90, 1000):
        b = a + a.dtype.type(steps)  # away from zero
        kept = np.isfinite(b.view(dtype)) & ((a ^ b) >> (8 * a.itemsize - 1) == 0)
        x, y = a[kept].view(dtype), b[kept].view(dtype)
        assert (ulps(x, y) == steps).all()
        np.testing.assert_array_max_ulp(x, y, maxulp=steps)
        with pytest.raises(AssertionError):
            np.testing.assert_array_max_ulp(x, y, maxulp=steps - 1)
    a = a.view(dtype)
    for steps in (1, 2, 7):
        near = a
        for _ in range(steps):
            near = np.nextafter(near, np.array(0, dtype))
        away = np.abs(a) > steps * np.finfo(dtype).smallest_subnormal
        assert (ulps(a, near)[away] == steps).all()


@pytest.mark.parametrize("dtype", sorted(WIDTHS))
def test_one_step_is_one_step_in_every_dtype(dtype):
    every = np.arange(2 ** min(8 * np.dtype(WIDTHS[dtype]).itemsize, 16)).astype(WIDTHS[dtype])
    if np.dtype(WIDTHS[dtype]).itemsize > 2:
        every = every << np.array(8 * every.itemsize - 16, every.dtype)  # all exponents
    known = values(every, dtype)
    order = np.argsort(known[np.isfinite(known)], kind="stable")
    ranked = every[np.isfinite(known)][order]
    if every.itemsize <= 2:  # every pattern there is: neighbours in value are neighbours in steps
        apart = ulps(ranked[:-1], ranked[1:])
        assert set(apart[np.diff(known[np.isfinite(known)][order]) > 0].tolist()) == {1}
        assert set(apart[np.diff(known[np.isfinite(known)][order]) == 0].tolist()) <= {0}
    else:
        assert (ulps(ranked, ranked + ranked.dtype.type(1)) == 1).all()


def test_steps_across_zero_and_to_the_far_end():
    one = np.float32
    pairs = [
        (0.0, -0.0, 0),
        (1e-45, -1e-45, 2),
        (0.0, 1e-45, 1),
        (-0.0, 1e-45, 1),
        (1.0, -1.0, 2 * 0x3F800000),
    ]
    for a, b, steps in pairs:
        assert ulps(np.array([a], one), np.array([b], one)).tolist() == [steps]
        assert ulps(np.array([b], one), np.array([a], one)).tolist() == [steps]
    far = np.finfo(np.float64).max
    assert ulps(np.array([far]), np.array([-far])).tolist() == [2 * 0x7FEFFFFFFFFFFFFF]


def test_spacing_is_one_step():
    x = np.array([1.0, 3.0, 1e-40, 6e4, 2.0**-20], np.float32)
    assert ulps(x, x + np.spacing(x)).tolist() == [1] * 5


@given(
    st.sampled_from(NUMPY).flatmap(
        lambda dtype: st.tuples(
            arrays.arrays(dtype, 40, elements={"allow_nan": True, "allow_infinity": True}),
            arrays.arrays(dtype, 40, elements={"allow_nan": True, "allow_infinity": True}),
        )
    )
)
def test_statistics_are_numpys(both):
    a, b = both
    found = measure(a, b, a.dtype.name)
    width = f"u{a.itemsize}"
    differ = a.view(width) != b.view(width)
    assert (found.count, found.mismatched) == (40, int(differ.sum()))
    x, y = a.astype(float), b.astype(float)
    assert found.both_nan == int((np.isnan(x) & np.isnan(y)).sum())
    broken = (
        (np.isfinite(x) != np.isfinite(y))
        | (np.isnan(x) != np.isnan(y))
        | (np.isinf(x) & np.isinf(y) & (x != y))
    )
    assert found.nonfinite == int(broken.sum())
    if broken.any():
        assert found.max_abs == math.inf
        assert broken[found.worst]
        return
    with np.errstate(all="ignore"):
        error = np.where(np.isfinite(x), np.abs(x - y), 0.0)
        allowed = found.atol + found.rtol * np.where(np.isfinite(x), np.abs(x), 0.0)
    assert found.max_abs == error.max()
    assert (error <= allowed).all()
    if differ.any():
        lower = np.percentile(error[differ], 50, method="lower")
        assert found.p50 == lower
        assert error[found.worst] == error.max()
        assert found.worst_values == (x[found.worst], y[found.worst]) or np.isnan(x[found.worst])


@pytest.mark.parametrize("dtype", sorted(WIDTHS))
def test_the_smallest_tolerance_passes_and_a_smaller_one_does_not(dtype):
    a = bits(dtype, 64, seed=3)
    known = values(a, dtype)
    a = a[np.isfinite(known) & (known != 0)]
    b = np.roll(a, 1)
    found = measure(a, b, dtype)
    x, y = values(a, dtype), values(b, dtype)
    with np.errstate(over="ignore"):
        error, slack = np.abs(x - y), found.rtol * np.abs(x)
    assert (error <= found.atol + slack).all()
    if 0 < found.atol < math.inf:
        assert not (error <= found.atol * (1 - 1e-9) + slack).all()


def test_nan_payloads_are_other_bits_and_no_error():
    a = np.array([0x7FC00000, 0x3F800000], np.uint32).view(np.float32)
    b = np.array([0x7FC00001, 0x3F800000], np.uint32).view(np.float32)
    found = measure(a, b, "float32")
    assert (found.mismatched, found.max_abs, found.max_ulp, found.nonfinite) == (1, 0.0, 0, 0)
    assert (found.both_nan, found.beyond, found.first) == (1, 0, 0)
    assert judge(found, Limits()) is Verdict.INCOMPARABLE


@pytest.mark.parametrize(("was", "now"), [(1.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (np.inf, -np.inf)])
def test_what_is_finite_on_one_side_only_is_never_a_pass(was, now):
    a = np.array([0.5, was, 0.25], np.float32)
    b = np.array([0.5, now, 0.25], np.float32)
    found = measure(a, b, "float32")
    assert (found.nonfinite, found.worst, found.first) == (1, 1, 1)
    everything = Limits(ulp=2**40, tolerance={"float32": (1e9, 1e9)}, noise=1e300)
    assert judge(measure(a, b, "float32", everything), everything) is Verdict.DIVERGED


def test_nothing_but_nan_is_nothing_to_compare():
    nan = np.full(5, np.nan, np.float32)
    assert measure(nan, nan.copy(), "float32").only_nan
    assert judge(measure(nan, nan.copy(), "float32"), Limits()) is Verdict.INCOMPARABLE


def test_what_is_nan_on_both_sides_is_nothing_that_agrees():
    mixed = np.array([1.0, np.nan, 2.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), np.nan, 2.0], np.float32)
    for after in (mixed.copy(), other):
        found = measure(mixed, after, "float32")
        assert (found.both_nan, found.first, judge(found, Limits())) == (1, 1, Verdict.INCOMPARABLE)
    other[2] = 3.0  # and what differs besides comes first
    found = measure(mixed, other, "float32")
    assert (found.beyond, found.first, judge(found, Limits())) == (1, 2, Verdict.DIVERGED)


def test_empty_is_incomparable():
    found = measure(np.empty(0, np.float32), np.empty(0, np.float32), "float32")
    assert (found.count, judge(found, Limits())) == (0, Verdict.INCOMPARABLE)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64"])
def test_whole_numbers_have_to_be_equal(dtype):
    a, b = np.array([0, 1, 1]).astype(dtype), np.array([0, 1, 0]).astype(dtype)
    found = measure(a, b, dtype)
    assert (found.max_abs, found.max_ulp, found.worst) == (1.0, 1, 2)
    assert judge(found, Limits()) is Verdict.DIVERGED
    one_off = Limits(tolerance={dtype: (0.0, 1.0)})
    assert judge(measure(a, b, dtype, one_off), one_off) is Verdict.TOLERANCE


def test_whole_numbers_beyond_doubles_are_counted_exactly():
    a, b = np.array([2**63 - 1, -(2**63)], np.int64), np.array([2**63 - 2, 2**63 - 1], np.int64)
    found = measure(a, b, "int64")
    assert found.max_ulp == 2**64 - 1
    assert measure(a[:1], b[:1], "int64").max_abs == 1.0


def test_huge_and_tiny_values_have_a_cosine():
    for size in (1e300, 5e-324 * 1000, 1e-200):
        a = np.array([3.0, 4.0]) * size
        b = np.array([4.0, 3.0]) * size
        found = measure(a, b, "float64")
        assert found.cosine == pytest.approx(24 / 25, rel=1e-2)
        assert found.scale == pytest.approx(24 / 25, rel=1e-2)


def test_pieces_add_up_to_the_whole(monkeypatch):
    random = np.random.default_rng(0)
    a = random.normal(size=10_000) * np.exp(random.normal(size=10_000) * 100)
    b = a * (1 + 1e-9 * random.normal(size=10_000))
    whole = measure(a, b, "float64")
    monkeypatch.setattr(difference, "PIECE", 77)
    pieces = measure(a, b, "float64")
    assert pieces.cosine == pytest.approx(whole.cosine)
    assert pieces.scale == pytest.approx(whole.scale)
    for name in (
        "mismatched",
        "max_ulp",
        "max_abs",
        "max_rel",
        "p50",
        "p99",
        "first",
        "worst",
        "atol",
        "beyond",
        "first_values",
    ):
        assert getattr(pieces, name) == getattr(whole, name), name


def peak(count):
    """The most memory that a comparison of so many elements takes beside them."""
    a = np.arange(count, dtype=np.float32)
    b = a + np.float32(0.5)
    tracemalloc.start()
    try:
        assert measure(a, b, "float32").mismatched
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_arrays():
    assert peak(16_000_000) < 1.2 * peak(4_000_000)


def test_strides_do_not_matter():
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert measure(a.T, a.T.copy(), "float32").same_bits
    assert measure(a[:, 0], a[:, 0] + 1, "float32").max_abs == 1.0


def test_what_has_no_distance_is_the_same_or_not():
    found = measure(np.array(["a", "b"]), np.array(["a", "c"]), "numpy:<U1")
    assert (found.mismatched, found.first, found.max_abs) == (1, 1, math.inf)
    assert judge(found, Limits()) is Verdict.DIVERGED


def test_the_ladder_from_top_to_bottom():
    one = np.array([1.0], np.float32)

    def against(value, **limits):
        allowed = Limits(**limits)
        return judge(measure(one, np.array([value], np.float32), "float32", allowed), allowed)

    assert against(1.0) is Verdict.BITWISE
    assert against(1.0 + 4 * 2**-23) is Verdict.ULP
    assert against(1.0 + 4 * 2**-23, ulp=-1, tolerance={}) is Verdict.DIVERGED
    assert against(1.001, noise=0.001) is Verdict.NOISE
    assert against(1.01, noise=0.001) is Verdict.DIVERGED
    assert against(1.00001) is Verdict.TOLERANCE
    assert against(1.0001) is Verdict.DIVERGED
    assert sorted(TOLERANCES) == sorted(FLOATS)
