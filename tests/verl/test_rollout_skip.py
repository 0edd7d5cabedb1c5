"""RolloutSkip as its users know it, V1 and V2: same configuration, same calls; each known defect absent."""

import asyncio
import os
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.ray_utils import auto_await

from rolltape.integrations.verl import RolloutSkip, SkipAction, read_dumped_data, rollout_skip
from tests.verl.batches import assert_same, prompts_for
from tests.verl.skips import Workers, config, skipping, step_of, tape_of, v2


def test_twenty_steps_replay_bit_equal_and_generation_is_never_called(tmp_path):
    recording = skipping(v2(tmp_path, action="cache"))
    outputs = [step_of(recording, step)[1] for step in range(1, 21)]
    recording.skip.close()
    replaying = skipping(v2(tmp_path, action="cache"), forbidden=True)
    for step, output in enumerate(outputs, 1):
        assert_same(step_of(replaying, step)[1], output)
    replaying.skip.close()


class AsyncWorkers(Workers):
    """A manager whose generation is a coroutine function."""

    async def generate_sequences(self, batch, **kwargs):
        await asyncio.sleep(0)
        return super().generate_sequences(batch, **kwargs)


class AutoAwaitWorkers(Workers):
    """One as verl's AgentLoopManager is: to be called with and without await."""

    @auto_await
    async def generate_sequences(self, batch, **kwargs):
        await asyncio.sleep(0)
        return super().generate_sequences(batch, **kwargs)


@pytest.mark.parametrize("workers", [AsyncWorkers, AutoAwaitWorkers])
def test_coroutine_functions_too(tmp_path, workers):
    def train(forbidden):
        manager = workers(forbidden)
        skip = RolloutSkip(v2(tmp_path, action="cache", val=True), manager)
        skip.wrap_generate_sequences()

        async def steps():
            outputs, batches = [], []
            for step in (1, 2, 3):
                batches.append(prompts_for(step, n=1))
                skip.record(batches[-1], step)
                outputs.append(await manager.generate_sequences(prompts_for(step)))
                outputs.append(await manager.generate_sequences(prompts_for(step, validate=True)))
            return outputs, batches

        outputs, batches = asyncio.run(steps())
        if workers is AutoAwaitWorkers:
            skip.record(prompts_for(4, n=1), 4)
            outputs.append(manager.generate_sequences(prompts_for(4)))
        skip.close()
        return outputs, batches

    recorded, new_batches = train(forbidden=False)
    replayed, restored = train(forbidden=True)
    assert len(recorded) == (7 if workers is AutoAwaitWorkers else 6)
    for output, again in zip(recorded + new_batches, replayed + restored, strict=True):
        assert_same(again, output)


