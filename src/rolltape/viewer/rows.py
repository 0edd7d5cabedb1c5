"""One stage at one step, whatever its calls and shards: its samples, read as they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.cli.cells import cell_of
from rolltape.cli.tokens import count_tokens
from rolltape.codec.file import RecordingFile
from rolltape.tape.recording import Recording
from rolltape.verify.floats import FLOATS, values
from rolltape.verify.side import rows as split_rows

Id: TypeAlias = tuple[str, int]
"""The uid of a sample, and its index within the group of that uid."""


class Rows:
    """The samples of a stage at a step."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = list(recordings)
        self._cells: dict[str, list[Any]] = {}

    @cached_property
    def files(self) -> list[RecordingFile]:
        return [recording.file for recording in self.recordings]

    @cached_property
    def samples(self) -> int:
        return sum(file.samples for file in self.files)

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The columns that every recording has, as the header of the first describes them."""
        first, *others = [file.header["columns"] for file in self.files]
        return {name: entry for name, entry in first.items() if all(name in other for other in others)}

    @cached_property
    def ids(self) -> list[Id]:
        """Who each sample is. One that comes twice, in two calls say, is told apart by which time it is."""
        every = [one for file in self.files for one in zip(*file.identity(), strict=True)]
        if len(set(every)) == len(every):
            return every
        found: list[Id] = []
        seen: Counter[Id] = Counter()
        for one in every:
            found.append(one if not seen[one] else (f"{one[0]} ({seen[one] + 1})", one[1]))
            seen[one] += 1
        return found

    @cached_property
    def anonymous(self) -> bool:
        """Whether nothing says who the samples are: they can only be told by their order."""
        return not any(uid for file in self.files for uid in file.identity()[0])

    @cached_property
    def places(self) -> dict[Id, int]:
        """Where each sample is."""
        return {one: at for at, one in enumerate(self.ids)}

    def cell(self, name: str, sample: int) -> Any:
        """What one sample has in a column."""
        file, at = self.locate(sample)
        return cell_of(file.columns([name], at, at + 1)[name], 0)

    def cells(self, name: str) -> list[Any]:
        """What every sample has in a column: floats as float64, one array, number or value each."""
        if name not in self._cells:
            self._cells[name] = [cell for file in self.files for cell in _cells(file.columns([name])[name])]
        return self._cells[name]

    def numbers(self, name: str) -> np.ndarray:
        """One number per sample: the value, or the sum of a row; NaN where there is none."""
        return np.concatenate([_numbers(file.columns([name])[name]) for file in self.files])

    def means(self, name: str) -> np.ndarray:
        """The mean over each sample's tokens; NaN where it has none."""
        return np.concatenate([_means(file.columns([name])[name]) for file in self.files])

    @cached_property
    def lengths(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The tokens of every prompt and of every response, from row bounds alone."""
        counted = [count_tokens(file) for file in self.files]
        prompts, responses = [one.prompt for one in counted], [one.response for one in counted]
        return _together(prompts), _together(responses)

    def locate(self, sample: int) -> tuple[RecordingFile, int]:
        """The file a sample is in, and its row there."""
        if sample < 0:
            raise IndexError(sample)
        for file in self.files:
            if sample < file.samples:
                return file, sample
            sample -= file.samples
        raise IndexError(sample)


def _together(parts: list[Any]) -> np.ndarray | None:
    return None if not parts or any(part is None for part in parts) else np.concatenate(parts)


def _cells(column: Column) -> list[Any]:
    if isinstance(column, ObjectColumn):
        return column.values
    if column.dtype not in FLOATS:
        return split_rows(column)
    if isinstance(column, RaggedColumn):
        column = RaggedColumn(values(column.values, column.dtype), column.lengths, "float64")
    else:
        column = ArrayColumn(values(column.data, column.dtype), "float64")
    return split_rows(column)


def _numbers(column: Column) -> np.ndarray:
    if isinstance(column, ObjectColumn):
        numeric = (bool, int, float, np.number)
        return np.array([float(v) if isinstance(v, numeric) else np.nan for v in column.values], np.float64)
    flat = column.values if isinstance(column, RaggedColumn) else column.data
    numbers = values(flat, column.dtype) if column.dtype in FLOATS else flat.astype(np.float64)
    if isinstance(column, RaggedColumn):
        sums, filled = np.zeros(len(column.lengths)), column.lengths > 0
        starts = (np.cumsum(column.lengths) - column.lengths)[filled]
        with np.errstate(invalid="ignore"):  # infinities of both signs
            if filled.any():
                sums[filled] = np.add.reduceat(numbers.reshape(len(numbers), -1).sum(axis=1), starts)
        return sums
    return np.asarray(numbers.reshape(len(numbers), -1).sum(axis=1) if numbers.ndim > 1 else numbers)


def _means(column: Column) -> np.ndarray:
    """Sums by how much there is to sum. Zeros that end a row of a rectangle are padding."""
    sums = _numbers(column)
    if isinstance(column, RaggedColumn):
        counts = column.lengths
    elif isinstance(column, ArrayColumn) and column.data.ndim > 1:
        filled = column.data.reshape(len(column.data), -1) != 0
        counts = np.where(filled.any(axis=1), filled.shape[1] - filled[:, ::-1].argmax(axis=1), 0)
    else:
        counts = np.ones(len(sums))
    found: np.ndarray = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return found
