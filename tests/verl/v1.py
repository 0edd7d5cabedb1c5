"""verl's V1 trainers with what generation needs of them: a replay buffer, a data loader, a real queue."""

import random
import uuid
from types import SimpleNamespace

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.utils import tensordict_utils as tu
from verl.utils.skip import SkipManager

from tests.verl.batches import objects


class Generator:
    """In place of verl's agent loops: puts n trajectories per prompt into the queue, in a random order.

    Every ``failing``-th prompt fails, which makes a buffer ask for another one.
    """

    def __init__(self, n=2, forbidden=False, outputs=1, failing=None):
        self.n, self.forbidden, self.outputs, self.failing = n, forbidden, outputs, failing
        self.prompts = self.trajectories = 0

    def generate_sequences(self, batch):
        assert not self.forbidden, "generation was called on replay"
        partition = "val" if "validate" in batch else "train"
        uids, status = list(batch["uid"]), {}
        for uid in uids:
            self.prompts += 1
            failed = self.failing is not None and self.prompts % self.failing == 0
            status[uid] = "failure" if failed else "finished"
        counts = list(batch["__rollout_n__"]) if "__rollout_n__" in batch else [self.n] * len(uids)
        self.trajectories += sum(counts)
        jobs = [(row, session) for row, count in enumerate(counts) for session in range(count)]
        random.shuffle(jobs)
        for row, session in jobs:
            if status[uids[row]] == "finished":
                self._put(batch, partition, row, session)
        step = int(batch["global_steps"])
        tags = [{"is_prompt": True, "status": status[uid], "global_steps": step} for uid in uids]
        tq.kv_batch_put(keys=uids, partition_id=partition, tags=tags)

    def _put(self, batch, partition, row, session):
        uid, step = batch["uid"][row], int(batch["global_steps"])
        keys = [f"{uid}_{session}_{index}" for index in range(self.outputs)]
        tag = {"status": "success", "seq_len": 9}
        tag |= dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step)
        tq.kv_batch_put(
            keys=keys,
            partition_id=partition,
            fields=tu.list_of_dict_to_tensordict([self._fields(batch, row) for _ in keys]),
            tags=[dict(tag) for _ in keys],
        )

    def _fields(self, batch, row):
        length = random.randint(1, 6)
        prompts, responses = torch.randint(0, 99, (3,)), torch.randint(0, 99, (length,))
        score = random.random()
        columns = {name: batch[name][row] for name in ("uid", "raw_prompt", "reward_model", "data_source")}
        return {
            **columns, "prompts": prompts, "responses": responses, "num_turns": 2,
            "input_ids": torch.cat([prompts, responses]), "position_ids": torch.arange(3 + length),
            "response_mask": torch.ones(length, dtype=torch.int64),
            "rm_scores": torch.tensor([0.0] * (length - 1) + [score]),
            "extra_fields": {"reward_extra_info": {"acc": score}, "tool": "none"},
        }  # fmt: skip


def batch_dict(numbers):
    """A batch as verl's data loader makes it."""
    return {
        "raw_prompt": objects([[{"role": "user", "content": f"question {n}"}] for n in numbers]),
        "reward_model": objects([{"ground_truth": str(number)} for number in numbers]),
        "data_source": objects(["arithmetic"] * len(numbers)),
    }


def make_trainer(config, generator, first_prompt=0, mode="sync", reward_workers=(), **buffer):
    """verl's own trainer of a mode with the parts that generation needs, and a data loader of numbers."""
    from verl.trainer.ppo.v1 import replay_buffer
    from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

    trainer = object.__new__(get_trainer_cls(mode))
    trainer.config, trainer.trainer_mode, trainer.global_steps = config, mode, 0
    trainer.agent_loop_manager = generator
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=list(reward_workers) or ["one"])
    trainer._restored_tq_prompt_count = 0
    trainer.tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **options: str(ids.tolist()))
    trainer.val_dataloader = [batch_dict([100, 101, 102]), batch_dict([103])]
    cls = replay_buffer.ReplayBuffer if mode == "sync" else replay_buffer.ReplayBufferAsync
    trainer.replay_buffer = cls(
        trainer_mode=mode, trainer_config={}, max_off_policy_threshold=8, max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}), poll_interval=0.02, refill_fn=trainer._add_prompts_to_generate,
        **buffer,
    )  # fmt: skip
    drawn = iter(range(first_prompt, 1000))
    size = config.data.gen_batch_size or config.data.train_batch_size

    def draw():
        batch = batch_dict([next(drawn) for _ in range(size)])
        return tu.get_tensordict({**batch, "uid": objects([str(uuid.uuid4()) for _ in range(size)])})

    trainer._fetch_one_gen_batch = draw
    return trainer


def prepare(trainer):
    """The beginning of a step; 0.9.0 has no name for it."""
    getattr(trainer, "prepare_step", trainer._add_batch_to_generate)()


def consume(trainer, step, samples=1):
    """One step as `PPOTrainer.step` has it: prepare, then sample; returns what training would see."""
    trainer.global_steps = step
    SkipManager.set_step(step)
    prepare(trainer)
    seen = []
    for _ in range(samples):
        batch, metrics = trainer.replay_buffer.sample(
            global_steps=step,
            partition_id="train",
            batch_size=trainer.config.data.train_batch_size // samples,
        )
        data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
        seen.append((
            batch.keys, batch.tags, metrics, [row.tolist() for row in data["responses"].unbind()],
            [row.numpy().tobytes() for row in data["rm_scores"].unbind()],
            list(data["uid"]), [list(prompt) for prompt in data["raw_prompt"]],
        ))  # fmt: skip
    for keys, *_ in seen:
        tq.kv_clear(keys=keys, partition_id="train")
    return seen


def exact(metrics):
    """Metrics for comparison: the bits of every number."""
    return {name: np.float64(value).tobytes() for name, value in metrics.items()}
