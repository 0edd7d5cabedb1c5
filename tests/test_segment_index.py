"""The index of the segments: exact, quick, and refused where it does not hold together."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.codec import thrift_tree
from rolltape.errors import CorruptFileError, FormatVersionError, MemoryLimitError
from rolltape.storage.segment_index import NONE, Place, Segment, SegmentIndex, index_name, made_at, read_index
from tests.stacks import examples

ONE = "train/rollout/segment_000000-000009.1800000000-123456789.parquet"
TWO = "val/rollout/segment_000000-000009.1800000001-000000001.in.parquet"


def index_of(count: int = 5) -> SegmentIndex:
    first = {f"train/rollout/step_{step:06d}.parquet": (100 * step, 100) for step in range(count)}
    second = {"val/rollout/step_000000.in.parquet": (0, 7), "val/other/step_000000.in.parquet": (7, 0)}
    index = NONE.with_segment(Segment(ONE, 100 * count + 40, 100 * count, "a"), first)
    return index.with_segment(Segment(TWO, 9, 7, "b"), second)


def read(data: bytes | bytearray, generation: int, tail: int = 10**6) -> SegmentIndex:
    """The index that a file holds, of which so many bytes are read at first."""
    return read_index(
        data[-tail:], len(data), generation, lambda offset, length: data[offset : offset + length]
    )


def whole(data: bytes | bytearray, generation: int) -> SegmentIndex:
    """The same, looked at as a whole."""
    return read(data, generation).whole()


def head_of(data: bytes) -> tuple[bytes, dict]:
    """The blocks of an index, and what its head says."""
    length = struct.unpack("<I", data[-16:-12])[0]
    return data[: -16 - length], json.loads(data[-16 - length : -16])


def altered(change: dict, body: bytes | None = None, files: int = 2) -> bytes:
    """The bytes of an index whose checksum is right and whose head says something else.

    With a ``body``, the only block is that one, of a folder with so many files.
    """
    blocks, header = head_of(index_of().to_bytes())
    if body is not None:
        blocks = pa.Codec("zstd").compress(body, asbytes=True)
        first = body.split(b"\n")[0].decode("utf-8", "replace")
        entry = [[first], [files], [len(blocks)], [len(body)], [zlib.crc32(blocks)]]
        header["folders"] = [["train/rollout/", *entry]]
    sealed = json.dumps(header | change).encode()
    sealed += struct.pack("<I", len(sealed))
    return blocks + sealed + struct.pack("<I", zlib.crc32(sealed)) + b"RTINDEX2"


def blocks_of(**change: int | str | None) -> list:
    """What the head of an index says of its folders, with something else said of the first block."""
    folders = head_of(index_of().to_bytes())[1]["folders"]
    names = ("first", "count", "length", "body", "crc")
    for name, value in change.items():
        folders[0][1 + names.index(name)][0] = value
    return folders


def body_of(names: list[str], rows: list[tuple[int, int, int]]) -> bytes:
    segment, offset, size = zip(*rows, strict=True) if rows else ((), (), ())
    return (
        "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
        + np.array(segment, "<u4").tobytes()
        + np.array(offset, "<u8").tobytes()
        + np.array(size, "<u8").tobytes()
    )


def test_it_is_read_back_as_it_was() -> None:
    index = index_of()
    back = read(index.to_bytes(), 2)
    assert dict(back.items()) == dict(index.items())
    assert back.segments == index.segments
    assert back.find("train/rollout/step_000003.parquet") == Place(ONE, 300, 100)
    assert back.find("train/rollout/step_000009.parquet") is None
    assert back.find("tape.json") is None
    assert back.names("val/rollout/") == ["val/rollout/step_000000.in.parquet"]
    assert back.names("val/") == []
    assert back.live_bytes() == {ONE: 500, TWO: 7}
    assert len(back) == 7


def test_a_segment_without_files_is_left_out() -> None:
    less = index_of().without([f"train/rollout/step_{step:06d}.parquet" for step in range(5)])
    assert list(less.segments) == [TWO]
    assert list(read(less.to_bytes(), 3).segments) == [TWO]
    assert less.find("val/rollout/step_000000.in.parquet") == Place(TWO, 0, 7)


@settings(max_examples=examples(60), deadline=None)
@given(
    names=st.sets(
        st.from_regex(r"[a-z]{1,3}/[a-z]{1,3}/step_[0-9]{6}\.parquet", fullmatch=True), max_size=30
    ),
    data=st.data(),
)
def test_any_files_in_any_order(names: set[str], data: st.DataObject) -> None:
    index, places = NONE, {}
    for number, group in enumerate(np.array_split(sorted(names), 3)):
        segment = f"a/b/segment_000000-000000.{1800000000 + number}-000000000.parquet"
        ranges = {str(name): (at * 10, 10) for at, name in enumerate(group)}
        places |= {name: Place(segment, *found) for name, found in ranges.items()}
        index = index.with_segment(Segment(segment, 1000, 10 * len(ranges), ""), ranges)
    gone = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    index = index.without(gone)
    expected = {name: place for name, place in places.items() if name not in gone}
    for found in (index, read(index.to_bytes(), index.generation)):
        assert dict(found.items()) == expected
        assert all(found.find(name) == expected.get(name) for name in names)


@settings(max_examples=examples(300), deadline=None)
@given(at=st.integers(0, 10**6), to=st.integers(0, 255))
def test_an_altered_byte_is_found(at: int, to: int) -> None:
    data = bytearray(index_of().to_bytes())
    at %= len(data)
    same = data[at] == to
    data[at] = to
    if same:
        whole(data, 2)
        return
    with pytest.raises(CorruptFileError):
        whole(data, 2)


def test_every_cut_is_found() -> None:
    data = index_of().to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptFileError):
            whole(data[:length], 2)


HOSTILE = {
    "another generation": altered({"generation": 7}),
    "no generation": altered({"generation": None}),
    "a segment twice": altered({"segments": [[ONE, 9, 9, ""]] * 2}),
    "a segment elsewhere": altered({"segments": [["../" + ONE, 900, 9, ""], [TWO, 9, 7, ""]]}),
    "a segment that is a recording": altered({"segments": [["train/rollout/step_000000.parquet", 9, 9, ""]]}),
    "a segment of another kind": altered({"segments": [[7, 900, 9, ""], [TWO, 9, 7, ""]]}),
    "a segment with a size below 0": altered({"segments": [[ONE, -1, 9, ""], [TWO, 9, 7, ""]]}),
    "segments of nothing": altered({"segments": None}),
    "a file in no segment": altered({"segments": [[ONE, 900, 9, ""]]}),
    "a file beyond its segment": altered({"segments": [[ONE, 499, 9, ""], [TWO, 9, 7, ""]]}),
    "folders of nothing": altered({"folders": None}),
    "a folder elsewhere": altered({"folders": [["../x/", *blocks_of()[0][1:]]]}),
    "a folder without a slash": altered({"folders": [["train", *blocks_of()[0][1:]]]}),
    "a folder twice": altered({"folders": [blocks_of()[0]] * 2}),
    "the root as a folder": altered({"folders": [["", *blocks_of()[0][1:]]]}),
    "a folder without blocks": altered({"folders": [*blocks_of(), ["a/b/", [], [], [], [], []]]}),
    "a folder that lacks numbers": altered({"folders": [blocks_of()[0][:-1]]}),
    "fewer numbers than blocks": altered({"folders": [[*blocks_of()[0][:-1], []]]}),
    "a number that no machine has": altered({"folders": blocks_of(length=2**70)}),
    "a block of truth": altered({"folders": blocks_of(count=True)}),
    "a folder less": altered({"folders": blocks_of()[:1]}),
    "fewer files": altered({"folders": blocks_of(count=4)}),
    "no files": altered({"folders": blocks_of(count=0)}),
    "more files": altered({"folders": blocks_of(count=500)}),
    "files below 0": altered({"folders": blocks_of(count=-1)}),
    "another first name": altered({"folders": blocks_of(first="a")}),
    "a first name of no text": altered({"folders": blocks_of(first=None)}),
    "a block that is longer": altered({"folders": blocks_of(length=10**6)}),
    "a block of less than nothing": altered({"folders": blocks_of(length=-5)}),
    "a body that is longer": altered({"folders": blocks_of(body=10**6)}),
    "a body that is shorter": altered({"folders": blocks_of(body=190)}),
    "a body of no number": altered({"folders": blocks_of(body=None)}),
    "offsets that overflow": altered({}, body_of(["a", "b"], [(0, 2**64 - 5, 9), (0, 0, 1)])),
    "two files in one place": altered({}, body_of(["a", "b"], [(0, 0, 9), (0, 8, 9)])),
    "names out of order": altered({}, body_of(["b", "a"], [(0, 0, 1), (0, 8, 1)])),
    "a name twice": altered({}, body_of(["a", "a"], [(0, 0, 1), (0, 8, 1)])),
    "a name with a folder": altered({}, body_of(["../a", "b"], [(0, 0, 1), (0, 8, 1)])),
    "a hidden name": altered({}, body_of([".tmp", "b"], [(0, 0, 1), (0, 8, 1)])),
    "an empty name": altered({}, body_of(["", "b"], [(0, 0, 1), (0, 8, 1)])),
    "no text": altered({}, body_of(["a", "b\udcff"], [(0, 0, 1), (0, 8, 1)])),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_does_not_hold_together_is_refused(case: str) -> None:
    with pytest.raises(CorruptFileError, match="does not hold together"):
        whole(HOSTILE[case], 2)


def test_a_later_format_is_refused_as_such() -> None:
    with pytest.raises(FormatVersionError, match="format 3"):
        read(altered({"format": 3}), 2)


def test_an_index_that_asks_for_all_memory_is_refused_before_it_gets_it() -> None:
    with pytest.raises(MemoryLimitError):
        whole(altered({"folders": blocks_of(body=2**47, count=2**40)}), 2)


def many(count: int) -> SegmentIndex:
    """An index of so many files in two folders, two for each segment."""
    ranges = {f"train/rollout/step_{step:06d}.parquet": (10 * step, 10) for step in range(count - 1)}
    ranges["val/rollout/step_000000.parquet"] = (10 * count, 10)
    return NONE.with_segment(Segment(ONE, 10 * count + 10, 10 * count, ""), ranges)


class Counted:
    """The file of an index, and how many bytes of it were asked for, each time."""

    def __init__(self, data: bytes, tail: int) -> None:
        self.data, self.asked = data, [tail]
        self.index = read_index(data[-tail:], len(data), 1, self._read)

    def _read(self, offset: int, length: int) -> bytes:
        self.asked.append(length)
        return self.data[offset : offset + length]


def test_of_many_files_only_a_bounded_part_is_read() -> None:
    """Opening and finding take as many reads, and about as many bytes, of 100,000 files as of 50,000."""
    few, many_more = (Counted(many(count).to_bytes(), 16_000) for count in (50_000, 100_000))
    for found in (few, many_more):
        assert found.index.find("train/rollout/step_004000.parquet") == Place(ONE, 40_000, 10)
        assert found.index.find("train/rollout/step_004001.parquet") == Place(ONE, 40_010, 10)
        assert found.index.find("train/rollout/step_99.parquet") is None
        assert found.index.find("a/b/step_000000.parquet") is None
    for found in (few, many_more):  # the last block, where the missing one would be, is in the end
        assert len(found.asked) == 2, "the end, and one block"
        assert found.asked[1] < 16_000 < len(found.data) / 5
    assert len(many_more.index) == 100_000
    before = len(many_more.asked)
    assert len(many_more.index.names("train/rollout/")) == 99_999
    assert len(many_more.asked) == before + 1, "all blocks at once"


@pytest.mark.parametrize("tail", [16, 40, 100, 2_000, 10**6])
def test_however_much_is_read_at_first_it_is_the_same_index(tail: int) -> None:
    index = many(3_000)
    back = read(index.to_bytes(), 1, tail).whole()
    assert dict(back.items()) == dict(index.items())
    assert back.segments == index.segments


def test_damage_of_one_block_is_found_by_who_needs_it() -> None:
    data = bytearray(many(3_000).to_bytes())
    data[5] ^= 1
    index = read(data, 1)
    with pytest.raises(CorruptFileError, match="checksum"):
        index.find("train/rollout/step_000000.parquet")
    assert index.find("train/rollout/step_002500.parquet") == Place(ONE, 25_000, 10)
    with pytest.raises(CorruptFileError, match="checksum"):
        index.whole()


def test_files_of_two_blocks_in_one_place_are_refused_as_a_whole() -> None:
    ranges = {f"train/rollout/step_{step:06d}.parquet": (10 * (step % 1500), 10) for step in range(3_000)}
    index = read(NONE.with_segment(Segment(ONE, 10**6, 30_000, ""), ranges).to_bytes(), 1)
    assert index.find("train/rollout/step_000001.parquet") == Place(ONE, 10, 10)
    with pytest.raises(CorruptFileError, match="two files lie in one place"):
        index.whole()


def test_names_of_indexes_and_segments() -> None:
    assert index_name(7) == "segments.index/000007"
    assert made_at(ONE) == 1800000000
    assert made_at("train/rollout/step_000000.parquet") is None
    with pytest.raises(rolltape.KeyNameError):
        rolltape.Key(split="segments.index", step=0)


# -- the footer of Parquet -------------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_footers(data: bytes) -> None:
    try:
        found = thrift_tree.parse(data)
    except CorruptFileError:
        return
    assert thrift_tree.parse(thrift_tree.serialize(found)) == found


def test_a_footer_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="too deeply"):
        thrift_tree.parse(b"\x1c" * 10_000)
    with pytest.raises(CorruptFileError, match="longer than itself"):
        thrift_tree.parse(b"\x19\xfc\xff\xff\xff\xff\x0f")
