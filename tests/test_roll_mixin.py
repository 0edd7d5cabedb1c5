"""A scheduler of one's own: the mixin by ROLL's names, or the decorator; `mode` or `is_val`; sync or not."""

import asyncio
import logging
import random
from types import SimpleNamespace

import pytest

from rolltape.errors import ConfigError
from rolltape.integrations.roll import RolloutMockMixin, with_rollout_mock


@pytest.fixture(autouse=True)
def _level(caplog):
    caplog.set_level(logging.INFO)


def config(folder, mode="dump", **more):
    return SimpleNamespace(rollout_mock={"enable": True, "mode": mode, "dump_dir": str(folder)}, **more)


class Base(RolloutMockMixin):
    def __init__(self, config, mode):
        self.config, self.mode, self.live = config, mode, 0
        self._init_rollout_mock()

    def draw(self, batch_size):
        self.live += 1
        return {"score": [random.SystemRandom().random() for _ in range(batch_size)]}


class ByHand(Base):
    """Calls the methods of the mixin where ROLL's schedulers do."""

    async def get_batch(self, global_step, batch_size):
        if self._should_load_mock(global_step):
            return await self._load_mock_batch(global_step)
        batch = self.draw(batch_size)
        await self._maybe_dump_batch(batch, global_step)
        return batch


class Decorated(Base):
    @with_rollout_mock
    async def get_batch(self, global_step, batch_size):
        await asyncio.sleep(0)
        return self.draw(batch_size)


class Sync(Base):
    @with_rollout_mock
    def get_batch(self, global_step, batch_size):
        return self.draw(batch_size)


class NoMixin:
    """Only the decorator, and the names of DynamicSamplingScheduler."""

    def __init__(self, config, mode):
        self.pipeline_config, self.is_val, self.live = config, mode == "val", 0

    draw = Base.draw

    @with_rollout_mock
    def get_batch(self, data, batch_size):
        return self.draw(batch_size)


def ask(scheduler, step, batch_size=4):
    first = SimpleNamespace(meta_info={"global_step": step}) if isinstance(scheduler, NoMixin) else step
    batch = scheduler.get_batch(first, batch_size)
    return asyncio.run(batch) if asyncio.iscoroutine(batch) else batch


ALL = pytest.mark.parametrize("kind", [ByHand, Decorated, Sync, NoMixin])


@ALL
@pytest.mark.parametrize("mode", ["train", "val"])
def test_dump_then_mock(tmp_path, kind, mode):
    dumping = kind(config(tmp_path), mode)
    dumped = [ask(dumping, step) for step in range(3)]
    assert sorted(path.name for path in (tmp_path / mode / "rollout").glob("*[0-9].parquet")) == [
        f"step_{step:06d}.parquet" for step in range(3)
    ]
    mocking = kind(config(tmp_path, "mock"), mode)
    assert [ask(mocking, step) for step in (2, 0, 1)] == [dumped[2], dumped[0], dumped[1]]
    assert mocking.live == 0


@ALL
def test_the_dump_is_on_disk_when_the_batch_is_returned(tmp_path, kind):
    scheduler = kind(config(tmp_path), "train")
    ask(scheduler, 7)
    assert (tmp_path / "train/rollout/step_000007.parquet").is_file()


@ALL
def test_an_error_of_the_scheduler_is_its_own_and_records_nothing(tmp_path, kind):
    scheduler = kind(config(tmp_path), "train")
    scheduler.draw = lambda batch_size: (_ for _ in ()).throw(FileNotFoundError("the dataset"))
    with pytest.raises(FileNotFoundError, match="the dataset"):
        ask(scheduler, 0)
    assert not list(tmp_path.rglob("step_*"))


@ALL
def test_without_rollout_mock_nothing_happens(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    for section in (None, {"enable": False, "mode": "mock", "dump_dir": "x"}):
        scheduler = kind(SimpleNamespace(rollout_mock=section), "train")
        assert len(ask(scheduler, 0)["score"]) == 4
    assert list(tmp_path.iterdir()) == []


def test_many_steps_at_once(tmp_path):
    """An asynchronous pipeline asks for steps in no fixed order."""

    async def all_steps(scheduler):
        return await asyncio.gather(*(scheduler.get_batch(step, 2) for step in range(8)))

    dumped = asyncio.run(all_steps(Decorated(config(tmp_path), "train")))
    mocking = Decorated(config(tmp_path, "mock"), "train")
    assert asyncio.run(all_steps(mocking)) == dumped
    assert mocking.live == 0


def test_rolls_methods_tell_the_mode(tmp_path):
    dumping = ByHand(config(tmp_path), "train")
    assert dumping._should_dump_batch()
    assert not dumping._should_load_mock(0)
    asyncio.run(dumping._maybe_dump_batch({"a": [1]}, 0))
    mocking = ByHand(config(tmp_path, "mock"), "train")
    assert not mocking._should_dump_batch()
    assert mocking._should_load_mock(0)
    assert mocking._should_load_mock(99)  # it is missing, and loading it says so
    assert mocking.mock_config["mode"] == "mock"
    asyncio.run(mocking._maybe_dump_batch({"a": [2]}, 0))
    assert asyncio.run(mocking._load_mock_batch(0)) == {"a": [1]}


def test_a_scheduler_needs_a_mode(tmp_path):
    class Neither(RolloutMockMixin):
        config = config(tmp_path)

    with pytest.raises(AttributeError, match="an attribute `mode` or `is_val`"):
        Neither()._init_rollout_mock()


def test_a_mode_that_is_none_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"rollout_mock\.mode must .* not 'moc'"):  # ROLL would do nothing
        ByHand(config(tmp_path, "moc"), "train")


def test_a_step_nobody_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="called without a step"):
        NoMixin(config(tmp_path), "train").get_batch(SimpleNamespace(meta_info={}), 1)


def test_a_stage_of_ones_own_keeps_schedulers_apart(tmp_path):
    class Named(Sync):
        def _get_mock_stage(self):
            return "rollout.second"

    first, second = ask(Sync(config(tmp_path), "train"), 0), ask(Named(config(tmp_path), "train"), 0)
    assert ask(Sync(config(tmp_path, "mock"), "train"), 0) == first
    assert ask(Named(config(tmp_path, "mock"), "train"), 0) == second


def test_a_relative_dump_dir_is_shown_absolute_and_resolved_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    scheduler = Sync(config("dumps"), "train")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ask(scheduler, 0)
    monkeypatch.setenv("ROLLTAPE_CWD", str(tmp_path))  # as a Ray worker is told by its driver
    assert ask(Sync(config("./dumps", "mock"), "train"), 0)
    assert f"mode=dump, dir={tmp_path}/dumps," in caplog.text
    assert f"mode=mock, dir={tmp_path}/dumps," in caplog.text
    assert (tmp_path / "dumps/train/rollout/step_000000.parquet").is_file()


def test_prompts_cannot_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_BY", "prompt")
    with pytest.raises(ConfigError, match="a ROLL pipeline is asked by its steps"):
        ask(Sync(config(tmp_path), "train"), 0)
