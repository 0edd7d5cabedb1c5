"""Limits follow the scale of what is compared, and what is named is the first element beyond its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rolltape
from rolltape.batch.floats import FLOATS, ulps, values
from rolltape.storage import LocalStorage
from rolltape.verify import Limits, Verdict, measure
from rolltape.verify.measure.limits import TOLERANCES, Kind
from rolltape.verify.rules.noise_floor import Floor, write_floor
from tests.comparing import compared

UIDS = [f"u{at // 2}" for at in range(12)]
LENGTHS = [9, 4, 12, 7, 3, 12, 6, 11, 8, 5, 10, 2]


def record(path, *steps, metrics=()):
    """A tape whose steps hold stages, each with what it returned; and what was logged at them."""
    with rolltape.Tape(path, mode="record", background=False) as tape:
        for step in range(max(len(steps), len(metrics))):
            with tape.step(step):
                for stage, result in (steps[step] if step < len(steps) else {}).items():
                    tape.stage(stage)(lambda: result)()  # noqa: B023
                if step < len(metrics) and metrics[step]:
                    tape.log(metrics[step])
    return LocalStorage(str(path))


def pair(folder, stage, before, after):
    """The comparison of one stage of one step."""
    return compared(record(folder / "a", {stage: before}), record(folder / "b", {stage: after}))


def rows(seed=0, dtype="float32"):
    random = np.random.default_rng(seed)
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return np.where(mask, -random.exponential(size=mask.shape), 0).astype(dtype), mask.astype(np.int64)


def rounding(array, seed=1, size=2e-7):
    noise = np.random.default_rng(seed).normal(size=array.shape)
    return (array * (1 + size * noise)).astype(array.dtype)


LAYOUTS = {
    "padded, with a mask": lambda x, mask: {"log_probs": x, "response_mask": mask},
    "padded, without": lambda x, mask: {"log_probs": x},
    "lists": lambda x, mask: {
        "log_probs": [row[: int(on.sum())] for row, on in zip(x, mask, strict=True)]
    },
    "lists of Python's floats": lambda x, mask: {
        "log_probs": [row[: int(on.sum())].astype(float).tolist() for row, on in zip(x, mask, strict=True)]
    },
}  # fmt: skip


@pytest.mark.parametrize("floor", [None, 1e-4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_over_rounding_the_first_value_beyond_the_limit_is_named(tmp_path, layout, floor):
    x, mask = rows()
    y = rounding(x)
    y[9, 3], y[10, 5] = np.nan, y[10, 5] * 2
    sides = [
        record(tmp_path / name, {"loss": {"uid": UIDS, **LAYOUTS[layout](side, mask)}})
        for name, side in (("a", x), ("b", y))
    ]
    if floor:
        write_floor(sides[0], Floor(2, "2026-01-01", (), {("loss", "log_probs"): floor}))
    report = rolltape.compare(sides[0].location, sides[1].location)
    first = report.first
    assert (first.name, first.verdict) == ("log_probs", Verdict.DIVERGED)
    assert (first.first.row, first.first.sample, first.first.token) == (9, ("u4", 1), (3,))
    assert first.difference.first_values[0] == x[9, 3]
    assert np.isnan(first.difference.first_values[1])
    assert (first.difference.beyond, first.samples, first.difference.nonfinite) == (2, 2, 1)
    assert first.difference.mismatched > 50
    assert f"sample 9 (uid u4, 1), token 3: nan instead of {x[9, 3]:.6g}; 2 of" in report.sentence


def test_the_worst_element_is_named_beside_the_first(tmp_path):
    x, _ = rows()
    y = rounding(x)
    y[2, 5] += 0.01
    y[7, 8] += 3.0
    found = pair(tmp_path, "loss", {"uid": UIDS, "log_probs": x}, {"uid": UIDS, "log_probs": y})
    (entry,) = found.firsts()
    assert ((entry.first.row, entry.first.token), (entry.worst.row, entry.worst.token)) == (
        (2, (5,)), (7, (8,)),
    )  # fmt: skip
    sentence = rolltape.compare(tmp_path / "a", tmp_path / "b").sentence
    assert f"({y[2, 5]:.6g} instead of {x[2, 5]:.6g})" in sentence
    assert f"at worst {y[7, 8]:.6g} instead of {x[7, 8]:.6g} in sample 7 (uid u3, 1)" in sentence


def bits_of(numbers, dtype):
    """Numbers as the nearest bits of any dtype."""
    if dtype in ("float64", "float32", "float16"):
        return np.asarray(numbers).astype(dtype)
    every = np.arange(2**8 if "8_" in dtype else 2**16).astype(np.uint8 if "8_" in dtype else np.uint16)
    known = values(every, dtype)
    every, known = every[np.isfinite(known)], known[np.isfinite(known)]
    order = np.argsort(known, kind="stable")
    every, known = every[order], known[order]
    right = np.searchsorted(known, numbers).clip(1, len(known) - 1)
    near = np.where(np.abs(known[right - 1] - numbers) <= np.abs(known[right] - numbers), right - 1, right)
    return every[near]


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_what_is_beyond_is_what_an_oracle_says(dtype):
    """One number after the other, without the code that is tested."""
    for seed in range(60):
        random = np.random.default_rng([seed, len(dtype)])
        count, size = int(random.integers(1, 200)), 10.0 ** random.integers(-3, 2)
        x = bits_of(random.normal(size=count) * size, dtype)
        step = 4.0 * TOLERANCES[dtype][0]
        drawn = random.normal(size=count) * random.choice([0, step / 30, step], count, p=[0.5, 0.4, 0.1])
        y = bits_of(values(x, dtype) * (1 + drawn), dtype)
        kind = [None, Kind(0.0), Kind(1.0), Kind(0.0, 10.0)][seed % 4]
        limits = Limits([4, -1, 0][seed % 3], noise=[None, size * step][seed // 4 % 2], kind=kind)
        a, b = values(x, dtype), values(y, dtype)
        rms = float(np.sqrt(np.mean(a**2)))
        rtol, atol = TOLERANCES[dtype]
        atol *= 1 if kind is None else kind.factor * max(rms, kind.floor)
        beyond = [
            at
            for at in range(count)
            if x[at].tobytes() != y[at].tobytes()
            and abs(b[at] - a[at]) > atol + rtol * abs(a[at])
            and (limits.noise is None or abs(b[at] - a[at]) > 3 * limits.noise)
            and int(ulps(x[at : at + 1], y[at : at + 1])[0]) > limits.ulp
        ]
        found = measure(x, y, dtype, limits)
        assert found.beyond == len(beyond)
        if beyond:
            assert (found.first, found.first_values) == (beyond[0], (a[beyond[0]], b[beyond[0]]))
            assert found.worst_values == (a[found.worst], b[found.worst])


def draw(*shape, size=1.0, seed=3, dtype="float32"):
    return (np.random.default_rng(seed).normal(size=shape) * size).astype(dtype)


WEIGHTS, GRADS, SQUARES = draw(40, 30, size=0.02), draw(40, 30, size=5e-7), draw(40, 30, size=1e-6) ** 2
PER_GROUP = np.array([1e-6, 1e-3, 5e-4], np.float32)
SPARSE = np.where(draw(40, 1, seed=8) > 1, GRADS, 0).astype(np.float32)

FAULTS = {
    "a skipped update": ("state", "model/w", WEIGHTS, WEIGHTS - np.float32(1e-6) * np.sign(GRADS)),
    "a smaller update": ("weights", "w", WEIGHTS, WEIGHTS - np.float32(2e-7) * np.sign(GRADS)),
    "gradients by another name": ("gradients", "layer", GRADS, -GRADS),
    "moments by another name": ("optimizer", "v", SQUARES, 2 * SQUARES),
    "the other sign": ("state", "optimizer/exp_avg", GRADS, -GRADS),
    "gradients with the other sign": ("probe.layer.weight.grad", "value", GRADS, -GRADS),
    "one gradient": ("probe.layer.weight.grad", "value", GRADS, np.where(GRADS.max() > GRADS, GRADS, 0)),
    "gradients of few rows": ("probe.emb.weight.grad", "value", SPARSE, SPARSE * np.float32(1.01)),
    "second moments": ("state", "optimizer/exp_avg_sq", SQUARES, SQUARES * np.float32(558)),
    "second moments, halved": ("state", "optimizer/state/0/exp_avg_sq", SQUARES, SQUARES / 2),
    "no moments": ("state", "optimizer/exp_avg", np.zeros_like(GRADS), GRADS),
    "moments lost": ("state", "optimizer/exp_avg", GRADS, np.zeros_like(GRADS)),
    "the rate of one group": ("state", "lr", PER_GROUP, PER_GROUP * np.float32([2, 1, 1])),
    "half precision moments": ("state", "exp_avg", GRADS.astype("f2"), -GRADS.astype("f2")),
    "doubles": ("state", "w", WEIGHTS.astype(float), WEIGHTS * (1 + 1e-5)),
    "activations": ("probe.mlp.forward", "value", draw(8, 64, size=1e-4), 1.001 * draw(8, 64, size=1e-4)),
    "a small column": ("loss", "weights", draw(12, size=1e-5), draw(12, size=1e-5) * np.float32(1.2)),
    "kl": ("loss", "kl", np.abs(draw(12, size=1e-2)), 1.05 * np.abs(draw(12, size=1e-2))),
}
HARMLESS = {
    "kl at the first step": ("loss", "kl", draw(12, size=1e-8), draw(12, size=1e-8, seed=4)),
    "kl of one token each": ("loss", "ref_kl", draw(12, 9, size=1e-7), draw(12, 9, size=1e-7, seed=4)),
    "log ratios": ("loss", "log_ratio", draw(12, 9, size=1e-6), draw(12, 9, size=1e-6, seed=4)),
    "confident log-probs": ("loss", "log_probs", -np.abs(draw(12, 9, size=1e-4)), None),
    "entropies near zero": ("loss", "entropy", np.abs(draw(12, 9, size=1e-4)), None),
    "advantages of groups that agree": ("adv", "advantages", np.zeros(12, "f4"), draw(12, size=1e-7)),
    "nothing against next to nothing": ("loss", "penalty", np.zeros(12, "f4"), np.full(12, 1e-12, "f4")),
    "next to nothing against nothing": ("loss", "penalty", np.full(12, 1e-12, "f4"), np.zeros(12, "f4")),
    "a difference by another name": ("loss", "excess", draw(12, size=3e-8), draw(12, size=3e-8, seed=4)),
    "a loss by another name": ("loss", "total", np.array(2e-8, "f4"), np.array(-3e-7, "f4")),
    "weights": ("state", "model/w", WEIGHTS, rounding(WEIGHTS)),
    "gradients that sum up in another order": (
        "probe.layer.weight.grad", "value", GRADS, GRADS + draw(40, 30, size=5e-12, seed=5),
    ),
    "second moments again": ("state", "exp_avg_sq", SQUARES, rounding(SQUARES)),
    "activations again": ("probe.mlp.forward", "value", draw(8, 64), None),
}  # fmt: skip


def sides(stage, name, before, after):
    if after is None:
        after = (before + draw(*before.shape, size=1e-6, seed=6)).astype(before.dtype)
    uid = {"uid": UIDS} if before.shape[:1] == (len(UIDS),) else {}
    return {**uid, name: before}, {**uid, name: np.asarray(after, before.dtype)}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_as_large_as_its_tensor(tmp_path, name):
    stage, column, before, after = FAULTS[name]
    found = pair(tmp_path, stage, *sides(stage, column, before, after))
    assert [(entry.name, entry.verdict) for entry in found.firsts()] == [(column, Verdict.DIVERGED)]


@pytest.mark.parametrize("name", HARMLESS)
def test_rounding_is_as_large_as_what_was_subtracted(tmp_path, name):
    stage, column, before, after = HARMLESS[name]
    found = pair(tmp_path, stage, *sides(stage, column, before, after))
    assert found.first is None, found.first
    assert found.verdict > Verdict.BITWISE


METRICS = {  # metric: (baseline, candidate, whether that is a finding)
    "lr": (1e-6, 2e-6, True),
    "actor/lr": (1e-6, 1.001e-6, True),
    "learning_rate": (1e-6, float(np.float32(1e-6)), False),
    "train/lr-AdamW": (3e-9, 4e-9, True),
    "entropy_coeff": (1e-8, 2e-8, True),
    "grad_norm": (3e-7, 3.3e-7, True),
    "actor/grad_norm": (0.31, 0.31 * (1 + 2e-5), False),
    "pg_loss": (2e-9, -3e-9, False),
    "actor/pg_loss": (1e-3, 1.01e-3, True),
    "actor/ppo_kl": (-1e-9, 2e-9, False),
    "kl_loss": (1e-4, 1.1e-4, True),
    "entropy": (1.2, 1.2 * (1 + 1e-6), False),
    "reward/mean": (0.5, 0.5001, True),
    "critic/rewards/mean": (0.0, 1e-9, False),
    "clipfrac": (0.01, 0.0105, False),
    "actor/pg_clipfrac": (0.01, 0.015, True),
    "timing_s/step": (1.0, 9.0, False),
    "perf/throughput": (100, 900, False),
    "perf/mfu/actor": (0.4, 0.1, False),
    "perf/max_memory_allocated_gb": (1.0, 2.0, False),
    "tokens_per_second": (5.0, float("nan"), False),
    "reward/time_penalty": (0.5, 0.6, True),
    "global_seqlen/max": (512, 513, True),
    "perf/total_num_tokens": (1_000_000.0, 1_000_001.0, True),
    "response_length/mean": (100.25, 100.25 + 1e-5, False),
    "nested": ({"loss": 0.5, "time_s": 3.0}, {"loss": 0.5, "time_s": 4.0}, False),
    "inner": ({"reward": {"mean": 0.5}}, {"reward": {"mean": 0.6}}, True),
    "norms": ([1.0, 2.0], [1.0, 2.0 + 1e-7], False),
    "more_norms": ([1.0, 2.0], [1.0, 2.1], True),
    "not_a_number": (float("nan"), float("nan"), True),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_has_a_kind(tmp_path, name):
    before, after, wrong = METRICS[name]
    found = compared(
        record(tmp_path / "a", metrics=[{name: before, "steps": 1}]),
        record(tmp_path / "b", metrics=[{name: after, "steps": 1}]),
    )
    assert bool(found.first) == wrong, found.entries


def test_times_are_listed_apart(tmp_path):
    record(tmp_path / "a", metrics=[{"time/step": 1.0, "loss": 1.0}, {"time/step": 1.0, "loss": 1.0}])
    record(tmp_path / "b", metrics=[{"time/step": 2.0, "loss": 1.0}, {"loss": 2.0}])
    report = rolltape.compare(tmp_path / "a", tmp_path / "b")
    assert report.sentence.startswith("First divergence: step 1, metric `loss`")
    assert [entry.path for entry in report.comparison.apart] == ["metrics/time/step"] * 2
    assert [finding.path for finding in report.findings] == ["metrics/loss"]


@pytest.mark.parametrize(("before", "after", "clean"), [(1.0, 1, True), (3, 3.0, True), (1, 1.5, False)])
def test_a_number_that_is_logged_without_its_point_is_the_same_number(tmp_path, before, after, clean):
    record(tmp_path / "a", metrics=[{"score/max": before}])
    record(tmp_path / "b", metrics=[{"score/max": after}])
    assert rolltape.compare(tmp_path / "a", tmp_path / "b").clean == clean


def test_the_metrics_of_every_rank_are_compared(tmp_path):
    def log(path, norms, ranks=(0, 1)):
        for rank in ranks:
            with rolltape.Tape(path, mode="record", rank=rank, world_size=len(ranks)) as tape:
                for step in range(2):
                    tape.log({"grad_norm": norms[rank][step], "time/step": 1.0 + rank}, step=step)

    log(tmp_path / "a", [[1.0, 1.0], [2.0, 2.0]])
    log(tmp_path / "b", [[1.0, 1.0], [2.0, 2.5]])
    log(tmp_path / "c", [[1.0, 1.0]], ranks=(0,))
    log(tmp_path / "d", [[1.5, 1.0], [2.5, 2.0]])
    both = rolltape.compare(tmp_path / "a", tmp_path / "d")
    assert both.sentence.endswith("; `grad_norm` of rank 1 follows at step 0.")
    report = rolltape.compare(tmp_path / "a", tmp_path / "b")
    assert report.sentence.startswith("First divergence: step 1, metric `grad_norm` of rank 1: ")
    assert [(e.rank, e.step) for e in report.comparison.entries if not e.verdict.clean] == [(1, 1)]
    alone = rolltape.compare(tmp_path / "a", tmp_path / "c")  # on fewer ranks: no finding, and said
    assert alone.clean
    assert {(entry.rank, entry.note) for entry in alone.comparison.apart if not entry.name} == {
        (1, "the baseline alone has this rank")
    }
    gate = {"rules": [{"match": "metrics/grad_norm", "rtol": 0.5}]}
    assert rolltape.compare(tmp_path / "a", tmp_path / "b", gate=gate).clean


def test_a_metric_that_was_logged_at_other_steps_is_not_said_to_be_missing(tmp_path):
    record(tmp_path / "a", metrics=[{"loss": 1.0, "kl": 1.0}, {"loss": 1.0}])
    record(tmp_path / "b", metrics=[{"loss": 1.0, "kl": 1.0}, {"loss": 1.0, "kl": 1.0, "new": 2.0}])
    found = compared(tmp_path / "a", tmp_path / "b")
    assert {entry.name: entry.note for entry in found.firsts()} == {
        "kl": "the baseline did not log it at this step, only at others",
        "new": "the baseline did not log it",
    }


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_on_both_sides_is_a_finding_where_the_mask_looks_and_only_there(tmp_path, dtype, order):
    x, mask = rows(dtype=dtype)
    live, masked = x.copy(), x.copy()
    live[4, 1] = np.nan
    masked[4, 8] = np.nan
    for name, side in (("live", live), ("masked", masked)):
        columns = {"uid": np.array([f"u{at}" for at in range(12)]), "log_probs": side, "response_mask": mask}
        folder = tmp_path / name
        other = {key: column[order] for key, column in columns.items()}
        columns, other = ({**one, "uid": one["uid"].tolist()} for one in (columns, other))
        found = pair(folder, "loss", columns, other)
        if name == "masked":
            assert found.first is None
            continue
        (entry,) = found.firsts()
        assert (entry.verdict, entry.first.row, entry.first.token) == (Verdict.INCOMPARABLE, 4, (1,))
        assert entry.note == f"1 of {sum(LENGTHS)} values are not a number on either side"


def test_ids_that_floats_hold_have_to_be_equal(tmp_path):
    ids = np.random.default_rng(0).integers(100_000, 9_000_000, (12, 5)).astype(np.float32)
    other = ids.copy()
    other[6, 2] += 1
    (entry,) = pair(tmp_path, "loss", {"uid": UIDS, "ids": ids}, {"uid": UIDS, "ids": other}).firsts()
    assert (entry.verdict, entry.first.row, entry.first.token) == (Verdict.DIVERGED, 6, (2,))


def test_single_floats_that_python_holds_are_judged_as_what_they_are(tmp_path):
    x = np.abs(draw(12)) + 1
    columns = [
        {
            "uid": UIDS,
            "reward": side.astype(float).tolist(),
            "score": list(side),
            "each": [[v] * 3 for v in side.astype(float).tolist()],
        }
        for side in (x, x * np.float32(1 + 1e-6))
    ]
    assert pair(tmp_path / "near", "reward", *columns).first is None
    columns[1]["each"][5][1] *= 1.001
    (entry,) = pair(tmp_path / "far", "reward", *columns).firsts()
    assert (entry.name, entry.first.row, entry.first.token) == ("each", 5, (1,))


def test_a_rule_that_fits_nothing_is_a_finding_that_names_what_was_meant(tmp_path):
    x, _ = rows()
    for name in "ab":
        record(tmp_path / name, {"loss": {"uid": UIDS, "log_probs": x}}, metrics=[{"grad_norm": 1.0}])
    rules = [{"match": "loss/log_prob", "ulp": 4}, {"match": "quite/another", "ulp": 4}]
    gate = tmp_path / "gate.json"
    gate.write_text(json.dumps({"rules": [*rules, {"match": "metrics/*", "bitwise": True}]}))
    report = rolltape.compare(tmp_path / "a", tmp_path / "b", gate=gate)
    assert not report.clean
    assert [(finding.path, finding.text) for finding in report.findings] == [
        ("loss/log_prob", "a rule matches nothing on these tapes; did you mean loss/log_probs?"),
        ("quite/another", "a rule matches nothing on these tapes"),
    ]
