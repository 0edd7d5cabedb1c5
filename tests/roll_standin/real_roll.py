"""What `tests/torch/test_roll_real.py` runs: ROLL's real classes on tapes."""

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rolltape
from rolltape.integrations import roll

logging.getLogger("rolltape").setLevel(logging.INFO)


def config(folder, mode, **more):
    from roll.configs.base_config import RolloutMockConfig

    values = {
        "seed": 42, "pretrain": "Qwen/Qwen2.5-0.5B", "generate_opt_level": 1, "async_generation_ratio": 0,
        "is_use_additional_prompts": False, "max_steps": 3, "rollout_batch_size": 4, "sequence_length": 16,
        "system_envs": {"NCCL_ALGO": "Ring"},
    }  # fmt: skip
    mock = RolloutMockConfig(enable=True, mode=mode, dump_dir=str(folder))
    return SimpleNamespace(**{**values, "rollout_mock": mock, **more})


def drawn(samples, tag="math"):
    from roll.distributed.scheduler.protocol import DataProto

    mask = torch.ones(samples, 16, dtype=torch.long)
    mask[0, 9:] = 0
    names = {
        "domain": np.array([tag] * samples, object),
        "traj_id": np.array([os.urandom(4).hex() for _ in range(samples)], object),
    }
    return DataProto(
        batch=TensorDict(
            {
                "input_ids": torch.randint(1, 50_000, (samples, 16)) * mask,
                "attention_mask": mask,
                "infer_logprobs": torch.randn(samples, 15),
                "scores": torch.randn(samples),
            },
            batch_size=[samples],
        ),
        non_tensor_batch=names,
        meta_info={"metrics": {"score": [float(torch.rand(()))]}},
    )


def same(one, other):
    assert type(one) is type(other), (type(one), type(other))
    assert set(one._batch.keys()) == set(other._batch.keys())
    for name in one._batch.keys():  # noqa: SIM118
        a, b = one._batch[name], other._batch[name]
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8)), name
    assert set(one._non_tensor_batch) == set(other._non_tensor_batch)
    for name, column in one._non_tensor_batch.items():
        assert column.dtype == other._non_tensor_batch[name].dtype == object
        assert column.tolist() == other._non_tensor_batch[name].tolist()
    assert repr(one.meta_info) == repr(other.meta_info)


class Remote:
    """Something with `.remote()`, as Ray's methods have."""

    def __init__(self, function):
        self._function = function

    async def _call(self, *args):
        return self._function(*args)

    def remote(self, *args):
        return self._call(*args)


