"""What can be a stage: functions, methods, coroutines, partials, callables; and what cannot."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import StageError, StepMissingError
from tests.taping import batch_of, files, held_back, same


def on_tape(directory: Path) -> list[str]:
    return sorted(name.removeprefix("train/") for name in files(directory) if name.endswith(".parquet"))


def play_both(directory: Path, declare: Any) -> tuple[list[Any], list[Any]]:
    """Record, then replay, what ``declare(tape)`` returns call by call."""
    found = []
    for mode in ("record", "replay"):
        with rolltape.Tape(directory, mode=mode) as tape, tape.step(0):
            found.append(list(declare(tape)))
    return found[0], found[1]


def test_a_function_keeps_its_name_and_signature(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")

    @tape.stage("rollout")
    def generate(prompts: list[str], n: int = 4) -> dict[str, Any]:
        """Makes rollouts."""
        return {}

    assert (generate.__name__, generate.__doc__) == ("generate", "Makes rollouts.")
    assert list(inspect.signature(generate).parameters) == ["prompts", "n"]


def test_methods_of_two_instances(tmp_path: Path) -> None:
    def declare(tape: rolltape.Tape) -> Iterator[Any]:
        class Worker:
            def __init__(self, name: str) -> None:
                self.name = name

            @tape.stage("rollout", inputs=True)
            def generate(self, prompt: str) -> list[str]:
                assert tape.settings.mode == "record"
                return [self.name, prompt]

        yield from (Worker("a").generate("x"), Worker("b").generate("y"))

    recorded, replayed = play_both(tmp_path / "t", declare)
    assert recorded == replayed == [["a", "x"], ["b", "y"]]


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
@pytest.mark.parametrize("stage_outside", [True, False])
def test_static_and_class_methods_in_either_order(tmp_path: Path, kind: Any, stage_outside: bool) -> None:
    def declare(tape: rolltape.Tape) -> Iterator[Any]:
        def static(prompt: str) -> list[str]:
            return [prompt]

        def of_class(cls: type, prompt: str) -> list[str]:
            return [cls.__name__, prompt]

        function = static if kind is staticmethod else of_class
        stage = tape.stage("rollout", inputs=["prompt"])
        method = stage(kind(function)) if stage_outside else kind(stage(function))
        worker = type("Worker", (), {"generate": method})
        yield from (worker.generate("x"), worker().generate("y"))

    recorded, replayed = play_both(tmp_path / "t", declare)
    assert recorded == replayed
    assert [found[-1] for found in recorded] == ["x", "y"]


class Engine:
    """A callable object, with state and without a name."""

    def __init__(self) -> None:
        self.calls = itertools.count()

    def __call__(self, prompt: str) -> list[Any]:
        return [next(self.calls), prompt]


class AsyncEngine(Engine):
    async def __call__(self, prompt: str) -> list[Any]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().__call__(prompt)


def test_partials_and_callables(tmp_path: Path) -> None:
    def declare(tape: rolltape.Tape) -> Iterator[Any]:
        engine, tagged = Engine(), functools.partial(lambda tag, prompt: [tag, prompt], "t")
        yield tape.stage("engine", inputs=True)(engine)("x")
        yield tape.stage("partial", inputs=["prompt"])(tagged)(prompt="y")
        yield tape.stage("bound")(engine.__call__)("z")

    recorded, replayed = play_both(tmp_path / "t", declare)
    assert recorded == replayed == [[0, "x"], ["t", "y"], [1, "z"]]


async def test_async_functions(tmp_path: Path) -> None:
    found: dict[str, list[Any]] = {"record": [], "replay": []}
    for mode, results in found.items():
        live: list[str] = []
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:

            @tape.stage("rollout", inputs=True)
            async def generate(prompt: str, live: list[str] = live) -> dict[str, Any]:
                await asyncio.sleep(0)
                live.append(prompt)
                return batch_of(len(prompt))

            wrapped = tape.stage("partial")(functools.partial(generate.__wrapped__, "abcd"))
            engine = tape.stage("engine")(AsyncEngine())
            for stage in (generate, wrapped, engine):
                assert inspect.iscoroutinefunction(stage)
            with tape.step(0):
                results += [await generate("ab"), await wrapped(), await engine("p")]
        assert len(live) == (2 if mode == "record" else 0)
    assert same(found["record"], found["replay"])


@pytest.mark.parametrize("background", [True, False])
async def test_an_async_stage_does_not_hold_up_the_event_loop_while_the_disk_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    options: dict[str, Any] = {"mode": "record", "max_pending_bytes": 1, "background": background}
    with rolltape.Tape(tmp_path / "t", **options) as tape, held_back(monkeypatch) as gate:

        @tape.stage("rollout")
        async def generate(step: int) -> dict[str, Any]:
            return batch_of(step)

        async def two() -> None:
            for step in range(2):
                with tape.step(step):
                    await generate(step)

        running = asyncio.create_task(two())
        await asyncio.to_thread(gate.reached.wait, 60)
        await asyncio.sleep(0)  # the loop is alive although a write is stuck
        assert not running.done()
        gate.opened.set()
        await running
    assert on_tape(tmp_path / "t") == ["rollout/step_000000.parquet", "rollout/step_000001.parquet"]


def test_generators_are_refused(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")

    def generate() -> Iterator[int]:
        yield 1

    async def agenerate() -> AsyncIterator[int]:
        yield 1

    class Streaming:
        def __call__(self) -> Iterator[int]:
            yield 1

    for function in (generate, agenerate, functools.partial(generate), Streaming()):
        with pytest.raises(StageError, match="yields its results one by one"):
            tape.stage("rollout")(function)
    with pytest.raises(StageError, match="not a function"):
        tape.stage("rollout")("generate")  # type: ignore[arg-type]


def test_an_awaitable_from_a_plain_function_is_refused(tmp_path: Path) -> None:
    async def generate() -> int:
        return 1

    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: generate())
        with pytest.raises(StageError, match="not an async function"), tape.step(0):
            stage()
    assert on_tape(tmp_path / "t") == []


def test_two_stages_of_one_name(tmp_path: Path) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")

    def declare() -> Any:
        def generate() -> None: ...

        return tape.stage("rollout")(generate)

    def other() -> None: ...

    declare()
    declare()  # a notebook cell that is run again
    with pytest.raises(
        StageError, match=r"two stages of the name 'rollout': .*generate and .*other"
    ) as caught:
        tape.stage("rollout")(other)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(StageError, match="two stages"):
        tape.stage("rollout")(lambda: None)
    tape.stage("reward")(other)


def test_calls_within_a_step_are_numbered(tmp_path: Path) -> None:
    """DAPO asks again until it has enough groups; every refill is a recording of its own."""

    def declare(tape: rolltape.Tape) -> Iterator[Any]:
        sizes = iter([3, 1, 2])
        generate = tape.stage("rollout")(lambda: list(range(next(sizes))))
        have: list[int] = []
        while len(have) < 6:
            have += generate()
            yield list(have)

    recorded, replayed = play_both(tmp_path / "t", declare)
    assert recorded == replayed == [[0, 1, 2], [0, 1, 2, 0], [0, 1, 2, 0, 0, 1]]
    assert on_tape(tmp_path / "t") == [f"rollout/step_000000{call}.parquet" for call in (".c1", ".c2", "")]


def test_one_refill_more_than_was_recorded_says_so(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: [1])()
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape, tape.step(0):
        generate = tape.stage("rollout")(lambda: [2])
        generate()
        with pytest.raises(StepMissingError, match="call 1 is missing, the step has 0: the call is one more"):
            generate()


def test_nested_stages(tmp_path: Path) -> None:
    def declare(tape: rolltape.Tape) -> Iterator[Any]:
        reward = tape.stage("reward")(lambda text: len(text))

        @tape.stage("rollout")
        def generate() -> dict[str, Any]:
            return {"text": ["a", "bb"], "rewards": [reward("a"), reward("bb")]}

        yield generate()
        yield reward("ccc")

    recorded, replayed = play_both(tmp_path / "t", declare)
    assert recorded == [{"text": ["a", "bb"], "rewards": [1, 2]}, 3]
    assert replayed == recorded, "the calls that the replayed stage did not make are passed over"
    assert on_tape(tmp_path / "t") == [
        *(f"reward/step_000000{call}.parquet" for call in (".c1", ".c2", "")),
        "rollout/step_000000.parquet",
    ]


def test_a_live_function_that_raises_leaves_nothing(tmp_path: Path) -> None:
    calls = itertools.count()

    def generate() -> list[int]:
        if next(calls) == 0:
            raise RuntimeError("engine died")
        return [1]

    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        stage = tape.stage("rollout")(generate)
        with pytest.raises(RuntimeError, match="engine died"), tape.step(0):
            stage()
        assert on_tape(tmp_path / "t") == []
        with tape.step(0):  # the step is tried again
            assert stage() == [1]
    assert on_tape(tmp_path / "t") == ["rollout/step_000000.parquet"]


def test_a_retry_inside_the_step_is_loud_in_replay(tmp_path: Path) -> None:
    """The failed call has no recording; handing out the next one's would mix up prompts silently."""
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        fails = iter([True, False])
        stage = tape.stage("rollout")(lambda: 1 // (0 if next(fails) else 1))
        with pytest.raises(ZeroDivisionError):
            stage()
        stage()
    message = "call 0 is missing, the step has 1: it raised an exception"
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        stage = tape.stage("rollout")(lambda: 1)
        with pytest.raises(StepMissingError, match=message), tape.step(0):
            stage()
