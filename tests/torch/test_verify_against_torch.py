"""The comparison says what torch.testing says, and its figures are those of exact arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

import rolltape
from rolltape.batch.arrays import bits_of
from rolltape.batch.floats import FLOATS, values
from rolltape.storage import LocalStorage
from rolltape.verify import Limits, Verdict, judge, measure
from rolltape.verify.measure.limits import TOLERANCES
from tests import comparing

TORCH = sorted(FLOATS)


def tensor(dtype, count=512, seed=0):
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(getattr(torch, dtype))


def compared(a, b, limits=None):
    left, right = bits_of(a, ()), bits_of(b, ())
    return measure(left.data, right.data, left.dtype, limits)


def passes(a, b, **tolerance):
    try:
        torch.testing.assert_close(b, a, **tolerance)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("dtype", TORCH)
def test_values_are_those_of_torch(dtype):
    width = 8 * getattr(torch, dtype).itemsize
    every = np.arange(2 ** min(width, 16)).astype(f"u{width // 8}")
    if width > 16:
        every = every << np.array(width - 16, every.dtype)
    carried = torch.from_numpy(every.copy().view(f"i{width // 8}")).view(getattr(torch, dtype))
    np.testing.assert_array_equal(values(every, dtype), carried.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_usual_tolerance_is_torchs(dtype):
    rtol, atol = TOLERANCES[dtype]
    own = torch.testing._comparison.default_tolerances(getattr(torch, dtype))
    assert (rtol, atol) == own


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
def test_the_verdict_is_torchs(dtype, size):
    for seed in range(20):
        a = tensor(dtype, seed=seed)
        b = (a.double() * (1 + size * tensor("float64", seed=seed + 100))).to(a.dtype)
        limits = Limits(ulp=-1)
        found = compared(a, b, limits)
        verdict = judge(found, limits)
        if abs(found.atol - TOLERANCES[dtype][1]) > 1e-3 * TOLERANCES[dtype][1]:  # torch rounds in the dtype
            assert verdict.clean == passes(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_smallest_tolerance_is_one_that_torch_accepts(dtype):
    a, b = tensor(dtype, seed=1), tensor(dtype, seed=2)
    found = compared(a, b)
    wide = a.double(), b.double()
    assert passes(*wide, rtol=found.rtol, atol=found.atol)
    assert not passes(*wide, rtol=found.rtol, atol=found.atol * (1 - 1e-9))


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45])
def test_special_values_are_judged_as_torch_does(special):
    usual = torch.tensor([1.0, 2.0])
    other = torch.tensor([special, 2.0])
    for a, b in ((usual, other), (other, usual), (other, other.clone())):
        ours = judge(compared(a, b), Limits()).clean
        assert ours == passes(a, b, equal_nan=False)


def test_minus_zero_equals_zero_and_is_not_bitwise():
    found = compared(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert (found.mismatched, found.max_ulp, judge(found, Limits())) == (1, 0, Verdict.ULP)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("spread", [0.0, 30.0])
def test_the_statistics_are_those_of_exact_arithmetic(dtype, spread):
    random = np.random.default_rng(5)
    sizes = np.exp(
        np.clip(spread, 0, 4 if "float8" in dtype or dtype == "float16" else spread) * random.normal(size=200)
    )
    a = torch.from_numpy(random.normal(size=200) * sizes).to(getattr(torch, dtype))
    b = torch.from_numpy(random.normal(size=200) * sizes).to(getattr(torch, dtype))
    finite = torch.isfinite(a.double()) & torch.isfinite(b.double())
    x, y = (t.double()[finite].tolist() for t in (a, b))
    a, b = a[finite], b[finite]
    found = compared(a, b)
    with mpmath.workdps(60):
        xs, ys = [mpmath.mpf(v) for v in x], [mpmath.mpf(v) for v in y]
        errors = [abs(q - p) for p, q in zip(xs, ys, strict=True)]
        dot = mpmath.fsum(p * q for p, q in zip(xs, ys, strict=True))
        squares = mpmath.fsum(p * p for p in xs), mpmath.fsum(q * q for q in ys)
        assert found.max_abs == pytest.approx(float(max(errors)), rel=1e-15)
        relative = [e / abs(p) for e, p in zip(errors, xs, strict=True) if p and e]
        if all(x):
            assert found.max_rel == pytest.approx(float(max(relative)), rel=1e-14)
        assert found.cosine == pytest.approx(float(dot / mpmath.sqrt(squares[0] * squares[1])), abs=1e-12)
        assert found.scale == pytest.approx(float(dot / squares[0]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_padded_columns_of_few_bits_are_compared_in_their_own(tmp_path, kind):
    rows = torch.zeros(3, 6)
    rows[:, :4] = torch.tensor([1.0, 2.0, -0.5, 8.0])
    spoiled, scaled = rows.clone(), rows * 1.5
    spoiled[1, 2] = torch.nan
    found = {}
    for name, value in {"plain": rows, "spoiled": spoiled, "scaled": scaled}.items():
        with rolltape.Tape(tmp_path / name, mode="record", background=False) as tape, tape.step(0):
            columns = {"uid": list("abc"), "x": value.to(getattr(torch, kind))}
            tape.stage("loss")(columns.copy)()
        found[name] = LocalStorage(str(tmp_path / name))
    (entry,) = comparing.compared(found["plain"], found["spoiled"]).firsts()
    assert (entry.name, entry.verdict, entry.difference.mismatched) == ("x", Verdict.DIVERGED, 1)
    assert (entry.first.row, entry.first.token) == (1, (2,))
    entry = next(e for e in comparing.compared(found["plain"], found["scaled"]).entries if e.name == "x")
    assert entry.difference.mismatched == 12
    assert entry.difference.max_abs == 4.0
