"""What is compared as it is stored comes out as if every row had been laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify import Verdict
from rolltape.verify import compare_stage as stages
from rolltape.verify.measure.difference import measure
from tests.comparing import compared
from tests.stacks import examples


def write(path, **columns):
    with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
        tape.stage("loss")(lambda: columns)()
    return LocalStorage(str(path))


def laid_out(*sides):
    """The comparison with nothing told from what is stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "alike", lambda left, right: {})
        patch.setattr(stages, "compare_stored_rows", lambda *args: None)
        return compared(*sides)


def padded(random, lengths, width, dtype, left, pad):
    """Rows of random content, padded, and their mask."""
    mask = np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        mask[row, slice(width - length, width) if left else slice(0, length)] = 1
    return np.where(mask, random.integers(1, 90, mask.shape), pad).astype(dtype), mask


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_stored_or_laid_out_is_no_difference(tmp_path_factory, data):
    draw = data.draw
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, width = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, width), min_size=count, max_size=count))
    dtype = draw(
        st.sampled_from(["float32", "float64", "float16", "int64", "int8", "uint8", "uint64", "bool"])
    )
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
    fast, slow = compared(*sides).entries, laid_out(*sides).entries
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
    monkeypatch.setattr(
        "rolltape.reader.stored_file.StoredFile.column", lambda *args: pytest.fail("laid out")
    )
    found = compared(*sides)
    assert {entry.name for entry in found.entries} == set(columns)
    assert {entry.verdict for entry in found.entries} == {Verdict.BITWISE}


def test_minus_zero_and_other_nans_are_other_bits_though_arrow_takes_them_for_equal(tmp_path):
    plain = np.array([[0.0, 1.0, 2.0]], np.float32)
    other = np.array([[-0.0, 1.0, 2.0]], np.float32)
    found = compared(write(tmp_path / "a", x=plain), write(tmp_path / "b", x=other))
    assert [(e.verdict, e.difference.mismatched) for e in found.entries] == [(Verdict.ULP, 1)]
    nans = [np.array([[bits, 0x3F800000]], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001)]
    found = compared(write(tmp_path / "c", x=nans[0]), write(tmp_path / "d", x=nans[1]))
    assert [(e.verdict, e.difference.mismatched) for e in found.entries] == [(Verdict.INCOMPARABLE, 1)]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_what_is_nan_wherever_the_mask_looks_is_a_finding(tmp_path, order):
    rows, kept = padded(np.random.default_rng(0), [3, 5, 1], 8, "float32", False, 0)
    rows[kept == 1] = np.nan
    columns = {"uid": list("abc"), "log_probs": rows, "response_mask": kept}
    other = {name: column[order] for name, column in columns.items()}
    found = compared(write(tmp_path / "a", **columns), write(tmp_path / "b", **other))
    assert [(e.name, e.note) for e in found.firsts()] == [("log_probs", "not a number on either side")]


def test_nan_where_a_mask_with_holes_looks_is_a_finding_however_alike(tmp_path):
    kept = np.array([[1, 1, 0, 0, 1, 1, 1, 0]] * 2)
    columns = {
        "uid": list("ab"),
        "log_probs": np.where(kept == 1, np.nan, 0).astype(np.float32),
        "response_mask": kept,
    }
    found = compared(write(tmp_path / "a", **columns), write(tmp_path / "b", **columns))
    assert [(e.name, e.note) for e in found.firsts()] == [("log_probs", "not a number on either side")]


def test_tokens_of_a_tool_count_though_the_mask_leaves_them_out(tmp_path):
    kept = np.array([[1, 1, 0, 0, 1, 1, 0, 0]] * 2)
    tokens = np.arange(1, 17).reshape(2, 8)
    other = tokens.copy()
    other[1, 2] = 99
    other[:, 6:] = 0  # padding
    values = np.where(kept == 1, 0.5, 0).astype(np.float32)
    loose = np.where(kept == 1, 0.5, 7).astype(np.float32)  # what nobody trains on
    sides = (
        write(tmp_path / "a", uid=list("ab"), responses=tokens, log_probs=values, response_mask=kept),
        write(tmp_path / "b", uid=list("ab"), responses=other, log_probs=loose, response_mask=kept),
    )
    found = {entry.name: entry for entry in compared(*sides).entries}
    assert found["log_probs"].verdict is Verdict.BITWISE
    assert (found["responses"].verdict, found["responses"].difference.mismatched) == (Verdict.DIVERGED, 1)
    assert (found["responses"].first.row, found["responses"].first.token) == (1, (2,))


def test_one_mask_says_nothing_about_another(tmp_path):
    kept, other = np.array([[0, 0, 1, 1]]), np.array([[1, 1, 1, 1]])
    columns = {"uid": ["a"], "response_mask": kept}
    sides = (
        write(tmp_path / "a", **columns, attention_mask=other),
        write(tmp_path / "b", **columns, attention_mask=kept),
    )
    assert [entry.name for entry in compared(*sides).firsts()] == ["attention_mask"]


def test_the_worst_element_is_one_that_differs(tmp_path):
    plain, other = np.array([[1, 0.0, 0.0]], np.float32), np.array([[1, -0.0, -0.0]], np.float32)
    (entry,) = compared(write(tmp_path / "a", x=plain), write(tmp_path / "b", x=other)).entries
    assert entry.worst == entry.first


def test_percentiles_of_many_differences_at_every_other_place(tmp_path):
    plain = np.ones((200_000, 2), np.float32)
    other = plain.copy()
    other[:70_000, 1] += 1e-3
    other[70_000:, 1] += 1.0
    found = measure(plain.ravel(), other.ravel(), "float32", 0.0)
    assert (found.p50, found.p99) == (1.0, 1.0)


def test_a_column_that_one_call_lacks_is_a_finding(tmp_path):
    def record(path, *calls):
        with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
            stage = tape.stage("loss")(lambda call: call)
            for call in calls:
                stage(call)
        return LocalStorage(str(path))

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    first = {"uid": list("abc"), "x": x, "y": x}
    sides = (
        record(tmp_path / "a", first, {"uid": list("def"), "x": x}),
        record(tmp_path / "b", first, {"uid": list("def"), "x": x, "y": x}),
    )
    for left, right, who in ((*sides, "baseline"), (*sides[::-1], "candidate")):
        (entry,) = compared(left, right).firsts()
        assert (entry.name, entry.verdict) == ("y", Verdict.INCOMPARABLE)
        assert f"the {who}" in entry.note


def test_a_damaged_file_is_named(tmp_path):
    sides = write(tmp_path / "a", x=np.arange(5000.0)), write(tmp_path / "b", x=np.arange(5000.0))
    file = tmp_path / "b/train/loss/step_000000.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(rolltape.RolltapeError, match="checksum") as caught:
        compared(*sides)
    assert str(file) in str(caught.value)
