"""A stage that is asked by prompt is answered from wherever its samples were recorded, each bit for bit."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from tests.index.generating import Generation, padded, same


def check_answer(found: dict[str, Any], generation: Generation, prompts: list[str], n: int) -> None:
    """Every sample of the answer is the recorded one of its number, in the order asked for."""
    seen: dict[str, int] = {}
    rows = []
    for prompt in prompts:
        start = seen.get(prompt, 0)
        rows += [generation.made[prompt, number] for number in range(start, start + n)]
        seen[prompt] = start + n
    left, right = found["prompts"].shape[1], found["responses"].shape[1]
    widest = {"prompt_ids": [0] * left, "response_ids": [0] * right, "text": "", "logprob": np.float32(0)}
    wanted = padded([*rows, widest])  # to the widths that the answer has
    same(found, {name: column[: len(rows)] for name, column in wanted.items()})


@pytest.mark.parametrize("group", range(10))
def test_500_random_shuffles_sizes_and_counts(tmp_path: Path, group: int) -> None:
    for case in range(50):
        one_case(tmp_path / str(case), random.Random(50 * group + case))


def one_case(folder: Path, draw: random.Random) -> None:
    generation = Generation(draw.randrange(2**32))
    names = [f"{'p' * draw.randrange(1, 5)}{at}" for at in range(16)]
    with rolltape.Tape(folder, mode="record", background=False) as tape:
        stage = generation.stage(tape)
        for step in range(2):
            with tape.step(step):
                stage(names[8 * step : 8 * step + draw.choice([8, 6])], n=draw.choice([8, 2, 1]))
    settings = {"mode": "auto", "background": draw.random() < 0.5}
    total = answered = 0
    with rolltape.Tape(folder, **settings) as tape:
        stage = generation.stage(tape, version="any")
        before = len(generation.made)
        for step, (size, n) in enumerate(zip((8, 12, 5), draw.sample([8, 16, 4, 3], 3), strict=True)):
            prompts = draw.choices(names, k=size) if draw.random() < 0.7 else draw.sample(names, size)
            known = set(generation.made)
            calls = len(generation.calls)
            with tape.step(draw.choice([step, step + 10])):
                found = stage(list(prompts), n=n)
            check_answer(found, generation, prompts, n)
            assert len(generation.calls) - calls <= 1, "what is missing is generated in one call"
            wanted = {(name, number) for name in set(prompts) for number in range(n * prompts.count(name))}
            assert set(generation.made) == known | wanted, "only what is missing is generated"
            total += size * n
            answered += len(wanted & known)
        summary = tape.summary()
        made = len(generation.made) - before
        assert summary.by_content <= answered
        assert total == answered + made
    with rolltape.Tape(folder, mode="replay") as tape:
        stage = generation.stage(tape, version="any")
        with tape.step(77):
            check_answer(stage(list(reversed(names[:3])), n=1), generation, names[2::-1], 1)


def recorded(folder: Path, steps: int = 3, n: int = 8) -> Generation:
    """A tape with two prompts at each step."""
    generation = Generation()
    with rolltape.Tape(folder, mode="record") as tape:
        stage = generation.stage(tape)
        for step in range(steps):
            with tape.step(step):
                stage([f"a{step}", f"bb{step}"], n=n)
    return generation


def test_the_recorded_slot_is_a_replay_and_nothing_else_is(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape")
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = generation.stage(tape)
        with tape.step(1):
            check_answer(stage(["a1", "bb1"], n=8), generation, ["a1", "bb1"], 8)
        assert (tape.summary().replayed, tape.summary().by_content) == (1, 0)
        with tape.step(1):
            check_answer(stage(["bb1", "a1"], n=8), generation, ["bb1", "a1"], 8)
        assert (tape.summary().replayed, tape.summary().by_content) == (1, 16)
        assert "16 samples by content" in str(tape.summary())


def test_more_are_added_and_numbers_go_on(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = generation.stage(tape)
        with tape.step(0):
            found = stage(["a0", "bb0"], n=16)
            check_answer(found, generation, ["a0", "bb0"], 16)
            assert generation.calls[-1] == 16
        with tape.step(0):
            again = stage(["a0", "bb0"], n=16)
            assert again["text"] == found["text"]
    run = rolltape.open(tmp_path / "tape")
    more = [one for one in run.recordings("rollout") if isinstance(one.key.call, str)]
    assert [sorted(set(one.identity()[1])) for one in more] == [list(range(8, 16))]


def test_fewer_are_the_first_or_drawn_by_a_seed(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1, n=16)
    texts: dict[Any, list[str]] = {}
    for draw in (None, 1, 1, 2):
        with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
            stage = generation.stage(tape, draw=draw)
            with tape.step(0):
                found = stage(["a0"], n=4)["text"]
            assert texts.setdefault(draw, found) == found
    every = [generation.made["a0", number]["text"] for number in range(16)]
    assert texts[None] == every[:4]
    places = [every.index(text) for text in texts[1]]
    assert places == sorted(places) != [0, 1, 2, 3]
    assert texts[1] != texts[2]


@pytest.mark.parametrize(
    ("version", "steps"),
    [("same", [1]), ("any", [0, 1, 2]), ("nearest", [1, 0, 2]), ("<= 1 old", [0, 1]), ("<=0", [1])],
)
def test_which_policy_may_answer(tmp_path: Path, version: str, steps: list[int]) -> None:
    made: list[int] = []

    def generate(prompts: list[str], n: int = 1) -> dict[str, Any]:
        made.append(len(made))
        return {"text": [f"step {len(made) - 1}"] * n * len(prompts)}

    options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "n": "n"}
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout", **options)(generate)
        for step in range(3):
            with tape.step(step):
                stage(["p"], n=1)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout", version=version, **options)(generate)
        with tape.step(1):
            found = stage(["p"] * len(steps), n=1)["text"] if len(steps) > 1 else stage(["p"], n=1)["text"]
        assert found == [f"step {step}" for step in steps]
        with tape.step(1), pytest.raises(rolltape.StepMissingError) as caught:
            stage(["p"] * 4, n=1)
        assert ("other versions" in str(caught.value)) == (version in ("same", "<= 1 old", "<=0"))


def test_versions_that_the_stage_is_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "weights": "weights"}

    def generate(prompts: list[str], weights: int) -> dict[str, Any]:
        return {"text": [f"{prompt} by {weights}" for prompt in prompts]}

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout", inputs=["weights"], **options)(generate)
        for step in range(4):
            with tape.step(step):
                stage(["p", "q"], step // 2)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout", **options)(generate)
        with tape.step(9):
            assert stage(["q", "p"], 1)["text"] == ["q by 1", "p by 1"]
            with pytest.raises(
                rolltape.StepMissingError, match=r"versions of the policy \(0, 1; asked for: 5"
            ):
                stage(["p"], 5)


def test_versions_are_kept_whatever_arguments_are_recorded(tmp_path: Path) -> None:
    options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "weights": "weights"}

    def generate(prompts: list[str], weights: int) -> dict[str, Any]:
        return {"text": [f"{prompt} by {weights}" for prompt in prompts]}

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout", **options)(generate)
        for step in range(2):
            with tape.step(step):
                stage(["p", "q"], step + 3)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout", **options)(generate)
        with tape.step(0):
            assert stage(["p", "q"], 3)["text"] == ["p by 3", "q by 3"]
        assert tape.summary().replayed == 1
        with tape.step(9):
            assert stage(["q"], 4)["text"] == ["q by 4"]
        for step, version in ((0, 4), (0, 7), (1, 0), (9, 0)):
            with tape.step(step):
                if version == 4:
                    assert stage(["p", "q"], version)["text"] == ["p by 4", "q by 4"], "not those of the step"
                    continue
                with pytest.raises(rolltape.StepMissingError, match="other versions of the policy"):
                    stage(["p", "q"], version)
        assert tape.summary().replayed == 1


def test_an_object_of_lists_is_a_batch_in_every_call(tmp_path: Path) -> None:
    def generate(prompts: list[str], n: int = 1) -> dict[str, Any]:
        count = len(prompts) * n
        return {"score": [float(at) for at in range(count)], "vector": np.arange(2.0 * count).reshape(-1, 2)}

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n", version="any")(generate)
        with tape.step(0):
            stage(["a"], n=2)
        with tape.step(0):
            stage(["a", "b"], n=2)
        with tape.step(1):
            found = stage(["b", "a"], n=2)
    assert found["score"] == [0.0, 1.0, 0.0, 1.0]
    assert [one.samples for one in rolltape.open(tmp_path / "tape").recordings("rollout")] == [2, 2]
    with rolltape.Tape(tmp_path / "keyed", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n", version="any")(generate)
        with tape.step(0, key="request"):
            stage(["a"], n=3)
        with tape.step(1):
            assert stage(["a"], n=2)["score"] == [0.0, 1.0]


def test_async_stages(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    async def generate(prompts: list[str]) -> list[str]:
        calls.append(prompts)
        return [prompt.upper() for prompt in prompts]

    async def run(mode: str, prompts: list[str]) -> list[str]:
        with rolltape.Tape(tmp_path / "tape", mode=mode) as tape:
            stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
            with tape.step(0):
                return await stage(prompts)

    assert asyncio.run(run("record", ["a", "b"])) == ["A", "B"]
    assert asyncio.run(run("auto", ["b", "c", "a"])) == ["B", "C", "A"]
    assert calls == [["a", "b"], ["c"]]


def test_other_sampling_is_another_question(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1, n=1)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = generation.stage(tape)
        with tape.step(0), pytest.raises(rolltape.StepMissingError, match="drawn with other sampling"):
            stage(["bb0"], n=1, temperature=0.5)
        with tape.step(0):
            assert len(stage(["bb0"], n=1, temperature=1)["text"]) == 1, "1 and 1.0 are the same"


def test_tapes_that_were_recorded_by_step(tmp_path: Path) -> None:
    """What is on them by now answers too: arguments that were recorded, or prompts that the result has."""

    def generate(prompts: list[str], temperature: float = 1.0) -> dict[str, Any]:
        return {"prompt": prompts, "text": [prompt.upper() for prompt in prompts]}

    def never(prompts: list[str], temperature: float = 1.0) -> dict[str, Any]:
        raise AssertionError(prompts)

    for inputs in (True, None):
        folder = tmp_path / str(inputs)
        with rolltape.Tape(folder, mode="record") as tape:
            stage = tape.stage("rollout", inputs=inputs)(generate)
            for step in range(2):
                with tape.step(step):
                    stage([f"a{step}", f"b{step}"])
        with rolltape.Tape(folder, mode="replay") as tape:
            stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(never)
            with tape.step(0):
                assert stage(["b1", "a0"])["text"] == ["B1", "A0"]


def test_who_asks_again_within_a_step_gets_others(tmp_path: Path) -> None:
    """As a loop does that generates until it has enough: it must not get the same samples for ever."""
    generation = recorded(tmp_path / "tape", steps=1, n=4)
    every = [generation.made["a0", number]["text"] for number in range(4)]
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = generation.stage(tape)
        with tape.step(0):
            assert stage(["a0"], n=2)["text"] == every[:2]
            assert stage(["a0"], n=2)["text"] == every[2:]
            more = stage(["a0"], n=2)["text"]
        assert more == [generation.made["a0", number]["text"] for number in (4, 5)]
        with tape.step(0):
            assert [stage(["a0"], n=2)["text"] for _ in range(3)] == [every[:2], every[2:], more]


def test_methods_and_fixed_counts(tmp_path: Path) -> None:
    class Policy:
        def __init__(self) -> None:
            self.calls: list[list[str]] = []

        def generate(self, prompts: list[str], /, *, temperature: float = 1.0) -> dict[str, Any]:
            self.calls.append(prompts)
            return {"text": [f"{prompt}{len(self.calls)}{at}" for prompt in prompts for at in range(3)]}

    policy = Policy()
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n=3)(Policy.generate)
        with tape.step(0):
            assert stage(policy, ["a"], temperature=0.5)["text"] == ["a10", "a11", "a12"]
        with tape.step(0):
            found = stage(policy, ["b", "a"], temperature=0.5)["text"]
        assert found == ["b20", "b21", "b22", "a10", "a11", "a12"]
        with tape.step(1):
            assert stage(policy, [])["text"] == []
    assert policy.calls == [["a"], ["b"], []]


def test_other_kinds_of_results(tmp_path: Path) -> None:
    def generate(prompts: np.ndarray) -> list[dict[str, Any]]:
        return [{"prompt": int(row[0]), "tokens": np.arange(row[0]), "of": {"a": None}} for row in prompts]

    rows = np.arange(1, 7).reshape(6, 1)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(generate)
        with tape.step(0):
            stage(rows[:3])
        with tape.step(1):
            found = stage(rows[::-1])
    assert [one["prompt"] for one in found] == [6, 5, 4, 3, 2, 1]
    assert [len(one["tokens"]) for one in found] == [6, 5, 4, 3, 2, 1]
    assert tape.summary().by_content == 3


def test_threads_that_miss_the_same_lose_nothing(tmp_path: Path) -> None:
    given: list[str] = []

    def generate(prompts: list[str], n: int = 1) -> dict[str, Any]:
        return {"text": [f"{prompt} {random.random()}" for prompt in prompts for _ in range(n)]}

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", n="n", version="any")(generate)
        with tape.step(0):
            given += stage(["all"], n=1)["text"]

        def work(number: int) -> None:
            for step in range(4):
                with tape.step(step, key=f"{number}"):
                    given.extend(stage([f"p{step}", "all", f"{number}"], n=2)["text"])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(given) == 1 + 4 * 4 * 6
        assert tape.summary().kept == 0
    run = rolltape.open(tmp_path / "tape")
    on_tape = {text for one in run.recordings("rollout") for text in one.batch(["text"])["text"]}
    assert set(given) <= on_tape


def test_tasks_of_one_step_are_replayed_as_they_were_begun(tmp_path: Path) -> None:
    async def generate(prompts: list[str]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"text": [prompt.upper() for prompt in prompts]}

    async def run(folder: Path, mode: str) -> tuple[list[Any], rolltape.Summary]:
        with rolltape.Tape(folder, mode=mode) as tape:
            stage = tape.stage("rollout", by="prompt", prompts="prompts")(generate)
            with tape.step(0):
                found = await asyncio.gather(*(stage([letter]) for letter in "abcdefgh"))
            return found, tape.summary()

    for attempt in range(5):
        folder = tmp_path / str(attempt)
        asyncio.run(run(folder, "record"))
        found, summary = asyncio.run(run(folder, "replay"))
        assert [one["text"] for one in found] == [[letter] for letter in "ABCDEFGH"]
        assert (summary.replayed, summary.by_content) == (8, 0)


def test_a_call_that_failed_is_given_the_same_again(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=1, n=4)
    asked: list[tuple[list[str], Any]] = []

    def generate(prompts: list[str], n: int = 1, temperature: float = 1.0, first: Any = None) -> Any:
        asked.append((prompts, first))
        if len(asked) == 1:
            raise RuntimeError("the engine is down")
        return generation.generate(prompts, n, temperature, first)

    options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "n": "n", "first": "first"}
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape, tape.step(0):
        stage = tape.stage("rollout", **options)(generate)
        with pytest.raises(RuntimeError, match="down"):
            stage(["a0", "new"], n=6)
        check_answer(stage(["a0", "new"], n=6), generation, ["a0", "new"], 6)
    assert asked[1] == asked[0]


def test_tasks_that_ask_for_the_same_at_once_get_other_numbers(tmp_path: Path) -> None:
    recorded(tmp_path / "tape", steps=1, n=4)
    firsts: list[list[int]] = []

    async def generate(prompts: list[str], n: int = 1, temperature: float = 1.0, first: Any = None) -> Any:
        firsts.append(first)
        await both.wait()
        start = first[0] if first else 0
        return {"text": [f"{prompts[0]} {start + at}" for at in range(n)]}

    async def run() -> list[Any]:
        nonlocal both
        both = asyncio.Event()
        with rolltape.Tape(tmp_path / "tape", mode="replay", on_miss="live") as tape:
            options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "n": "n", "first": "first"}
            stage = tape.stage("rollout", **options)(generate)
            with tape.step(3):
                tasks = [asyncio.create_task(stage([name], n=2)) for name in ("x", "x")]
                while len(firsts) < 2:
                    await asyncio.sleep(0.001)
                both.set()
                return await asyncio.gather(*tasks)

    both = asyncio.Event()
    found = asyncio.run(run())
    assert sorted(text for one in found for text in one["text"]) == ["x 0", "x 1", "x 2", "x 3"]


def test_a_vector_that_happens_to_be_as_wide_as_a_prompt_and_its_response(tmp_path: Path) -> None:
    def generate(prompts: list[str], widths: tuple[int, int]) -> dict[str, Any]:
        left, right, count = *widths, len(prompts)
        mask = np.ones((count, left + right), np.int64)
        return {
            "prompts": mask[:, :left], "responses": mask[:, left:], "input_ids": mask,
            "attention_mask": mask, "position_ids": mask.cumsum(1) - 1,
            "embedding": np.arange(12.0)[None].repeat(count, axis=0),
        }  # fmt: skip

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "sampling": [], "pad": 0}
        stage = tape.stage("rollout", version="any", **options)(generate)
        with tape.step(0):
            stage(["a"], (4, 8))
        with tape.step(1), pytest.raises(rolltape.BatchError, match="'embedding' is 12 wide in all"):
            stage(["a", "b"], (6, 6))
        with tape.step(2):
            found = stage(["b", "a", "c"], (5, 8))
    assert np.array_equal(found["embedding"], np.arange(12.0)[None].repeat(3, axis=0))
    assert np.array_equal(found["attention_mask"].sum(1), [12, 12, 13])
    assert np.array_equal(found["input_ids"], found["attention_mask"])


def test_token_ids_that_count_up_are_padded_as_token_ids(tmp_path: Path) -> None:
    def generate(prompts: list[str], width: int) -> dict[str, Any]:
        ids = np.arange(width)[None].repeat(len(prompts), axis=0)
        mask = np.ones_like(ids)
        return {"responses": ids, "response_mask": mask, "position_ids": mask.cumsum(1) - 1}

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "sampling": [], "pad": 9}
        stage = tape.stage("rollout", version="any", **options)(generate)
        with tape.step(0):
            stage(["a", "b"], 4)
        with tape.step(1):
            found = stage(["a", "c"], 6)
    assert found["responses"].tolist() == [[0, 1, 2, 3, 9, 9], [0, 1, 2, 3, 4, 5]]
    assert found["response_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert found["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_padding_of_any_kind_is_added_as_it_is(tmp_path: Path) -> None:
    """NaN in half precision, and what has several numbers for each token: experts, the best tokens."""

    def generate(prompts: list[str], width: int) -> dict[str, Any]:
        mask = np.arange(width) < np.array([[len(prompt)] for prompt in prompts])
        experts = np.where(mask[..., None, None], np.arange(4, dtype=np.int16).reshape(2, 2), np.int16(-1))
        return {
            "responses": np.where(mask, 4, 9), "response_mask": mask.astype(np.int64),
            "logprobs": np.where(mask, -1.0, np.nan).astype(np.float16), "routed_experts": experts,
            "phase": np.where(mask, 1j, 0),
        }  # fmt: skip

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "sampling": [], "version": "any"}
        stage = tape.stage("rollout", **options)(generate)
        with tape.step(0):
            stage(["aa", "bbb"], 3)
        with tape.step(1):
            found = stage(["bbb", "c", "aa"], 5)
    same(found, generate(["bbb", "c", "aa"], 5))


@pytest.mark.parametrize("kind", ["in a dict", "alone"])
def test_lists_whose_entries_have_the_same_fields_in_some_calls_only(tmp_path: Path, kind: str) -> None:
    """As calls of tools are: where all samples of a call have one they are records, else they are not."""

    def called(prompt: str) -> Any:
        kinds = {
            "n": None,
            "f": {"name": prompt, "ids": np.arange(3)},
            "g": {"other": [1, None]},
            "t": "text",
        }
        return kinds[prompt[0]]

    def generate(prompts: list[str]) -> Any:
        calls = [called(prompt) for prompt in prompts]
        return calls if kind == "alone" else {"calls": calls, "n": [{"len": len(one)} for one in prompts]}

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(generate)
        for step, prompts in enumerate((["f1", "f2"], ["f3"], ["g1"], ["n1", "f4"], ["t1"])):
            with tape.step(step):
                stage(prompts)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(generate)
        for prompts in (["f2", "n1", "g1", "t1"], ["g1", "f4"], ["n1", "f1"], ["f3", "f1"]):
            with tape.step(9):
                found = stage(prompts)
            assert repr(found) == repr(generate(prompts))


def test_what_was_added_to_a_step_goes_when_the_step_is_written_anew(tmp_path: Path) -> None:
    generation = recorded(tmp_path / "tape", steps=2, n=2)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        for step in range(2):
            with tape.step(step):
                generation.stage(tape)([f"a{step}"], n=4)
    again = Generation(seed=1)
    with rolltape.Tape(tmp_path / "tape", mode="rewrite") as tape, tape.step(0):
        again.stage(tape)(["a0"], n=2)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = generation.stage(tape)
        with tape.step(0):
            check_answer(stage(["a0"], n=2), again, ["a0"], 2)
        with tape.step(0), pytest.raises(rolltape.StepMissingError):
            stage(["a0"], n=4)
        with tape.step(1):
            check_answer(stage(["a1"], n=4), generation, ["a1"], 4)


def test_what_a_rank_recorded_alone_is_not_generated_again(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def generate(prompts: list[str]) -> list[str]:
        calls.append(prompts)
        return [f"{prompt} {random.random()}" for prompt in prompts]

    def run(step: int, *prompts: list[str]) -> list[list[str]]:
        found = []
        for rank, mine in enumerate(prompts):
            with rolltape.Tape(tmp_path / "tape", mode="auto", rank=rank, world_size=2) as tape:
                stage = tape.stage("rollout", by="prompt", prompts="prompts", version="any")(generate)
                with tape.step(step):
                    found.append(stage(mine))
        return found

    run(0, ["a", "b"], ["c", "d"])
    first = run(1, ["b", "a"], ["e", "f"])  # of rank 0 everything is there, of rank 1 nothing
    assert run(1, ["b", "a"], ["e", "f"]) == first
    assert calls == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_pairs_have_masks_and_padding_of_their_own(tmp_path: Path) -> None:
    def generate(prompts: list[str], width: int) -> dict[str, Any]:
        found = {}
        for side, pad, in_front in (("chosen", 7, True), ("rejected", 8, False)):
            ids, mask = np.full((len(prompts), width), pad), np.zeros((len(prompts), width), np.int64)
            for at, prompt in enumerate(prompts):
                where = slice(width - len(prompt), None) if in_front else slice(len(prompt))
                ids[at, where] = [ord(letter) for letter in prompt]
                mask[at, where] = 1
            found[side] = {"input_ids": ids, "attention_mask": mask}
        return found

    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        options: dict[str, Any] = {"by": "prompt", "prompts": "prompts", "sampling": [], "version": "any"}
        stage = tape.stage("rollout", **options)(generate)
        with tape.step(0):
            stage(["a", "bb", "ccc"], 4)
        with tape.step(1):
            found = stage(["bb", "dd", "a"], 6)
    wanted = generate(["bb", "dd", "a"], 6)
    for side in wanted:
        same(found[side], wanted[side])
