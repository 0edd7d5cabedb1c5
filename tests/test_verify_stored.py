"""What is compared as it is stored comes out as if every row had been laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify import Verdict, compare_tapes, stages


def write(path, **columns):
    with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
        tape.stage("loss")(lambda: columns)()
    return LocalStorage(str(path))


def laid_out(*sides):
    """The comparison with nothing told from what is stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "alike", lambda left, right: {})
        patch.setattr(stages, "compare_packed", lambda *args: None)
        return compare_tapes(*sides)


def padded(random, lengths, width, dtype, left, pad):
    """Rows of random content, padded, and their mask."""
    mask = np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        mask[row, slice(width - length, width) if left else slice(0, length)] = 1
    return np.where(mask, random.integers(1, 90, mask.shape), pad).astype(dtype), mask


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_stored_or_laid_out_is_no_difference(tmp_path_factory, data):
    draw = data.draw
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, width = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, width), min_size=count, max_size=count))
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "int64", "int8", "bool"]))
    rows, mask = padded(random, lengths, width, dtype, draw(st.booleans()), draw(st.sampled_from([0, 0, 7])))
    other, order = rows.copy(), np.arange(count)
    for _ in range(draw(st.integers(0, 4))):
        spoiled = draw(st.sampled_from([0, 1, 5, 120])) if dtype != "bool" else 1
        other[draw(st.integers(0, count - 1)), draw(st.integers(0, width - 1))] = spoiled
    if dtype.startswith("float") and draw(st.booleans()):
        both = (rows, other) if draw(st.booleans()) else (other,)
        for side in both:
            side[draw(st.integers(0, count - 1)), 0] = np.nan
    if draw(st.booleans()):
        order = random.permutation(count)
    columns = {"log_probs": rows}, {"log_probs": other[order]}
    if draw(st.booleans()):
        columns = columns[0] | {"response_mask": mask}, columns[1] | {"response_mask": mask[order]}
    uids = [f"u{at}" for at in range(count)]
    folder = tmp_path_factory.mktemp("pair")
    sides = (
        write(folder / "a", uid=uids, **columns[0]),
        write(folder / "b", uid=[uids[at] for at in order], **columns[1]),
    )
    fast, slow = compare_tapes(*sides).entries, laid_out(*sides).entries
    assert [(e.name, e.verdict, e.first, e.worst, e.samples, e.note) for e in fast] == [
        (e.name, e.verdict, e.first, e.worst, e.samples, e.note) for e in slow
    ]
    for a, b in zip(fast, slow, strict=True):
        for name in ("mismatched", "max_ulp", "max_abs", "max_rel", "nonfinite", "p50", "p99", "atol"):
            assert getattr(a.difference, name) == getattr(b.difference, name), (a.name, name)
        assert a.difference.worst_values == pytest.approx(b.difference.worst_values, nan_ok=True)
        if a.difference.mismatched:
            assert a.difference.cosine == pytest.approx(b.difference.cosine, nan_ok=True)
            assert a.difference.count == b.difference.count


@pytest.mark.parametrize("mask", [True, False])
def test_what_is_the_same_is_never_laid_out(tmp_path, monkeypatch, mask):
    random = np.random.default_rng(0)
    rows, kept = padded(random, [3, 5, 0, 8], 8, "float32", False, 0)
    columns = {"uid": list("abcd"), "log_probs": rows, "text": list("wxyz")}
    columns |= {"response_mask": kept} if mask else {}
    sides = write(tmp_path / "a", **columns), write(tmp_path / "b", **columns)
    monkeypatch.setattr("rolltape.verify.opened.Opened.column", lambda *args: pytest.fail("laid out"))
    found = compare_tapes(*sides)
    assert {entry.name for entry in found.entries} == set(columns)
    assert {entry.verdict for entry in found.entries} == {Verdict.BITWISE}


def test_minus_zero_and_other_nans_are_other_bits_though_arrow_takes_them_for_equal(tmp_path):
    plain = np.array([[0.0, 1.0, 2.0]], np.float32)
    other = np.array([[-0.0, 1.0, 2.0]], np.float32)
    found = compare_tapes(write(tmp_path / "a", x=plain), write(tmp_path / "b", x=other))
    assert [(e.verdict, e.difference.mismatched) for e in found.entries] == [(Verdict.ULP, 1)]
    nans = [np.array([[bits, 0x3F800000]], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001)]
    found = compare_tapes(write(tmp_path / "c", x=nans[0]), write(tmp_path / "d", x=nans[1]))
    assert [(e.verdict, e.difference.mismatched) for e in found.entries] == [(Verdict.ULP, 1)]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_what_is_nan_wherever_the_mask_looks_is_a_finding(tmp_path, order):
    rows, kept = padded(np.random.default_rng(0), [3, 5, 1], 8, "float32", False, 0)
    rows[kept == 1] = np.nan
    columns = {"uid": list("abc"), "log_probs": rows, "response_mask": kept}
    other = {name: column[order] for name, column in columns.items()}
    found = compare_tapes(write(tmp_path / "a", **columns), write(tmp_path / "b", **other))
    assert [(e.name, e.note) for e in found.firsts()] == [("log_probs", "not a number on either side")]


def test_a_damaged_file_is_named(tmp_path):
    sides = write(tmp_path / "a", x=np.arange(5000.0)), write(tmp_path / "b", x=np.arange(5000.0))
    file = tmp_path / "b/train/loss/step_000000.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(rolltape.RolltapeError, match="checksum") as caught:
        compare_tapes(*sides)
    assert str(file) in str(caught.value)
