"""Families of log-ratios whose KL, χ² and ESS are known in closed form, none of them normal.

Each draws (log-ratios, the prompt of each) from a generator. ``truth`` has the expectation of every estimate
that it has in closed form; all but :func:`shifted` are ratios of two whole distributions, which average 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, pi, sin, sinh, tan, tanh

import numpy as np

Draw = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
Sampler = Callable[[np.random.Generator, int], np.ndarray]
Sizes = Callable[[np.random.Generator], np.ndarray]
"""How many samples each prompt has."""


@dataclass(frozen=True)
class Family:
    """A distribution of log-ratios, and how many samples prompts have."""

    truth: dict[str, float]
    draw: Draw


def family(moment: Callable[[float], float], slope: Callable[[float], float], second: tuple[float, float],
           sampler: Sampler, sizes: Sizes) -> Family:  # fmt: skip
    """From the moments of d: E exp(s d) and its derivative; ``second`` is E d and E d²."""
    first, squared = second
    truth = {
        "k1": -first, "k2": squared / 2, "k3": moment(1) - 1 - first, "reverse_k1": slope(1),
        "reverse_k3": slope(1) - moment(1) + 1, "swapped_k3": moment(-1) - 1 + first,
        "chi2": moment(2) - 2 * moment(1) + 1, "mean_ratio": moment(1),
        "ess": moment(1) ** 2 / moment(2),
    }  # fmt: skip
    truth = {name: value for name, value in truth.items() if np.isfinite(value)}

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        groups = np.repeat(np.arange(len(count := sizes(rng))), count)
        return sampler(rng, len(groups)), groups

    return Family(truth, draw)


def even(prompts: int, n: int) -> Sizes:
    return lambda rng: np.full(prompts, n)


def uneven(prompts: int, n: int) -> Sizes:
    """Lengths of which a few are ten times the others."""
    return lambda rng: 1 + (n * rng.pareto(2.5, prompts)).astype(int).clip(0, 20 * n)


def laplace(scale: float, sizes: Sizes) -> Family:
    """Heavier tails than the normal: most tokens agree, some do not at all."""
    middle = log(1 - scale**2)

    def moment(s: float) -> float:
        return exp(s * middle) / (1 - (s * scale) ** 2) if abs(s) * scale < 1 else float("inf")

    def slope(s: float) -> float:
        return moment(s) * (middle + 2 * s * scale**2 / (1 - (s * scale) ** 2))

    return family(moment, slope, (middle, middle**2 + 2 * scale**2),
                  lambda rng, count: middle + rng.laplace(0, scale, count), sizes)  # fmt: skip


def gamma(shape: float, scale: float, sizes: Sizes) -> Family:
    """Skewed: with a positive scale a few ratios are large, with a negative one a few are tiny."""
    middle = shape * log(1 - scale)

    def moment(s: float) -> float:
        return exp(s * middle) * (1 - s * scale) ** -shape if s * scale < 1 else float("inf")

    def slope(s: float) -> float:
        return moment(s) * (middle + shape * scale / (1 - s * scale))

    mean = middle + shape * scale
    return family(moment, slope, (mean, mean**2 + shape * scale**2),
                  lambda rng, count: middle + scale * rng.gamma(shape, 1, count), sizes)  # fmt: skip


def discrete(q: list[float], p: list[float], sizes: Sizes) -> Family:
    """Two distributions over a few tokens: every log-ratio is one of a few."""
    ours, theirs = np.array(q), np.array(p)
    d = np.log(theirs / ours)
    return family(
        lambda s: float((ours * np.exp(s * d)).sum()), lambda s: float((ours * d * np.exp(s * d)).sum()),
        (float((ours * d).sum()), float((ours * d * d).sum())),
        lambda rng, count: d[rng.choice(len(d), count, p=ours)], sizes,
    )  # fmt: skip


def mixed(parts: list[tuple[float, float]], sizes: Sizes) -> Family:
    """Normal log-ratios of several variances, each with its share."""
    shares, sds = np.array([one for one, _ in parts]), np.array([one for _, one in parts])
    v = sds**2

    def moment(s: float) -> float:
        return float((shares * np.exp((s * s - s) * v / 2)).sum())

    def slope(s: float) -> float:
        return float((shares * (s - 0.5) * v * np.exp((s * s - s) * v / 2)).sum())

    def sampler(rng: np.random.Generator, count: int) -> np.ndarray:
        size = sds[rng.choice(len(sds), count, p=shares)]
        return np.asarray(rng.normal(-(size**2) / 2, size))

    return family(moment, slope, (float((-shares * v / 2).sum()), float((shares * (v + v * v / 4)).sum())),
                  sampler, sizes)  # fmt: skip


def by_prompt(sds: list[float], prompts: int, n: int) -> Family:
    """Every prompt has a variance of its own, and all its samples have it."""
    base = mixed([(1 / len(sds), sd) for sd in sds], even(prompts, n))

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        size = np.repeat(rng.choice(sds, prompts), n)
        return rng.normal(-(size**2) / 2, size), np.repeat(np.arange(prompts), n)

    return Family(base.truth, draw)


def sequences(token: float, lengths: list[int], prompts: int, n: int) -> Family:
    """One sample per sequence: normal log-ratios of tokens, summed over unequal lengths."""
    return mixed([(1 / len(lengths), token * length**0.5) for length in lengths], even(prompts, n))


def logistic(scale: float, sizes: Sizes) -> Family:
    """Between the normal and the Laplace distribution."""

    def log_moment(s: float) -> float:
        return log(pi * s * scale / sin(pi * s * scale)) if s else 0.0

    middle = -log_moment(1)

    def moment(s: float) -> float:
        return exp(s * middle + log_moment(s)) if abs(s) * scale < 1 else float("inf")

    def slope(s: float) -> float:
        return moment(s) * (middle + 1 / s - pi * scale / tan(pi * s * scale))

    return family(moment, slope, (middle, middle**2 + (pi * scale) ** 2 / 3),
                  lambda rng, count: middle + rng.logistic(0, scale, count), sizes)  # fmt: skip


def uniform(width: float, sizes: Sizes) -> Family:
    """No tails at all."""
    middle = -log(sinh(width) / width)

    def moment(s: float) -> float:
        return exp(s * middle) * sinh(s * width) / (s * width)

    def slope(s: float) -> float:
        return moment(s) * (middle - 1 / s + width / tanh(s * width))

    return family(moment, slope, (middle, middle**2 + width**2 / 3),
                  lambda rng, count: middle + rng.uniform(-width, width, count), sizes)  # fmt: skip


def inflated(share: float, inner: Family) -> Family:
    """Most tokens agree to the last bit, a share of them is another family's."""
    of = {name: value * share for name, value in inner.truth.items() if name not in ("mean_ratio", "ess")}
    truth = of | {"mean_ratio": 1.0, "ess": 1 / (1 + of["chi2"])}

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        d, groups = inner.draw(rng)
        return np.where(rng.random(len(d)) < share, d, 0.0), groups

    return Family(truth, draw)


