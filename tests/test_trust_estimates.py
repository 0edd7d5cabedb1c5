"""KL, χ² and ESS of recorded log-probs: intervals cover what is known, or say that they cannot tell."""

from __future__ import annotations

from math import comb, erf, exp, log, sqrt

import numpy as np
import pytest

from rolltape.errors import BatchError
from rolltape.trusting import Pairs, over_sequences, over_tokens, tails
from rolltape.trusting.estimates import RATE, Moments, ess_of_prompts, estimates
from rolltape.trusting.tails import worst_sequences, worst_tokens
from tests.trust_edits import edits
from tests.trust_policies import World, log_softmax, sample, top_p

SEEDS = 200
MOST_UNTOLD = 0.1
"""Of the cases with enough data."""


def band(told):
    """How often an interval of the stated rate may cover, so that a right one fails once in a hundred."""
    chances = [comb(told, k) * RATE**k * (1 - RATE) ** (told - k) for k in range(told + 1)]
    sums = np.cumsum(chances)
    return int(np.searchsorted(sums, 0.005)), int(np.searchsorted(sums, 0.995))


def normal(v):
    """What is known of a log-ratio that is normal with variance v, of two whole distributions."""
    below = lambda x: 0.5 * (1 + erf(x / sqrt(2)))  # noqa: E731
    s, m, c = sqrt(v), -v / 2, log(2)
    return {
        "k1": v / 2, "k2": (v + v * v / 4) / 2, "k3": v / 2, "reverse_k1": v / 2,
        "reverse_k2": (v + v * v / 4) / 2, "reverse_k3": v / 2, "swapped_k3": exp(v) - 1 - v / 2,
        "chi2": exp(v) - 1, "mean_ratio": 1.0, "ess": exp(-v),
        "beyond": below((-c - m) / s) + 1 - below((c - m) / s),
        "abs_ratio": below((m + v) / s) * exp(m + v / 2) + below(-(m - v) / s) * exp(-m + v / 2),
    }  # fmt: skip


def covered(truth, draw, seeds=SEEDS):
    """Per estimate: how many intervals there were, and how many covered the truth."""
    told, right = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for seed in range(seeds):
        found = estimates(draw(np.random.default_rng([7, seed])), seed, tuple(truth))
        for name, value in truth.items():
            if found[name].low is not None:
                told[name] += 1
                right[name] += found[name].low - 1e-12 <= value <= found[name].high + 1e-12
    return told, right


def check(told, right, names=None, seeds=SEEDS):
    for name in told:
        if names is not None and name in names:
            assert told[name] >= (1 - MOST_UNTOLD) * seeds, (name, told[name])
        if told[name] >= 20 and name != "beyond":  # a share of nearly none covers always
            low, high = band(told[name])
            assert low <= right[name] <= high, (name, right[name], told[name])


@pytest.mark.parametrize(("v", "prompts", "n"), [(0.0025, 64, 80), (0.09, 64, 40), (0.49, 64, 160)])
def test_intervals_cover_what_is_known_of_normal_log_ratios(v, prompts, n):
    groups = np.repeat(np.arange(prompts), n)
    draw = lambda rng: Moments.of(rng.normal(-v / 2, sqrt(v), len(groups)), groups)  # noqa: E731
    check(*covered(normal(v), draw), names=list(normal(v)))


def test_a_prompt_whose_samples_go_together_does_not_make_intervals_too_short():
    v, prompts, n = 0.09, 80, 16
    groups = np.repeat(np.arange(prompts), n)

    def draw(rng):  # half of the variance is that of the prompt
        own = np.repeat(rng.normal(0, sqrt(v / 2), prompts), n)
        return Moments.of(own + rng.normal(-v / 2, sqrt(v / 2), len(groups)), groups)

    check(*covered(normal(v), draw), names=["k1", "k2", "k3"])


def test_sequences_broken_a_hundredfold_are_in_the_interval_or_it_cannot_tell():
    """1 % of the sequences are off by 100 times: averages over tokens hide it (NeMo-RL #1288, #2100)."""
    prompts, n, length, share = 128, 8, 20, 0.01
    groups = np.repeat(np.arange(prompts), n * length)
    usual, broken = normal(0.01**2), normal(1.0)
    truth = {name: (1 - share) * usual[name] + share * broken[name] for name in ("k1", "k2", "k3", "chi2")}
    truth["ess"] = 1 / (1 + truth["chi2"])

    def draw(rng):
        size = np.repeat(np.where(rng.random(prompts * n) < share, 1.0, 0.01), length)
        return Moments.of(rng.normal(-(size**2) / 2, size), groups)

    told, right = covered(truth, draw)
    check(told, right, names=["k1", "k2"])
    assert told["ess"] <= 0.05 * SEEDS, "nobody can tell the ESS from a handful of broken sequences"


