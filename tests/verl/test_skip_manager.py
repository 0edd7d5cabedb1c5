"""verl's SkipManager on tapes: its own decorators, its own configuration, once the user opts in."""

import asyncio
import logging
import pickle

import pytest
import torch
from verl import DataProto
from verl.utils.skip import SkipManager
from verl.utils.skip.base_skip import SKIP_REGISTRY

import rolltape
from rolltape.integrations.verl import install
from tests.verl.batches import assert_same, prompts_for
from tests.verl.skips import Manager, feed, finish

FOLDER = "exp_proj/GBS2_N2_in8_out4"


@pytest.fixture
def skipping(trainer_config, tmp_path):
    """Start a run: returns its configuration's manager, and a function that does one step."""

    def start(forbidden=False, dump_dir=f"tape:{tmp_path}", steps=(1, 2, 3), action="cache", **changes):
        section = {"enable": True, "dump_dir": dump_dir, "steps": list(steps), "action": action}
        SkipManager.init(trainer_config(skip__rollout=section, **changes))
        manager = Manager(forbidden)

        def step(number, prompts=None, **meta):
            SkipManager.set_step(number)
            prompts = prompts_for(number, **meta) if prompts is None else prompts
            return asyncio.run(manager.generate_sequences(prompts))

        return manager, step

    return start


def test_recorded_once_replayed_without_generation(skipping):
    _, step = skipping()
    outputs = [step(number) for number in (1, 2, 3)]
    _, again = skipping(forbidden=True)
    for number, output in enumerate(outputs, 1):
        assert_same(again(number), output)


def test_the_tape_lies_where_verl_would_have_dumped(skipping, tmp_path):
    _, step = skipping()
    step(1)
    SkipManager.set_step(2)
    assert (tmp_path / FOLDER / "train/rollout/step_000001.parquet").exists()


def test_without_opting_in_verls_own_dumps_are_written(skipping, tmp_path):
    _, step = skipping(dump_dir=str(tmp_path))
    step(1)
    assert (tmp_path / FOLDER / "1/gen_batch.dp").exists()
    assert list(tmp_path.rglob("tape.json")) == []


@pytest.mark.parametrize(("variable", "tapes"), [("1", 1), ("0", 0)])
def test_the_switch_in_the_environment(skipping, tmp_path, monkeypatch, variable, tapes):
    monkeypatch.setenv("ROLLTAPE_VERL", variable)
    _, step = skipping(dump_dir=str(tmp_path))
    step(1)
    install.flush()
    assert len(list(tmp_path.rglob("tape.json"))) == tapes


