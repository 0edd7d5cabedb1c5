"""verl's fully asynchronous rollouter on tapes: its own classes, its queue and workers in Ray."""

import asyncio
import random

import pytest
import torch
from verl.experimental.fully_async_policy.fully_async_rollouter import (
    FullyAsyncAgentLoopManager,
    FullyAsyncRollouter,
)
from verl.experimental.fully_async_policy.message_queue import MessageQueue, MessageQueueClient
from verl.utils.skip import SkipManager

import rolltape
from tests.verl.batches import assert_same, objects

SAMPLES = 12


@pytest.fixture(scope="module")
def workers(ray_session):
    """Two workers that take turns; each counts what it generated, and is done in any order."""

    @ray_session.remote(num_cpus=0.1)
    class Worker:
        def __init__(self):
            self.generated = 0

        async def generate_sequences(self, prompts):
            from tensordict import TensorDict

            for _ in range(random.randrange(50)):
                await asyncio.sleep(0)
            self.generated += 1
            tensors = {"responses": torch.randint(0, 99, (len(prompts), 4)), "rm_scores": torch.rand(2, 4)}
            batch = TensorDict(tensors, batch_size=len(prompts))
            return type(prompts)(batch=batch, meta_info={"metrics": [{"generate_sequences": 0.5}] * 2})

        def count(self):
            return self.generated

    return [Worker.remote(), Worker.remote()]


def prompt(number):
    """One prompt as the data loader makes it."""
    return {
        "dummy_tensor": torch.zeros(1, 1, dtype=torch.uint8),
        "raw_prompt": objects([[{"role": "user", "content": f"question {number}"}]]),
        "reward_model": objects([{"ground_truth": str(number)}]),
    }


async def roll_out(config, ray, workers, first=1, until=None):
    """Run the rollouter's own coroutines to the end; returns what the trainer would get, by sample.

    With ``until``, it is broken off as soon as that happens, with everything that is on its way.
    """
    rollouter = object.__new__(FullyAsyncRollouter.__ray_metadata__.modified_class)
    manager = object.__new__(FullyAsyncAgentLoopManager)
    manager.agent_loop_workers = workers
    rollouter.config, rollouter.async_rollout_manager = config, manager
    rollouter.global_steps, rollouter.total_rollout_steps = first, SAMPLES
    rollouter.train_dataloader = [prompt(number) for number in range(first, SAMPLES + 1)]
    rollouter.pending_queue, rollouter.active_tasks = asyncio.Queue(maxsize=8), set()
    rollouter.max_concurrent_samples, rollouter.max_queue_size = 5, 100
    rollouter.max_required_samples, rollouter.required_samples, rollouter.staleness_threshold = 100, 4, 1
    rollouter.paused, rollouter.running, rollouter._active_count_history = False, True, []
    for counter in (
        "staleness_samples", "total_generated_samples", "_step_generated_samples", "dropped_stale_samples",
        "processed_sample_count",
    ):  # fmt: skip
        setattr(rollouter, counter, 0)
    actor = MessageQueue.options(num_cpus=0.1).remote(config, 100)
    rollouter._init_async_objects()
    await rollouter.set_message_queue_client(MessageQueueClient(actor))
    rolling = asyncio.create_task(rollouter._streaming_generation_main())
    while until is not None and not until():
        assert not rolling.done(), "it was over before it could be broken off"
        await asyncio.sleep(0.001)
    if until is not None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        ray.kill(actor)
        return {}
    await rolling
    found = {}
    while (sample := await rollouter.message_queue_client.get_sample()) is not None:
        packed = sample[0] if isinstance(sample, tuple) else sample
        if packed is None:
            break
        sample = ray.cloudpickle.loads(packed)
        found[sample.sample_id] = sample.full_batch
    ray.kill(actor)
    return found


@pytest.fixture
def config(trainer_config, tmp_path):
    def make(**section):
        skip = {
            "enable": True, "dump_dir": f"tape:{tmp_path}", "steps": list(range(1, SAMPLES + 1)),
            "action": "cache", **section,
        }  # fmt: skip
        return trainer_config(
            skip__async_rollout=skip,
            trainer__total_epochs=1,
            actor_rollout_ref__rollout__multi_turn={"enable": False},
        )

    return make


def run(config, ray, workers, **options):
    SkipManager.init(config)
    return asyncio.run(roll_out(config, ray, workers, **options))


def generated(ray, workers):
    return sum(ray.get([worker.count.remote() for worker in workers]))


def test_every_sample_is_recorded_and_replayed_without_a_worker(config, ray_session, workers, tmp_path):
    recorded = run(config(), ray_session, workers)
    before = generated(ray_session, workers)
    assert sorted(recorded) == sorted(f"sample_0_{number}" for number in range(1, SAMPLES + 1))
    (tape,) = tmp_path.rglob("tape.json")  # on disk without a close: the actor may be killed at the end
    written = [path for path in tape.parent.rglob("step_*.parquet") if ".in." not in path.name]
    assert len(written) == SAMPLES

    replayed = run(config(), ray_session, workers)
    assert generated(ray_session, workers) == before
    assert sorted(replayed) == sorted(recorded)
    for name, output in recorded.items():
        assert_same(replayed[name], output)


def test_resumed_in_the_middle_it_plays_the_samples_fed_from_there(config, ray_session, workers):
    recorded = run(config(), ray_session, workers)
    before = generated(ray_session, workers)
    resumed = run(config(), ray_session, workers, first=7)
    assert generated(ray_session, workers) == before
    for name, output in resumed.items():
        assert_same(output, recorded[name])


def test_a_sample_that_was_not_recorded_is_generated_and_recorded(config, ray_session, workers):
    run(config(steps=[1, 2, 3]), ray_session, workers)
    before = generated(ray_session, workers)
    run(config(), ray_session, workers)
    assert generated(ray_session, workers) - before == SAMPLES - 3


def test_a_run_that_is_broken_off_goes_on_with_the_samples_that_had_finished(
    config, ray_session, workers, tmp_path
):
    def recorded():
        there = [path for path in tmp_path.rglob("step_*.parquet") if ".in." not in path.name]
        return {int(path.name[5:11]): path.read_bytes() for path in there}

    run(config(), ray_session, workers, until=lambda: len(recorded()) >= 3)
    finished = recorded()
    assert 3 <= len(finished) < SAMPLES
    before = generated(ray_session, workers)
    found = run(config(), ray_session, workers)
    assert len(found) == SAMPLES
    assert generated(ray_session, workers) - before == SAMPLES - len(finished)
    assert {number: recorded()[number] for number in finished} == finished
    (tape,) = tmp_path.rglob("tape.json")
    for one in rolltape.open(tape.parent).recordings("rollout"):
        assert torch.equal(
            found[f"sample_0_{one.key.step}"].batch["responses"], one.value().batch["responses"]
        )


def test_other_prompts_stop_the_rollouter(config, ray_session, workers, monkeypatch):
    run(config(), ray_session, workers)
    monkeypatch.setitem(globals(), "prompt", lambda number, make=prompt: make(number + 50))
    with pytest.raises(rolltape.MismatchError, match=r"question \d+.*question \d+"):
        run(config(), ray_session, workers)
