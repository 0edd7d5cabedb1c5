"""One case of the suite: two runs, how they are written, and what must be said of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import rolltape
from tests.faults import oracle
from tests.faults.layout import Layout, order_of, write
from tests.faults.world import Fault, Run, World, dtype_of, simulate

Edit: TypeAlias = Callable[[Run], None]
"""Changes what a run has left behind, without anything following from it."""


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    name: str
    where: str = ""
    """``stage/column`` that must be named; empty where nothing may be found."""
    fault: Fault | None = None
    edit: Edit | None = None
    step: int = 1
    sample: int | None = None
    """The sample that must be named, as the baseline counts; None: where the limits say."""
    token: int | None = None
    cause: str | None = None
    """The documented cause; None where there is none for this."""
    also: tuple[str, ...] = ()
    """Other causes that are true of it."""
    verdict: str = "diverged"
    world: World = field(default_factory=World)
    base: Layout = field(default_factory=Layout)
    other: Layout | None = None
    """How the candidate is written; None: as the baseline."""
    before: Edit | None = None
    """Changes the baseline, and the candidate with it."""
    apart: Edit | None = None
    """Changes the baseline alone."""
    noise: float | None = None
    """The noise floor of `loss/log_probs`, in multiples of its RMS."""
    limit: str = ""
    """The sentence of docs/verify.md that says that this is not seen."""
    somewhere: bool = False
    """Whether the sample cannot be named: what is missing is no sample's."""

    @property
    def harmless(self) -> bool:
        return not self.where


@dataclass(frozen=True)
class Outcome:
    """What was said of a case, and whether it is right."""

    case: Case
    found: bool
    place: bool
    causes: tuple[str, ...]
    """Those that are named."""
    wrong: tuple[str, ...]
    """Those of them that are not true."""
    said: str

    @property
    def named(self) -> bool:
        """Whether the documented cause is among them."""
        return self.case.cause in self.causes

    @property
    def right(self) -> bool:
        case = self.case
        if case.harmless:
            return not self.found
        return self.place and not self.wrong and (case.cause is None or self.named)


