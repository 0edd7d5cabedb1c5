"""A replay uses memory again once nobody can see it: never sooner, within bounds, and not where it is off."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import resource
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.codec.recycled import RECYCLE_FROM, RecycledMemory
from tests.exact import assert_same
from tests.stacks import examples

SHAPE = (4, RECYCLE_FROM // 16)
"""Of the smallest array of 32 bits that is worth it."""


def take(memory: RecycledMemory, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> np.ndarray:
    found = memory.array(shape, np.dtype(dtype))
    assert found is not None
    return found


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


KEPT_BY = {
    "itself": lambda array: array,
    "a view": lambda array: array.view(np.uint8),
    "a slice": lambda array: array[1:2, 3:5],
    "one element of no axes": lambda array: array[1, 3:4].reshape(()),
    "its transpose": lambda array: array.T,
    "another shape": lambda array: array.reshape(-1)[5:].reshape(1, -1),
    "a memoryview": lambda array: memoryview(array),
    "a memoryview of a slice": lambda array: memoryview(array[2:])[1:],
    "an iterator": lambda array: array.flat,
    "a broadcast": lambda array: np.broadcast_to(array, (3, *array.shape)),
    "a view of a view of a view": lambda array: array[1:].T[2:].view(),
    "a buffer of arrow": lambda array: __import__("pyarrow").py_buffer(array),
    "a frombuffer": lambda array: np.frombuffer(array.data.cast("B"), np.uint8),
    "a list of rows": lambda array: list(array)[-1:],
    "an object array": lambda array: objects(array[1:]),
    "a subclass": lambda array: np.ma.array(array)[2:].view(np.ma.MaskedArray),
    "half of complex numbers": lambda array: array.view(np.complex64).imag,
    "windows over it": lambda array: np.lib.stride_tricks.sliding_window_view(array.reshape(-1), 5),
    "one that walks through it": lambda array: np.nditer(array),
    "a capsule": lambda array: array.__dlpack__(),
    "dlpack": lambda array: np.from_dlpack(array)[1:],
    "ctypes": lambda array: (ctypes.c_char * 8).from_buffer(array.reshape(-1).view(np.uint8)),
    "a pointer of ctypes": lambda array: array.ctypes.data_as(ctypes.c_void_p),
    "a pickle's buffer": lambda array: pickle.PickleBuffer(array),
    "a pickle beside its buffers": lambda array: unpickled(array),
    "an array of arrow": lambda array: __import__("pyarrow").array(array.reshape(-1))[3:5],
    "its base": lambda array: array.base,
    "the base of its base": lambda array: array.base.base,
    "an interface that refers to it": lambda array: np.asarray(Interface(array)),
    "a function": lambda array: lambda: array,
    "an error": lambda array: raised(array),
    "a generator": lambda array: begun(array),
    "another thread": lambda array: Waiting(array[1:]),
}


def objects(value: object) -> np.ndarray:
    found = np.empty(1, object)
    found[0] = value
    return found


def unpickled(array: np.ndarray) -> np.ndarray:
    beside: list[pickle.PickleBuffer] = []
    text = pickle.dumps(array, 5, buffer_callback=beside.append)
    return pickle.loads(text, buffers=beside)


class Interface:
    """Something else that numpy makes arrays of."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__, self._array = array.__array_interface__, array


def raised(array: np.ndarray) -> BaseException | None:
    def fail(inner: np.ndarray) -> None:
        raise ValueError(len(inner))

    try:
        fail(array[1:])
    except ValueError as error:
        return error
    return None


def begun(array: np.ndarray) -> Iterator[np.ndarray]:
    def walk(inner: np.ndarray) -> Iterator[np.ndarray]:
        yield inner[1:]
        yield inner

    found = walk(array)
    next(found)
    return found