def test_switching_off_beats_a_tape_directory(skipping, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_VERL", "off")
    monkeypatch.chdir(tmp_path)
    skipping()[1](1)
    assert list(tmp_path.rglob("tape.json")) == []


def test_env_alone_needs_no_skip_configuration(trainer_config, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
    outputs = {}
    for mode in ("record", "replay"):
        monkeypatch.setenv("ROLLTAPE_MODE", mode)
        SkipManager.init(trainer_config())
        manager = Manager(forbidden=mode == "replay")
        for number in (1, 2):
            SkipManager.set_step(number)
            output = asyncio.run(manager.generate_sequences(prompts_for(number)))
            assert_same(outputs.setdefault(number, output), output)


def test_a_section_rolltape_of_the_configuration(trainer_config, tmp_path):
    SkipManager.init(trainer_config(rolltape={"dir": str(tmp_path / "tape"), "mode": "record", "steps": "2"}))
    manager = Manager()
    for number in (1, 2):
        SkipManager.set_step(number)
        asyncio.run(manager.generate_sequences(prompts_for(number)))
    install.flush()
    assert [found.key.step for found in rolltape.Tape(tmp_path / "tape", mode="replay").recordings()] == [2]


def test_steps_that_are_not_listed_run_live(skipping, tmp_path):
    manager, step = skipping(steps=[2])
    for number in (1, 2, 3):
        step(number)
    install.flush()
    assert manager.calls == 3
    assert [p.name for p in (tmp_path / FOLDER).rglob("step_*.parquet") if ".in." not in p.name] == [
        "step_000002.parquet"
    ]


def test_repeat_plays_the_nearest_recorded_step_and_says_so(skipping, caplog):
    _, step = skipping(steps=[1, 2])
    outputs = [step(number) for number in (1, 2)]
    manager, again = skipping(steps=range(1, 6), action="repeat", forbidden=True)
    assert_same(again(2), outputs[1])
    assert torch.equal(again(5).batch["responses"], outputs[1].batch["responses"])
    assert manager.calls == 0
    assert any("plays the recording of step 2" in message for message in caplog.messages)


def test_a_substituted_step_brings_its_own_prompts(skipping):
    _, step = skipping(steps=[1])
    recorded = prompts_for(1)
    answers, uids = (
        recorded.non_tensor_batch["reward_model"].tolist(),
        recorded.non_tensor_batch["uid"].tolist(),
    )
    step(1, recorded)
    _, again = skipping(steps=[1, 2], action="repeat", forbidden=True)
    other = prompts_for(2)
    again(2, other)
    assert other.non_tensor_batch["reward_model"].tolist() == answers
    assert other.non_tensor_batch["uid"].tolist() == uids


def test_the_trainers_batch_gets_the_answers_of_a_substituted_step(skipping):
    """Defect 1: verl joins cached responses to live uids and answers."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    _, step = skipping(steps=[1])
    recorded = prompts_for(1)
    step(1, recorded)
    _, again = skipping(steps=[1, 2], action="repeat", forbidden=True)
    trainer = object.__new__(RayPPOTrainer)
    trainer.global_steps = 2
    SkipManager.set_step(2)
    batch = prompts_for(2, n=1)
    gen_batch = trainer._get_gen_batch(batch).repeat(2, interleave=True)
    again(2, gen_batch)
    for name in ("uid", "reward_model"):
        assert batch.non_tensor_batch[name].tolist() == recorded.non_tensor_batch[name][::2].tolist()


def test_other_prompts_are_refused_and_named(skipping):
    _, step = skipping()
    step(1)
    _, again = skipping(forbidden=True)
    with pytest.raises(rolltape.MismatchError, match=r"question 2.*question 18"):
        again(1, prompts_for(9))


def test_several_generations_in_one_step(skipping):
    """Defect 5: verl lets the refills of DAPO run live."""
    _, step = skipping()
    outputs = [step(1) for _ in range(3)]
    _, again = skipping(forbidden=True)
    for output in outputs:
        assert_same(again(1), output)


def test_validation_is_left_alone_unless_asked(skipping, monkeypatch):
    manager, step = skipping()
    step(1, validate=True, global_steps=1)
    step(1, validate=True, global_steps=1)
    assert manager.calls == 2
    monkeypatch.setenv("ROLLTAPE_VERL_VAL", "true")
    _, step = skipping(steps=[0, 1])  # validation before training is step 0
    outputs = [
        step(-1, prompts_for(0, validate=True, global_steps=0)),
        step(1),
        step(1, validate=True, global_steps=1),
    ]
    _, again = skipping(steps=[0, 1], forbidden=True)
    assert_same(again(-1, prompts_for(0, validate=True, global_steps=0)), outputs[0])
    assert_same(again(1), outputs[1])
    assert_same(again(1, validate=True, global_steps=1), outputs[2])


def test_a_failure_to_record_stops_the_run(skipping, tmp_path):
    """Defect 6: verl prints it, and goes on without a cache."""
    _, step = skipping()
    step(1)
    SkipManager.set_step(2)
    folder = tmp_path / FOLDER / "train/rollout"
    folder.rename(folder.with_name("moved"))
    folder.write_text("in the way")
    with pytest.raises(rolltape.RolltapeError):
        finish(step, 2)


def test_a_relative_directory_is_resolved_once_with_a_warning(skipping, tmp_path, monkeypatch, caplog):
    """Defect 7: verl resolves it in each actor's own working directory."""
    monkeypatch.setenv("ROLLTAPE_CWD", str(tmp_path))
    monkeypatch.chdir("/")
    skipping(dump_dir="tape:dumps")[1](1)
    install.flush()
    assert (tmp_path / "dumps" / FOLDER / "tape.json").exists()
    assert any("relative" in message and str(tmp_path) in message for message in caplog.messages)


@pytest.mark.parametrize(("part", "change"), [
    ("model", {"actor_rollout_ref__model__path": "other"}),
    ("sampling", {"actor_rollout_ref__rollout__temperature": 0.5}),
    ("data", {"data__train_files": "other.parquet"}),
    ("seed", {"data__seed": 2}),
])  # fmt: skip
def test_another_model_temperature_dataset_or_seed_is_refused(skipping, part, change):
    """Defect 12: nothing anywhere compares them."""
    skipping()[1](1)
    with pytest.raises(rolltape.MismatchError, match=part):
        skipping(**change)


def test_an_edited_reward_is_not_silently_without_effect(skipping, tmp_path):
    """Defect 2: rm_scores come from the cache, and nobody says so."""
    source = tmp_path / "reward.py"
    source.write_text("def compute_score(**k): return 1.0")
    change = {"reward": {"custom_reward_function": {"path": str(source), "name": "compute_score"}}}
    skipping(**change)[1](1)
    source.write_text("def compute_score(**k): return 0.0")
    with pytest.raises(rolltape.MismatchError, match="reward"):
        skipping(**change)


def test_pickled_dumps_are_noticed_and_named(skipping, tmp_path, caplog):
    _, step = skipping(dump_dir=str(tmp_path))
    for number in (1, 2):
        step(number)
    _, step = skipping()
    folder = tmp_path / FOLDER
    expected = f"rolltape import {folder} --to {folder}"
    assert any(expected in message and "2 steps, 1 to 2" in message for message in caplog.messages)


def test_one_log_line_announces_the_tape(skipping, caplog):
    caplog.set_level(logging.INFO, "rolltape")
    skipping()[1](1)
    assert sum(message.startswith("rolltape: verl uses tape") for message in caplog.messages) == 1


def test_verls_registry_stays_its_own(skipping):
    skipping()
    assert {cls.__module__ for cls in SKIP_REGISTRY.values()} == {"verl.utils.skip.rollout_skip"}


def test_sync_functions_too(skipping):
    manager, _ = skipping()
    SkipManager.set_step(1)
    output = manager.generate_at_once(prompts_for(1))
    again, _ = skipping()
    SkipManager.set_step(1)
    assert_same(again.generate_at_once(prompts_for(1)), output)
    assert (manager.calls, again.calls) == (1, 0)


def test_what_is_recorded_is_no_pickle(skipping, tmp_path):
    skipping()[1](1)
    install.flush()
    for path in (tmp_path / FOLDER).rglob("*"):
        if path.is_file():
            with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, IndexError, EOFError)):
                pickle.loads(path.read_bytes())


def test_many_prompts_at_once_in_no_fixed_order(trainer_config, tmp_path):
    """The fully asynchronous trainer: the step is the order in which prompts are fed."""
    section = {"enable": True, "dump_dir": f"tape:{tmp_path}", "steps": list(range(32)), "action": "cache"}

    async def generate(manager, order):
        outputs = await asyncio.gather(*[manager.generate_sequences_single(feed(index)) for index in order])
        return dict(zip(order, outputs, strict=True))

    SkipManager.init(trainer_config(skip__async_rollout=section))
    recorded = asyncio.run(generate(Manager(), list(range(32))))
    SkipManager.init(trainer_config(skip__async_rollout=section))
    replayed = asyncio.run(generate(Manager(forbidden=True), list(reversed(range(32)))))
    for index, output in recorded.items():
        assert_same(replayed[index], output)


def test_two_sessions_do_not_share_a_count_of_calls(skipping):
    _, step = skipping()
    first = step(1)
    _, again = skipping(forbidden=True)
    assert_same(again(1), first)
    assert isinstance(first, DataProto)