def test_recording_hands_back_the_very_objects(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    _, output = step_of(run, 1)
    assert output is run.workers.returned[0]
    assert "uid" not in output.non_tensor_batch
    assert "rolltape" not in output.meta_info


@dataclass
class Rollout:
    n: int = 2
    temperature: float = 1.0
    skip: dict = field(default_factory=dict)
    skip_rollout: bool | None = None
    skip_dump_dir: str | None = None

    def get(self, name, default=None):
        return getattr(self, name, default)


def as_dataclass(config):
    return SimpleNamespace(
        trainer=SimpleNamespace(**config["trainer"]), data=SimpleNamespace(**config["data"]),
        actor_rollout_ref=SimpleNamespace(
            model=SimpleNamespace(path="tiny"), rollout=Rollout(**config["actor_rollout_ref"]["rollout"])
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "kind", [dict, OmegaConf.create, as_dataclass], ids=["dict", "OmegaConf", "dataclass"]
)
def test_v1_keys_one_recording_is_played_at_every_later_step(tmp_path, kind, caplog):
    rollout_skip._said.clear()
    old = kind(config(skip_rollout=True, skip_dump_dir=str(tmp_path)))
    first = skipping(old)
    outputs = [first.generate(prompts_for(step)) for step in (1, 2, 3)]
    assert len(first.workers.returned) == 1
    for output in outputs[1:]:
        assert torch.equal(output.batch["responses"], outputs[0].batch["responses"])
    first.skip.close()
    again = skipping(kind(config(skip_rollout=True, skip_dump_dir=str(tmp_path))), forbidden=True)
    assert_same(again.generate(prompts_for(1)), outputs[0])
    assert (tmp_path / "exp_proj_TrainGBS2__InferGBS3__N2" / "tape.json").exists()
    assert sum("old names" in message for message in caplog.messages) == 1
    again.skip.close()


@pytest.mark.parametrize(
    "kind", [dict, OmegaConf.create, as_dataclass], ids=["dict", "OmegaConf", "dataclass"]
)
def test_v2_keys_have_a_folder_per_run(tmp_path, kind):
    run = skipping(kind(v2(tmp_path, action="cache")))
    step_of(run, 1)
    run.skip.close()
    assert (tape_of(tmp_path) / "train/rollout/step_000001.parquet").exists()


@pytest.mark.parametrize("rollout", [{}, {"skip": {"enable": False}}, {"skip_rollout": False}])
def test_nothing_happens_where_it_is_not_enabled(rollout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = skipping(config(**rollout))
    run.generate(prompts_for(1))
    assert len(run.workers.returned) == 1
    assert os.listdir(tmp_path) == []


def test_cache_also_caches_past_max_dump_step(tmp_path):
    run = skipping(v2(tmp_path, action="cache", max_dump_step=2))
    outputs = [step_of(run, step)[1] for step in range(1, 6)]
    run.skip.close()
    again = skipping(v2(tmp_path, action="cache", max_dump_step=2), forbidden=True)
    assert_same(step_of(again, 5)[1], outputs[4])
    again.skip.close()


@pytest.mark.parametrize(
    ("action", "played"), [("repeat", [1, 2, 1, 2]), (SkipAction.REPEAT_LAST, [2, 2, 2, 2])]
)
def test_past_max_dump_step(tmp_path, action, played, caplog):
    run = skipping(v2(tmp_path, action=action, max_dump_step=2))
    outputs = [step_of(run, step)[1] for step in range(1, 7)]
    assert len(run.workers.returned) == 2
    for output, source in zip(outputs[2:], played, strict=True):
        assert torch.equal(output.batch["responses"], outputs[source - 1].batch["responses"])
    assert sum("plays the recording of step" in message for message in caplog.messages) == 4
    run.skip.close()


def test_repeat_last_on_an_empty_tape_generates_and_records(tmp_path):
    run = skipping(v2(tmp_path, action="repeat_last", max_dump_step=2))
    _, output = step_of(run, 9)
    _, again = step_of(run, 10)
    assert len(run.workers.returned) == 1
    assert torch.equal(again.batch["responses"], output.batch["responses"])
    run.skip.close()


@pytest.mark.parametrize("steps", [[1, 3], ["1", "3"], "1,3", [[1, 1], [3, 3]]])
def test_lists_and_ranges_of_steps(tmp_path, steps):
    run = skipping(OmegaConf.create(v2(tmp_path, action="cache", steps=steps)))
    for step in (1, 2, 3, 4):
        step_of(run, step)
    run.skip.close()
    assert sorted(read_dumped_data(tape_of(tmp_path))) == [1, 3]


def test_several_generations_of_one_step(tmp_path):
    """DAPO fills a batch with further generations; each is recorded, and each is replayed in its place."""
    run = skipping(v2(tmp_path, action="cache"))
    outputs = [step_of(run, step, gen_steps=g)[1] for g, step in enumerate((1, 1, 1, 2, 2), 1)]
    run.skip.close()
    again = skipping(v2(tmp_path, action="cache"), forbidden=True)
    for output, (g, step) in zip(outputs, enumerate((1, 1, 1, 2, 2), 1), strict=True):
        assert_same(step_of(again, step, gen_steps=g)[1], output)
    again.skip.close()


def test_resume_in_the_middle(tmp_path):
    """A resumed DAPO run counts gen_steps from 1 again; the step decides what is played."""
    run = skipping(v2(tmp_path, action="cache"))
    outputs = {(step, call): step_of(run, step)[1] for step in (1, 2, 3) for call in (0, 1)}
    run.skip.close()
    resumed = skipping(v2(tmp_path, action="cache"), forbidden=True)
    for gen_steps, (step, call) in enumerate([(2, 0), (2, 1), (3, 0), (3, 1)], 1):
        assert_same(step_of(resumed, step, gen_steps=gen_steps)[1], outputs[step, call])
    resumed.skip.close()


@pytest.mark.parametrize("action", ["cache", "repeat"])
def test_the_input_batch_is_restored_with_the_output(tmp_path, action, caplog):
    """Answers never mismatch, also where the data comes in another order or another step is played."""
    run = skipping(v2(tmp_path, action=action, max_dump_step=1))
    recorded, _ = step_of(run, 1)
    run.skip.close()
    step = 1 if action == "cache" else 2
    again = skipping(v2(tmp_path, action=action, max_dump_step=1), forbidden=True)
    other = prompts_for(50, n=1)
    live = again.skip.record(other, step) or again.generate(prompts_for(50))
    assert len(live) == 4
    for name in ("uid", "reward_model"):
        assert other.non_tensor_batch[name].tolist() == recorded.non_tensor_batch[name].tolist()
    if action == "cache":
        assert any("inputs differs" in message or "inputs" in message for message in caplog.messages)
    again.skip.close()
