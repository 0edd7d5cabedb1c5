"""verl's V1 trainer on tapes: its replay buffer, its trainer's methods, a real TransferQueue in Ray."""

import pytest
import torch
import transfer_queue as tq
from verl.utils import tensordict_utils as tu
from verl.utils.skip import SkipManager

import rolltape
from rolltape.integrations.verl import install
from tests.listening import assert_ray_is_of_this_machine_alone
from tests.verl.v1 import Generator, consume, make_trainer, prepare

pytestmark = pytest.mark.usefixtures("empty_queue")


@pytest.fixture
def training(trainer_config, tmp_path):
    def start(generator, steps=range(1, 9), action="cache", first_prompt=0, **changes):
        section = {"enable": True, "dump_dir": f"tape:{tmp_path}", "steps": list(steps), "action": action}
        config = trainer_config(skip__rollout_tq=section, **changes)
        trainer = make_trainer(config, generator, first_prompt)
        SkipManager.init(config)
        return trainer

    return start


def test_nobody_but_this_machine_can_reach_the_cluster_and_the_queue():
    assert_ray_is_of_this_machine_alone()


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


LARGER = {"data__train_batch_size": 5, "data__gen_batch_size": 5}


@pytest.mark.parametrize("relaxed", [False, True])
def test_another_number_of_prompts_is_refused_and_the_way_to_ask_is_named(
    training, monkeypatch, tmp_path, relaxed
):
    """verl fills up by repeating groups, unasked; here that is refused, at the start or at the step."""
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
    consume(training(Generator()), 1)
    if relaxed:
        monkeypatch.setenv("ROLLTAPE_MATCH", '{"data": "ignore"}')
    for step, action in ((1, "cache"), (2, "repeat")):
        with pytest.raises(rolltape.MismatchError, match="ROLLTAPE_VERL_GROUPS=cycle"):
            consume(training(Generator(forbidden=True), action=action, **LARGER), step)


@pytest.mark.parametrize(("size", "asked_by"), [(5, "environment"), (5, "configuration"), (1, "environment")])
@pytest.mark.parametrize("step", [1, 4])
def test_groups_are_cycled_whole_where_asked(training, monkeypatch, tmp_path, caplog, size, asked_by, step):
    """Also at another step, which plays the nearest; every trajectory of a prompt is kept."""
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
    recorded = consume(training(Generator(outputs=2)), 1)[0]
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    changes = {"data__train_batch_size": size, "data__gen_batch_size": size}
    if asked_by == "environment":
        monkeypatch.setenv("ROLLTAPE_VERL_GROUPS", "cycle")
    else:
        changes["rolltape"] = {"verl": {"groups": "cycle"}}
    once, again = (
        consume(training(Generator(forbidden=True), action="repeat", **changes), step)[0] for _ in range(2)
    )
    assert once == again
    keys, responses = once[0], once[3]
    assert len(set(keys)) == len(keys) == size * 2 * 2
    assert once[5] == [key.split("_")[0] for key in keys]
    kept = [key for key in recorded[0] if key in keys]
    assert keys[: len(kept)] == kept
    assert len({key.split("_")[0] for key in kept}) == min(size, 2)
    groups = {}
    for key, *parts in zip(keys, responses, once[6], strict=True):
        uid, _, trajectory = key.partition("_")
        groups.setdefault(uid, {})[trajectory] = parts
    source = {}
    for key, *parts in zip(recorded[0], recorded[3], recorded[6], strict=True):
        uid, _, trajectory = key.partition("_")
        source.setdefault(uid, {})[trajectory] = parts
    assert list(groups.values()) == [list(source.values())[at % 2] for at in range(size)]
    assert {tag["global_steps"] for tag in once[1]} == {step}
    assert sum(message.startswith("substituted: ") for message in caplog.messages) == 2
    assert install.queue("rollout_tq").session.resized == 1


def test_a_batch_of_the_recorded_size_is_checked_as_ever(training, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_VERL_GROUPS", "cycle")
    recorded = consume(training(Generator()), 1)
    assert consume(training(Generator(forbidden=True)), 1) == recorded
    with pytest.raises(rolltape.MismatchError, match=r"question 0.*question 7"):
        consume(training(Generator(forbidden=True), first_prompt=7), 1)


def test_an_interrupted_step_is_recorded_again_as_a_whole(training, caplog):
    """Defect 3: verl completes a half recorded step with mini-batches of another run."""
    two = {"trainer__v1__sync__parameter_sync_step": 2}
    trainer = training(Generator(), **two)
    trainer.global_steps = 1
    SkipManager.set_step(1)
    prepare(trainer)
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
    prepare(trainer)
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
