"""Samples of tensors that named calls return: one each, bit for bit."""

import pytest
import torch
from tensordict import TensorDict

import rolltape
from tests.exact import assert_same

RETURNED = {
    "ids": lambda n: {"input_ids": torch.arange(n), "reward": torch.tensor(n / 3), "uid": f"u{n}"},
    "bfloat16": lambda n: {"responses": torch.arange(n), "log_probs": torch.rand(n).bfloat16()},
    "grad": lambda n: {
        "reward": torch.tensor(n / 3, requires_grad=True),
        "x": torch.ones(n, requires_grad=True),
    },
    "bare": lambda n: torch.arange(n),
    "pair": lambda n: (torch.arange(n), torch.tensor(0.5, dtype=torch.bfloat16)),
    "routes": lambda n: {
        "tokens": torch.arange(n),
        "routed_experts": torch.zeros(n, 2, 4, dtype=torch.uint8),
    },
}


@pytest.mark.parametrize("kind", RETURNED)
def test_a_named_call_that_returns_tensors_of_one_sample_is_one(kind, tmp_path):
    returned = {str(n): RETURNED[kind](n) for n in (3, 1, 4)}
    assert samples_of(tmp_path / "tape", returned) == 3
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        stage = tape.stage("rollout")(lambda: pytest.fail("it ran"))
        for key in returned:
            with tape.step(0, key=key):
                assert_same(returned[key], stage())


def test_a_batch_of_tensors_has_its_rows(tmp_path):
    batches = {
        "a": {"input_ids": torch.zeros(4, 7, dtype=torch.long)},
        "b": TensorDict({"x": torch.zeros(2)}, [2]),
    }
    assert samples_of(tmp_path / "tape", batches) == 6


def samples_of(folder, returned):
    with rolltape.Tape(folder, mode="record") as tape:
        stage = tape.stage("rollout")(lambda key: returned[key])
        for key in returned:
            with tape.step(0, key=key):
                stage(key)
    return len(rolltape.open(folder).samples(0))
