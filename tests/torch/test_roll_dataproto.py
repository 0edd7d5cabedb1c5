"""ROLL's DataProto with real tensors round-trips exactly, also what lies in its transfer backend."""

import asyncio

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rolltape
from rolltape.errors import MissingDependencyError
from rolltape.integrations.roll import dataproto
from tests import roll_standin as standin


@pytest.fixture
def protocol():
    with standin.importable():
        from roll.distributed.scheduler import protocol

        yield protocol


def columns(samples):
    ids = torch.randint(0, 1000, (samples, 9))
    ids[1, 4:] = 0
    return TensorDict(
        {
            "input_ids": ids,
            "log_probs": torch.randn(samples, 9, dtype=torch.bfloat16),
            "scores": torch.tensor([0.0, -0.0, float("nan"), 1.5])[:samples],
            "mask": torch.rand(samples, 9) > 0.5,
        },
        batch_size=[samples],
    )


def plain(samples):
    return {
        "traj_id": np.array([f"t{n}" for n in range(samples)], object),
        "turns": np.array([[1], [], 2, None], object),
    }


def replayed(tmp_path, value):
    with rolltape.Tape(tmp_path, mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: value)()
    return rolltape.Tape(tmp_path, mode="replay").recording(0)


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_everything_comes_back(tmp_path, protocol):
    meta = {"metrics": {"score": [0.1, np.float32(0.2)]}, "global_step": 3, "none": None}
    data = protocol.DataProto(batch=columns(4), non_tensor_batch=plain(4), meta_info=meta)
    recording = replayed(tmp_path, data)
    back = recording.value()
    assert type(back) is protocol.DataProto
    assert recording.samples == len(data) == 4
    assert back._batch.batch_size == data._batch.batch_size
    assert {k: bits(v) for k, v in back._batch.items()} == {k: bits(v) for k, v in data._batch.items()}
    for name, column in data._non_tensor_batch.items():
        assert back._non_tensor_batch[name].dtype == object
        assert back._non_tensor_batch[name].tolist() == column.tolist()
    assert back.meta_info == meta
    assert type(back.meta_info["metrics"]["score"][1]) is np.float32


def test_what_lies_in_the_transfer_backend_is_fetched(tmp_path, protocol):
    remote = protocol.RemoteBatch({"scores": torch.arange(4.0), "tag": np.array(list("abcd"), object)})
    data = protocol.DataProto(batch=columns(4).select("input_ids"), remote_batch=remote)
    back = replayed(tmp_path, data).value()
    assert back._remote_batch is None
    assert torch.equal(back._batch["scores"], torch.arange(4.0))
    assert torch.equal(back._batch["input_ids"], data._batch["input_ids"])
    assert back._non_tensor_batch["tag"].tolist() == list("abcd")
    assert list(data._batch.keys()) == ["input_ids"]  # recording has not changed it


def test_an_empty_one(tmp_path, protocol):
    back = replayed(tmp_path, protocol.DataProto(meta_info={"global_step": 1})).value()
    assert (back._batch, back._non_tensor_batch, back.meta_info) == (None, {}, {"global_step": 1})


def test_an_older_roll_keeps_its_fields_without_underscores():
    class Older:
        def __init__(self):
            self.batch, self.non_tensor_batch, self.meta_info = {"a": 1}, {"b": 2}, {"c": 3}

    parts = dataproto.to_parts(Older())
    assert parts == {"batch": {"a": 1}, "non_tensor_batch": {"b": 2}, "meta_info": {"c": 3}}


def test_without_roll_the_columns_can_still_be_read(tmp_path, protocol):
    recording = replayed(tmp_path, protocol.DataProto(batch=columns(4)))
    standin.forget_roll()
    import sys

    sys.path.remove(standin.SOURCE)
    try:
        with pytest.raises(MissingDependencyError, match="ROLL cannot be imported"):
            recording.value()
        assert len(recording.batch(["scores"])["scores"]) == 4
    finally:
        sys.path.insert(0, standin.SOURCE)


def test_a_scheduler_with_tensors(tmp_path, protocol):
    from rolltape.integrations import roll

    roll.install()

    def scheduler(mode):
        made = standin.rollout_scheduler(standin.config(tmp_path, mode))
        type(made).get_batch.__wrapped__.__globals__["drawn"] = lambda n: protocol.DataProto(
            batch=columns(n), meta_info={}
        )
        return made

    dumped = asyncio.run(scheduler("dump").get_batch(standin.request(0), 4))
    loaded = asyncio.run(scheduler("mock").get_batch(standin.request(0), 4))
    fetched = dumped._remote_batch
    assert {k: bits(v) for k, v in loaded._batch.items()} == {k: bits(fetched[k]) for k in fetched.keys()}  # noqa: SIM118
