"""Which places of a row are tokens: the one answer, for counting, showing, exporting and comparing alike.

Masks decide where there are any, whatever they are called. An attention mask is on exactly where tokens are.
A mask of the response says what is trained on: its tokens go from the first place that is on to the last,
with what a tool said in between. Without a mask a column of lengths decides. Where there is neither, it is
the row without the padding that the codec found around the ids, on the side where such rows are padded; a
first or last token that equals the padding is then taken for padding, so such a part is not ``proven``: it is
good enough to count and to show, not to compare. Most of this is known from the row bounds in a file: rows
are read only where a mask has holes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rolltape.batch.columns import Column, RaggedColumn
from rolltape.batch.roles import columns_with, has_role
from rolltape.cached import cached_property
from rolltape.codec.header import StoredColumn

MASK_ROLES = ("response_mask", "prompt_mask", "attention_mask")
PER_TOKEN = (
    "rollout_logprobs", "new_logprobs", "old_logprobs", "ref_logprobs", "logprobs",
    "advantage", "return", "value", "loss", "entropy", "reward", "token_reward",
    "per_token",
)  # fmt: skip
"""Roles of columns that have a number for each token, where they have rows at all."""


@dataclass(frozen=True, slots=True)
class Places:
    """In each row the places ``[start, stop)``; of those only the ones that are ``on``, where that is set."""

    width: int
    start: np.ndarray
    stop: np.ndarray
    on: np.ndarray | None = None
    """Samples × width, where some places in between do not count."""

    @property
    def counts(self) -> np.ndarray:
        """How many places count in each row."""
        counts: np.ndarray = self.stop - self.start if self.on is None else self.on.sum(axis=1)
        return counts

    def part(self, low: int, high: int) -> Places:
        """The same for the places between two of the row."""
        if self.on is not None:
            return _of_mask(self.on[:, low:high])
        start, stop = (np.clip(bound - low, 0, high - low) for bound in (self.start, self.stop))
        return Places(high - low, start, stop)

    def mask(self, rows: slice = slice(None)) -> np.ndarray:
        """Samples × width: which places count, in all rows or some."""
        if self.on is not None:
            return self.on[rows]
        at = np.arange(self.width)
        return np.asarray((at >= self.start[rows, None]) & (at < self.stop[rows, None]))

    def of(self, row: int) -> slice | np.ndarray:
        """What selects the places of one row: a slice where they are in one piece."""
        return slice(int(self.start[row]), int(self.stop[row])) if self.on is None else self.on[row]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one width that go together: those of prompts, of responses, or of both in one row."""

    tokens: Places
    trained: Places
    """The places that a loss counts; the same as ``tokens`` unless a mask has holes."""
    proven: bool = True
    """Whether a mask or a column of lengths says so; else it is a guess from how the ids look."""


