"""RolloutSkip where something does not fit, or goes wrong: other prompts, other runs, old dumps."""

import logging
import os
import pickle

import pytest
from omegaconf import OmegaConf

import rolltape
from rolltape.integrations.verl import read_dumped_data
from tests.verl.batches import assert_same, prompts_for
from tests.verl.skips import config, skipping, step_of, tape_of, v2


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


def test_prompts_cannot_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_BY", "prompt")
    with pytest.raises(rolltape.ConfigError, match="RolloutSkip is asked by its steps"):
        step_of(skipping(v2(tmp_path, action="cache")), 1)
