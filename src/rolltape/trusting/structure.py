"""Whether a mismatch has the shape of a bug in the plumbing, and of which one.

A mismatch that comes from numerics or from training looks like noise around nothing. One that comes from a
wrong index, a wrong mask or a wrong temperature has a structure that explains it. A bug is named only where
its structure explains most of the mismatch and beats the others; where one is named, those that it would
cause as well are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.reader.wording import counted
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.tails import sequence_rms

PATTERNS = ("grows with position", "grows with length", "broken sequences")
"""Findings that describe, and do not by themselves make the numbers worthless."""
FEWEST_TOKENS = 40
"""With fewer, no structure is looked for that takes statistics."""
LAGS = 16
SEEN, OTHERS = 64, 2048
"""Of how many sequences, and of each at how many places, another is looked for."""
CLEAR = 0.3
"""A log-ratio that no numerics make."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One structure that was found."""

    kind: str
    """``shifted by one``, ``padding counted``, …"""
    message: str
    """What was seen, and what to look at."""
    affected: int
    """How many sequences it concerns."""

    @property
    def is_bug(self) -> bool:
        """Whether it makes every number here worthless until it is mended."""
        return self.kind not in PATTERNS


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about how the tokens were sampled; None where it is not."""

    temperature: float | None = None
    top_p: float | None = None
    step: int | None = None


def find_structure(pairs: Pairs, known: Known | None = None) -> list[Finding]:
    """The structures of a mismatch, most telling first; none where it looks like noise."""
    found = list(_numbers(pairs))
    pairs = pairs.where(pairs.finite)
    if (found and found[0].kind == "not log-probs") or not len(pairs.engine):
        return found
    for test in (_shifts, _swapped, _edges, _images, _unrelated):
        if named := list(test(pairs)):
            return found + named
    for explain in (_offset, _mass, _temperature):
        if named := list(explain(pairs, known or Known())):
            return found + named
    aged = list(_versions(pairs))
    return [*found, *_broken(pairs), *(aged or _growth(pairs))]


# -- numbers that are none ----------------------------------------------------------------------------------


def _numbers(pairs: Pairs) -> Iterator[Finding]:
    for side, values in (("engine", pairs.engine), ("trainer", pairs.trainer)):
        wrong = values > 1e-3
        if wrong.any():
            worst = float(values[wrong].max())
            yield Finding(
                "not log-probs",
                f"the {side}'s log-probs are above 0 at {counted(int(wrong.sum()), 'token')}, up to "
                f"{worst:.3g}: they are probabilities, entropies or negated",
                _sequences(pairs, wrong),
            )
    yield from not_numbers(pairs)


def not_numbers(pairs: Pairs) -> Iterator[Finding]:
    """Tokens with a log-prob that is none: they are left out of every figure, and so have to be told."""
    if not pairs.finite.all():
        bad = ~pairs.finite
        yield Finding(
            "not numbers",
            f"{counted(int(bad.sum()), 'counted token')} of {len(bad)} have a log-prob that is nan or inf",
            _sequences(pairs, bad),
        )


# -- the right numbers in wrong places -----------------------------------------------------------------------


def _residual(pairs: Pairs, lag: int, from_place: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Per sequence: how far the trainer's log-probs are from the engine's ``lag`` places on, at most 1 each,
    on average; and over how many places.
    """
    total = len(pairs.engine)
    if abs(lag) >= total:
        return np.full(len(pairs.lengths), np.inf), np.zeros(len(pairs.lengths))
    ours = slice(0, total - lag) if lag >= 0 else slice(-lag, total)
    theirs = slice(lag, total) if lag >= 0 else slice(0, total + lag)
    same = pairs.sequence[ours] == pairs.sequence[theirs]
    if from_place is not None:
        same &= pairs.within[ours] >= from_place[pairs.sequence[ours]]
    off = np.minimum(np.abs(pairs.trainer[ours] - pairs.engine[theirs]), 1.0)[same]
    rows = pairs.sequence[ours][same]
    counts = np.bincount(rows, minlength=len(pairs.lengths)).astype(np.float64)
    sums = np.bincount(rows, off, len(pairs.lengths))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf), counts