def rollout_scheduler(folder, mode, split="train"):
    """ROLL's RolloutScheduler, with its queue, router and environments replaced."""
    from roll.distributed.scheduler import transfer_backend
    from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler

    transfer_backend._client = transfer_backend.DummyClient()  # ROLL's own, for runs without a backend
    scheduler = RolloutScheduler.__new__(RolloutScheduler)
    scheduler.config, scheduler.mode, scheduler.rollout_task = config(folder, mode), split, None
    scheduler.live = 0

    def one_batch(batch_size, step):
        scheduler.live += 1
        return [drawn(2) for _ in range(batch_size // 2)]

    async def forever(*args):
        await asyncio.sleep(3600)

    scheduler.env_output_queue = SimpleNamespace(
        get_batch=Remote(one_batch), advance_step=Remote(lambda step: None), collect_metrics=Remote(dict)
    )
    scheduler.router_manager = SimpleNamespace(resume=Remote(lambda: None))
    scheduler.es_manager = SimpleNamespace(
        run_rollout_loop=lambda *a, **k: [forever()], update_step=lambda *a, **k: [asyncio.sleep(0)]
    )
    scheduler._init_rollout_mock()
    return scheduler


def sampling_scheduler(folder, mode, domain="math", is_val=False, **more):
    """ROLL's DynamicSamplingScheduler, in the order of its own __init__, without clusters."""
    from roll.distributed.scheduler.generate_scheduler import DynamicSamplingScheduler

    scheduler = DynamicSamplingScheduler.__new__(DynamicSamplingScheduler)
    scheduler.pipeline_config, scheduler.is_val = config(folder, mode, **more), is_val
    scheduler._init_rollout_mock()
    scheduler.reward_clusters = {domain: None}
    scheduler.live = 0

    async def impl(data, global_step, batch_size):
        scheduler.live += 1
        batch = drawn(batch_size, domain)
        await scheduler._maybe_dump_batch(batch, global_step)
        return batch

    async def level_0(data, batch_size):
        scheduler.live += 1
        return drawn(batch_size, domain)

    scheduler._get_batch_impl, scheduler.get_batch_opt_level_0 = impl, level_0
    return scheduler


def request(step):
    from roll.distributed.scheduler.protocol import DataProto

    meta = {"global_step": step, "generation_config": {"temperature": 1.0, "num_return_sequences": 2}}
    return DataProto(meta_info=meta)


async def ask(scheduler, steps):
    if hasattr(scheduler, "mode"):
        return [await scheduler.get_batch(request(step), 4) for step in steps]
    return [await scheduler.get_batch(request(step), step, 4) for step in steps]


def data_proto(folder):
    from roll.distributed.scheduler.protocol import DataProto

    for value in (
        drawn(4),
        DataProto(meta_info={"a": 1}),
        DataProto.concat([drawn(2), drawn(3)]),
        drawn(6)[1:4],
    ):
        with rolltape.Tape(f"{folder}/{id(value)}", mode="record") as tape, tape.step(0):
            tape.stage("rollout")(lambda value=value: value)()
        back = rolltape.Tape(f"{folder}/{id(value)}", mode="replay").recording(0).value()
        if value._batch is None:
            assert back._batch is None
            assert back.meta_info == value.meta_info
        else:
            same(value, back)


def agentic(folder):
    roll.install()
    for split in ("train", "val"):
        dumping = rollout_scheduler(folder, "dump", split)
        dumped = asyncio.run(ask(dumping, range(3)))
        assert dumping.live == 3
        mocking = rollout_scheduler(folder, "mock", split)
        for one, other in zip(dumped, asyncio.run(ask(mocking, range(3))), strict=True):
            same(one, other)
        assert mocking.live == 0
        assert mocking.rollout_task is None
    assert sorted(os.listdir(f"{folder}/train/rollout"))[0].endswith(".parquet")
    assert not [name for _, _, names in os.walk(folder) for name in names if name.endswith(".pkl")]


def domains(folder):
    roll.install()
    several = {"rewards": {"math": None, "code": None}}
    dumped = {
        d: asyncio.run(ask(sampling_scheduler(folder, "dump", d, **several), range(2)))
        for d in ("math", "code")
    }
    for domain, batches in dumped.items():
        mocking = sampling_scheduler(folder, "mock", domain, **several)
        for one, other in zip(batches, asyncio.run(ask(mocking, range(2))), strict=True):
            same(one, other)
            assert set(other._non_tensor_batch["domain"]) == {domain}
        assert mocking.live == 0


def opt_level_0(folder):
    roll.install()
    dumped = asyncio.run(ask(sampling_scheduler(folder, "dump", generate_opt_level=0), range(2)))
    mocking = sampling_scheduler(folder, "mock", generate_opt_level=0)
    for one, other in zip(dumped, asyncio.run(ask(mocking, range(2))), strict=True):
        same(one, other)
    assert mocking.live == 0


def missing(folder):
    roll.install()
    asyncio.run(ask(rollout_scheduler(folder, "dump"), range(2)))
    with pytest.raises(FileNotFoundError, match="reason 1 applies: train/rollout has steps 0-1"):
        asyncio.run(ask(rollout_scheduler(folder, "mock"), [5]))


def remote(folder):
    """What ROLL has moved to its transfer backend is recorded whole."""
    from roll.distributed.scheduler.protocol import DataProto
    from roll.distributed.scheduler.remote_protocol import RowRemoteBatch

    whole = drawn(4)
    columns = whole._batch.clone()
    rows = RowRemoteBatch("train", None, list(columns.keys()), [str(n) for n in range(4)], columns)
    moved = DataProto(remote_batch=rows, meta_info=whole.meta_info)
    with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: moved)()
    back = rolltape.Tape(folder, mode="replay").recording(0).value()
    same(DataProto(batch=whole._batch, meta_info=whole.meta_info), back)


@dataclass
class Actor:
    """Runs ROLL's scheduler in a Ray worker, where nobody has called install() but Ray."""

    folder: str
    mode: str

    async def get(self, step):
        os.chdir("/")  # not where the driver is
        scheduler = rollout_scheduler(self.folder, self.mode)
        return (await ask(scheduler, [step]))[0], scheduler.live


def ray_actor(folder):
    """The driver calls install()."""
    roll.install()
    in_actors(folder, folder)


def ray_untouched(folder):
    """The driver does nothing: the environment names our hook, and dump_dir is relative."""
    os.environ["RAY_RUNTIME_ENV_HOOK"] = "rolltape.integrations.roll.workers.runtime_env"
    in_actors(folder, os.path.relpath(folder))


def in_actors(folder, given):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"THEIRS": "1"}})
    try:
        dumped, live = ray.get(ray.remote(Actor).remote(given, "dump").get.remote(0))
        assert live == 1
        assert os.path.isfile(f"{folder}/train/rollout/step_000000.parquet")
        loaded, live = ray.get(ray.remote(Actor).remote(given, "mock").get.remote(0))
        assert live == 0
        same(dumped, loaded)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    for case in sys.argv[2:]:
        globals()[case](f"{sys.argv[1]}/{case}")
        print(f"{case}: as promised")
