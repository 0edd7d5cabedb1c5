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
from rolltape.errors import KeyNameError, NoStepError, StepExistsError
from rolltape.steps import MAX_STEP
from tests.taping import Gate, Rollout, files, record, same


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


@pytest.mark.parametrize("step", [0, 999_999, 1_000_000, MAX_STEP - 1, MAX_STEP])
def test_the_range_of_steps(tmp_path: Path, step: int) -> None:
    recorded = record(tmp_path / "t", [step])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert same(Rollout(tape).run([step])[step], recorded[step])
        assert steps_of(tape) == [step]


@pytest.mark.parametrize(
    "step", [-1, 2**63, 10**40, True, False, 1.0, "1", None, np.bool_(True), np.float32(1), np.int8(-1)]
)
def test_what_is_no_step(tmp_path: Path, step: Any) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        with pytest.raises(KeyNameError, match="must be a whole number"), tape.step(step):
            raise AssertionError("entered")
        for ask in (tape.plan, tape.recording, lambda step: tape.log({}, step=step)):
            if step is not None or ask in (tape.plan, tape.recording):
                with pytest.raises(KeyNameError):
                    ask(step)
        assert files(tmp_path / "t") == {"tape.json"}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numpy_steps(tmp_path: Path, kind: Any) -> None:
    recorded = record(tmp_path / "t", [kind(7)])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert same(Rollout(tape).run([7])[7], recorded[7])
        assert tape.recording(kind(7)).about["step"] == 7
        assert tape.plan(kind(7)).plays


BAD_NAMES = [
    "..",
    "../x",
    "a/b",
    "a\0b",
    "x" * 300,
    "",
    ".hidden",
    "a b",
    "café",
    "nul",
    "tape.json",
    "a\\b",
    7,
    None,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_no_split_or_stage_can_have(tmp_path: Path, name: Any) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        with pytest.raises(KeyNameError, match="stage name"):
            tape.stage(name)
        if name:  # an empty split, or None, is the split of the settings
            with pytest.raises(KeyNameError, match="split name"), tape.step(0, split=name):
                raise AssertionError("entered")
            with pytest.raises(KeyNameError):
                tape.log({"a": 1}, step=0, split=name)
            with pytest.raises(rolltape.ConfigError):
                rolltape.Tape(tmp_path / "t", split=name)
    assert files(tmp_path / "t") == {"tape.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]


@pytest.mark.parametrize("key", ["a/../../b", "..", "a\0b", "req 7", "é", "%2e", "x" * 200])
def test_a_key_may_be_any_text(tmp_path: Path, key: str) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            assert same(Rollout(tape).run([1], key=key)[1]["text"][0], "step 1 sample 0")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert len(files(tmp_path / "t" / "train" / "rollout")) == 1


@pytest.mark.parametrize("key", ["", "x" * 201, "é" * 90, "\ud800"])
def test_a_key_that_cannot_be_a_file_name_is_refused_when_the_block_is_entered(
    tmp_path: Path, key: str
) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    with pytest.raises(KeyNameError, match="call"), tape.step(0, key=key):
        raise AssertionError("entered")


def test_splits_do_not_mix(tmp_path: Path) -> None:
    """In ROLL the domains of one step overwrite each other's file."""
    with rolltape.Tape(tmp_path / "t", mode="record", split="math") as tape:
        rollout = Rollout(tape)
        with tape.step(0):
            rollout.generate(1)
        with tape.step(0, split="code"):
            rollout.generate(2)
    with rolltape.Tape(tmp_path / "t", mode="replay", split="math") as tape:
        rollout = Rollout(tape)
        assert rollout.run([0])[0]["meta"]["step"] == 1
        assert rollout.run([0], split="code")[0]["meta"]["step"] == 2