def _shifts(pairs: Pairs) -> Iterator[Finding]:
    """Rows whose log-probs fit those of the engine some places on: all of the row, or from a place on."""
    straight, _ = _residual(pairs, 0)
    suspect = straight > 0.02
    if not suspect.any():
        return
    lags = sorted({*range(-LAGS, LAGS + 1)} - {0} | _image_lags(pairs), key=abs)
    thresholds = np.maximum(0.1, 10 * _scale(pairs))
    bad = np.abs(pairs.log_ratio) > thresholds
    first = np.full(len(pairs.lengths), np.iinfo(np.int64).max)
    np.minimum.at(first, pairs.sequence[bad], pairs.within[bad])
    late = suspect & (first >= 3) & (first < pairs.lengths)
    start = np.where(late, first, 0)
    best, lag_of = np.full(len(pairs.lengths), np.inf), np.zeros(len(pairs.lengths), np.int64)
    own, _ = _residual(pairs, 0, start)
    for lag in lags:
        residual, places = _residual(pairs, lag, start)
        long = places >= np.maximum(4, 0.5 * (pairs.lengths - start))
        fits = suspect & long & (residual < best)
        best[fits], lag_of[fits] = residual[fits], lag
    explained = suspect & (best < 0.3 * own) & (lag_of != 0)
    if not explained.any():
        return
    lag = int(np.bincount(lag_of[explained] + 4096).argmax()) - 4096
    rows = explained & (lag_of == lag)
    residual, places = _residual(pairs, lag, start)
    together = rows.sum() >= 3 and (rows.sum() >= 0.5 * suspect.sum() or places[rows].sum() >= 200)
    certain = rows & (places >= 6) & (residual < 0.1 * own) & (own > 0.1)
    if not together and not certain.any():
        return
    rows = rows if together else certain
    yield _named_shift(pairs, rows, lag, int(np.median(start[rows])))


def _image_lags(pairs: Pairs) -> set[int]:
    """The shifts that tokens of images would make, where they are no longer than a row."""
    if pairs.images is None:
        return set()
    longest = int(pairs.lengths.max(initial=0))
    counts = [int(one) for one in np.unique(pairs.images)[:16] if one]
    return {sign * (one - less) for one in counts for less in (0, 1) for sign in (-1, 1)
            if 0 < one - less < longest}  # fmt: skip


def _named_shift(pairs: Pairs, rows: np.ndarray, lag: int, place: int) -> Finding:
    count, of = int(rows.sum()), len(rows)
    where = f"in {count} of {counted(of, 'sequence')}" + (f", from place {place} on" if place else "")
    way = "behind" if lag < 0 else "ahead of"
    much = f"the trainer's log-probs are {counted(abs(lag), 'place')} {way} the engine's"
    if pairs.images is not None:
        seen = pairs.images > 0
        only = bool(seen.any()) and rows[seen].mean() > 0.3 and not rows[~seen].any()
        if only and (abs(lag) > 1 or not seen.all()):
            return Finding("vision tokens misaligned", f"{much} {where}: those with images", count)
    kind = "shifted by one" if abs(lag) == 1 else "shifted"
    return Finding(kind, f"{much} {where}: look at how labels, masks and log-probs are sliced", count)


def _swapped(pairs: Pairs) -> Iterator[Finding]:
    """Rows that have the log-probs of other rows: as far as both go, from the front or from the end."""
    straight, _ = _residual(pairs, 0)
    suspect = np.flatnonzero((straight > 0.02) & (pairs.lengths >= 4))[:64]
    if not len(suspect):
        return
    ends = [(_cut(pairs, pairs.engine, end), _cut(pairs, pairs.trainer, end)) for end in (False, True)]
    found = 0
    for at in suspect.tolist():
        found += any(_is_of_another(engine, trainer[at], at, straight[at]) for engine, trainer in ends)
    if found >= 2 and found >= 0.3 * len(suspect):
        yield Finding(
            "rows swapped",
            f"{found} of {len(suspect)} sequences that are off have the log-probs of another sequence: "
            "they were sorted, packed or gathered, and not put back",
            found,
        )


def _cut(pairs: Pairs, values: np.ndarray, end: bool) -> np.ndarray:
    """The first places of each sequence in a row, or the last ones backwards; nan where there are none."""
    place = np.arange(min(int(pairs.lengths.max(initial=0)), SEEN))
    at = (pairs.starts + pairs.lengths - 1)[:, None] - place if end else pairs.starts[:, None] + place
    there = place < pairs.lengths[:, None]
    return np.asarray(np.where(there, values[np.where(there, at, 0)], np.nan))