def policies(seed: int, contexts: int, tokens: int, edit: Callable[[np.ndarray], np.ndarray],
             sizes: Sizes) -> Family:  # fmt: skip
    """Softmaxes of random logits, and what an edit makes of them; contexts come by chance."""
    logits = np.random.default_rng(seed).normal(size=(contexts, tokens)) * 2
    q, p = (np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in (logits, edit(logits)))
    return discrete((q / contexts).ravel().tolist(), (p / contexts).ravel().tolist(), sizes)


def poisson(prompts: int, mean: float) -> Sizes:
    return lambda rng: 1 + rng.poisson(mean, prompts)


def lognormal(prompts: int, n: int, spread: float) -> Sizes:
    return lambda rng: 1 + (n * rng.lognormal(0, spread, prompts)).astype(int)


EASY = ("k1", "k2", "k3")
ALL = ("k1", "k2", "k3", "reverse_k1", "reverse_k3", "chi2", "mean_ratio", "ess")

TUNED: dict[str, tuple[Family, tuple[str, ...]]] = {
    "laplace 0.05": (laplace(0.05, even(48, 60)), ALL),
    "laplace 0.2": (laplace(0.2, even(96, 200)), EASY),
    "laplace 0.4, unequal": (laplace(0.4, uneven(64, 80)), ()),
    "gamma up": (gamma(0.5, 0.1, even(64, 100)), EASY),
    "gamma down": (gamma(0.5, -0.5, even(64, 100)), EASY),
    "two tokens": (discrete([0.9, 0.1], [0.92, 0.08], even(64, 30)), ALL),
    "a rare token": (discrete([0.995, 0.005], [0.99, 0.01], even(64, 200)), ALL),
    "five tokens": (discrete([0.5, 0.2, 0.15, 0.1, 0.05], [0.45, 0.25, 0.1, 0.12, 0.08], even(40, 25)), ALL),
    "few prompts": (mixed([(1.0, 0.1)], even(20, 64)), ALL),
    "few prompts, heavy": (laplace(0.1, even(22, 100)), ("k1", "k2")),
    "three sizes of noise": (mixed([(0.8, 0.01), (0.15, 0.1), (0.05, 0.5)], even(64, 128)), ("k1", "k2")),
    "prompts of their own noise": (by_prompt([0.02, 0.05, 0.1, 0.2], 64, 40), EASY),
    "sequences": (sequences(0.02, [4, 16, 64, 256], 128, 8), EASY),
    "sequences, far": (sequences(0.05, [16, 64, 256], 256, 8), ("k1", "k2")),
}  # fmt: skip
"""What the constants of ``estimates`` were chosen with. Of each, what has to be told."""