BOTH = ["k1", "k2"]
ENOUGH = {"1 % broken by 100 times": BOTH, "top-p": BOTH, "wrong routes": BOTH, "shifted": BOTH}
"""What has to be told of these edits; of all others KL both ways, χ² and ESS."""
LARGER = {"1 % broken by 100 times": 512}
"""Prompts, where an edit touches a hundredth of the sequences: of 64 prompts five are broken."""


@pytest.mark.parametrize("edit", edits())
def test_intervals_over_tokens_cover_what_a_known_edit_of_a_policy_makes(edit):
    """Those over sequences and prompts: tests/slow/test_trust_coverage.py."""
    made = edits()[edit]
    names = ("k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3", "chi2", "ess")
    known = made.tokens()
    truth = {name: known[name] for name in names}
    told, right = covered(truth, lambda rng: Moments.of_tokens(made.draw(rng, LARGER.get(edit, 64), 8)))
    check(told, right, names=ENOUGH.get(edit, names))


def test_what_rests_on_whole_distributions_is_not_told_of_a_kept_part():
    """Under top-p the engine never samples a part of what the trainer would: ratios do not average 1."""
    world = World(3, prompts=64, n=8)
    engine = top_p(log_softmax(world.logits), 0.8)
    world.ids[:] = sample(np.random.default_rng(0), engine)
    found = over_tokens(world.pairs(log_softmax(world.logits), engine))
    assert found["mean_ratio"].high < 1
    for name in ("k3", "reverse_k3", "chi2", "ess"):
        assert found[name].low is None
        assert "average" in found[name].cannot_tell
    kept = np.log(np.exp(np.where(np.isfinite(engine), log_softmax(world.logits), -np.inf)).sum(axis=1))
    assert found["k1"].low <= -kept.mean() <= found["k1"].high


def test_one_token_explodes_in_one_direction_only():
    """-5 against -15: 9 one way, 22,015 the other (NeMo-RL); both are there, by name."""
    pairs = Pairs.of([[-5.0]], [[-15.0]])
    found = over_tokens(pairs)
    assert found["k3"].value == pytest.approx(9.0000454)
    assert found["swapped_k3"].value == pytest.approx(22015.4658)
    assert found["reverse_k3"].value == pytest.approx(1 - 11 * exp(-10))
    assert found["k1"].value == 10


def test_ess_is_of_raw_ratios():
    """Clamped weights look fine: with one ratio of 1000 among 100 the ESS is a hundredth."""
    rows = [[-1.0] for _ in range(100)]
    other = [[-1.0] for _ in range(99)] + [[-1.0 + log(1000)]]
    found = over_tokens(
        Pairs.of([[-9.0]] * 100, [[-9.0 + b[0] - a[0]] for a, b in zip(rows, other, strict=True)])
    )
    assert found["ess"].value == pytest.approx((99 + 1000) ** 2 / (100 * (99 + 1000**2)))


@pytest.mark.parametrize("of", ["tokens", "sequences"])
def test_ratios_are_told_as_they_were_before_a_cap(of):
    """Minimum, mean and maximum after truncation do not say what was cut, nor how much (TRL #5231)."""
    rng = np.random.default_rng(1)
    engine = -rng.exponential(size=(400, 6)) - 4
    trainer = engine + 0.01 * rng.normal(size=engine.shape)
    trainer[:12] += log(40) / 6  # a ratio of 40 for whole sequences
    trainer[20:45, 2] += log(4)
    pairs = Pairs.of(engine, trainer, groups=np.arange(400) // 4)
    log_ratio = pairs.log_ratio if of == "tokens" else pairs.sums(pairs.log_ratio)
    ratio, seen = np.exp(log_ratio), tails(log_ratio)
    capped = np.minimum(ratio, 2.0)
    assert capped.max() == 2.0, "all that is logged of it elsewhere"
    assert np.exp([seen.smallest, seen.largest]) == pytest.approx([ratio.min(), ratio.max()])
    assert seen.largest > log(30 if of == "sequences" else 3)
    assert seen.cut == {cap: int((ratio > cap).sum()) for cap in (2.0, 5.0, 10.0)}
    assert seen.cut[2.0] == {"tokens": 25, "sequences": 37}[of]
    found = {"tokens": over_tokens, "sequences": over_sequences}[of](pairs)
    assert found["mean_ratio"].value == pytest.approx(ratio.mean())
    assert found["ess"].value == pytest.approx(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))
    assert found["ess"].value < capped.sum() ** 2 / (len(ratio) * (capped**2).sum())


