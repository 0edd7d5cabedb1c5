"""Rows of one step as a recording, written by a worker: as often as Ray likes, with one result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.batch import dismantle
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from rolltape.errors import BatchError, StepExistsError
from rolltape.exporting.table import RENAMED
from rolltape.key import Key
from rolltape.ray.sample_rows import ROW
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StepWriter:
    """Writes the rows of a call of a stage at a step as one recording.

    The same rows make the same bytes, in whatever order they come. A task that is run again finds what it has
    written; other bytes under that name are an error.
    """

    storage: Storage
    manifest: Manifest
    stage: str | None
    split: str | None

    def write_rows(self, rows: pa.Table) -> pa.Table:
        """Publish them, and say under which name."""
        key = self.key_of(rows)
        chunks = self._encoded(key, _sorted(rows, key))
        try:
            self.storage.publish(key.path, chunks, replace=False)
        except StepExistsError:
            if bytes(self.storage.read(key.path)) != b"".join(map(bytes, chunks)):
                raise
        return pa.table({"path": [key.path], "samples": [rows.num_rows]})

    def key_of(self, rows: pa.Table) -> Key:
        """The recording that these rows make; all of them say the same."""
        said = {name: rows[name][0].as_py() for name in ROW if name in rows.column_names}
        call = said.get("call", 0)
        return Key(
            split=self.split or said.get("split") or "train",
            stage=self.stage or said.get("stage") or "rollout",
            step=said["step"],
            call=int(call) if isinstance(call, str) and call.isdecimal() else call,
        )

    def _encoded(self, key: Key, rows: pa.Table) -> list[Any]:
        uids = rows["uid"].cast(pa.string()).to_pylist()
        value: dict[str, Any] = {"uid": uids} if any(uids) else {}
        for name in rows.column_names:
            if name not in ROW:
                value[_recorded_name(name)] = values_of(rows[name])
        parts = dismantle(value)
        about = {
            "split": key.split, "stage": key.stage, "step": key.step, "call": key.call, "rank": 0,
            "world_size": 1, "recorded": self.manifest.created, "fingerprint": self.manifest.digest,
            "run": self.manifest.id, "tape": self.manifest.id,
        }  # fmt: skip
        return encode(pack(parts, (uids, _indices(rows, uids))), **about)


def _recorded_name(name: str) -> str:
    original = name.removeprefix(RENAMED)
    return original if original in ROW else name


def _sorted(rows: pa.Table, key: Key) -> pa.Table:
    """The rows by who they are, so that their order does not tell how they came here."""
    for name in ("step", "uid", *(name for name in ("index", "rank") if name in rows.column_names)):
        if rows[name].null_count:
            raise BatchError(f"a row of {key.path} has no {name}")
    names = [name for name in ("rank", "uid", "index") if name in rows.column_names]
    rows = rows.sort_by([(name, "ascending") for name in names])
    who = Counter(zip(*(rows[name].to_pylist() for name in names), strict=True))
    twice = next((one for one, times in who.items() if times > 1), None)
    if twice is not None:
        said = ", ".join(f"{name} {value!r}" for name, value in zip(names, twice, strict=True))
        raise BatchError(
            f"two rows of {key.path} are the same sample: {said}",
            causes=[
                "the dataset was joined or repeated",
                "it has no column index to tell samples of a uid apart",
            ],
            hint="give every row of a step another uid, or the samples of a uid an index from 0 on",
        )
    return rows


def _indices(rows: pa.Table, uids: list[str]) -> np.ndarray:
    """Which of its uid each sample is; those that two ranks counted alike are counted anew."""
    if "index" in rows.column_names:
        index = rows["index"].to_numpy().astype(np.int32)
        if len({*zip(uids, index.tolist(), strict=True)}) == len(uids):
            return np.ascontiguousarray(index)
    seen: Counter[str] = Counter()
    found = np.empty(len(uids), np.int32)
    for at, uid in enumerate(uids):
        found[at] = seen[uid]
        seen[uid] += 1
    return found


def values_of(column: pa.ChunkedArray) -> Any:
    """A column as a trainer would have it: one array, a list of arrays, or a list of values."""
    kind = column.type
    if isinstance(kind, pa.ExtensionType):  # tensors, as Ray Data keeps them
        return [np.asarray(value) for value in column.to_pylist()]
    if _is_number(kind) and not column.null_count:
        return column.to_numpy()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        rows = [None if row is None else _array(row.values) for row in array]
        if all(row is not None for row in rows):
            return rows
    return column.to_pylist()


def _array(values: pa.Array) -> np.ndarray | None:
    """What one sample has, as an array; None where that is none of numbers."""
    if values is None or values.null_count:
        return None
    if _is_number(values.type):
        return np.ascontiguousarray(values.to_numpy(zero_copy_only=False))
    if pa.types.is_list(values.type):
        rows = [_array(row.values) for row in values]
        shapes = {None if row is None else row.shape for row in rows}
        if len(shapes) == 1 and None not in shapes:
            return np.stack(rows)  # type: ignore[arg-type]
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