def _is_of_another(engine: np.ndarray, row: np.ndarray, own: int, straight: float) -> bool:
    """Whether a row of the trainer's is what the engine has in another, as far as both go."""
    off = np.minimum(np.abs(engine[:OTHERS] - row), 1.0)
    both = ~np.isnan(off)
    long = both.sum(axis=1) >= max(4, 0.5 * (~np.isnan(row)).sum())
    long[own : own + 1] = False
    means = np.nansum(off, axis=1)[long] / both.sum(axis=1)[long]
    return float(np.nanstd(row)) > 0.1 and float(means.min(initial=np.inf)) < 0.1 * straight


# -- places that should not count ----------------------------------------------------------------------------


def _edges(pairs: Pairs) -> Iterator[Finding]:
    """The mismatch sits at the beginning or the end of rows: a mask is too wide, or the last token lost."""
    off, limit = np.abs(pairs.log_ratio), max(CLEAR, 10 * _scale(pairs))
    bad = off > limit
    fill = _filled(pairs) & (off > 1e-3)
    bad |= fill
    if named := list(_silent_padding(pairs)):
        yield from named
        return
    if bad.sum() < 2:
        return
    head, tail = _run(pairs, bad, reverse=False), _run(pairs, bad, reverse=True)
    whole = tail == pairs.lengths
    head, tail = np.where(whole, 0, head), np.where(whole, 0, tail)
    for at, kind in ((tail, "tail"), (head, "head")):
        count = int((at > 0).sum())
        inside = int(at.sum())
        if count >= 2 and inside >= 0.8 * bad.sum():
            yield from _named_edge(pairs, at, kind, fill, count)
            return


def _named_edge(pairs: Pairs, runs: np.ndarray, kind: str, fill: np.ndarray, count: int) -> Iterator[Finding]:
    single = int((runs == 1).sum()) >= 0.9 * count
    eligible = pairs.lengths > 1
    at_edge = pairs.within >= (pairs.lengths - runs)[pairs.sequence]
    if kind == "head":
        at_edge = pairs.within < runs[pairs.sequence]
    edge = pairs.log_ratio[at_edge]
    filled = fill[at_edge].mean() > 0.9
    if kind == "head":
        if _same_ids(pairs, at_edge) and len(np.unique(runs)) > 1:
            yield _padding(runs, count, "first")
        elif count >= 0.8 * eligible.sum():
            much = f"the first {_many(runs)} of {count} of {counted(len(runs), 'sequence')} are off"
            yield Finding("prompt counted", f"{much}, the rest agrees: the mask begins too early", count)
        return
    ended = eligible if pairs.finished is None else eligible & pairs.finished
    if single:
        most = count >= 0.8 * max(int(ended.sum()), 1)
        if most and (filled or float(np.median(edge)) < -2):
            yield Finding(
                "eos dropped",
                f"the last token of {count} of {counted(len(runs), 'sequence')} is off (log-ratio "
                f"{np.median(edge):.3g}), all before it agree: the end-of-sequence token is missing on one "
                "side",
                count,
            )
        return
    if filled or _same_ids(pairs, at_edge):
        yield _padding(runs, count, "last")


def _padding(runs: np.ndarray, count: int, where: str) -> Finding:
    return Finding(
        "padding counted",
        f"the {where} {_many(runs)} of {count} of {counted(len(runs), 'sequence')} are off, and are padding "
        "or have a filler on one side: the mask is too wide",
        count,
    )


def _silent_padding(pairs: Pairs) -> Iterator[Finding]:
    """Padding that both sides fill alike: it dilutes every mean."""
    if pairs.ids is None or not len(pairs.ids):
        return
    zero = (pairs.engine == pairs.trainer) & _filled(pairs)
    for where, at in (("last", pairs.starts + pairs.lengths - 1), ("first", pairs.starts)):
        edge = pairs.ids[np.clip(at, 0, len(pairs.ids) - 1)]
        runs = _run(pairs, zero & (pairs.ids == edge[pairs.sequence]), reverse=where == "last")
        long = runs >= 2
        if long.sum() >= 3 and len(np.unique(edge[long])) == 1 and long.sum() >= 0.3 * len(runs):
            yield Finding(
                "padding counted",
                f"the {where} {_many(runs[long])} of {int(long.sum())} of {counted(len(runs), 'sequence')} "
                "are one id over and over, filled alike on both sides: they make every mean look better",
                int(long.sum()),
            )
            return