class Waiting:
    """A thread that has an array as long as this is kept."""

    def __init__(self, array: np.ndarray) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda end, inner: end.wait(), args=(self._end, array))
        self._thread.start()

    def __del__(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.mark.parametrize("kept", KEPT_BY)
def test_memory_that_anyone_can_see_is_not_used_again(kept: str) -> None:
    memory = RecycledMemory(2**30)
    array = take(memory)
    array[...] = 1
    seen, where = KEPT_BY[kept](array), address(array)
    del array
    gc.collect()
    other = take(memory)
    assert address(other) != where
    del seen
    gc.collect()
    assert address(take(memory)) == where


def test_garbage_that_comes_back_to_life_has_its_memory() -> None:
    memory, back = RecycledMemory(2**30), []

    class Phoenix:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.cycle = array, self

        def __del__(self) -> None:
            back.append(self.array)

    array = take(memory)
    array[...] = 1
    Phoenix(array)
    del array
    gc.collect()
    take(memory)[...] = 2
    assert (back[0] == 1).all()


def test_nobody_can_bring_a_lease_back() -> None:
    lease = take(RecycledMemory(2**30)).base.base
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(lease)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_what_a_forked_process_lets_go_of_is_kept_here() -> None:
    memory = RecycledMemory(2**30)
    array = take(memory)
    array[...] = 1
    kept, where = array[1:], address(array)
    del array
    child = os.fork()
    if child == 0:
        del kept
        again = take(memory)
        again[...] = 2
        os._exit(0 if address(again) == where else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert address(take(memory)) != where
    assert (kept == 1).all()


def test_blocks_that_come_back_while_others_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may be gone between the look at all of them and the drop of the oldest one."""
    memory, unraised = RecycledMemory(0), []
    array = take(memory)
    real = RecycledMemory.idle_bytes.fget
    looks = iter([RECYCLE_FROM])

    def emptied(self: RecycledMemory) -> int:
        self._free.clear()
        return next(looks, 0)

    monkeypatch.setattr(RecycledMemory, "idle_bytes", property(emptied))
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    del array
    assert real is not None
    assert real(memory) == 0
    assert not unraised


def test_an_array_of_another_shape_and_dtype_gets_it_too() -> None:
    memory = RecycledMemory(2**30)
    where = address(take(memory, (16, RECYCLE_FROM // 16), "uint8"))
    other = take(memory, (RECYCLE_FROM // 8,), "int64")
    assert (address(other), other.shape, other.dtype) == (where, (RECYCLE_FROM // 8,), np.dtype("int64"))
    assert other.flags.writeable
    assert other.flags.c_contiguous


def test_a_block_that_is_much_too_large_is_left_for_another() -> None:
    memory = RecycledMemory(2**30)
    where = address(take(memory, (16 * RECYCLE_FROM,), "uint8"))
    small = take(memory, (RECYCLE_FROM,), "uint8")
    assert address(small) != where
    assert address(take(memory, (15 * RECYCLE_FROM,), "uint8")) == where


def test_small_arrays_are_left_to_the_system() -> None:
    assert RecycledMemory(2**30).array((RECYCLE_FROM - 1,), np.dtype("uint8")) is None


def test_what_waits_is_bounded() -> None:
    memory = RecycledMemory(5 * RECYCLE_FROM)
    held = [take(memory) for _ in range(20)]
    assert memory.idle_bytes == 0
    while held:
        held.pop()
        assert memory.idle_bytes <= 5 * RECYCLE_FROM
    assert memory.idle_bytes > 0
    memory.close()
    assert memory.idle_bytes == 0


def test_an_array_outlives_its_memory() -> None:
    memory = RecycledMemory(2**30)
    array = take(memory)
    array[...] = 7
    memory.close()
    del memory
    gc.collect()
    assert (array == 7).all()


def test_many_threads() -> None:
    """Each writes its own number, lets others run, and finds it again."""
    memory, wrong = RecycledMemory(2**26), []

    def work(number: int) -> None:
        for turn in range(60):
            array = take(memory, (RECYCLE_FROM // 4 * (1 + turn % 3),))
            array[...] = number
            part = array[5:]
            del array
            other = take(memory)
            other[...] = -1
            if not (part == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.lists(st.tuples(st.sampled_from("take slice drop".split()), st.integers(0, 9)), max_size=60))
@settings(max_examples=examples(60))
def test_whatever_is_held_stays_as_it_is(moves: list[tuple[str, int]]) -> None:
    memory, held = RecycledMemory(2**24), []
    for number, (move, which) in enumerate(moves):
        if move == "take":
            array = take(memory, (RECYCLE_FROM // 4 + 1000 * which,))
            array[...] = number
            held.append((array, number))
        elif held:
            array, its = held.pop(which % len(held))
            if move == "slice":
                held.append((array[which:-1], its))
            del array
        assert all((array == its).all() for array, its in held)


# -- on a tape -----------------------------------------------------------------------------------------------


def wide(step: int) -> dict[str, Any]:
    """A batch with every layout, large enough for each column to be worth it."""
    rng = np.random.default_rng(step)
    n, width = 16, RECYCLE_FROM // 16
    lengths = rng.integers(1, width, n)
    responses = np.full((n, width), 9, np.int32)
    mask = np.zeros((n, 2 * width), np.int64)
    scores = np.zeros((n, width), np.float32)
    for row, length in enumerate(lengths):
        responses[row, :length] = rng.integers(0, 1000, length)
        mask[row, width - row : width + length] = 1
        scores[row, length - 1] = rng.normal()
    prompts = np.full((n, width), 9, np.int32)
    return {
        "uid": [f"{step}-{row}" for row in range(n)],
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], 1),
        "attention_mask": mask,
        "position_ids": np.clip(np.cumsum(mask, 1) - 1, 0, None),
        "scores": scores,
        "half": rng.normal(size=(n, 2 * width)).astype(np.float16),
        "pixels": rng.integers(0, 255, (n, 3, 64, width // 192 + 1), dtype=np.uint8),
        "copy": responses[:, : width // 2].copy(),
    }


def play(path: Path, **options: Any) -> Any:
    tape = rolltape.Tape(path, mode="replay", **options)
    return tape, tape.stage("rollout")(lambda: None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recycled") / "t"
    with rolltape.Tape(path, mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(wide)
        for step in range(6):
            with tape.step(step):
                rollout(step)
    return path


@pytest.mark.parametrize("prefetch", [False, True])
def test_every_step_is_as_recorded_whatever_the_trainer_did_to_the_last(
    recorded: Path, prefetch: bool
) -> None:
    tape, rollout = play(recorded, prefetch=prefetch)
    with tape:
        for turn in range(2):
            for step in range(6):
                with tape.step(step):
                    batch = rollout()
                assert_same(batch, wide(step))
                for value in batch.values():
                    if isinstance(value, np.ndarray):
                        value.reshape(-1).view(np.uint8)[...] = 0xEE + turn


def test_a_loop_lives_on_the_memory_of_its_first_steps(recorded: Path) -> None:
    """From the third step on, all memory of large columns is memory that a step before had."""
    tape, rollout = play(recorded, prefetch=False)
    seen: set[int] = set()
    with tape:
        for step in range(6):
            with tape.step(step):
                batch = rollout()
            large = [batch[name] for name in ("responses", "input_ids", "scores", "half", "pixels")]
            if step >= 2:
                assert {address(value) for value in large} <= seen
            seen |= {address(value) for value in large}
            del batch, large


def test_nothing_but_the_trainer_holds_a_batch(recorded: Path) -> None:
    """It goes when it is let go of, without a garbage collection."""
    tape, rollout = play(recorded, prefetch=False)
    gc.disable()
    try:
        with tape:
            for step in range(3):
                with tape.step(step):
                    batch = rollout()
                idle = tape._dispatcher.player._memory.idle_bytes  # what it took to fill it in
                del batch
                assert tape._dispatcher.player._memory.idle_bytes > idle + 8 * RECYCLE_FROM
    finally:
        gc.enable()


def test_a_batch_that_is_kept_is_kept(recorded: Path) -> None:
    tape, rollout = play(recorded)
    kept = []
    with tape:
        for step in range(6):
            with tape.step(step):
                kept.append(rollout())
    for step, batch in enumerate(kept):
        assert_same(batch, wide(step))


def long_and_short(pad: int) -> dict[str, Any]:
    """Responses of up to 131,072 tokens, of which almost all are short."""
    rng = np.random.default_rng(0)
    n, width = 32, 131_072
    lengths = np.minimum(rng.geometric(0.001, n), width)
    lengths[3], lengths[5], lengths[7] = 0, 1, width // 8
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    prompts = np.where(np.arange(64) < 5, pad, rng.integers(1, 9, (n, 64)))
    responses = np.where(mask, rng.integers(1, 1000, (n, width)), pad)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], 1),
        "response_mask": mask,
        "position_ids": np.cumsum(mask, 1) * mask,
        "log_probs": (-rng.random((n, width)) * mask).astype(np.float32) + np.float32(0),
    }


@pytest.mark.parametrize("pad", [0, 7])
@pytest.mark.parametrize("recycle", [0, 2**30])
def test_long_rows_of_which_almost_all_is_padding(tmp_path: Path, pad: int, recycle: int) -> None:
    batch = long_and_short(pad)
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(lambda: batch)
        for step in range(4):
            with tape.step(step):
                rollout()
    tape, rollout = play(tmp_path / "t", prefetch=False, recycle=recycle)
    grown = []
    with tape:
        for step in range(4):
            before = resident()
            with tape.step(step):
                found = rollout()
            grown.append(resident() - before)
            assert_same(found, batch)
            for value in found.values():
                value[...] = 3  # a page that was never touched is the trainer's too
            del found, value
    if pad == 0:
        assert max(grown) < sum(value.nbytes for value in batch.values()) / 4


def resident() -> int:
    """Bytes of memory that this process has touched and still has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_it_can_be_turned_off(recorded: Path) -> None:
    tape, rollout = play(recorded, recycle=0)
    with tape, tape.step(0):
        assert_same(rollout(), wide(0))
    assert tape._dispatcher.player._memory is None
