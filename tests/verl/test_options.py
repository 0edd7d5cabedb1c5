"""Which tape a run uses: decided from its configuration and the environment, without opening anything."""

import pytest

import rolltape
from rolltape.integrations.verl.config import Run, fingerprint, pick
from rolltape.integrations.verl.options import Groups, Rewards, opted_in, plans
from rolltape.integrations.verl.session import Session


def config(skip=None, **rest):
    return {"trainer": {"experiment_name": "e", "project_name": "p"}, "skip": skip or {}, **rest}


ENABLED = {"enable": True, "dump_dir": "/dumps", "steps": [1, 2], "action": "cache"}
ON_TAPE = {**ENABLED, "dump_dir": "tape:/dumps"}


@pytest.mark.parametrize(("skip", "env", "expected"), [
    ({}, {}, False),
    ({"rollout": ENABLED}, {}, False),
    ({"rollout": ON_TAPE}, {}, True),
    ({"rollout_tq": ON_TAPE}, {}, True),
    ({"async_rollout": ON_TAPE}, {}, True),
    ({"rollout": {**ON_TAPE, "enable": False}}, {}, False),
    ({"rollout": ENABLED}, {"ROLLTAPE_VERL": "1"}, True),
    ({}, {"ROLLTAPE_DIR": "/t"}, True),
    ({}, {"ROLLTAPE_DIR": "/t", "ROLLTAPE_VERL": "0"}, False),
    ({"rollout": ON_TAPE}, {"ROLLTAPE_VERL": "off"}, False),
])  # fmt: skip
def test_opting_in(skip, env, expected):
    assert opted_in(config(skip), env) is expected


def test_cache_and_repeat():
    (cache,) = plans(config({"rollout": ON_TAPE}), {}, "/")
    assert (str(cache.settings.mode), cache.settings.on_miss, str(cache.settings.steps)) == (
        "auto",
        None,
        "1-2",
    )
    assert cache.settings.dir == "/dumps/e_p/GBS0_N0_in0_out0"
    (repeat,) = plans(config({"rollout": {**ON_TAPE, "action": "repeat"}}), {}, "/")
    assert str(repeat.settings.on_miss) == "nearest"


def test_the_environment_beats_the_configuration():
    env = {"ROLLTAPE_DIR": "/t", "ROLLTAPE_MODE": "replay", "ROLLTAPE_STEPS": "5"}
    (plan,) = plans(config({"rollout": ON_TAPE}, rolltape={"mode": "record", "dir": "/other"}), env, "/")
    assert (plan.role, plan.settings.dir, str(plan.settings.mode), str(plan.settings.steps)) == (
        "*", "/t", "replay", "5",
    )  # fmt: skip
    assert plan.settings.on_miss is None


def test_replay_by_environment_of_a_cached_configuration_does_not_begin_to_record():
    (plan,) = plans(config({"rollout": ON_TAPE}), {"ROLLTAPE_MODE": "replay"}, "/")
    assert str(plan.settings.mode) == "replay"
    assert plan.settings.on_miss is None


def test_each_role_has_its_own_tape():
    found = plans(config({"rollout": ON_TAPE, "async_rollout": {**ON_TAPE, "dump_dir": "tape:/b"}}), {}, "/")
    assert [(plan.role, plan.settings.dir.split("/")[1]) for plan in found] == [
        ("rollout", "dumps"), ("async_rollout", "b"),
    ]  # fmt: skip


def test_off_is_off():
    assert plans(config({"rollout": ON_TAPE}), {"ROLLTAPE_MODE": "off"}, "/") == []


@pytest.mark.parametrize(("env", "val", "rewards"), [
    ({}, False, Rewards.RECORDED),
    ({"ROLLTAPE_VERL_VAL": "1"}, True, Rewards.RECORDED),
    ({"ROLLTAPE_VERL_REWARD": "recompute"}, False, Rewards.RECOMPUTE),
])  # fmt: skip
def test_wishes(env, val, rewards):
    (plan,) = plans(config({"rollout": ON_TAPE}), env, "/")
    assert (plan.wishes.val, plan.wishes.rewards) == (val, rewards)


def test_wishes_in_the_configuration():
    section = {"verl": {"val": True, "reward": "recompute"}, "on_error": "warn"}
    (plan,) = plans(config({"rollout": ON_TAPE}, rolltape=section), {}, "/")
    assert (plan.wishes.val, plan.wishes.rewards) == (True, Rewards.RECOMPUTE)
    assert str(plan.settings.on_error) == "warn"
    with pytest.raises(rolltape.ConfigError, match=r"rolltape\.verl\.vall"):
        plans(config({"rollout": ON_TAPE}, rolltape={"verl": {"vall": True}}), {}, "/")


