"""A replay that makes only some of the calls recorded of a step is another run: an error that names them."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rolltape
from tests.taping import ROOT, files

FOUR = ["a", "b", "c", "d"]


def numbered(tape: rolltape.Tape, step: int, prompts: list[str], **where: Any) -> None:
    """One call per prompt, in one block."""
    with tape.step(step, **where):
        list(map(stage_of(tape), prompts))


def keyed(tape: rolltape.Tape, step: int, prompts: list[str], **where: Any) -> None:
    """One call and one block per prompt, one after the other."""
    for prompt in prompts:
        with tape.step(step, key=prompt, **where):
            stage_of(tape)(prompt)


def nested(tape: rolltape.Tape, step: int, prompts: list[str], **where: Any) -> None:
    """The same in a block around all of the step."""
    with tape.step(step, **where):
        keyed(tape, step, prompts, **where)


def gathered(tape: rolltape.Tape, step: int, prompts: list[str], **where: Any) -> None:
    """One task per prompt."""

    async def one(prompt: str) -> None:
        with tape.step(step, key=prompt, **where):
            await tape.stage("rollout")(generate_async)(prompt)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, prompts))

    asyncio.run(all_of_them())


def threaded(tape: rolltape.Tape, step: int, prompts: list[str], **where: Any) -> None:
    """One thread per prompt."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda prompt: keyed(tape, step, [prompt], **where), prompts))


def generate(prompt: str) -> dict[str, Any]:
    return {"text": prompt}


async def generate_async(prompt: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return generate(prompt)


def stage_of(tape: rolltape.Tape) -> Callable[[str], Any]:
    return tape.stage("rollout")(generate)


LOOPS = (numbered, keyed, nested, gathered, threaded)


def run(
    directory: Path, mode: str, loop: Callable[..., None], prompts: list[str], steps: int = 3, **options: Any
) -> rolltape.Summary:
    with rolltape.Tape(directory, mode=mode, **options) as tape:
        for step in range(steps):
            loop(tape, step, prompts)
    return tape.summary()


@pytest.mark.parametrize("loop", LOOPS)
def test_the_same_calls_replay_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any
) -> None:
    run(tmp_path / "t", "record", loop, FOUR)
    assert run(tmp_path / "t", "replay", loop, FOUR).replayed == 12
    assert run(tmp_path / "t", "replay", loop, FOUR, steps=1).replayed == 4, "fewer steps are fine"
    assert run(tmp_path / "t", "auto", loop, FOUR, steps=4).recorded == 4
    assert not caplog.records


@pytest.mark.parametrize("prompts", [["a"], ["a", "b"], ["a", "b", "c"]])
@pytest.mark.parametrize("loop", LOOPS)
def test_fewer_are_an_error_that_names_step_stage_and_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any, prompts: list[str]
) -> None:
    run(tmp_path / "t", "record", loop, FOUR)
    with pytest.raises(rolltape.MismatchError) as caught:
        run(tmp_path / "t", "replay", loop, prompts)
    message = str(caught.value)
    left = FOUR[len(prompts) :] if loop is not numbered else list(range(len(prompts), 4))
    never = ", ".join(map(repr, left))
    assert (
        f"calls: recorded 4 of stage 'rollout' at step 0 of 'train', now {len(prompts)}: never {never}"
        in (message)
    )
    assert "fewer prompts" in message
    assert "match={'calls': 'warn'}" in message
    assert not caplog.records, "one error, and nothing beside it"


@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop is not numbered])
@pytest.mark.parametrize("prompts", [["b", "c", "d"], ["a", "d"], ["d"]])
def test_it_is_the_key_that_counts_not_the_place(tmp_path: Path, loop: Any, prompts: list[str]) -> None:
    run(tmp_path / "t", "record", loop, FOUR)
    with pytest.raises(rolltape.MismatchError, match=r"at step 0 .* never 'a'|never 'b', 'c'"):
        run(tmp_path / "t", "replay", loop, prompts)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_single_step_and_the_last_one_count_too(tmp_path: Path, loop: Any) -> None:
    run(tmp_path / "one", "record", loop, FOUR, steps=1)
    with pytest.raises(rolltape.MismatchError, match="at step 0"):
        run(tmp_path / "one", "replay", loop, FOUR[:3], steps=1)
    run(tmp_path / "t", "record", loop, FOUR)

    def short_at_last(tape: rolltape.Tape, step: int, prompts: list[str]) -> None:
        loop(tape, step, prompts[: 3 if step == 2 else 4])

    with pytest.raises(rolltape.MismatchError, match="at step 2"):
        run(tmp_path / "t", "replay", short_at_last, FOUR)


def test_it_shows_at_the_end_of_the_block_or_at_the_next_step(tmp_path: Path) -> None:
    for loop in (numbered, keyed):
        run(tmp_path / loop.__name__, "record", loop, FOUR)
        tape = rolltape.Tape(tmp_path / loop.__name__, mode="replay")
        if loop is keyed:
            loop(tape, 0, FOUR[:2])
        with pytest.raises(rolltape.MismatchError):
            loop(tape, 0 if loop is numbered else 1, FOUR[:2])
        tape.close()  # it was said; not again