def _filled(pairs: Pairs) -> np.ndarray:
    """Per token: whether one side has a filler, exactly 0 or a value that no distribution gives so often."""
    found = (pairs.engine == 0) | (pairs.trainer == 0)
    for values in (pairs.engine, pairs.trainer):
        if len(values) < FEWEST_TOKENS:
            continue
        distinct, counts = np.unique(values, return_counts=True)
        common = distinct[counts.argmax()]
        if counts.max() >= max(8, 0.02 * len(values)) and float(common).is_integer():
            found |= values == common
    return np.asarray(found)


def _run(pairs: Pairs, on: np.ndarray, *, reverse: bool) -> np.ndarray:
    """Per sequence: how many of its first (or last) tokens are on without a gap."""
    place = (pairs.lengths[pairs.sequence] - 1 - pairs.within) if reverse else pairs.within
    off = ~on
    first = pairs.lengths.copy()
    np.minimum.at(first, pairs.sequence[off], place[off])
    return np.asarray(first)


def _same_ids(pairs: Pairs, at: np.ndarray) -> bool:
    return pairs.ids is not None and len(np.unique(pairs.ids[at])) == 1 and int(at.sum()) >= 4


def _many(runs: np.ndarray) -> str:
    some = runs[runs > 0]
    low, high = int(some.min()), int(some.max())
    return counted(low, "token") if low == high else f"{low} to {high} tokens"


# -- other tokens --------------------------------------------------------------------------------------------


def _images(pairs: Pairs) -> Iterator[Finding]:
    if pairs.images is None:
        return
    seen, rms = (pairs.images > 0) & (pairs.lengths > 0), sequence_rms(pairs)
    plain = (pairs.images == 0) & (pairs.lengths > 0)
    if seen.sum() < 3 or plain.sum() < 3:
        return
    bad, good = float(np.median(rms[seen])), float(np.median(rms[plain]))
    apart = float(rms[plain].max()) < float(np.quantile(rms[seen], 0.1))
    if bad > CLEAR and bad > 10 * good and apart:
        yield Finding(
            "vision tokens misaligned",
            f"the {counted(int(seen.sum()), 'sequence')} with images are off by {bad:.3g} a token, those "
            f"without by {good:.3g}: the places of the image tokens differ",
            int(seen.sum()),
        )


def _unrelated(pairs: Pairs) -> Iterator[Finding]:
    """Log-probs of other tokens: far lower than the engine's, and not related to them."""
    if len(pairs.engine) < FEWEST_TOKENS:
        return
    away = float(np.median(pairs.log_ratio))
    ours, theirs = pairs.engine - pairs.engine.mean(), pairs.trainer - pairs.trainer.mean()
    norm = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    related = float((ours * theirs).sum()) / norm if norm > 0 else 1.0
    if away < -3 and related < 0.3 and float(np.std(theirs)) > 0.1:
        yield Finding(
            "gather misaligned",
            f"the trainer gives the tokens {-away:.3g} nats less than the engine, and its numbers have "
            f"nothing to do with the engine's (correlation {related:.2f}): they are those of other tokens",
            len(pairs.lengths),
        )


# -- another distribution of the same logits -----------------------------------------------------------------


def _offset(pairs: Pairs, known: Known) -> Iterator[Finding]:
    """The same difference everywhere, or one log-prob a multiple of the other."""
    d = pairs.log_ratio
    if len(d) < 8:
        return
    middle = float(np.median(d))
    spread = float(np.quantile(np.abs(d - middle), 0.9))
    if abs(middle) > 1e-4 and spread < 0.05 * abs(middle):
        yield Finding(
            "constant offset",
            f"the trainer's log-probs are the engine's {middle:+.4g} at every token: something is added, or "
            "a normalisation left out",
            len(pairs.lengths),
        )
        return
    square = float((pairs.engine**2).sum())
    times = float((pairs.engine * pairs.trainer).sum()) / square if square > 0 else 1.0
    left = pairs.trainer - times * pairs.engine
    if abs(times - 1) > 0.01 and float((left**2).sum()) < 1e-3 * float((d**2).sum()):
        base = "another base of the logarithm" if _is_base(times) else "a division after the softmax"
        yield Finding(
            "scaled",
            f"the trainer's log-probs are {times:.4g} times the engine's: {base}",
            len(pairs.lengths),
        )


