"""What `test_import_real_dumps.py` runs: ROLL and slime dump with their own code; the importer reads that."""

import asyncio
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDict

from rolltape import Tape
from rolltape.importing import import_dumps

# Among so many packages, one that also calls itself `tests` may be installed.
_spec = spec_from_file_location("exact", Path(__file__).parents[1] / "exact.py")
exact = module_from_spec(_spec)
_spec.loader.exec_module(exact)
assert_same = exact.assert_same


def picture(seed):
    return Image.frombytes("RGB", (4, 3), np.random.default_rng(seed).bytes(36))


def objects(values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def drawn(seed):
    """A batch as ROLL's agentic and multimodal pipelines have them."""
    from roll.distributed.scheduler.protocol import DataProto

    random = torch.Generator().manual_seed(seed)
    tensors = {
        "input_ids": torch.randint(0, 50_000, (3, 9), generator=random),
        "infer_logprobs": torch.randn(3, 8, generator=random).bfloat16(),
        "response_mask": torch.rand(3, 9, generator=random) > 0.5,
        "scores": torch.randn(3, generator=random),
    }
    columns = {
        "domain": objects(["math", "code", "math"]),
        "messages": objects([[{"role": "user", "content": f"question {n}"}] for n in range(3)]),
        "frames": objects([np.arange(6, dtype=np.float16).reshape(2, 3) + n for n in range(3)]),
        "multi_modal_data": objects([{"image": [picture(seed + n)]} for n in range(3)]),
    }
    meta = {"global_step": seed, "metrics": {"score": [0.5, float("nan")]}, "eos": np.int64(2)}
    return DataProto(TensorDict(tensors, batch_size=[3]), columns, meta_info=meta)


def roll(folder):
    from roll.configs.base_config import RolloutMockConfig
    from roll.distributed.scheduler.protocol import DataProto
    from roll.distributed.scheduler.rollout_mock_mixin import RolloutMockMixin

    class Scheduler(RolloutMockMixin):
        def __init__(self, does, mode):
            mock = RolloutMockConfig(enable=True, mode=does, dump_dir=str(folder / "dumps"))
            self.config, self.mode = SimpleNamespace(rollout_mock=mock), mode
            self._init_rollout_mock()

    for split in ("train", "val"):
        for step in (0, 1):
            asyncio.run(Scheduler("dump", split)._maybe_dump_batch(drawn(step), step))
    assert (
        sorted(path.name for path in (folder / "dumps").rglob("*.pkl"))
        == ["step_000000.pkl"] * 2 + ["step_000001.pkl"] * 2
    )
    report = import_dumps(folder / "dumps", folder / "tape")
    assert (len(report.imported), report.problems) == (4, [])
    with Tape(folder / "tape", mode="replay") as tape:
        for split in ("train", "val"):
            for step in (0, 1):
                theirs = asyncio.run(Scheduler("mock", split)._load_mock_batch(step))
                ours = tape.recording(step, split=split).value()
                assert type(ours) is type(theirs) is DataProto
                assert_same(dict(theirs._batch.items()), dict(ours._batch.items()))
                assert_same(theirs._non_tensor_batch, ours._non_tensor_batch)
                assert_same(theirs.meta_info, ours.meta_info)


def slime(folder):
    from slime.utils.types import Sample

    try:
        from slime.observability import rollout_data_utils as utils
    except ImportError:  # where it was before
        from slime.utils import rollout_data_utils as utils

    def sample(index):
        made = Sample(group_index=index // 2, index=index, prompt=f"question {index}", label=str(index))
        made.tokens, made.response, made.response_length = list(range(index + 4)), "answer", 3
        made.loss_mask, made.rollout_log_probs = [1, 0, 1], [-0.1 * index, -0.25, float("-inf")]
        made.reward, made.status = {"acc": index / 3, "fmt": 1.0}, Sample.Status.TRUNCATED
        made.multimodal_inputs = {"images": [picture(index)]}
        made.multimodal_train_inputs = {"pixel_values": torch.randn(2, 3).bfloat16()}
        made.rollout_routed_experts = torch.randint(0, 8, (index + 3, 2, 4), dtype=torch.int32)
        made.metadata = {"weights": np.linspace(0, 1, 3), "tools": ["none", None]}
        return made

    template = str(folder / "dumps" / "rollout_{rollout_id}.pt")
    for step in (0, 7):
        data = [sample(step + index) for index in range(4)]
        utils.save_debug_rollout_data(template, data, rollout_id=step, evaluation=False)
    evaluated = {"aime": {"samples": [sample(40), sample(41)]}}
    utils.save_debug_rollout_data(template, evaluated, rollout_id=7, evaluation=True)
    report = import_dumps(folder / "dumps", folder / "tape")
    assert (len(report.imported), report.problems) == (3, [])
    with Tape(folder / "tape", mode="replay") as tape:
        for split, step, name in (("train", 0, 0), ("train", 7, 7), ("val", 7, "eval_7")):
            theirs = utils.load_debug_rollout_data(template, rollout_id=name)
            held = tape.recording(step, split=split).value()
            assert held["rollout_id"] == step
            ours = [Sample.from_dict(found) for found in held["samples"]]
            assert [found.status for found in ours] == [Sample.Status.TRUNCATED] * len(theirs)
            assert_same([found.to_dict() for found in theirs], [found.to_dict() for found in ours])


if __name__ == "__main__":
    {"roll": roll, "slime": slime}[sys.argv[1]](Path(sys.argv[2]))
    print(f"{sys.argv[1]}: as promised")
