"""Padding is what something on the tape proves to be padding; else the width of a row is data."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import rolltape
from rolltape.verify import Verdict
from tests.comparing import compared

PAD, BOS, EOS = 0, 1, 2
LENGTHS = (3, 6, 4, 5)


def record(path, stages):
    """A tape of one step."""
    with rolltape.Tape(path, mode="record", background=False) as tape, tape.step(0):
        for stage, calls in stages.items():
            make = tape.stage(stage)(lambda call: call)
            for call in calls:
                make(call)
    return path


@pytest.fixture
def against(tmp_path):
    """Compare the stages of two tapes; columns alone are those of a rollout."""
    made = count()

    def compare(ours, theirs):
        sides = [side if isinstance(side, Stages) else Stages(rollout=[side]) for side in (ours, theirs)]
        return compared(*(record(tmp_path / str(next(made)), side) for side in sides))

    return compare


class Stages(dict):
    """Stage -> the calls it made."""


def tokens(lengths=LENGTHS, seed=0):
    """Rows that begin with BOS and end with EOS."""
    random = np.random.default_rng(seed)
    return [[BOS, *random.integers(10, 90, length - 2).tolist(), EOS] for length in lengths]


def padded(rows, width=None, side="right", pad=PAD, dtype=np.int64):
    width = width or max(map(len, rows))
    data = np.full((len(rows), width), pad, dtype)
    for at, row in enumerate(rows):
        data[at, slice(0, len(row)) if side == "right" else slice(width - len(row), width)] = row
    return data


def mask_of(rows, width=None, side="right"):
    return padded([[1] * len(row) for row in rows], width, side)


UID = ["a", "b", "c", "d"]
SAME = [(4, 4, 4, 4), LENGTHS]
"""Rows that need no padding, and rows that do."""


@pytest.mark.parametrize(("column", "dtype"), [("prompts", "int64"), ("responses", "int32"), ("x", "int16")])
@pytest.mark.parametrize("lengths", SAME)
@pytest.mark.parametrize("fault", ["doubled bos", "lost eos", "lost bos", "doubled eos", "other bos"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_token_more_or_less_is_found_without_a_mask(against, column, dtype, lengths, fault, side):
    rows = tokens(lengths)
    wrong = {
        "doubled bos": [[BOS, *row] for row in rows],
        "lost eos": [row[:-1] for row in rows],
        "lost bos": [row[1:] for row in rows],
        "doubled eos": [[*row, EOS] for row in rows],
        "other bos": [[BOS + 4, *row[1:]] for row in rows],
    }[fault]
    found = against(
        {"uid": UID, column: padded(rows, side=side, dtype=dtype)},
        {"uid": UID, column: padded(wrong, side=side, dtype=dtype)},
    )
    assert [entry.name for entry in found.firsts()] == [column]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [7, 9, 64])
@pytest.mark.parametrize("pad", [PAD, -100, 151643])
def test_wider_padding_is_none_where_rows_prove_it(against, side, width, pad):
    rows = tokens()
    ours, theirs = (padded(rows, w, side, pad) for w in (None, width))
    for pair in ((ours, theirs), (theirs, ours)):
        found = against(*({"uid": UID, "responses": data} for data in pair))
        assert found.verdict is Verdict.BITWISE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "name", ["response_mask", "action_mask", "loss_mask", "completion_mask", "attention_mask"]
)
@pytest.mark.parametrize("lengths", SAME)
def test_with_a_mask_neither_side_nor_width_nor_value_of_the_padding_counts(against, side, name, lengths):
    rows = tokens(lengths)
    floats = [[x / 7 for x in row] for row in rows]

    def batch(width, side, pad):
        return {
            "uid": UID,
            "responses": padded(rows, width, side, pad),
            "log_probs": padded(floats, width, side, float(pad), np.float32),
            name: mask_of(rows, width, side),
        }

    plain, other = batch(None, "right", PAD), batch(12, side, 77)
    assert against(plain, other).verdict is Verdict.BITWISE


@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("width", [8, 9])
def test_a_mask_that_says_more_or_less_is_said_of_the_mask(against, change, width):
    rows = tokens()
    lengths = [len(row) for row in rows]
    lengths[2] += change
    base = {"uid": UID, "responses": padded(rows, 8), "response_mask": mask_of(rows, 8)}
    other = {"responses": padded(rows, width), "response_mask": padded([[1] * n for n in lengths], width)}
    found = against(base, base | other)
    assert [e.name for e in found.firsts()] == ["response_mask"]
    assert found.first.first.sample == ("c", 0)
    assert found.first.first.token == (min(lengths[2], len(rows[2])),)


def test_a_lost_eos_under_masks_is_named_at_its_token(against):
    rows = tokens()
    short = [row[:-1] if at == 2 else row for at, row in enumerate(rows)]

    def batch(rows, width):
        return {"uid": UID, "responses": padded(rows, width), "response_mask": mask_of(rows, width)}

    first = against(batch(rows, 8), batch(short, 10)).first
    assert (first.name, first.first.sample, first.first.token) == ("responses", ("c", 0), (3,))


def test_packed_rows_are_compared_where_the_mask_of_the_other_side_trains(against):
    """A tool's tokens have no log-probs that mean anything."""
    rows = tokens((6, 6, 6, 6))
    on = np.array([1, 1, 0, 0, 1, 1])
    floats = np.arange(24, dtype=np.float32).reshape(4, 6) / 7
    noise = np.where(on == 1, floats, 99)
    base = {
        "uid": UID,
        "responses": padded(rows, 8),
        "log_probs": padded(floats.tolist(), 8, dtype=np.float32),
        "response_mask": padded([on.tolist()] * 4, 8),
    }
    packed = {"uid": UID, "log_probs": [*noise.astype(np.float32)]}
    found = against(Stages(loss=[base]), Stages(loss=[base | packed]))
    assert not found.firsts()
    packed["log_probs"][1][4] += 1
    first = against(Stages(loss=[base]), Stages(loss=[base | packed])).first
    assert (first.name, first.first.sample) == ("log_probs", ("b", 0))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_that_pad_to_their_own_width_are_told_by_the_masks_of_the_rollout(against, size):
    rows = tokens()
    random = np.random.default_rng(1)
    floats = [random.normal(size=len(row)).astype(np.float32).tolist() for row in rows]
    rollout = {"uid": UID, "responses": padded(rows, 9), "response_mask": mask_of(rows, 9)}

    def calls(size, pad):
        parts = [slice(at, at + size) for at in range(0, 4, size)]
        return [
            {"uid": UID[p], "log_probs": padded(floats[p], None, "right", pad, np.float32)} for p in parts
        ]

    whole = [{"uid": UID, "log_probs": padded(floats, 9, "right", 5.0, np.float32)}]
    found = against(Stages(rollout=[rollout], loss=whole), Stages(rollout=[rollout], loss=calls(size, 0.0)))
    assert not found.firsts()
    wrong = calls(size, 0.0)
    wrong[-1]["log_probs"][-1, 2] += 0.5
    first = against(Stages(rollout=[rollout], loss=whole), Stages(rollout=[rollout], loss=wrong)).first
    assert (first.name, first.first.sample, first.first.token) == ("log_probs", ("d", 0), (2,))


