"""What the pages about trust draw: the strip of verdicts, bars by size, place and length, coloured tokens.

All of it is SVG with attributes and classes: the policy of the pages allows no style of their own. Pure, but
for the texts of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.reader.tokenizer import token_texts
from rolltape.trusting.figures_text import facts, figure_rows, ranges
from rolltape.trusting.run_trust import StepTrust, Trust
from rolltape.trusting.shape import Bar, Shape, size_edges
from rolltape.trusting.token_rows import TokenRow
from rolltape.trusting.use_verdict import Verdict
from rolltape.viewer.library import Library
from rolltape.viewer.trusts import Trusted

WIDTH, HEIGHT = 340, 120
"""Of a plot, in its own units; it is as wide as there is room."""
MOST_TOKENS = 2000
"""Of a sequence that are shown, around the worst."""
MOST_ROWS = 25


@dataclass(frozen=True, slots=True)
class TrustStrip:
    """The verdicts over the steps."""

    verdict: str
    name: str
    """Of its colour."""
    first: int
    last: int
    cells: list[tuple[int, int, str, str]]
    """Runs of steps that are alike: the first, how many places, the colour, what is said of them."""
    ranges: str
    href: str

    @classmethod
    def of(cls, found: Trust, href: str) -> TrustStrip:
        """From what was measured."""
        return cls(
            str(found.verdict), colour(found.verdict), found.steps[0].step, found.steps[-1].step,
            _cells(found.steps), ranges(found), href,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """One bar of a plot."""

    x: float
    y: float
    width: float
    height: float
    said: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Bars with what they say, and the texts below them."""

    title: str
    note: str
    bars: list[Drawn]
    marks: list[tuple[float, str]]
    """Where a text stands below the bars."""
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    """The same as a table."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token of a bad sequence."""

    text: str
    colour: str
    said: str


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A bad sequence, token by token."""

    step: int
    name: str
    href: str
    cut: int
    """Tokens that are left out."""
    tokens: list[ShownToken]
    rows: Sequence[tuple[str, ...]]
    """The worst tokens as a table: place, token, engine, trainer, log-ratio."""


@dataclass(frozen=True, slots=True)
class TrustView:
    """All that a page about trust shows."""

    found: Trust
    strip: TrustStrip
    figures: list[tuple[str, str, str]]
    facts: list[str]
    plots: list[Plot]
    worst: list[ShownRow]

    @classmethod
    def of(cls, library: Library, tape: int, split: str, trusted: Trusted, href: str) -> TrustView:
        """From what was measured."""
        found = trusted.found
        assert found is not None
        plots = [] if found.shape is None else drawn(found.shape)
        worst = [] if found.verdict is Verdict.EXACT else [_row(library, step, row, href) for step, row in
                                                           trusted.worst]  # fmt: skip
        return cls(found, TrustStrip.of(found, href), figure_rows(found), facts(found), plots, worst)


def colour(verdict: Verdict) -> str:
    """The class of a verdict's colour."""
    return str(verdict).replace(" ", "-")


def _cells(steps: Sequence[StepTrust]) -> list[tuple[int, int, str, str]]:
    """Neighbouring steps with the same verdict as one."""
    found: list[tuple[int, int, str, str]] = []
    for one in steps:
        name = colour(one.verdict)
        if found and found[-1][2] == name and sum(found[-1][:2]) == one.step:
            first, count, _, _ = found.pop()
            found.append((first, count + 1, name, f"steps {first} to {one.step}: {one.verdict}"))
        else:
            found.append((one.step, 1, name, f"step {one.step}: {one.verdict}, {one.why}"))
    return found


def drawn(shape: Shape) -> list[Plot]:
    """The plots of a mismatch."""
    return [
        _sizes(shape.sizes),
        _by(shape.places, "by place in the response", "tokens", "place"),
        _by(shape.lengths, "by length of the sequence", "sequences", "tokens"),
    ]