FRESH: dict[str, tuple[Family, tuple[str, ...]]] = {
    "logistic": (logistic(0.06, even(56, 70)), ALL),
    "logistic, unequal": (logistic(0.1, lognormal(80, 40, 0.6)), EASY),
    "uniform": (uniform(0.5, poisson(40, 12)), ALL),
    "temperature": (policies(1, 12, 16, lambda logits: logits / 0.93, poisson(60, 40)), ALL),
    "int8": (policies(2, 10, 24, lambda logits: np.round(logits * 8) / 8, even(50, 60)), ALL),
    "an expert of another route": (
        policies(3, 20, 12, lambda logits: np.where(np.arange(20)[:, None] == 7, logits[::-1], logits),
                 even(80, 80)), ("k1", "k2")),
    "mostly the same bits": (inflated(0.1, laplace(0.1, even(64, 120))), EASY),
    "gamma up, few prompts": (gamma(1.5, 0.08, lognormal(30, 60, 0.4)), EASY),
    "gamma down, unequal": (gamma(2.0, -0.2, lognormal(90, 30, 0.7)), ALL),
    "geometric lengths": (sequences(0.03, [8] * 8 + [16] * 4 + [32] * 2 + [64], 96, 8), EASY),
    "prompts of two kinds": (by_prompt([0.03, 0.15], 90, 25), EASY),
    "a token in a thousand": (discrete([0.998, 0.002], [0.9985, 0.0015], poisson(64, 300)), EASY),
}  # fmt: skip
"""What they were not chosen with: looked at only when they were done."""


def check_moments() -> None:
    """Ratios of whole distributions average 1, but for rounding; and the formulas are those of the draws."""
    for name, (one, _) in {**TUNED, **FRESH}.items():
        assert abs(one.truth["mean_ratio"] - 1) < 1e-9, name
        d, _ = one.draw(np.random.default_rng(5))
        error = 6 * float(np.std(d * d / 2)) / len(d) ** 0.5
        assert abs(float(np.mean(d * d / 2)) - one.truth["k2"]) < max(error, 1e-12), name