@pytest.mark.parametrize("loop", LOOPS)
def test_it_can_be_a_warning_or_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any) -> None:
    run(tmp_path / "t", "record", loop, FOUR)
    run(tmp_path / "t", "replay", loop, ["a", "b"], match={"calls": "ignore"})
    assert not caplog.records
    run(tmp_path / "t", "replay", loop, ["a", "b"], match={"calls": "warn"})
    (warning,) = caplog.messages
    assert "train/rollout: of the 4 calls recorded at step 0, this run made 2; it never made " in warning
    assert warning.endswith(
        "2, 3; 2 more steps like this" if loop is numbered else "'d'; 2 more steps like this"
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_so_it_is_in_a_run_that_is_resumed(tmp_path: Path, loop: Any) -> None:
    run(tmp_path / "t", "record", loop, FOUR)
    with pytest.raises(rolltape.MismatchError, match="at step 0"):
        run(tmp_path / "t", "auto", loop, FOUR[:3])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("inside", [True, False])
def test_a_step_that_broke_off_is_no_smaller_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any, inside: bool
) -> None:
    run(tmp_path / "t", "record", loop, FOUR)

    def breaks_off(tape: rolltape.Tape, step: int, prompts: list[str]) -> None:
        if inside:
            with tape.step(step):
                if loop is numbered:
                    stage_of(tape)("a")
                else:
                    loop(tape, step, prompts[:2])
                raise ZeroDivisionError
        if loop is not numbered:
            loop(tape, step, prompts[:2])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "t", "replay", breaks_off, FOUR)
    assert not caplog.records


def test_closing_a_tape_in_a_handler_hides_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "t", "record", keyed, FOUR)
    tape = rolltape.Tape(tmp_path / "t", mode="replay")

    def train() -> None:
        try:
            keyed(tape, 0, FOUR[:2])
            raise ZeroDivisionError
        finally:
            tape.close()

    with pytest.raises(ZeroDivisionError):
        train()
    assert not caplog.records


def test_a_tape_that_is_closed_inside_a_step_says_nothing_of_it(tmp_path: Path) -> None:
    run(tmp_path / "t", "record", nested, FOUR)
    run(tmp_path / "n", "record", numbered, FOUR)
    for name in "tn":
        with rolltape.Tape(tmp_path / name, mode="replay") as tape, tape.step(0):
            if name == "n":
                stage_of(tape)("a")
            else:
                keyed(tape, 0, ["a"])
            tape.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_other_splits_stages_ranks_and_steps_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Any
) -> None:
    fewer = loop is not numbered  # a numbered call is one of all ranks
    for mode in ("record", "replay"):
        for rank in range(2):
            with rolltape.Tape(tmp_path / "t", mode=mode, rank=rank, world_size=2) as tape:
                judge = tape.stage("judge")(lambda: 1)
                for step in range(3):
                    loop(tape, step, FOUR[: 4 - rank * fewer])
                    if mode == "record":
                        loop(tape, step, FOUR[:2], split="val")
                        with tape.step(step):
                            judge(), judge()
    with rolltape.Tape(tmp_path / "t", mode="replay", rank=1, world_size=2, steps="1-") as tape:
        loop(tape, 0, FOUR[:1])  # not selected: it runs live
        loop(tape, 1, FOUR[: 4 - fewer])
    assert not caplog.records


def test_calls_made_inside_a_replayed_one_count_as_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            reward = tape.stage("reward")(lambda: 1)
            rollout = tape.stage("rollout")(lambda reward=reward: [reward(), reward()])
            for step in range(2):
                for key in FOUR:
                    with tape.step(step, key=key):
                        rollout()
                        reward()
    assert not caplog.records


def test_a_block_with_a_key_that_made_several_calls(tmp_path: Path) -> None:
    def turns(mode: str, count: int) -> None:
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            for key in ("x", "y"):
                with tape.step(0, key=key):
                    for _ in range(count):
                        stage_of(tape)("say")

    turns("record", 3)
    turns("replay", 3)
    with pytest.raises(rolltape.MismatchError, match="never 'x#2'"):
        turns("replay", 2)


def test_stages_that_run_live_are_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "t", "record", keyed, FOUR)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        live = tape.stage("rollout", replay=False)(generate)
        for step in range(2):
            with tape.step(step, key="a"):
                live("a")
    assert not caplog.records


@pytest.mark.parametrize("on_miss", ["cycle", "last", "nearest", "live"])
def test_steps_that_are_not_on_the_tape_take_what_they_need(tmp_path: Path, on_miss: str) -> None:
    run(tmp_path / "t", "record", numbered, FOUR, steps=2)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss=on_miss) as tape:
        numbered(tape, 0, FOUR)
        numbered(tape, 7, FOUR[:2])
    run(tmp_path / "k", "record", keyed, FOUR, steps=2)
    with rolltape.Tape(tmp_path / "k", mode="replay", on_miss=on_miss) as tape:
        keyed(tape, 0, FOUR)
        keyed(tape, 7, FOUR[:2])