class TokenPlaces:
    """What of the rows of one file are tokens. ``read`` expands a column, ``bounds`` tells its row bounds."""

    def __init__(
        self,
        stored: Mapping[str, StoredColumn],
        samples: int,
        read: Callable[[str], Column],
        bounds: Callable[[str], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self._stored, self._samples, self._read, self._bounds = stored, samples, read, bounds

    def part_of(self, column: str, *, masks: bool = False) -> Part | None:
        """Whose places the rows of a column are; None where nothing tells, and for ``masks`` unless asked."""
        entry = self._stored[column]
        if entry.kind != "array" or not entry.shape or (not masks and has_role(column, *MASK_ROLES)):
            return None
        fitting = {name: part for name, part in self.parts.items() if part.tokens.width == entry.shape[0]}
        found = fitting.get(whose(column)) or next(iter(fitting.values()), None)
        return found or self._next_tokens(column, entry.shape[0])

    def _next_tokens(self, column: str, width: int) -> Part | None:
        """Log-probs of whole rows often have one place less: the first token has none."""
        whole = self.parts.get("whole")
        if whole is None or whole.tokens.width != width + 1 or not has_role(column, *PER_TOKEN):
            return None
        return _part(whole.tokens.part(1, width + 1), whole.trained.part(1, width + 1), whole.proven)

    def trained_rows(self, column: str) -> list[np.ndarray] | None:
        """For each row of a ragged column which of its places a mask has on; None where no mask tells."""
        for name in columns_with(self._stored, "response_mask"):
            if name != column and self._stored[name].kind == "ragged" and not self._stored[name].shape:
                mask, rows = self._read(name), self._read(column)
                assert isinstance(mask, RaggedColumn)
                assert isinstance(rows, RaggedColumn)
                if np.array_equal(mask.lengths, rows.lengths) and not mask.values.all():
                    return [row != 0 for row in mask.rows()]
        return None

    @cached_property
    def counts(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """How many tokens the prompt and the response of each sample have; None where nothing tells."""
        prompt, response, whole = (self.parts.get(name) for name in ("prompt", "response", "whole"))
        asked = self._ragged("prompt_ids") if prompt is None else prompt.tokens.counts
        said = self._ragged("response_ids") if response is None else response.tokens.counts
        every = self._ragged("token_ids") if whole is None else whole.tokens.counts
        if every is None:
            return asked, said
        if said is None:
            said = self._inside(whole)
        if asked is None and (said is None or (every >= said).all()):
            asked = every if said is None else every - said
        return asked, said

    def _inside(self, whole: Part | None) -> np.ndarray | None:
        """How many places the response takes of rows that hold the prompt too."""
        if whole is not None and whole.trained is not whole.tokens:
            lengths: np.ndarray = whole.trained.stop - whole.trained.start
            return lengths
        for name in columns_with(self._stored, "token_ids") if whole is None else ():
            masks = self.trained_rows(name) if self._stored[name].kind == "ragged" else None
            if masks is not None:
                ends = [np.flatnonzero(mask)[[0, -1]] if mask.any() else (0, -1) for mask in masks]
                return np.array([last - first + 1 for first, last in ends], np.int64)
        return self._lengths("response_length")

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The parts that rows of one width can belong to: ``prompt``, ``response``, ``whole``."""
        prompt, response, whole = (self._row(role) for role in ("prompt_ids", "response_ids", "token_ids"))
        seen, own, asked = (self._mask(role) for role in ("attention_mask", "response_mask", "prompt_mask"))
        cut = self._cut(prompt, response, whole)
        found: dict[str, Part] = {}
        if response is not None:
            trained = (
                own.part(cut, cut + response.width) if own and cut + response.width == own.width else own
            )
            trained = trained if trained is not None and trained.width == response.width else None
        if response is not None and cut and seen is not None and seen.width == cut + response.width:
            found = {
                "prompt": _part(seen.part(0, cut)),
                "response": _part(seen.part(cut, seen.width), trained),
            }
        else:
            alone = prompt is None or response is None or prompt.width != response.width
            if prompt is not None:
                found["prompt"] = self._prompt(prompt, asked, seen if alone else None)
            if response is not None:
                found["response"] = self._response(response, trained, seen if alone else None)
        if (row := self._whole(found, whole, seen, own)) is not None:
            found["whole"] = row
        if own is not None and all(part.tokens.width != own.width for part in found.values()):
            found.setdefault("response", Part(Places(own.width, own.start, own.stop), own))
        return found

    @staticmethod
    def _cut(prompt: StoredColumn | None, response: StoredColumn | None, whole: StoredColumn | None) -> int:
        """Where the response begins in a row that holds the prompt too; 0 where there is no such row."""
        if response is None:
            return 0
        if prompt is not None:
            return prompt.width
        inside = whole is not None and response.of == (
            whole.name,
        )  # the file proves it to be a part of those
        return response.offset if inside and response.offset + response.width == whole.width else 0  # type: ignore[union-attr]

    def _whole(
        self, found: Mapping[str, Part], ids: StoredColumn | None, seen: Places | None, own: Places | None
    ) -> Part | None:
        """Rows that hold prompt and response."""
        proven = False
        if "prompt" in found and "response" in found:
            tokens = _joined(found["prompt"].tokens, found["response"].tokens)
            proven = found["prompt"].proven and found["response"].proven
        elif ids is not None:
            tokens = Places(ids.width, *self._span(ids))
        elif seen is not None and not found:
            tokens = seen
        else:
            return None
        trained = own if own is not None and own.width == tokens.width else None
        if seen is not None and seen.width == tokens.width:
            return _part(seen, trained)
        if trained is not None and tokens.on is None:  # what is trained on is a token, whatever it looks like
            some = trained.start < trained.stop
            start = np.where(some, np.minimum(tokens.start, trained.start), tokens.start)
            tokens = Places(
                tokens.width, start, np.where(some, np.maximum(tokens.stop, trained.stop), tokens.stop)
            )
        return _part(tokens, trained, proven)

    def _prompt(self, ids: StoredColumn, asked: Places | None, seen: Places | None) -> Part:
        for mask in (asked, seen):
            if mask is not None and mask.width == ids.width:
                return _part(mask)
        start, stop = self._span(ids)
        everything, lengths = self._everything(ids.width), self._said("prompt_length", ids.width)
        if self._left(ids):  # prompts are padded in front; what the codec found behind is chance then
            begin = start if lengths is None else ids.width - lengths
            return _part(Places(ids.width, begin, everything.stop), proven=lengths is not None)
        end = stop if lengths is None else lengths
        return _part(Places(ids.width, everything.start, end), proven=lengths is not None)

    def _response(self, ids: StoredColumn, trained: Places | None, seen: Places | None) -> Part:
        if seen is not None and seen.width == ids.width:
            return _part(seen, trained)
        if trained is not None:
            return _part(Places(ids.width, self._begins(ids, trained), trained.stop), trained)
        lengths = self._said("response_length", ids.width)
        end = self._span(ids)[1] if lengths is None else lengths
        return _part(Places(ids.width, self._everything(ids.width).start, end), proven=lengths is not None)

    def _said(self, role: str, width: int) -> np.ndarray | None:
        """The lengths that a column says, where rows of this width can have them."""
        said = self._lengths(role)
        fits = said is not None and len(said) == self._samples and ((said >= 0) & (said <= width)).all()
        return said if fits else None

    def _begins(self, ids: StoredColumn, trained: Places) -> np.ndarray:
        """Where responses begin whose mask is off in front: there is padding, or what nobody trains on."""
        if not trained.start.any():
            return trained.start
        rows = self._read(ids.name).data  # type: ignore[union-attr]
        before = rows[np.arange(ids.width) < trained.start[:, None]]
        return trained.start if (before == before[0]).all() else np.zeros_like(trained.start)

    def _left(self, ids: StoredColumn) -> bool:
        """Whether the codec found padding in front."""
        return self._left(self._stored[ids.of[0]]) if ids.of else ids.left is not None

    def _row(self, role: str) -> StoredColumn | None:
        found = (self._stored[name] for name in columns_with(self._stored, role))
        return next((entry for entry in found if entry.is_row), None)

    def _mask(self, role: str) -> Places | None:
        entry = self._row(role)
        return None if entry is None else self._on(entry)

    def _on(self, entry: StoredColumn) -> Places:
        """Where a mask is on; from its row bounds where they say it all."""
        if entry.layout == "const" and entry.fill and not entry.left and not entry.right:
            start, stop = self._bounds(entry.name)
            return Places(entry.elements, np.where(start < stop, start, 0), np.where(start < stop, stop, 0))
        if entry.layout == "join":
            left, right = (self._on(self._stored[part]) for part in entry.of)
            if (joined := _joined(left, right)).on is None:
                return joined
        on = self._read(entry.name).data != 0  # type: ignore[union-attr]
        return _of_mask(on.reshape(len(on), entry.elements))  # a joined column may have one number each

    def _span(self, entry: StoredColumn) -> tuple[np.ndarray, np.ndarray]:
        """Where each row begins and ends without the padding that the codec found."""
        if entry.layout in ("span", "const", "ramp"):
            return self._bounds(entry.name)
        if entry.layout == "join":
            first, last = self._stored[entry.of[0]], self._stored[entry.of[-1]]
            return self._span(first)[0], self._span(last)[1] + entry.width - last.elements
        if entry.layout == "part":
            bounds = self._span(self._stored[entry.of[0]])
            start, stop = (np.clip(bound - entry.offset, 0, entry.width) for bound in bounds)
            return start, stop
        everything = self._everything(entry.elements)
        return everything.start, everything.stop

    def _everything(self, width: int) -> Places:
        return Places(width, np.zeros(self._samples, np.int64), np.full(self._samples, width, np.int64))

    def _ragged(self, role: str) -> np.ndarray | None:
        for name in columns_with(self._stored, role):
            if self._stored[name].kind == "ragged" and not self._stored[name].shape:
                column = self._read(name)
                return column.lengths if isinstance(column, RaggedColumn) else None
        return None

    def _lengths(self, role: str) -> np.ndarray | None:
        """What a column of lengths says."""
        for name in columns_with(self._stored, role):
            entry = self._stored[name]
            if entry.kind == "array" and not entry.shape and entry.dtype.startswith(("int", "uint")):
                return self._read(name).data.astype(np.int64)  # type: ignore[union-attr]
            if entry.kind == "objects" and entry.cells == "int":
                values = self._read(name).rows()
                return np.array(values, np.int64) if None not in values else None
        return None


def whose(column: str) -> str:
    """Whether the rows of a column go with the prompt or with the response, as its name says."""
    return "prompt" if "prompt" in column.rsplit("/", 1)[-1] else "response"


def _part(tokens: Places, trained: Places | None = None, proven: bool = True) -> Part:
    """A part whose trained places are a mask's, where that says more than which places are tokens."""
    if trained is None or (
        trained.on is tokens.on is None
        and np.array_equal(trained.start, tokens.start)
        and np.array_equal(trained.stop, tokens.stop)
    ):
        return Part(tokens, tokens, proven)
    return Part(tokens, trained, proven)


def _joined(left: Places, right: Places) -> Places:
    """Rows side by side as one."""
    width = left.width + right.width
    solid = left.on is None and right.on is None
    empty = (left.start == left.stop) | (right.start == right.stop)
    if solid and (empty | ((left.stop == left.width) & (right.start == 0))).all():
        only_right, only_left = left.start == left.stop, right.start == right.stop
        start = np.where(only_right, right.start + left.width, left.start)
        stop = np.where(only_left, left.stop, right.stop + left.width)
        return Places(width, np.minimum(start, stop), stop)
    return _of_mask(np.concatenate([left.mask(), right.mask()], axis=1))


def _of_mask(on: np.ndarray) -> Places:
    """The places where a mask is on."""
    some, width = on.any(axis=1), on.shape[1]
    start = np.where(some, on.argmax(axis=1), 0) if width else np.zeros(len(on), np.int64)
    stop = np.where(some, width - on[:, ::-1].argmax(axis=1), 0) if width else start
    solid = bool((on.sum(axis=1) == stop - start).all())
    return Places(width, start, stop, None if solid else on)
