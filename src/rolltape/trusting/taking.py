"""From tapes to pairs: which columns are log-probs of engine and trainer, and which rows go together.

What is on a tape is asked of ``reader``; nothing is measured here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rolltape.batch.roles import columns_with
from rolltape.codec.header import StoredColumn
from rolltape.errors import ConfigError
from rolltape.reader.run import Run
from rolltape.reader.samples import Samples
from rolltape.reader.step_roles import ColumnOf
from rolltape.reader.wording import counted
from rolltape.trusting.alike import NOBODY_SAYS, Kind, corrected_by_mass, refusals
from rolltape.trusting.pairs import Pairs
from rolltape.trusting.structure import Finding

PROBE = "probe.logprobs"
"""The stage of ``tape.probe("logprobs", …)``."""
ENGINE = ("rollout_logprobs", "logprobs")
TRAINER = ("old_logprobs", "new_logprobs")
"""The log-probs before any update of the step come first."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The pairs of one step; None where a side is not recorded."""

    step: int
    total: Pairs | None = None
    """The recorded engine against the trainer that is asked about."""
    drift: Pairs | None = None
    """The baseline's trainer against it."""
    floor: Pairs | None = None
    """The recorded engine against the baseline's trainer; or what was given as the floor."""
    exact: bool = False
    """Whether the trainer's log-probs are the baseline's, or without one the engine's, bit for bit."""
    findings: list[Finding] = field(default_factory=list)
    """What the lengths of rows say."""
    refused: list[str] = field(default_factory=list)
    """Why sides were not compared, each by name."""
    recorded: int = 0
    """How many sequences the rollout has."""
    kind: Kind = NOBODY_SAYS
    """Of the engine's log-probs."""
    columns: tuple[str, str] = ("", "")
    """Where the log-probs of engine and trainer were found."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The runs that are asked: where rollouts are, the trainer's run, and what it is measured against."""

    run: Run
    baseline: Run | None = None
    floor: Run | None = None
    split: str = "train"
    engine: Kind = NOBODY_SAYS
    """What the user says about the engine's log-probs, before what tapes say."""
    trainer: Kind = NOBODY_SAYS

    @property
    def tapes(self) -> list[str]:
        """Where they are."""
        return [one.location for one in (self.run, self.baseline, self.floor) if one is not None]

    def steps(self) -> list[int]:
        """The steps at which the run has log-probs of its trainer."""
        stages = [name for name in self.run.stages(self.split) if not name.startswith("ref")]
        found = {step for name in stages for step in self.run.steps(name, self.split)}
        return [step for step in sorted(found) if find_trainer(self.run, self.split, step) is not None]


def find_trainer(run: Run, split: str, step: int) -> ColumnOf | None:
    """The column of the trainer's log-probs at a step: of a probe, else by the names that trainers give."""
    stages = [name for name in run.stages(split) if step in run.steps(name, split)]
    if PROBE in stages:
        return ColumnOf(PROBE, "value")
    for role in TRAINER:
        for stage in stages:
            if stage.startswith("ref"):
                continue
            for column in columns_with(stored := run.samples(step, stage, split).stored, role):
                if _has_rows(stored[column]):
                    return ColumnOf(stage, column)
    return None


def find_engine(run: Run, split: str, step: int) -> ColumnOf | None:
    """The column of the log-probs with which tokens were sampled."""
    stages = [name for name in run.stages(split) if step in run.steps(name, split)]
    if "rollout" not in stages:
        return None
    stored = run.samples(step, "rollout", split).stored
    for column in columns_with(stored, *ENGINE):
        if _has_rows(stored[column]):
            return ColumnOf("rollout", column)
    return None


def _has_rows(column: StoredColumn) -> bool:
    return column.is_number and (column.kind == "ragged" or len(column.shape) == 1)


def take(sides: Sides, step: int) -> Taken:
    """The pairs of one step."""
    split, base = sides.split, sides.baseline
    ours = find_trainer(sides.run, split, step)
    if ours is None:
        return Taken(step, refused=["no log-probs of the trainer are recorded"])
    mine = Rows.of(sides.run, split, step, ours)
    source = base if base is not None and find_engine(base, split, step) else sides.run
    sampled = find_engine(source, split, step)
    told = None if sampled is None else Rows.of(source, split, step, sampled)
    theirs = find_trainer(base, split, step) if base is not None else None
    before = Rows.of(base, split, step, theirs) if base is not None and theirs is not None else None
    again = find_trainer(sides.floor, split, step) if sides.floor is not None else None
    twice = Rows.of(sides.floor, split, step, again) if sides.floor is not None and again else None
    return _paired(
        Taken(step, columns=(str(sampled or ""), str(ours))), sides, source, told, mine, before, twice
    )


