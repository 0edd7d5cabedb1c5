"""Which step a call belongs to: the block it is in, in its own thread or task; and which there can be."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.errors import NoStepError, StepExistsError
from tests.taping import Gate, Rollout, files, same


def steps_of(tape: rolltape.Tape, split: str = "train") -> list[int]:
    return [recording.key.step for recording in tape.recordings(split)]


def test_a_call_outside_a_step(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape)
        with pytest.raises(NoStepError, match="stage 'rollout' was called outside a step") as caught:
            rollout.generate(0)
        assert isinstance(caught.value, RuntimeError)
        assert "with tape.step(n)" in str(caught.value)
        with pytest.raises(NoStepError, match=r"tape\.log"):
            tape.log({"loss": 1.0})
        assert rollout.live == []


def test_a_block_ends_also_when_it_raises(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape)
        with pytest.raises(ZeroDivisionError), tape.step(0):
            raise ZeroDivisionError
        with pytest.raises(NoStepError):
            rollout.generate(0)


def test_nested_steps(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape)
        with tape.step(5):
            rollout.generate(5)
            with tape.step(6, split="val"):
                rollout.generate(6)
                tape.log({"inner": 6})
            rollout.generate(5)
            tape.log({"outer": 5})
        tape.flush()
        assert files(tmp_path / "t") >= {
            "train/rollout/step_000005.parquet",
            "train/rollout/step_000005.c1.parquet",
            "val/rollout/step_000006.parquet",
        }
        assert (tape.metrics(), tape.metrics("val")) == ({5: {"outer": 5}}, {6: {"inner": 6}})


def test_two_tapes_have_two_steps(tmp_path: Path) -> None:
    with (
        rolltape.Tape(tmp_path / "a", mode="record") as one,
        rolltape.Tape(tmp_path / "b", mode="record") as two,
    ):
        first, second = Rollout(one), Rollout(two)
        with one.step(1), two.step(2):
            first.generate(1)
            second.generate(2)
        with one.step(3), pytest.raises(NoStepError):
            second.generate(3)
        assert (steps_of(one), steps_of(two)) == ([1], [2])


def test_a_new_tape_does_not_inherit_the_step_of_an_old_one(tmp_path: Path) -> None:
    """A context copied inside a block outlives it; another tape at the same address must not find it."""
    old = rolltape.Tape(tmp_path / "a", mode="record")
    with old.step(0):
        context = contextvars.copy_context()
    old.close()
    del old
    for number in range(20):
        with rolltape.Tape(tmp_path / f"b{number}", mode="record") as tape, pytest.raises(NoStepError):
            context.run(Rollout(tape).generate, 0)


def test_every_thread_has_a_step_of_its_own(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape)

        def work(step: int) -> Any:
            with tape.step(step):
                barrier.wait(30)
                return rollout.generate(step)

        with ThreadPoolExecutor(4) as pool:
            recorded = list(pool.map(work, range(4)))
        assert steps_of(tape) == [0, 1, 2, 3]
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        replayed = Rollout(tape).run(range(4))
    assert all(same(recorded[step], replayed[step]) for step in range(4))


def test_a_thread_does_not_see_the_step_of_the_one_that_started_it(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, ThreadPoolExecutor(1) as pool:
        rollout = Rollout(tape)
        with tape.step(0):
            with pytest.raises(NoStepError, match="another thread"):
                pool.submit(rollout.generate, 0).result()
            pool.submit(contextvars.copy_context().run, rollout.generate, 0).result()
        assert steps_of(tape) == [0]


@pytest.mark.parametrize("mode", ["record", "auto", "rewrite"])
def test_two_threads_in_one_step_without_keys_are_refused(tmp_path: Path, mode: str) -> None:
    """Both would be call 0: one of them could never be replayed."""
    gate = Gate()
    with rolltape.Tape(tmp_path / "t", mode=mode) as tape, ThreadPoolExecutor(1) as pool:

        @tape.stage("rollout")
        def generate(first: bool) -> list[bool]:
            if first:
                gate.passes()
            return [first]

        def work(first: bool) -> Any:
            with tape.step(0):
                return generate(first)

        slow = pool.submit(work, True)
        assert gate.reached.wait(60)
        with pytest.raises(StepExistsError, match="is being recorded already") as caught:
            work(False)
        assert "key=" in str(caught.value)
        gate.opened.set()
        assert slow.result() == [True]


def test_threads_tell_their_calls_apart_by_key(tmp_path: Path) -> None:
    found = {}
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape, ThreadPoolExecutor(4) as pool:
            rollout = Rollout(tape)

            def work(name: str, tape: rolltape.Tape = tape, rollout: Rollout = rollout) -> Any:
                with tape.step(0, key=f"req/{name}"):
                    return [rollout.generate(ord(name)), rollout.generate(ord(name) + 1)]

            found[mode] = list(pool.map(work, "dcba" if mode == "replay" else "abcd"))
    assert same(found["record"], found["replay"][::-1])


async def test_gathered_tasks_with_keys_in_any_order(tmp_path: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    for mode, names in (("record", "abcdef"), ("replay", "cafebd")):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:

            @tape.stage("rollout")
            async def generate(name: str) -> dict[str, Any]:
                for _ in range(ord(name) % 3):
                    await asyncio.sleep(0)
                return {"text": [name], "ids": np.full((1, 3), ord(name))}

            async def request(name: str, tape: rolltape.Tape = tape, generate: Any = generate) -> Any:
                with tape.step(7, key=name):
                    return await generate(name)

            results = await asyncio.gather(*map(request, names))
            found[mode] = dict(zip(names, results, strict=True))
    assert all(same(found["record"][name], found["replay"][name]) for name in "abcdef")


async def test_gathered_tasks_in_one_block_are_numbered_as_they_start(tmp_path: Path) -> None:
    found = {}
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:

            @tape.stage("rollout")
            async def generate(number: int) -> list[int]:
                for _ in range(5 - number):
                    await asyncio.sleep(0)
                return [number]

            with tape.step(0):
                found[mode] = await asyncio.gather(*map(generate, range(5)))
    assert found["record"] == found["replay"] == [[0], [1], [2], [3], [4]]


async def test_a_task_that_outlives_its_block_still_belongs_to_it(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape)

        async def late() -> None:
            await asyncio.sleep(0)
            rollout.generate(1)
            tape.log({"late": 1.0})

        with tape.step(1):
            task = asyncio.create_task(late())
            tape.log({"early": 2.0})
        with tape.step(2):
            await task
        assert steps_of(tape) == [1]
        assert tape.metrics() == {1: {"early": 2.0, "late": 1.0}}
