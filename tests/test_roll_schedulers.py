"""ROLL's own schedulers on tapes, unchanged but for `install()`: dump, mock, domains, every level."""

import asyncio
import importlib
import logging
import re
import sys

import numpy as np
import pytest

import rolltape
from rolltape.errors import MismatchError, StepExistsError
from rolltape.integrations import roll
from rolltape.integrations.roll.dataproto import to_parts
from tests import roll_standin as standin


@pytest.fixture(autouse=True)
def _roll(caplog, monkeypatch):
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
    caplog.set_level(logging.INFO)
    with standin.importable():
        roll.install()
        yield


def run(scheduler, step, batch_size=8, **meta):
    if hasattr(scheduler, "mode"):
        return asyncio.run(scheduler.get_batch(standin.request(step, **meta), batch_size))
    return asyncio.run(scheduler.get_batch(standin.request(step, **meta), step, batch_size))


def assert_same(one, other):
    one, other = to_parts(one), to_parts(other)
    assert one["meta_info"] == other["meta_info"]
    for part in ("batch", "non_tensor_batch"):
        assert list(one[part]) == list(other[part])
        for name, column in one[part].items():
            assert column.dtype == other[part][name].dtype
            assert np.array_equal(column, other[part][name])


@pytest.mark.parametrize("make", [standin.rollout_scheduler, standin.sampling_scheduler])
def test_what_was_dumped_is_mocked_exactly_and_nothing_runs_live(tmp_path, make):
    dumping = make(standin.config(tmp_path))
    dumped = [run(dumping, step) for step in range(5)]
    assert dumping.live == 5
    mocking = make(standin.config(tmp_path, "mock"))
    for step in (3, 0, 1, 2, 4):
        assert_same(run(mocking, step), dumped[step])
    assert mocking.live == 0
    assert sorted(path.name for path in (tmp_path / "train" / "rollout").glob("step_?????[0-9].parquet")) == [
        f"step_{step:06d}.parquet" for step in range(5)
    ]


def test_the_trainer_gets_the_very_object_and_the_tape_the_whole_batch(tmp_path, monkeypatch):
    scheduler = standin.rollout_scheduler(standin.config(tmp_path))
    remote = importlib.import_module("roll.distributed.scheduler.protocol").RemoteBatch
    with monkeypatch.context() as patched:  # what was whole a moment ago is not fetched back for the tape
        patched.setattr(remote, "keys", lambda self: pytest.fail("the batch was fetched"))
        batch = run(scheduler, 0)
    assert batch._remote_batch is not None  # ROLL returns a reference
    recorded = rolltape.Tape(tmp_path, mode="replay").recording(0).value()
    assert recorded._remote_batch is None
    assert type(recorded) is type(batch)
    assert_same(recorded, batch)


def test_log_lines_say_what_rolls_say(tmp_path, caplog):
    run(standin.rollout_scheduler(standin.config(tmp_path)), 0, 128)
    run(standin.rollout_scheduler(standin.config(tmp_path, "mock")), 0, 128)
    text = caplog.text
    path = re.escape(f"{tmp_path}/train/rollout/step_000000.parquet")
    assert f"[Rollout Mock] Rollout Mock enabled: mode=dump, dir={tmp_path}, scheduler_mode=train" in text
    size = (tmp_path / "train/rollout/step_000000.parquet").stat().st_size
    dumped = re.search(rf"\[Rollout Mock\] Dumped step 0: {path} \(samples=128, size=([0-9.]+)MB\)", text)
    assert dumped
    assert float(dumped[1]) == round(size / 1e6, 2)
    assert "[Rollout Mock] Rollout Mock enabled: mode=mock" in text
    assert re.search(rf"\[Rollout Mock\] Loaded step 0: {path} \(samples=128\)", text)


def test_train_and_val_lie_side_by_side(tmp_path):
    for make in (standin.rollout_scheduler, standin.sampling_scheduler):
        folder = tmp_path / make.__name__
        more = {"mode": "val"} if make is standin.rollout_scheduler else {"is_val": True}
        train = run(make(standin.config(folder)), 0)
        val = run(make(standin.config(folder), **more), 0)
        assert (folder / "train/rollout/step_000000.parquet").is_file()
        assert (folder / "val/rollout/step_000000.parquet").is_file()
        assert_same(run(make(standin.config(folder, "mock")), 0), train)
        assert_same(run(make(standin.config(folder, "mock"), **more), 0), val)