def _sizes(counts: Sequence[int]) -> Plot:
    """How many tokens have a log-ratio of which size. Heights are logarithms, so that one token is seen."""
    edges = size_edges()
    some = [at for at, count in enumerate(counts) if count]
    reach = max((abs(at - len(counts) // 2) for at in some), default=1)
    low = max(len(counts) // 2 - max(reach, 3), 0)
    shown = range(low, len(counts) - low)
    tall = math.log1p(max(counts, default=1))
    wide = WIDTH / len(shown)
    bars, rows, marks = [], [], []
    for at in shown:
        x, count = (at - low) * wide, counts[at]
        high = HEIGHT * math.log1p(count) / tall if count else 0.0
        left, right = edges[at]
        outside = "beyond" if max(abs(left), abs(right)) > math.log(2) else ""
        said = "nearly 0" if left < 0 < right else f"{left:.2g} to {right:.2g}"
        bars.append(Drawn(x, HEIGHT - high, max(wide - 1, 0.5), high, f"{said}: {count:,} tokens", outside))
        if count:
            rows.append((said, f"{count:,}"))
        if (at - low) % max(len(shown) // 4, 1) == 0 or left < 0 < right:
            marks.append((x + wide / 2, "0" if left < 0 < right else f"{left if left < 0 else right:.0e}"))
    return Plot(
        "log-ratios of tokens", "trainer − engine; heights are logarithms of counts", bars, _apart(marks),
        ("log-ratio", "tokens"), rows,
    )  # fmt: skip


def _by(bars: Sequence[Bar], title: str, what: str, of: str) -> Plot:
    top = max((bar.rms for bar in bars), default=0.0) or 1.0
    wide = WIDTH / max(len(bars), 1)
    found = [
        Drawn(at * wide, HEIGHT * (1 - bar.rms / top), max(wide - 1, 0.5), HEIGHT * bar.rms / top,
              f"{of} {_span(bar)}: {bar.rms:.3g} a token, mean {bar.mean:.3g}, {bar.count:,} {what}")
        for at, bar in enumerate(bars)
    ]  # fmt: skip
    rows = [(_span(bar), f"{bar.rms:.3g}", f"{bar.mean:.3g}", f"{bar.count:,}") for bar in bars]
    marks = [((at + 0.5) * wide, str(bar.first)) for at, bar in enumerate(bars)]
    return Plot(f"log-ratio a token, {title}", f"root of the mean square; the tallest is {top:.3g}", found,
                _apart(marks), (of, "a token", "mean", what), rows)  # fmt: skip


def _span(bar: Bar) -> str:
    return str(bar.first) if bar.first == bar.last else f"{bar.first} to {bar.last}"


def _apart(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Texts that do not run into each other."""
    found: list[tuple[float, str]] = []
    for x, text in marks:
        x = min(max(x, 3.5 * len(text)), WIDTH - 3.5 * len(text))
        if not found or x - found[-1][0] > 4 * (len(text) + len(found[-1][1])):
            found.append((x, text))
    return found


def _row(library: Library, step: int, row: TokenRow, href: str) -> ShownRow:
    ratios = row.log_ratio
    order = sorted(range(len(ratios)), key=lambda at: -_size(ratios[at]))
    worst = order[0] if order else 0
    start = max(0, min(worst - MOST_TOKENS // 2, len(ratios) - MOST_TOKENS))
    part = range(start, min(start + MOST_TOKENS, len(ratios)))
    end = max((abs(one) for one in ratios if math.isfinite(one)), default=0.0) or 1.0
    ids = row.ids
    texts: list[str]
    if ids is None:
        texts = [f"[{place}]" for place in row.places]
    elif library.decode is None:
        texts = [str(one) for one in ids]
    else:
        texts = list(token_texts(library.decode, ids))
    said = [f"place {row.places[at]}: engine {row.engine[at]:.6g}, trainer {row.trainer[at]:.6g}, log-ratio "
            f"{ratios[at]:.3g}" for at in part]  # fmt: skip
    tokens = [ShownToken(texts[at], _shade(ratios[at], end), words)
              for at, words in zip(part, said, strict=True)]  # fmt: skip
    rows = [(str(row.places[at]), texts[at], f"{row.engine[at]:.6g}", f"{row.trainer[at]:.6g}",
             f"{ratios[at]:.3g}") for at in order[:MOST_ROWS]]  # fmt: skip
    return ShownRow(step, row.name, href.replace("{}", str(step)), len(ratios) - len(part), tokens, rows)


def _size(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else abs(ratio)


def _shade(ratio: float, end: float) -> str:
    """How a token is coloured: warm where the trainer gives it less, cold where more."""
    if math.isnan(ratio):
        return "nan"
    step = min(8, math.ceil(8 * abs(ratio) / end)) if math.isfinite(ratio) else 8
    return "" if step == 0 else f"{'h' if ratio < 0 else 'l'}{step}"
