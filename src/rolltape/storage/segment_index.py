"""Which files of a tape are parts of segments, and where: a value, and the bytes that it is stored as.

    blocks (zstd) · head (JSON) · length of the head u32 · crc32 u32 of head and length · "RTINDEX2"

A block has some of the files of one folder: their names, each ended by a newline and sorted, then as arrays
the number of the segment (u32), the offset (u64) and the size (u64) of each. The head says which segments and
folders there are, and of every block its first name, how many files it has, its bytes and their checksum. All
numbers are little-endian. So whoever opens a tape reads the end of its index, and whoever looks for a file
one block more, however many files there are.

An index may come from anyone. What does not hold together is refused, before anything is allocated for it.
"""

from __future__ import annotations

import json
import operator
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rolltape.errors import CorruptFileError, FormatVersionError, KeyNameError, RolltapeError
from rolltape.storage.contract import Span, Stat, check_name, check_prefix
from rolltape.storage.memory_limit import check_memory

FORMAT = 2
"""The format of a tape that has segments."""

_MAGIC = b"RTINDEX2"
_COUNT = struct.Struct("<I")
_END = 2 * _COUNT.size + len(_MAGIC)
"""Bytes behind the head."""
_IN_A_BLOCK = 512
"""Files of a block that is written."""
TAIL = 64 * 1024
"""Bytes of an index that are read at once: all of a small one, and the head of one of a million files."""
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


