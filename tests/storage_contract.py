"""What every storage promises, whatever it stores to: for modules that have a fixture `make_storage`."""

from __future__ import annotations

import array
import pickle
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolltape.errors import (
    CorruptFileError,
    FileReplacedError,
    KeyNameError,
    RolltapeError,
    StepExistsError,
    StepMissingError,
)
from rolltape.storage import Storage
from tests.stacks import examples

Make = Callable[[], Storage]
"""Makes a storage at a place of its own, where nothing is yet."""

NAME = "train/rollout/step_000000.parquet"


@pytest.fixture
def storage(make_storage: Make) -> Storage:
    return make_storage()


def test_what_was_published_is_read_back_whole(storage: Storage) -> None:
    chunks = [b"PAR1", bytearray(b"body"), memoryview(b"tail")]
    assert storage.publish(NAME, chunks, replace=False) == 12
    assert storage.read(NAME) == b"PAR1bodytail"


def test_chunks_may_be_empty_typed_or_many(storage: Storage) -> None:
    numbers = memoryview(array.array("i", range(6))).cast("B").cast("i", [2, 3])
    nothing = memoryview(array.array("d"))
    many = [bytes([index % 256]) for index in range(5000)]
    storage.publish("train/typed", [b"", numbers, nothing], replace=False)
    storage.publish("train/many", many, replace=False)
    storage.publish("train/empty", [], replace=False)
    assert storage.read("train/typed") == numbers.tobytes()
    assert storage.read("train/many") == b"".join(many)
    assert storage.read("train/empty") == b""
    assert storage.exists("train/empty")


def test_a_name_is_not_overwritten_unless_asked(storage: Storage) -> None:
    storage.publish(NAME, [b"first"], replace=False)
    with pytest.raises(StepExistsError) as caught:
        storage.publish(NAME, [b"second"], replace=False)
    assert storage.read(NAME) == b"first"
    assert NAME in str(caught.value)
    storage.publish(NAME, [b"third"], replace=True)
    assert storage.read(NAME) == b"third"


def test_replace_also_publishes_a_new_name(storage: Storage) -> None:
    storage.publish(NAME, [b"new"], replace=True)
    assert storage.read(NAME) == b"new"


@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5), bounds=st.data())
def test_any_range_of_any_bytes(
    make_storage: Make, data: bytes, cuts: list[int], bounds: st.DataObject
) -> None:
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(edges)]
    spans = []
    for _ in range(3):
        offset = bounds.draw(st.integers(0, len(data)))
        spans.append((offset, bounds.draw(st.integers(0, len(data) - offset))))
    storage = make_storage()
    assert storage.publish("x", chunks, replace=False) == sum(map(len, chunks))
    assert storage.read("x") == b"".join(chunks) == data
    offset, length = spans[0]
    assert storage.read("x", offset) == data[offset:]
    assert storage.read("x", offset, length) == data[offset : offset + length]
    assert storage.read_ranges("x", spans) == [data[start : start + size] for start, size in spans]
    for whole in (0, len(data)):
        stat, end = storage.read_end("x", length, whole)
        assert stat == storage.stat("x")
        assert end == (data if whole else data[len(data) - length :])


def test_a_missing_name(storage: Storage) -> None:
    for name in (NAME, "tape.json"):
        with pytest.raises(StepMissingError) as caught:
            storage.read(name)
        assert name in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
        assert storage.stat(name) is None
        assert not storage.exists(name)
        storage.delete(name)


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (4, 7), (11, None), (11, 0), (10, 1)])
def test_a_range_beyond_the_end_is_an_error_never_fewer_bytes(
    storage: Storage, offset: int, length: int | None
) -> None:
    storage.publish(NAME, [b"0123456789"], replace=False)
    with pytest.raises(CorruptFileError, match="ends too early") as caught:
        storage.read(NAME, offset, length)
    assert NAME in str(caught.value)


def test_stat_tells_one_revision_from_the_next(storage: Storage) -> None:
    storage.publish(NAME, [b"one"], replace=False)
    first = storage.stat(NAME)
    assert first is not None
    assert (first.name, first.size) == (NAME, 3)
    assert storage.stat(NAME) == first
    storage.publish(NAME, [b"two"], replace=True)
    second = storage.stat(NAME)
    assert second is not None
    assert second.size == 3
    assert second.revision != first.revision


