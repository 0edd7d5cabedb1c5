"""All samples of a stage, over all steps: filtered by what is known of each, and by what their texts say.

The numbers come from the index of samples where there is one, and else from the recordings, as they are
read; texts are read step by step. Each request works for a moment and says how far it is, so that the first
hits are there at once. Expressions are RE2's: their time grows with the text and with nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rolltape.errors import ConfigError, RolltapeError
from rolltape.index.sample_table import TABLE_SCHEMA, Progress, SampleTable, reward_stage
from rolltape.reader.sample_filter import parse_filter
from rolltape.reader.visible import as_utf8
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import prompt_texts, response_texts
from rolltape.viewer.step_view import StepView

SLICE = 0.4
"""Seconds that one request works."""
PAGE = 50
"""Rows of a page."""
SORTS = ("step", "reward", "prompt_tokens", "response_tokens", "finish", "uid")
_SHOWN = pa.schema([field for field in TABLE_SCHEMA if field.name != "prompt"])
"""The columns that can be asked for."""
MOST_SCANS = 8
MOST_HITS = 100_000
AROUND = 60
"""Characters that are shown around a hit."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for."""

    where: str = ""
    """What must hold of the numbers, as in ``reward > 0.9 and step < 10``."""
    words: str = ""
    """What the text must have."""
    regex: bool = False
    sort: str = "step"
    down: bool = False
    page: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """One sample that was found."""

    step: int
    sample: int
    uid: str
    index: int
    reward: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish: str | None
    snippet: str
    """The text around what was looked for; empty where no text was."""