Row: TypeAlias = tuple[int, int, int]
"""The number of a segment, offset and size."""
Read: TypeAlias = Callable[[int, int], bytes | bytearray | memoryview]
"""Reads so many bytes from an offset of the file of an index."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one folder that are in segments."""

    texts: list[str]
    """Their names without the folder, sorted."""
    rows: np.ndarray
    """Where each is: the number of its segment, offset and size."""

    def __len__(self) -> int:
        return len(self.texts)

    def to_bytes(self) -> bytes:
        names = "".join(f"{text}\n" for text in self.texts).encode()
        return names + b"".join(np.ascontiguousarray(self.rows[one]).tobytes() for one in _ENTRY.names or ())


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Where the blocks of a folder are in the file of an index, and what its head says of each."""

    read: Read
    start: int
    counts: np.ndarray
    lengths: np.ndarray
    bodies: np.ndarray
    """Bytes of each, unpacked."""
    crcs: np.ndarray
    sizes: np.ndarray
    """Of the segments."""

    def span(self, first: int, last: int) -> Span:
        """Where the blocks from one to another are, both included."""
        offset = self.start + int(self.lengths[:first].sum())
        return offset, int(self.lengths[first : last + 1].sum())

    def unpack(self, at: int, packed: memoryview, first: str, until: str | None) -> _Files:
        """What a block has, of which every name, every range and their order are checked.

        It begins with ``first``, and the next one with ``until``.
        """
        if zlib.crc32(packed) != self.crcs[at]:
            raise CorruptFileError(
                "the index of the segments does not match its checksum",
                causes=["the file was altered after it was written (disk, copy or transfer error)"],
            )
        size, count = int(self.bodies[at]), int(self.counts[at])
        check_memory(size + count * _IN_MEMORY, "the index of the segments")
        with _refusing():
            body = bytes(pa.Codec("zstd").decompress(packed, size))
            names_end = size - count * _ENTRY.itemsize
            _check_names(np.frombuffer(body, np.uint8, names_end), count)
            texts = body[: names_end - 1].decode().split("\n")
            if texts[0] != first or not _in_order(texts) or (until is not None and texts[-1] >= until):
                raise ValueError("its names are not in order")
            return _Files(texts, _rows(body, count, names_end, self.sizes))


class _Folder:
    """The files of one folder that are in segments, in blocks that are read when they are asked for."""

    def __init__(
        self, firsts: list[str], count: int, stored: _Blocks | None, read: dict[int, _Files]
    ) -> None:
        self._firsts = firsts
        """The first name of each block, without the folder."""
        self._count = count
        self._stored = stored
        self.read = read
        """The blocks that are in memory, by their number."""

    @classmethod
    def of(cls, files: _Files) -> _Folder:
        """All in memory."""
        cuts = range(0, len(files), _IN_A_BLOCK)
        parts = [_Files(files.texts[at : at + _IN_A_BLOCK], files.rows[at : at + _IN_A_BLOCK]) for at in cuts]
        return cls([part.texts[0] for part in parts], len(files), None, dict(enumerate(parts)))

    def __len__(self) -> int:
        return self._count

    def find(self, text: str) -> Row | None:
        """Where a file is."""
        at = bisect_right(self._firsts, text) - 1
        if at < 0:
            return None
        files = self._block(at)
        place = bisect_left(files.texts, text)
        found = place < len(files) and files.texts[place] == text
        return files.rows[place].tolist() if found else None

    def files(self) -> _Files:
        """All of them."""
        parts = self.blocks()
        rows = np.concatenate([np.zeros(0, _ENTRY), *(part.rows for part in parts)])
        return _Files([text for part in parts for text in part.texts], rows)

    def blocks(self) -> list[_Files]:
        """All of them, block by block. Those that were not read yet are read at once."""
        missing = [at for at in range(len(self._firsts)) if at not in self.read]
        if missing:
            self._load(missing[0], missing[-1])
        return [self.read[at] for at in range(len(self._firsts))]

    def _block(self, at: int) -> _Files:
        if at not in self.read:
            self._load(at, at)
        return self.read[at]

    def _load(self, first: int, last: int) -> None:
        """Read the blocks from one to another, which lie side by side."""
        assert self._stored is not None
        start, length = self._stored.span(first, last)
        data = memoryview(self._stored.read(start, length))
        until = [*self._firsts[1:], None]
        for at in range(first, last + 1):
            length = int(self._stored.lengths[at])
            packed, data = data[:length], data[length:]
            self.read[at] = self._stored.unpack(at, packed, self._firsts[at], until[at])


class SegmentIndex:
    """Which files are in segments. Never changed: what changes something gives another one.

    One that was read from a file is read on when that is needed; whatever ``read`` raises is then raised.
    """

    def __init__(self, generation: int, segments: Sequence[Segment], folders: Mapping[str, _Folder]) -> None:
        self.generation = generation
        self.segments = {one.name: one for one in segments}
        self._order = list(self.segments)
        self._folders = folders

    def __len__(self) -> int:
        return sum(map(len, self._folders.values()))

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> Place | None:
        """Where a file is; None if it is in no segment."""
        above, _, text = name.rpartition("/")
        folder = self._folders.get(above + "/")
        row = None if folder is None else folder.find(text)
        return None if row is None else self._place(row)

    def names(self, prefix: str) -> list[str]:
        """The files directly under a prefix."""
        folder = self._folders.get(prefix)
        return [prefix + text for text in folder.files().texts] if folder else []

    def items(self, prefix: str | None = None) -> Iterator[tuple[str, Place]]:
        """Every file, or those directly under a prefix, with its place."""
        for name in self._folders if prefix is None else self._folders.keys() & {prefix}:
            files = self._folders[name].files()
            for text, row in zip(files.texts, files.rows.tolist(), strict=True):
                yield name + text, self._place(row)

    def live_bytes(self) -> dict[str, int]:
        """How many bytes of each segment are files of the tape."""
        found = np.zeros(len(self._order), np.int64)
        for folder in self._folders.values():
            rows = folder.files().rows
            np.add.at(found, rows["segment"], rows["size"].astype(np.int64))
        return dict(zip(self._order, found.tolist(), strict=True))

    def whole(self) -> SegmentIndex:
        """The same, of which nothing is left to be read; refuses files that lie in one place."""
        rows = [np.zeros(0, _ENTRY), *(folder.files().rows for folder in self._folders.values())]
        with _refusing():
            _check_apart(np.concatenate(rows))
        return self

    def without(self, names: Iterable[str]) -> SegmentIndex:
        """The next index, in which these files are in no segment."""
        folders = self._all()
        for above, gone in _by_folder(names).items():
            if old := folders.get(above):
                kept = [at for at, text in enumerate(old.texts) if text not in gone]
                folders[above] = _Files([old.texts[at] for at in kept], old.rows[kept])
        return _made(self.generation + 1, list(self.segments.values()), folders)

    def with_segment(self, segment: Segment, ranges: Mapping[str, tuple[int, int]]) -> SegmentIndex:
        """The next index, with one more segment, which has these files at these offsets and sizes."""
        folders, number = self._all(), len(self._order)
        for above, added in _by_folder(ranges).items():
            old = folders.get(above, _Files([], np.zeros(0, _ENTRY)))
            rows = dict(zip(old.texts, old.rows.tolist(), strict=True))
            rows |= {text: (number, *ranges[above + text]) for text in added}
            texts = sorted(rows)
            folders[above] = _Files(texts, np.array([rows[text] for text in texts], _ENTRY))
        return _made(self.generation + 1, [*self.segments.values(), segment], folders)

    def numbered(self, generation: int) -> SegmentIndex:
        """The same as another generation."""
        return SegmentIndex(generation, list(self.segments.values()), self._folders)

    def _all(self) -> dict[str, _Files]:
        return {name: folder.files() for name, folder in self._folders.items()}

    def _place(self, row: Row) -> Place:
        return Place(self._order[row[0]], row[1], row[2])

    # -- as bytes ----------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The file of this index."""
        packed: list[bytes] = []
        folders = []
        for name, folder in self._folders.items():
            parts = _Folder.of(folder.files()).blocks()
            bodies = [part.to_bytes() for part in parts]
            mine = [pa.Codec("zstd", 1).compress(body, asbytes=True) for body in bodies]
            numbers = [list(map(len, parts)), list(map(len, mine)), list(map(len, bodies))]
            folders.append([name, [part.texts[0] for part in parts], *numbers, list(map(zlib.crc32, mine))])
            packed += mine
        header = {
            "format": FORMAT,
            "generation": self.generation,
            "segments": [[one.name, one.size, one.filled, one.schema] for one in self.segments.values()],
            "folders": folders,
        }
        head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        sealed = head + _COUNT.pack(len(head))
        return b"".join([*packed, sealed, _COUNT.pack(zlib.crc32(sealed)), _MAGIC])


