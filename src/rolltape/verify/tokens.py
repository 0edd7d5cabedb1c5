"""Which token a place in a row of numbers is, as the rollout on the baseline has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rolltape.batch.columns import Column, ObjectColumn
from rolltape.storage import Storage
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.padding import MASKS
from rolltape.verify.side import Id, Side, read, rows

RESPONSE_IDS = (
    "response_ids", "responses", "response_token_ids", "completion_ids", "completion_token_ids",
    "output_ids", "output_token_ids",
)  # fmt: skip
TEXTS = ("response_text", "response_texts", "response", "texts", "text", "completion", "completions")


@dataclass(slots=True)
class Tokens:
    """Looks tokens up on a tape; keeps the last step it read."""

    storage: Storage
    _sides: dict[tuple[str, int], Side | None] = field(default_factory=dict)
    _places: dict[Id, int] = field(default_factory=dict)

    def ids(self, split: str, step: int, sample: Id) -> np.ndarray | None:
        """The response tokens of a sample, padding left out where a mask tells; None where none are there."""
        side = self._side(split, step)
        if side is None or sample not in self._places:
            return None
        at = self._places[sample]
        column = _named(side.columns, RESPONSE_IDS)
        if column is None or isinstance(column, ObjectColumn):
            return None
        row: np.ndarray = rows(column)[at]
        if row.ndim != 1 or row.dtype.kind not in "iu":
            return None
        mask = _named(side.columns, MASKS)
        keep = rows(mask)[at] if mask is not None else None
        return row[np.asarray(keep, bool)] if keep is not None and np.shape(keep) == row.shape else row

    def text(self, split: str, step: int, sample: Id) -> str | None:
        """The response of a sample as text, where the tape has it."""
        side = self._side(split, step)
        column = None if side is None else _named(side.columns, TEXTS)
        if side is None or not isinstance(column, ObjectColumn) or sample not in self._places:
            return None
        value = column.values[self._places[sample]]
        return value if isinstance(value, str) else None

    def _side(self, split: str, step: int) -> Side | None:
        key = split, step
        if key not in self._sides:
            found = [
                Recording(self.storage, k)
                for k in recordings(self.storage, split, "rollout")
                if k.step == step
            ]
            side = read(found) if found else None
            self._sides, self._places = (
                {key: side},
                {one: at for at, one in enumerate(side.ids if side else ())},
            )
        return self._sides[key]


def _named(columns: Mapping[str, Column], names: tuple[str, ...]) -> Column | None:
    by_last = {name.rsplit("/", 1)[-1]: column for name, column in reversed(list(columns.items()))}
    return next((by_last[name] for name in names if name in by_last), None)