def _is_base(times: float) -> bool:
    return any(
        abs(times / base - 1) < 0.01 for base in (np.log(2), 1 / np.log(2), np.log(10), 1 / np.log(10))
    )


def _mass(pairs: Pairs, known: Known) -> Iterator[Finding]:
    """The ratios are those of a distribution to a part of it: on one side of 1, and never average 1."""
    d = pairs.log_ratio
    below, above = float(-np.minimum(d, 0).mean()), float(np.maximum(d, 0).mean())
    clear = int((np.abs(d) > 5e-3).sum())
    if len(d) < FEWEST_TOKENS or clear < 20 or min(below, above) > 0.1 * max(below, above):
        return
    excess = np.expm1(np.minimum(d, 10))
    error = float(np.std(pairs.sums(excess)) * np.sqrt(len(pairs.lengths)) / len(d))
    if abs(float(excess.mean())) < 5 * max(error, 1e-6):
        return
    kept = known.top_p if known.top_p is not None and 0 < known.top_p < 1 else 0.2
    if float(np.quantile(np.abs(d), 0.995)) > 0.02 - np.log(kept) + 3 * min(below, above):
        return
    side, other = ("engine", "trainer") if below > above else ("trainer", "engine")
    yield Finding(
        "surviving mass",
        f"the {side}'s log-probs are never below the {other}'s, by {np.mean(np.abs(d)):.3g} on average: the "
        f"{side} renormalises over what top-p or top-k kept, the {other} does not",
        len(pairs.lengths),
    )


def _temperature(pairs: Pairs, known: Known) -> Iterator[Finding]:
    """One side's logits were divided by a temperature: log-ratios go with the log-prob itself."""
    d, q = pairs.log_ratio, pairs.engine
    if len(d) < FEWEST_TOKENS or float(np.std(q)) < 1e-3:
        return
    slope, explained = _fit(pairs, slice(None))
    said = known.temperature
    expected = said is not None and said > 0 and abs(said - 1) > 0.01 and any(
        abs(slope - want) < 0.35 * abs(want) for want in (1 / said - 1, said - 1)
    )  # fmt: skip
    if abs(slope) < 0.02 or explained < (0.2 if expected else 0.35):
        return
    half = pairs.sequence % 2 == 0
    halves = [_fit(pairs, on) for on in (half, ~half)]
    steady = all(abs(one - slope) < 0.3 * abs(slope) and r > explained / 2 for one, r in halves)
    if steady:
        yield Finding(
            "temperature",
            f"log-ratios follow the log-prob itself (slope {slope:+.2f}, {explained:.0%} of their variance): "
            f"the trainer's logits are divided by about {1 / (1 + slope):.2g} times the engine's temperature",
            len(pairs.lengths),
        )


def _fit(pairs: Pairs, on: Any) -> tuple[float, float]:
    """The slope of log-ratios over log-probs (less the entropy, where it is known), and what it explains."""
    d, q = pairs.log_ratio[on], pairs.engine[on]
    columns = [q, np.ones_like(q)] if pairs.entropy is None else [q, pairs.entropy[on], np.ones_like(q)]
    base = np.stack(columns, axis=1)
    fit, *_ = np.linalg.lstsq(base, d, rcond=None)
    left, all_of = d - base @ fit, d - d.mean()
    total = float((all_of**2).sum())
    return float(fit[0]), 1 - float((left**2).sum()) / total if total > 0 else 0.0


# -- who sampled it, and how it goes on ----------------------------------------------------------------------


def _versions(pairs: Pairs) -> Iterator[Finding]:
    """Tokens of older weights fit the trainer better than those of the newest: it holds other weights."""
    if pairs.versions is None:
        return
    versions = np.unique(pairs.versions)
    if not 2 <= len(versions) <= 64:
        return
    parts = [pairs.log_ratio[pairs.versions == one] for one in versions]
    if min(map(len, parts)) < 16:
        return
    rms = [float(np.sqrt(np.mean(part**2))) for part in parts]
    best = int(np.argmin(rms))
    if best < len(versions) - 1 and rms[-1] > 0.02 and rms[-1] > 5 * rms[best]:
        off = pairs.versions != versions[best]
        yield Finding(
            "wrong weights version",
            f"tokens sampled by version {versions[best]} fit the trainer best ({rms[best]:.3g} a token), "
            f"those of the newest, {versions[-1]}, do not ({rms[-1]:.3g}): the trainer holds older weights",
            _sequences(pairs, off),
        )


