"""The noise floor of a tape: how far runs of the very same code lie apart, kept on the tape as noise.json."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape.errors import CorruptFileError, StepMissingError
from rolltape.storage import Storage
from rolltape.verify.entries import Comparison

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

    def of(self, stage: str, name: str) -> float | None:
        """The noise of one thing; None where it was not measured."""
        return self.errors.get((stage, name))

    def __str__(self) -> str:
        noisy = sum(error > 0 for error in self.errors.values())
        return f"{self.runs} runs of {self.measured[:10]}: {noisy} of {len(self.errors)} things are noisy"


def measured(comparisons: Sequence[Comparison], command: Sequence[str]) -> Floor:
    """The floor that some runs show. What could not be compared in one of them has none."""
    errors: dict[tuple[str, str], float] = {}
    lost: set[tuple[str, str]] = set()
    for comparison in comparisons:
        for entry in comparison.entries:
            key = entry.stage, entry.name
            if entry.note or entry.difference is None or entry.difference.nonfinite:
                lost.add(key)
            elif entry.error < float("inf"):
                errors[key] = max(errors.get(key, 0.0), entry.error)
            else:
                lost.add(key)
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    return Floor(len(comparisons), now, tuple(command), {k: v for k, v in errors.items() if k not in lost})


def write_floor(storage: Storage, floor: Floor) -> None:
    """Keep a floor on the tape; an older one is replaced."""
    node = {
        "runs": floor.runs,
        "measured": floor.measured,
        "command": list(floor.command),
        "errors": [[stage, name, error] for (stage, name), error in floor.errors.items()],
    }
    storage.publish(NAME, [json.dumps(node, indent=1, allow_nan=False).encode() + b"\n"], replace=True)


def read_floor(storage: Storage) -> Floor | None:
    """The floor on a tape; None where none was measured."""
    try:
        text = bytes(storage.read(NAME))
    except StepMissingError:
        return None
    try:
        node: Any = json.loads(text)
        errors = {(str(stage), str(name)): float(error) for stage, name, error in node["errors"]}
        return Floor(int(node["runs"]), str(node["measured"]), tuple(node["command"]), errors)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"the noise floor cannot be read: {error!r}",
            where=f"{storage.location}/{NAME}",
            hint="measure it anew: rolltape noise TAPE -- COMMAND",
        ) from None
