"""Recordings with right checksums and other content: what a checksum does not protect from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.codec.seal import seal

KEY = b"rolltape"


def header_of(data: bytes) -> dict[str, Any]:
    """The header of a recording."""
    return json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[KEY])


def resealed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The recording with another header, sealed again. ``change`` edits it, or returns another one."""
    header = header_of(data)
    changed = change(header)
    return with_header(data, json.dumps(header if changed is None else changed))


def with_header(data: bytes, text: str) -> bytes:
    """The recording with this text as its header, sealed again."""
    return with_columns(pq.read_table(pa.BufferReader(data)), text)


def with_columns(table: pa.Table, text: str) -> bytes:
    """A recording of these Parquet columns."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table, row_group_size=256)
        writer.add_key_value_metadata({KEY: text.encode("utf-8", "surrogatepass")})
    return b"".join(bytes(piece) for piece in seal(sink.getvalue()))


def reseal_bytes(data: bytes) -> bytes:
    """A recording whose bytes before the seal were changed, with a seal that fits them again."""
    at = data.rindex(b"RTSEAL01")
    size = int.from_bytes(data[-8:-4], "little") + 8
    return b"".join(bytes(piece) for piece in seal(pa.py_buffer(data[:at] + data[len(data) - size :])))
