"""A rollout of Rolltape's engines as verl's DataProto: the names and shapes that verl's trainer looks for."""

import numpy as np
import torch

from rolltape.engines import Completion, LogprobKind, Rollout, SamplingParams
from rolltape.engines.api.prompt import prepare


def test_to_dataproto():
    def one(response):
        return Completion(
            prompt_ids=[3, 4], response_ids=response, text="x", logprobs=[-0.5] * len(response),
            finish_reason="stop", weights_version=1,
        )  # fmt: skip

    rollout = Rollout.of(
        prepare(["a", "b"]), [[one([5]), one([5, 6])], [one([7]), one([8])]],
        logprob_kind=LogprobKind.RAW, sampling=SamplingParams(n=2, temperature=0.7),
        engine="test", engine_version="1",
    )  # fmt: skip
    proto = rollout.to_dataproto(0, prompt_length=4, response_length=3)
    assert len(proto) == 4
    assert {name: tuple(tensor.shape) for name, tensor in proto.batch.items()} == {
        "prompts": (4, 4), "responses": (4, 3), "input_ids": (4, 7), "attention_mask": (4, 7),
        "position_ids": (4, 7), "response_mask": (4, 3), "rollout_log_probs": (4, 3),
    }  # fmt: skip
    assert proto.batch["response_mask"].sum(1).tolist() == [1, 2, 1, 1]
    assert proto.batch["rollout_log_probs"].dtype == torch.float32
    assert proto.non_tensor_batch["uid"].tolist() == rollout.uid
    assert proto.non_tensor_batch["index"].tolist() == [0, 1, 0, 1]
    assert isinstance(proto.non_tensor_batch["uid"], np.ndarray)
    assert proto.meta_info["temperature"] == 0.7
    assert len(proto.chunk(2)) == 2