@pytest.mark.parametrize("name", ["log_probs", "losses"])
@pytest.mark.parametrize("token", [0, -1])
def test_calls_that_pad_in_front_as_the_rollout_does_are_told_by_its_masks(against, name, token):
    rows = tokens()
    floats = [np.random.default_rng(at).normal(size=len(row)).tolist() for at, row in enumerate(rows)]
    rollout = {"uid": UID, "responses": padded(rows, 9, "left"), "response_mask": mask_of(rows, 9, "left")}

    def calls(floats):
        parts = slice(0, 2), slice(2, 4)
        return Stages(
            rollout=[rollout],
            loss=[{"uid": UID[p], name: padded(floats[p], None, "left", 0, np.float32)} for p in parts],
        )

    wrong = [list(row) for row in floats]
    wrong[2][token] += 0.5
    first = against(calls(floats), calls(wrong)).first
    assert (first.name, first.first.sample, first.first.token) == (name, ("c", 0), (token % len(rows[2]),))


def test_floats_as_wide_as_the_rollouts_tokens_go_by_its_masks_whatever_they_are_called(against):
    rows = tokens()
    floats = [np.random.default_rng(at).normal(size=len(row)).tolist() for at, row in enumerate(rows)]

    def stages(floats, side="right", pad=0.0):
        rollout = {"uid": UID, "responses": padded(rows, 8, side), "response_mask": mask_of(rows, 8, side)}
        return Stages(
            rollout=[rollout], actor=[{"uid": UID, "clipped_part": padded(floats, 8, side, pad, np.float32)}]
        )

    assert not against(stages(floats), stages(floats, pad=7.5)).firsts()
    found = against(stages(floats), stages(floats, "left")).firsts()
    assert "clipped_part" not in [entry.name for entry in found]
    wrong = [list(row) for row in floats]
    wrong[1][2] = float("nan")
    first = against(stages(floats, "left"), stages(wrong, "left")).first
    assert (first.name, first.first.sample, first.first.token) == ("clipped_part", ("b", 0), (2,))


