"""verl's V1 trainer on tapes: its replay buffer, its trainer's methods, a real TransferQueue in Ray."""

import random
import uuid

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.utils import tensordict_utils as tu
from verl.utils.skip import SkipManager

import rolltape
from rolltape.integrations.verl import install
from tests.verl.batches import objects

tq = pytest.importorskip("transfer_queue")


@pytest.fixture(scope="module")
def queue(ray_session):
    """One TransferQueue with one storage unit."""
    tq.init(
        OmegaConf.create(
            {"backend": {"SimpleStorage": {"num_data_storage_units": 1, "total_storage_size": 1000}}}
        )
    )
    yield tq
    tq.close()


@pytest.fixture(autouse=True)
def empty_queue(queue):
    yield
    for partition, items in (queue.kv_list() or {}).items():
        if items:
            queue.kv_clear(keys=list(items), partition_id=partition)


class Generator:
    """In place of verl's agent loops: puts n trajectories per prompt into the queue, in a random order."""

    def __init__(self, n=2, forbidden=False, outputs=1):
        self.n, self.forbidden, self.outputs = n, forbidden, outputs
        self.prompts = 0

    def generate_sequences(self, batch):
        assert not self.forbidden, "generation was called on replay"
        uids = list(batch["uid"])
        self.prompts += len(uids)
        jobs = [(row, session) for row in range(len(uids)) for session in range(self.n)]
        random.shuffle(jobs)
        for row, session in jobs:
            self._put(batch, uids[row], row, session)
        tags = [{"is_prompt": True, "status": "finished", "global_steps": int(batch["global_steps"])}] * len(
            uids
        )
        tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)

    def _put(self, batch, uid, row, session):
        keys = [f"{uid}_{session}_{index}" for index in range(self.outputs)]
        fields = [
            {
                "uid": uid, "raw_prompt": batch["raw_prompt"][row],
                "responses": torch.randint(0, 99, (random.randint(1, 6),)), "rm_scores": torch.rand(3),
            }
            for _ in keys
        ]  # fmt: skip
        step = int(batch["global_steps"])
        tag = {
            "status": "success",
            "seq_len": 9,
            "global_steps": step,
            "min_global_steps": step,
            "max_global_steps": step,
        }
        tq.kv_batch_put(
            keys=keys,
            partition_id="train",
            fields=tu.list_of_dict_to_tensordict(fields),
            tags=[dict(tag) for _ in keys],
        )


def make_trainer(config, generator, first_prompt=0):
    """verl's own synchronous trainer with the parts that generation needs, and a data loader of numbers."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.global_steps = config, "sync", 0
    trainer.agent_loop_manager = generator
    trainer.replay_buffer = ReplayBuffer(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=1, max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}), poll_interval=0.02,
    )  # fmt: skip
    drawn = iter(range(first_prompt, 1000))

    def draw():
        numbers = [next(drawn) for _ in range(config.data.train_batch_size)]
        return tu.get_tensordict({
            "raw_prompt": objects([[{"role": "user", "content": f"question {n}"}] for n in numbers]),
            "reward_model": objects([{"ground_truth": str(number)} for number in numbers]),
            "uid": np.array([str(uuid.uuid4()) for _ in numbers], dtype=object),
        })  # fmt: skip

    trainer._fetch_one_gen_batch = draw
    return trainer


def consume(trainer, step, samples=1):
    """One step as `PPOTrainer.step` has it: prepare, then sample; returns what training would see."""
    trainer.global_steps = step
    SkipManager.set_step(step)
    trainer.prepare_step()
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
            data["rm_scores"].numpy().tobytes() if not data["rm_scores"].is_nested
            else [row.tolist() for row in data["rm_scores"].unbind()],
            list(data["uid"]), [list(prompt) for prompt in data["raw_prompt"]],
        ))  # fmt: skip
    for keys, *_ in seen:
        tq.kv_clear(keys=keys, partition_id="train")
    return seen


@pytest.fixture
def training(trainer_config, tmp_path):
    def start(generator, steps=range(1, 9), action="cache", first_prompt=0, **changes):
        section = {"enable": True, "dump_dir": f"tape:{tmp_path}", "steps": list(steps), "action": action}
        config = trainer_config(skip__rollout_tq=section, **changes)
        trainer = make_trainer(config, generator, first_prompt)
        SkipManager.init(config)
        return trainer

    return start


def test_what_training_sees_is_the_same_in_every_bit_and_in_order(training):
    """Defect 13: verl's own skip regroups rows by uid, and the replayed weights differ."""
    trainer = training(Generator())
    recorded = [consume(trainer, step) for step in range(1, 6)]
    trainer = training(Generator(forbidden=True))
    assert [consume(trainer, step) for step in range(1, 6)] == recorded