def test_domains_of_one_run_do_not_overwrite_each_other(tmp_path):
    """Defect 9: with ROLL every domain writes train/step_000000.pkl."""
    several = {"rewards": {"math": 1, "code/python": 2}}
    schedulers = {
        name: standin.sampling_scheduler(standin.config(tmp_path, **several), [name])
        for name in several["rewards"]
    }
    dumped = {name: run(scheduler, 0) for name, scheduler in schedulers.items()}
    val = standin.sampling_scheduler(
        standin.config(tmp_path, **several), list(several["rewards"]), is_val=True
    )
    run(val, 0)
    stages = [recording.key.path for recording in rolltape.Tape(tmp_path, mode="replay").recordings()]
    assert stages == [
        "train/rollout.code_python/step_000000.parquet",
        "train/rollout.math/step_000000.parquet",
        "val/rollout/step_000000.parquet",
    ]
    for name, batch in dumped.items():
        mocking = standin.sampling_scheduler(standin.config(tmp_path, "mock", **several), [name])
        assert_same(run(mocking, 0), batch)


def test_schedulers_that_cannot_be_told_apart_are_refused_instead(tmp_path):
    first = standin.rollout_scheduler(standin.config(tmp_path))
    second = standin.rollout_scheduler(standin.config(tmp_path))
    assert second._should_dump_batch()  # both are at work before either has dumped
    kept = run(first, 0)
    with pytest.raises(StepExistsError, match="another scheduler of this run has dumped step 0"):
        run(second, 0)
    assert_same(run(standin.rollout_scheduler(standin.config(tmp_path, "mock")), 0), kept)


def test_dumping_again_replaces_as_in_roll(tmp_path):
    run(standin.rollout_scheduler(standin.config(tmp_path)), 0)
    again = run(standin.rollout_scheduler(standin.config(tmp_path)), 0)
    assert_same(run(standin.rollout_scheduler(standin.config(tmp_path, "mock")), 0), again)


def test_generate_opt_level_0_is_dumped_too(tmp_path):
    """Defect 10: ROLL dumps nothing at this level, and mocks it all the same."""
    dumping = standin.sampling_scheduler(standin.config(tmp_path, generate_opt_level=0))
    dumped = [run(dumping, step) for step in range(2)]
    mocking = standin.sampling_scheduler(standin.config(tmp_path, "mock", generate_opt_level=0))
    for step in range(2):
        assert_same(run(mocking, step), dumped[step])
    assert mocking.live == 0
    assert dumped[0].meta_info["level"] == 0


def test_a_scheduler_that_had_nothing_is_mocked_as_such(tmp_path):
    assert run(standin.rollout_scheduler(standin.config(tmp_path), "val"), 0, 0) is None
    mocking = standin.rollout_scheduler(standin.config(tmp_path, "mock"), "val")
    assert run(mocking, 0, 0) is None
    assert mocking.live == 0


def test_a_second_call_in_a_step_keeps_the_first(tmp_path):
    dumping = standin.rollout_scheduler(standin.config(tmp_path))
    dumped = [run(dumping, 0), run(dumping, 0)]
    mocking = standin.rollout_scheduler(standin.config(tmp_path, "mock"))
    assert_same(run(mocking, 0), dumped[0])
    assert_same(run(mocking, 0), dumped[1])


def test_a_step_that_was_dumped_once_can_be_loaded_again(tmp_path, caplog):
    dumped = run(standin.rollout_scheduler(standin.config(tmp_path)), 0)
    mocking = standin.rollout_scheduler(standin.config(tmp_path, "mock"))
    for _ in range(3):
        assert_same(run(mocking, 0), dumped)
    assert caplog.text.count("dumped only once and is loaded again") == 2
    assert mocking.live == 0


def test_nothing_changes_for_a_run_without_rollout_mock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for section in ({}, {"rollout_mock": None}):
        scheduler = standin.rollout_scheduler(standin.config("dumps", enable=False, **section))
        assert run(scheduler, 0)._remote_batch is not None
        assert not scheduler._should_load_mock(0)
        assert not scheduler._should_dump_batch()
    assert list(tmp_path.iterdir()) == []


