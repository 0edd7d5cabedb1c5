"""Recordings whose checksums are right and whose content is not: refused before anything is allocated."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import CorruptFileError, MemoryLimitError, RolltapeError
from rolltape.key import Key
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage
from rolltape.storage.memory_limit import memory_limit
from tests.exact import assert_same, open_bytes, to_bytes
from tests.resealing import header_of, resealed

SAMPLES = 4
MASK = np.tril(np.ones((SAMPLES, 6), np.int64))
BATCH = {
    "mask": MASK,
    "ids": np.where(MASK, 7 + np.arange(6), 0),
    "longer": np.concatenate([MASK, np.where(MASK, 7 + np.arange(6), 0)], axis=1),
    "positions": np.tile(np.arange(6), (SAMPLES, 1)),
    "floats": np.random.default_rng(0).random((SAMPLES, 5)),
    "lists": [[1] * n for n in range(SAMPLES)],
    "texts": ["a", "b", None, "d"],
    "odd": [{"x": np.arange(n), "t": (n,)} for n in range(SAMPLES)],
    "meta": {"big": np.arange(3000), "pair": (1, 2), "by_number": {1: 2}},
}
DATA = to_bytes(BATCH)


def array(**entry: Any) -> dict[str, Any]:
    return {"kind": "array", "dtype": "int64", "shape": [6], "layout": "const", "start": 0, "stop": 6} | entry


def add(**entries: Any) -> Callable[[dict[str, Any]], None]:
    """Columns more than there were."""
    return lambda header: header["columns"].update(entries)


def edit(column: str, **entry: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["columns"][column].update(entry)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        *to, last = path.split(".")
        for name in to:
            header = header[name]
        header[last] = value

    return change


def doubling(levels: int) -> dict[str, Any]:
    """Columns of which each is twice the one before: 2**levels pieces, in a few bytes."""
    found: dict[str, Any] = {"d0": array(shape=[1], stop=1)}
    for n in range(1, levels + 1):
        found[f"d{n}"] = array(layout="join", shape=[2**n], of=[f"d{n - 1}"] * 2)
    return found


def chain(length: int) -> dict[str, Any]:
    found: dict[str, Any] = {"c0": array(shape=[1], stop=1)}
    for n in range(1, length):
        found[f"c{n}"] = array(layout="join", shape=[n + 1], of=[f"c{n - 1}", "c0"])
    return found


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a column that is made of itself": add(loop=array(layout="join", of=["loop", "loop"])),
    "two columns that are made of each other": add(
        a=array(layout="join", shape=[12], of=["b", "b"]), b=array(layout="join", of=["a", "a"])
    ),
    "columns that fan out": lambda header: header["columns"].update(doubling(40)),
    "columns that are made of each other without end": lambda header: header["columns"].update(chain(3000)),
    "a wide column of nothing": add(a=array(shape=[2**33], stop=2**33)),
    "a shape beyond all memory": edit("floats", shape=[2**40, 2**40]),
    "a shape with a zero in it": edit("floats", shape=[0, 2**62]),
    "an array with as many bytes as it likes": put("wholes.big.shape", [2**38]),
    "more samples than there are": put("samples", 2**40),
    "a part that is not inside": add(a=array(layout="part", of=["ids"], offset=3)),
    "a part of a part": add(
        a=array(layout="part", of=["ids"], offset=0), b=array(layout="part", of=["a"], offset=0)
    ),
    "rows that begin before their first element": edit("ids", start=[0, -9]),
    "rows that end behind their last element": edit("ids", stop=[0, 9]),
    "rows that end before they begin": edit("mask", start=6, stop=0),
    "bounds that are not there": edit("ids", stop=[77, 0]),
    "padding of too many bits": edit("mask", right=2**70),
    "a dtype of a million in one": edit("floats", dtype="numpy:(1000000,)f8", layout="bytes"),
    "a dtype of objects": edit("floats", dtype="numpy:O", layout="bytes"),
    "a dtype without bits": edit("floats", dtype="numpy:<U0", layout="bytes"),
    "text as numbers": edit("texts", **{"as": "float"}),
    "numbers as text": add(floats={"kind": "objects", "as": "text"}),
    "a ragged column of nothing": edit("lists", shape=[0]),
    "entries that do not fill a row": edit("lists", shape=[5]),
    "a layout from the future": edit("ids", layout="wavelet"),
    "a tree that repeats an array": put("tree.copy", {"$whole": "big"}),
    "a tree that repeats a column": put("tree.copy", {"$column": "ids", "wrap": {"lib": "numpy"}}),
    "a tree with a column that is not there": put("tree.copy", {"$column": "?", "wrap": {"lib": "numpy"}}),
    "a tree with axes that are not there": put("tree.ids.wrap.order", [5, 4]),
    "a tree of an unknown kind": put("tree.copy", {"$future": 1}),
    "a list as the key of a dict": put("tree.copy", {"$dict": [[[1], 2]]}),
    "a set of lists": put("tree.copy", {"$set": [[1]]}),
    "a time that is none": put("tree.copy", {"$datetime": ["noon", 0, None]}),
    "a span of more days than there are": put("tree.copy", {"$timedelta": [10**12, 0, 0]}),
    "records of no length": put("tree.copy", {"$records": None, "fields": {"a": 1}, "groups": None}),
    "groups of more than there are": put(
        "tree.copy",
        {"$records": None, "fields": {"a": {"$list": [1]}}, "groups": [2**40]},
    ),
    "a header that is a list": lambda header: [header],
    "columns that are a list": put("columns", []),
    "a tree without end": put("tree.deep", None),
}


def deep(header: dict[str, Any]) -> None:
    node: Any = 1
    for _ in range(600):
        node = [node]
    header["tree"]["deep"] = node


HOSTILE["a tree without end"] = deep


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> bytes:
    return resealed(DATA, request.param)


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "1GB")


def test_what_is_sealed_again_unchanged_is_read() -> None:
    data = resealed(DATA, lambda header: None)
    assert_same(BATCH, open_bytes(data).value())
    open_bytes(data).verify()


def test_a_hostile_recording_is_an_error_of_ours_at_once(hostile: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises((CorruptFileError, MemoryLimitError)):
        open_bytes(hostile).value()
    with pytest.raises((CorruptFileError, MemoryLimitError)):
        open_bytes(hostile).verify()
    assert time.perf_counter() - started < 5


def test_it_is_refused_by_replay_by_the_reader_and_by_check(hostile: bytes, tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: BATCH)()
    place = tmp_path / "t" / Key(step=0).path
    about = header_of(place.read_bytes())["about"]
    if header_of(hostile).__class__ is dict:
        hostile = resealed(hostile, put("about", about))
    place.write_bytes(hostile)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape, tape.step(0):
        with pytest.raises(RolltapeError) as caught:
            tape.stage("rollout")(lambda: BATCH)()
        assert caught.value.where == str(place)
    assert [finding.kind for finding in inspect(LocalStorage(tmp_path / "t")).findings] == ["damaged"]


def test_keys_that_were_chosen_to_collide_are_refused_at_once() -> None:
    alike = [[{"$int": hex(n * (2**61 - 1))}, n] for n in range(3, 40_000)]
    data = resealed(DATA, put("tree.copy", {"$dict": alike}))
    started = time.perf_counter()
    with pytest.raises(CorruptFileError, match="chosen to make it slow"):
        open_bytes(data).value()
    assert time.perf_counter() - started < 5


def test_rows_without_padding_are_no_way_around_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    long = resealed(DATA, add(a=array(shape=[10**6], stop=10**6)))
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "20MB")
    with pytest.raises(MemoryLimitError):
        open_bytes(long).jagged(["a"])
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "1GB")
    assert len(open_bytes(long).jagged(["a"])["a"][0].values) == SAMPLES * 10**6


def test_columns_that_fan_out_are_not_walked_through_piece_by_piece() -> None:
    file = open_bytes(resealed(DATA, lambda header: header["columns"].update(doubling(18))))
    started = time.process_time()
    assert len(file.jagged(["d18"])["d18"][0].values) == SAMPLES * 2**18
    assert time.process_time() - started < 5


def test_the_limit_can_be_raised_and_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    large = to_bytes({"zeros": np.zeros((4, 10**6))})
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "20MB")
    with pytest.raises(MemoryLimitError, match=r"needs 0\.0 GB of memory, above the limit") as caught:
        open_bytes(large).value()
    assert isinstance(caught.value, MemoryError)
    assert "ROLLTAPE_MAX_MEMORY=1GB" in str(caught.value)
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "1GB")
    assert open_bytes(large).value()["zeros"].shape == (4, 10**6)


def test_a_part_of_what_is_too_large_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    large = to_bytes({"zeros": np.zeros((100, 10**5)), "n": np.arange(100)})
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", "10MB")
    assert open_bytes(large).columns(["n"])["n"].samples == 100
    assert open_bytes(large).columns(["zeros"], 3, 5)["zeros"].samples == 2


def test_by_default_it_is_half_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLTAPE_MAX_MEMORY")
    assert 2**27 < memory_limit() < 2**50


@pytest.mark.parametrize("word", ["lots", "-1", "0"])
def test_a_limit_that_is_no_size_is_said(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("ROLLTAPE_MAX_MEMORY", word)
    with pytest.raises(rolltape.ConfigError, match="number of bytes"):
        open_bytes(DATA).value()
