"""Three steps of TRL's GRPOTrainer with `vllm_mode="server"`: URL MODEL FOLDER; prints what it logged.

TRL sends weights by NCCL, which needs a GPU. Here they go by disk instead, as Rolltape's engine does it;
generation and all else is TRL's own.
"""

import json
import sys
import warnings

warnings.filterwarnings("ignore", message="TRL currently supports vLLM")

from datasets import Dataset  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

from rolltape.engines import OpenAIEngine  # noqa: E402

TIMES = ("time", "per_second")


class ByDisk(VLLMClient):
    """The client of TRL, but for the way of the weights."""

    def init_communicator(self, device=0):
        self.weights = OpenAIEngine(self.base_url, weights_dir=f"{sys.argv[3]}/weights")
        self.version = 0

    def update_named_params(self, metadata, named_params):
        self.version += 1
        sent = {name: value.detach().clone() for name, value in named_params}
        self.weights.update_weights(sent, version=self.version)


def variety(completions, **_):
    return [float(len(set(text))) for text in completions]


def main(url: str, model: str, folder: str) -> None:
    import trl.generation.vllm_generation as generation

    generation.VLLMClient = ByDisk
    args = GRPOConfig(
        output_dir=folder, use_vllm=True, vllm_mode="server", vllm_server_base_url=url, use_cpu=True,
        bf16=False, per_device_train_batch_size=8, num_generations=4, max_completion_length=8, max_steps=3,
        logging_steps=1, learning_rate=1e-2, report_to=[], save_strategy="no", disable_tqdm=True, seed=1,
        vllm_importance_sampling_correction=False,
    )  # fmt: skip
    prompts = ["The quick brown", "One and one is", "A policy is", "Two and two"]
    trainer = GRPOTrainer(model, variety, args, Dataset.from_dict({"prompt": prompts * 2}))
    trainer.train()
    logged = [
        {name: value for name, value in row.items() if not any(word in name for word in TIMES)}
        for row in trainer.state.log_history
    ]
    print(json.dumps(logged))


main(*sys.argv[1:])
