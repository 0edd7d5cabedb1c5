"""Pages about samples over all steps: the search, prompts through training, groups side by side, notes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rolltape.errors import StepMissingError
from rolltape.index.index_rows import RecordedSamples
from rolltape.index.pass_rates import PASSED
from rolltape.index.prompt_history import TRENDS, PromptRecord, prompt_records, prompt_visits
from rolltape.index.prompt_key import prompt_digest, uid_digest
from rolltape.key import check_name
from rolltape.reader.visible import visible
from rolltape.reader.wording import brief
from rolltape.sample_notes import Marked, Note, Notes, all_tags
from rolltape.viewer import prompt_groups as groups
from rolltape.viewer.comparisons import Asked
from rolltape.viewer.finding_samples import FindingSamples, finding_names
from rolltape.viewer.sample_search import PAGE, SORTS, Hit, Question, SampleSearch, places_of
from rolltape.viewer.step_view import StepView
from rolltape.viewer.text_diff import diff_texts
from rolltape.viewer.token_view import token_rows
from rolltape.viewer.web.charts import Chart, Line, number

if TYPE_CHECKING:
    from rolltape.viewer.web.pages import Page, Pages

MOST_TABLES = 3
"""Stages whose samples stay in memory."""
MOST_VISITS = 200
"""Steps of a prompt that are listed of each run."""
CHUNK = 1000
"""Tokens that are spelled at once, as the page's script asks for them."""
PEEK = 240
"""Characters of a text that are shown in a list."""
SLICE = 0.4
"""Seconds that one request works."""
PROMPT_SORTS: Mapping[str, Callable[[PromptRecord], Any]] = {
    "order": lambda one: (one.step, one.sample),
    "samples": lambda one: one.samples,
    "steps": lambda one: one.steps,
    "pass": lambda one: one.pass_rate,
    "first": lambda one: one.first,
    "last": lambda one: one.last,
    "change": lambda one: one.change,
    "best": lambda one: one.best,
    "length": lambda one: one.length,
}
"""What prompts can be sorted by."""


