"""Which files of a tape are parts of segments, and where: a value, and the bytes that it is stored as.

    "RTINDEX1" · length of the header u32 · header (JSON) · body (zstd) · crc32 u32 of all before it

The header says which segments and folders there are, and how long the body is. The body has the names of the
files, each ended by a newline, folder by folder and sorted, then as arrays the number of the segment (u32),
the offset (u64) and the size (u64) of each. All numbers are little-endian. The index of 100,000 files is read
in milliseconds.

An index may come from anyone. What does not hold together is refused, before anything is allocated for it.
"""

from __future__ import annotations

import json
import operator
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.errors import CorruptFileError, FormatVersionError, KeyNameError
from rolltape.storage.contract import Stat, check_name, check_prefix
from rolltape.storage.memory_limit import check_memory

FORMAT = 2
"""The format of a tape that has segments."""

_MAGIC = b"RTINDEX1"
_COUNT = struct.Struct("<I")
FOLDER = "segments.index/"
"""Where the indexes of a tape are. No split has this name."""
_INDEX = re.compile(re.escape(FOLDER) + "([0-9]{6,18})")
_SEGMENT = re.compile(r"(?:.*/)?segment_[0-9]{6,19}-[0-9]{6,19}\.([0-9]{10})-[0-9]{9}(?:\.in)?\.parquet")
_ENTRY = np.dtype([("segment", "<u4"), ("offset", "<u8"), ("size", "<u8")])
_FORBIDDEN = np.zeros(256, bool)
_FORBIDDEN[[*range(10), *range(11, 32), ord("/"), ord("\\"), 127]] = True
"""Bytes that no name of a file has; a newline ends one."""
_LONGEST = 255
_IN_MEMORY = 200
"""Bytes that a file takes in an index in memory, at least."""


def index_name(generation: int) -> str:
    """The file of an index. The one with the highest number holds."""
    return f"{FOLDER}{generation:06d}"


def generation_of(name: str) -> int | None:
    """The number of an index; None for any other file's name."""
    match = _INDEX.fullmatch(name)
    return int(match[1]) if match else None


