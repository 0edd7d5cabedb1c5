"""verl's types come back as they were."""

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.utils import tensordict_utils as tu

import rolltape
from rolltape.codec.file import RecordingFile
from rolltape.integrations.verl import adapters  # noqa: F401
from tests.verl.batches import assert_same, output_for, prompts_for


@pytest.fixture
def there_and_back(tmp_path):
    def go(value):
        with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
            tape.stage("rollout")(lambda: value)()
        return rolltape.Tape(tmp_path / "tape", mode="replay").recording(0).value()

    return go


def test_data_proto(there_and_back):
    output = output_for(prompts_for(0), seed=1)
    output.meta_info["nested"] = {"ints": [1, 2], "np": np.float32(0.1), "none": None, "flag": True}
    back = there_and_back(output)
    assert type(back) is DataProto
    assert_same(output, back)
    assert type(back.meta_info["nested"]["np"]) is np.float32


@pytest.mark.parametrize("value", [
    DataProto(),
    DataProto(non_tensor_batch={"uid": np.array(["a", "b"], dtype=object)}),
    DataProto(batch=TensorDict({"x": torch.zeros(0, 3)}, batch_size=0)),
    DataProto(batch=TensorDict({"x": torch.zeros(3)}, batch_size=3), meta_info={"k": (1, 2)}),
], ids=["empty", "without tensors", "no rows", "without other columns"])  # fmt: skip
def test_unusual_data_protos(there_and_back, value):
    back = there_and_back(value)
    assert (back.batch is None) == (value.batch is None)
    if value.batch is not None:
        assert {k: (v.shape, v.dtype) for k, v in back.batch.items()} == {
            k: (v.shape, v.dtype) for k, v in value.batch.items()
        }
    assert {k: v.tolist() for k, v in back.non_tensor_batch.items()} == {
        k: v.tolist() for k, v in value.non_tensor_batch.items()
    }
    assert back.meta_info == value.meta_info


def test_tensordict_of_jagged_tensors_and_other_things(there_and_back):
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.int64)]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    value = tu.get_tensordict({
        "prompts": jagged, "scores": torch.tensor([0.5, float("nan"), -0.0]),
        "raw_prompt": [[{"role": "user", "content": c}] for c in "abc"], "uid": ["x", "y", "z"],
    })  # fmt: skip
    tu.assign_non_tensor_data(value, "global_steps", 7)
    back = there_and_back(value)
    assert [row.tolist() for row in back["prompts"].unbind()] == [row.tolist() for row in rows]
    assert back["prompts"].layout is torch.jagged
    assert back["prompts"].dtype == torch.int64
    assert back["scores"].numpy().tobytes() == value["scores"].numpy().tobytes()
    assert type(back.get("raw_prompt")) is type(value.get("raw_prompt")) is NonTensorStack
    assert list(back["raw_prompt"]) == list(value["raw_prompt"])
    assert list(back["uid"]) == ["x", "y", "z"]
    assert type(back.get("global_steps")) is NonTensorData
    assert back["global_steps"] == 7


def test_kv_batch_meta(there_and_back):
    meta = KVBatchMeta(
        keys=["u_0_0", "u_1_0"], tags=[{"status": "success", "seq_len": length} for length in (9, 4)],
        partition_id="train", fields=["prompts"], extra_info={"temperature": 0.7},
    )  # fmt: skip
    back = there_and_back(meta)
    assert type(back) is KVBatchMeta
    assert back == meta
    assert back.size == 2


def test_the_tape_names_our_adapter_and_no_class(tmp_path, there_and_back):
    there_and_back(output_for(prompts_for(0), seed=1))
    text = (tmp_path / "tape/train/rollout/step_000000.parquet").read_bytes()
    assert b"verl.dataproto" in text
    assert b"verl.protocol" not in text


def test_columns_are_read_without_verl(tmp_path, there_and_back):
    there_and_back(output_for(prompts_for(0), seed=1))
    code = (
        "import sys, json, rolltape\n"
        f"batch = rolltape.Tape({str(tmp_path / 'tape')!r}, mode='replay').recording(0).batch(['acc'])\n"
        "print(json.dumps([batch['acc'].tolist(), 'verl' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [np.linspace(0, 1, 4).tolist(), False]


def test_a_lazy_data_proto_decodes_the_tensors_that_are_used(tmp_path, monkeypatch):
    output = output_for(prompts_for(0), seed=1)
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: output)()
    decoded, real = [], RecordingFile._expanded
    monkeypatch.setattr(
        RecordingFile,
        "_expanded",
        lambda self, names, *rest: (decoded.extend(names), real(self, names, *rest))[1],
    )

    def replayed():
        with rolltape.Tape(tmp_path / "tape", mode="replay", lazy=True) as tape, tape.step(0):
            return tape.stage("rollout")(lambda: None)()

    back = replayed()
    assert type(back) is DataProto
    assert len(back) == len(output)
    assert not {"responses", "response_mask", "rollout_log_probs", "rm_scores"} & set(decoded)
    assert torch.equal(back.batch["response_mask"], output.batch["response_mask"])
    assert "responses" not in decoded
    assert_same(output, back)
    for change in (
        lambda found: DataProto.concat(found.chunk(2)),
        lambda found: pickle.loads(pickle.dumps(found)),
        lambda found: found.select(batch_keys=list(output.batch.keys())),
        lambda found: found[:],
        lambda found: found.union(replayed()),
        lambda found: found.to("cpu"),
        copy.deepcopy,
    ):
        assert_same(output, change(replayed()))