def test_steps_that_are_gone_back_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two sets of prompts, each through all steps: when step 1 is first entered, step 0 is not over."""

    def train(mode: str, **counts: int) -> None:
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            for domain, count in counts.items():
                for step in range(3):
                    keyed(tape, step, [f"{domain}-{at}" for at in range(count)])

    train("record", math=3, code=3)
    train("replay", math=3, code=3)
    assert not caplog.records
    with pytest.raises(rolltape.MismatchError, match=r"at step 0 .* never 'code-2'"):
        train("replay", math=3, code=2)
    with pytest.raises(rolltape.MismatchError, match=r"at step 0 .* never 'math-1', 'math-2'"):
        train("replay", math=1, code=3)


def test_two_producers_at_their_own_pace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One is steps ahead of the other, and in the replay it is the other way round."""

    async def produce(tape: rolltape.Tape, name: str, count: int, pace: int) -> None:
        for step in range(4):
            for at in range(count):
                for _ in range(pace):
                    await asyncio.sleep(0)
                with tape.step(step, key=f"{name}{at}"):
                    await tape.stage("rollout")(generate_async)(name)

    for mode, fast, slow in (("record", 1, 5), ("replay", 5, 1), ("replay", 0, 30), ("replay", 1, 1)):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:

            async def both(tape: Any = tape, fast: int = fast, slow: int = slow) -> None:
                await asyncio.gather(produce(tape, "m", 3, fast), produce(tape, "c", 5, slow))

            asyncio.run(both())
    assert not caplog.records


@pytest.mark.parametrize("with_threads", [True, False])
def test_generation_that_runs_ahead_may_be_given_up(tmp_path: Path, with_threads: bool) -> None:
    """A replay of fewer steps ends while the generation of the next one has begun: no error."""
    run(tmp_path / "t", "record", keyed, FOUR, steps=5)
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:

        async def ahead() -> None:
            for step in range(3):
                keyed(tape, step, FOUR if step < 2 else FOUR[:2])

        if with_threads:
            thread = threading.Thread(target=lambda: asyncio.run(ahead()))
            thread.start()
            thread.join()
        else:
            asyncio.run(ahead())


def test_a_task_that_outlives_its_block_may_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def train(tape: rolltape.Tape) -> None:
        work = tape.stage("rollout")(generate_async)
        for step in range(2):
            with tape.step(step):
                await work("a")
                later = asyncio.ensure_future(work("b"))
            await later

    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            asyncio.run(train(tape))
    assert not caplog.records


def test_processes_that_share_a_step_each_make_a_part(tmp_path: Path) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            other = pickle.loads(pickle.dumps(tape))  # as in a Ray actor
            for step in range(2):
                keyed(tape, step, FOUR[:2])
                keyed(other, step, FOUR[2:])
            other.close()
    deals = {"record": [("a", "bcd")], "replay": [("a", "bcd"), ("ac", "bd"), ("d", "abc"), ("ab", "cd")]}
    for mode, dealt in deals.items():  # each opened by itself, and another time the prompts go to others
        for parts in dealt:
            for part in parts:
                run(tmp_path / "u", mode, keyed, list(part))


def test_a_recording_of_another_process_that_died_is_no_promise(tmp_path: Path) -> None:
    run(tmp_path / "t", "record", keyed, FOUR, steps=2)
    gone = [name for name in files(tmp_path / "t") if "step_000001.kc" in name or "step_000001.kd" in name]
    assert len(gone) == 2
    for name in gone:
        (tmp_path / "t" / name).unlink()
    assert run(tmp_path / "t", "auto", keyed, FOUR, steps=3).recorded == 6
    run(tmp_path / "t", "replay", keyed, FOUR)


PROGRAM = """
import sys, asyncio, rolltape
tape = rolltape.Tape.from_env()
@tape.stage("rollout")
def generate(prompt): return {"text": prompt}
for step in range(int(sys.argv[2])):
    for prompt in sys.argv[1]:
        with tape.step(step, key=prompt):
            generate(prompt)
"""


@pytest.mark.parametrize("steps", [1, 2])
def test_a_program_that_never_closes_its_tape_fails_under_rolltape_run(tmp_path: Path, steps: int) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(mode: str, prompts: str) -> subprocess.CompletedProcess[str]:
        command = ["run", "--mode", mode, "--dir", str(tmp_path / "t"), "--", sys.executable]
        return subprocess.run(
            [sys.executable, "-m", "rolltape", *command, str(tmp_path / "train.py"), prompts, str(steps)],
            capture_output=True, text=True, timeout=120, cwd=ROOT,
        )  # fmt: skip

    assert run("record", "abcd").returncode == 0
    same = run("replay", "abcd")
    assert same.returncode == 0
    assert "different" not in same.stderr
    fewer = run("replay", "ab")
    assert fewer.returncode == 1
    assert "calls: recorded 4 of stage 'rollout' at step 0 of 'train', now 2: never 'c', 'd'" in fewer.stderr
    assert "Exception ignored" not in fewer.stderr
