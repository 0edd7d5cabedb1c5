"""What the tests of verl's own skipping share: its configuration, and workers that count or refuse."""

import asyncio
from types import SimpleNamespace

import numpy as np
from verl.utils.skip import SkipManager

from rolltape.integrations.verl import RolloutSkip
from tests.verl.batches import objects, output_for, prompts_for

RUN = {
    "trainer": {"experiment_name": "exp", "project_name": "proj"},
    "data": {
        "train_batch_size": 2, "gen_batch_size": 3, "max_prompt_length": 8, "max_response_length": 4,
        "train_files": "a.parquet",
    },
}  # fmt: skip


def config(**rollout):
    return {
        **RUN,
        "actor_rollout_ref": {"model": {"path": "tiny"}, "rollout": {"n": 2, "temperature": 1.0, **rollout}},
    }


def v2(tmp_path, **skip):
    return config(skip={"enable": True, "dump_dir": str(tmp_path), **skip})


class Workers:
    """A worker group that counts; with `forbidden` it must not be called at all."""

    def __init__(self, forbidden=False):
        self.forbidden = forbidden
        self.returned = []

    def generate_sequences(self, batch, **kwargs):
        assert not self.forbidden, "generation was called on replay"
        batch.non_tensor_batch["priority"] = np.arange(len(batch))  # verl's own does this to its input
        self.returned.append(output_for(batch, seed=len(self.returned) + 100))
        return self.returned[-1]


def skipping(config, forbidden=False):
    workers = Workers(forbidden)
    skip = RolloutSkip(config, workers)
    skip.wrap_generate_sequences()
    return SimpleNamespace(
        skip=skip, workers=workers, generate=lambda b, **kw: workers.generate_sequences(b, **kw)
    )


def step_of(run, step, new_batch=None, gen_steps=None):
    """One step of a V2 trainer; returns its batch and the output."""
    new_batch = prompts_for(step, n=1) if new_batch is None else new_batch
    run.skip.record(new_batch, step, gen_steps)
    return new_batch, run.generate(prompts_for(step))


def tape_of(tmp_path):
    return tmp_path / "exp_proj" / "GBS3_N2_in8_out4"


class Manager:
    """Stands where verl's AgentLoopManager stands, decorated as it is."""

    def __init__(self, forbidden=False):
        self.forbidden = forbidden
        self.calls = 0

    @SkipManager.annotate(role="rollout")
    async def generate_sequences(self, prompts):
        assert not self.forbidden, "generation was called on replay"
        await asyncio.sleep(0)
        prompts.non_tensor_batch["priority"] = np.arange(len(prompts))
        self.calls += 1
        return output_for(prompts, seed=self.calls)

    @SkipManager.annotate(role="rollout")
    def generate_at_once(self, prompts):
        self.calls += 1
        return output_for(prompts, seed=self.calls)

    @SkipManager.annotate(role="async_rollout")
    async def generate_sequences_single(self, prompts):
        assert not self.forbidden
        await asyncio.sleep(0.001 * (hash(prompts.non_tensor_batch["uid"][0]) % 5))
        self.calls += 1
        return output_for(prompts, seed=int(prompts.non_tensor_batch["uid"][0].rsplit("_", 1)[-1]))


def feed(index):
    """One prompt as the fully asynchronous rollouter feeds it: its order is in its uid."""
    prompts = prompts_for(index, prompts=1)
    prompts.non_tensor_batch["uid"] = objects([f"uid_sample_0_{index}"] * 2)
    return prompts


def finish(step, number):
    """A whole step: what went wrong in the background is known at its end."""
    step(number)
    SkipManager.set_step(number + 1)