def made_at(name: str) -> int | None:
    """When a segment was made, in seconds since 1970, as its name says; None for any other file's name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is: a range of a segment."""

    segment: str
    offset: int
    size: int

    def stat(self, name: str) -> Stat:
        """The file as a storage tells of it. Segments are never replaced: name and offset will do."""
        return Stat(name, self.size, f"{self.segment}@{self.offset:x}")


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment."""

    name: str
    size: int
    """Bytes of the whole file."""
    filled: int
    """Bytes of the files that it was made of."""
    schema: str
    """Stands for what its files have in common."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """The files of one folder that are in segments."""

    texts: list[str]
    """Their names without the folder, sorted."""
    rows: np.ndarray
    """Where each is: the number of its segment, offset and size."""


class SegmentIndex:
    """Which files are in segments. Never changed: what changes something gives another one."""

    def __init__(self, generation: int, segments: Sequence[Segment], folders: Mapping[str, _Folder]) -> None:
        """Rows name segments by their number; a segment that no file is in is left out."""
        used = np.zeros(len(segments), bool)
        for folder in folders.values():
            used[folder.rows["segment"]] = True
        numbers = np.cumsum(used) - 1
        self.generation = generation
        self.segments = {one.name: one for one, is_used in zip(segments, used, strict=True) if is_used}
        self._order = list(self.segments)
        self._folders: dict[str, _Folder] = {}
        for name in sorted(folders):
            if texts := folders[name].texts:
                rows = folders[name].rows.copy()
                rows["segment"] = numbers[rows["segment"]]
                self._folders[name] = _Folder(texts, rows)

    def __len__(self) -> int:
        return sum(len(folder.texts) for folder in self._folders.values())

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> Place | None:
        """Where a file is; None if it is in no segment."""
        above, _, text = name.rpartition("/")
        folder = self._folders.get(above + "/")
        if folder is None:
            return None
        at = bisect_left(folder.texts, text)
        found = at < len(folder.texts) and folder.texts[at] == text
        return self._place(folder.rows[at].tolist()) if found else None

    def names(self, prefix: str) -> list[str]:
        """The files directly under a prefix."""
        folder = self._folders.get(prefix)
        return [prefix + text for text in folder.texts] if folder else []

    def items(self, prefix: str | None = None) -> Iterator[tuple[str, Place]]:
        """Every file, or those directly under a prefix, with its place."""
        for name in self._folders if prefix is None else self._folders.keys() & {prefix}:
            folder = self._folders[name]
            for text, row in zip(folder.texts, folder.rows.tolist(), strict=True):
                yield name + text, self._place(row)

    def live_bytes(self) -> dict[str, int]:
        """How many bytes of each segment are files of the tape."""
        found = np.zeros(len(self._order), np.int64)
        for folder in self._folders.values():
            np.add.at(found, folder.rows["segment"], folder.rows["size"].astype(np.int64))
        return dict(zip(self._order, found.tolist(), strict=True))

    def without(self, names: Iterable[str]) -> SegmentIndex:
        """The next index, in which these files are in no segment."""
        folders = dict(self._folders)
        for above, gone in _by_folder(names).items():
            if old := folders.get(above):
                kept = [at for at, text in enumerate(old.texts) if text not in gone]
                folders[above] = _Folder([old.texts[at] for at in kept], old.rows[kept])
        return SegmentIndex(self.generation + 1, list(self.segments.values()), folders)

    def with_segment(self, segment: Segment, ranges: Mapping[str, tuple[int, int]]) -> SegmentIndex:
        """The next index, with one more segment, which has these files at these offsets and sizes."""
        folders, number = dict(self._folders), len(self._order)
        for above, added in _by_folder(ranges).items():
            old = folders.get(above, _Folder([], np.zeros(0, _ENTRY)))
            rows = dict(zip(old.texts, old.rows.tolist(), strict=True))
            rows |= {text: (number, *ranges[above + text]) for text in added}
            texts = sorted(rows)
            folders[above] = _Folder(texts, np.array([rows[text] for text in texts], _ENTRY))
        return SegmentIndex(self.generation + 1, [*self.segments.values(), segment], folders)

    def numbered(self, generation: int) -> SegmentIndex:
        """The same as another generation."""
        return SegmentIndex(generation, list(self.segments.values()), self._folders)

    def _place(self, row: tuple[int, int, int]) -> Place:
        return Place(self._order[row[0]], row[1], row[2])

    # -- as bytes ----------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The file of this index."""
        found = list(self._folders.values())
        body = "".join(f"{text}\n" for folder in found for text in folder.texts).encode()
        rows = np.concatenate([np.zeros(0, _ENTRY), *(folder.rows for folder in found)])
        body += b"".join(np.ascontiguousarray(rows[column]).tobytes() for column in _ENTRY.names or ())
        header = {
            "format": FORMAT,
            "generation": self.generation,
            "segments": [[one.name, one.size, one.filled, one.schema] for one in self.segments.values()],
            "folders": [[name, len(folder.texts)] for name, folder in self._folders.items()],
            "body": len(body),
        }
        head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        packed = pa.Codec("zstd", 1).compress(body, asbytes=True) if body else b""
        data = _MAGIC + _COUNT.pack(len(head)) + head + packed
        return data + _COUNT.pack(zlib.crc32(data))


NONE = SegmentIndex(0, (), {})
"""The index of a tape that has no segments."""


