"""How far two policies lie apart, from what one of them sampled: KL both ways, χ², effective sample size.

The tokens were drawn by the engine's policy q; the trainer's policy is p; d = log p - log q of a token, or
summed over a sequence; w = exp(d), never clamped.

==============  =======================================  =====================================
name            mean over the samples of                 what it estimates
==============  =======================================  =====================================
``k1``          -d                                       KL(q‖p), the engine first
``k2``          d² / 2                                   the same to second order
``k3``          w - 1 - d                                KL(q‖p), never negative
``reverse_k1``  w d                                      KL(p‖q), the trainer first
``reverse_k2``  w d² / 2                                 the same to second order
``reverse_k3``  w d - w + 1                              KL(p‖q), never negative
``swapped_k3``  1/w - 1 + d                              χ²(q‖p) - KL(q‖p); some report it as the other KL
``chi2``        (w - 1)²                                 χ²(p‖q)
``mean_ratio``  w                                        1, where both are whole distributions
``abs_ratio``   exp(abs(d))                              1 where nothing differs (NeMo-RL's mult prob error)
``beyond``      whether w is outside [0.5, 2]            the share of such
``ess``         (Σw)² / (n Σw²)                          1 / (1 + χ²), the share of samples that is left
==============  =======================================  =====================================

Intervals come from a bootstrap over prompts, whose samples go together: the studentised kind, on a log scale
for what cannot be negative. Where prompts are few, or a few of them carry it all, there is none: nobody can
tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.trusting.pairs import Pairs

RATE = 0.95
"""How often an interval covers the truth."""
FEWEST_PROMPTS = 20
"""With fewer, there is no interval. Prompts of unequal sizes count for less: (Σn)² / Σn²."""
LARGEST_SHARE = 0.6
"""A prompt that carries more than this of the variance of an estimate leaves it without an interval."""
RESAMPLES = 999
MANY_PROMPTS = 20_000
"""With more, the interval is that of the normal distribution, which the bootstrap would give as well."""
FEWEST_IN_TAIL = 20
"""How many samples must be where an average of ratios gets its variance from, if log-ratios are normal."""
FEWEST_MIRRORED = 17
"""The same, as the outermost tenth of the other side tells."""
FEWEST_IN_LONG_TAIL = 10
"""The same for a tail that is longer than a normal one."""
LONGER = 1.15
"""A tail whose mean excess times its distance is more than this share of the variance is longer than a normal
one, for which it is about 0.8; of an exponential one it is 2."""
HARMLESS = 0.35
"""Ratios whose logarithms times the power are usually below this have no tail to speak of."""
TOO_FEW = "samples are too few for ratios that vary so much"
OUT_WEIGHS = 0.3
"""Of the squares on one side: what sticks out and has more than this is asked by itself."""
NEAR_0 = 0.2
"""What ratios that are nearly 0 are on average, at most."""
SAFE = 300.0
"""A log-ratio up to which exp and its square do not overflow; above it everything is scaled."""

MEANS = (
    "k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3", "swapped_k3", "chi2", "mean_ratio",
    "abs_ratio", "beyond",
)  # fmt: skip
ANY_SIGN = ("k1", "reverse_k1", "mean_ratio")
POWERS = {
    "k3": 0.8, "reverse_k1": 1.2, "reverse_k2": 1.3, "reverse_k3": 1.2, "swapped_k3": 0.8, "chi2": 2.0,
    "mean_ratio": 1.2, "abs_ratio": 0.8, "ess": 2.0,
}  # fmt: skip
"""Of the ratio, in what is averaged: its large values count so much more than they are frequent."""
OF_INVERSE, OF_BOTH = ("swapped_k3",), ("abs_ratio",)
"""Averages of which the small ratios decide, or small and large ones alike."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and between which two the truth lies at the stated rate."""

    value: float
    low: float | None = None
    high: float | None = None
    cannot_tell: str = ""
    """Why there is no interval."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """All of one level: tokens, sequences, or prompts."""

    count: int
    """How many samples of that level there are."""
    prompts: int
    of: dict[str, Estimate]
    """By name; see the table of this module."""

    def __getitem__(self, name: str) -> Estimate:
        return self.of[name]


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """What estimates are computed from: sums over the samples of each prompt. Those of many steps are joined,
    and no step has to be kept for that.
    """

    sums: dict[str, np.ndarray]
    """By feature: one number per prompt."""
    scale: float
    """The logarithm by which ratios were scaled down, where they would overflow."""
    down: float
    """The same for their inverses."""
    sides: np.ndarray
    """Of the samples above the median, and of those below: see :func:`_side`."""
    lost: np.ndarray
    """Of the samples that stick out below: the sums of their squares, of w - 1 and of (w - 1)²."""

    @classmethod
    def of(cls, log_ratio: np.ndarray, groups: np.ndarray) -> Moments:
        """Of log-ratios, and the prompt that each belongs to."""
        _, groups = np.unique(groups, return_inverse=True)
        features, scale, down = _features(log_ratio)
        prompts = int(groups.max()) + 1 if len(groups) else 0
        sums = {name: np.bincount(groups.reshape(-1), row, prompts) for name, row in features.items()}
        away = log_ratio - np.median(log_ratio) if len(log_ratio) else log_ratio
        usual = 6 * 1.4826 * float(np.median(np.abs(away))) if len(away) else 0.0
        sides = np.array([_side(away, usual), _side(-away, usual)])
        below = -away > usual
        short = np.expm1(log_ratio[below])
        return cls(sums, scale, down, sides, np.array([(away[below] ** 2).sum(), short.sum(), short @ short]))

    @classmethod
    def of_tokens(cls, pairs: Pairs) -> Moments:
        """One sample per token."""
        return cls.of(pairs.log_ratio, pairs.groups[pairs.sequence])

    @classmethod
    def of_sequences(cls, pairs: Pairs) -> Moments:
        """One sample per sequence: the log-ratios of its tokens, summed."""
        some = pairs.lengths > 0
        return cls.of(pairs.sums(pairs.log_ratio)[some], pairs.groups[some])

    @classmethod
    def join(cls, moments: Sequence[Moments]) -> Moments:
        """Those of several steps as one; prompts of different steps are different prompts."""
        if not moments:
            return cls.of(np.empty(0), np.empty(0, np.int64))
        scale, down = max(one.scale for one in moments), max(one.down for one in moments)
        sums = {
            name: np.concatenate(
                [
                    one.sums[name] * np.exp(one.exponent(name) - _exponent(name, scale, down))
                    for one in moments
                ]
            )
            for name in moments[0].sums
        }
        sides, lost = (np.sum([getattr(one, name) for one in moments], axis=0) for name in ("sides", "lost"))
        return cls(sums, scale, down, sides, lost)

    def exponent(self, name: str) -> float:
        """The logarithm by which a feature was scaled down."""
        return _exponent(name, self.scale, self.down)

    @property
    def count(self) -> int:
        """How many samples there are."""
        return int(self.sides[0, 0])

    @property
    def prompts(self) -> int:
        """How many prompts they belong to."""
        return len(self.sums["n"])

    def mean(self, name: str) -> float:
        """The mean of a feature over all samples; nan where there are none."""
        if not self.count:
            return float("nan")
        return _grown(float(self.sums[name].sum() / self.sums["n"].sum()), self.exponent(name))


def over_tokens(pairs: Pairs, seed: int = 0) -> Estimates:
    """All estimates with one sample per token."""
    return estimates(Moments.of_tokens(pairs), seed)


def over_sequences(pairs: Pairs, seed: int = 0) -> Estimates:
    """All estimates with one sample per sequence."""
    return estimates(Moments.of_sequences(pairs), seed)


def estimates(moments: Moments, seed: int = 0, only: Sequence[str] = (*MEANS, "ess")) -> Estimates:
    """All estimates or some, with intervals where those can be told."""
    if not moments.count:
        nothing = Estimate(float("nan"), cannot_tell="there are no samples")
        return Estimates(0, 0, dict.fromkeys(only, nothing))
    sums, one = moments.sums, math.exp(-moments.scale)
    boot = _Bootstrap(moments.prompts, seed)
    found = {name: _mean(sums, name, moments.exponent(name), boot) for name in MEANS if name in only}
    if "ess" in only:
        found["ess"] = _ess(np.stack([sums["n"], sums["w-1"], sums["chi2"]], axis=1), one, boot)
    for name in found:
        power = POWERS.get(name)
        if power is None:
            continue
        sides = moments.sides if name in OF_BOTH else moments.sides[[int(name in OF_INVERSE)]]
        unseen = next(filter(None, (_unseen(x, power) for x in sides)), "")
        off = "" if name in (*OF_INVERSE, *OF_BOTH) else _one_sided(moments) or _mirrored(moments, power)
        if reason := _off_average(sums, one, name) or unseen or off:
            found[name] = Estimate(found[name].value, cannot_tell=reason)
    return Estimates(moments.count, moments.prompts, found)


def ess_of_prompts(sequences: Moments, seed: int = 0) -> Estimate:
    """How many prompts are left, as a share, each with the mean weight of its sequences."""
    if not sequences.count:
        return Estimate(float("nan"), cannot_tell="there are no samples")
    mean = sequences.sums["w-1"] / sequences.sums["n"]
    sums = np.stack([np.ones(len(mean)), mean, mean**2], axis=1)
    found = _ess(sums, math.exp(-sequences.scale), _Bootstrap(len(mean), seed))
    one = math.exp(-sequences.scale)
    reason = _off_average(sequences.sums, one, "ess") or _unseen(sequences.sides[0], POWERS["ess"])
    reason = reason or _one_sided(sequences) or _mirrored(sequences, POWERS["ess"])
    return Estimate(found.value, cannot_tell=reason) if reason else found


def _side(away: np.ndarray, usual: float) -> list[float]:
    """What is kept of one side of the log-ratios, given how far they lie from the median.

    How many samples there are; of those on this side their number and squares; of those beyond ``usual``
    their number, squares, and squares counted from the nearest of them; of the outermost hundredth, or 40,
    and of the outermost tenth their number, how far away they begin, and by how much they exceed that. All
    are sums: steps are added.
    """
    mine = away[away > 0]
    out = mine[mine > usual]
    nearest = float(out.min(initial=np.inf)) if len(out) else 0.0
    tenth, order = len(away) // 10, np.sort(away)
    return [
        len(away), len(mine), float((mine**2).sum()), len(out), float((out**2).sum()),
        float(((out - nearest) ** 2).sum()), *_outermost(order, min(max(len(away) // 100, 40), tenth)),
        *_outermost(order, tenth),
    ]  # fmt: skip


def _outermost(order: np.ndarray, count: int) -> tuple[float, float, float]:
    top = order[len(order) - count :]
    begin = float(top[0]) if count else 0.0
    return count, count * begin, float((top - begin).sum())


def _unseen(side: np.ndarray, power: float) -> str:
    """Whether the samples are too few to have met the ratios that decide the average of a power of them.

    Of a normal log-ratio with variance v, the ratios that carry the variance of that average lie 2 · power ·
    √v beyond the mean: if hardly any sample can be there, neither the average nor its spread is known. Those
    that stick out and weigh, such as the tokens of a few broken sequences, are asked by themselves. Of a tail
    that is longer than a normal one, and falls off as exp(-β d), the variance is not finite unless 2 · power
    is below β, and half of it comes from beyond log 2 / (β - 2 · power).
    """
    count, number, squares, out, out_squares, out_spread, top, begin, excess, *_ = side.tolist()
    if not number:
        return ""
    asked = [(count, math.sqrt(squares / number))]
    if out_squares > OUT_WEIGHS * squares:
        asked.append((out, math.sqrt(out_spread / out)))
    enough = all(
        many * math.erfc(2 * power * size / math.sqrt(2)) / 2 >= FEWEST_IN_TAIL
        for many, size in asked
        if power * size > HARMLESS
    )
    if enough and top and excess > 0 and excess / top * begin / top > LONGER * squares / number:
        fall = top / excess * (1 - 1 / math.sqrt(top))  # at most by one standard error too long
        beyond = math.exp(-fall * math.log(2) / (fall - 2 * power)) if fall > 2 * power else 0.0
        enough = top * beyond >= FEWEST_IN_LONG_TAIL
    return "" if enough else TOO_FEW


def _mirrored(moments: Moments, power: float) -> str:
    """The same question as :func:`_unseen`, asked of the outermost tenth on the other side.

    Where some sequences are longer than others, theirs are the ratios that decide, and they are fewer than
    all. How widely they vary is seen below the median as well as above, and asked there it does not depend on
    whether large ratios were met: to ask those would choose the samples that lack them.
    """
    _, number, squares, *_ = moments.sides[0].tolist()
    *_, top, begin, excess = moments.sides[1].tolist()
    if not number or not top or excess <= 0 or begin <= 0 or power * math.sqrt(squares / number) <= HARMLESS:
        return ""
    begin, size = begin / top, _tail_size(begin / top, excess / top)
    share = math.erfc(2 * power * size / math.sqrt(2)) / math.erfc(begin / size / math.sqrt(2))
    return "" if top * share >= FEWEST_MIRRORED else TOO_FEW


def _tail_size(begin: float, excess: float) -> float:
    """The standard deviation of a normal distribution whose samples beyond ``begin`` exceed it so much."""
    low, high = excess / 8, 8 * (begin + excess)
    for _ in range(40):
        size = math.sqrt(low * high)
        away = begin / size
        beyond = math.erfc(away / math.sqrt(2)) / 2
        mean = size * (math.exp(-away * away / 2) / math.sqrt(2 * math.pi) / beyond - away) if beyond else 0.0
        low, high = (size, high) if mean < excess else (low, size)
    return size


def _off_average(sums: dict[str, np.ndarray], one: float, name: str) -> str:
    """Ratios of two whole distributions average 1. Where they do not, rare ones have not been met, or the
    engine cannot sample what the trainer can: then what rests on that average is not known.
    """
    if name in ("mean_ratio", "swapped_k3", "abs_ratio"):
        return ""
    n, excess = sums["n"].sum(), sums["w-1"].sum()
    moves = sums["w-1"] - excess / n * sums["n"]
    error = math.sqrt(float((moves**2).sum()))
    if abs(excess) <= 4 * error:
        return ""
    average = 1 + excess / n / one if one > 0 else math.inf
    return f"ratios average {average:.3g}, not 1"


def _one_sided(moments: Moments) -> str:
    """Whether samples that stick out below weigh, and nothing above makes up for them.

    Ratios average 1. Where some are nearly 0, as those of a few broken sequences are, the others must be
    above 1 by as much, and be seen to be: else what makes up for them are ratios so large and rare that none
    was met.
    """
    squares, short, spread = moments.lost.tolist()
    near = -short >= (1 - NEAR_0) * float(moments.sides[1, 3])
    if squares <= OUT_WEIGHS * float(moments.sides[1, 2]) or not near:
        return ""
    rest = float(moments.sums["w-1"].sum()) - math.exp(-moments.scale) * short
    error = math.sqrt(max(float(moments.sums["chi2"].sum()) - math.exp(-2 * moments.scale) * spread, 0.0))
    half = -math.exp(-moments.scale) * short / 2
    return "" if rest >= half >= error else "some ratios are nearly 0, and none makes up for them"


def _excess(d: np.ndarray) -> tuple[np.ndarray, float, float]:
    """w - 1, and 1, both times exp(-scale) where w would overflow; and that scale."""
    scale = max(float(d.max(initial=0.0)) - SAFE, 0.0)
    one = float(np.exp(-scale))
    return (np.expm1(d) if scale == 0.0 else np.exp(d - scale) - one), one, scale


def _features(d: np.ndarray) -> tuple[dict[str, np.ndarray], float, float]:
    """The number of each sample whose mean is an estimate, and the logarithms by which they are scaled."""
    excess, one, scale = _excess(d)
    weight = excess + one
    inverse, _, down = _excess(-d)
    found = {
        "n": np.ones_like(d), "w-1": excess, "k1": -d, "k2": d * d / 2, "k3": excess - d * one,
        "reverse_k1": weight * d, "reverse_k2": weight * d * d / 2, "reverse_k3": weight * d - excess,
        "swapped_k3": inverse + d * np.exp(-down), "chi2": excess**2, "mean_ratio": weight,
        "abs_ratio": np.exp(np.abs(d) - max(scale, down)), "beyond": (np.abs(d) > np.log(2)).astype(float),
    }  # fmt: skip
    small = np.abs(d) < 1e-3  # differences of nearly equal numbers, by their series
    s = d[small]
    found["k3"][small] = one * s * s / 2 * (1 + s / 3 + s * s / 12)
    found["reverse_k3"][small] = one * s * s / 2 * (1 + 2 * s / 3 + s * s / 4)
    found["swapped_k3"][small] = np.exp(-down) * s * s / 2 * (1 - s / 3 + s * s / 12)
    return found, scale, down


def _exponent(name: str, scale: float, down: float) -> float:
    if name in ("k3", "w-1", "reverse_k1", "reverse_k2", "reverse_k3", "mean_ratio"):
        return scale
    return {"chi2": 2 * scale, "swapped_k3": down, "abs_ratio": max(scale, down)}.get(name, 0.0)


# -- intervals -----------------------------------------------------------------------------------------------

Value = Callable[[np.ndarray], np.ndarray]


class _Bootstrap:
    """How often each prompt is drawn in each resample; the same draws for every estimate."""

    def __init__(self, prompts: int, seed: int) -> None:
        self.prompts = prompts
        self._seed = seed
        self._drawn: np.ndarray | None = None

    @property
    def drawn(self) -> np.ndarray:
        if self._drawn is None:
            even = np.full(self.prompts, 1 / self.prompts)
            rng = np.random.default_rng([self._seed, self.prompts])
            self._drawn = rng.multinomial(self.prompts, even, RESAMPLES).astype(np.float64)
        return self._drawn

    def interval(self, sums: np.ndarray, value: Value, slope: Value) -> tuple[float, float] | str:
        """Between which values of a function of sums over prompts the truth lies, or why nobody can tell.

        ``sums`` are prompts × features. ``value`` and ``slope`` take totals, resamples × features; the
        function does not change when all totals grow alike.
        """
        totals = sums.sum(axis=0)[None]
        moves = sums @ slope(totals)[0]
        spread = float((moves**2).sum())
        size = float(np.abs(sums * slope(totals)[0]).sum())
        if np.sqrt(spread) <= 1e-12 * size and (self.prompts > 1 or size == 0):
            centre = float(value(totals)[0])
            return centre, centre  # every prompt says the same, which one alone cannot
        if reason := _too_few(sums[:, 0]):
            return reason
        if float((moves**2).max()) > LARGEST_SHARE * spread:
            return "one prompt carries most of it"
        error = np.sqrt(spread * self.prompts / (self.prompts - 1))
        return self._around(float(value(totals)[0]), float(error), sums, value, slope)

    def _around(
        self, centre: float, error: float, sums: np.ndarray, value: Value, slope: Value
    ) -> tuple[float, float] | str:
        tails = np.array([(1 - RATE) / 2, (1 + RATE) / 2])
        if self.prompts > MANY_PROMPTS:
            low, high = -1.959964, 1.959964
        else:
            drawn = self.drawn @ sums
            slopes = slope(drawn)
            with np.errstate(all="ignore"):  # what overflows is not finite, and left out below
                products = (sums[:, :, None] * sums[:, None, :]).reshape(len(sums), -1)
                squares = (self.drawn @ products).reshape(len(drawn), sums.shape[1], -1)
                variance = np.einsum("bi,bij,bj->b", slopes, squares, slopes)
                scaled = np.sqrt(np.maximum(variance, 0) * self.prompts / (self.prompts - 1))
                away = (value(drawn) - centre) / scaled
            away = away[np.isfinite(away)]
            if len(away) < 0.95 * RESAMPLES:
                return "too few prompts have any of it"
            low, high = np.quantile(away, tails)
        return centre - float(high) * error, centre - float(low) * error


def _too_few(sizes: np.ndarray) -> str:
    """Whether there are too few prompts for an interval, from how many samples each has."""
    if len(sizes) < FEWEST_PROMPTS:
        return f"{len(sizes)} prompts are too few: {FEWEST_PROMPTS} are needed"
    alike = float(sizes.sum() ** 2 / (sizes**2).sum())
    if alike < FEWEST_PROMPTS - 0.5:
        return (
            f"a few prompts have most of the samples: they count for {alike:.0f}, {FEWEST_PROMPTS} are needed"
        )
    return ""


def _mean(sums: dict[str, np.ndarray], name: str, scale: float, boot: _Bootstrap) -> Estimate:
    """The mean of a feature over all samples."""
    both = np.stack([sums["n"], sums[name]], axis=1)
    mean = float(both[:, 1].sum() / both[:, 0].sum())
    grown = _grown(mean, scale)
    if name == "beyond":
        return _share(both)
    if name in ANY_SIGN or mean <= 0:
        return _ended(grown, boot.interval(both, _ratio, _ratio_slope), lambda end: _grown(end, scale))
    base = 1.0 if name == "abs_ratio" and scale == 0 else 0.0  # what is above 1, on a log scale
    both[:, 1] -= base * both[:, 0]
    if both[:, 1].sum() <= 0:
        return Estimate(grown, grown, grown)
    found = boot.interval(both, lambda t: np.log(_ratio(t)), _log_ratio_slope)
    return _ended(grown, found, lambda end: _grown(float(np.exp(end)) + base, scale))


def _ended(value: float, found: tuple[float, float] | str, back: Callable[[float], float]) -> Estimate:
    """An estimate with the ends of its interval, brought back from the scale it was computed on."""
    if isinstance(found, str):
        return Estimate(value, cannot_tell=found)
    return Estimate(value, back(found[0]), back(found[1]))


def _grown(value: float, scale: float) -> float:
    with np.errstate(over="ignore"):
        return float(value * np.exp(scale)) if scale else value


def _ratio(totals: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(totals[:, 1] / totals[:, 0])


def _ratio_slope(totals: np.ndarray) -> np.ndarray:
    n, s = totals.T
    with np.errstate(all="ignore"):
        return np.stack([-s / n**2, 1 / n], axis=1)


def _log_ratio_slope(totals: np.ndarray) -> np.ndarray:
    n, s = totals.T
    with np.errstate(all="ignore"):
        return np.stack([-1 / n, 1 / s], axis=1)


def _ess(sums: np.ndarray, one: float, boot: _Bootstrap) -> Estimate:
    """The effective share of samples, from n, Σ(w - 1) and Σ(w - 1)²; the interval is that of its odds."""

    def spread(totals: np.ndarray) -> np.ndarray:
        n, first, second = totals.T
        with np.errstate(all="ignore"):
            return np.asarray((n * second - first**2) / (one * n + first) ** 2)

    def slope(totals: np.ndarray) -> np.ndarray:
        n, first, second = totals.T
        with np.errstate(all="ignore"):
            varied, weight = n * second - first**2, one * n + first
            return np.stack(
                [second / varied - 2 * one / weight, -2 * first / varied - 2 / weight, n / varied], axis=1
            )

    totals = sums.sum(axis=0)[None]
    squared = max(float(spread(totals)[0]), 0.0)
    value = 1 / (1 + squared)
    if squared < 1e-24:
        return Estimate(value, value, value)
    found = boot.interval(sums, lambda t: np.log(spread(t)), slope)
    if isinstance(found, str):
        return Estimate(value, cannot_tell=found)
    with np.errstate(over="ignore"):
        low, high = (float(1 / (1 + np.exp(end))) for end in reversed(found))
    return Estimate(value, low, high)


def _share(sums: np.ndarray) -> Estimate:
    """A share of samples: Wilson's interval, with as many samples as the spread over prompts leaves."""
    n, hits = sums.sum(axis=0)
    prompts, share = len(sums), float(hits / n)
    if reason := _too_few(sums[:, 0]):
        return Estimate(share, cannot_tell=reason)
    moves = sums[:, 1] - share * sums[:, 0]
    variance = float((moves**2).sum()) * prompts / (prompts - 1) / n**2
    effective = share * (1 - share) / variance if variance > 0 else float(prompts)
    effective = min(max(effective, 1.0), float(n))
    z = 1.959964 * (1 + 1.2 / prompts)  # Student's t for so many prompts
    middle = (share + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * np.sqrt(share * (1 - share) / effective + z * z / (4 * effective**2))
    return Estimate(share, max(float(middle - half), 0.0), min(float(middle + half), 1.0))