NONE = SegmentIndex(0, (), {})
"""The index of a tape that has no segments."""


def _made(generation: int, segments: Sequence[Segment], folders: Mapping[str, _Files]) -> SegmentIndex:
    """An index of files whose rows name segments by their number; one that no file is in is left out."""
    used = np.zeros(len(segments), bool)
    for files in folders.values():
        used[files.rows["segment"]] = True
    numbers = np.cumsum(used) - 1
    kept = [one for one, is_used in zip(segments, used, strict=True) if is_used]
    found = {}
    for name in sorted(folders):
        if texts := folders[name].texts:
            rows = folders[name].rows.copy()
            rows["segment"] = numbers[rows["segment"]]
            found[name] = _Folder.of(_Files(texts, rows))
    return SegmentIndex(generation, kept, found)


def _by_folder(names: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        above, _, text = name.rpartition("/")
        found.setdefault(above + "/", set()).add(text)
    return found


# -- reading it ----------------------------------------------------------------------------------------


def read_index(tail: bytes | bytearray, size: int, generation: int, read: Read) -> SegmentIndex:
    """The index that a file of ``size`` bytes holds, of which ``tail`` is the end; refuses any other content.

    Its head is checked here, each block when it is read.
    """
    if len(tail) < _END or bytes(tail[-len(_MAGIC) :]) != _MAGIC:
        raise CorruptFileError(
            "this is not an index of segments", causes=["another tool wrote it", "it was cut short"]
        )
    length, crc = (_COUNT.unpack_from(tail, len(tail) - _END + at)[0] for at in (0, _COUNT.size))
    start = size - _END - length
    if start < 0:
        raise CorruptFileError(
            "the index of the segments is shorter than it says", causes=["it was cut short"]
        )
    begins = size - len(tail)
    if start < begins:
        check_memory(length, "the index of the segments")
        tail, begins = bytes(read(start, size - start)), start
    view = memoryview(tail)
    sealed = view[start - begins :][: length + _COUNT.size]
    if zlib.crc32(sealed) != crc:
        raise CorruptFileError(
            "the index of the segments does not match its checksum",
            causes=["the file was altered after it was written (disk, copy or transfer error)"],
        )

    def part(offset: int, wanted: int) -> bytes | bytearray | memoryview:
        return view[offset - begins :][:wanted] if offset >= begins else read(offset, wanted)

    with _refusing():
        header = json.loads(bytes(sealed[:length]))
        if _count(header["format"]) > FORMAT:
            raise FormatVersionError(
                f"the index has format {header['format']}; this Rolltape reads up to {FORMAT}",
                hint="pip install --upgrade rolltape",
            )
        if header["generation"] != generation:
            raise ValueError(f"it is of generation {header['generation']!r:.100}")
        segments = [_segment(*entry) for entry in header["segments"]]
        if len({segment.name for segment in segments}) < len(segments):
            raise ValueError("a segment is there twice")
        return SegmentIndex(generation, segments, _folders(header["folders"], start, segments, part))


@contextmanager
def _refusing() -> Iterator[None]:
    """Whatever goes wrong within says that the index is not one of ours."""
    try:
        yield
    except RolltapeError as error:
        if not isinstance(error, KeyNameError):
            raise
        raise _incoherent(error.what) from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise _incoherent(f"{type(error).__name__}: {error}") from None


def _incoherent(why: str) -> CorruptFileError:
    return CorruptFileError(
        f"the index of the segments does not hold together: {why:.200}",
        causes=["its checksum is right, so another tool wrote or edited it"],
    )


def _segment(name: str, size: object, filled: object, schema: object) -> Segment:
    if made_at(name) is None:
        raise ValueError(f"{name!r:.100} is not the name of a segment")
    _checked_folder(name.rpartition("/")[0])
    return Segment(name, _count(size), _count(filled), str(schema))


@lru_cache
def _checked_folder(name: str) -> str:
    """Refuses what is not a folder of a tape. Many segments are in few folders."""
    return check_name(name)


def _folders(said: Any, end: int, segments: Sequence[Segment], read: Read) -> dict[str, _Folder]:
    """The folders that a head speaks of, whose blocks fill the file up to the head."""
    found: dict[str, _Folder] = {}
    sizes, offset = _sizes(segments), 0
    for name, firsts, *columns in said:
        if not check_prefix(name) or name in found:
            raise ValueError("a folder is there twice, or has no name")
        counts, lengths, bodies, crcs = (_counts(column, len(firsts)) for column in columns)
        if counts.min() < 1 or np.any(bodies // (_ENTRY.itemsize + 2) < counts):
            raise ValueError("a block is too short for its files")
        if {*map(type, firsts)} != {str} or not _in_order(firsts):
            raise ValueError("its names are not in order")
        blocks = _Blocks(read, offset, counts, lengths, bodies, crcs, sizes)
        found[name] = _Folder(firsts, int(counts.sum()), blocks, {})
        offset = sum(blocks.span(0, len(firsts) - 1))
    if offset != end:
        raise ValueError("its blocks are not as long as it says")
    return found


def _counts(column: Any, many: int) -> np.ndarray:
    if len(column) != many or {*map(type, column)} != {int} or not 0 <= min(column) <= max(column) < 2**48:
        raise ValueError("it has other numbers than an index can have")
    return np.array(column, np.int64)


def _sizes(segments: Sequence[Segment]) -> np.ndarray:
    return np.array([segment.size for segment in segments], np.uint64)


def _check_names(names: np.ndarray, count: int) -> None:
    """Refuse bytes that are not so many names of files, each ended by a newline."""
    ends = np.flatnonzero(names == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    if len(ends) != count or ends[-1] != len(names) - 1:
        raise ValueError("it has another number of names than of files")
    lengths = ends - starts
    if np.any(_FORBIDDEN[names]) or np.any(names[starts] == ord(".")) or np.any(lengths - 1 >= _LONGEST):
        raise ValueError("it has other names than files of a tape can have")
    if np.any(lengths == 0):
        raise ValueError("it has a file without a name")


def _in_order(texts: list[str]) -> bool:
    return all(map(operator.lt, texts, texts[1:]))


def _rows(body: bytes, count: int, at: int, sizes: np.ndarray) -> np.ndarray:
    rows = np.zeros(count, _ENTRY)
    for column, (kind, *_) in (_ENTRY.fields or {}).items():
        rows[column] = np.frombuffer(body, kind, count, at)
        at += count * kind.itemsize
    if int(rows["segment"].max()) >= len(sizes):
        raise ValueError("a file is in a segment that is not there")
    ends = sizes[rows["segment"]]
    if np.any(rows["size"] > ends) or np.any(rows["offset"] > ends - rows["size"]):
        raise ValueError("a file lies outside of its segment")
    _check_apart(rows)
    return rows


def _check_apart(rows: np.ndarray) -> None:
    if not _are_apart(rows) and not _are_apart(rows[np.lexsort((rows["offset"], rows["segment"]))]):
        raise ValueError("two files lie in one place")


def _are_apart(rows: np.ndarray) -> bool:
    """Whether each begins behind the end of the one before it, segment by segment."""
    segment, offset, end = rows["segment"], rows["offset"], rows["offset"] + rows["size"]
    later = (segment[1:] == segment[:-1]) & (offset[1:] >= end[:-1])
    return bool(np.all(later | (segment[1:] > segment[:-1])))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.100} is not a count")
    return value