@pytest.mark.parametrize("size", [400.0, 800.0, 5000.0])
def test_nothing_overflows(size):
    engine = np.full(50, -size - 1.0)
    trainer = np.concatenate([np.full(49, -size - 1.0), [-1.0]])
    with np.errstate(over="raise", invalid="raise"):
        found = over_tokens(Pairs.of(engine[:, None], trainer[:, None]))
        seen = tails(trainer - engine)
    assert found["ess"].value == pytest.approx(1 / 50, rel=1e-6)
    assert found["k1"].value == pytest.approx(-size / 50)
    assert seen.largest_weight == pytest.approx(1.0)
    assert seen.cut == {2.0: 1, 5.0: 1, 10.0: 1}
    down = over_tokens(Pairs.of(trainer[:, None], engine[:, None]))
    assert down["k3"].value == pytest.approx((size - 1) / 50)


def test_tiny_differences_keep_their_digits():
    d = np.full(64, 1e-9)
    found = over_tokens(Pairs.of(np.full((64, 1), -1.0), (-1.0 + d)[:, None]))
    exact = float(((-1.0 + d) - -1.0)[0])
    assert found["k2"].value == pytest.approx(exact**2 / 2)
    assert found["k3"].value == pytest.approx(exact**2 / 2, rel=1e-6)


def test_few_prompts_cannot_tell():
    rng = np.random.default_rng(0)
    engine = -rng.exponential(size=(40, 10))
    found = over_tokens(Pairs.of(engine, engine + 0.1 * rng.normal(size=engine.shape), groups=[0, 1] * 20))
    assert found["k2"].low is None
    assert "2 prompts" in found["k2"].cannot_tell


def test_levels_are_told_apart():
    """ESS over tokens can be 0.99 where sequences are worth nothing."""
    rng = np.random.default_rng(0)
    engine = [-rng.exponential(size=400) for _ in range(64)]
    trainer = [row + rng.normal(-0.005, 0.1, 400) for row in engine]
    pairs = Pairs.of(engine, trainer, groups=np.arange(64) // 4)
    assert over_tokens(pairs)["ess"].value > 0.98
    assert over_sequences(pairs)["ess"].value < 0.3
    assert over_sequences(pairs)["ess"].cannot_tell
    assert ess_of_prompts(Moments.of_sequences(pairs)).value < 0.8


def test_moments_of_steps_join_to_those_of_all():
    rng = np.random.default_rng(0)
    d, groups = rng.normal(size=600), np.arange(600) // 10
    d[5] = 700.0  # one step is scaled, the others are not
    whole = estimates(Moments.of(d, groups))
    joined = estimates(Moments.join([Moments.of(d[a : a + 200], groups[a : a + 200]) for a in (0, 200, 400)]))
    for name in whole.of:
        assert joined[name].value == pytest.approx(whole[name].value, rel=1e-9), name


def test_only_what_the_mask_has_on_counts():
    pairs = Pairs.of([[-1.0, -2.0, 0.0]], [[-1.5, -9.0, 0.0]], mask=[[1, 0, 0]], names=["a"])
    assert pairs.log_ratio.tolist() == [-0.5]
    with pytest.raises(BatchError, match="lengths"):
        Pairs.of([[-1.0]], [[-1.0, -2.0]])


def test_the_worst_are_named():
    engine = [[-1.0, -1.0], [-1.0, -1.0], [-2.0, -3.0]]
    trainer = [[-1.01, -1.0], [-1.0, -1.01], [-2.0, -8.0]]
    pairs = Pairs.of(engine, trainer, names=["a", "b", "c"])
    assert worst_sequences(pairs)[0].name == "c"
    worst = worst_tokens(pairs)[0]
    assert (worst.name, worst.place, worst.engine, worst.trainer) == ("c", 1, -3.0, -8.0)


@pytest.mark.parametrize("size", [100, 180, 250, 299, 350, 700, 1e4, 1e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_ratios_of_any_size_do_not_overflow(size, sign):
    """Warnings are errors here."""
    rng = np.random.default_rng(0)
    rows = [-1 - rng.exponential(size=5) for _ in range(40)]
    pairs = Pairs.of(rows, [row + sign * size * (1 + 0.01 * rng.normal(size=5)) for row in rows])
    assert over_tokens(pairs)["k1"].value == pytest.approx(-sign * size, rel=0.01)
    assert over_sequences(pairs)["ess"].low is None
    ess_of_prompts(Moments.of_sequences(pairs))


def test_one_prompt_is_no_certainty():
    rng = np.random.default_rng(0)
    rows = [-1 - rng.exponential(size=9) for _ in range(8)]
    found = over_tokens(Pairs.of(rows, [row + rng.normal(size=9) for row in rows], groups=["a"] * 8))
    assert [name for name, one in found.of.items() if one.low is not None] == []
