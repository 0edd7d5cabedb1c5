"""The smallest workers that verl's real `RayPPOTrainer.fit()` of 0.6 to 0.9 runs with, in one process.

Loaded by verl: VERL_USE_EXTERNAL_MODULES names it. What generates is random in every run, so that only a
replay can give the same metrics twice, and writes down each call. What trains is one number.
"""

import json
import os
import random
import sys
from types import ModuleType

import numpy as np
import torch
import verl.single_controller.ray
import verl.trainer.ppo.ray_trainer as ray_trainer
from verl import DataProto

JOURNAL = "ROLLTAPE_TEST_JOURNAL"
FAIL_AT = "ROLLTAPE_TEST_FAIL_AT"
"""The number of the call that fails."""
LONGEST = 6


def note(**event):
    with open(os.environ[JOURNAL], "a") as journal:
        journal.write(json.dumps(event) + "\n")


def generate(prompts):
    """Random responses of random lengths, as the release's own workers or agent loops return them."""
    note(event="generate", rows=len(prompts), validate=bool(prompts.meta_info.get("validate", False)))
    with open(os.environ[JOURNAL]) as journal:
        if sum('"generate"' in line for line in journal) == int(os.environ.get(FAIL_AT, 0)):
            raise RuntimeError("the engine went away")
    rows = len(prompts)
    given = prompts.batch["input_ids"] if prompts.batch is not None and "input_ids" in prompts.batch else None
    ids = given if given is not None else torch.full((rows, 4), 7)
    lengths = torch.tensor([random.randint(1, LONGEST) for _ in range(rows)])
    responses = torch.tensor([[random.randint(2, 200) for _ in range(LONGEST)] for _ in range(rows)])
    mask = (torch.arange(LONGEST)[None] < lengths[:, None]).long()
    responses = responses * mask
    before = prompts.batch["attention_mask"] if given is not None else torch.ones_like(ids)
    attention = torch.cat([before, mask], dim=1)
    scores = torch.zeros(rows, LONGEST)
    scores[torch.arange(rows), lengths - 1] = torch.tensor([float(random.randint(0, 1)) for _ in range(rows)])
    tensors = {
        "prompts": ids, "responses": responses, "response_mask": mask,
        "input_ids": torch.cat([ids, responses], dim=1), "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "rm_scores": scores,
    }  # fmt: skip
    pictures = np.empty(rows, dtype=object)
    pictures[:] = [{} for _ in range(rows)]
    meta = {"timing": {}, "reward_extra_keys": []}
    return DataProto.from_dict(tensors, non_tensors={"multi_modal_inputs": pictures}, meta_info=meta)


class Workers:
    """One actor: its weight moves by what the batch of a step says."""

    world_size = 1

    def __init__(self):
        self.weight = 1.0

    def generate_sequences(self, prompts):
        """As workers do: what they return is scored by the trainer, and has the columns they were given."""
        found = generate(prompts)
        del found.batch["rm_scores"]
        return found

    def compute_log_prob(self, batch):
        shape = batch.batch["responses"].shape
        tensors = {
            "old_log_probs": torch.full(shape, -self.weight),
            "entropys": torch.full(shape, self.weight),
        }
        return DataProto.from_dict(tensors=tensors)

    def update_actor(self, batch):
        advantages = batch.batch["advantages"].double() * batch.batch["response_mask"]
        tokens = torch.arange(1, advantages.shape[1] + 1, dtype=torch.float64) * batch.batch["responses"]
        self.weight += float((advantages * tokens).sum() * 1e-4)
        note(event="weights", weight=self.weight.hex())
        return DataProto(meta_info={"metrics": {"actor/weight": [self.weight]}})

    def save_checkpoint(self, local_path, *rest, **named):
        os.makedirs(local_path, exist_ok=True)
        with open(os.path.join(local_path, "weight"), "w") as file:
            file.write(self.weight.hex())

    def load_checkpoint(self, local_path, *rest, **named):
        if local_path is not None:
            with open(os.path.join(local_path, "weight")) as file:
                self.weight = float.fromhex(file.read())

    def __getattr__(self, name):  # init_model and the like
        if name.startswith("_") or name == "async_calls_finalize_fn_exec":
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class WorkerGroup:
    def __init__(self, **named):
        pass

    def spawn(self, prefix_set):
        return {name: Workers() for name in prefix_set}


class Idle:
    """Servers, replicas, checkpoint engines and reward loops: nothing to do."""

    reward_loop_workers = reward_loop_worker_handles = None

    def __init__(self, *args, **named):
        pass

    create = classmethod(lambda cls, *args, **named: cls())

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Manager(Idle):
    """In place of AgentLoopManager; `rollout_replicas` is what 0.7 hands on."""

    rollout_replicas = ()

    def generate_sequences(self, prompts):
        try:
            from verl.utils.skip import SkipManager
        except ModuleNotFoundError:  # before 0.9
            return generate(prompts)
        return SkipManager.annotate(role="rollout")(generate)(prompts)


def _create_pools(self):
    self.resource_pool_dict = {name: name for name in self.resource_pool_spec}


def _old_log_prob(self, batch):
    return self.actor_rollout_wg.compute_log_prob(batch), 0.0


def _update_actor(self, batch):
    return self.actor_rollout_wg.update_actor(batch)


verl.single_controller.ray.RayWorkerGroup = ray_trainer.RayWorkerGroup = WorkerGroup
ray_trainer.create_colocated_worker_cls = ray_trainer.RayClassWithInitArgs = lambda *args, **named: None
ray_trainer.ResourcePoolManager.create_resource_pool = _create_pools
try:
    import verl.experimental.agent_loop as agent_loop
except ModuleNotFoundError:  # 0.6 imports a client of servers there, which nothing here needs
    agent_loop = sys.modules["verl.experimental.agent_loop"] = ModuleType("verl.experimental.agent_loop")
agent_loop.AgentLoopManager = Manager
for name in ("LLMServerManager", "CheckpointEngineManager"):
    if hasattr(ray_trainer, name):
        setattr(ray_trainer, name, Idle)
for module, name in (
    ("verl.experimental.reward_loop", "RewardLoopManager"),
    ("verl.checkpoint_engine", "CheckpointEngineManager"),
):
    try:
        setattr(__import__(module, fromlist=[name]), name, Idle)
    except ModuleNotFoundError:
        continue  # an older release
if hasattr(ray_trainer.RayPPOTrainer, "_compute_old_log_prob"):
    ray_trainer.RayPPOTrainer._compute_old_log_prob = _old_log_prob
    ray_trainer.RayPPOTrainer._update_actor = _update_actor
