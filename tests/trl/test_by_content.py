"""Real TRL on CPU, asked by its prompts: another order, another batch size, only what is missing is made."""

from __future__ import annotations

import logging
from itertools import chain

import pytest
import torch

import rolltape
from rolltape import StepMissingError, Tape
from rolltape.integrations.trl import instrument
from tests.trl.training import PROMPTS, build

SAMPLES = 4


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Engine:
    """Counts what TRL's own generation is asked for, and keeps what the trainer trains on."""

    def __init__(self, trainer) -> None:
        self.asked: list[list[str]] = []
        self.trained: list[tuple[str, tuple[int, ...]]] = []
        self._live, self._trainer = trainer._generate_single_turn, trainer
        self._words = trainer.processing_class.batch_decode
        trainer._generate_single_turn = self

    def __call__(self, prompt_ids, *others):
        self.asked.append(self._words(prompt_ids))
        return self._live(prompt_ids, *others)

    def watch(self) -> None:
        taped = self._trainer._generate_single_turn

        def generate(prompt_ids, *others):
            found = taped(prompt_ids, *others)
            self.trained += zip(self._words(prompt_ids), map(tuple, found[0]), strict=True)
            return found

        self._trainer._generate_single_turn = generate

    @property
    def count(self) -> int:
        return sum(map(len, self.asked))


@pytest.fixture
def train(model, tmp_path):
    """Trains on the tape of this test, with some of the prompts, and says what was generated."""

    def run(name, prompts, at_once, steps, options, **changes):
        changes = {
            "per_device_train_batch_size": at_once * SAMPLES, "num_generations": SAMPLES, "max_steps": steps,
        } | changes  # fmt: skip
        trainer = build(model, tmp_path / name, prompts=prompts, **changes)
        engine = Engine(trainer)
        tape = instrument(trainer, Tape(tmp_path / "tape", **options))
        engine.watch()
        trainer.train()
        return engine, tape.close()

    return run


def recorded(folder) -> dict[str, list[tuple[int, ...]]]:
    """The completions of every prompt on the tape."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for recording in rolltape.open(folder).recordings("rollout"):
        columns = recording.batch().columns
        pairs = zip(columns["prompt_text"], columns["completion_ids"], strict=True)
        for text, ids in pairs:
            found.setdefault(text, []).append(tuple(ids))
    return found


def test_reshuffled_data_at_another_batch_size_generates_what_is_missing_only(
    train, tmp_path, caplog
) -> None:
    """Recorded by step, as always; then asked by prompts, in another order, more at once, with new ones."""
    first, _ = train("record", PROMPTS[:6], 2, 3, {"mode": "record"})
    assert first.count == 6 * SAMPLES
    tape = recorded(tmp_path / "tape")
    assert {text: len(found) for text, found in tape.items()} == dict.fromkeys(PROMPTS[:6], SAMPLES)

    caplog.set_level(logging.INFO, "rolltape")
    options = {"mode": "auto", "by": "prompt", "version": "any"}
    second, told = train("auto", PROMPTS[:8], 4, 2, options, seed=6)
    assert sorted(chain(*second.asked)) == sorted(PROMPTS[6:8] * SAMPLES)
    assert len(second.asked) <= 2, "one call for what is missing of a step"
    assert (told.by_content, told.generated) == (6 * SAMPLES, 2 * SAMPLES)
    assert "samples answered by content (recorded at steps" in caplog.text
    for text, found in tape.items():
        assert [ids for asked, ids in second.trained if asked == text] == found, "in recorded order"
    made = recorded(tmp_path / "tape")
    for text in PROMPTS[6:8]:
        assert [ids for asked, ids in second.trained if asked == text] == made[text]

    third, told = train(
        "replay", PROMPTS[:8], 1, 3, {"mode": "replay", "by": "prompt", "version": "any"}, seed=7
    )
    assert third.count == 0
    assert all(ids in made[text] for text, ids in third.trained)
    assert "samples by content" in str(told)


def test_more_samples_and_another_policy(train) -> None:
    texts = PROMPTS[:2]
    train("record", texts, 2, 1, {"mode": "record"})
    replay = {"mode": "replay", "by": "prompt"}
    with pytest.raises(StepMissingError, match="other versions of the policy") as raised:
        train("strict", texts, 2, 2, replay, num_train_epochs=2, seed=9)
    assert "at step 1 " in str(raised.value)
    assert 'version="any"' in str(raised.value)
    with pytest.raises(StepMissingError, match="drawn with other sampling"):
        train("colder", texts, 2, 1, {**replay, "version": "any"}, temperature=0.5)
    more, told = train(
        "more", texts, 2, 1, {"mode": "auto", "by": "prompt", "version": "any"},
        num_generations=2 * SAMPLES, per_device_train_batch_size=4 * SAMPLES,
    )  # fmt: skip
    assert sorted(chain(*more.asked)) == sorted(texts * SAMPLES)
    assert (told.by_content, told.generated) == (2 * SAMPLES, 2 * SAMPLES)
