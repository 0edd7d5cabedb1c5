"""Errors that lean to one side are found where no single one of them is too large, and chance is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rolltape
from rolltape.batch.floats import values
from rolltape.storage import LocalStorage
from rolltape.verify import Limits, Verdict, judge, measure
from rolltape.verify.measure.bias import FEWEST, LEVEL, STEP, Votes, biased, count_votes
from rolltape.verify.rules.kinds import DIFFERENCE
from rolltape.verify.rules.noise_floor import Floor, measured, read_floor, write_floor
from tests.comparing import compared
from tests.stacks import examples
from tests.test_verify_limits import bits_of

TESTS = 200
"""How many tests a report of a usual size makes."""


def told(dtype, change, seed, *, samples=24, tokens=60, steps=2, noise=None, mean=None, draw=None):
    """Whether a column that is changed so is said to be biased, and its verdicts without that."""
    random = np.random.default_rng([seed, samples, tokens])
    limits = Limits(kind=DIFFERENCE, noise=noise, noise_mean=mean)
    leaning, verdicts = [], set()
    for _ in range(steps):
        lengths = random.integers(max(1, tokens // 4), tokens + 1, samples)
        ends = np.cumsum(lengths)
        drawn = -random.exponential(size=ends[-1]) if draw is None else draw(random, ends[-1])
        x = bits_of(drawn, dtype)
        y = bits_of(change(values(x, dtype), lengths, random), dtype)
        found = measure(x, y, dtype, limits, ends=ends)
        verdicts.add(judge(found, limits))
        if (bias := count_votes(x, y, ends, found, limits)) is not None:
            leaning.append(bias)
    return any(biased(leaning, TESTS)) if leaning else False, verdicts


DTYPES = sorted(STEP)
SIZES = {"float64": 1.2e-7, "float32": 5e-6, "float16": 1e-3, "bfloat16": 1.2e-2} | {
    name: 0.9 * step for name, step in STEP.items() if "8_" in name
}
"""A bias that is within the tolerance of each dtype, value by value."""


def around_one(random, count):
    return -random.uniform(0.6, 1.4, count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_within_the_tolerance_is_found(dtype, sign):
    for seed in range(examples(20)):
        change = lambda x, lengths, random: x * (1 + sign * SIZES[dtype])  # noqa: E731
        found, verdicts = told(dtype, change, seed, samples=16 + seed, draw=around_one)
        assert found
        assert max(verdicts).clean


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_sum_is_found_also_where_the_values_have_either_sign(dtype):
    normal = lambda random, count: random.choice([-1, 1], count) * random.uniform(0.6, 1.4, count)  # noqa: E731
    for seed in range(examples(20)):
        change = lambda x, lengths, random: x + 0.8 * SIZES[dtype]  # noqa: E731
        found, verdicts = told(dtype, change, seed, draw=normal)
        assert found
        assert max(verdicts).clean


def coherent(size):
    """Every sample is off by a factor of its own."""
    return lambda x, lengths, random: x * (1 + size * np.repeat(random.normal(size=len(lengths)), lengths))


def by_value(size):
    return lambda x, lengths, random: x * (1 + size * random.normal(size=len(x)))


HARMLESS = {
    "a step by chance": (lambda step: by_value(step / 2), {}),
    "one value per sample": (lambda step: by_value(step / 2), {"tokens": 1}),
    "one value, few samples": (lambda step: by_value(step / 2), {"tokens": 1, "samples": 9}),
    "few tokens": (lambda step: by_value(step / 2), {"tokens": 4, "samples": 12}),
    "samples that err as a whole": (lambda step: coherent(step / 2), {}),
    "few samples that do": (lambda step: coherent(step / 2), {"samples": 9, "steps": 1}),
    "rounding down": (lambda step: lambda x, lengths, random: x * (1 - 0.36 * step), {}),
    "few values, each off the same way": (
        lambda step: lambda x, lengths, random: x * (1 + 0.9 * step),
        {"tokens": 1, "draw": lambda random, count: random.choice([0.25, 0.3, 0.7, 1.0, 1.1], count)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HARMLESS)
def test_chance_is_not_found(name, dtype):
    change, options = HARMLESS[name]
    for seed in range(examples(40)):
        found, _ = told(dtype, change(STEP[dtype]), seed, **options)
        assert not found, seed


def test_log_softmax_in_another_order_of_roundings_is_no_bias():
    """What is summed in bfloat16 against what is rounded once."""
    for seed in range(examples(10)):
        random = np.random.default_rng(seed)
        logits = values(bits_of(3 * random.normal(size=(400, 64)), "bfloat16"), "bfloat16")
        exact = logits[:, 0] - np.log(np.exp(logits).sum(axis=1))
        rough = values(bits_of(np.log(np.exp(logits).sum(axis=1)), "bfloat16"), "bfloat16")
        x, y = (bits_of(side, "bfloat16") for side in (exact, logits[:, 0] - rough))
        ends = np.arange(20, 401, 20)
        limits = Limits(kind=DIFFERENCE)
        found = measure(x, y, "bfloat16", limits, ends=ends)
        bias = count_votes(x, y, ends, found, limits)
        assert bias is None or not any(biased([bias], TESTS))


def test_what_is_likely_by_chance_is_said_to_be():
    """The chance that is given is no smaller than how often it happens."""
    for count, tokens in ((8, 1), (12, 3), (12, 40), (40, 12)):
        random = np.random.default_rng(count)
        chances = []
        for _ in range(2000):
            votes = random.choice([-1.0, 0.0, 1.0], (count, tokens)).mean(axis=1)
            known = Votes(
                count, votes.sum(), (votes**2).sum(), int((votes > 0).sum()), int((votes < 0).sum())
            )
            chances.append(known.chance(tokens < 8))
        for level in (0.1, 0.01):
            assert np.mean(np.array(chances) <= level) <= 1.7 * level + 0.002
    assert Votes(FEWEST - 1, 7.0, 7.0, 7, 0).chance(False) == 1.0
    assert Votes(40, 40.0, 40.0, 40, 0).chance(True) == pytest.approx(2 * 0.5**40)
    assert Votes(40, 40.0, 40.0, 40, 0).chance(True) < LEVEL / TESTS


def test_a_bias_beside_noise_that_was_measured():
    noisy = by_value(1e-3)
    for seed in range(examples(20)):
        floor = {"noise": 4e-2, "mean": 1e-5}
        assert not told("float32", noisy, seed, **floor)[0]
        high = lambda x, lengths, random: 1.005 * noisy(x, lengths, random)  # noqa: E731
        found, verdicts = told("float32", high, seed, **floor)
        assert found
        assert max(verdicts) is Verdict.NOISE
        # Where runs of the baseline lean as far themselves, it says nothing.
        assert not told("float32", high, seed, noise=4e-2, mean=3e-3)[0]


def record(path, factor=1.0, since=0, noise=0.0, seed=1, steps=3, samples=32):
    random, drawn = np.random.default_rng(0), np.random.default_rng(seed)
    with rolltape.Tape(path, mode="record", background=False) as tape:
        loss = tape.stage("loss")(lambda value: value)
        for step in range(steps):
            x = -random.uniform(0.5, 1.5, (samples, 40))
            y = x * (factor if step >= since else 1.0) * (1 + noise * drawn.normal(size=x.shape))
            columns = {"log_probs": y.astype(np.float16), "values": x.astype(np.float32)}
            with tape.step(step):
                loss({"uid": [f"u{at}" for at in range(samples)], **columns})
    return LocalStorage(str(path))


def test_a_report_names_the_step_at_which_a_bias_begins(tmp_path):
    record(tmp_path / "a", noise=1e-4)
    record(tmp_path / "b", 1.0012, since=1, noise=1e-4, seed=2)
    report = rolltape.compare(tmp_path / "a", tmp_path / "b")
    assert report.verdict is Verdict.BIASED
    assert not report.clean
    assert [(e.step, e.name) for e in report.comparison.entries if e.verdict is Verdict.BIASED] == [
        (1, "log_probs"), (2, "log_probs"),
    ]  # fmt: skip
    assert report.sentence == (
        "First divergence: step 1, stage `loss`, `log_probs`: on average 0.12 % larger, in 32 of 32 samples, "
        "though each value is within its limit."
    )
    assert [finding.path for finding in report.findings] == ["loss/log_probs"]


def test_a_gate_that_says_how_much_may_differ_is_taken_at_its_word(tmp_path):
    record(tmp_path / "a")
    record(tmp_path / "b", 1.0012)
    gate = {"rules": [{"match": "loss/log_probs", "rtol": 0.01}]}
    assert not rolltape.compare(tmp_path / "a", tmp_path / "b").clean
    assert rolltape.compare(tmp_path / "a", tmp_path / "b", gate=gate).clean


def test_a_floor_keeps_how_far_its_runs_lean(tmp_path):
    base = record(tmp_path / "base", noise=3e-3)
    runs = [compared(base, record(tmp_path / f"run{at}", noise=3e-3, seed=2 + at)) for at in range(2)]
    floor = measured(runs, ["python", "train.py"])
    write_floor(base, floor)
    assert read_floor(base) == floor
    key = "loss", "log_probs"
    assert 0 < floor.means[key] < 0.05 * floor.errors[key]
    same = compared(base, record(tmp_path / "same", noise=3e-3, seed=9))
    assert {entry.verdict for entry in same.entries if entry.name == "log_probs"} == {Verdict.NOISE}
    high = compared(base, record(tmp_path / "high", 1.005, noise=3e-3, seed=9))
    assert {entry.verdict for entry in high.entries if entry.name == "log_probs"} == {Verdict.BIASED}


def test_a_floor_of_an_older_version_can_be_read(tmp_path):
    base = record(tmp_path / "base", noise=3e-3)
    text = '{"runs": 2, "measured": "2026-01-01", "command": [], "errors": [["loss", "log_probs", 0.03]]}'
    (tmp_path / "base/noise.json").write_text(text)
    assert read_floor(base) == Floor(2, "2026-01-01", (), {("loss", "log_probs"): 0.03})
    assert compared(base, record(tmp_path / "same", noise=3e-3, seed=9)).verdict is Verdict.NOISE
    assert compared(base, record(tmp_path / "high", 1.006, noise=3e-3, seed=9)).verdict is Verdict.BIASED


def test_votes_of_both_questions_are_those_of_numpy():
    random = np.random.default_rng(0)
    lengths = np.array([5, 0, 40_000, 1, 30_000, *[7] * 20])  # rows longer than a piece, and empty ones
    ends = np.cumsum(lengths)
    x = -random.uniform(0.5, 1.5, ends[-1]).astype(np.float32)
    y = (x * np.float32(1 + 5e-6)).astype(np.float32)
    limits = Limits(kind=DIFFERENCE)
    bias = count_votes(x, y, ends, measure(x, y, "float32", limits, ends=ends), limits)
    a, b = (
        [row.astype(float) for row in np.split(side, ends[:-1]) if len(row)] for side in (x, y)
    )  # fmt: skip
    squares = [float(row @ row) for row in a]
    more = np.array(squares) + 0.05 * np.mean(squares)
    factor = [float((q - p) @ p) for p, q in zip(a, b, strict=True)] / more / np.mean(squares / more)
    offset = [float((q - p).mean()) for p, q in zip(a, b, strict=True)]
    for votes, wanted in ((bias.factor, factor), (bias.offset, offset)):
        assert votes.count == 24
        assert votes.total == pytest.approx(math.fsum(wanted))
        assert votes.squares == pytest.approx(math.fsum(w * w for w in wanted))
