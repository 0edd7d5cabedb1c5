"""An engine that is asked by prompt generates only what is missing, with the seeds of one undisturbed run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.engines import Completion, Engine, Prompt, Rollout, SamplingParams, seed_for

PARAMS = SamplingParams(n=4, seed=3)


class Seeded(Engine):
    """Samples follow from seeds alone, as in every engine."""

    name = "seeded"
    version = "1"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, int, int]] = []

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        pass

    def _complete(self, prompts: list[Prompt], params: SamplingParams) -> Sequence[Sequence[Completion]]:
        self.asked += [(prompt.text, prompt.first, params.n) for prompt in prompts]
        return [[self._one(prompt, params, at) for at in range(params.n)] for prompt in prompts]

    def _one(self, prompt: Prompt, params: SamplingParams, at: int) -> Completion:
        assert params.seed is not None
        drawn = seed_for(params.seed, str(prompt.uid), prompt.first + at)
        return Completion(
            prompt_ids=[ord(letter) for letter in prompt.text or ""],
            response_ids=[drawn % 1000, self.weights_version],
            text=str(drawn),
            logprobs=[-1.0 / (1 + drawn), -0.5],
            finish_reason="stop",
            weights_version=self.weights_version,
        )


def never() -> Engine:
    pytest.fail("the engine was started")


def recorded(folder: Path) -> None:
    with rolltape.Tape(folder, mode="record") as tape:
        engine = tape.engine(Seeded(), by="prompt")
        for step, prompts in enumerate((["aa", "b"], ["c", "dd"])):
            with tape.step(step):
                engine.generate(prompts, PARAMS)


def equal(found: Rollout, wanted: Rollout) -> None:
    assert [one.tolist() for one in found.response_ids] == [one.tolist() for one in wanted.response_ids]
    assert [one.tobytes() for one in found.logprobs] == [one.tobytes() for one in wanted.logprobs]
    assert (found.texts, found.uid, found.index.tolist()) == (wanted.texts, wanted.uid, wanted.index.tolist())
    assert np.array_equal(found.weights_versions, wanted.weights_versions)


def test_another_order_and_fewer_samples_start_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    wanted = Seeded().generate(["dd", "aa", "b"], SamplingParams(n=2, seed=3))
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        engine = tape.engine(never, by="prompt")
        with tape.step(7):
            equal(engine.generate(["dd", "aa", "b"], SamplingParams(n=2, seed=3)), wanted)
        assert not engine.is_started
        assert (tape.summary().by_content, tape.summary().replayed) == (6, 0)


def test_more_samples_are_those_of_a_larger_group(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    params = SamplingParams(n=7, seed=3)
    wanted = Seeded().generate(["c", "new", "aa"], params)
    made = Seeded()
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        engine = tape.engine(lambda: made, by="prompt")
        for _ in range(2):
            with tape.step(0):
                equal(engine.generate(["c", "new", "aa"], params), wanted)
        assert (tape.summary().by_content, tape.summary().generated) == (8 + 21, 13)
    assert sorted(made.asked) == sorted(
        [(text, at, 1) for text, start in (("aa", 4), ("c", 4), ("new", 0)) for at in range(start, 7)]
    )


def test_other_weights_do_not_answer_unless_they_may(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    for version, may in (("same", False), ("<= 1 old", True), ("nearest", True)):
        with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
            engine = tape.engine(never, by="prompt", version=version)
            engine.update_weights({}, version=1)
            with tape.step(0):
                if may:
                    assert set(engine.generate(["b"], PARAMS).weights_versions) == {0}
                else:
                    with pytest.raises(rolltape.StepMissingError, match="other versions of the policy"):
                        engine.generate(["b", "aa"], PARAMS)


def test_another_seed_is_another_question(tmp_path: Path) -> None:
    recorded(tmp_path / "tape")
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        engine = tape.engine(never, by="prompt")
        with tape.step(0), pytest.raises(rolltape.StepMissingError, match="other sampling"):
            engine.generate(["b"], SamplingParams(n=4, seed=4))


def test_a_first_number_is_a_number() -> None:
    with pytest.raises(rolltape.PromptError, match="first of prompt 0"):
        Seeded().generate([Prompt(text="a", first=-1)], PARAMS)
    assert Seeded().generate([Prompt(text="a", first=5)], PARAMS).index.tolist() == [5, 6, 7, 8]