def test_groups_are_cycled_only_where_asked():
    (plan,) = plans(config({"rollout": ON_TAPE}), {}, "/")
    assert (plan.wishes.groups, plan.settings.match) == (Groups.REFUSE, {})
    (plan,) = plans(config({"rollout": ON_TAPE}), {"ROLLTAPE_VERL_GROUPS": "cycle"}, "/")
    assert plan.wishes.groups is Groups.CYCLE
    assert {part: str(level) for part, level in plan.settings.match.items()} == {"data": "warn"}
    section = {"verl": {"groups": "cycle"}, "match": {"data": "error"}}
    (plan,) = plans(config({"rollout": ON_TAPE}, rolltape=section), {}, "/")
    assert (plan.wishes.groups, str(plan.settings.match["data"])) == (Groups.CYCLE, "error")
    with pytest.raises(rolltape.ConfigError, match="refuse, cycle"):
        plans(config({"rollout": ON_TAPE}), {"ROLLTAPE_VERL_GROUPS": "fill"}, "/")


def test_an_action_that_a_tape_cannot_do():
    with pytest.raises(rolltape.ConfigError, match="random"):
        plans(config({"rollout": {**ON_TAPE, "action": "random"}}), {}, "/")


def test_folders_are_named_as_verl_names_them():
    run = Run("exp", "proj", 8, 16, 4, 512, 1024)
    assert run.v1_folder == "exp_proj_TrainGBS8__InferGBS16__N4"
    assert run.folder == "exp_proj/GBS16_N4_in512_out1024"


def test_a_fingerprint_says_what_the_configuration_says(tmp_path):
    source = tmp_path / "reward.py"
    source.write_text("a")
    reward = {"custom_reward_function": {"path": str(source), "name": "score"}}
    first = fingerprint(config(data={"train_files": ["a"], "seed": 1}, reward=reward))
    assert (first["data"]["train_files"], first["seed"]) == (["a"], {"data": 1})
    source.write_text("b")
    assert fingerprint(config(reward=reward))["reward"] != first["reward"]


def test_pick_reads_whatever_a_configuration_is_made_of():
    from types import SimpleNamespace

    from omegaconf import OmegaConf

    for node in ({"a": {"b": 1}}, OmegaConf.create({"a": {"b": 1}}), SimpleNamespace(a=SimpleNamespace(b=1))):
        assert pick(node, "a.b") == 1
        assert pick(node, "a.c.d", "none") == "none"


CRITIC = {
    "critic": {"enable": None, "fsdp": {"full_determinism": False}},
    "algorithm": {"adv_estimator": "gae"},
}
ACTOR = {"actor_rollout_ref": {"actor": {"fsdp_config": {"full_determinism": False}}}}


@pytest.mark.parametrize(("parts", "expected"), [
    ({**CRITIC, **ACTOR}, ["critic.fsdp", "actor_rollout_ref.actor.fsdp_config"]),
    (CRITIC, ["critic.fsdp"]),
    ({**CRITIC, "critic": {"fsdp": {"full_determinism": True}}}, []),
    ({**CRITIC, "critic": {"veomni": {"full_determinism": False}}}, ["critic.veomni"]),
    ({**CRITIC, "algorithm": {"adv_estimator": "grpo"}}, []),
    ({**CRITIC, "critic": {**CRITIC["critic"], "enable": False}}, []),
    ({"critic": {"enable": True, "fsdp": {"full_determinism": False}}}, ["critic.fsdp"]),
])  # fmt: skip
def test_a_critic_that_begins_at_random_is_seen(parts, expected):
    (plan,) = plans(config({"rollout": ON_TAPE}, **parts), {}, "/")
    assert plan.unseeded == tuple(f"{engine}.full_determinism" for engine in expected)


def test_a_recording_with_it_says_so_and_the_tape_notes_it(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(rolltape.determinism, "_unseeded", set())
    for mode, told in (("record", True), ("replay", False)):
        env = {"ROLLTAPE_DIR": str(tmp_path / "t"), "ROLLTAPE_MODE": mode}
        (plan,) = plans(config(**CRITIC, **ACTOR), env, "/")
        caplog.clear()
        Session.start(plan).tape.close()
        assert ("critic.fsdp.full_determinism=True" in caplog.text) is told
    assert rolltape.open(tmp_path / "t").environment["unseeded"] == "the critic's value head"
