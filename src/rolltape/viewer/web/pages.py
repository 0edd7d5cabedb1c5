"""The pages, as HTML: the same for the server and for a file that is sent to a colleague.

What only the page of a step or a sample needs is imported by the method that makes it: whoever opens a run
waits for the imports of its first page.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import numpy as np

from rolltape.cached import cached_property
from rolltape.errors import RolltapeError
from rolltape.reader.visible import pieces, visible
from rolltape.reader.wording import brief, moment, number, seconds
from rolltape.tape.summary import amount
from rolltape.viewer.library import Library, missing
from rolltape.viewer.web import charts
from rolltape.viewer.web.charts import Summary

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape
except ImportError as error:
    raise missing(error, "view") from error

if TYPE_CHECKING:
    from rolltape.verify import Entry, Report
    from rolltape.verify.report.report import Link
    from rolltape.viewer.comparisons import Asked
    from rolltape.viewer.side_by_side import SamplePair
    from rolltape.viewer.token_view import Scale, TokenRow
    from rolltape.viewer.trusts import Trusted
    from rolltape.viewer.web.sample_pages import SamplePages

MOST_GROUPS = 1000
"""Groups on one page; searching finds the others."""
LONG_TEXT, PIECE = 20_000, 8_000
"""Characters of a text that is shown in pieces, and of such a piece."""
MOST_LINKS = 2000
"""Steps in the list of a run."""


def markup(text: object, lines: bool = True) -> Markup:
    """A text for a page, whole."""
    parts = [
        Markup('<span class="esc">{}</span>').format(piece) if escaped else escape(piece)
        for piece, escaped in pieces(str(text), "\n\t" if lines else "")
    ]
    return Markup("").join(parts)


def long_markup(text: object) -> Markup:
    """A text for a page, whole. A long one is in pieces, of which a browser lays out those that are seen."""
    text, found = str(text), []
    while len(text) > LONG_TEXT:
        breaks = (text.rfind(sign, PIECE // 2, PIECE) + 1 for sign in "\n ")
        end = next(filter(None, breaks), PIECE)
        found.append(Markup('<span class="piece">{}</span>').format(markup(text[:end])))
        text = text[end:]
    return Markup("").join([*found, markup(text)])


def seen(text: object) -> str:
    """A text for a field of a form."""
    return visible(str(text), "\n\t")


@dataclass(frozen=True, slots=True)
class Page:
    """One page without its frame."""

    title: str
    main: Markup


class Pages:
    """Makes pages. ``prefix`` goes before every address: ``#`` where all pages are in one file."""

    def __init__(self, library: Library, prefix: str = "", *, read_only: bool = False) -> None:
        self.library = library
        self.prefix = prefix
        self._read_only = read_only
        self._compared: tuple[object, Report] | None = None
        self._jinja = Environment(
            loader=PackageLoader("rolltape.viewer"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {
            "vis": markup,
            "long": long_markup,
            "seen": seen,
            "code": coded,
            "brief": brief,
            "num": number,
            "data": as_data,
            "scale_data": scale_data,
            "packed": packed,
            "when": moment,
            "duration": seconds,
            "amount": amount,
        }
        self._jinja.globals |= {"url": self.url, "pair": self.pair, "bar": bar}

    @cached_property
    def samples(self) -> SamplePages:
        """The pages about samples over all steps."""
        from rolltape.viewer.web.sample_pages import SamplePages

        return SamplePages(self, read_only=self._read_only)

    def url(self, *parts: object, **query: object) -> str:
        """The address of a page."""
        path = "/" + "/".join(quote(str(part), safe="") for part in parts)
        asked = {name: value for name, value in query.items() if value not in (None, "", False)}
        return self.prefix + path + (f"?{urlencode(asked)}" if asked else "")

    def pair(self, left: int, right: int, *parts: object) -> str:
        """The address of a page about two runs, the baseline first."""
        return self.url("c", *self.library.ordered(left, right), *parts)

    def parts_to_warm(self) -> Iterator[Callable[[], object]]:
        """What pages need that need not wait for somebody to ask: each of it takes a moment."""
        from rolltape.viewer.run_facts import run_facts

        first = ("frame.html", "header.html", "keys.html", "index.html", "overview.html")
        for name in dict.fromkeys((*first, *self._jinja.list_templates())):
            yield partial(self._jinja.get_template, name)
            if name == first[-1]:
                yield from (partial(run_facts, self.library, at) for at in range(len(self.library.runs)))
        yield lambda: self.samples

    def frame(self, name: str, **values: Any) -> str:
        """A whole document."""
        return str(self._jinja.get_template(name).render(**values))

    def index(self, sizes: list[int] | None = None) -> Page:
        """All runs. ``sizes`` where they are to be in the page; else it asks for them."""
        from rolltape.viewer.run_facts import run_facts, small_curve

        found = [run_facts(self.library, at) for at in range(len(self.library.runs))]
        return self._page("runs", "index.html", runs=found, sizes=sizes, curve=small_curve)

    def overlay(self, chosen: list[int], split: str | None) -> Page:
        """The metrics of any number of runs, each in one plot."""
        library = self.library
        damaged: list[RolltapeError] = []
        chosen, splits = self._listed(chosen, damaged)
        split = split if split in splits else next(iter(splits), "train")
        logged = [(at, library.name(at), self._curves(at, split, damaged)) for at in chosen]
        return self._page(
            f"{len(chosen)} runs", "overlay.html", names=[(at, library.name(at)) for at in chosen],
            split=split, splits=splits, on=",".join(map(str, chosen)),
            charts=[chart.as_json() for chart in charts.overlaid(logged)], axes=self._axes(chosen, split),
            damaged=[f"{error.where}: {error.what}" for error in damaged],
        )  # fmt: skip

    def _curves(self, tape: int, split: str, damaged: list[RolltapeError]) -> charts.Curves:
        found = self.library.logged(tape, split)
        damaged += found.damaged
        return found.curves

    def _listed(self, chosen: list[int], damaged: list[RolltapeError]) -> tuple[list[int], list[str]]:
        """The runs that can be listed, and the splits of them all."""
        found: list[int] = []
        splits: dict[str, None] = {}
        for at in chosen:
            try:
                splits |= dict.fromkeys(self.library.runs[at].splits)
            except RolltapeError as error:
                damaged.append(error)
            else:
                found.append(at)
        return found, list(splits)

    def _axes(self, runs: list[int], split: str) -> dict[int, object]:
        """Where a page asks what the steps of runs can be drawn over: an address by run."""
        found: dict[int, object] = {}
        for at in runs:
            with suppress(RolltapeError):  # it has no such split, or something else in its place
                name = self.library.main_stage(at, split)
                if name is not None:
                    found[at] = self.url("axes", at, split, name)
        return found

    def matrix(self, chosen: list[int]) -> Page:
        """The verdict on each of some runs against each other."""
        names = [(at, self.library.name(at)) for at in chosen]
        return self._page(f"{len(chosen)} runs, compared", "matrix.html", names=names)

    def overview(
        self, tape: int, split: str | None, summaries: list[Summary] | None = None,
        trust: Markup | None = None,
    ) -> Page:  # fmt: skip
        """A run over its steps. ``summaries`` and ``trust``, the strip of verdicts, where they are to be in
        the page; else it asks for them."""
        library, run = self.library, self.library.runs[tape]
        splits = run.splits
        split = split if split in splits else next(iter(splits), "train")
        stages, steps, known = run.stages(split), run.steps(None, split), library.logged(tape, split)
        every = sorted({*steps, *known.steps})
        stage = library.main_stage(tape, split)
        href = "" if stage is None else self.url("t", tape, split, stage) + "/{}"
        first, last = (every[0], every[-1]) if every else (0, 0)
        strips = [charts.strip(name, run.steps(name, split), first, last) for name in stages]
        logged = charts.metric_charts(known.curves, href)
        drawn = None if summaries is None else sample_charts(summaries, href)
        axes = self._axes([tape], split) if summaries is None else {tape: charts.axes(summaries)}
        return self._page(
            library.name(tape), "overview.html", tape=tape, opened=run,
            name=library.name(tape), split=split, splits=splits, stage=stage, steps=steps, first=first,
            last=last, strips=strips, href=href, most=MOST_LINKS,
            charts=[chart.as_json() for chart in logged], axes=axes,
            others=library.others(tape), trust=trust, inline=self.prefix != "",
            summaries=drawn, damaged=[f"{error.where}: {error.what}" for error in known.damaged],
        )  # fmt: skip

    def step(
        self, tape: int, split: str, stage: str, step: int, words: str = "", regex: bool = False
    ) -> Page:
        """The groups of a step."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.stage_view import returned
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, tape, split, stage, step)
        every = groups.find_groups(view) if view.main.are_samples else []
        parts = list(returned(view.main)) if stage != self.library.main_stage(tape, split) else []
        problem = ""
        found = every
        if words:
            try:
                found = groups.search(view, every, words, regex=regex)
            except ValueError as error:
                problem, found = str(error), []
        shown = found[:MOST_GROUPS]
        prompts = groups.prompt_texts(view, [group.best for group in shown])
        rewards = [value for group in every for value in group.rewards if value is not None]
        return self._page(
            f"step {step}", "step.html", tape=tape, name=self.library.name(tape), split=split, stage=stage,
            step=step, rows=list(zip(shown, prompts, strict=True)), total=len(every), found=len(found),
            samples=len(view.main) if view.main.are_samples else None, parts=parts, words=words, regex=regex,
            problem=problem, roles=view.roles,
            low=min(rewards, default=0.0), high=max(rewards, default=0.0),
            stages=self.library.runs[tape].stages(split), others=self.library.others(tape),
            neighbours=self._neighbours(tape, split, stage, step), damaged=view.damaged,
            inline=self.prefix != "", marked=self.samples.marked(view, tape),
        )  # fmt: skip

    def sample(self, tape: int, split: str, stage: str, step: int, sample: int) -> Page:
        """One sample."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.sample_view import read_sample
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, tape, split, stage, step)
        if view.asked is not view and 0 <= sample < len(view.main):  # the same sample, with what was said
            at = view.place(view.asked.stage, sample)
            if at is not None:
                return self.sample(tape, split, view.asked.stage, step, at)
        found = read_sample(view, sample)
        order = groups.find_groups(view, lengths=False)
        mine = next(at for at, group in enumerate(order) if sample in group.samples)
        group = order[mine]
        around = [order[at].best if 0 <= at < len(order) else None for at in (mine - 1, mine + 1)]
        at = group.samples.index(sample)
        beside = [group.samples[i] if 0 <= i < len(group.samples) else None for i in (at - 1, at + 1)]
        note, locked = self.samples.mark(view, tape, sample)
        return self._page(
            f"sample {sample} of step {step}", "sample.html", tape=tape, name=self.library.name(tape),
            split=split, stage=stage, step=step, one=found, group=group, around=around, beside=beside,
            others=self.library.others(tape), note=note, locked=locked, inline=self.prefix != "",
            digest=self.samples.digest_of(tape, split, stage, step, sample) if self.prefix else "",
        )  # fmt: skip

    def compare(self, left: int, right: int, split: str | None, report: Markup | None = None) -> Page:
        """Two runs: what ``rolltape diff`` says of them, and their metrics. ``report`` where it is to be in
        the page; else it asks for it."""
        library = self.library
        runs = library.runs[left], library.runs[right]
        both = [s for s in runs[0].splits if s in runs[1].splits]
        split = split if split in both else next(iter(both), "train")
        names = library.name(left), library.name(right)
        damaged: list[RolltapeError] = []
        ours, theirs = (self._curves(at, split, damaged) for at in (left, right))
        stage = library.main_stage(left, split)
        href = "" if stage is None else self.url("c", left, right, split, stage) + "/{}"
        shown = (left, visible(names[0])), (right, visible(names[1]))
        drawn = charts.both_charts(ours, theirs, shown, href)
        steps = sorted(set(runs[0].steps(None, split)) & set(runs[1].steps(None, split)))
        return self._page(
            f"{names[0]} and {names[1]}", "compare.html", left=left, right=right, names=names, split=split,
            splits=both, stage=stage, charts=[chart.as_json() for chart in drawn], steps=steps, report=report,
            axes={} if self.prefix else self._axes([left, right], split),
            most=MOST_LINKS, damaged=[f"{error.where}: {error.what}" for error in damaged],
        )  # fmt: skip

    def report(self, left: int, right: int, asked: Asked) -> Markup:
        """What a finished comparison says, as a part of a page."""
        from rolltape.verify.comparison import worst_of
        from rolltape.verify.diagnose.same_inputs import program
        from rolltape.verify.measure.verdict import Verdict
        from rolltape.verify.report.html_page import spark

        report = asked.report
        if report is None:
            return self._part("report.html", problem=asked.problem, report=None)
        first = report.first
        stages = [
            (
                stage,
                worst_of([link.worst for link in links]).verdict,
                first is not None and first.stage == stage,
            )
            for stage, links in _by_stage(report.chain).items()
        ]
        differing = [link for link in report.chain if link.worst.verdict is not Verdict.BITWISE]
        alike = dict.fromkeys(
            link.worst.path for link in report.chain if link.worst.verdict is Verdict.BITWISE
        )
        links = [(link, self._shown_at(left, right, report, link.first)) for link in differing]
        return self._part(
            "report.html", problem="", left=left, right=right, inline=self.prefix != "", report=report,
            stages=stages, links=links, alike=list(alike), spark=lambda errors: Markup(spark(errors)),
            program=program(report.comparison.manifests),
        )  # fmt: skip

    def verdict(self, left: int, right: int, asked: Asked) -> Markup:
        """What a finished comparison says, in a word and its place."""
        return self._part("verdict.html", left=left, right=right, report=asked.report, problem=asked.problem)

    def _report_of(self, left: int, right: int, step: int) -> Report:
        """What the comparison of a step has to say. The last is kept: its samples are looked at next."""
        from rolltape.viewer.comparisons import compare_step

        name = left, right, step, *(self.library.runs[at].version() for at in (left, right))
        if self._compared is None or self._compared[0] != name:
            self._compared = name, compare_step(self.library, left, right, step)
        return self._compared[1]

    def _shown_at(self, left: int, right: int, report: Report, entry: Entry | None) -> str:
        """The page that shows where something diverges; empty where there is none."""
        from rolltape.verify.report.sentence import viewer_place

        place = None if entry is None else viewer_place(report.comparison, entry)
        if place is None or entry is None:
            return ""
        token = entry.first.token[0] if entry.first and entry.first.token else None
        asked = {"by": f"{entry.stage} / {entry.name}", "token": token} if len(place) > 3 else {}
        return self.url("c", left, right, *place, **asked)

    def compare_step(self, left: int, right: int, split: str, stage: str, step: int) -> Page:
        """One step of two runs."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, left, split, stage, step)
        report = self._report_of(left, right, step)
        return self._page(
            f"step {step}, compared", "compare_step.html", left=left, right=right, split=split, stage=stage,
            step=step, names=(self.library.name(left), self.library.name(right)), report=report,
            entries=[
                (entry, self._shown_at(left, right, report, entry))
                for entry in report.comparison.entries
                if entry.split == split
            ],
            neighbours=self._neighbours(left, split, stage, step),
            groups=groups.find_groups(view)[:MOST_GROUPS],
        )  # fmt: skip

    def compare_sample(
        self, left: int, right: int, split: str, stage: str, step: int, sample: int, by: str = "",
        token: int | None = None,
    ) -> Page:  # fmt: skip
        """One sample of two runs; ``by`` and ``token`` say what somebody came to see."""
        from rolltape.viewer.side_by_side import compare_sample
        from rolltape.viewer.step_view import StepView

        views = [StepView(self.library, at, split, stage, step) for at in (left, right)]
        pair = compare_sample(views[0], views[1], sample, self._report_of(left, right, step), by)
        uid, index = views[0].main.ids[sample]
        return self._page(
            f"sample {sample} of step {step}, compared", "compare_sample.html", left=left, right=right,
            split=split, stage=stage, step=step, sample=sample, pair=pair, uid=uid, index=index, token=token,
            apart=[] if pair is None else _apart(pair), inline=self.prefix != "",
            names=(self.library.name(left), self.library.name(right)), last=len(views[0].main) - 1,
        )  # fmt: skip

    def trust(self, tape: int, split: str, trusted: Trusted | None = None) -> Page:
        """How far a run may be trusted. ``trusted`` where that is to be in the page; else it asks for it."""
        return self._page(
            f"trust in {self.library.name(tape)}", "trust.html", tape=tape, name=self.library.name(tape),
            split=split, part=None if trusted is None else self.trust_part(tape, split, trusted),
        )  # fmt: skip

    def trust_part(self, tape: int, split: str, trusted: Trusted) -> Markup:
        """All that is measured, as a part of a page."""
        from rolltape.viewer.web.trust_plots import TrustView

        if trusted.found is None:
            return self._part("trust_part.html", view=None, problem=trusted.problem)
        view = TrustView.of(self.library, tape, split, trusted, self._href(tape, split))
        return self._part("trust_part.html", view=view, problem="", tape=tape, split=split)

    def trust_strip(self, tape: int, split: str, trusted: Trusted) -> Markup:
        """The verdicts over the steps, as a part of a page; empty where no log-probs are on the tape."""
        from rolltape.viewer.web.trust_plots import TrustStrip

        if trusted.found is None:
            return Markup("")
        strip = TrustStrip.of(trusted.found, self._href(tape, split))
        return self._part("trust_strip.html", strip=strip, page=self.url("trust", tape, split))

    def _href(self, tape: int, split: str) -> str:
        """Where step ``{}`` is shown; empty for nowhere."""
        stage = self.library.main_stage(tape, split)
        return "" if stage is None else self.url("t", tape, split, stage) + "/{}"

    def error(self, title: str, text: str) -> Page:
        """Something that is not there."""
        return self._page(title, "error.html", problem=title, text=text)

    def _page(self, title: str, template: str, **values: Any) -> Page:
        return Page(title, self._part(template, **values))

    def _part(self, template: str, **values: Any) -> Markup:
        return Markup(self._jinja.get_template(template).render(**values))

    def _neighbours(self, tape: int, split: str, stage: str, step: int) -> tuple[int | None, int | None]:
        steps = self.library.source(tape, split, stage).steps(stage, split)
        before = max((other for other in steps if other < step), default=None)
        after = min((other for other in steps if other > step), default=None)
        return before, after


def sample_charts(summaries: Sequence[Summary], href: str) -> list[dict[str, Any]]:
    """All that is drawn of the samples of a run, as the page's script wants it."""
    made = (charts.summary_charts, charts.spread_charts, charts.time_charts)
    return [chart.as_json() for make in made for chart in make(summaries, href)]


def coded(text: object) -> Markup:
    """A sentence of a report: names in backquotes are set as code."""
    parts = str(text).split("`")
    odd = len(parts) % 2 == 0  # a backquote of its own
    return Markup("").join(
        Markup("<code>{}</code>").format(markup(part, lines=False))
        if at % 2 and not odd
        else markup(part, lines=False)
        for at, part in enumerate(parts)
    )


def _by_stage(chain: list[Link]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in chain:
        found.setdefault(link.stage, []).append(link)
    return found


def _apart(pair: SamplePair) -> list[Scale]:
    """How far the numbers of each token are apart, to colour by: what was asked for first."""
    from rolltape.viewer.token_view import Scale

    found = [one for one in pair.scales if one.first is not None]
    found.sort(key=lambda one: one is not pair.chosen)
    return [Scale(f"difference of {one.name}", "both", one.apart) for one in found]


def scale_data(scale: Scale) -> dict[str, object]:
    """The numbers of tokens for the page's script; of many, the bytes of their floats."""
    from rolltape.viewer.token_view import LONG

    said: dict[str, object] = {"name": scale.name, "kind": scale.kind}
    if len(scale.values) > LONG:
        return said | {"packed": _in_base64(np.asarray(scale.values, "<f4"))}
    return said | {"values": charts.shortened(scale.values)}


def packed(tokens: TokenRow, whole: bool) -> dict[str, object]:
    """Many tokens for the page's script, which makes them as they are scrolled to. What they say comes along
    where the ``whole`` is wanted; else it is asked for."""
    texts = spelled(tokens, 0, len(tokens)) if whole and tokens.spelled else None
    wide = bool(len(tokens)) and (int(tokens.ids.max()) >= 2**31 or int(tokens.ids.min()) < -(2**31))
    return {
        "ids": tokens.ids.tolist() if wide else _in_base64(tokens.ids.astype("<i4")), "texts": texts,
        "trained": _in_base64(tokens.trained.astype(np.uint8)), "count": len(tokens), "named": tokens.spelled,
    }  # fmt: skip


def spelled(tokens: TokenRow, start: int, stop: int) -> list[object]:
    """What some tokens say: a text each, or its pieces and whether each is written out."""
    found = (pieces(text or "", "\n\t") for text in tokens.texts(start, stop))
    return [one[0][0] if len(one) == 1 and not one[0][1] else [list(piece) for piece in one] for one in found]


def _in_base64(data: np.ndarray) -> str:
    return base64.b64encode(data.tobytes()).decode("ascii")


def as_data(value: object) -> Markup:
    """Something for the page's script, inside a script element that does not run."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    for char in "<>&":  # nothing in it can end the element
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return charts.number(value)
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def bar(value: float | None, low: float, high: float, size: int) -> int:
    """How tall the bar of a reward is, of at most ``size``."""
    if value is None:
        return 0
    return size if high <= low else max(1, round(size * (value - low) / (high - low)))
