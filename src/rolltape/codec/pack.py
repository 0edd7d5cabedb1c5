"""A dismantled batch as packed columns: trimmed, proven and copied, ready to be encoded elsewhere.

This part runs on the trainer's thread. What it returns shares no memory with the trainer, so that later
in-place edits are harmless; because padding is gone, the copy is a fraction of the batch.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rolltape.batch import dtypes
from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, ObjectColumn, RaggedColumn
from rolltape.batch.json_values import Json
from rolltape.batch.tree import Dismantled
from rolltape.codec.arrow_numbers import list_array, storage, to_arrow
from rolltape.codec.cells import Cells, binary_array, pack_cells
from rolltape.codec.identity import identify
from rolltape.codec.layout import Layout, Planner, Rows
from rolltape.codec.spans import Spans

INLINE_WHOLE = 4096
"""Arrays without a sample axis up to this many bytes are kept in the header."""

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Stored:
    """One Parquet column to be."""

    build: Callable[[], pa.Array]
    nbytes: int
    """Bytes held until it is written."""
    source: tuple[object, ...]
    """What the column's content is made of, for the digest."""


@dataclass(slots=True)
class Packed:
    """A batch without references to the trainer's memory."""

    samples: int
    header: dict[str, Json]
    stored: dict[str, Stored] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.stored.values())

    def digest(self) -> str:
        """A hash of the content: equal batches have equal digests, whoever packed them."""
        state = hashlib.blake2b(digest_size=16)
        state.update(repr((self.samples, self.header)).encode())
        for name, column in sorted(self.stored.items()):
            state.update(name.encode())
            for piece in column.source:
                if isinstance(piece, np.ndarray):
                    state.update(np.ascontiguousarray(piece).data)
                else:
                    state.update(piece if isinstance(piece, bytes) else repr(piece).encode())
        return state.hexdigest()


def pack(parts: Dismantled, identity: tuple[list[str], np.ndarray] | None = None, call: str = "") -> Packed:
    """Copy a dismantled batch into its packed form. ``identity`` is who the samples are, where that is known
    already: of a part of a batch, the order alone would not tell. ``call`` is the name of the call.
    """
    columns: dict[str, Json] = {}
    packed = Packed(parts.samples, {"tree": parts.tree, "columns": columns, "wholes": {}})
    arrays = {n: c for n, c in parts.columns.items() if isinstance(c, ArrayColumn)}
    _pack_arrays(arrays, packed)
    for name, column in parts.columns.items():
        if isinstance(column, RaggedColumn):
            columns[name] = _pack_ragged(name, column, packed)
        elif isinstance(column, ObjectColumn):
            columns[name] = place_cells(name, pack_cells(column.values, column.path or (name,)), packed)
    packed.header["columns"] = {name: columns[name] for name in parts.columns}  # as they were returned
    for name, bits in parts.wholes.items():
        packed.header["wholes"][name] = _pack_whole(name, bits, packed)
    uids, index = identify(parts, call) if identity is None else identity
    encoded = [uid.encode("utf-8", "replace") for uid in uids]
    packed.stored["_uid"] = Stored(lambda: binary_array(pa.string(), encoded), 40 * len(uids), (uids,))
    packed.stored["_index"] = Stored(lambda: to_arrow(index, "int32"), index.nbytes, (index,))
    return packed


def _pack_arrays(arrays: dict[str, ArrayColumn], packed: Packed) -> None:
    """Plan and copy the dense arrays."""
    rows = {n: _rows(n, c) for n, c in arrays.items() if not dtypes.is_raw(c.dtype)}
    layouts = Planner(list(rows.values()), packed.samples).run() if rows else {}
    bounds = _Bounds(packed)
    for name, column in arrays.items():
        layout = layouts.get(name, Layout("bytes"))
        entry: dict[str, Json] = {
            "kind": "array",
            "dtype": column.dtype,
            "shape": list(column.data.shape[1:]),
            "layout": layout.kind,
        }
        entry |= _describe(layout, bounds)
        packed.header["columns"][name] = entry
        if layout.kind == "bytes":
            packed.stored[name] = _raw_rows(column.data)
        elif layout.kind in ("plain", "span"):
            values, lengths = _gather(rows[name].bits, layout.spans)
            packed.stored[name] = _numbers(values, lengths, column.dtype, scalar=column.data.ndim == 1)


def _rows(name: str, column: ArrayColumn) -> Rows:
    """View a dense array as rows of unsigned integers."""
    data = np.ascontiguousarray(column.data)
    item = storage(column.dtype).itemsize
    width = data[0].nbytes // item
    bits = data.reshape(-1).view(_UNSIGNED[item]).reshape(len(data), width)
    counts = data.dtype.kind in "iu" and column.dtype in dtypes.NATIVE
    return Rows(name, bits, column.dtype, data.ndim, counts)