def test_the_environment_alone_is_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
    monkeypatch.setenv("ROLLTAPE_MODE", "record")
    dumped = run(standin.rollout_scheduler(standin.config("unused", enable=False)), 0)
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    mocking = standin.rollout_scheduler(standin.config("unused", enable=False))
    assert_same(run(mocking, 0), dumped)
    assert mocking.live == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pretrain": "Qwen/Qwen2.5-7B"}, "model"),
        ({"seed": 43}, "seed"),
        ({"actor_infer": {"generating_args": {"temperature": 0.5}}}, "sampling"),
        ({"actor_train": {"data_args": {"file_name": ["other.jsonl"]}}}, "data"),
    ],
)
def test_a_mock_of_another_run_is_refused_by_name(tmp_path, change, named):
    """Defect 12: ROLL compares nothing."""
    same = {
        "actor_infer": {"generating_args": {"temperature": 1.0}},
        "actor_train": {"data_args": {"file_name": ["math.jsonl"]}},
    }
    run(standin.rollout_scheduler(standin.config(tmp_path, **same)), 0)
    run(standin.rollout_scheduler(standin.config(tmp_path, "mock", **same)), 0)
    with pytest.raises(MismatchError, match=f"{named}: recorded"):
        standin.rollout_scheduler(standin.config(tmp_path, "mock", **{**same, **change}))
    with pytest.raises(MismatchError, match="dump to another"):
        standin.rollout_scheduler(standin.config(tmp_path, "dump", **{**same, **change}))


def test_another_batch_size_or_generation_config_is_refused_by_name(tmp_path):
    run(standin.sampling_scheduler(standin.config(tmp_path)), 0, 8, generation_config={"temperature": 1.0})

    def mock(batch_size, temperature):
        scheduler = standin.sampling_scheduler(standin.config(tmp_path, "mock"))
        return run(scheduler, 0, batch_size, generation_config={"temperature": temperature})

    mock(8, 1.0)
    with pytest.raises(MismatchError, match="batch_size"):
        mock(4, 1.0)
    with pytest.raises(MismatchError, match="temperature"):
        mock(8, 0.5)


def test_other_system_envs_are_warned_about_by_name(tmp_path, caplog):
    run(standin.rollout_scheduler(standin.config(tmp_path, system_envs={"NCCL_ALGO": "Ring", "X": "1"})), 0)
    caplog.clear()
    other = standin.config(tmp_path, "mock", system_envs={"NCCL_ALGO": "Tree", "X": "2"})
    run(standin.rollout_scheduler(other), 0)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "NCCL_ALGO" in warned[0]
    assert "Ring" in warned[0]
    assert "Tree" in warned[0]


def test_dump_dir_is_resolved_where_the_config_is_made(tmp_path, monkeypatch):
    """Defect 7: every actor has a working directory of its own."""
    driver, actor = tmp_path / "driver", tmp_path / "actor"
    driver.mkdir()
    actor.mkdir()
    monkeypatch.chdir(driver)
    config = standin.config("./dumps")
    monkeypatch.chdir(actor)
    run(standin.rollout_scheduler(config), 0)
    assert (driver / "dumps/train/rollout/step_000000.parquet").is_file()
    assert list(actor.iterdir()) == []


def test_installing_after_roll_was_imported_works_as_well(tmp_path):
    roll.uninstall()
    scheduler = standin.rollout_scheduler(standin.config(tmp_path / "theirs"))
    run(scheduler, 0)
    assert (tmp_path / "theirs/train/step_000000.pkl").is_file()  # ROLL's own, untouched by us
    roll.install()
    run(standin.rollout_scheduler(standin.config(tmp_path / "ours")), 0)
    assert (tmp_path / "ours/train/rollout/step_000000.parquet").is_file()
    assert not list((tmp_path / "ours").rglob("*.pkl"))


def test_installing_twice_wraps_once_and_uninstalling_restores():
    roll.uninstall()
    others = len(import_hooks())  # of other frameworks, where tests of theirs ran before
    roll.install()
    roll.install()
    module = importlib.import_module("roll.distributed.scheduler.rollout_scheduler")
    assert len(import_hooks()) == others + 1
    inner = module.RolloutScheduler.get_batch.__wrapped__
    assert not hasattr(inner, "__wrapped__")
    roll.uninstall()
    assert module.RolloutScheduler.get_batch is inner
    assert len(import_hooks()) == others


def import_hooks():
    return [finder for finder in sys.meta_path if type(finder).__name__ == "ImportHook"]
