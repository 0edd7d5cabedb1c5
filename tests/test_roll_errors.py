"""Every troubleshooting case of ROLL's guide: the message says which possible reason really applies."""

import errno
import logging
import pickle
import re
import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest

import rolltape
from rolltape.errors import DiskFullError, StepMissingError, TapeNotFoundError
from rolltape.integrations.roll import RolloutMockMixin, with_rollout_mock
from rolltape.integrations.roll.estimate import Estimate, expected, shortage
from rolltape.storage import LocalStorage

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _level(caplog):
    caplog.set_level(logging.INFO)


class Scheduler(RolloutMockMixin):
    def __init__(self, folder, rollout="dump", mode="train", stage="rollout", **more):
        section = {"enable": True, "mode": rollout, "dump_dir": str(folder)}
        self.config = SimpleNamespace(rollout_mock=section, **more)
        self.mode, self.stage = mode, stage
        self._init_rollout_mock()

    def _get_mock_stage(self):
        return self.stage

    @with_rollout_mock
    def get_batch(self, global_step):
        return {"score": [float(global_step)] * 3}


def dump(folder, steps, **more):
    scheduler = Scheduler(folder, **more)
    for step in steps:
        scheduler.get_batch(step)


def failure(folder, step, **more):
    with pytest.raises(FileNotFoundError) as caught:
        Scheduler(folder, "mock", **more).get_batch(step)
    assert isinstance(caught.value, StepMissingError)
    text = str(caught.value)
    assert f"step {step} was not run in dump mode" in text
    assert f"dump_dir is not the directory that was dumped to: {folder}" in text
    assert f"mode or domain mismatch (current: {more.get('mode', 'train')}" in text
    return text


def test_a_step_after_the_last(tmp_path):
    dump(tmp_path, range(4))
    text = failure(tmp_path, 5)
    assert f"Mock file not found: {tmp_path}/train/rollout/step_000005.parquet" in text
    assert "reason 1 applies: train/rollout has steps 0-3" in text
    assert "lower max_steps to 4" in text


def test_a_step_in_between(tmp_path):
    dump(tmp_path, [0, 1, 4])
    text = failure(tmp_path, 2)
    assert "reason 1 applies: train/rollout has steps 0-1, 4" in text
    assert "dump step 2 first" in text


def test_the_other_split_has_it(tmp_path):
    dump(tmp_path, range(3))
    text = failure(tmp_path, 2, mode="val")
    assert "reason 3 applies: train/rollout has step 2, but val/rollout has no steps\n" in text


def test_another_domain_has_it(tmp_path):
    dump(tmp_path, range(3), stage="rollout.math")
    text = failure(tmp_path, 1, stage="rollout.code")
    assert "reason 3 applies: train/rollout.math has step 1, but train/rollout.code has no steps\n" in text


def test_an_empty_tape(tmp_path):
    Scheduler(tmp_path)
    assert "reason 2 applies: the tape is empty" in failure(tmp_path, 0)


@pytest.mark.parametrize("exists", [False, True])
def test_no_tape_is_said_at_once_and_not_at_the_first_step(tmp_path, monkeypatch, exists):
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / "dumps").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        Scheduler("dumps", "mock")
    assert isinstance(caught.value, TapeNotFoundError)
    text = str(caught.value)
    state = "is empty" if exists else "does not exist"
    assert f"reason 2 applies: the directory {state} (working directory: {tmp_path})" in text
    assert f"dump_dir is not the directory that was dumped to: {tmp_path}/dumps" in text
    assert (tmp_path / "dumps").is_dir() is exists  # ROLL makes the directory it then misses files in


def test_a_tape_that_lies_elsewhere_is_named(tmp_path):
    runs = tmp_path / "runs"  # what lies beside tmp_path is other tests' business
    dump(runs / "baseline_v1", [0])
    with pytest.raises(TapeNotFoundError, match="tapes nearby: ") as caught:
        Scheduler(runs / "baseline_v2", "mock")
    assert str(runs / "baseline_v1") in str(caught.value)
    with pytest.raises(TapeNotFoundError, match=r"tapes nearby: .*baseline_v1"):
        Scheduler(runs, "mock")


def test_more_steps_than_were_dumped_are_announced_before_the_first(tmp_path, caplog):
    dump(tmp_path, range(20))
    Scheduler(tmp_path, "mock", max_steps=20).get_batch(0)
    assert "max_steps" not in caplog.text
    Scheduler(tmp_path, "mock", max_steps=50).get_batch(0)
    assert "max_steps is 50, but the recorded steps are 0-19" in caplog.text


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def leave_pickles(folder, count=2):
    (folder / "train").mkdir(parents=True)
    for step in range(count):
        (folder / f"train/step_{step:06d}.pkl").write_bytes(pickle.dumps(Bomb()))


