"""With ``lazy=True`` a column is decoded when somebody first looks at it; all else is as it always is."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.batch.digest import digest
from rolltape.batch.lazy import LazyDict
from rolltape.codec.file import RecordingFile
from rolltape.errors import CorruptFileError
from tests.exact import assert_same

NAMES = ("responses", "mask", "scores", "uid")


def batch(step: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    lengths = rng.integers(1, 40, 8)
    inside = np.arange(40) < lengths[:, None]
    return {
        "responses": np.where(inside, rng.integers(5, 99, (8, 40)), 0),
        "mask": inside.astype(np.int64),
        "scores": rng.normal(size=8),
        "uid": [f"{step}-{row}" for row in range(8)],
        "meta": {"temperature": 0.7, "step": step},
        "weights": rng.normal(size=(3, 5)),
    }


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(batch)
        for step in range(3):
            with tape.step(step):
                rollout(step)
    return tmp_path / "t"


def replay(path: Path, step: int = 0, **options: Any) -> Any:
    with rolltape.Tape(path, mode="replay", lazy=True, **options) as tape:
        rollout = tape.stage("rollout")(lambda: None)
        with tape.step(step):
            return rollout()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that were decoded, in order."""
    found: list[str] = []
    real = RecordingFile._expanded

    def noted(self: RecordingFile, names: Any, *rest: Any) -> Any:
        found.extend(names)
        return real(self, names, *rest)

    monkeypatch.setattr(RecordingFile, "_expanded", noted)
    return found


def test_only_what_is_looked_at_is_decoded(recorded: Path, decoded: list[str]) -> None:
    found = replay(recorded)
    assert decoded == []
    assert list(found) == list(batch())
    assert "mask" in found
    assert len(found) == 6
    assert decoded == []
    assert_same(found["mask"], batch()["mask"])
    assert_same(found["mask"], batch()["mask"])
    assert decoded == ["mask"]
    assert found["mask"] is found["mask"]


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_values_are_those_recorded(recorded: Path, prefetch: bool) -> None:
    with rolltape.Tape(recorded, mode="replay", lazy=True, prefetch=prefetch) as tape:
        rollout = tape.stage("rollout")(lambda: None)
        for step in range(3):
            with tape.step(step):
                found = rollout()
            assert isinstance(found, dict)
            assert_same(dict(found), batch(step))


