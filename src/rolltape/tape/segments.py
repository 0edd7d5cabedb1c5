"""The segments of a tape as files: whether each is what was written, and an index made anew from them."""

from __future__ import annotations

import zlib

from rolltape.codec.segment import SegmentEnd, read_segment_end, segment_tail
from rolltape.errors import CorruptFileError, RolltapeError, StepMissingError
from rolltape.storage import SegmentedStorage
from rolltape.storage.segment_index import NONE, Segment, SegmentIndex, made_at

_GUESS = 64 * 1024


def read_end(storage: SegmentedStorage, name: str) -> SegmentEnd:
    """What a segment says of itself at its end; refuses one that was altered."""
    stat = storage.files.stat(name)
    if stat is None:
        raise CorruptFileError("the segment is gone", where=f"{storage.location}/{name}")
    length, wanted = 0, min(stat.size, _GUESS)
    while length < wanted:
        end = memoryview(storage.files.read(name, stat.size - wanted, wanted))
        length, wanted = wanted, segment_tail(end)
        if wanted > stat.size:
            raise CorruptFileError("the segment is shorter than its footer says", causes=["it was cut short"])
    return read_segment_end(end)


def check_segment(storage: SegmentedStorage, name: str) -> None:
    """Raise unless the parts of a segment that belong to no recording are what was written."""
    offset, size, crc = read_end(storage, name).who
    if zlib.crc32(storage.files.read(name, offset, size)) != crc:
        raise CorruptFileError("the columns that say whose each row is do not match their checksum")


def rebuild_index(storage: SegmentedStorage) -> int:
    """Publish an index of all segments in the place of one that cannot be read; how many recordings it has.

    What was deleted from a segment since is there again. Of a recording in two segments the later holds.
    """
    index: SegmentIndex = NONE
    names = [stat.name for stat in storage.files.everything() if made_at(stat.name) is not None]
    for name in sorted(names, key=lambda name: (made_at(name), name)):
        stat = storage.files.stat(name)
        try:
            found = read_end(storage, name).recordings
        except (RolltapeError, StepMissingError):  # it says nothing; what it held is missing
            continue
        ranges = {path: (offset, size) for path, offset, size in found}
        filled = sum(size for _, size in ranges.values())
        schema = ""  # so that it is not added to until it is written anew
        if stat is not None and ranges:
            index = index.with_segment(Segment(name, stat.size, filled, schema), ranges)
    storage.replace_index(index)
    return len(index)
