"""One stage at one step, whatever its calls and shards: its samples by (uid, index), columns as asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.floats import FLOATS, decode, nearest, values
from rolltape.batch.roles import columns_with, has_role
from rolltape.cached import cached_property
from rolltape.codec.header import StoredColumn
from rolltape.codec.identity import indices, own_indices
from rolltape.reader.stored_file import Id, StoredFile
from rolltape.reader.token_places import PER_TOKEN, whose
from rolltape.tape.recording import Recording

STATES = ("state", "weights")
"""Stages that hold what a step starts from, the weights and the optimizer: none of their rows is a sample."""
OF_SAMPLES = (
    "prompt_ids", "response_ids", "token_ids", "prompt_text", "response_text", "reward", "advantage",
)  # fmt: skip
"""Roles of columns that only samples have."""


class Columns(Mapping[str, Column]):
    """Columns by name, each expanded when it is first asked for."""

    def __init__(self, makers: dict[str, Callable[[], Column]]) -> None:
        self._makers = makers
        self._known: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._known:
            self._known[name] = self._makers[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers  # to ask is not to expand

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def borrow(self, names: Iterable[str], lender: Columns) -> None:
        """Take columns that are known to be the same from another side, which expands them once for both."""
        self._makers |= {name: partial(lender.__getitem__, name) for name in names}


@dataclass(frozen=True, slots=True)
class Kept:
    """The places of each row that count: a slice where they are in one piece."""

    parts: list[slice | np.ndarray]
    counts: np.ndarray
    """How many they are."""
    proven: bool = True
    """Whether a mask or a column of lengths says so, and not just how the ids look."""

    def take(self, rows: np.ndarray) -> Kept:
        """The same for some rows, in an order."""
        return Kept([self.parts[at] for at in rows], self.counts[rows], self.proven)


class Row(Mapping[str, Any]):
    """One sample: what each column has for it, read when it is asked for."""

    def __init__(self, samples: Samples, at: int) -> None:
        self._samples = samples
        self.at = at
        """Its place in the stage."""

    @property
    def uid(self) -> str:
        """Whose group it is in."""
        return self._samples.ids[self.at][0]

    @property
    def index(self) -> int:
        """Which of its group it is."""
        return self._samples.ids[self.at][1]

    def __getitem__(self, name: str) -> Any:
        file, _ = self._samples.locate(self.at)
        if name not in file.columns:  # `get` and `in` of a mapping ask for a KeyError
            raise KeyError(f"{name!r} is not a column; there are: {', '.join(file.columns)}")
        return self._samples.cell(name, self.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples.stored)

    def __len__(self) -> int:
        return len(self._samples.stored)

    def __repr__(self) -> str:
        return f"Row(uid={self.uid!r}, index={self.index}, columns={list(self)})"


class Samples(Sequence[Row]):
    """The samples of a stage at a step, and what it returned besides.

    ``samples[0]`` is the first, ``samples["u7", 1]`` the second of the group ``u7``.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        *,
        whole: bool = False,
        rollout: Samples | None = None,
        names: Mapping[Id, Id] | None = None,
    ) -> None:
        self.recordings = list(recordings)
        self.rollout = rollout
        """The rollout of the step, whose masks say which places are tokens where this stage has none."""
        self.names = names
        """What samples are called instead, where another tape has other names for them."""
        self._whole = whole
        self._cells: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return sum(file.samples for file in self.files)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [Row(self, row) for row in range(*at.indices(len(self)))]
        if isinstance(at, tuple):
            return Row(self, self.places[at])
        row = range(len(self))[at]
        return Row(self, row)

    def __repr__(self) -> str:
        return f"Samples({len(self)} samples, columns={list(self.columns)})"

    @cached_property
    def files(self) -> tuple[StoredFile, ...]:
        """Where they are from: a file for each call and shard."""
        return tuple(StoredFile(recording, whole=self._whole) for recording in self.recordings)

    @cached_property
    def ids(self) -> list[Id]:
        """Who each sample is. One that comes twice, in two calls say, is told apart by which time it is."""
        return [one for mine in self._ids for one in mine]

    @cached_property
    def _ids(self) -> list[list[Id]]:
        """The same by file."""
        seen: Counter[Id] = Counter()
        told = []
        for one in self._recorded_ids:
            told.append(one if not seen[one] else (f"{one[0]} ({seen[one] + 1})", one[1]))
            seen[one] += 1
        rest = iter(told if self.names is None else [self.names.get(one, one) for one in told])
        return [list(islice(rest, file.samples)) for file in self.files]

    @cached_property
    def _recorded_ids(self) -> list[Id]:
        """Who each sample is, judged over all calls and shards: one may hold a part of a group only."""
        every = list(chain.from_iterable(file.ids for file in self.files))
        if len(self.files) < 2:
            return every
        uids = [uid for uid, _ in every]
        return list(zip(uids, indices(uids, self._own_indices(), again=True).tolist(), strict=True))

    def _own_indices(self) -> Iterator[tuple[str, np.ndarray]]:
        """The columns that may say which of its group a sample is, of all calls and shards."""
        for name in columns_with(self.stored, "index"):
            if self.stored[name].kind == "ragged" or self.stored[name].shape:
                continue
            pieces = [(file, own_indices(file.column(name))) for file in self.files]
            if all(own is not None and _tells_apart(file, own) for file, own in pieces):
                yield name, np.concatenate([own for _, own in pieces])

    @cached_property
    def counted(self) -> bool:
        """Whether samples of a uid are told apart by their order alone."""
        told = [index for _, index in self._recorded_ids]
        return not any(np.array_equal(own, told) for _, own in self._own_indices())

    @cached_property
    def anonymous(self) -> bool:
        """Whether nothing says who the samples are: they can only be told by their order."""
        return not any(uid for file in self.files for uid, _ in file.ids)

    @cached_property
    def are_samples(self) -> bool:
        """Whether its rows are samples, and not those of weights or of arrays that happen to be as long.

        What has uids is of samples, and so is what has a row for each of the rollout, or a column that only
        samples have.
        """
        if any(recording.key.stage in STATES for recording in self.recordings):
            return False
        if not self.anonymous or self.rollout is None or len(self) == len(self.rollout):
            return True
        return bool(columns_with(self.stored, *OF_SAMPLES))

    @cached_property
    def places(self) -> dict[Id, int]:
        """Where each sample is."""
        return {one: at for at, one in enumerate(self.ids)}

    @cached_property
    def columns(self) -> Columns:
        """Every column that any call or shard has, expanded when it is asked for."""
        names = dict.fromkeys(name for file in self.files for name in file.columns)
        files = self.files  # not self: a cycle would keep the columns until the garbage is collected
        return Columns({name: partial(_joined, name, files) for name in names})

    @property
    def circumstances(self) -> frozenset[str]:
        """Columns that every call and shard says are about how it went, not about what came of it."""
        return frozenset.intersection(*(file.recording.about.circumstances for file in self.files))

    @cached_property
    def stored(self) -> dict[str, StoredColumn]:
        """The columns that every call and shard has, as the first of them stores them."""
        first, *others = [file.columns for file in self.files]
        return {name: column for name, column in first.items() if all(name in other for other in others)}

    @cached_property
    def apart(self) -> dict[str, list[Id]]:
        """The samples of those columns that not every call has."""
        missing = [name for name in self.columns if any(name not in file.columns for file in self.files)]
        files = list(zip(self.files, self._ids, strict=True))
        return {
            name: [one for file, mine in files if name in file.columns for one in mine] for name in missing
        }

    def ids_of(self, column: str) -> list[Id]:
        """The samples that a column has."""
        return self.apart.get(column, self.ids)

    @cached_property
    def values(self) -> dict[str, Any]:
        """What belongs to no sample: numbers and texts as they are, arrays as :class:`Bits`."""
        several = len(self.files) > 1
        return {
            f"call {at}: {name}" if several else name: value
            for at, file in enumerate(self.files)
            for name, value in file.values()
        }

    @cached_property
    def token_counts(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """How many tokens the prompt and the response of each sample have; None where nothing tells."""
        found = [file.places.counts for file in self.files]
        prompt, response = (
            None if any(side[at] is None for side in found) else np.concatenate([side[at] for side in found])
            for at in (0, 1)
        )
        return prompt, response

    def kept(self, name: str, *, trained: bool = False, masks: bool = False) -> Kept | None:
        """The places of each row of a column that are tokens, or are trained on; None where nothing tells.

        Of masks, that is said only where it is asked for: they are what tells it of others.
        """
        found = [
            self._kept(file, ids, name, trained, masks)
            for file, ids in zip(self.files, self._ids, strict=True)
            if name in file.columns
        ]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found):
            return None
        parts = [part for one in known for part in one.parts]
        return Kept(parts, np.concatenate([one.counts for one in known]), all(one.proven for one in known))

    def told_elsewhere(self, name: str) -> bool:
        """Whether it takes the rollout to tell which places of a column's rows are tokens."""
        return any(
            self._per_token(file, name) and (part is None or not part.proven)
            for file in self.files
            if name in file.columns
            for part in [file.places.part_of(name)]
        )

    def _per_token(self, file: StoredFile, name: str) -> bool:
        """Whether rows have a number per token of the rollout: by their name, or as floats of that width."""
        entry = file.columns[name]
        if self.rollout is None or entry.kind != "array" or not entry.shape:
            return False
        if has_role(name, *PER_TOKEN):
            return True
        if entry.dtype not in FLOATS or len(entry.shape) > 1:
            return False
        parts = [other.places.parts.get(whose(name)) for other in self.rollout.files]
        return all(part is not None and part.tokens.width == entry.shape[0] for part in parts)

    def _kept(self, file: StoredFile, ids: list[Id], name: str, trained: bool, masks: bool) -> Kept | None:
        if file.columns[name].kind == "ragged":
            rows = file.places.trained_rows(name) if trained else None
            return None if rows is None else Kept([*rows], np.array([int(row.sum()) for row in rows]))
        part = file.places.part_of(name, masks=masks)
        told = part is not None and part.proven
        if not told and (found := self._as_in_rollout(file, ids, name, trained)) is not None:
            return found
        if part is None:
            return None
        places = part.trained if trained else part.tokens
        return Kept([places.of(row) for row in range(file.samples)], places.counts, part.proven)

    def _as_in_rollout(self, file: StoredFile, ids: list[Id], name: str, trained: bool) -> Kept | None:
        """The places that are tokens as the masks of the rollout say, for rows with a number per token."""
        rollout, entry = self.rollout, file.columns[name]
        if rollout is None or not self._per_token(file, name):
            return None
        if not all(one in rollout.places for one in ids):
            return None
        parts: list[slice | np.ndarray] = []
        for one in ids:
            other, row = rollout.locate(rollout.places[one])
            part = other.places.parts.get(whose(name))
            if part is None or not part.proven:
                return None
            places, tokens = part.trained if trained else part.tokens, part.tokens
            if tokens.width == entry.shape[0]:
                parts.append(places.of(row))
                continue
            start, stop = int(tokens.start[row]), int(tokens.stop[row])  # padded to another width
            if stop - start > entry.shape[0]:
                return None
            in_front = tokens.start.any() and bool((tokens.stop == tokens.width).all())
            mine = (
                slice(entry.shape[0] - stop + start, entry.shape[0]) if in_front else slice(0, stop - start)
            )
            on = np.zeros(entry.shape[0], bool)
            on[mine] = places.mask(slice(row, row + 1))[0, start:stop]
            parts.append(mine if on[mine].all() else on)
        counts = [part.stop - part.start if isinstance(part, slice) else int(part.sum()) for part in parts]
        return Kept(parts, np.array(counts, np.int64))

    def cell(self, name: str, sample: int) -> Any:
        """What one sample has in a column: an array, a number or a value."""
        file, at = self.locate(sample)
        column = file.cell(name, at)
        row = column.rows()[0]
        return row if isinstance(column, ObjectColumn) else decode(np.asarray(row), column.dtype)

    def cells(self, name: str) -> list[Any]:
        """What every sample has in a column: floats as float64, one array, number or value each."""
        if name not in self._cells:
            self._cells[name] = [row for file in self.files for row in _numeric(file.column(name)).rows()]
        return self._cells[name]

    def numbers(self, name: str) -> np.ndarray:
        """One number per sample: the value, or the sum of a row; NaN where there is none."""
        return np.concatenate([_sums(file.column(name)) for file in self.files])

    def means(self, name: str) -> np.ndarray:
        """The mean over those of each sample's tokens that are trained on; NaN where it has none."""
        return np.concatenate([_means(file, name) for file in self.files])

    def locate(self, sample: int) -> tuple[StoredFile, int]:
        """The file a sample is in, and its row there."""
        at = sample
        for file in self.files if at >= 0 else ():
            if at < file.samples:
                return file, at
            at -= file.samples
        raise IndexError(sample)


