"""Every promise about speed, size and memory, and whether a run keeps it.

Speeds are promised against others that took turns with us in the same run. They are judged by the fastest
round of each, as other programs only ever add time; the medians stand beside them in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound on a figure of one part of the benchmarks."""

    part: str
    figure: str
    sign: Literal["<=", ">="]
    bound: float
    made_in: str
    """The page that says so."""
    aim: float | None = None
    """What it is meant to become, where that is more than is promised."""

    @property
    def wanted(self) -> str:
        return f"{self.sign} {self.bound:.3g}"


PROMISES = (
    Promise("large", "smaller than pickle", ">=", 40, "README.md"),
    Promise("large", "write, times faster than pickle", ">=", 3, "README.md"),
    Promise("large", "write, times faster than torch.save", ">=", 2.2, "README.md"),
    Promise("large", "read, times faster than pickle", ">=", 4, "README.md"),
    Promise("large", "read, times faster than torch.save", ">=", 2.3, "README.md"),
    Promise("large", "read, in memsets", "<=", 2.5, "README.md"),
    Promise("large", "trainer waits, share of pickle's write", "<=", 0.2, "README.md"),
    Promise("large", "extra memory, in batches", "<=", 0.3, "README.md"),
    Promise("small", "smaller than pickle", ">=", 25, "README.md"),
    Promise("small", "trainer waits, share of pickle's write", "<=", 1.0, "README.md", aim=0.5),
    Promise("small", "read, times faster than pickle", ">=", 1 / 1.5, "README.md", aim=1 / 0.7),
    Promise("arguments", "128 prompts, % of recording their rollout", "<=", 2, "docs/tape.md"),
    Promise("arguments", "128 chats, % of recording their rollout", "<=", 2, "docs/tape.md"),
    Promise("arguments", "256 MB of token ids, passes over memory", "<=", 1.2, "docs/tape.md"),
    Promise("arguments", "256 MB of floats, passes over memory", "<=", 1.2, "docs/tape.md"),
    Promise("growth", "record, 100,000 steps against 100", "<=", 1.5, "README.md"),
    Promise("growth", "replay, 100,000 steps against 100", "<=", 1.5, "README.md"),
    Promise("compact", "open and look at a step, 100,000 folded against 100", "<=", 1.5, "docs/compact.md"),
    Promise("compact", "replay, 100,000 folded steps against 100", "<=", 1.5, "docs/compact.md"),
    Promise("compact", "list a step, 100,000 folded against 100", "<=", 1.5, "docs/compact.md"),
    Promise("compact", "folding, times as long as a copy", "<=", 4, "docs/compact.md"),
    Promise("index", "open, seconds", "<=", 1, "docs/by-content.md"),
    Promise("index", "lookup, ms", "<=", 1, "docs/by-content.md"),
    Promise("index", "recording with the index, % more", "<=", 3, "docs/by-content.md"),
    Promise("verify", "compare the same bits, times reading both", "<=", 1.5, "docs/verify.md"),
    Promise("verify", "compare rounding noise, times reading both", "<=", 2, "docs/verify.md"),
    Promise("verify", "compare rounding noise, re-ordered, times reading both", "<=", 2, "docs/verify.md"),
    Promise("verify", "memory, 6 steps against 2", "<=", 1.2, "docs/verify.md"),
    Promise("viewer", "from the command to the first page, seconds", "<=", 1, "docs/viewer.md"),
    Promise("viewer", "first page, seconds", "<=", 1, "docs/viewer.md"),
    Promise("viewer", "step page, seconds", "<=", 1, "docs/viewer.md"),
    Promise("viewer", "sample page, seconds", "<=", 0.3, "docs/viewer.md"),
    Promise("viewer", "memory, MB", "<=", 500, "docs/viewer.md"),
    Promise("trl", "meter of trust, % of a step", "<=", 1, "docs/trust.md"),
    Promise("many_runs", "index, seconds", "<=", 1, "docs/viewer.md"),
    Promise("many_runs", "overlay of 20 runs, seconds", "<=", 1, "docs/viewer.md"),
    Promise("many_runs", "filter by columns, seconds", "<=", 1, "docs/viewer.md"),
    Promise("many_runs", "first hits of a regular expression, seconds", "<=", 1, "docs/viewer.md"),
    Promise("many_runs", "sample of 100,000 tokens, seconds", "<=", 0.5, "docs/viewer.md"),
    Promise("many_runs", "memory, MB", "<=", 700, "docs/viewer.md"),
    Promise("many_runs", "on disk, GB", "<=", 6, "docs/viewer.md"),
    Promise("trl", "recording, % of a step", "<=", 2, "docs/trl.md"),
    Promise("trl", "recording, % of a step at most", "<=", 2, "docs/trl.md"),
    Promise("trl", "replay of generation, times faster", ">=", 50, "docs/trl.md"),
    Promise("generation", "TransformersEngine against model.generate", ">=", 1.0, "docs/engines-servers.md"),
    Promise("generation", "VLLMEngine against vllm.LLM", ">=", 0.95, "docs/engines-servers.md"),
    Promise("generation", "OpenAIEngine against the bare HTTP call", ">=", 0.95, "docs/engines-servers.md"),
    Promise("generation", "replay, times faster than generation", ">=", 100, "docs/engines-servers.md"),
    Promise("serve", "throughput, times that of vLLM", ">=", 0.95, "docs/serve.md"),
    Promise("serve", "added latency, ms", "<=", 3, "docs/serve.md"),
    Promise("serve", "replay, calls per second", ">=", 2000, "docs/serve.md"),
    Promise("serve", "first answer, seconds after the port is open", "<=", 1, "docs/serve.md"),
    Promise("serve", "memory of a replay, MB", "<=", 700, "docs/serve.md"),
    Promise("store", "upload of 32 MB, times raw obstore", ">=", 0.8, "docs/scale.md"),
    Promise("store", "download of 32 MB, times raw obstore", ">=", 0.8, "docs/scale.md"),
    Promise("store", "upload of small files, times raw obstore", ">=", 0.8, "docs/scale.md"),
    Promise("store", "download of small files, times raw obstore", ">=", 0.8, "docs/scale.md"),
    Promise("store", "replay at 20 ms latency, % of a 1 s step", "<=", 5, "docs/scale.md"),
    Promise("ray_data", "2 workers, times as fast as 1", ">=", 1.0, "docs/ray.md"),
    Promise("ray_data", "4 workers, times as fast as 1", ">=", 1.0, "docs/ray.md"),
    Promise("ray_data", "one column, times as fast as all", ">=", 1.5, "docs/ray.md"),
    Promise("generation", "score, times faster than a padded loop", ">=", 1.0, "docs/engines-servers.md"),
)
_SHAPES = ("large", "wide", "drawn")
_REPLAY: tuple[tuple[str, Literal["<=", ">="], float, float], ...] = (
    ("read, in memsets of fresh memory", "<=", 3, 0.8),
    ("read, times faster than pickle", ">=", 5, 8),
    ("read, times faster than torch.save", ">=", 1.5, 4),
    ("read, times faster than safetensors", ">=", 0.8, 1.2),
    ("pages touched anew, % of the batch", "<=", 5, 0.5),
    ("more pages touched anew in later steps, % of the batch", "<=", 1, 0),
    ("busy trainer waits per step, ms", "<=", 2, 2),
)
PROMISES += tuple(
    Promise("replay", f"{shape}: {figure}", sign, bound, "docs/speed.md", aim)
    for shape in _SHAPES
    for figure, sign, bound, aim in _REPLAY
)
PROMISES += (
    Promise("replay", "long: read, in memsets of fresh memory", "<=", 1.2, "docs/speed.md", 1.2),
    Promise("replay", "long, zeros: read, in memsets of the tight shape", "<=", 1.2, "docs/speed.md", 1.2),
    Promise("replay", "long: jagged, times that of the tight shape", "<=", 2.5, "docs/speed.md", 1.2),
)
_WRITE: tuple[tuple[str, Literal["<=", ">="], float, float], ...] = (
    ("times faster than pickle", ">=", 2.5, 4),
    ("times faster than torch.save", ">=", 1.8, 3),
    ("trainer waits, share of pickle's write", "<=", 0.2, 0.08),
    ("extra memory, in batches", "<=", 0.5, 0.2),
)
PROMISES += tuple(
    Promise("write", f"{shape}: {figure}", sign, bound, "docs/format.md", aim)
    for shape in _SHAPES
    for figure, sign, bound, aim in _WRITE
)
PROMISES += (
    Promise("write", "large: smaller than pickle", ">=", 45, "docs/format.md", 45),
    Promise("write", "wide: smaller than pickle", ">=", 39, "docs/format.md", 39),
    Promise("write", "drawn: smaller than pickle", ">=", 15, "docs/format.md", 15),
    Promise("write", "small: smaller than pickle", ">=", 35, "docs/format.md", 35),
    Promise("write", "small: times faster than pickle", ">=", 0.6, "docs/format.md", 1),
    Promise("write", "small: trainer waits, share of pickle's write", "<=", 0.8, "docs/format.md", 0.5),
    Promise("write", "long: passes over the padding", "<=", 3, "docs/format.md", 1.5),
    Promise("write", "routes: smaller than pickle", ">=", 5, "docs/format.md", 5),
    Promise("write", "top log-probs: smaller than pickle", ">=", 5, "docs/format.md", 5),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured."""

    value: float
    """What counts; of times, that of the fastest rounds."""
    median: float | None = None
    """The same of the rounds in the middle."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and what was measured."""

    promise: Promise
    figure: Figure

    @property
    def kept(self) -> bool:
        return self._meets(self.figure.value, self.promise.bound)

    @property
    def aim(self) -> str:
        """The aim, and whether it is reached: by the medians too, by the fastest rounds alone, or not."""
        aim, figure = self.promise.aim, self.figure
        if aim is None:
            return ""
        reached = "not reached"
        if self._meets(figure.value, aim):
            both = figure.median is None or self._meets(figure.median, aim)
            reached = "reached" if both else "in the fastest rounds"
        return f"{self.promise.sign} {aim:.3g} {reached}"

    def _meets(self, value: float, bound: float) -> bool:
        return value >= bound if self.promise.sign == ">=" else value <= bound

    def __str__(self) -> str:
        promise, median = self.promise, self.figure.median
        beside = "" if median is None else f" (median {median:.3g})"
        said = f"promised {promise.wanted} in {promise.made_in}"
        return f"{promise.part}: {promise.figure}: {self.figure.value:.3g}{beside}, {said}"


def judge(part: str, figures: Mapping[str, Figure]) -> list[Verdict]:
    """A verdict for each promise about this part; one that was not measured is a ``KeyError``."""
    return [Verdict(promise, figures[promise.figure]) for promise in PROMISES if promise.part == part]