def _by_folder(names: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        above, _, text = name.rpartition("/")
        found.setdefault(above + "/", set()).add(text)
    return found


# -- reading it ----------------------------------------------------------------------------------------


def read_index(data: bytes | bytearray, generation: int) -> SegmentIndex:
    """The index that a file holds; refuses every other content."""
    view = memoryview(data)
    start = len(_MAGIC) + _COUNT.size
    if len(view) < start + _COUNT.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise CorruptFileError("this is not an index of segments", causes=["another tool wrote it"])
    if _COUNT.unpack(view[-_COUNT.size :])[0] != zlib.crc32(view[: -_COUNT.size]):
        raise CorruptFileError(
            "the index of the segments does not match its checksum",
            causes=["the file was altered after it was written (disk, copy or transfer error)"],
        )
    length = _COUNT.unpack(view[len(_MAGIC) : start])[0]
    try:
        header = json.loads(bytes(view[start:][:length]))
        if _count(header["format"]) > FORMAT:
            raise FormatVersionError(
                f"the index has format {header['format']}; this Rolltape reads up to {FORMAT}",
                hint="pip install --upgrade rolltape",
            )
        if header["generation"] != generation:
            raise ValueError(f"it is of generation {header['generation']!r:.100}")
        segments = [_segment(*entry) for entry in header["segments"]]
        folders = _folders(header, view[start + length : -_COUNT.size], segments)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        if isinstance(error, FormatVersionError):
            raise
        why = error.what if isinstance(error, KeyNameError) else f"{type(error).__name__}: {error}"
        raise CorruptFileError(
            f"the index of the segments does not hold together: {why:.200}",
            causes=["its checksum is right, so another tool wrote or edited it"],
        ) from None
    return SegmentIndex(generation, segments, folders)


def _segment(name: str, size: object, filled: object, schema: object) -> Segment:
    if made_at(check_name(name)) is None:
        raise ValueError(f"{name!r:.100} is not the name of a segment")
    return Segment(name, _count(size), _count(filled), str(schema))


def _folders(
    header: Mapping[str, Any], packed: memoryview, segments: Sequence[Segment]
) -> dict[str, _Folder]:
    """The files of each folder, of which every name, every range and their order are checked."""
    if len({segment.name for segment in segments}) < len(segments):
        raise ValueError("a segment is there twice")
    counts = {check_prefix(name): _count(count) for name, count in header["folders"]}
    if "" in counts or len(counts) < len(header["folders"]):
        raise ValueError("a folder is there twice, or has no name")
    count, size = sum(counts.values()), _count(header["body"])
    if size < count * (_ENTRY.itemsize + 2):
        raise ValueError("its body is too short for its files")
    check_memory(size + count * _IN_MEMORY, "the index of the segments")
    body = bytes(pa.Codec("zstd").decompress(packed, size)) if size else b""
    names_end = size - count * _ENTRY.itemsize
    _check_names(np.frombuffer(body, np.uint8, names_end), count)
    texts = body[:names_end].decode().split("\n")
    rows = _rows(body, count, names_end, segments)
    found, at = {}, 0
    for name, many in counts.items():
        mine = texts[at : at + many]
        if not _in_order(mine):
            raise ValueError("its names are not in order")
        found[name] = _Folder(mine, rows[at : at + many])
        at += many
    return found


def _check_names(names: np.ndarray, count: int) -> None:
    """Refuse bytes that are not so many names of files, each ended by a newline."""
    ends = np.flatnonzero(names == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1]) if count else ends
    if len(ends) != count or (len(names) and ends[-1] != len(names) - 1):
        raise ValueError("it has another number of names than of files")
    lengths = ends - starts
    if np.any(_FORBIDDEN[names]) or np.any(names[starts] == ord(".")) or np.any(lengths - 1 >= _LONGEST):
        raise ValueError("it has other names than files of a tape can have")
    if np.any(lengths == 0):
        raise ValueError("it has a file without a name")


def _in_order(texts: list[str]) -> bool:
    return all(map(operator.lt, texts, texts[1:]))


def _rows(body: bytes, count: int, at: int, segments: Sequence[Segment]) -> np.ndarray:
    rows = np.zeros(count, _ENTRY)
    for column, (kind, *_) in (_ENTRY.fields or {}).items():
        rows[column] = np.frombuffer(body, kind, count, at)
        at += count * kind.itemsize
    if not count:
        return rows
    if int(rows["segment"].max()) >= len(segments):
        raise ValueError("a file is in a segment that is not there")
    sizes = np.array([segment.size for segment in segments], np.uint64)[rows["segment"]]
    if np.any(rows["size"] > sizes) or np.any(rows["offset"] > sizes - rows["size"]):
        raise ValueError("a file lies outside of its segment")
    if not _are_apart(rows) and not _are_apart(rows[np.lexsort((rows["offset"], rows["segment"]))]):
        raise ValueError("two files lie in one place")
    return rows


def _are_apart(rows: np.ndarray) -> bool:
    """Whether each begins behind the end of the one before it, segment by segment."""
    segment, offset, end = rows["segment"], rows["offset"], rows["offset"] + rows["size"]
    later = (segment[1:] == segment[:-1]) & (offset[1:] >= end[:-1])
    return bool(np.all(later | (segment[1:] > segment[:-1])))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.100} is not a count")
    return value