def test_a_mask_that_is_stored_as_others_side_by_side_is_read_whatever_these_are(against):
    def batch(last):
        ones = {
            "index": np.array([1]),
            "count": np.array([1]),
        }  # a mask can be stored as these next to others
        masks = {"response_mask": np.array([[1, 0, 1, 1, 1]]), "other": np.array([[0, 1, 1, 1]])}
        return {
            "uid": ["a"],
            **ones,
            **masks,
            "log_probs": np.array([[0.5, 0.1, 0.2, 0.3, last]], np.float32),
        }

    assert not against(batch(0.4), batch(0.4)).firsts()
    first = against(batch(0.4), batch(0.9)).first
    assert (first.name, first.first.token) == ("log_probs", (4,))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda row: [row[0], *row], "token added in front"),
        (lambda row: [*row, EOS], "token added behind"),
        (lambda row: row[:-1], "last token lost"),
        (lambda row: row[1:], "first token lost"),
    ],
)
def test_a_token_more_or_less_is_named_as_such_under_masks(tmp_path, change, cause, side):
    rows = tokens()

    def batch(path, rows):
        ids = {"prompt_ids": padded(rows, None, side), "prompt_mask": mask_of(rows, None, side)}
        return record(path, Stages(rollout=[{"uid": UID, **ids}]))

    found = rolltape.compare(
        batch(tmp_path / "a", rows), batch(tmp_path / "b", [change(row) for row in rows])
    )
    assert not found.clean
    if found.first.name == "prompt_ids":
        assert [one.pattern for one in found.causes if one.named] == [cause]
    else:  # the tokens that both have are the same
        assert found.first.name == "prompt_mask"
        assert cause in ("token added behind",)


@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_tokens_that_are_not_trained_on_are_counted_where_a_token_is_named(tmp_path, side):
    rows = tokens((6, 9, 7, 8))
    floats = [np.random.default_rng(at).normal(size=len(row)).tolist() for at, row in enumerate(rows)]
    mask = [[1, 1, 0, 0, *[1] * (len(row) - 4)] for row in rows]

    def laid(rows, dtype=np.int64):
        return [np.array(row, dtype) for row in rows] if side == "none" else padded(rows, 10, side, 0, dtype)

    def batch(path, floats):
        rollout = {"uid": UID, "responses": laid(rows), "response_mask": laid(mask)}
        return record(path, Stages(rollout=[rollout | {"rollout_log_probs": laid(floats, np.float32)}]))

    wrong = [list(row) for row in floats]
    wrong[2][5] += 0.5
    found = rolltape.compare(batch(tmp_path / "a", floats), batch(tmp_path / "b", wrong))
    assert (found.first.first.sample, found.first.first.token) == (("c", 0), (5,))
    assert found.token.id == rows[2][5]