def _paired(
    taken: Taken, sides: Sides, source: Run, told: Rows | None, mine: Rows, before: Rows | None,
    twice: Rows | None,
) -> Taken:  # fmt: skip
    refused: list[str] = []
    findings: list[Finding] = []
    kind = sides.engine.over(_said_by(source, told))
    trainer = sides.trainer.over(Kind(tokenizer=Kind.of(sides.run.configuration).tokenizer))
    if told is not None:
        mass = told.column("kept_mass") if corrected_by_mass(kind, trainer) else None
        refused += refusals(kind, trainer, mass_known=mass is not None)
        refused += _routes(told, mine)
        told = told if mass is None else told.with_mass(mass)
    elif before is None:
        refused.append("no log-probs of the engine are recorded, and there is no baseline")

    def both(left: Rows | None, right: Rows | None, told_by: list[Finding] | None = None) -> Pairs | None:
        return None if left is None or right is None else left.against(right, told_by, refused)

    alike = not refused
    total = both(told, mine, findings) if alike else None
    drift = both(before, mine, None if total is not None else findings)
    floor = both(before, twice) if twice is not None else both(told, before) if alike else None
    compared = drift if drift is not None else total if before is None else None
    compared_with = before or told or mine
    return replace(
        taken,
        total=total,
        drift=drift,
        floor=floor,
        exact=compared is not None
        and not findings
        and len(compared.lengths) == len(compared_with.values)
        and int((compared.lengths > 0).sum()) == max(compared_with.counted, mine.counted)
        and _same_bits(compared),
        findings=findings,
        refused=refused,
        recorded=len((told or before or mine).values),
        kind=kind,
    )


def _same_bits(pairs: Pairs) -> bool:
    """Whether both sides are the same at every token; a nan is never the same as anything."""
    same = pairs.engine.view(np.int64) == pairs.trainer.view(np.int64)
    return bool(len(same)) and bool((same & ~np.isnan(pairs.engine)).all())


def _said_by(run: Run, rows: Rows | None) -> Kind:
    """What a tape says about the engine's log-probs: the rollout itself, its inputs, the fingerprint."""
    said: dict[str, Any] = {}
    for name, value in rows.samples.values.items() if rows is not None else ():
        said |= _flat(name, value)
    return Kind.of(said).over(Kind.of(run.configuration))


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _flat(f"{name}.{key}", inner).items()}
    return {name: value}


def _routes(told: Rows, mine: Rows) -> list[str]:
    """Whether experts were chosen alike, where both sides say which."""
    ours, theirs = told.column("routes"), mine.column("routes")
    if ours is None or theirs is None or len(ours) != len(theirs):
        return []
    differ = [not np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)]
    if not any(differ):
        return []
    return [f"routes of experts: they differ in {sum(differ)} of {counted(len(differ), 'sequence')}"]


