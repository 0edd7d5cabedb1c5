"""Single sequences of a step token by token, read again for whoever wants to look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.trusting.taking import Sides, take


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of one sequence that a loss counts."""

    name: str
    places: list[int]
    """In the response."""
    ids: list[int] | None
    engine: list[float]
    trainer: list[float]

    @property
    def log_ratio(self) -> list[float]:
        """Per token: the trainer's log-prob minus the engine's."""
        return [ours - theirs for theirs, ours in zip(self.engine, self.trainer, strict=True)]


def read_rows(sides: Sides, step: int, names: Sequence[str]) -> list[TokenRow]:
    """Those of the named sequences that the step has."""
    taken = take(sides, step)
    pairs = taken.total if taken.total is not None else taken.drift
    if pairs is None:
        return []
    places = pairs.within if pairs.places is None else pairs.places
    found = []
    for name in names:
        if name in pairs.names:
            row = pairs.row(pairs.names.index(name))
            ids = None if pairs.ids is None else pairs.ids[row].tolist()
            found.append(
                TokenRow(
                    name, places[row].tolist(), ids, pairs.engine[row].tolist(), pairs.trainer[row].tolist()
                )
            )
    return found
