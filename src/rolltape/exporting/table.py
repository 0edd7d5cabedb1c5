"""A recording as a table of samples: which columns it has under which names, read piece by piece."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch import dtypes
from rolltape.batch.columns import Column, ObjectColumn, RaggedColumn
from rolltape.batch.floats import decode
from rolltape.batch.json_values import is_tensor
from rolltape.batch.registry import adapter_for
from rolltape.codec.header import StoredColumn
from rolltape.errors import BatchError, CorruptFileError
from rolltape.reader.stored_file import StoredFile
from rolltape.reader.token_places import Places
from rolltape.reader.visible import as_utf8
from rolltape.reader.wording import whole, written
from rolltape.tape import Recording


def numbers(data: np.ndarray, dtype: str) -> np.ndarray:
    """An array of a dtype that every tool has; no value changes. Complex numbers become pairs."""
    if dtype == "float16":
        return data.astype(np.float32)
    part, count = dtypes.component(dtype)
    if count == 2:
        pairs = np.ascontiguousarray(data).view(part).reshape(*data.shape, 2)
        return numbers(pairs, part)
    if not dtypes.is_raw(dtype):
        return decode(data, dtype)
    if data.dtype.kind in "biuf":  # of numpy's own dtypes, numbers in native order, everything else as text
        return data.astype(data.dtype.newbyteorder("="))
    return data.astype(str).astype(object)


def plain(value: Any) -> Any:
    """A recorded value as JSON has it; NaN and infinities become null, bytes base64, sets lists.

    Whole numbers beyond what Python writes in decimal digits become text, in hexadecimal.
    """
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic):
        return plain(value.item()) if value.dtype.kind in "biufc" else str(value)
    if isinstance(value, int):
        return whole(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {written(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    return _other(value)


def _other(value: Any) -> Any:
    if is_tensor(value):
        value = value.detach().cpu()
        if value.is_nested:
            return [plain(row) for row in value.unbind()]
        return plain((value.float() if value.is_floating_point() else value).tolist())
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    adapter = adapter_for(value)
    if adapter is not None:
        return plain(adapter.to_parts(value))
    return plain(vars(value)) if hasattr(value, "__dict__") else written(value)


def as_json(value: Any) -> str:
    """A value as JSON text; lone surrogates as JSON writes them."""
    return as_utf8(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


OWN = ("step", "uid", "index", "split", "stage", "call")
"""The columns that say which sample a row is; recorded columns of these names get another one."""

RENAMED = "recorded_"
"""What that one begins with."""

PIECE = 512
"""Samples that are read at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some samples of one column: one array or value per sample."""

    values: np.ndarray | list[Any]
    """The numbers of all samples end to end, or one Python value per sample."""
    offsets: np.ndarray | None
    """Where each sample begins in ``values``; None where it has exactly one entry."""

    def of(self, sample: int) -> Any:
        """What one sample has, as JSON has it."""
        if isinstance(self.values, list):
            return plain(self.values[sample])
        at = sample if self.offsets is None else slice(self.offsets[sample], self.offsets[sample + 1])
        part = np.asarray(self.values[at])
        exact = part.dtype.kind in "iub" or (part.dtype.kind == "f" and bool(np.isfinite(part).all()))
        return part.tolist() if exact else plain(part.tolist())


@dataclass(frozen=True, slots=True)
class Piece:
    """Some samples of a recording."""

    recording: Recording
    uid: list[str]
    index: list[int]
    columns: dict[str, Rows]


class Table:
    """One recording, to be read as rows; its header at first, the rest as it is asked for."""

    def __init__(
        self, recording: Recording, wanted: Sequence[str] | None = None, own: Sequence[str] = OWN
    ) -> None:
        self.recording = recording
        self._stored = recording.file.stored_columns
        names = _public_names(list(self._stored), own)
        if wanted is not None:
            by_public = {public: name for name, public in names.items()}
            for name in wanted:
                if name not in by_public and name not in own:
                    hint = f"columns: {', '.join(by_public)}"
                    raise BatchError(f"there is no column {name!r}", where=recording.where, hint=hint)
            names = {by_public[name]: name for name in wanted if name in by_public}
        self.names = names
        """The name in the export of each recorded column."""

    def stored(self) -> dict[str, StoredColumn]:
        """How each exported column is recorded, by its name in the export."""
        return {public: self._stored[name] for name, public in self.names.items()}

    def pieces(self) -> Iterator[Piece]:
        """All samples, some at a time. Raises before the first if the file is damaged."""
        stored = StoredFile(self.recording, whole=True)
        try:
            stored.file.verify()
        except CorruptFileError as error:
            error.where = error.where or self.recording.where
            raise
        for start in range(0, stored.samples, PIECE):
            yield self.piece(stored, start)

    def piece(self, stored: StoredFile, start: int, only: Collection[str] | None = None) -> Piece:
        """The samples from one on, ``PIECE`` at most; ``only`` names columns, and no others are read."""
        stop = min(start + PIECE, stored.samples)
        names = {n: public for n, public in self.names.items() if only is None or public in only}
        with stored.located():
            uid, index = stored.file.identity(start, stop)
            read = stored.file.columns(list(names), start, stop)
            columns = {}
            for name, column in read.items():
                part = stored.places.part_of(name, masks=True)
                columns[names[name]] = _rows(column, None if part is None else part.tokens, start)
        return Piece(self.recording, uid, index, columns)


def _public_names(names: list[str], own: Sequence[str]) -> dict[str, str]:
    """Short names where they are unique; the uid of the recording is ours already."""
    lasts = Counter(name.rsplit("/", 1)[-1] for name in names)
    found: dict[str, str] = {}
    for name in names:
        last = name.rsplit("/", 1)[-1]
        public = last if lasts[last] == 1 else name
        if public == "uid":
            continue
        found[name] = f"{RENAMED}{public}" if public in own else public
    return found


def _rows(column: Column, places: Places | None, start: int) -> Rows:
    """The rows of a column, of those with padding the places that are tokens."""
    if isinstance(column, ObjectColumn):
        return Rows(column.values, None)
    if isinstance(column, RaggedColumn):
        return Rows(numbers(column.values, column.dtype), np.concatenate([[0], np.cumsum(column.lengths)]))
    data = numbers(column.data, column.dtype)
    if column.data.ndim == 1 and data.ndim == 1:
        return Rows(data, None)
    samples, width = data.shape[:2]
    if places is None:
        return Rows(data.reshape(samples * width, *data.shape[2:]), np.arange(samples + 1) * width)
    kept = places.mask(slice(start, start + samples))
    return Rows(data[kept], np.concatenate([[0], np.cumsum(kept.sum(axis=1))]))
