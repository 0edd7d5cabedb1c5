"""What a recording is made of: its columns, and what stands beside the samples. Reads the footer only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from rolltape.codec.file import RecordingFile

_STORED = {
    "plain": "whole",
    "bytes": "whole",
    "span": "without padding",
    "const": "one value, row bounds",
    "ramp": "counts up, row bounds",
    "join": "from",
    "part": "part of",
}


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """One column."""

    name: str
    type: str
    stored: str
    """How it is stored, in words."""
    bytes: int | None
    """What that takes in the file; None for a column that follows from others."""


def column_rows(file: RecordingFile, path: str) -> Iterator[ColumnRow]:
    """Every column, then every array that belongs to all samples."""
    sizes = _sizes(path)
    for name, entry in file.header["columns"].items():
        own = None if is_derived(entry) else sizes.get(name, 0) + sizes.get(f"_attached/{name}", 0)
        if entry["kind"] == "objects":
            yield ColumnRow(name, "json" if entry["as"] == "tagged" else entry["as"], "values", own)
            continue
        ragged = entry["kind"] == "ragged"
        shape = [str(file.samples), *(["*"] if ragged else []), *map(str, entry["shape"])]
        stored = "lists" if ragged else _STORED.get(entry["layout"], entry["layout"])
        stored = f"{stored} {' + '.join(entry['of'])}" if entry.get("of") else stored
        yield ColumnRow(name, f"{entry['dtype']} [{', '.join(shape)}]", stored, own)
    for name, entry in file.header["wholes"].items():
        kind = f"{entry['dtype']} {entry['shape']}"
        yield ColumnRow(
            name, kind, "beside the samples", sizes.get(f"_whole/{name}", len(entry.get("data", "")))
        )


def is_derived(entry: Any) -> bool:
    """Whether a column follows from others and from the row bounds, as masks and position ids do."""
    return entry.get("layout") in ("const", "ramp", "join", "part") and bool(entry["shape"])


def beside(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a recording that belong to no sample, such as ``meta``: where each is, and what."""
    tag = next(iter(node), "") if isinstance(node, dict) else ""
    if tag in ("$column", "$whole", "$records", "$nested", "$objects"):
        return
    if tag in ("$adapted", "$dataclass", "$namedtuple"):
        yield from beside(node["parts" if tag == "$adapted" else "fields"], path)
    elif tag in ("$list", "$tuple"):
        yield path, node[tag]
    elif isinstance(node, dict) and not tag.startswith("$"):
        for key, inner in node.items():
            yield from beside(inner, f"{path}.{key}" if path else key)
    else:
        yield path, node


def _sizes(path: str) -> dict[str, int]:
    """Compressed bytes by Parquet column."""
    metadata = pq.read_metadata(path)
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            name = chunk.path_in_schema.split(".")[0]
            sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    return sizes
