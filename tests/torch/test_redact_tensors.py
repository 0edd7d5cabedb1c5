"""Pictures, tensors, nested tensors and TensorDicts are redacted like everything else."""

import numpy as np
import pytest
import tensordict
import torch
from PIL import Image

import rolltape
from tests.cli_tapes import run
from tests.test_redact import PICTURES, SECRETS, assert_nothing_leaks, record

IDS = torch.tensor([[77, 31007, 9150], [20411, 4242, 31007]])
TEXTS = ["the launch code of Alice", "project Bluebird"]


def jagged():
    return torch.nested.nested_tensor([IDS[0], IDS[1, :2]], layout=torch.jagged)


VALUES = {
    "tensors": lambda: {"whatever": IDS, "mask": IDS > 100, "logprobs": IDS.to(torch.bfloat16) / 7},
    "nested": lambda: {"whatever": jagged(), "uid": TEXTS},
    "a nested one beside the samples": lambda: {"whatever": jagged(), "uid": [*TEXTS, TEXTS[0]]},
    "pixels": lambda: {
        "pixel_values": (IDS / 31007).to(torch.bfloat16).reshape(2, 3, 1, 1),
        "input_ids": IDS,
    },
    "tensordict": lambda: tensordict.TensorDict(
        {
            "input_ids": IDS,
            "reward": torch.tensor([0.5, 1.0]),
            "text": tensordict.NonTensorStack(*TEXTS),
            "one": tensordict.NonTensorData(TEXTS[0], batch_size=[2]),
        },
        batch_size=[2],
    ),
}


def play(folder):
    with rolltape.Tape(folder, mode="replay") as tape, tape.step(0):
        return tape.stage("rollout")(lambda: pytest.fail("it ran"))()


@pytest.mark.parametrize("kind", VALUES)
def test_what_a_tensor_held_is_gone_and_its_shape_is_not(kind, tmp_path):
    value = VALUES[kind]()
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: value)()
    done = run("redact", tmp_path / "tape", "--out", tmp_path / "shared")
    assert done.exit_code == 0, done.stderr
    assert run("check", tmp_path / "shared").exit_code == 0
    now = play(tmp_path / "shared")
    assert type(now) is type(value)
    assert list(now.keys()) == list(value.keys())
    for name in now.keys():  # noqa: SIM118
        was, is_now = value[name], now[name]
        if not isinstance(was, torch.Tensor):
            assert not set(map(str, np.atleast_1d(was))) & set(map(str, np.atleast_1d(is_now)))
            continue
        assert (was.dtype, was.layout) == (is_now.dtype, is_now.layout)
        if was.is_nested:
            assert [len(row) for row in was.unbind()] == [len(row) for row in is_now.unbind()]
            was, is_now = torch.cat(list(was.unbind())), torch.cat(list(is_now.unbind()))
        if name in ("mask", "logprobs", "reward"):
            assert torch.equal(was, is_now)
        else:
            assert was.shape == is_now.shape
            assert not torch.equal(was, is_now)
            same = [(a == b).item() for a in was.reshape(-1) for b in was.reshape(-1)]
            if was.dtype == torch.int64:
                assert same == [(a == b).item() for a in is_now.reshape(-1) for b in is_now.reshape(-1)]
            else:
                assert torch.isfinite(is_now).all()


def test_pictures_of_pil(tmp_path):
    record(tmp_path / "pil", {"images": [Image.fromarray(one) for one in PICTURES], "uid": SECRETS})
    done = run("redact", tmp_path / "pil", "--out", tmp_path / "pil shared")
    assert done.exit_code == 0, done.stderr
    assert_nothing_leaks(tmp_path / "pil shared")
    now = play(tmp_path / "pil shared")["images"]
    assert [(one.size, one.mode) for one in now] == [((8, 8), "RGB")] * 3
    assert now[1].tobytes() == now[2].tobytes() != now[0].tobytes()
