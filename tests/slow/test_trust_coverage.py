"""Intervals of KL, χ² and ESS over 200 seeds, on families that their constants were not chosen with.

A round of `make test` draws some families and seeds by its number; `make soak` takes all of them, every time
with other seeds.
"""

from __future__ import annotations

import numpy as np
import pytest

from rolltape.trusting.estimates import RATE, Moments, ess_of_prompts, estimates
from tests.slow.soak import SOAKING, draw, each_round
from tests.trust_edits import SEQUENCES, TOKENS, Edit, edits
from tests.trust_families import FRESH, TUNED, Family, check_moments

SEEDS = 200
IN_A_ROUND = 3


def band(told: int, outside: float) -> tuple[int, int]:
    """Between which counts those that cover lie, if the rate is as stated, but for that share of cases."""
    rng = np.random.default_rng(told)
    drawn = rng.binomial(told, RATE, 200_000)
    return int(np.quantile(drawn, outside / 2)), int(np.quantile(drawn, 1 - outside / 2))


def covered(family: Family, root: int) -> dict[str, tuple[int, int]]:
    """Per estimate: how many intervals there were, and how many of them covered the truth."""
    found = {name: [0, 0] for name in family.truth}
    for seed in range(SEEDS):
        made = estimates(Moments.of(*family.draw(np.random.default_rng([root, seed]))), seed, tuple(found))
        for name, truth in family.truth.items():
            one = made[name]
            if one.low is not None and one.high is not None:
                found[name][0] += 1
                found[name][1] += one.low - 1e-12 <= truth <= one.high + 1e-12
    return {name: (told, right) for name, (told, right) in found.items()}


def outside(found: dict[str, tuple[int, int]], share: float) -> list[tuple[str, int, int]]:
    """Those that do not lie within the band."""
    bands = {name: band(told, share) for name, (told, _) in found.items() if told >= 20}
    return [(name, *found[name]) for name, (low, high) in bands.items() if not low <= found[name][1] <= high]


def untold(found: dict[str, tuple[int, int]], needed: tuple[str, ...]) -> list[tuple[str, int]]:
    """Those that cannot be told in more than one case of ten, though there are samples enough."""
    return [(name, found[name][0]) for name in needed if found[name][0] < 0.9 * SEEDS]


def test_the_families_are_what_they_say():
    check_moments()


@each_round
def test_intervals_cover_at_their_rate_whatever_the_seeds(soak_round):
    """Of right intervals, one check in a hundred lies outside its band: one in twenty would be too many."""
    every = {**FRESH, **TUNED} if SOAKING else FRESH
    names = sorted(every) if SOAKING else draw("trust", soak_round).sample(sorted(every), IN_A_ROUND)
    checks, off = 0, []
    for name in names:
        family, needed = every[name]
        found = covered(family, 1000 + soak_round)
        assert outside(found, 1e-4) == [], name
        assert untold(found, needed) == [], name
        checks += sum(told >= 20 for told, _ in found.values())
        off += [(name, *one) for one in outside(found, 0.01)]
    assert len(off) <= max(0.05 * checks, 1), off


@pytest.mark.parametrize("name", sorted(FRESH) if SOAKING else ["temperature", "uniform"])
def test_every_interval_lies_in_the_band_of_99_percent_for_seeds_seen_once(name):
    """The families and the seeds were drawn up before the constants were tried on them."""
    family, needed = FRESH[name]
    found = covered(family, 2)
    assert outside(found, 0.01) == []
    assert untold(found, needed) == []


PROMPTS, N = 128, 8
LARGER = {"1 % broken by 100 times": 512}
"""Prompts, where an edit touches a hundredth of the sequences: forty of them are, as ten are not, enough."""
KL = ("k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3")
ALL = (*KL, "chi2", "ess")
ENOUGH: dict[str, dict[str, tuple[str, ...]]] = {
    "top-p": {"tokens": ("k1", "k2", "mean_ratio"), "sequences": ("k1", "k2", "mean_ratio")},
    "1 % broken by 100 times": {"tokens": ("k1", "k2"), "sequences": ("k1", "k2")},
    "stale by 3": {"tokens": ALL, "sequences": ("k1", "k2", "k3", "reverse_k1")},
    "stale by 6": {"tokens": ALL, "sequences": ("k1", "k2")},
    "wrong routes": {"tokens": ("k1", "k2"), "sequences": ("k1", "k2")},
    "shifted": {"tokens": ("k1", "k2")},
}
"""What has to be told of an edit, by level; of the others all of it."""


def covered_by_level(edit: Edit, root: int, prompts: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Per level and estimate: how many intervals there were, and how many of them covered the truth."""
    known = edit.tokens()
    truth = {"tokens": {name: known[name] for name in TOKENS if name != "beyond"}}
    if not edit.shifted:
        truth["sequences"] = {name: edit.sequences()[name] for name in SEQUENCES}
        truth["prompts"] = {"ess": edit.prompts(N)}
    found = {level: {name: [0, 0] for name in of} for level, of in truth.items()}
    for seed in range(SEEDS):
        pairs = edit.draw(np.random.default_rng([root, seed]), prompts, N)
        sequences = Moments.of_sequences(pairs)
        made = {
            "tokens": estimates(Moments.of_tokens(pairs), seed, TOKENS).of,
            "sequences": estimates(sequences, seed, SEQUENCES).of,
            "prompts": {"ess": ess_of_prompts(sequences, seed)},
        }
        for level, of in truth.items():
            for name, value in of.items():
                one = made[level][name]
                if one.low is not None and one.high is not None:
                    found[level][name][0] += 1
                    found[level][name][1] += one.low - 1e-12 <= value <= one.high + 1e-12
    return {level: {name: (told, right) for name, (told, right) in of.items()} for level, of in found.items()}


@each_round
def test_intervals_over_tokens_sequences_and_prompts_cover_what_edits_make(soak_round):
    """Every edit of a recorded policy; a round of `make test` draws one."""
    every = edits()
    names = sorted(every) if SOAKING else draw("edits", soak_round).sample(sorted(every), 1)
    checks, off = 0, []
    for name in names:
        enough = ENOUGH.get(name, {"tokens": ALL, "sequences": ALL, "prompts": ("ess",)})
        by_level = covered_by_level(every[name], 2000 + soak_round, LARGER.get(name, PROMPTS))
        for level, found in by_level.items():
            assert outside(found, 1e-4) == [], (name, level)
            assert untold(found, enough.get(level, ())) == [], (name, level)
            checks += sum(told >= 20 for told, _ in found.values())
            off += [(name, level, *one) for one in outside(found, 0.01)]
    assert len(off) <= max(0.05 * checks, 1), off
