"""More of verl's V1 trainers on tapes: validation, asynchronous ones with warm-up, refills, new rewards."""

import pytest
import torch
import transfer_queue as tq
import verl
from verl.utils.skip import SkipManager

import rolltape
from rolltape.integrations.verl import install
from tests.verl.v1 import Generator, consume, exact, make_trainer, prepare

pytestmark = pytest.mark.usefixtures("empty_queue")


@pytest.fixture
def training(trainer_config, tmp_path, monkeypatch):
    """Start a run by the environment alone, or by verl's own skip configuration."""

    def start(generator, replayed=False, mode="sync", skip=False, changes=None, **parts):
        section = {"enable": skip, "dump_dir": "tape:unused", "steps": list(range(1, 9)), "action": "cache"}
        config = trainer_config(
            skip__rollout_tq=section,
            trainer__v1__trainer_mode=mode,
            trainer__v1__colocate_async={"num_warmup_batches": 2, "parameter_sync_step": 1},
            trainer__log_val_generations=0,
            actor_rollout_ref__rollout__val_kwargs={"n": 2},
            **(changes or {}),
        )
        monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
        monkeypatch.setenv("ROLLTAPE_MODE", "replay" if replayed else "auto")
        if skip:
            monkeypatch.setenv("ROLLTAPE_STEPS", "1-8")
        trainer = make_trainer(config, generator, mode=mode, **parts)
        SkipManager.init(config)
        return trainer

    return start


def validate(trainer, step):
    trainer.global_steps = step
    SkipManager.set_step(step)
    return exact(trainer._validate())