class SamplePages:
    """Makes these pages, of the runs that ``pages`` shows."""

    def __init__(self, pages: Pages, *, read_only: bool = False) -> None:
        self._pages = pages
        self._library = pages.library
        self._read_only = read_only
        self._searches: OrderedDict[tuple[int, str, str], SampleSearch] = OrderedDict()
        self._notes: dict[str, Notes] = {}
        self._asked: tuple[object, list[str]] | None = None
        """A recording, and what stands for the prompt of each of its samples."""
        self._findings: dict[tuple[object, ...], FindingSamples] = {}
        self._fared: dict[tuple[int, str, str], tuple[Any, float, list[PromptRecord]]] = {}

    # -- search ----------------------------------------------------------------------------------------

    def search(self, tape: int, query: Mapping[str, str]) -> Page:
        """The page of the search; what it finds, it asks for."""
        split, stage = self._which(tape, query)
        marked = self.marks(tape, split, stage)
        self._search(tape, split, stage).begin()
        return self._pages._page(
            "samples", "search.html", tape=tape, name=self._library.name(tape), split=split, stage=stage,
            splits=self._library.runs[tape].splits, stages=self._library.runs[tape].stages(split),
            asked=_question(query), tag=query.get("tag", ""), tags=all_tags(marked),
            against=query.get("against", ""), finding=query.get("finding", ""),
            others=self._library.others(tape),
            address=self._pages.url("found", tape, **_kept(query)),
        )  # fmt: skip

    def found(
        self,
        tape: int,
        query: Mapping[str, str],
        compared: Callable[[int, int], Asked],
        seconds: float = SLICE,
    ) -> dict[str, Any]:
        """What the search has found by now, as a part of its page."""
        split, stage = self._which(tape, query)
        asked, notes = _question(query), self.marks(tape, split, stage)
        among: dict[tuple[int, int], str] | None = None
        waiting = ""
        findings: list[tuple[str, str]] = []
        if query.get("tag"):
            chosen = [place for place, note in notes.items() if query["tag"] in (*note.tags, "*")]
            among = {
                place: brief(notes[chosen[at]].text, PEEK)
                for place, at in places_of(
                    [(one.step, one.uid, one.index) for one in chosen], self._library, tape, split, stage
                ).items()
            }
        other = query.get("against", "")
        if (
            other.isdecimal()
            and len(other) < 9
            and int(other) < len(self._library.runs)
            and int(other) != tape
        ):
            waiting, findings, carried = self._carried(tape, int(other), split, stage, query, compared)
            if carried is not None:
                both = carried if among is None else {at: why for at, why in carried.items() if at in among}
                among = both
        found = self._search(tape, split, stage).find(asked, among, seconds)
        marks = places_of(
            [(one.step, one.uid, one.index) for one in notes if one.step in {hit.step for hit in found.hits}],
            self._library, tape, split, stage,
        ) if notes else {}  # fmt: skip
        there = [one for one in notes if one.step in {hit.step for hit in found.hits}]
        part = self._pages._part(
            "found.html", tape=tape, split=split, stage=stage, found=found, asked=asked, page_size=PAGE,
            noted={place: notes[there[at]] for place, at in marks.items()}, findings=findings,
            chosen=query.get("finding", ""), sorts=SORTS,
            link=lambda **new: self._pages.url("s", tape, **{**_kept(query), **new}),
            against=other,
            side=lambda hit: self._beside(tape, other, split, stage, hit, query) if findings else "",
        )  # fmt: skip
        return {"part": part, "more": bool(waiting) or not found.complete, "status": waiting}

    def _carried(
        self, tape: int, other: int, split: str, stage: str, query: Mapping[str, str],
        compared: Callable[[int, int], Asked],
    ) -> tuple[str, list[tuple[str, str]], dict[tuple[int, int], str] | None]:  # fmt: skip
        """What two runs differ in, and the samples that carry the one that is asked for."""
        asked = compared(*self._library.ordered(tape, other))
        if asked.problem:
            return "", [("", f"these runs cannot be compared: {asked.problem}")], {}
        if asked.report is None:
            return f"comparing … step {asked.done} of {asked.total}", [], {}
        names = finding_names(asked.report)
        path = query.get("finding") or (names[0][0] if names else "")
        key = tape, other, split, stage, path, asked.version
        carried = self._findings.setdefault(key, FindingSamples(asked.report, path))
        done = carried.advance(self._library, tape, split, stage, SLICE)
        waiting = "" if done else f"looking for samples … step {carried.done} of {len(carried.entries)}"
        return waiting, names, dict(carried.found)

    def _beside(
        self, tape: int, other: str, split: str, stage: str, hit: Hit, query: Mapping[str, str]
    ) -> str:
        """The page that has a sample of both runs beside each other, with what they differ in."""
        left, right = self._library.ordered(tape, int(other))
        if left != tape:  # samples are counted as in the baseline there
            return ""
        by = query.get("finding", "").replace("/", " / ", 1)
        return self._pages.url("c", left, right, split, stage, hit.step, hit.sample, by=by)

    # -- prompts ---------------------------------------------------------------------------------------

    def prompts(self, tape: int, query: Mapping[str, str], part: Any = None) -> Page:
        """All prompts of a run. ``part`` is the table where it is to be in the page; else it asks for it."""
        split, stage = self._which(tape, query)
        address = self._pages.url("fared", tape, **_kept(query))
        return self._pages._page(
            "prompts", "prompts.html", tape=tape, name=self._library.name(tape), split=split, stage=stage,
            splits=self._library.runs[tape].splits, trends=TRENDS, trend=query.get("trend", ""),
            threshold=query.get("pass", ""), address="" if part else address, part=part,
        )  # fmt: skip

    def fared(
        self, tape: int, query: Mapping[str, str], seconds: float = SLICE, most: int = PAGE
    ) -> dict[str, Any]:
        """How prompts fared, as far as it is known, as a part of their page."""
        split, stage = self._which(tape, query)
        table, read = self._search(tape, split, stage).table(seconds)
        threshold = _number(query.get("pass", ""), PASSED)
        trend = query.get("trend", "")
        every = self._records(tape, split, stage, table, threshold)
        kept = [one for one in every if one.is_of(trend)] if trend in TRENDS else every
        sort, down = query.get("sort", "order"), query.get("dir") == "down"
        value = PROMPT_SORTS.get(sort, PROMPT_SORTS["order"])
        known = sorted((one for one in kept if value(one) is not None), key=value, reverse=down)
        kept = [*known, *(one for one in kept if value(one) is None)]
        page = _page_number(query)
        shown = kept[page * most : (page + 1) * most]
        places = [(one.step, one.sample) for one in shown] if self._pages.prefix else []
        texts = (
            [self._text(tape, split, stage, *one, "prompt") for one in places] if self._pages.prefix else None
        )
        part = self._pages._part(
            "fared.html", tape=tape, split=split, stage=stage, rows=shown, total=len(kept), every=len(every),
            read=read, threshold=threshold, sort=sort, down=down, page=page, page_size=most,
            texts=texts,
            link=lambda **new: self._pages.url("p", tape, **{**_kept(query), **new}),
        )  # fmt: skip
        return {"part": part, "more": not read.complete}

    def digest_of(self, tape: int, split: str, stage: str, step: int, sample: int) -> str:
        """What stands for the prompt of a sample."""
        samples = self._library.samples(tape, split, stage, step)
        file, row = samples.locate(sample)
        if self._asked is None or self._asked[0] is not file:  # the next sample is asked for next
            recorded = RecordedSamples(self._library.source(tape, split, stage).storage, file.recording)
            contents = recorded.contents()
            uids = file.recording.identity()[0] if contents is None else []
            digests = [uid_digest(uid) for uid in uids] if contents is None else map(prompt_digest, contents)
            self._asked = file, [digest.hex() for digest in digests]
        return self._asked[1][row]

    def prompt(
        self,
        split: str,
        stage: str,
        digest: str,
        query: Mapping[str, str],
        part: Any = None,
        charts: Any = (),
    ) -> Page:
        """One prompt through training, in every run. ``part`` and ``charts`` where they are to be in the
        page; else it asks for them."""
        _hex(digest)
        kept = _kept(query)
        return self._pages._page(
            "one prompt", "prompt.html", split=split, stage=stage, digest=digest, part=part, charts=charts,
            address=self._pages.url("visits", split, stage, digest, **kept),
            series=self._pages.url("course", split, stage, digest, **kept),
            tape=int(kept["from"]) if kept.get("from", "").isdecimal() else 0,
            names=[self._library.name(at) for at in range(len(self._library.runs))],
        )  # fmt: skip

    def visits(
        self, split: str, stage: str, digest: str, query: Mapping[str, str], seconds: float = SLICE
    ) -> dict[str, Any]:
        """The steps at which a prompt was asked, run by run, as a part of its page."""
        runs, complete, threshold = self._visits(split, stage, digest, query, seconds)
        first = next(((tape, visits[0]) for tape, visits in runs if visits), None)
        text = (
            None
            if first is None
            else self._text(first[0], split, stage, first[1].step, first[1].best, "prompt", full=True)
        )
        inline = self._pages.prefix != ""

        def said(tape: int, step: int, sample: int) -> str | None:
            return self._text(tape, split, stage, step, sample, "response") if inline else None

        part = self._pages._part(
            "visits.html", split=split, stage=stage, digest=digest, text=text, threshold=threshold,
            runs=[(tape, self._library.name(tape), visits) for tape, visits in runs], most=MOST_VISITS,
            said=said,
            complete=complete,
        )  # fmt: skip
        return {"part": part, "more": not complete}

    def course(
        self, split: str, stage: str, digest: str, query: Mapping[str, str], seconds: float = SLICE
    ) -> dict[str, Any]:
        """The rewards and lengths of a prompt over the steps, as plots."""
        runs, complete, _ = self._visits(split, stage, digest, query, seconds)
        charts = [chart.as_json() for chart in _charts([(self._library.name(at), one) for at, one in runs])]
        return {"charts": charts, "known": 0, "steps": 0, "done": complete}

    def _visits(
        self, split: str, stage: str, digest: str, query: Mapping[str, str], seconds: float
    ) -> tuple[list[tuple[int, list[Any]]], bool, float]:
        wanted = _hex(digest)
        runs: list[tuple[int, list[Any]]] = []
        complete, threshold = True, _number(query.get("pass", ""), PASSED)
        for tape in range(len(self._library.runs)):
            if not self._library.source(tape, split, stage).files(stage, split).files:
                continue
            table, read = self._search(tape, split, stage).table(seconds)
            complete = complete and read.complete
            runs.append((tape, prompt_visits(table, wanted, threshold)))
        return runs, complete, threshold

    def peek(self, tape: int, split: str, stage: str, step: int, sample: int, side: str) -> dict[str, Any]:
        """The beginning of a prompt or of a response, for a list."""
        return {
            "part": self._pages._part("peek.html", text=self._text(tape, split, stage, step, sample, side))
        }

    def spelled(
        self, tape: int, split: str, stage: str, step: int, sample: int, query: Mapping[str, str]
    ) -> dict[str, Any]:
        """What some tokens of a long sample say."""
        view = StepView(self._library, tape, split, stage, step, alone=True)
        if not 0 <= sample < len(view.main):
            raise IndexError(sample)
        from rolltape.viewer.web.pages import spelled

        asked, said = token_rows(view, sample)
        start = _page_number({"page": query.get("from", "")})
        row = asked if query.get("side") == "prompt" else said
        return {"texts": spelled(row, start, start + CHUNK)}

    def _text(
        self, tape: int, split: str, stage: str, step: int, sample: int, side: str, *, full: bool = False
    ) -> str:
        view = StepView(self._library, tape, split, stage, step, alone=True)
        if not 0 <= sample < len(view.main):
            raise IndexError(sample)
        text = (
            groups.prompt_texts(view, [sample]) if side == "prompt" else [groups.response_text(view, sample)]
        )[0]
        return text if full else brief(text, PEEK)

    # -- groups ----------------------------------------------------------------------------------------

    def group(
        self, tape: int, split: str, stage: str, step: int, sample: int, query: Mapping[str, str]
    ) -> Page:
        """Two samples of a group side by side: the best and the worst, or those that are named."""
        view = StepView(self._library, tape, split, stage, step)
        order = groups.find_groups(view)
        mine = next((at for at, one in enumerate(order) if sample in one.samples), None)
        if mine is None:
            raise IndexError(sample)
        group = order[mine]
        known = [at for at, reward in zip(group.samples, group.rewards, strict=True) if reward is not None]
        left = _one_of(query.get("left", ""), group.samples, group.samples[0])
        right = _one_of(query.get("right", ""), group.samples, known[-1] if known else group.samples[-1])
        texts = [groups.response_text(view, at) for at in (left, right)]
        rewards = dict(zip(group.samples, group.rewards, strict=True))
        lengths = view.lengths
        sides = [
            (at, rewards[at], None if lengths is None else int(lengths[at]), pieces)
            for at, pieces in zip((left, right), diff_texts(*texts), strict=True)
        ]
        around = [order[at].best if 0 <= at < len(order) else None for at in (mine - 1, mine + 1)]
        return self._pages._page(
            f"group {group.uid} of step {step}", "group.html", tape=tape, name=self._library.name(tape),
            split=split, stage=stage, step=step, group=group, sides=sides, sample=sample,
            left=left, right=right,
            prompt=groups.prompt_texts(view, [sample])[0], around=around, same=texts[0] == texts[1],
            inline=self._pages.prefix != "",
        )  # fmt: skip

    # -- notes -----------------------------------------------------------------------------------------

    def notes_on(self, tape: int, split: str, stage: str) -> Notes:
        """The notes on the tape that has the samples of a stage."""
        run = self._library.source(tape, split, stage)
        return self._notes.setdefault(run.location, Notes(run, read_only=self._read_only))

    def marks(self, tape: int, split: str, stage: str) -> dict[Marked, Note]:
        """The notes on the samples of a stage."""
        notes = self.notes_on(tape, split, stage).read()
        return {place: note for place, note in notes.items() if (place.split, place.stage) == (split, stage)}

    def mark(self, view: StepView, tape: int, sample: int) -> tuple[Note | None, str]:
        """The note on a sample, and why it cannot be changed, if it cannot."""
        notes = self.notes_on(tape, view.split, view.stage)
        why = "this is a file: notes are written in the viewer" if self._pages.prefix else notes.why_not()
        return notes.read().get(_marked(view, sample)), why

    def marked(self, view: StepView, tape: int) -> dict[int, Note]:
        """The notes on the samples of a step."""
        notes = {
            one: note
            for one, note in self.marks(tape, view.split, view.stage).items()
            if one.step == view.step
        }
        places = view.main.places if notes else {}
        return {
            places[one.uid, one.index]: note for one, note in notes.items() if (one.uid, one.index) in places
        }

    def note(self, tape: int, split: str, stage: str, step: int, sample: int, said: Any) -> dict[str, Any]:
        """Put a note on a sample."""
        view = StepView(self._library, tape, split, stage, step, alone=True)
        if not 0 <= sample < len(view.main):
            raise IndexError(sample)
        asked: dict[str, Any] = said if isinstance(said, dict) else {"note": None}
        text, tags = asked.get("note", ""), asked.get("tags", [])
        note = self.notes_on(tape, split, stage).write(_marked(view, sample), text, tags)
        return {"note": note.text, "tags": list(note.tags), "when": note.when, "by": visible(note.by)}

    def notes(self, tape: int) -> Page:
        """Every note on the samples of a run."""
        run = self._library.runs[tape]
        rows = []
        for split in run.splits:
            stage = self._library.main_stage(tape, split)
            for name in dict.fromkeys([*([stage] if stage else []), *run.stages(split)]):
                marks = self.marks(tape, split, name)
                ids = [(one.step, one.uid, one.index) for one in marks]
                at = {
                    number: place
                    for place, number in places_of(ids, self._library, tape, split, name).items()
                }
                rows += [(place, note, at.get(number)) for number, (place, note) in enumerate(marks.items())]
        first = run.splits[0] if run.splits else "train"
        return self._pages._page(
            "notes", "notes.html", tape=tape, name=self._library.name(tape), rows=rows,
            path="" if self._pages.prefix else self.notes_on(tape, first, "rollout").path,
        )  # fmt: skip

    # -- parts -----------------------------------------------------------------------------------------

    def _which(self, tape: int, query: Mapping[str, str]) -> tuple[str, str]:
        """The split and the stage that a query names, else those that are shown first."""
        run = self._library.runs[tape]
        split = check_name("split", query.get("split") or next(iter(run.splits), "train"))
        stage = query.get("stage") or self._library.main_stage(tape, split)
        if stage is None:
            raise StepMissingError(f"split {split!r} has no recordings", where=run.location)
        return split, check_name("stage", stage)

    def _records(self, tape: int, split: str, stage: str, table: Any, threshold: float) -> list[PromptRecord]:
        key = tape, split, stage
        known = self._fared.get(key)
        if known is None or known[0] is not table or known[1] != threshold:
            known = self._fared[key] = table, threshold, prompt_records(table, threshold)
            while len(self._fared) > MOST_TABLES:
                self._fared.pop(next(iter(self._fared)))
        return known[2]

    def _search(self, tape: int, split: str, stage: str) -> SampleSearch:
        key = tape, split, stage
        found = self._searches.pop(key, None) or SampleSearch(self._library, *key)
        self._searches[key] = found
        while len(self._searches) > max(MOST_TABLES, len(self._library.runs)):
            self._searches.popitem(last=False)
        return found


