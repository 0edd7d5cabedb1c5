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


def altered(change: dict, body: bytes | None = None, **more: object) -> bytes:
    """The bytes of an index whose checksum is right and whose header says something else."""
    data = index_of().to_bytes()
    length = struct.unpack("<I", data[8:12])[0]
    header = json.loads(data[12 : 12 + length]) | change
    packed = data[12 + length : -4]
    if body is not None:
        packed = pa.Codec("zstd").compress(body, asbytes=True)
        header["body"] = len(body) if "body" not in change else change["body"]
    head = json.dumps(header).encode()
    made = b"RTINDEX1" + struct.pack("<I", len(head)) + head + packed
    return made + struct.pack("<I", zlib.crc32(made))


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
    back = read_index(index.to_bytes(), 2)
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
    assert list(read_index(less.to_bytes(), 3).segments) == [TWO]
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
    for found in (index, read_index(index.to_bytes(), index.generation)):
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
        read_index(data, 2)
        return
    with pytest.raises(CorruptFileError):
        read_index(data, 2)


def test_every_cut_is_found() -> None:
    data = index_of().to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptFileError):
            read_index(data[:length], 2)


GOOD = [("train/rollout/", 2)]
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
    "a folder elsewhere": altered({"folders": [["../x/", 7]]}),
    "a folder without a slash": altered({"folders": [["train", 7]]}),
    "a folder twice": altered({"folders": [["train/rollout/", 5], ["train/rollout/", 2]]}),
    "the root as a folder": altered({"folders": [["", 7]]}),
    "fewer files": altered({"folders": [["train/rollout/", 5]]}),
    "more files": altered({"folders": [["train/rollout/", 500]]}),
    "files below 0": altered({"folders": [["train/rollout/", -1]]}),
    "a body that is longer": altered({"body": 10**6}),
    "a body that is shorter": altered({"body": 190}),
    "a body of no number": altered({"body": 1.5}),
    "offsets that overflow": altered({"folders": GOOD}, body_of(["a", "b"], [(0, 2**64 - 5, 9), (0, 0, 1)])),
    "two files in one place": altered({"folders": GOOD}, body_of(["a", "b"], [(0, 0, 9), (0, 8, 9)])),
    "names out of order": altered({"folders": GOOD}, body_of(["b", "a"], [(0, 0, 1), (0, 8, 1)])),
    "a name twice": altered({"folders": GOOD}, body_of(["a", "a"], [(0, 0, 1), (0, 8, 1)])),
    "a name with a folder": altered({"folders": GOOD}, body_of(["../a", "b"], [(0, 0, 1), (0, 8, 1)])),
    "a hidden name": altered({"folders": GOOD}, body_of([".tmp", "b"], [(0, 0, 1), (0, 8, 1)])),
    "an empty name": altered({"folders": GOOD}, body_of(["", "b"], [(0, 0, 1), (0, 8, 1)])),
    "no text": altered({"folders": GOOD}, body_of(["a", "b\udcff"], [(0, 0, 1), (0, 8, 1)])),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_does_not_hold_together_is_refused(case: str) -> None:
    with pytest.raises(CorruptFileError, match="does not hold together"):
        read_index(HOSTILE[case], 2)


def test_a_later_format_is_refused_as_such() -> None:
    with pytest.raises(FormatVersionError, match="format 3"):
        read_index(altered({"format": 3}), 2)


def test_an_index_that_asks_for_all_memory_is_refused_before_it_gets_it() -> None:
    with pytest.raises(MemoryLimitError):
        read_index(altered({"body": 10**15, "folders": [["a/b/", 10**13]]}), 2)


def test_names_of_indexes_and_segments() -> None:
    assert index_name(7) == "segments.index/000007"
    assert made_at(ONE) == 1800000000
    assert made_at("train/rollout/step_000000.parquet") is None
    with pytest.raises(rolltape.KeyNameError):
        rolltape.key.Key(split="segments.index", step=0)


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