# -- rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one column of log-probs at one step."""

    samples: Samples
    name: str
    values: list[np.ndarray]
    """Whole rows, float64."""
    on: list[np.ndarray]
    """Per row: which places a loss counts."""
    told: bool = False
    """Whether a mask says so; where none does, all places are on."""

    @classmethod
    def of(cls, run: Run, split: str, step: int, at: ColumnOf) -> Rows:
        """Read a column and what says which of its places count."""
        samples = run.samples(step, at.stage, split)
        values = [np.asarray(row, np.float64) for row in samples.cells(at.column)]
        kept = samples.kept(at.column, trained=True)
        on = [np.ones(len(row), bool) for row in values]
        if kept is not None:
            for mask, part in zip(on, kept.parts, strict=True):
                mask[:] = False
                mask[part] = True
        return cls(samples, at.column, values, on, kept is not None and kept.proven)

    @property
    def counted(self) -> int:
        """How many rows have a place that counts."""
        return sum(bool(on.any()) for on in self.on)

    def column(self, role: str) -> list[Any] | None:
        """What each sample has in a column of this role."""
        names = columns_with(self.samples.stored, role)
        return self.samples.cells(names[0]) if names else None

    def with_mass(self, mass: Sequence[Any]) -> Rows:
        """The log-probs of the whole distribution, from those of the kept part and how much that was."""
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                whole = [row + np.log(np.asarray(kept, np.float64)) for row, kept in
                         zip(self.values, mass, strict=True)]  # fmt: skip
        except ValueError as error:
            raise ConfigError("the column of the kept mass does not fit the log-probs") from error
        return replace(self, values=whole)

    def against(self, other: Rows, told_by: list[Finding] | None, refused: list[str]) -> Pairs | None:
        """Pairs of this side and the other, sample by sample."""
        matched = _match(self, other)
        if matched is None:
            refused.append("samples: nothing says which of one side is which of the other")
            return None
        rows = [_fit(self, ours, other, theirs) for ours, theirs in matched]
        if told_by is not None:
            told_by += _lengths(self, rows)
        if any(row.apart for row in rows) and not any(_kinds(self, rows)):
            refused.append(
                f"rows: {counted(sum(bool(row.apart) for row in rows), 'sequence')} have another number of "
                "tokens on the other side: other tokens, or another mask"
            )
            return None
        return self._pairs([at for at, _ in matched], rows)

    def _pairs(self, at: list[int], rows: list[_Row]) -> Pairs:
        ids = [self.samples.ids[one] for one in at]
        made = Pairs.of(
            [row.ours for row in rows],
            [row.theirs for row in rows],
            groups=self.groups(at),
            names=[f"{uid}, {index}" if uid else str(index) for uid, index in ids],
        )
        flat = np.concatenate([np.empty(0, np.int64), *(row.places for row in rows)]).astype(np.int64)
        return replace(
            made,
            places=flat,
            ids=self._per_token("response_ids", at, rows, np.int64),
            entropy=self._per_token("entropy", at, rows, np.float64),
            versions=self._per_token("weights_version", at, rows, np.int64),
            finished=self._finished(at),
            images=self._images(at),
        )

    def groups(self, at: list[int]) -> list[str]:
        """Which prompt each sample answers: its uid; else what its prompt is; else a prompt of its own."""
        if not self.samples.anonymous:
            return [self.samples.ids[one][0] for one in at]
        asked = self.column("prompt_ids")
        if asked is None:
            return [str(one) for one in at]
        return [np.asarray(asked[one]).tobytes().hex() for one in at]

    def _per_token(self, role: str, at: list[int], rows: list[_Row], dtype: type) -> np.ndarray | None:
        found = self.column(role)
        if found is None:
            return None
        parts: list[np.ndarray] = []
        for one, row in zip(at, rows, strict=True):
            cell = np.asarray(found[one])
            if cell.ndim == 0 and role == "weights_version" and cell.dtype.kind in "iu":
                parts.append(np.full(len(row.places), int(cell), dtype))
            elif cell.ndim == 1 and cell.dtype.kind in "iuf" and len(cell) > int(row.places.max(initial=-1)):
                parts.append(cell[row.places].astype(dtype))
            else:
                return None
        return np.concatenate([np.empty(0, dtype), *parts])

    def _finished(self, at: list[int]) -> np.ndarray | None:
        found = self.column("finish")
        if found is None:
            return None
        return np.array([str(found[one]) in ("stop", "eos", "stop_token", "end", "tool_calls") for one in at])

    def _images(self, at: list[int]) -> np.ndarray | None:
        """How many tokens of images are in each prompt: its longest run of one id, where there are images."""
        found, asked = self.column("images"), self.column("prompt_ids")
        if found is None:
            return None
        has = [_is_some(found[one]) for one in at]
        if asked is None:
            return np.array(has, np.int64)
        return np.array([_longest_run(asked[one]) if some else 0
                         for one, some in zip(at, has, strict=True)], np.int64)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Row:
    """One sample with its two sides: as many numbers each."""

    ours: np.ndarray
    theirs: np.ndarray
    places: np.ndarray
    """Where in the row of this side they are."""
    apart: int = 0
    """How many more tokens the other side has."""


