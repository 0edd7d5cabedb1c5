"""verl asked by its prompts, V0: what ``generate_sequences`` returns, in another order and size."""

import asyncio
import logging

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.utils.skip import SkipManager

import rolltape
from rolltape.integrations.verl import install
from tests.verl.batches import output_for, prompts_for


class Manager:
    """Stands where AgentLoopManager stands: deals its prompts out to workers in equal parts."""

    def __init__(self, workers=1):
        self.agent_loop_workers = list(range(workers))
        self.asked = []

    @SkipManager.annotate(role="rollout")
    async def generate_sequences(self, prompts):
        parts = prompts.chunk(len(self.agent_loop_workers))
        assert len(parts) == len(self.agent_loop_workers)
        self.asked.append([one[0]["content"] for one in prompts.non_tensor_batch["raw_prompt"]])
        await asyncio.sleep(0)
        return output_for(prompts, seed=len(self.asked) + int(prompts.meta_info.get("global_steps", 0)))


@pytest.fixture
def training(trainer_config, tmp_path, monkeypatch):
    """Start a run on the tape of this test: returns its manager, and a function that does one step."""

    def start(workers=1, **options):
        for name, value in options.items():
            if name.isupper():
                monkeypatch.setenv(f"ROLLTAPE_{name}", value)
        monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
        changes = {name: value for name, value in options.items() if not name.isupper()}
        SkipManager.init(trainer_config(**changes))
        manager = Manager(workers)

        def step(number, prompts):
            SkipManager.set_step(number)
            return asyncio.run(manager.generate_sequences(prompts))

        return manager, step

    return start


def batch(*numbers, n=2):
    """A batch of these prompts, each n times, under uids of its own."""
    return DataProto.concat([prompts_for(number, prompts=1, n=n) for number in numbers])


def rows(output, *places):
    """Some samples in all their bits."""
    found = []
    for place in places:
        tensors = [output.batch[name][place] for name in sorted(output.batch.keys())]
        found.append([one.view(torch.uint8).tolist() for one in map(torch.Tensor.contiguous, tensors)])
    return found


def test_another_order_and_size_with_one_call_for_what_is_missing(training, caplog):
    """Recorded by step; then asked by prompts, by a batch of another size with more data and another n."""
    _, step = training(MODE="record")
    first, second = step(1, batch(0, 1)), step(2, batch(2, 3))
    assert step  # the run ends
    install.stop()
    caplog.set_level(logging.INFO, "rolltape")
    sizes = {"data__train_batch_size": 3, "actor_rollout_ref__rollout__n": 3, "data__seed": 9}
    manager, step = training(workers=4, MODE="auto", BY="prompt", VERSION="any", **sizes)
    prompts = batch(3, 0, 7, n=3)
    found = step(1, prompts)
    assert manager.asked == [["question 3", "question 0"] + ["question 7"] * 3]
    assert len(manager.agent_loop_workers) == 4
    assert rows(found, 0, 1) == rows(second, 2, 3)
    assert rows(found, 3, 4) == rows(first, 0, 1)
    assert "uid" not in found.non_tensor_batch
    assert len(found) == 9
    assert "4 of 9 samples answered by content (recorded at steps 1, 2), 5 generated" in caplog.text
    again = step(2, batch(7, 3, n=3))
    assert len(manager.asked) == 1
    assert rows(again, 0, 1, 2) == rows(found, 6, 7, 8)
    assert rows(again, 3, 4, 5) == rows(found, 0, 1, 2)
    assert install.generation("rollout").session.tape.summary().by_content == 10


def test_a_step_with_the_recorded_prompts_is_a_replay_of_it(training):
    _, step = training(MODE="record")
    first = step(1, batch(0, 1))
    install.stop()
    manager, step = training(MODE="replay", BY="prompt")
    again = step(1, batch(0, 1))
    assert rows(again, 0, 1, 2, 3) == rows(first, 0, 1, 2, 3)
    assert again.meta_info == first.meta_info
    assert not manager.asked
    summary = install.generation("rollout").session.tape.summary()
    assert (summary.replayed, summary.by_content) == (1, 0)


def test_another_answer_another_policy_or_another_sampling_is_not_the_same(training):
    _, step = training(MODE="record")
    step(1, batch(0, 1))
    install.stop()
    _, step = training(MODE="replay", BY="prompt", VERSION="any")
    other = batch(0)
    other.non_tensor_batch["reward_model"][:] = [{"style": "rule", "ground_truth": "another"}] * 2
    with pytest.raises(rolltape.StepMissingError, match="2 of 2 samples"):
        step(2, other)
    with pytest.raises(rolltape.StepMissingError, match="2 of 4 samples"):
        step(2, batch(0, 5))
    install.stop()
    _, step = training(VERSION="same")
    with pytest.raises(rolltape.StepMissingError, match="other versions of the policy"):
        step(2, batch(1))
    install.stop()
    with pytest.raises(rolltape.MismatchError, match="temperature"):
        training(actor_rollout_ref__rollout__temperature=0.5)
    with pytest.raises(rolltape.ConfigError, match="the part sampling must match"):
        training(MATCH='{"sampling": "warn"}')


def test_by_can_be_said_in_the_configuration(training, tmp_path, monkeypatch):
    section = {"dir": str(tmp_path / "tape"), "mode": "auto", "by": "prompt", "version": "<= 1 old"}
    manager, step = training(rolltape=section)
    monkeypatch.delenv("ROLLTAPE_DIR")
    step(1, batch(0, 1))
    step(2, batch(1, 0))
    assert len(manager.asked) == 1
    step(3, batch(1, 0))
    assert len(manager.asked) == 2
    assert (
        np.concatenate(manager.asked).tolist() == ["question 0"] * 2 + ["question 1"] * 4 + ["question 0"] * 2
    )