def test_what_was_replaced_is_not_read_as_if_it_were_the_old_one(storage: Storage) -> None:
    storage.publish(NAME, [b"0123456789"], replace=False)
    stat, end = storage.read_end(NAME, 4)
    assert (stat.size, end) == (10, b"6789")
    assert storage.read(NAME, 2, 3, stat.revision) == b"234"
    assert storage.read_ranges(NAME, [(0, 2), (8, 2)], stat.revision) == [b"01", b"89"]
    storage.publish(NAME, [b"abcdefghij"], replace=True)
    for attempt in (
        lambda: storage.read(NAME, 2, 3, stat.revision),
        lambda: storage.read(NAME, revision=stat.revision),
        lambda: storage.read_ranges(NAME, [(0, 2), (8, 2)], stat.revision),
    ):
        with pytest.raises(FileReplacedError) as caught:
            attempt()
        assert NAME in str(caught.value)
    with pytest.raises(StepMissingError):
        storage.read_end("train/none", 4)


def test_a_folder_is_not_a_file(storage: Storage) -> None:
    storage.publish(NAME, [b"x"], replace=False)
    assert not storage.exists("train")
    assert storage.stat("train/rollout") is None
    assert not storage.exists(f"{NAME}/deeper")


def test_listing_one_level_at_a_time(storage: Storage) -> None:
    assert list(storage.names("")) == list(storage.entries("val/")) == list(storage.folders("")) == []
    files = {
        "tape.json": 1,
        "train/metrics.jsonl": 2,
        "train/rollout/a": 3,
        "train/rollout/b": 4,
        "val/rollout/a": 5,
    }
    for name, size in files.items():
        storage.publish(name, [bytes(size)], replace=False)
    assert set(storage.names("")) == {"tape.json"}
    assert set(storage.folders("")) == {"train/", "val/"}
    assert set(storage.folders("train/")) == {"train/rollout/"}
    assert set(storage.names("train/rollout/")) == {"train/rollout/a", "train/rollout/b"}
    assert {entry.name: entry.size for entry in storage.entries("train/rollout/")} == {
        "train/rollout/a": 3,
        "train/rollout/b": 4,
    }
    assert all(storage.stat(entry.name) == entry for entry in storage.entries("train/"))
    assert list(storage.names("train/rollout/a/")) == []


def test_what_was_deleted_is_gone_and_can_be_published_again(storage: Storage) -> None:
    storage.publish(NAME, [b"old"], replace=False)
    storage.delete(NAME)
    storage.delete(NAME)
    assert not storage.exists(NAME)
    assert list(storage.names("train/rollout/")) == []
    storage.publish(NAME, [b"new"], replace=False)
    assert storage.read(NAME) == b"new"


def test_appended_lines_follow_each_other(storage: Storage) -> None:
    for line in (b'{"step": 0}', b"", b'{"step": 1}'):
        storage.append("train/metrics.jsonl", line)
    assert storage.read("train/metrics.jsonl") == b'{"step": 0}\n\n{"step": 1}\n'


def test_a_half_line_does_not_swallow_the_next_one(storage: Storage) -> None:
    storage.publish("train/metrics.jsonl", [b'{"step": 0}\n{"st'], replace=False)
    storage.append("train/metrics.jsonl", b'{"step": 1}')
    assert storage.read("train/metrics.jsonl") == b'{"step": 0}\n{"st\n{"step": 1}\n'


def test_a_line_is_one_line(storage: Storage) -> None:
    with pytest.raises(ValueError, match="newline"):
        storage.append("train/metrics.jsonl", b"two\nlines")
    assert not storage.exists("train/metrics.jsonl")


