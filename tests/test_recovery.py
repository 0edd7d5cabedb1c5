"""What has finished of a step that was not recorded: found by the run that goes on, refused by any other."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.copying import plan_copy
from rolltape.errors import DiskFullError, MismatchError, StageError
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage, storage_at
from rolltape.tape.compaction import compact
from rolltape.tape.open_samples import open_calls
from tests.cli_tapes import run as command
from tests.exact import assert_same

PROMPTS = tuple(f"prompt {at}" for at in range(8))


class Interrupted(BaseException):
    """What ends a step in the middle."""


class Trainer:
    """A run with one stage, which ends after so many samples of its first live step."""

    def __init__(self, directory: Path, mode: str = "auto", **options: Any) -> None:
        self.tape = rolltape.Tape(directory, mode=mode, **options)
        self.made: list[Any] = []

    def generate(
        self, prompts: Sequence[str] = PROMPTS, step: int = 3, stop: int | None = None, seed: int = 0,
        make: Callable[[str, int], Any] | None = None, **stage: Any,
    ) -> Any:  # fmt: skip
        def draw(prompt: str, seed: int) -> Any:
            if len(self.made) == stop:
                raise Interrupted
            self.made.append(prompt)
            return make(prompt, seed) if make else {"text": prompt.upper(), "seed": seed}

        @self.tape.stage("rollout", **stage)
        def rollout(prompts: Sequence[str], temperature: float = 1.0, weights: int = 0) -> list[Any]:
            return [self.tape.sample(at, draw, prompt, seed + at) for at, prompt in enumerate(prompts)]

        self.stage = rollout
        with self.tape.step(step):
            return rollout(list(prompts))

    def close(self) -> rolltape.Summary:
        return self.tape.close()


def killed(directory: Path, stop: int = 5, **options: Any) -> None:
    """A run that has finished so many samples of step 3, and is gone."""
    run = Trainer(
        directory, **{key: options.pop(key) for key in ("mode", "rank", "world_size") if key in options}
    )
    with pytest.raises(Interrupted):
        run.generate(stop=stop, **options)
    run.close()


def files(directory: Path) -> list[str]:
    return [stat.name for stat in storage_at(directory).everything() if stat.name.startswith("samples.open/")]


def recorded(directory: Path) -> rolltape.Recording:
    with rolltape.Tape(directory, mode="replay") as opened:
        return opened.recording(3)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return tmp_path / "tape"


def test_only_what_is_missing_is_made(tape: Path) -> None:
    killed(tape)
    run = Trainer(tape)
    whole = run.generate()
    assert run.made == list(PROMPTS[5:])
    assert_same(whole, [{"text": prompt.upper(), "seed": at} for at, prompt in enumerate(PROMPTS)])
    summary = run.close()
    assert summary.resumed == ((3, 5, 8),)
    assert str(summary).endswith("resumed 5 of 8 samples of step 3")
    assert files(tape) == []
    recording = recorded(tape)
    assert recording.about["resumed"] == {"samples": 5, "of": 8}
    again = Trainer(tape, "replay")
    assert_same(again.generate(), whole)
    assert again.made == []
    again.close()


def test_a_run_that_is_not_interrupted_leaves_nothing(tape: Path) -> None:
    run = Trainer(tape, "record")
    run.generate()
    assert run.close().resumed == ()
    assert files(tape) == []
    assert "resumed" not in recorded(tape).about


def test_two_interruptions_in_a_row(tape: Path) -> None:
    killed(tape, 3)
    killed(tape, 2)
    run = Trainer(tape)
    run.generate()
    assert run.made == list(PROMPTS[5:])
    assert run.close().resumed == ((3, 5, 8),)
    assert files(tape) == []


def test_every_value_comes_back_bit_for_bit(tape: Path) -> None:
    values = [
        np.array([1.5, -0.0, np.nan], np.float16), {"a": [1, {"b": (2, None)}], "c": b"\x00\xff"},
        (True, 1, 1.0), None, [], {}, np.zeros((2, 0), np.int8),
        {"ids": np.arange(3, dtype=np.uint8), "text": "\ud800é"},
    ]  # fmt: skip

    def make(prompt: str, seed: int) -> Any:
        return values[PROMPTS.index(prompt)]

    killed(tape, 7, make=make)
    run = Trainer(tape)
    assert_same(run.generate(make=make), values)
    assert run.made == [PROMPTS[7]]
    run.close()


def test_what_is_changed_afterwards_is_kept_as_it_was(tape: Path) -> None:
    shared: list[dict[str, Any]] = []

    def make(prompt: str, seed: int) -> Any:
        if shared:
            shared[-1]["text"] = "changed"
        shared.append({"text": prompt})
        return shared[-1]

    killed(tape, 5, make=make)
    run = Trainer(tape)
    assert [one["text"] for one in run.generate()][:5] == list(PROMPTS[:5])
    run.close()


def test_the_generators_of_the_process_go_on_where_they_were(tape: Path, tmp_path: Path) -> None:
    def make(prompt: str, seed: int) -> Any:
        return random.random(), float(np.random.rand())

    def begin() -> None:
        random.seed(1)
        np.random.seed(1)

    begin()
    alone = Trainer(tmp_path / "alone", "record")
    expected = alone.generate(make=make)
    after = random.random()
    alone.close()
    begin()
    killed(tape, make=make)
    begin()
    run = Trainer(tape)
    assert_same(run.generate(make=make), expected)
    assert random.random() == after
    run.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompts": [*PROMPTS[:7], "another"]}, r"`prompts\[7\]`"),
        ({"prompts": PROMPTS[:7]}, "`prompts`: a list of 8, now a list of 7"),
        ({"seed": 100}, "sample 0: `seed` = 0, now 100"),
    ],
)
def test_another_call_is_refused(tape: Path, change: dict[str, Any], says: str) -> None:
    killed(tape)
    run = Trainer(tape)
    with pytest.raises(MismatchError, match=says) as error:
        run.generate(**change)
    assert "prune" in str(error.value)
    assert run.made == []
    run.close()
    assert files(tape), "nothing is lost"
    run = Trainer(tape, match={"open_samples": "warn"})
    run.generate(**change)
    assert run.made == list(change.get("prompts", PROMPTS))
    assert run.close().resumed == ()
    assert files(tape) == []


def test_other_settings_and_weights_are_refused_by_name(tape: Path) -> None:
    killed(tape)
    run = Trainer(tape)
    with pytest.raises(Interrupted):
        run.generate(step=4, stop=0)
    for given, says in (
        ({"weights": 1}, "`weights` = 0, now 1"),
        ({"temperature": 0.5}, "`temperature` = 1.0"),
    ):
        with run.tape.step(3), pytest.raises(MismatchError, match=says):
            run.stage(list(PROMPTS), **given)
    run.close()


def test_another_fingerprint_is_refused(tape: Path) -> None:
    killed(tape, mode="rewrite")
    run = Trainer(tape, "rewrite", fingerprint={"model": "another"})
    with pytest.raises(MismatchError, match="fingerprint"):
        run.generate()
    run.close()


def damage(tape: Path, how: str) -> None:
    for path in (tape / name for name in files(tape)):
        data = bytearray(path.read_bytes())
        if how == "flipped":
            for at in range(8, len(data) // 2):
                data[at] ^= 1
        elif how == "short":
            data = data[: len(data) // 2]
        elif how == "empty":
            data = bytearray()
        path.write_bytes(data)
        if how == "moved":
            path.rename(path.with_name(path.name.replace("000003", "000004")))


@pytest.mark.parametrize("how", ["flipped", "short", "empty"])
def test_what_is_damaged_is_named_and_made_again(
    tape: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    killed(tape)
    damage(tape, how)
    report = inspect(storage_at(tape))
    assert {finding.kind for finding in report.findings} == {"leftover"}
    run = Trainer(tape)
    run.generate()
    assert run.made == list(PROMPTS)
    assert "samples.open/train/rollout/step_000003" in caplog.text
    assert "generated again" in caplog.text
    assert run.close().resumed == ()
    assert files(tape) == []


def test_samples_of_another_step_are_never_taken(tape: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed(tape)
    damage(tape, "moved")
    run = Trainer(tape)
    run.generate(step=4)
    assert run.made == list(PROMPTS)
    assert "another recording" in caplog.text
    run.close()


def test_a_file_of_samples_is_no_recording(tape: Path) -> None:
    killed(tape)
    name = files(tape)[0]
    (tape / "train/rollout").mkdir(parents=True)
    (tape / name).rename(tape / "train/rollout/step_000003.parquet")
    with rolltape.Tape(tape, mode="replay") as opened, pytest.raises(rolltape.MisplacedFileError):
        opened.recording(3).value()


def test_a_full_disk_ends_nothing(
    tape: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish = LocalStorage.publish

    def full(self: LocalStorage, name: str, *args: Any, **options: Any) -> int:
        if name.startswith("samples.open"):
            raise DiskFullError("no space left", where=name)
        return publish(self, name, *args, **options)

    monkeypatch.setattr(LocalStorage, "publish", full)
    run = Trainer(tape, "record")
    run.generate()
    assert run.close().lost == ()
    assert caplog.text.count("could not be kept") == 1
    assert recorded(tape).samples == 8


def test_what_cannot_be_stored_is_told_once(tape: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Trainer(tape, "record", on_error="warn")
    run.generate(make=lambda prompt, seed: threading.Lock())
    run.close()
    assert caplog.text.count("are not kept as they finish") == 1


def test_tasks_and_threads(tape: Path) -> None:
    made: list[int] = []

    def run(stop: int | None) -> tuple[list[int], list[int]]:
        async def later(at: int) -> int:
            made.append(at)
            if at == stop:
                raise Interrupted
            return at * at

        with rolltape.Tape(tape, mode="auto") as opened:

            @opened.stage("tasks")
            async def tasks(count: int) -> list[int]:
                return [await opened.sample(("task", at), later, at) for at in range(count)]

            @opened.stage("threads")
            def threads(count: int) -> list[int]:
                def one(at: int) -> int:
                    return opened.sample(at, lambda: made.append(100 + at) or at)

                with ThreadPoolExecutor(4) as pool:
                    found = list(pool.map(one, range(count)))
                if stop is not None:
                    raise Interrupted
                return found

            found: list[list[int]] = []
            for stage in (lambda: asyncio.run(tasks(6)), lambda: threads(6)):
                try:
                    with opened.step(0):
                        found.append(stage())
                except Interrupted:
                    found.append([])
        return found[0], found[1]

    assert run(stop=4) == ([], [])
    assert sorted(made) == [0, 1, 2, 3, 4, *range(100, 106)]
    made.clear()
    assert run(stop=None) == ([at * at for at in range(6)], list(range(6)))
    assert made == [4, 5]


def test_misuse_is_told(tape: Path) -> None:
    with rolltape.Tape(tape, mode="auto") as opened:

        @opened.stage("twice")
        def twice() -> list[int]:
            return [opened.sample("a", int, 1), opened.sample("a", int, 2)]

        @opened.stage("unnamed")
        def unnamed() -> list[int]:
            return [opened.sample(1.5, int)]  # type: ignore[arg-type]

        @opened.stage("awaited")
        def awaited() -> list[Any]:
            return [opened.sample("a", lambda: asyncio.sleep(0))]

        for stage, says in (
            (twice, "twice in one call"),
            (unnamed, "named by text"),
            (awaited, "async function"),
        ):
            with opened.step(0), pytest.raises(StageError, match=says):
                stage()
        with opened.step(1), pytest.raises(StageError, match="outside of a stage"):
            opened.sample("a", int)
    assert rolltape.Tape(mode="off").sample("a", int, "7") == 7


def test_samples_that_call_stages_are_not_kept(tape: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(stop: int | None) -> list[float]:
        with rolltape.Tape(tape, mode="auto") as opened:

            @opened.stage("reward")
            def reward(at: int) -> float:
                return at / 2

            @opened.stage("rollout")
            def rollout(count: int) -> list[float]:
                found = []
                for at in range(count):
                    if at == stop:
                        raise Interrupted
                    found.append(opened.sample(at, reward, at))
                return found

            with opened.step(0):
                return rollout(4)

    with pytest.raises(Interrupted):
        run(2)
    assert files(tape) == []
    assert caplog.text.count("call other stages") == 1
    assert run(None) == [0.0, 0.5, 1.0, 1.5]


def test_two_processes_at_once_keep_one_recording(tape: Path) -> None:
    killed(tape, 3)
    one, other = Trainer(tape), Trainer(tape)
    first = one.generate(make=lambda prompt, seed: "one")
    second = other.generate(make=lambda prompt, seed: "other")
    summaries = [one.close(), other.close()]
    won = [summary.recorded for summary in summaries]
    value = recorded(tape).value()
    assert value == first == second or (won, value) in (([1, 0], first), ([0, 1], second))
    assert first[3:] == ["one"] * 5
    taken = second.count("one")  # what the first had put down by then, however far it was
    assert second[3:] == ["one"] * taken + ["other"] * (5 - taken)
    assert len(other.made) == 5 - taken
    assert value[:3] == first[:3] == second[:3]
    assert files(tape) == []


def test_a_rewrite_makes_everything_anew_and_can_be_resumed_too(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:  # killed after the step was recorded, before the clean-up
        patched.setattr("rolltape.tape.open_samples.OpenSteps._delete", lambda self, names: None)
        run = Trainer(tape, "record")
        run.generate()
        run.close()
    assert files(tape)
    killed(tape, 3, mode="rewrite", make=lambda prompt, seed: "new")
    run = Trainer(tape, "rewrite")
    assert run.generate(make=lambda prompt, seed: "new") == ["new"] * 8
    assert run.made == list(PROMPTS[3:])
    run.close()
    assert files(tape) == []


def test_what_was_left_of_a_recorded_step_is_removed(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rolltape.tape.open_samples.OpenSteps._delete", lambda self, names: None)
        run = Trainer(tape, "record")
        run.generate()
        run.close()
    (call,) = open_calls(storage_at(tape))
    assert call.recorded
    run = Trainer(tape)
    run.generate(step=4)
    run.close()
    assert files(tape) == []


def test_ranks_go_on_by_themselves(tape: Path) -> None:
    for rank in (0, 1):
        killed(tape, 4 + rank, rank=rank, world_size=2, make=lambda prompt, seed: f"{prompt} of {seed}")
    runs = [Trainer(tape, rank=rank, world_size=2) for rank in (0, 1)]
    for rank, run in enumerate(runs):
        run.generate(make=lambda prompt, seed: f"{prompt} of {seed}")
        assert run.made == list(PROMPTS[4 + rank :])
    assert files(tape) != [], "the first rank is done, and the other is not"
    for run in runs:
        run.close()
    assert files(tape) == []


def test_a_rank_that_was_done_does_not_begin_again(tape: Path) -> None:
    """Its shard counts for nothing without the other's: it is made of what it had finished."""
    first = Trainer(tape, rank=0, world_size=2)
    first.generate()
    first.close()
    killed(tape, 2, rank=1, world_size=2)
    runs = [Trainer(tape, rank=rank, world_size=2) for rank in (0, 1)]
    for run in runs:
        run.generate()
    assert [run.made for run in runs] == [[], list(PROMPTS[2:])]
    for run in runs:
        run.close()
    assert files(tape) == []