WAYS = {
    "dict()": dict,
    "**": lambda found: {**found},
    "a call": lambda found: (lambda **named: named)(**found),
    "update": lambda found: (plain := {}, plain.update(found))[0],
    "items": lambda found: dict(found.items()),
    "keys and values": lambda found: dict(zip(found, found.values(), strict=True)),
    "get": lambda found: {name: found.get(name) for name in found},
    "pop": lambda found: {name: found.pop(name) for name in list(found)},
    "popitem": lambda found: dict(reversed([found.popitem() for _ in range(len(found))])),
    "setdefault": lambda found: {name: found.setdefault(name, 1) for name in found},
    "copy": lambda found: found.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda found: pickle.loads(pickle.dumps(found)),
    "pickle 2": lambda found: pickle.loads(pickle.dumps(found, 2)),
    "or": lambda found: found | {},
    "or, from the right": lambda found: {} | found,
    "a constructor of its kind": lambda found: dict(type(found)(found)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_done_to_it_it_is_a_dict(recorded: Path, way: str) -> None:
    got = WAYS[way](replay(recorded))
    assert type(got) is dict
    assert_same(got, batch())


def test_words_and_comparisons() -> None:
    def lazy() -> LazyDict:
        return LazyDict.of({"a": 1}, ["b"], lambda keys: {key: [key] for key in keys})

    plain = {"a": 1, "b": ["b"]}
    assert repr(lazy()) == repr(plain)
    assert lazy() == plain
    assert plain == lazy()
    assert lazy() == lazy()
    assert lazy() != {"a": 1}
    assert json.dumps(lazy()) == json.dumps(plain)
    assert digest(lazy(), "given") == digest(plain, "given")
    changed = lazy()
    changed["b"] = 2
    assert changed == {"a": 1, "b": 2}
    changed |= {"c": 3}
    assert dict(changed) == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(KeyError):
        lazy()["z"]
    assert lazy().pop("z", 5) == 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(lazy())


def test_who_reads_past_its_methods_is_told_and_gets_no_wrong_value() -> None:
    class Record:
        b: Any

    record = Record()
    record.__dict__ = LazyDict.of({"a": 1}, ["b"], lambda keys: {key: [key] for key in keys})
    assert "dict(batch)" in repr(record.b)
    uses: list[Callable[[Any], Any]] = [
        len, list, bool, np.asarray, lambda found: found[0], lambda found: found + 1,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises((TypeError, AttributeError)):
            use(record.b)
    with pytest.raises(AttributeError, match="has no 'shape'"):
        record.b.shape  # noqa: B018
    record.__dict__ = dict(record.__dict__)
    assert record.b == ["b"]


def flip(path: Path, column: str) -> None:
    """Change one byte in the middle of a column."""
    data = bytearray(path.read_bytes())
    file = RecordingFile(None, len(data), memoryview(bytes(data)))  # type: ignore[arg-type]
    chunk = file._chunks[file._index[column]]
    data[chunk.offset + chunk.size // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_column_is_an_error_when_it_is_looked_at_and_again(recorded: Path) -> None:
    flip(recorded / "train" / "rollout" / "step_000000.parquet", "responses")
    found = replay(recorded)
    assert_same(found["mask"], batch()["mask"])
    for _ in range(2):
        with pytest.raises(CorruptFileError, match="'responses' does not match its checksum") as caught:
            found["responses"]
        assert str(caught.value.where).endswith("t/train/rollout/step_000000.parquet")
        assert "rolltape repair" in str(caught.value.hint)
    with pytest.raises(CorruptFileError):
        dict(found)


def test_a_file_that_is_replaced_meanwhile_is_not_seen(recorded: Path) -> None:
    found = replay(recorded)
    with rolltape.Tape(recorded, mode="rewrite") as tape:
        rollout = tape.stage("rollout", inputs=False)(batch)
        with tape.step(0):
            rollout(7)
    assert_same(dict(found), batch(0))
    assert_same(dict(replay(recorded)), batch(7))
    found = replay(recorded)
    os.remove(recorded / "train" / "rollout" / "step_000000.parquet")
    assert_same(dict(found), batch(7))


def test_many_threads_see_one_value(recorded: Path, decoded: list[str]) -> None:
    found, seen = replay(recorded), []
    start = threading.Barrier(8)

    def look(number: int) -> None:
        start.wait()
        names = NAMES if number % 2 else tuple(reversed(NAMES))
        seen.append({name: found[name] for name in names})

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one[name] is found[name] for one in seen for name in NAMES)
    assert sorted(decoded) == sorted(NAMES)


def test_another_thread_may_add_to_it_meanwhile() -> None:
    there = {f"k{at}": at for at in range(3000)}
    pending, done, started = [f"p{at}" for at in range(50)], threading.Event(), threading.Event()
    found = LazyDict.of(there, pending, lambda keys: dict.fromkeys(keys, 1))

    def add() -> None:
        while not done.is_set():
            for at in range(500):
                found[f"n{at}"] = at
            started.set()
            for at in range(500):
                del found[f"n{at}"]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=add)
    thread.start()
    try:
        started.wait()
        assert [found[key] for key in pending] == [1] * 50
        for _ in range(20):
            assert there.items() <= found.copy().items()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("samples", ["rows", "one"])
@pytest.mark.parametrize("inside", ["a dict", "a list", "groups"])
def test_it_is_recorded_as_the_dict_that_it_is(tmp_path: Path, inside: str, samples: str) -> None:
    rows = [{"ids": np.arange(4) + row, "text": f"{row}"} for row in range(3)]
    for kind in ("plain", "lazy"):
        made = rows if kind == "plain" else [LazyDict.of({}, list(row), _from(row)) for row in rows]
        value = {"a dict": made[0], "a list": made, "groups": [made[:2], made[2:]]}[inside]
        with rolltape.Tape(tmp_path / kind, mode="record") as tape:
            stage = tape.stage("rollout", inputs=False, samples=samples)(lambda found: found)
            with tape.step(0):
                stage(value)
    plain, lazy = (next(rolltape.open(tmp_path / kind).recordings()) for kind in ("plain", "lazy"))
    assert lazy.columns == plain.columns
    assert lazy.samples == plain.samples
    assert_same(lazy.value(), plain.value())


def _from(row: dict[str, Any]) -> Callable[[list[str]], dict[str, Any]]:
    return lambda keys: {key: row[key] for key in keys}


def test_it_can_be_recorded_again(recorded: Path, tmp_path: Path) -> None:
    found = replay(recorded)
    with rolltape.Tape(tmp_path / "again", mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(lambda: {"inner": found})
        with tape.step(0):
            rollout()
    assert_same(next(rolltape.open(tmp_path / "again").recordings()).value(), {"inner": batch()})


def test_what_is_no_dict_of_columns_comes_whole(tmp_path: Path) -> None:
    rows = [{"text": f"{row}", "reward": row / 2} for row in range(4)]
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: rows)
        with tape.step(0):
            rollout()
    assert_same(replay(tmp_path / "t"), rows)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(keys: list[str]) -> dict[str, int]:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            go.wait()
        return dict.fromkeys(keys, 1)

    found = LazyDict.of({}, ["a"], slow)
    thread = threading.Thread(target=lambda: found["a"])
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if found["a"] == 1 else 1)
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
