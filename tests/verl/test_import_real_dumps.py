"""Dumps written by the real verl, in every layout it has had, come back as what verl itself would load."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.utils.skip.rollout_skip import RolloutSkip, RolloutTqSkip

import rolltape
import rolltape.integrations.verl.adapters
from rolltape.importing import dump_layouts as layouts
from rolltape.importing import import_dumps
from tests.exact import assert_same

SAMPLES = 6


def proto(seed: int) -> DataProto:
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(SAMPLES, 7, generator=random)
    scores[0, 0], scores[1, 1] = float("nan"), -0.0
    extra = np.empty(SAMPLES, dtype=object)
    extra[:] = [
        {"x": 1},
        None,
        [1, (2,)],
        np.float32(0.1),
        "text",
        {"pixels": torch.arange(3), "a": np.arange(2)},
    ]
    return DataProto.from_dict(
        tensors={
            "prompts": torch.randint(0, 9, (SAMPLES, 5), generator=random),
            "responses": torch.randint(0, 9, (SAMPLES, 7), generator=random),
            "rm_scores": scores,
            "log_probs": scores.bfloat16(),
            "flag": scores > 0,
            "last": scores[:, 0],
        },
        non_tensors={
            "uid": np.array([f"{seed}-{row // 2}" for row in range(SAMPLES)], dtype=object),
            "extra": extra,
        },
        meta_info={"temperature": 0.7, "timing": {"gen": np.float64(1.5)}, "names": {"a", "b"}},
    )


def assert_proto(a: DataProto, b: Any) -> None:
    assert type(b) is DataProto
    for name in ("batch", "non_tensor_batch", "meta_info"):
        assert_same(getattr(a, name), getattr(b, name), name)


def replay(tape: Path, step: int, **where: Any) -> Any:
    return rolltape.Tape(tape, mode="replay").recording(step, **where).value()


def config(root: Path) -> Any:
    return OmegaConf.create(
        {
            "trainer": {"experiment_name": "exp", "project_name": "proj", "v1": {"trainer_mode": "sync"}},
            "data": {"gen_batch_size": 3, "max_response_length": 7, "max_prompt_length": 5},
            "actor_rollout_ref": {"rollout": {"n": 2}},
            "skip": {"enable": True, "dump_dir": str(root), "steps": [1, 2, 3], "action": "cache"},
        }
    )


@pytest.mark.parametrize("method", ["torch", "numpy"])
def test_v1_file(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "numpy":
        monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    proto(3).save_to_disk(tmp_path / "exp_proj_GBS3__N2")
    report = import_dumps(tmp_path / "exp_proj_GBS3__N2", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.V1, [])
    assert_proto(DataProto.load_from_disk(tmp_path / "exp_proj_GBS3__N2"), replay(tmp_path / "tape", 1))


def test_v2_directory(tmp_path: Path) -> None:
    root = tmp_path / "d" / "exp_proj" / "GBS3_N2_in5_out7"
    for generation, step in ((1, 1), (2, 1), (3, 2)):
        folder = root / f"genstep_{generation:06d}"
        folder.mkdir(parents=True)
        proto(generation).save_to_disk(folder / "gen_batch.dp")
        proto(100 + generation).save_to_disk(folder / "new_batch.dp")
        (folder / "meta.json").write_text(json.dumps({"global_steps": step, "gen_steps": generation}))
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.V2, [])
    for generation, step, call in ((1, 1, 0), (2, 1, 1), (3, 2, 0)):
        folder = root / f"genstep_{generation:06d}"
        for stage, file in (("rollout", "gen_batch.dp"), ("new_batch", "new_batch.dp")):
            value = replay(tmp_path / "tape", step, stage=stage, call=call)
            assert_proto(DataProto.load_from_disk(folder / file), value)


def test_skip_manager_directory_written_by_verl(tmp_path: Path) -> None:
    cfg = config(tmp_path / "d")
    skip = RolloutSkip(cfg.skip, cfg)
    for step in (1, 2, 3):
        skip.prepare_data(step, proto(step))
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.SKIP_MANAGER, [])
    for step in (1, 2, 3):
        assert_proto(skip.warp_function(step, lambda: None), replay(tmp_path / "tape", step))


@pytest.mark.parametrize("batch", [None, TensorDict({}, batch_size=[2])])
def test_a_batch_without_tensors(tmp_path: Path, batch: Any) -> None:
    value = DataProto(batch=batch, non_tensor_batch={"uid": np.array(["a", "b"], dtype=object)}, meta_info={})
    value.save_to_disk(tmp_path / "x_GBS1__N1")
    import_dumps(tmp_path / "x_GBS1__N1", tmp_path / "tape")
    assert_proto(DataProto.load_from_disk(tmp_path / "x_GBS1__N1"), replay(tmp_path / "tape", 1))


def test_transfer_queue_directory_written_by_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = [
        {
            "prompts": torch.arange(n),
            "responses": torch.arange(n + 1),
            "score": torch.tensor(0.5 * n),
            "note": f"n{n}",
        }
        for n in (2, 3, 1)
    ]
    fields = list_of_dict_to_tensordict(rows)
    meta = tq.KVBatchMeta(
        keys=["u_0_0", "u_1_0", "w_0_0"],
        tags=[{"status": "finished", "n": i} for i in range(3)],
        partition_id="train",
    )
    monkeypatch.setattr(tq, "kv_batch_get", lambda keys, partition_id: fields)
    cfg = config(tmp_path / "d")
    RolloutTqSkip(cfg.skip, cfg).prepare_data(2, meta, global_steps=2)
    report = import_dumps(tmp_path / "d", tmp_path / "tape")
    assert report is not None
    assert (report.system, report.problems) == (layouts.TRANSFER_QUEUE, [])
    value = replay(tmp_path / "tape", 2)
    assert value["batch"] == meta
    assert type(value["batch"]) is tq.KVBatchMeta
    assert (value["asked"], value["metrics"]) == (2, {})
    (dump,) = (tmp_path / "d").rglob("tq_batch.pt")
    assert_same(torch.load(dump, weights_only=False)["tensordict"], value["fields"])


def test_an_imported_batch_is_stored_like_a_recorded_one(tmp_path: Path) -> None:
    """Not only the same values: the same columns, layouts and adapters, so that tapes can be compared."""
    proto(1).save_to_disk(tmp_path / "x_GBS1__N1")
    import_dumps(tmp_path / "x_GBS1__N1", tmp_path / "imported")
    with rolltape.Tape(tmp_path / "recorded", mode="record") as tape:
        rollout = tape.stage("rollout")(lambda: pickle.loads(pickle.dumps(proto(1))))
        with tape.step(1):
            rollout()
    ours, theirs = (
        rolltape.open(tmp_path / name).samples(1).files[0].file for name in ("imported", "recorded")
    )
    for part in ("stored_columns", "tree", "stored_wholes", "samples"):
        assert getattr(ours, part) == getattr(theirs, part)