def test_by_prompt(tape: Path) -> None:
    made: list[str] = []

    def run(prompts: list[str], stop: int | None = None) -> list[str]:
        made.clear()
        with rolltape.Tape(tape, mode="auto") as opened:

            def draw(prompt: str) -> str:
                if len(made) == stop:
                    raise Interrupted
                made.append(prompt)
                return prompt.upper()

            @opened.stage("rollout", by="prompt", prompts="prompts", version="any")
            def rollout(prompts: list[str]) -> dict[str, list[str]]:
                return {"text": [opened.sample(at, draw, prompt) for at, prompt in enumerate(prompts)]}

            with opened.step(0):
                return rollout(prompts)["text"]

    with pytest.raises(Interrupted):
        run(["a", "b", "c"], stop=2)
    assert run(["a", "b", "c"]) == ["A", "B", "C"]
    assert made == ["c"]
    with pytest.raises(Interrupted):  # the rest of a call that is answered by content
        run(["c", "d", "e", "f"], stop=2)
    assert run(["c", "d", "e", "f"]) == ["C", "D", "E", "F"]
    assert made == ["f"]
    assert files(tape) == []


def test_nobody_else_sees_them(tape: Path, tmp_path: Path) -> None:
    run = Trainer(tape, "record")
    run.generate(step=0)
    run.close()
    killed(tape)
    before = files(tape)
    assert before
    opened = rolltape.open(tape)
    assert opened.splits == ["train"]
    assert list(opened.steps()) == [0]
    with rolltape.Tape(tape, mode="replay") as replay, pytest.raises(rolltape.StepMissingError):
        replay.recording(3).value()
    plan = plan_copy(storage_at(tape), storage_at(tmp_path / "copy"))
    assert (plan.foreign, plan.conflicts) == ([], [])
    compact(storage_at(tape), keep=0, settled=0)
    assert inspect(storage_at(tape)).findings == []
    assert files(tape) == before
    for name in ("ls", "check", "doctor"):
        said = command(name, tape)
        assert "5 finished samples of train/rollout step 3" in " ".join((said.stdout + said.stderr).split())
        assert said.exit_code == 0 or name == "doctor"
    command("prune", tape, "--yes")
    assert files(tape) == before, "they are kept unless somebody asks"
    command("prune", tape, "--open", "--yes", "--steps", "4-")
    assert files(tape) == before
    assert command("prune", tape, "--open", "--yes").exit_code == 0
    assert files(tape) == []
    assert list(rolltape.open(tape).steps()) == [0]