class Bases:
    """Baselines on disk, each written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[World, Layout], Path] = {}

    def path(self, case: Case, run: Run) -> Path:
        if case.before or case.apart or case.noise is not None or case.base.uid == "uuid":
            return write(run, self.folder / f"base {len(self._known)} {case.name}", case.base)
        key = case.world, case.base
        if key not in self._known:
            self._known[key] = write(run, self.folder / f"base {len(self._known)}", case.base)
        return self._known[key]


def runs_of(case: Case) -> tuple[Run, Run]:
    """Both runs of a case."""
    one, other = simulate(case.world), simulate(case.world, case.fault)
    for run, edits in ((one, (case.before, case.apart)), (other, (case.before, case.edit))):
        for edit in edits:
            if edit is not None:
                edit(run)
    return one, other


def try_out(case: Case, bases: Bases) -> Outcome:
    """Write both runs, compare them, and hold what is said against the case."""
    one, other = runs_of(case)
    baseline = bases.path(case, one)
    candidate = write(other, bases.folder / case.name.replace("/", "_"), case.other or case.base)
    if case.noise is not None:
        _write_floor(baseline, case, one)
    report = rolltape.compare(baseline, candidate)
    return judged(case, report, expected(case, one, other))


def expected(case: Case, one: Run, other: Run) -> tuple[int, tuple[int, ...]] | None:
    """The sample and the token that must be named; None where there are none."""
    stage, _, column = case.where.partition("/")
    if case.harmless or case.somewhere or stage in ("metrics", "update") or not column:
        return None
    if case.sample is not None:
        row = order_of(one, case.base).index(case.sample)
        return row, () if case.token is None else (case.token,)
    rows = [run.stages[case.step][stage][column] for run in (one, other)]
    masks = one.stages[case.step]["rollout"]["mask"]
    if not np.ndim(rows[0][0]) or column not in FLOATS:
        masks = [np.ones(np.shape(row), bool) for row in rows[0]]
    live = [np.asarray(mask) != 0 for mask in masks]
    smallest = oracle.USUAL if column == "reward" else oracle.SMALLEST
    return oracle.first_place(*rows, live, dtype_of(case.world, column), order_of(one, case.base), smallest)


FLOATS = {"rollout_log_probs", "ref_log_probs", "log_probs", "token_losses"}


def judged(case: Case, report: Any, place: tuple[int, tuple[int, ...]] | None) -> Outcome:
    """What a report says of a case."""
    first = report.first
    causes = tuple(cause.pattern for cause in report.causes if cause.named)
    wrong = tuple(cause for cause in causes if cause != case.cause and cause not in case.also)
    right = first is not None and not case.harmless
    if right:
        right = first.path == case.where and first.step == case.step and str(first.verdict) == case.verdict
    if right and place is not None:
        row, token = place
        right = first.first is not None and first.first.row == row
        right = right and (not token or first.first.token == token)
    return Outcome(case, not report.clean, right, causes, wrong, report.sentence)


def _write_floor(baseline: Path, case: Case, run: Run) -> None:
    """What `rolltape noise` leaves on a tape."""
    rows = [row for done in run.stages for row in done["loss"]["log_probs"]]
    rms = float(np.sqrt(np.mean(np.concatenate(rows) ** 2)))
    node = {"runs": 3, "measured": "2026-01-01T00:00:00+00:00", "command": ["train"],
            "errors": [["loss", "log_probs", (case.noise or 0) * rms]]}  # fmt: skip
    (baseline / "noise.json").write_text(json.dumps(node))


def table(outcomes: Sequence[Outcome]) -> str:
    """The figures of a run of the suite, and what is not right in it."""
    faults = [one for one in outcomes if not one.case.harmless]
    harmless = [one for one in outcomes if one.case.harmless]
    figures = Figures.of(outcomes)
    lines = [
        f"faults                {len(faults):4}",
        f"  place right         {figures.placed:4}  {100 * figures.place_rate:.1f} %",
        f"  missed              {figures.missed:4}  {100 * figures.missed_rate:.1f} %",
        f"  with a known cause  {figures.with_cause:4}",
        f"    it is named       {figures.named:4}  {100 * figures.named_rate:.1f} %",
        f"  wrong causes        {figures.wrong:4}",
        f"  biases found        {figures.biases:4}",
        f"harmless changes      {len(harmless):4}",
        f"  false alarms        {figures.alarms:4}",
    ]
    for one in outcomes:
        if not one.right:
            lines += [f"not right: {one.case.name}", f"    {_why(one)}", f"    said: {one.said}"]
            lines += [f"    causes: {', '.join(one.causes)}"] if one.causes else []
    return "\n".join(lines)


def _why(one: Outcome) -> str:
    case = one.case
    if case.harmless:
        return "a false alarm"
    if not one.found:
        return f"missed ({case.limit or 'no documented limit'})"
    if not one.place:
        return f"another place than step {case.step}, {case.where}, {case.verdict}"
    return f"wrong causes: {', '.join(one.wrong)}" if one.wrong else f"cause not named: {case.cause}"


@dataclass(frozen=True)
class Figures:
    """What the suite is measured by."""

    faults: int
    placed: int
    missed: int
    with_cause: int
    named: int
    wrong: int
    alarms: int
    biases: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Figures:
        faults = [one for one in outcomes if not one.case.harmless]
        known = [one for one in faults if one.case.cause is not None]
        return cls(
            len(faults),
            sum(one.place for one in faults),
            sum(not one.found for one in faults),
            len(known),
            sum(one.named for one in known),
            sum(len(one.wrong) for one in outcomes),
            sum(one.found for one in outcomes if one.case.harmless),
            sum(one.place for one in faults if one.case.verdict == "biased"),
        )

    @property
    def place_rate(self) -> float:
        return self.placed / max(self.faults, 1)

    @property
    def missed_rate(self) -> float:
        return self.missed / max(self.faults, 1)

    @property
    def named_rate(self) -> float:
        return self.named / self.with_cause if self.with_cause else 1.0