@dataclass(slots=True)
class Found:
    """What was found, as far as it is."""

    hits: list[Hit] = field(default_factory=list)
    """Those of one page."""
    total: int = 0
    samples: int = 0
    """How many there are to look through."""
    read: Progress = field(default_factory=lambda: Progress(0, 0))
    """Recordings whose numbers are known."""
    searched: tuple[int, int] | None = None
    """Of texts: steps that were looked through, and how many there are."""
    full: bool = False
    """Whether there were too many hits to go on."""
    problem: str = ""
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether asking again would find nothing else."""
        texts = self.searched is None or self.full or self.searched[0] >= self.searched[1]
        return bool(self.problem) or (self.read.complete and texts)


class SampleSearch:
    """The samples of one stage of a run."""

    def __init__(self, library: Library, tape: int, split: str, stage: str) -> None:
        self._library = library
        self._at = tape, split, stage
        self._lock = threading.Lock()
        self._scans: OrderedDict[tuple[str, bool], _Scan] = OrderedDict()
        run = library.source(tape, split, stage)
        scored = reward_stage(run, stage, split) or reward_stage(library.runs[tape], stage, split)
        other = None
        if scored is None:  # a replay has its rewards on its own tape
            scored = next((name for name in library.runs[tape].stages(split) if name == "reward"), None)
        if scored is not None and scored != stage:
            other = SampleTable(library.source(tape, split, scored), scored, split)
        self._table = SampleTable(run, stage, split, rewards=other)

    def begin(self) -> None:
        """Begin to read, for who will ask in a moment."""
        threading.Thread(target=copy_context().run, args=(self._ready,), daemon=True).start()

    def _ready(self) -> None:
        with self._lock, suppress(Exception):  # whoever asks is told
            self._table.advance(SLICE)

    def table(self, seconds: float = SLICE) -> tuple[pa.Table, Progress]:
        """The numbers of all samples, as far as they are known."""
        with self._lock:
            read = self._table.advance(seconds)
            return self._table.table(), read

    def find(
        self, asked: Question, among: Mapping[tuple[int, int], str] | None = None, seconds: float = SLICE
    ) -> Found:
        """What is found by now. ``among`` are the steps and samples that come into question, if only some do,
        and what is shown with them."""
        with self._lock:
            end = time.monotonic() + seconds
            found = Found(read=self._table.advance(seconds * 0.75), unreadable=dict(self._table.unreadable))
            found.samples = len(self._table)
            try:
                rows = self._filtered(asked.where, among)
                if asked.words:
                    texts = self._scan(asked, rows, found, end)
                    rows = self._chosen(rows, texts)
                else:
                    texts = dict(among or {})
            except ConfigError as error:
                found.problem = "\n".join(filter(None, (error.what, error.hint)))
                return found
            found.total = len(rows)
            rows = self._sorted(rows, asked)[asked.page * PAGE : (asked.page + 1) * PAGE]
            found.hits = _hits(self._table.rows(rows), texts)
            return found

    def _filtered(self, where: str, among: Mapping[tuple[int, int], str] | None) -> np.ndarray:
        if where.strip():
            sieve = parse_filter(where).sieve(_SHOWN)
            rows = sieve.rows(self._table.table({"step", *sieve.needs}))
        else:
            rows = np.arange(len(self._table))
        return rows if among is None else self._chosen(rows, among)

    def _numbers(self, name: str, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._table.table({name})[name].to_numpy()[rows])

    def _chosen(self, rows: np.ndarray, places: Mapping[tuple[int, int], str]) -> np.ndarray:
        """Those of the rows that are at one of these places."""
        known, codes = np.unique(self._numbers("step", rows), return_inverse=True)
        numbers = {step: at for at, step in enumerate(known.tolist())}
        wanted = [numbers[step] * 2**32 + sample for step, sample in places if step in numbers]
        here = codes * 2**32 + self._numbers("sample", rows)
        return np.asarray(rows[np.isin(here, np.array(wanted, np.int64))])

    def _sorted(self, rows: np.ndarray, asked: Question) -> np.ndarray:
        """The rows in the order that is asked for; what is not known goes last."""
        if asked.sort == "step" or asked.sort not in SORTS:
            return rows[::-1] if asked.down else rows
        column = self._table.table({asked.sort})[asked.sort].take(pa.array(rows))
        order = pc.array_sort_indices(
            column.combine_chunks(),
            order="descending" if asked.down else "ascending",
            null_placement="at_end",
        )
        return np.asarray(rows[order.to_numpy()])

    def _scan(
        self, asked: Question, rows: np.ndarray, found: Found, end: float
    ) -> Mapping[tuple[int, int], str]:
        """Look through the texts of the steps that come into question, for as long as there is time."""
        name = asked.words, asked.regex
        scan = self._scans.pop(name, None) or _Scan(asked.words, asked.regex)
        self._scans[name] = scan
        while len(self._scans) > MOST_SCANS:
            self._scans.popitem(last=False)
        steps = np.unique(self._numbers("step", rows)).tolist()
        todo = [step for step in steps if step not in scan.done]
        first = not scan.hits
        for step in todo:
            if time.monotonic() > end or scan.full or (first and scan.hits):  # the first are shown at once
                break
            scan.look(StepView(self._library, *self._at, step, keep=False, alone=True))
        searched = sum(step in scan.done for step in steps)
        found.searched, found.full = (searched, len(steps)), scan.full
        return scan.hits


class _Scan:
    """What one expression matches, as far as it was looked for."""

    def __init__(self, words: str, regex: bool) -> None:
        self._words, self._regex = as_utf8(words), regex
        self.done: set[int] = set()
        self.hits: dict[tuple[int, int], str] = {}
        """By step and sample: the text around the first match."""
        self._match(
            pa.array([""], pa.large_string())
        )  # what is no expression is told before anything is read

    @property
    def full(self) -> bool:
        return len(self.hits) >= MOST_HITS

    def look(self, view: StepView) -> None:
        """Look through one step."""
        try:
            sides = [response_texts(view), prompt_texts(view, range(len(view.main)))]
        except RolltapeError:  # a damaged file is told on its own page
            sides = []
        for texts in sides:
            column = pa.array([as_utf8(text) for text in texts], pa.large_string())
            places = self._match(column).to_numpy()
            for sample in np.flatnonzero(places >= 0).tolist():
                self.hits.setdefault(
                    (view.step, sample), _around(column[sample].as_py(), int(places[sample]))
                )
        self.done.add(view.step)

    def _match(self, texts: pa.Array) -> pa.Array:
        """Where in each text the first match is, in bytes; -1 where there is none."""
        find = pc.find_substring_regex if self._regex else pc.find_substring
        try:
            return find(texts, self._words, ignore_case=not self._regex)
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"this is not a regular expression: {str(error).splitlines()[0]}",
                hint="expressions are RE2's: no references to groups and no look-around",
            ) from None


def _around(text: str, at: int) -> str:
    data = text.encode("utf-8")
    before, after = (
        part.decode("utf-8", "ignore")
        for part in (data[max(0, at - 4 * AROUND) : at], data[at : at + 8 * AROUND])
    )
    return ("…" if len(before) > AROUND or at > 4 * AROUND else "") + before[-AROUND:] + after[: 2 * AROUND]


def _hits(table: pa.Table, texts: Mapping[tuple[int, int], str]) -> list[Hit]:
    names = ("step", "sample", "uid", "index", "reward", "prompt_tokens", "response_tokens", "finish")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [Hit(*(*row, texts.get((row[0], row[1]), ""))) for row in rows]


def places_of(
    ids: Sequence[tuple[int, str, int]], library: Library, tape: int, split: str, stage: str
) -> dict[tuple[int, int], int]:
    """The samples that some are at their steps: by their place in the list."""
    by_step: dict[int, list[int]] = {}
    for at, (step, _, _) in enumerate(ids):
        by_step.setdefault(step, []).append(at)
    found: dict[tuple[int, int], int] = {}
    for step, mine in by_step.items():
        try:
            places = library.samples(tape, split, stage, step, keep=False).places
        except RolltapeError:
            continue
        for at in mine:
            sample = places.get(ids[at][1:])
            if sample is not None:
                found[step, sample] = at
    return found