def test_long_names_of_calls(tape: Path) -> None:
    def run(stop: int | None) -> list[int]:
        with rolltape.Tape(tape, mode="auto") as opened:
            made: list[int] = []

            @opened.stage("rollout", samples="rows")
            def rollout() -> list[int]:
                for at in range(4):
                    if at == stop:
                        raise Interrupted
                    opened.sample(at, lambda: made.append(1) or 1)
                return made

            with opened.step(0, key="k" * 190 + "/7"):
                return rollout()

    with pytest.raises(Interrupted):
        run(3)
    assert run(None) == [1]
    assert files(tape) == []


def test_a_forked_child_keeps_samples_too(tape: Path) -> None:
    with rolltape.Tape(tape, mode="auto") as opened:

        @opened.stage("rollout")
        def rollout() -> list[int]:
            child = os.fork()
            if not child:
                opened.sample("child", lambda: 1)
                opened._dispatcher.recorder.open_steps.wait(  # type: ignore[union-attr]
                    opened._live_call("a test").open().key  # type: ignore[union-attr]
                )
                os._exit(0)
            os.waitpid(child, 0)
            raise Interrupted

        with pytest.raises(Interrupted), opened.step(0):
            rollout()
    assert [call.samples for call in open_calls(storage_at(tape))] == [1]
