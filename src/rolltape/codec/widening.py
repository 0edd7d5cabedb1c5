"""Rows of one column that were padded to different widths, padded to the widest: only padding is added.

Masks say where the padding is, and what lies there is what is added; where none does, a caller must say what
the padding is. A column that holds a prompt and a response side by side, and columns that go along with it
(masks, position ids), grow where those grow, also in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column
from rolltape.batch.floats import FLOATS
from rolltape.batch.roles import columns_with, has_role
from rolltape.codec.header import StoredColumn
from rolltape.errors import BatchError

Columns = Mapping[str, Column]
Stored = Mapping[str, StoredColumn]

_IDS = ("prompt_ids", "response_ids", "token_ids")
_MASKS = ("attention_mask", "prompt_mask", "response_mask")


def widen(
    pieces: Sequence[dict[str, Column]],
    stored: Sequence[Stored],
    whole: Sequence[Columns],
    pad: int | None = None,
) -> None:
    """Pad the columns of all pieces to the widths of the widest; a ``BatchError`` names what cannot be.

    ``whole`` are the batches that the pieces are of: they may show padding that a piece does not. ``pad`` is
    the padding of token ids, where no mask shows it.
    """
    if len(pieces) < 2:
        return
    work = _Work(pieces, stored, whole, pad)
    grown = [
        {name: work.grown(name, at) for name in work.widths if work.differs(name)}
        for at in range(len(pieces))
    ]
    for columns, new in zip(pieces, grown, strict=True):
        columns.update(new)


@dataclass(slots=True)
class _Work:
    pieces: Sequence[Columns]
    stored: Sequence[Stored]
    whole: Sequence[Columns]
    pad: int | None
    widths: dict[str, list[int]] = field(default_factory=dict)
    """Of columns that have rows: their width in each piece."""

    def __post_init__(self) -> None:
        for name in self.pieces[0]:
            columns = [piece.get(name) for piece in self.pieces]
            found = [
                one.data.shape[1] for one in columns if isinstance(one, ArrayColumn) and one.data.ndim > 1
            ]
            if len(found) == len(self.pieces):
                self.widths[name] = found

    def differs(self, name: str) -> bool:
        """Whether a column, or one that lies in it, has different widths in different pieces."""
        return any(len(set(self.widths[part])) > 1 for part in self._parts(name))

    def grown(self, name: str, at: int) -> ArrayColumn:
        """A column of one piece, as wide as the widest."""
        column = self.pieces[at][name]
        assert isinstance(column, ArrayColumn)
        parts = self._parts(name)
        ends = list(accumulate(self.widths[part][at] for part in parts))
        new = []
        for part, piece in zip(parts, np.split(column.data, ends[:-1], axis=1), strict=True):
            more = max(self.widths[part]) - piece.shape[1]
            if more:
                in_front = self._in_front(part)
                padding = self._padding(name, part, piece, more, in_front=in_front)
                piece = np.concatenate([padding, piece] if in_front else [piece, padding], axis=1)
            new.append(piece)
        return ArrayColumn(np.concatenate(new, axis=1), column.dtype)

    def _parts(self, name: str) -> tuple[str, ...]:
        """The columns whose rows lie side by side in those of this one; itself for one that has none."""
        for parts in self._side_by_side(name):
            sums = [sum(each) for each in zip(*(self.widths[part] for part in parts), strict=True)]
            if name not in parts and sums == self.widths[name]:
                self._check_tokens(name, parts)
                return parts
        return (name,)

    def _check_tokens(self, name: str, parts: tuple[str, ...]) -> None:
        """Refuse a column of which nobody knows whether it has a place for each token of others, or is just
        as wide as they are together: an embedding is as wide in every batch, however wide the others are.
        """
        if len(set(self.widths[name])) > 1 or all(len(set(self.widths[part])) == 1 for part in parts):
            return
        if has_role(name, "token_ids", *_MASKS) or self._tail(name) is not None:
            return
        if not any(one[name].layout in ("join", "part") for one in self.stored):
            raise BatchError(
                f"column {name!r} is {self.widths[name][0]} wide in all recordings, as wide as "
                f"{' and '.join(map(repr, parts))} together, whose widths differ: it may have a place "
                "for each token, or be something else",
                hint="pad every batch to one width, or return lists",
            )

    def _beside(self, name: str, *roles: str) -> list[str]:
        """The columns with a role that can say something of a column: those which stand where it does, if
        there are some. What is chosen and what is rejected have masks of their own.
        """
        near = [one for one in self.widths if _folder(one) == _folder(name)]
        return columns_with(near, *roles) or columns_with(self.widths, *roles)

    def _side_by_side(self, name: str) -> Iterator[tuple[str, ...]]:
        prompt, response = (
            next(iter(self._beside(name, role)), None) for role in ("prompt_ids", "response_ids")
        )
        if prompt is not None and response is not None:
            yield prompt, response
        for stored in self.stored:
            for entry in stored.values():
                if entry.layout == "join" and len(entry.of) > 1 and set(entry.of) <= set(self.widths):
                    yield entry.of

    def _off(self, part: str, at: int) -> np.ndarray | None:
        """The places of a part that are padding, as a mask of one piece says; None where none does."""
        for mask in self._beside(part, *_MASKS):
            column, start = self.whole[at][mask], 0
            assert isinstance(column, ArrayColumn)
            if self.widths[mask] != self.widths[part]:
                beside = self._parts(mask)
                if part not in beside:
                    continue
                start = sum(self.widths[one][at] for one in beside[: beside.index(part)])
            if _whose(mask, part):
                on = column.data[:, start : start + self.widths[part][at]] != 0
                ahead = np.logical_or.accumulate(on, axis=1)
                behind = np.logical_or.accumulate(on[:, ::-1], axis=1)[:, ::-1]
                found: np.ndarray = ~(ahead & behind)  # holes are no padding: a tool may have spoken there
                return found
        return None

    def _in_front(self, part: str) -> bool:
        """Whether a part is padded in front; prompts are, where nothing shows it."""
        offs = [off for at in range(len(self.pieces)) if (off := self._off(part, at)) is not None]
        left = any(off.size and off[:, 0].any() for off in offs)
        right = any(off.size and off[:, -1].any() for off in offs)
        return left if left != right else has_role(part, "prompt_ids", "prompt_mask")

    def _padding(self, name: str, part: str, piece: np.ndarray, more: int, *, in_front: bool) -> np.ndarray:
        shape = (len(piece), more, *piece.shape[2:])
        tail = self._tail(name)
        if tail is not None and not in_front and piece.shape[1]:
            count = np.arange(1, more + 1) if tail == "run" else np.zeros(more)
            return np.asarray(piece[:, -1:] + count.astype(piece.dtype), piece.dtype)
        value = self._value(name, part)
        if value is None and has_role(name, *_IDS):
            value = self.pad if self.pad is not None else self._value_of_ids(name)
        kind = self.stored[0][name].dtype
        if value is None and (
            tail is not None or has_role(name, *_MASKS) or kind in FLOATS or kind == "bool"
        ):
            value = 0
        if value is None:
            raise BatchError(
                f"column {name!r} has other widths in other recordings, and no mask says what its padding is",
                hint="return an attention mask, or lists, or pad every batch to one width; "
                'or say what the padding is: tape.stage(…, by="prompt", pad=…)',
            )
        return np.full(shape, value, piece.dtype)

    def _tail(self, name: str) -> str | None:
        """What position ids do behind a row: ``hold`` the last, or ``run`` on; None for other columns."""
        if has_role(name, *_IDS, *_MASKS):
            return None  # token ids may count up, too
        ramps = [one[name].tail for one in self.stored if one[name].layout == "ramp"]
        if ramps:
            return ramps[0]
        return "hold" if name.rsplit("/", 1)[-1] == "position_ids" else None

    def _value_of_ids(self, name: str) -> object:
        """The padding of other columns of token ids: one batch has one."""
        others = [one for one in self._beside(name, *_IDS) if one != name]
        return next((value for one in others if (value := self._value(one, one)) is not None), None)

    def _value(self, name: str, part: str) -> object:
        """What lies in the padding of a part of a column; None where nothing does, or different things."""
        found: set[bytes] = set()
        kind = None
        for at, columns in enumerate(self.whole):
            off, column = self._off(part, at), columns[name]
            assert isinstance(column, ArrayColumn)
            if off is None:
                continue
            parts = self._parts(name)
            start = sum(self.widths[one][at] for one in parts[: parts.index(part)]) if part in parts else 0
            inside = column.data[:, start : start + self.widths[part][at]]
            if inside.shape[:2] == off.shape and off.any():
                kind = inside.dtype
                bits = inside[off].reshape(-1)
                if kind.itemsize <= 8:  # one NaN may be told from another
                    bits = bits.view(f"u{kind.itemsize}")
                found |= {value.tobytes() for value in np.unique(bits)}
        return np.frombuffer(found.pop(), kind)[0] if len(found) == 1 else None


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _whose(mask: str, part: str) -> bool:
    """Whether a mask can speak for a part: that of the response says nothing about prompts."""
    if has_role(mask, "prompt_mask"):
        return has_role(part, "prompt_ids", "prompt_mask")
    return has_role(mask, "attention_mask") or not has_role(part, "prompt_ids", "prompt_mask", "token_ids")
