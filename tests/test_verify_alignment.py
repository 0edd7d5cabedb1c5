"""Samples are compared by who they are and tokens by where they stand, however a tape was laid out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.verify import Verdict
from tests.comparing import compared

LENGTHS = [3, 5, 2, 4]


def results(width=8, order=(0, 1, 2, 3), side="right", pad=0.0, mask=False, seed=0):
    """Log-probs of four samples, padded."""
    random = np.random.default_rng(seed)
    own = [random.normal(size=length).astype(np.float32) for length in LENGTHS]
    data = np.full((4, width), pad, np.float32)
    keep = np.zeros((4, width), np.int64)
    for row, at in enumerate(order):
        place = slice(0, LENGTHS[at]) if side == "right" else slice(width - LENGTHS[at], width)
        data[row, place] = own[at]
        keep[row, place] = 1
    found = {"uid": [f"u{at}" for at in order], "log_probs": data}
    return found | ({"response_mask": keep} if mask else {})


def ragged(order=(0, 1, 2, 3)):
    whole = results()["log_probs"]
    rows = [whole[at, : LENGTHS[at]] for at in order]
    return {"uid": [f"u{at}" for at in order], "log_probs": rows}


def write(path: Path, *calls, metrics=None, stage="loss", step=0, name="train"):
    with rolltape.Tape(path, mode="record", background=False) as tape:
        make = tape.stage(stage)(lambda value: value)
        with tape.step(step, split=name):
            for call in calls:
                make(call)
            tape.log(metrics or {"loss": 1.0})
    return path


@pytest.fixture
def against(tmp_path):
    """Compare calls of a baseline with calls of a candidate."""

    def compare(baseline, candidate, **metrics):
        ours = write(tmp_path / "a", *(baseline if isinstance(baseline, tuple) else (baseline,)))
        theirs = write(
            tmp_path / "b", *(candidate if isinstance(candidate, tuple) else (candidate,)), **metrics
        )
        return compared(LocalStorage(str(ours)), LocalStorage(str(theirs)))

    return compare


def part(result, *at):
    return {k: [v[i] for i in at] if isinstance(v, list) else v[list(at)] for k, v in result.items()}


def narrow(result, width):
    return result | {"log_probs": result["log_probs"][:, :width]}


CLEAN = {
    "the same": (results(), results()),
    "wider": (results(width=5), results(width=9)),
    "narrower": (results(width=9), results(width=5)),
    "another order": (results(), results(order=(2, 0, 3, 1))),
    "another order and width": (results(width=5), results(width=7, order=(2, 0, 3, 1))),
    "padded on the other side": (results(mask=True), results(side="left", mask=True)),
    "another pad value": (results(mask=True), results(pad=-100.0, mask=True)),
    "padded on the left, wider": (results(side="left", width=5), results(side="left", width=9)),
    "padded on the other side, wider": (results(mask=True), results(side="left", width=11, mask=True)),
    "packed, against a mask": (results(mask=True), ragged()),
    "packed": (results(), ragged()),
    "packed before": (ragged(), results(width=6)),
    "packed in another order": (results(), ragged(order=(3, 2, 1, 0))),
    "two calls": (results(), (part(results(), 0, 1), part(results(), 2, 3))),
    "two calls of other widths": (
        results(),
        (part(results(width=5), 1, 0), narrow(part(results(), 3, 2), 4)),
    ),
    "two calls of other widths on both sides": (
        (part(results(width=6), 0, 1), narrow(part(results(), 2, 3), 4)),
        (part(results(width=5), 1), part(results(width=7), 3, 2, 0)),
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_layout_is_no_difference(against, name):
    found = against(*CLEAN[name])
    assert not found.firsts()
    column = next(entry for entry in found.entries if entry.name == "log_probs")
    assert column.verdict is Verdict.BITWISE
    assert column.difference.count >= sum(LENGTHS)


@pytest.mark.parametrize("name", CLEAN)
def test_a_wrong_token_is_found_in_every_layout(against, name):
    baseline, candidate = CLEAN[name]
    for call in candidate if isinstance(candidate, tuple) else (candidate,):
        if "u3" in call["uid"]:
            row = call["log_probs"][call["uid"].index("u3")]
            truth = results()["log_probs"][3, 2]
            row[np.flatnonzero(row == truth)] += 0.5
    found = against(baseline, candidate)
    first = next(entry for entry in found.entries if entry.name == "log_probs")
    assert first.verdict is Verdict.DIVERGED
    token = 3 if name == "padded on the left, wider" else 2  # without a mask padding is counted in
    assert (first.first.sample, first.first.token, first.samples) == (("u3", 0), (token,), 1)
    assert first.difference.mismatched == 1


def test_a_shorter_row_is_a_finding_and_not_padding(against):
    short = ragged()
    short["log_probs"][1] = short["log_probs"][1][:-1]
    found = against(ragged(), short)
    assert found.first.verdict is Verdict.INCOMPARABLE
    assert "1 samples have another length, the first is 0 of u1" in found.first.note


def test_the_sample_of_another_length_is_the_one_that_is_named(against):
    other = ragged()
    other["log_probs"][1] = other["log_probs"][1] + 1
    other["log_probs"][3] = other["log_probs"][3][:-1]
    found = against(ragged(), other).first
    assert "1 samples have another length, the first is 0 of u3" in found.note
    assert (found.first.sample, found.first.row, found.first.token) == (("u3", 0), 3, ())


def plain(values):
    return {"uid": [f"u{at}" for at in range(len(values))], "score": values}


AMONG = [[0.1, None, 0.3, 0.7], [0.1, 1, 0.3, 0.7], [0.1, "none", {"a": [0.3]}, (0.7, 2)]]


def times(value, by):
    if isinstance(value, dict):
        return {"a": [value["a"][0] * by]}
    return (value[0] * by, 2) if isinstance(value, tuple) else value * by


@pytest.mark.parametrize("values", AMONG)
def test_floats_among_other_values_may_be_rounded(against, values):
    near = [*values[:2], times(values[2], 1 + 1e-7), times(values[3], 1 - 1e-7)]
    assert against(plain(values), plain(near)).verdict is Verdict.TOLERANCE


@pytest.mark.parametrize("values", AMONG)
@pytest.mark.parametrize("other", [False, True])
def test_the_first_of_floats_and_other_values_that_differs_is_named(against, values, other):
    off = [values[0], 5 if other else values[1], times(values[2], 1 + 1e-7), times(values[3], 1.1)]
    first = against(plain(values), plain(off)).first
    assert (first.name, first.verdict) == ("score", Verdict.DIVERGED)
    assert (first.first.row, first.samples) == ((1, 2) if other else (3, 1))


def test_a_wrong_mask_is_said_of_the_mask(against):
    candidate = results(mask=True)
    candidate["response_mask"][2, 1] = 0
    found = against(results(mask=True), candidate)
    assert [(e.name, e.first.sample) for e in found.firsts()] == [("response_mask", ("u2", 0))]


def test_missing_samples_columns_stages_and_metrics_are_findings(against, tmp_path):
    lost = part(results(), 0, 1, 2)
    del lost["log_probs"]
    found = against(results(), lost, metrics={"grad_norm": 1.0})
    notes = {(entry.path, entry.note) for entry in found.firsts()}
    assert notes == {
        ("loss", "1 samples are not on the candidate's side, the first is 0 of u3"),
        ("loss/log_probs", "the candidate has no such column"),
        ("metrics/loss", "the candidate did not log it"),
        ("metrics/grad_norm", "the baseline did not log it"),
    }
    other = write(tmp_path / "c", results(), stage="critic")
    found = compared(LocalStorage(str(tmp_path / "a")), LocalStorage(str(other)))
    assert {(e.stage, e.note) for e in found.firsts()} == {
        ("critic", "the baseline did not record it"),
        ("loss", "the candidate did not record it"),
    }


def test_another_dtype_is_a_finding(against):
    found = against(results(), results() | {"log_probs": results()["log_probs"].astype(np.float16)})
    assert (found.first.name, found.first.note) == ("log_probs", "dtype float32 against float16")


def test_no_samples_on_either_side_is_a_finding(against):
    nothing = {"uid": [], "log_probs": np.empty((0, 4), np.float32)}
    found = against(nothing, nothing)
    assert found.first.note == "empty on both sides"


def test_columns_that_only_some_calls_have_are_compared_too(against):
    calls = results(), {"uid": ["u0", "u1"], "entropy": np.array([1.0, 2.0], np.float32)}
    wrong = results(), {"uid": ["u0", "u1"], "entropy": np.array([1.0, 3.0], np.float32)}
    first = against(calls, wrong).first
    assert (first.name, first.first.sample, first.difference.count) == ("entropy", ("u1", 1), 2)


def test_lists_of_floats_have_distances(against):
    scores = {"uid": ["a", "b"], "score": [0.5, 0.25]}
    near = {"uid": ["a", "b"], "score": [0.5, 0.25 + 2.0**-25]}
    found = against(scores, near)
    assert found.first is None
    assert max(entry.verdict for entry in found.entries) is Verdict.ULP


def test_nan_as_a_metric_on_both_sides_is_not_equal(tmp_path):
    for name in "ab":
        write(tmp_path / name, results(), metrics={"loss": float("nan"), "lr": 1.0})
    found = compared(LocalStorage(str(tmp_path / "a")), LocalStorage(str(tmp_path / "b")))
    assert [(entry.name, entry.note) for entry in found.firsts()] == [("loss", "not a number on either side")]


def test_python_floats_are_judged_as_the_single_floats_they_were_made_of(tmp_path):
    write(tmp_path / "a", results(), metrics={"loss": 1.00000001})
    write(tmp_path / "b", results(), metrics={"loss": 1.00000051})
    write(tmp_path / "c", results(), metrics={"loss": 1.001})
    base = LocalStorage(str(tmp_path / "a"))
    assert compared(base, LocalStorage(str(tmp_path / "b"))).first is None
    assert compared(base, LocalStorage(str(tmp_path / "c"))).first is not None