def _broken(pairs: Pairs) -> Iterator[Finding]:
    broken = broken_sequences(pairs)
    if broken.any():
        rms = sequence_rms(pairs)
        usual = float(np.median(rms[pairs.lengths > 0]))
        worst = float(rms.max()) / usual if usual > 0 else float("inf")
        yield Finding(
            "broken sequences",
            f"{int(broken.sum())} of {counted(len(broken), 'sequence')} are off by up to {worst:.3g} times "
            "the usual: means over tokens hide it",
            int(broken.sum()),
        )


def broken_sequences(pairs: Pairs, floor: float | None = None) -> np.ndarray:
    """Per sequence: whether it is off ten times more than the median one, and than the floor's where there
    is one, and clearly; a minority always.
    """
    rms = sequence_rms(pairs)
    some = pairs.lengths > 0
    if some.sum() < 8:
        return np.zeros(len(rms), bool)
    usual = max(float(np.median(rms[some])), floor or 0.0)
    broken = (rms > 10 * usual) & (rms > 0.1)
    return broken if broken.mean() <= 0.3 else np.zeros(len(rms), bool)


def _growth(pairs: Pairs) -> Iterator[Finding]:
    """Log-ratios that grow along a response, or with its length, beyond what its log-probs explain."""
    if len(pairs.engine) < 400 or len(pairs.lengths) < 16:
        return
    usual = _by_log_prob(pairs)
    mine = pairs.sums(usual) / np.maximum(pairs.lengths, 1)
    places = pairs.within if pairs.places is None else pairs.places
    half = pairs.sequence % 2 == 0
    along = usual / np.maximum(mine[pairs.sequence], 1e-300)  # of its own sequence: only the shape counts
    grown = min(_grown(along[on], places[on]) for on in (half, ~half))
    if grown >= 3:
        yield Finding(
            "grows with position",
            f"log-ratios at the end of responses are {grown:.3g} times those at the beginning (their "
            "squares): rounding that adds up, a cache of low precision, or positions that drift apart",
            len(pairs.lengths),
        )
        return
    half = np.arange(len(pairs.lengths)) % 2 == 0
    grown = min(_grown(mine[on], pairs.lengths[on]) for on in (half, ~half))
    if grown >= 3:
        yield Finding(
            "grows with length",
            f"log-ratios of the longest sequences are {grown:.3g} times those of the shortest (their "
            "squares): look at how long rows are packed, split or padded",
            len(pairs.lengths),
        )


def _by_log_prob(pairs: Pairs) -> np.ndarray:
    """Squared log-ratios over what is usual for tokens of such a log-prob: unlikely tokens vary more."""
    squares = pairs.log_ratio**2
    squares = np.minimum(squares, np.quantile(squares, 0.999))
    edges = np.unique(np.quantile(pairs.engine, np.linspace(0, 1, 11)[1:-1]))
    which = np.searchsorted(edges, pairs.engine)
    usual = np.bincount(which, squares) / np.maximum(np.bincount(which), 1)
    return np.asarray(squares / np.maximum(usual[which], 1e-300))


def _grown(values: np.ndarray, along: np.ndarray, bins: int = 6) -> float:
    """The median in the last sixth over that in the first, where it rises steadily; else 1."""
    edges = np.unique(np.quantile(along, np.linspace(0, 1, bins + 1)[1:-1]))
    if len(edges) < bins - 1:
        return 1.0
    which = np.searchsorted(edges, along, side="left")
    if np.bincount(which, minlength=bins).min() < 8:
        return 1.0
    middle = np.array([np.median(values[which == at]) for at in range(bins)])
    rises = int((np.diff(middle) > 0).sum())
    return float(middle[-1] / middle[0]) if rises >= bins - 2 and middle[0] > 0 else 1.0


def _scale(pairs: Pairs) -> float:
    """The usual size of a log-ratio, whatever sticks out."""
    return 1.4826 * float(np.median(np.abs(pairs.log_ratio))) if len(pairs.engine) else 0.0


def _sequences(pairs: Pairs, tokens: np.ndarray) -> int:
    return len(np.unique(pairs.sequence[tokens]))
