"""One prompt through training, and how all prompts fared: what a table of samples says of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TRENDS = ("never passed", "always passed", "never improves", "got worse", "got better")
"""What prompts can be filtered by."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """How one prompt fared over the steps of a run."""

    digest: str
    """Stands for its content, in hexadecimal."""
    step: int
    """The first step it was asked at."""
    sample: int
    """A sample of it there."""
    samples: int
    steps: int
    """At how many steps it was asked."""
    pass_rate: float | None
    """The share of its samples that passed; None where no reward is known."""
    first: float | None
    """Its mean reward at the first step that has one."""
    last: float | None
    best: float | None
    change: float | None
    """The mean reward over the later half of its steps, minus that over the earlier half; None at one
    step."""
    improves: bool | None
    """Whether some later step has a higher mean reward than its first; None at one step."""
    length: float | None
    """Mean tokens of its responses."""

    def is_of(self, trend: str) -> bool:
        """Whether it is one of those that a trend names."""
        if trend == "never passed":
            return self.pass_rate == 0
        if trend == "always passed":
            return self.pass_rate == 1
        if trend == "never improves":
            return self.improves is False and self.pass_rate != 1
        if trend == "got worse":
            return self.change is not None and self.change < 0
        return self.change is not None and self.change > 0


@dataclass(frozen=True, slots=True)
class Visit:
    """The samples of a prompt at one step."""

    step: int
    samples: tuple[int, ...]
    """Best first; as recorded where there are no rewards."""
    rewards: tuple[float | None, ...]
    mean: float | None
    pass_rate: float | None
    length: float | None
    longest: int | None

    @property
    def best(self) -> int:
        """The sample with the highest reward."""
        return self.samples[0]

    @property
    def worst(self) -> int:
        """The sample with the lowest reward; the last where none has one."""
        known = [at for at, reward in zip(self.samples, self.rewards, strict=True) if reward is not None]
        return known[-1] if known else self.samples[-1]


def prompt_records(table: pa.Table, threshold: float) -> list[PromptRecord]:
    """Every prompt of a table of samples, in the order in which they were first asked."""
    if not len(table):
        return []
    column = table["prompt"].combine_chunks()
    encoded = pc.dictionary_encode(column)
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    codes = encoded.indices.to_numpy()
    digests = encoded.dictionary.to_pylist()
    steps, samples = (table[name].to_numpy() for name in ("step", "sample"))
    rewards = table["reward"].fill_null(float("nan")).to_numpy()
    lengths = table["response_tokens"].cast(pa.float64()).fill_null(float("nan")).to_numpy()
    order = np.lexsort((samples, steps, codes))
    codes, steps, samples, rewards, lengths = (x[order] for x in (codes, steps, samples, rewards, lengths))
    known = np.isfinite(rewards)
    visit_starts = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | (steps[1:] != steps[:-1])])
    sums = np.add.reduceat(np.where(known, rewards, 0.0), visit_starts)
    counts = np.add.reduceat(known.astype(np.int64), visit_starts)
    means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    stops = np.r_[starts[1:], len(codes)]
    first_visit = np.searchsorted(visit_starts, starts)
    last_visit = np.r_[first_visit[1:], len(visit_starts)]
    passed = np.add.reduceat((known & (rewards >= threshold)).astype(np.int64), starts)
    rewarded = np.add.reduceat(known.astype(np.int64), starts)
    best = np.maximum.reduceat(np.where(known, rewards, -np.inf), starts)
    measured = np.isfinite(lengths)
    tokens = np.add.reduceat(np.where(measured, lengths, 0.0), starts)
    with_tokens = np.add.reduceat(measured.astype(np.int64), starts)
    found = []
    for at, (start, stop, low, high) in enumerate(
        zip(starts.tolist(), stops.tolist(), first_visit.tolist(), last_visit.tolist(), strict=True)
    ):
        mine = means[low:high]
        mine = mine[np.isfinite(mine)]
        half = len(mine) // 2
        several = len(mine) > 1
        found.append(
            PromptRecord(
                digest=digests[codes[start]].hex(),
                step=int(steps[start]),
                sample=int(samples[start]),
                samples=stop - start,
                steps=high - low,
                pass_rate=float(passed[at] / rewarded[at]) if rewarded[at] else None,
                first=float(mine[0]) if len(mine) else None,
                last=float(mine[-1]) if len(mine) else None,
                best=float(best[at]) if rewarded[at] else None,
                change=_apart(mine[:half].mean(), mine[-half:].mean()) if several else None,
                improves=any(_apart(mine[0], later) > 0 for later in mine[1:]) if several else None,
                length=float(tokens[at] / with_tokens[at]) if with_tokens[at] else None,
            )
        )
    return sorted(found, key=lambda one: (one.step, one.sample))


def _apart(before: float, after: float) -> float:
    """By how much a mean went up; what rounding alone may make of it is nothing."""
    change = float(after - before)
    return change if abs(change) > 1e-6 * max(abs(before), abs(after)) else 0.0


def prompt_visits(table: pa.Table, digest: bytes, threshold: float) -> list[Visit]:
    """The steps at which a prompt was asked, and its samples there."""
    mine = table.filter(pc.equal(table["prompt"], pa.scalar(digest, table.schema.field("prompt").type)))
    steps = mine["step"].to_numpy()
    samples = mine["sample"].to_pylist()
    rewards, lengths = mine["reward"].to_pylist(), mine["response_tokens"].to_pylist()
    found = []
    for start in np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]]).tolist() if len(steps) else []:
        stop = int(np.searchsorted(steps, steps[start], "right"))
        found.append(
            _visit(
                int(steps[start]), samples[start:stop], rewards[start:stop], lengths[start:stop], threshold
            )
        )
    return found


def _visit(
    step: int, samples: list[int], rewards: list[float | None], lengths: list[int | None], threshold: float
) -> Visit:
    values = [reward if reward is not None and np.isfinite(reward) else None for reward in rewards]
    order = sorted(range(len(samples)), key=lambda at: -(v if (v := values[at]) is not None else -np.inf))
    known = [value for value in values if value is not None]
    sizes = [size for size in lengths if size is not None]
    return Visit(
        step=step,
        samples=tuple(samples[at] for at in order),
        rewards=tuple(values[at] for at in order),
        mean=float(np.mean(known)) if known else None,
        pass_rate=float(np.mean([value >= threshold for value in known])) if known else None,
        length=float(np.mean(sizes)) if sizes else None,
        longest=max(sizes, default=None),
    )
