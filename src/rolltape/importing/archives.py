"""Reads torch files without ``torch.load``: zip archives, and the older format, a row of pickles.

Storages are found by name inside the file, never by a path, and are copied only when a tensor needs them.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

from rolltape.errors import CorruptFileError, UnsupportedValueError
from rolltape.importing.nodes import Node, StorageNode, fields, refused
from rolltape.importing.resolve import Builder, Resolver, wrong
from rolltape.importing.tensor_builders import STORAGES, dtype_named
from rolltape.importing.unpickle import Buffer, cut_short, run

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How an old torch file starts: a pickle with its magic number."""

_HEADER = 30
"""Bytes of a zip entry before its name."""


def is_torch(data: Buffer) -> bool:
    """Whether these are the bytes of a torch file."""
    return bytes(data[:4]) == ZIP or bytes(data[: len(LEGACY)]) == LEGACY


def read_torch(data: Buffer, resolve: Resolver, where: str) -> Any:
    """What a torch file holds."""
    if bytes(data[:4]) == ZIP:
        return resolve(_read_zip(memoryview(data), resolve, where))
    if bytes(data[: len(LEGACY)]) == LEGACY:
        return resolve(_read_legacy(memoryview(data), resolve, where))
    raise CorruptFileError("this is not a torch file", where=where)


def _read_zip(data: memoryview, resolve: Resolver, where: str) -> Any:
    try:
        entries = {entry.filename: entry for entry in zipfile.ZipFile(io.BytesIO(data)).infolist()}
    except (zipfile.BadZipFile, ValueError, OSError):
        raise cut_short(len(data), where) from None
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CorruptFileError("this zip file was not written by torch", where=where)
    root = pickles[0].removesuffix("data.pkl")
    order = entries.get(f"{root}byteorder")
    if order is not None and bytes(_content(data, order, where)) != b"little":
        raise UnsupportedValueError("tensors in big-endian byte order cannot be imported", where=where)
    found: dict[str, StorageNode] = {}

    def storage(pid: Any) -> StorageNode:
        dtype, key, nbytes = _described(pid, where)
        if key not in found:
            resolve.budget.spend(nbytes)  # many names may stand for the same bytes
            entry = entries.get(f"{root}data/{key}")
            if entry is None or entry.file_size != nbytes:
                raise CorruptFileError(f"the torch file has no tensor data {key!r:.40}", where=where)
            found[key] = StorageNode(_content(data, entry, where), dtype)
        return found[key]

    return run(_content(data, entries[pickles[0]], where), resolve.names, where, storage)[0]


def _content(data: memoryview, entry: zipfile.ZipInfo, where: str) -> memoryview:
    """The bytes of one entry, not copied; torch never compresses."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise refused("compressed or encrypted tensor data, which torch does not write", where)
    header = bytes(data[entry.header_offset : entry.header_offset + _HEADER])
    start = (
        entry.header_offset
        + _HEADER
        + int.from_bytes(header[26:28], "little")
        + int.from_bytes(header[28:], "little")
    )
    content = data[start : start + entry.file_size]
    if header[:4] != ZIP or len(content) != entry.file_size:
        raise cut_short(len(data), where)
    if zlib.crc32(content) != entry.CRC:
        raise CorruptFileError(f"the torch file is damaged: {entry.filename} fails its checksum", where=where)
    return content


def _described(pid: Any, where: str) -> tuple[str | None, str, int]:
    """The dtype, name and size of a storage; ``("storage", class, key, device, elements[, view])``."""
    plausible = (
        type(pid) is tuple
        and 5 <= len(pid) <= 6
        and pid[0] == "storage"
        and isinstance(pid[1], type)
        and issubclass(pid[1], Node)
        and type(pid[2]) is str
        and type(pid[4]) is int
        and 0 <= pid[4] < 2**62
        and (len(pid) == 5 or pid[5] is None)
    )
    if not plausible:
        raise refused("an external object that is not tensor data", where)
    if pid[1].name in ("torch.UntypedStorage", "torch.storage.UntypedStorage"):
        return None, pid[2], pid[4]
    dtype = STORAGES.get(pid[1].name.removeprefix("torch."))
    if dtype is None:
        raise refused(f"tensor data of type {pid[1].name}", where)
    return dtype, pid[2], pid[4] * dtype_named(dtype).itemsize


def _read_legacy(data: memoryview, resolve: Resolver, where: str) -> Any:
    """Magic number, protocol, system, the object, the names of its storages; then their bytes."""
    found: dict[str, tuple[StorageNode, int]] = {}

    def storage(pid: Any) -> StorageNode:
        dtype, key, nbytes = _described(pid, where)
        return found.setdefault(key, (StorageNode(memoryview(b""), dtype), nbytes))[0]

    _, at = run(data, {}, where)
    _, at = run(data, {}, where, start=at)
    system, at = run(data, {}, where, start=at)
    if (fields(system) or {}).get("little_endian") is not True:
        raise UnsupportedValueError("tensors in big-endian byte order cannot be imported", where=where)
    value, at = run(data, resolve.names, where, storage, start=at)
    keys, at = run(data, {}, where, start=at)
    if type(keys) is not list or sorted(map(str, keys)) != sorted(found):
        raise CorruptFileError("the torch file does not list its tensor data", where=where)
    for key in keys:
        node, nbytes = found[key]
        node.data = data[at + 8 : at + 8 + nbytes]
        if len(node.data) != nbytes:
            raise cut_short(len(data), where)
        at += 8 + nbytes
    return value


def _load_from_bytes(node: Node, resolve: Resolver) -> Any:
    """A storage pickled outside a torch file: it is a small torch file itself."""
    data = resolve(node.args[0]) if len(node.args) == 1 else None
    if type(data) is not bytes:
        raise wrong(node, "it has no bytes")
    storage = read_torch(data, resolve, resolve.where)
    if not isinstance(storage, StorageNode):
        raise wrong(node, "it does not hold tensor data")
    return storage


ARCHIVES: dict[tuple[str, str], Builder] = {("torch.storage", "_load_from_bytes"): _load_from_bytes}