def _tells_apart(file: StoredFile, own: np.ndarray) -> bool:
    return len({(uid, at) for (uid, _), at in zip(file.ids, own.tolist(), strict=True)}) == file.samples


def _joined(name: str, files: Sequence[StoredFile]) -> Column:
    return join([file.column(name) for file in files if name in file.columns])


def join(pieces: Sequence[Column]) -> Column:
    """Columns one after the other; arrays of differing widths become rows of their own lengths."""
    if len(pieces) == 1:
        return pieces[0]
    arrays = [piece for piece in pieces if isinstance(piece, ArrayColumn)]
    plain = [piece for piece in pieces if not isinstance(piece, ObjectColumn)]
    every = [row for piece in pieces for row in piece.rows()]
    if len(plain) < len(pieces) or len({piece.dtype for piece in plain}) > 1:
        return ObjectColumn(every)
    if len(arrays) == len(pieces) and len({array.data.shape[1:] for array in arrays}) == 1:
        return ArrayColumn(np.concatenate([array.data for array in arrays]), arrays[0].dtype)
    if len({row.shape[1:] for row in every}) > 1 or not all(row.ndim for row in every):
        return ObjectColumn(every)
    lengths = np.array([len(row) for row in every], np.int64)
    return RaggedColumn(np.concatenate(every), lengths, plain[0].dtype)


