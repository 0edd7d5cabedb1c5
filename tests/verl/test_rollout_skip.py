"""RolloutSkip as its users know it, V1 and V2: same configuration, same calls; each known defect absent."""

import asyncio
import logging
import os
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.ray_utils import auto_await

import rolltape
from rolltape.integrations.verl import RolloutSkip, SkipAction, read_dumped_data, rollout_skip
from tests.verl.batches import assert_same, output_for, prompts_for

RUN = {
    "trainer": {"experiment_name": "exp", "project_name": "proj"},
    "data": {
        "train_batch_size": 2, "gen_batch_size": 3, "max_prompt_length": 8, "max_response_length": 4,
        "train_files": "a.parquet",
    },
}  # fmt: skip


def config(**rollout):
    return {
        **RUN,
        "actor_rollout_ref": {"model": {"path": "tiny"}, "rollout": {"n": 2, "temperature": 1.0, **rollout}},
    }


def v2(tmp_path, **skip):
    return config(skip={"enable": True, "dump_dir": str(tmp_path), **skip})


class Workers:
    """A worker group that counts; with `forbidden` it must not be called at all."""

    def __init__(self, forbidden=False):
        self.forbidden = forbidden
        self.returned = []

    def generate_sequences(self, batch, **kwargs):
        assert not self.forbidden, "generation was called on replay"
        batch.non_tensor_batch["priority"] = np.arange(len(batch))  # verl's own does this to its input
        self.returned.append(output_for(batch, seed=len(self.returned) + 100))
        return self.returned[-1]


def skipping(config, forbidden=False):
    workers = Workers(forbidden)
    skip = RolloutSkip(config, workers)
    skip.wrap_generate_sequences()
    return SimpleNamespace(
        skip=skip, workers=workers, generate=lambda b, **kw: workers.generate_sequences(b, **kw)
    )


def step_of(run, step, new_batch=None, gen_steps=None):
    """One step of a V2 trainer; returns its batch and the output."""
    new_batch = prompts_for(step, n=1) if new_batch is None else new_batch
    run.skip.record(new_batch, step, gen_steps)
    return new_batch, run.generate(prompts_for(step))


def tape_of(tmp_path):
    return tmp_path / "exp_proj" / "GBS3_N2_in8_out4"


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


def test_other_prompts_are_an_error_where_the_trainer_does_not_hand_over_its_batch(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    run.generate(prompts_for(1))
    run.skip.close()
    again = skipping(v2(tmp_path, action="cache"), forbidden=True)
    with pytest.raises(rolltape.MismatchError, match="question"):
        again.generate(prompts_for(2))


@pytest.mark.parametrize(("part", "change"), [
    ("model", {"actor_rollout_ref": {"model": {"path": "other"}}}),
    ("sampling", {"actor_rollout_ref": {"rollout": {"temperature": 0.7}}}),
    ("data", {"data": {"train_files": "b.parquet"}}),
    ("seed", {"data": {"seed": 9}}),
])  # fmt: skip
def test_another_model_temperature_dataset_or_seed_is_an_error(tmp_path, part, change):
    base = OmegaConf.create(v2(tmp_path, action="cache"))
    run = skipping(base)
    step_of(run, 1)
    run.skip.close()
    again = skipping(OmegaConf.merge(base, change), forbidden=True)
    with pytest.raises(rolltape.MismatchError, match=part):
        step_of(again, 1)


def test_validation_is_left_alone(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    run.generate(prompts_for(0, validate=True))
    step_of(run, 1)
    run.generate(prompts_for(0, validate=True))
    assert len(run.workers.returned) == 3
    run.skip.close()
    assert not (tape_of(tmp_path) / "val").exists()


def test_validation_is_recorded_under_val_if_asked(tmp_path):
    run = skipping(v2(tmp_path, action="cache", val=True))
    before = run.generate(prompts_for(0, validate=True))
    step_of(run, 1)
    after = [run.generate(prompts_for(at, validate=True)) for at in (0, 1)]
    run.skip.close()
    again = skipping(v2(tmp_path, action="cache", val=True), forbidden=True)
    assert_same(again.generate(prompts_for(0, validate=True)), before)
    step_of(again, 1)
    for at, output in enumerate(after):
        assert_same(again.generate(prompts_for(at, validate=True)), output)
    again.skip.close()


def test_a_relative_directory_is_resolved_once_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run = skipping(config(skip={"enable": True, "dump_dir": "dumps", "action": "cache"}))
    monkeypatch.chdir("/")
    step_of(run, 1)
    run.skip.close()
    assert (tape_of(tmp_path / "dumps") / "tape.json").exists()
    assert any("relative" in message and str(tmp_path) in message for message in caplog.messages)


def test_a_failure_to_record_stops_the_run(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    step_of(run, 1)
    folder = tape_of(tmp_path) / "train/rollout"
    folder.rename(folder.with_name("moved"))
    folder.write_text("not a folder")
    with pytest.raises(rolltape.RolltapeError):
        step_of(run, 2)


def test_read_dumped_data_of_a_step_and_of_a_tape(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    new_batch, output = step_of(run, 1)
    run.skip.close()
    tape = tape_of(tmp_path)
    for found in (read_dumped_data(tape / "train/rollout/step_000001.parquet"), read_dumped_data(tape)[1]):
        assert_same(found["gen_batch"], output)
        assert (
            found["new_batch"].non_tensor_batch["uid"].tolist() == new_batch.non_tensor_batch["uid"].tolist()
        )


def test_a_pickled_dump_is_named_and_not_opened(tmp_path, caplog):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    step = tape_of(tmp_path) / "genstep_000001"
    step.mkdir(parents=True)
    (step / "gen_batch.dp").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(rolltape.NotATapeError, match="rolltape import"):
        read_dumped_data(step)
    run = skipping(v2(tmp_path, action="cache"))
    step_of(run, 1)
    run.skip.close()
    assert any(f"rolltape import {tape_of(tmp_path)} --to" in message for message in caplog.messages)
    assert not (tmp_path / "executed").exists()


def test_uids_are_on_the_tape_so_that_samples_group_by_prompt(tmp_path):
    run = skipping(v2(tmp_path, action="cache"))
    prompts = prompts_for(1)
    run.generate(prompts)
    run.skip.close()
    tape = rolltape.Tape(tape_of(tmp_path), mode="replay")
    assert list(tape.recording(1).batch(["uid"])["uid"]) == prompts.non_tensor_batch["uid"].tolist()


def test_one_log_line_says_which_tape(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rolltape")
    run = skipping(v2(tmp_path, action="cache"))
    step_of(run, 1)
    run.skip.close()
    assert sum(message.startswith("rolltape: verl uses tape") for message in caplog.messages) == 1