def _marked(view: StepView, sample: int) -> Marked:
    uid, index = view.main.ids[sample]
    return Marked(view.split, view.stage, view.step, uid, index)


def _question(query: Mapping[str, str]) -> Question:
    return Question(
        query.get("where", ""), query.get("q", ""), query.get("regex") == "1", query.get("sort", "step"),
        query.get("dir") == "down", _page_number(query),
    )  # fmt: skip


def _page_number(query: Mapping[str, str]) -> int:
    text = query.get("page", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0


def _kept(query: Mapping[str, str]) -> dict[str, str]:
    names = (
        "split", "stage", "where", "q", "regex", "tag", "against", "finding", "sort", "dir", "page", "trend",
        "pass", "from",
    )  # fmt: skip
    return {name: query[name] for name in names if query.get(name)}


def _one_of(text: str, samples: list[int], otherwise: int) -> int:
    found = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else otherwise
    return found if found in samples else otherwise


def _number(text: str, otherwise: Any) -> Any:
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return found if abs(found) < 1e300 else otherwise


def _hex(digest: str) -> bytes:
    try:
        found = bytes.fromhex(digest)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise IndexError("a prompt is named by the 32 hexadecimal digits of its digest")
    return found


def _charts(runs: list[tuple[str, list[Any]]]) -> list[Chart]:
    steps = sorted({visit.step for _, visits in runs for visit in visits})
    if not steps:
        return []
    rewards, passed, lengths = [], [], []
    for name, visits in runs:
        known = {visit.step: visit for visit in visits}
        mine = [known.get(step) for step in steps]
        low, high = (
            [
                None if one is None or not (v := [r for r in one.rewards if r is not None]) else number(of(v))
                for one in mine
            ]
            for of in (min, max)
        )
        several = len(runs) > 1
        means = [None if one is None or one.mean is None else number(one.mean) for one in mine]
        rewards.append(Line(visible(name), means, None if several else low, None if several else high))
        passed.append(
            Line(
                visible(name),
                [None if one is None or one.pass_rate is None else number(one.pass_rate) for one in mine],
            )
        )
        lengths.append(
            Line(
                visible(name),
                [None if one is None or one.length is None else number(one.length) for one in mine],
            )
        )
    titled = (
        ("reward of this prompt", rewards),
        ("passed (share)", passed),
        ("response length (tokens)", lengths),
    )
    return [
        Chart(title, steps, lines, "")
        for title, lines in titled
        if any(value is not None for line in lines for value in line.values)
    ]