def _numeric(column: Column) -> Column:
    """A column whose floats are doubles."""
    if isinstance(column, ObjectColumn) or column.dtype not in FLOATS:
        return column
    if isinstance(column, RaggedColumn):
        return RaggedColumn(values(column.values, column.dtype), column.lengths, "float64")
    return ArrayColumn(values(column.data, column.dtype), "float64")


def _sums(column: Column) -> np.ndarray:
    if isinstance(column, ObjectColumn):
        numeric = (bool, int, float, np.number)
        return np.array([nearest(v) if isinstance(v, numeric) else np.nan for v in column.values], np.float64)
    column = _numeric(column)
    if isinstance(column, RaggedColumn):
        sums, filled = np.zeros(len(column.lengths)), column.lengths > 0
        starts = (np.cumsum(column.lengths) - column.lengths)[filled]
        with np.errstate(invalid="ignore"):  # infinities of both signs
            if filled.any():
                flat = column.values.reshape(len(column.values), -1).astype(np.float64).sum(axis=1)
                sums[filled] = np.add.reduceat(flat, starts)
        return sums
    numbers = column.data.astype(np.float64)  # type: ignore[union-attr]
    return np.asarray(numbers.reshape(len(numbers), -1).sum(axis=1) if numbers.ndim > 1 else numbers)


def _means(file: StoredFile, name: str) -> np.ndarray:
    column = file.column(name)
    part = file.places.part_of(name) if isinstance(column, ArrayColumn) else None
    if part is not None:
        on = part.trained.mask()
        rows = _numeric(column).data  # type: ignore[union-attr]
        on = on.reshape(*on.shape, *[1] * (rows.ndim - 2))
        sums = np.where(on, rows, 0).reshape(len(rows), -1).sum(axis=1, dtype=np.float64)
        counts = part.trained.counts
    elif isinstance(column, RaggedColumn):
        sums, counts = _sums(column), column.lengths
    elif isinstance(column, ArrayColumn) and column.data.ndim > 1:  # zeros that end a row are padding
        filled = column.data.reshape(len(column.data), -1) != 0
        sums = _sums(column)
        counts = np.where(filled.any(axis=1), filled.shape[1] - filled[:, ::-1].argmax(axis=1), 0)
    else:
        sums, counts = _sums(column), np.ones(column.samples)
    found: np.ndarray = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return found