def _gather(bits: np.ndarray, spans: Spans | None) -> tuple[np.ndarray, np.ndarray]:
    """The elements inside the spans, end to end, and the length of each row."""
    if spans is None:
        return bits.reshape(-1).copy(), np.full(len(bits), bits.shape[1], np.int64)
    inside = [
        row[start:stop]
        for row, start, stop in zip(bits, spans.start.tolist(), spans.stop.tolist(), strict=True)
    ]
    return np.concatenate(inside), (spans.stop - spans.start).astype(np.int64)


def _numbers(values: np.ndarray, lengths: np.ndarray, dtype: str, *, scalar: bool) -> Stored:
    part, count = dtypes.component(dtype)
    typed = values.view(dtypes.storage_dtype(part))
    if scalar and count == 1:
        return Stored(lambda: to_arrow(typed, part), values.nbytes, (values,))
    return Stored(lambda: list_array(to_arrow(typed, part), lengths), values.nbytes, (values, lengths))


def _raw_rows(data: np.ndarray) -> Stored:
    flat = np.ascontiguousarray(data).tobytes()
    size = len(flat) // len(data)
    offsets = np.arange(len(data) + 1, dtype=np.int64) * size

    def build() -> pa.Array:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
        return pa.Array.from_buffers(pa.large_binary(), len(data), buffers)

    return Stored(build, len(flat), (flat,))


def _pack_ragged(name: str, column: RaggedColumn, packed: Packed) -> Json:
    values = np.ascontiguousarray(column.values)
    if np.shares_memory(values, column.values):
        values = values.copy()
    inner = list(values.shape[1:])
    entry = {"kind": "ragged", "dtype": column.dtype, "shape": inner}
    if dtypes.is_raw(column.dtype):
        flat, step = values.tobytes(), values[:1].nbytes if len(values) else 0
        ends = np.cumsum(column.lengths) * step
        rows = [flat[e - n * step : e] for e, n in zip(ends.tolist(), column.lengths.tolist(), strict=True)]
        packed.stored[name] = Stored(
            lambda: binary_array(pa.binary(), rows), len(flat), (flat, column.lengths)
        )
        return entry
    part, count = dtypes.component(column.dtype)
    typed = values.reshape(-1).view(dtypes.storage_dtype(part))
    lengths = column.lengths * (int(np.prod(inner)) * count)
    build = lambda: list_array(to_arrow(typed, part), lengths)  # noqa: E731
    packed.stored[name] = Stored(build, values.nbytes, (typed, lengths))
    return entry


def place_cells(name: str, cells: Cells, packed: Packed) -> Json:
    """Add a column of plain values; its entry in the header."""
    packed.stored[name] = Stored(cells.values, cells.nbytes, cells.source)
    if cells.attached is not None:
        packed.stored[f"_attached/{name}"] = Stored(cells.attached, 0, ())
    return {"kind": "objects", "as": cells.kind}


def _pack_whole(name: str, bits: Bits, packed: Packed) -> Json:
    data = np.ascontiguousarray(bits.data).tobytes()
    entry = {"dtype": bits.dtype, "shape": list(bits.data.shape), "wrap": bits.wrap}
    if len(data) <= INLINE_WHOLE or not packed.samples:
        return entry | {"data": base64.b64encode(data).decode("ascii")}
    cells = [data, *[None] * (packed.samples - 1)]
    packed.stored[f"_whole/{name}"] = Stored(lambda: binary_array(pa.binary(), cells), len(data), (data,))
    return entry


def _describe(layout: Layout, bounds: _Bounds) -> dict[str, Json]:
    """A layout in words of the header."""
    entry: dict[str, Json] = {}
    if layout.spans is not None:
        entry["start"] = bounds.place(layout.spans.start)
        entry["stop"] = bounds.place(layout.spans.stop)
        entry["left"], entry["right"] = layout.spans.left, layout.spans.right
    if layout.kind == "const":
        entry["fill"] = layout.fill
    if layout.kind == "ramp":
        entry["tail"] = layout.tail
    if layout.parts:
        entry["of"] = list(layout.parts)
        entry["offset"] = layout.offset
    return entry


class _Bounds:
    """Row bounds, each stored once: most columns are padded by the same two or three."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._pool: dict[bytes, tuple[int, int]] = {}
        """By the bounds relative to the first: the number of the stored column, and its first bound."""

    def place(self, bound: np.ndarray) -> Json:
        """A number if it is the same in all rows, else ``[bound, plus]``: a stored column and a constant."""
        first = int(bound[0])
        if (bound == first).all():
            return first
        at, known = self._pool.setdefault((bound - bound[0]).tobytes(), (len(self._pool), first))
        if f"_bound{at}" in self._packed.stored:
            return [at, first - known]
        stored = Stored(lambda: to_arrow(bound, "int32"), bound.nbytes, (bound,))
        self._packed.stored[f"_bound{at}"] = stored
        return [at, 0]
