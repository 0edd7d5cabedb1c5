"""The noise floor of a tape: how far runs of the very same code lie apart, kept on the tape as noise.json."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.storage import Storage
from rolltape.storage.memory_limit import check_memory
from rolltape.tape.manifest import read_manifest
from rolltape.tape.place import check_note
from rolltape.verify.comparison import Comparison

NAME = "noise.json"


@dataclass(frozen=True, slots=True)
class Floor:
    """The largest absolute error that each thing showed between runs of the baseline."""

    runs: int
    measured: str = ""
    """When, in UTC."""
    command: tuple[str, ...] = ()
    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    """By stage (or ``metrics``) and name; what is not in here was never seen."""
    means: dict[tuple[str, str], float] = field(default_factory=dict)
    """How far the errors of each leaned to one side at any step, at most; older floors do not say."""
    carried: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    """The same up to each step, where one unit of rounding was added: it grows from step to step."""

    def of(self, stage: str, name: str, step: int | None = None) -> float | None:
        """The noise of one thing, up to a step where it is known by step; None where it was not measured."""
        steps = self.carried.get((stage, name))
        if step is None or not steps:
            return self.errors.get((stage, name))
        return max((error for at, error in steps.items() if at <= step), default=0.0)

    def __str__(self) -> str:
        noisy = sum(error > 0 for error in self.errors.values())
        moved = ", with one unit of rounding added" if self.carried else ""
        return (
            f"{self.runs} runs of {self.measured[:10]}{moved}: {noisy} of {len(self.errors)} things are noisy"
        )


def measured(comparisons: Sequence[Comparison], command: Sequence[str], *, by_step: bool = False) -> Floor:
    """The floor that some runs show. What could not be compared in one of them has none."""
    errors: dict[tuple[str, str], float] = {}
    means: dict[tuple[str, str], float] = {}
    carried: dict[tuple[str, str], dict[int, float]] = {}
    lost: set[tuple[str, str]] = set()
    for comparison in comparisons:
        for entry in comparison.entries:
            key = entry.stage, entry.name
            if entry.note or entry.difference is None or entry.difference.nonfinite:
                lost.add(key)
            elif entry.error < float("inf"):
                errors[key] = max(errors.get(key, 0.0), entry.error)
                means[key] = max(means.get(key, 0.0), entry.difference.lean)
                steps = carried.setdefault(key, {})
                steps[entry.step] = max(steps.get(entry.step, 0.0), entry.error)
            else:
                lost.add(key)
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    errors, means = ({k: v for k, v in found.items() if k not in lost} for found in (errors, means))
    kept = {key: steps for key, steps in carried.items() if by_step and key not in lost}
    return Floor(len(comparisons), now, tuple(command), errors, means, kept)


def write_floor(storage: Storage, floor: Floor) -> None:
    """Keep a floor on the tape; an older one is replaced."""
    manifest = read_manifest(storage)
    node = {
        "tape": manifest and manifest.id,
        "runs": floor.runs,
        "measured": floor.measured,
        "command": list(floor.command),
        "errors": [[*key, error] for key, error in floor.errors.items()],
        "means": [[*key, mean] for key, mean in floor.means.items()],
        "carried": [[*key, sorted(steps.items())] for key, steps in floor.carried.items()],
    }
    storage.publish(NAME, [json.dumps(node, indent=1, allow_nan=False).encode() + b"\n"], replace=True)


def read_floor(storage: Storage) -> Floor | None:
    """The floor on a tape; None where none was measured."""
    try:
        text = bytes(storage.read(NAME))
    except StepMissingError:
        return None
    check_memory(16 * len(text), "reading the noise floor", f"{storage.location}/{NAME}")
    try:
        node: Any = json.loads(text)
        errors, means = (
            {(str(stage), str(name)): float(size) for stage, name, size in found}
            for found in (node["errors"], node.get("means", ()))
        )
        carried = {
            (str(stage), str(name)): {int(step): float(error) for step, error in steps}
            for stage, name, steps in node.get("carried", ())
        }
        floor = Floor(
            int(node["runs"]), str(node["measured"]), tuple(node["command"]), errors, means, carried
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptFileError(
            f"the noise floor cannot be read: {error!r:.200}",
            where=f"{storage.location}/{NAME}",
            hint="measure it anew: rolltape noise TAPE -- COMMAND",
        ) from None
    check_note(storage, node, f"{storage.location}/{NAME}")
    return floor