def test_validation_is_recorded_and_replayed_where_asked(training, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLTAPE_VERL_VAL", "1")
    trainer = training(Generator())
    recorded = [validate(trainer, 0), consume(trainer, 1), validate(trainer, 1)]
    assert recorded[0] != recorded[2]
    trainer = training(Generator(forbidden=True), replayed=True)
    assert [validate(trainer, 0), consume(trainer, 1), validate(trainer, 1)] == recorded
    assert not any((tq.kv_list() or {}).values())
    install.stop()
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        found = [(at.key.split, at.key.step, at.key.call, at.samples) for at in tape.recordings()]
    assert found == [
        ("train", 1, 0, 4), ("val", 0, 0, 6), ("val", 0, 1, 2), ("val", 1, 0, 6), ("val", 1, 1, 2),
    ]  # fmt: skip


def test_validation_is_left_alone_unless_asked(training, tmp_path):
    generator = Generator()
    trainer = training(generator)
    validate(trainer, 0)
    consume(trainer, 1)
    trainer = training(generator, replayed=True)
    validate(trainer, 0)
    consume(trainer, 1)
    assert generator.prompts == 4 + 2 + 4
    assert not (tmp_path / "tape/val").exists()


def test_other_validation_prompts_are_refused(training, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_VERL_VAL", "1")
    validate(training(Generator()), 0)
    trainer = training(Generator(forbidden=True), replayed=True)
    trainer.val_dataloader.reverse()
    with pytest.raises(rolltape.MismatchError, match="3 prompts, but 1 are asked for"):
        validate(trainer, 0)


def test_an_interrupted_validation_is_recorded_again_as_a_whole(training, monkeypatch, caplog):
    monkeypatch.setenv("ROLLTAPE_VERL_VAL", "1")
    trainer = training(Generator())
    trainer.val_dataloader.pop()  # the run died after the first of two batches
    validate(trainer, 0)
    generator = Generator()
    renewed = validate(training(generator), 0)
    assert generator.prompts == 4
    assert any("1 of its 2 samples" in message for message in caplog.messages)
    assert validate(training(Generator(forbidden=True), replayed=True), 0) == renewed


@pytest.mark.parametrize("skip", [(False, False), (True, True), (False, True), (True, False)])
def test_an_asynchronous_trainer_with_warm_up(training, skip):
    """It trains on prompts submitted steps before; verl leaves its warm-up out where its skip is enabled."""
    generator = Generator()
    trainer = training(generator, mode="colocate_async", skip=skip[0])
    trainer.global_steps = 1
    trainer.on_train_begin()
    recorded = [consume(trainer, step) for step in (1, 2, 3)]
    assert generator.prompts == (2 + 3) * 2
    trained_last = {prompt[0]["content"] for prompt in recorded[2][0][6]}
    assert trained_last <= {f"question {number}" for number in range(6)}  # step 3 has submitted 8 and 9
    left = tq.kv_list()["train"]
    tq.kv_clear(keys=list(left), partition_id="train")

    trainer = training(Generator(forbidden=True), replayed=True, mode="colocate_async", skip=skip[1])
    trainer.global_steps = 1
    trainer.on_train_begin()
    assert trainer.config.skip.rollout_tq.enable is skip[1]
    assert [consume(trainer, step) for step in (1, 2, 3)] == recorded
    with pytest.raises(rolltape.StepMissingError):
        consume(trainer, 4)


def test_steps_after_the_recorded_ones_are_generated_again(training):
    trainer = training(Generator(), mode="colocate_async")
    trainer.global_steps = 1
    trainer.on_train_begin()
    recorded = consume(trainer, 1)
    tq.kv_clear(keys=list(tq.kv_list()["train"]), partition_id="train")
    generator = Generator()
    trainer = training(generator, mode="colocate_async")
    trainer.global_steps = 1
    trainer.on_train_begin()
    assert consume(trainer, 1) == recorded
    assert generator.prompts == 0
    assert {prompt[0]["content"] for prompt in consume(trainer, 2)[0][6]} == {"question 6", "question 7"}


def test_prompts_drawn_for_failed_groups_are_drawn_on_replay_too(training):
    """Else the data loader is behind the recorded one from then on, and the next step has other prompts."""
    parts = {"sync_refill_failed_groups": True, "gen_batch_size": 1}
    changes = {"data__gen_batch_size": 1}
    generator = Generator(failing=2)
    trainer = training(generator, changes=changes, **parts)
    recorded = [consume(trainer, step) for step in (1, 2, 3)]
    assert generator.prompts > 6
    trainer = training(Generator(forbidden=True), replayed=True, changes=changes, **parts)
    assert [consume(trainer, step) for step in (1, 2, 3)] == recorded


def test_a_checkpoint_in_the_making_does_not_generate_for_a_replayed_step(training):
    consume(training(Generator(), mode="colocate_async"), 1)
    trainer = training(Generator(forbidden=True), replayed=True, mode="colocate_async")
    tag = {"is_prompt": True, "status": "running", "global_steps": 0}
    tq.kv_batch_put(keys=["restored"], partition_id="train", tags=[tag])
    trainer.global_steps = 1
    assert trainer._reissue_inflight_prompts() == 0
    assert not (tq.kv_list() or {}).get("train")


def test_a_hybrid_engine_is_not_lent_to_generation_for_a_replayed_step(training):
    consume(training(Generator(), mode="colocate_async"), 1)
    trainer = training(Generator(forbidden=True), replayed=True, mode="colocate_async")
    if verl.__version__ == "0.9.0":  # lends none, and has nobody to ask
        assert not hasattr(trainer.replay_buffer, "get_sampleable_count")
        return
    assert trainer.replay_buffer.get_sampleable_count(1, "train") == 2
    assert trainer.replay_buffer.get_sampleable_count(2, "train") == 0


def reward_worker(ray, factor):
    """A reward worker as verl has it, in a real Ray actor: one question per conversation."""

    @ray.remote
    class RewardWorker:
        async def compute_score(self, data):
            last = data[-1:]
            mask = last.batch["attention_mask"][0]
            tokens = last.batch["responses"][0][: int(last.non_tensor_batch["response_len"][0])]
            truth = last.non_tensor_batch["reward_model"][0]["ground_truth"]
            assert int(mask.sum()) == int(last.non_tensor_batch["prompt_len"][0]) + len(tokens)
            assert last.non_tensor_batch["data_source"][0] == "arithmetic"
            assert last.non_tensor_batch["tool_extra_fields"][0] == {"tool": "none"}
            score = factor * float(tokens.sum())
            return {"reward_score": score, "reward_extra_info": {"acc": float(truth), "outputs": len(data)}}

    return RewardWorker.remote()


@pytest.mark.parametrize("outputs", [1, 2])
def test_rewards_are_computed_again_where_asked(training, ray_session, monkeypatch, tmp_path, outputs):
    source = tmp_path / "reward.py"
    source.write_text("one")
    reward = {"reward": {"custom_reward_function": {"path": str(source), "name": "compute_score"}}}
    recorded = consume(training(Generator(outputs=outputs), changes=reward), 1)[0]
    source.write_text("another")
    with pytest.raises(rolltape.MismatchError, match="reward"):
        training(Generator(forbidden=True), replayed=True, changes=reward)
    monkeypatch.setenv("ROLLTAPE_VERL_REWARD", "recompute")
    trainer = training(
        Generator(forbidden=True),
        replayed=True,
        changes=reward,
        reward_workers=[reward_worker(ray_session, 2.0)],
    )
    trainer.global_steps = 1
    SkipManager.set_step(1)
    prepare(trainer)
    batch, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    assert batch.keys == recorded[0]
    assert [row.tolist() for row in data["responses"].unbind()] == recorded[3]
    responses = dict(zip(batch.keys, data["responses"].unbind(), strict=True))
    for key, scores, extra, answer in zip(
        batch.keys,
        data["rm_scores"].unbind(),
        list(data["extra_fields"]),
        data["reward_model"],
        strict=True,
    ):
        last = responses[f"{key.rpartition('_')[0]}_{outputs - 1}"]
        assert len(scores) == len(responses[key])
        assert scores[-1] == 2.0 * float(last.sum())
        assert torch.count_nonzero(scores[:-1]) == 0
        info = {"acc": float(answer["ground_truth"]), "outputs": outputs}
        assert extra == {"tool": "none", "reward_extra_info": info}


def test_without_reward_workers_new_rewards_are_refused(training, monkeypatch):
    consume(training(Generator()), 1)
    monkeypatch.setenv("ROLLTAPE_VERL_REWARD", "recompute")
    trainer = training(Generator(forbidden=True), replayed=True)
    trainer.reward_loop_manager.reward_loop_worker_handles = None
    with pytest.raises(rolltape.ConfigError, match="no reward workers"):
        consume(trainer, 1)