def test_pickled_dumps_are_named_with_the_command_and_never_opened(tmp_path, caplog):
    folder = tmp_path / "my dumps"
    leave_pickles(folder)
    command = f"rolltape import '{folder}' --to '{folder}'"
    with pytest.raises(TapeNotFoundError) as caught:
        Scheduler(folder, "mock")
    assert "the directory has 2 pickled dumps of ROLL, but no tape" in str(caught.value)
    assert command in str(caught.value)
    dump(folder, [0])  # a new dump goes its own way, and says so
    assert f"2 pickled dumps are not used; to use them, run: {command}" in caplog.text
    assert len(list(folder.rglob("*.pkl"))) == 2
    caplog.clear()
    dump(folder, [1])
    assert "1 pickled dumps are not used" in caplog.text
    caplog.clear()
    Scheduler(folder, "mock").get_batch(1)
    assert "pickled dumps" not in caplog.text  # both are on the tape


def test_a_tape_without_a_fingerprint_as_from_an_import_is_played_and_says_so(tmp_path, caplog):
    with rolltape.Tape(tmp_path, mode="record") as tape:
        stage = tape.stage("rollout")(lambda: {"score": [0.5]})
        with tape.step(0):
            stage()
    assert Scheduler(tmp_path, "mock", seed=3, pretrain="m").get_batch(0) == {"score": [0.5]}
    assert "not compared: model, seed" in caplog.text


def test_the_estimate_is_made_from_the_config():
    args = {"generating_args": {"num_return_sequences": 8}}
    config = SimpleNamespace(
        max_steps=50,
        eval_steps=20,
        rollout_batch_size=16,
        val_batch_size=10,
        sequence_length=512,
        actor_infer=args,
    )
    assert expected(config, "train") == Estimate(steps=50, step_bytes=16 * 8 * 512 * 8)
    assert expected(config, "train", 0.25).step_bytes == 4 * 8 * 512 * 8
    assert expected(config, "val") == Estimate(steps=3, step_bytes=10 * 512 * 8)
    assert expected(SimpleNamespace(), "train") == Estimate(steps=None, step_bytes=None)
    assert expected(SimpleNamespace(max_steps=-1), "train").steps is None


def test_a_shortage_is_computed_from_what_is_left():
    estimate = Estimate(steps=100, step_bytes=5_000_000)
    assert shortage(estimate, 0, 500_000_000) is None
    message = shortage(estimate, 0, 400_000_000)
    assert "100 more steps of 5.00MB (estimated from the config" in message
    assert "need 500.00MB, but 400.00MB are free, enough for 80 steps" in message
    assert shortage(estimate, 20, 400_000_000) is None
    assert "(measured on this run)" in shortage(estimate.after(9_000_000), 1, 400_000_000)
    assert shortage(Estimate(steps=None, step_bytes=5), 0, 0) is None
    assert shortage(Estimate(steps=5, step_bytes=None), 0, 0) is None


def test_a_disk_that_will_not_do_is_warned_about_before_the_first_step(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**6))
    scheduler = Scheduler(tmp_path, max_steps=50, rollout_batch_size=128, sequence_length=512)
    scheduler.get_batch(0)
    warned = next(r for r in caplog.records if "is too small for all dumps" in r.getMessage())
    dumped = next(r for r in caplog.records if "Dumped step 0" in r.getMessage())
    assert caplog.records.index(warned) < caplog.records.index(dumped)
    assert "estimated from the config" in warned.getMessage()


def test_the_first_real_size_corrects_the_estimate(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 100_000))
    scheduler = Scheduler(tmp_path, max_steps=5000)  # nothing to guess a step's size from
    scheduler.get_batch(0)
    scheduler.get_batch(1)
    assert caplog.text.count("is too small for all dumps") == 1
    # How large depends on the random state there is to keep, so on what this process has imported.
    assert re.search(r"4999 more steps of 0\.0[01]MB \(measured on this run\)", caplog.text)


def test_a_full_disk_says_what_is_there_and_what_is_needed(tmp_path, monkeypatch):
    scheduler = Scheduler(tmp_path, max_steps=10)
    scheduler.get_batch(0)
    scheduler.get_batch(1)
    publish = LocalStorage.publish

    def full(self, name, *args, **kwargs):
        if "step_000002" in name:
            raise DiskFullError("needed 4096 bytes and 0 bytes are free", where=name)
        return publish(self, name, *args, **kwargs)

    monkeypatch.setattr(LocalStorage, "publish", full)
    with pytest.raises(OSError, match="no space left for step 2: needed 4096 bytes") as caught:
        scheduler.get_batch(2)
    assert isinstance(caught.value, DiskFullError)
    assert caught.value.errno == errno.ENOSPC
    assert "steps 0-1 are complete; the rest of the run needs about" in str(caught.value)
    assert "lower max_steps" in str(caught.value)
    assert Scheduler(tmp_path, "mock").get_batch(1) == {"score": [1.0] * 3}