def _fit(one: Rows, ours: int, other: Rows, theirs: int) -> _Row:
    left, right = one.values[ours], other.values[theirs]
    mine, its = one.on[ours], other.on[theirs]
    places = np.flatnonzero(mine)
    if mine.sum() == its.sum():
        return _Row(left[mine], right[its], places)
    alone = not (one.told and other.told)  # only one side knows what counts
    if len(left) == len(right) and (alone or not mine.any() or not its.any()):
        both = mine & its
        return _Row(left[both], right[both], np.flatnonzero(both))
    if len(right) == mine.sum():
        return _Row(left[mine], right, places)
    apart = int(its.sum() - mine.sum())
    if apart < 0:
        return _Row(left[mine][:apart], right[its], places[:apart], apart)
    prompt = _prompt_length(one, ours)
    start = apart if prompt in (apart, apart + 1) else 0
    return _Row(left[mine], right[its][start : start + len(places)], places, apart)


def _prompt_length(rows: Rows, at: int) -> int | None:
    counts = rows.samples.token_counts[0]
    return None if counts is None else int(counts[at])


def _kinds(rows: Rows, found: list[_Row]) -> list[str]:
    """What lengths that differ alike are the sign of."""
    apart = [row.apart for row in found if row.apart]
    if apart and all(one == -1 for one in apart):
        return ["eos dropped"]
    if apart and all(one > 0 for one in apart) and len(apart) >= 0.5 * len(found):
        asked = [_prompt_length(rows, at) for at, row in enumerate(found) if row.apart]
        return ["prompt counted" if asked == apart else "padding counted"]
    ours = Counter(len(row.places) - min(row.apart, 0) for row in found)
    theirs = Counter(len(row.places) + max(row.apart, 0) for row in found)
    if len(apart) >= 3 and ours == theirs:  # as many rows of each length, in another order
        return ["rows swapped"]
    return []


def _lengths(rows: Rows, found: list[_Row]) -> list[Finding]:
    apart = [row.apart for row in found if row.apart]
    messages = {
        "eos dropped": "the trainer has one token less: the end-of-sequence token is lost",
        "prompt counted": "the trainer has as many tokens more as the prompt: it is counted",
        "padding counted": "the trainer has more tokens than were sampled: padding or a prompt is counted",
        "rows swapped": "the trainer has the number of tokens of another: they were sorted, and not put back",
    }
    return [
        Finding(kind, f"in {len(apart)} of {counted(len(found), 'sequence')} {messages[kind]}", len(apart))
        for kind in _kinds(rows, found)
    ]


def _match(one: Rows, other: Rows) -> list[tuple[int, int]] | None:
    """The places of the same samples on both sides: by who they are, by their tokens, or by their order."""
    by_order = one.samples.counted or other.samples.counted
    ours, theirs = one.column("response_ids"), other.column("response_ids")
    if by_order and ours is not None and theirs is not None:
        return _by_tokens(one, ours, other, theirs)
    if not one.samples.anonymous and not other.samples.anonymous:
        places = other.samples.places
        found = [(at, places[who]) for at, who in enumerate(one.samples.ids) if who in places]
        if found:
            return found
    if len(one.values) == len(other.values):
        return [(at, at) for at in range(len(one.values))]
    return None


def _by_tokens(
    one: Rows, ours: Sequence[Any], other: Rows, theirs: Sequence[Any]
) -> list[tuple[int, int]] | None:
    key: Callable[[Rows, Sequence[Any], int], bytes] = lambda rows, ids, at: _tokens(rows, ids, at).tobytes()  # noqa: E731
    left: dict[bytes, list[int]] = defaultdict(list)
    for at in reversed(range(len(other.values))):
        left[key(other, theirs, at)].append(at)
    found = [(at, left[name].pop()) for at in range(len(one.values)) if left[name := key(one, ours, at)]]
    return found if len(found) >= 0.5 * min(len(one.values), len(other.values)) else None


def _tokens(rows: Rows, ids: Sequence[Any], at: int) -> np.ndarray:
    row, on = np.asarray(ids[at]).astype(np.int64), rows.on[at]
    return row[on] if len(row) == len(on) else row


def _is_some(value: Any) -> bool:
    if value is None:
        return False
    try:
        return len(value) > 0
    except TypeError:
        return bool(value)


def _longest_run(ids: Any) -> int:
    """The length of the longest run of one id."""
    row = np.asarray(ids)
    if row.ndim != 1 or not len(row):
        return 1
    edges = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1], [True]]))
    return int(np.diff(edges).max())