def test_a_file_of_lines_is_a_file_like_any_other(storage: Storage) -> None:
    name = "train/metrics.jsonl"
    storage.append(name, b"one")
    first = storage.stat(name)
    assert first is not None
    assert first.size == 4
    assert storage.exists(name)
    assert list(storage.names("train/")) == [name]
    assert list(storage.entries("train/")) == [first]
    assert [stat.name for stat in storage.everything()] == [name]
    assert list(storage.folders("train/")) == []
    with pytest.raises(StepExistsError):
        storage.publish(name, [b"x"], replace=False)
    storage.append(name, b"two")
    second = storage.stat(name)
    assert second is not None
    assert second.size == 8
    assert second.revision != first.revision
    assert storage.read(name, 2, 4) == b"e\ntw"
    assert storage.read_end(name, 3)[1][-3:] == b"wo\n"
    storage.publish(name, [b"only"], replace=True)
    assert storage.read(name) == b"only"
    storage.append(name, b"more")
    assert storage.read(name) == b"only\nmore\n"
    third = storage.stat(name)
    assert third is not None
    assert third.size == 10
    storage.delete(name)
    storage.delete(name)
    assert not storage.exists(name)
    assert storage.stat(name) is None
    assert (
        list(storage.names("train/")) == list(storage.entries("train/")) == list(storage.everything()) == []
    )
    with pytest.raises(StepMissingError):
        storage.read(name)
    storage.append(name, b"again")
    assert storage.read(name) == b"again\n"
    storage.delete(name)
    storage.publish(name, [b"new\n"], replace=False)
    assert storage.read(name) == b"new\n"


def test_only_files_of_lines_take_lines(storage: Storage) -> None:
    with pytest.raises(KeyNameError, match="jsonl"):
        storage.append("train/metrics.json", b"x")
    assert not storage.exists("train/metrics.json")


def test_writers_of_lines_keep_their_order_and_lose_none(make_storage: Make) -> None:
    storage = make_storage()
    writers = [pickle.loads(pickle.dumps(storage)) for _ in range(4)]

    def write(me: int) -> None:
        for count in range(20):
            writers[me].append("runs.jsonl", f"{me} {count}".encode())

    threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = bytes(storage.read("runs.jsonl")).decode().splitlines()
    for me in range(4):
        assert [line for line in lines if line[0] == str(me)] == [f"{me} {count}" for count in range(20)]
    assert len(lines) == 80


def test_of_many_threads_one_publishes_the_name(storage: Storage) -> None:
    storage.check_writable()
    outcomes: list[int | None] = []
    barrier = threading.Barrier(12)

    def publish(me: int) -> None:
        barrier.wait()
        try:
            storage.publish(NAME, [bytes([me]) * 1000], replace=False)
            outcomes.append(me)
        except StepExistsError:
            outcomes.append(None)

    threads = [threading.Thread(target=publish, args=(me,)) for me in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    assert len(outcomes) == 12
    assert storage.read(NAME) == bytes([winner]) * 1000


def test_writing_leaves_nothing_else_to_see(storage: Storage) -> None:
    storage.check_writable()
    storage.publish(NAME, [b"x"], replace=False)
    storage.publish(NAME, [b"y"], replace=True)
    with pytest.raises(StepExistsError):
        storage.publish(NAME, [b"z"], replace=False)
    assert list(storage.folders("")) == ["train/"]
    assert list(storage.names("")) == []
    assert list(storage.names("train/rollout/")) == [NAME]
    assert storage.clean(0) == 0


def test_a_place_without_limits_or_some_free_bytes(storage: Storage) -> None:
    before = storage.free_bytes()  # nothing is there yet
    assert before is None or before > 0
    storage.check_writable()
    assert (storage.free_bytes() is None) == (before is None)


BAD_PARTS = ["..", ".", "", ".tmp", ".hidden", "a\\b", "nul\0", "line\n", "x" * 256, "é" * 128, "\ud800"]
BAD_NAMES = ["/etc/passwd", "a/../../b", "a//b", "a/", *BAD_PARTS, *(f"train/{part}/x" for part in BAD_PARTS)]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_cannot_leave_the_tape(storage: Storage, name: str) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: storage.publish(name, [b"x"], replace=True),
        lambda: storage.append(name, b"x"),
        lambda: storage.read(name),
        lambda: storage.stat(name),
        lambda: storage.exists(name),
        lambda: storage.delete(name),
        lambda: list(storage.names(f"{name}/")),
        lambda: list(storage.entries(f"{name}/")),
        lambda: list(storage.folders(f"{name}/")),
    ]
    for attempt in attempts:
        with pytest.raises(KeyNameError) as caught:
            attempt()
        assert isinstance(caught.value, RolltapeError)
    assert list(storage.everything()) == []


@pytest.mark.parametrize("prefix", ["train", "/", "train/rollout"])
def test_a_prefix_ends_in_a_slash(storage: Storage, prefix: str) -> None:
    with pytest.raises(KeyNameError):
        list(storage.names(prefix))