def test_every_output_of_a_conversation_is_kept_under_its_key(training):
    """Defect 4: verl rewrites keys as uid_session_0 and drops further outputs."""
    recorded = consume(training(Generator(outputs=3)), 1)
    assert len(recorded[0][0]) == 2 * 2 * 3
    assert consume(training(Generator(forbidden=True)), 1) == recorded


def test_the_data_loader_stays_aligned_when_steps_are_replayed(training):
    consume(training(Generator()), 1)
    generator = Generator()
    trainer = training(generator)
    consume(trainer, 1)
    seen = consume(trainer, 2)
    assert generator.prompts == 2
    assert {prompt[0]["content"] for prompt in seen[0][-1]} == {"question 2", "question 3"}


def test_other_prompts_are_refused(training):
    consume(training(Generator()), 1)
    with pytest.raises(rolltape.MismatchError, match=r"question 0.*question 7"):
        consume(training(Generator(forbidden=True), first_prompt=7), 1)


def test_groups_are_not_cycled_to_fill_a_larger_batch(training):
    """verl fills up by repeating groups; here that is refused."""
    consume(training(Generator()), 1)
    changes = {"data__train_batch_size": 4, "data__gen_batch_size": 2}
    with pytest.raises(rolltape.MismatchError):
        consume(training(Generator(forbidden=True), action="repeat", **changes), 2)


def test_an_interrupted_step_is_recorded_again_as_a_whole(training, caplog):
    """Defect 3: verl completes a half recorded step with mini-batches of another run."""
    two = {"trainer__v1__sync__parameter_sync_step": 2}
    trainer = training(Generator(), **two)
    trainer.global_steps = 1
    SkipManager.set_step(1)
    trainer.prepare_step()
    old, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    old_keys = set(old.keys)
    left = tq.kv_list()["train"]
    tq.kv_clear(keys=list(left), partition_id="train")  # the run dies here, after one of two samples

    generator = Generator()
    renewed = consume(training(generator, **two), 1, samples=2)
    assert generator.prompts == 2
    assert not old_keys & {key for keys, *_ in renewed for key in keys}
    assert any("interrupted" in message for message in caplog.messages)
    assert consume(training(Generator(forbidden=True), **two), 1, samples=2) == renewed


def test_an_interrupted_step_is_refused_in_replay(training, monkeypatch):
    two = {"trainer__v1__sync__parameter_sync_step": 2}
    trainer = training(Generator(), **two)
    SkipManager.set_step(1)
    trainer.global_steps = 1
    trainer.prepare_step()
    trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    with pytest.raises(rolltape.StepMissingError, match="1 of its 2 samples"):
        consume(training(Generator(forbidden=True), **two), 1, samples=2)


def test_repeat_plays_another_step_with_its_own_prompts_as_fresh_samples(training):
    recorded = consume(training(Generator(), steps=[1]), 1)
    seen = consume(training(Generator(forbidden=True), action="repeat"), 5)
    assert seen[0][0] == recorded[0][0]
    assert seen[0][3:] == recorded[0][3:]
    assert {tag["global_steps"] for tag in seen[0][1]} == {5}


def test_validation_goes_through_the_live_buffer(training):
    trainer = training(Generator())
    tag = {"status": "success", "global_steps": 0}
    fields = tu.list_of_dict_to_tensordict([{"responses": torch.tensor([1])}])
    tq.kv_batch_put(keys=["v_0_0"], partition_id="val", fields=fields, tags=[tag])
    prompt = [{"is_prompt": True, "status": "finished", "global_steps": 0}]
    tq.kv_batch_put(keys=["v"], partition_id="val", tags=prompt)
    batch, _ = trainer.replay_buffer.sample(global_steps=0, partition_id="val", batch_size=1)
    assert batch.keys == ["v_0_0"]


def test_without_opting_in_verl_dumps_as_it_does(training, trainer_config, tmp_path):
    section = {"enable": True, "dump_dir": str(tmp_path), "steps": [1], "action": "cache"}
    config = trainer_config(skip__rollout_tq=section)
    trainer = make_trainer(config, Generator())
    SkipManager.init(config)
    consume(trainer, 1)
    assert len(list(tmp_path.rglob("tq_batch.pt"))) == 1
    assert install.queue("rollout_tq") is None
