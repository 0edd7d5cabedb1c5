"""Real TRL on CPU: a replay generates nothing and ends with the same weights, losses and grad norms."""

from __future__ import annotations

import math

import pytest
import torch

from rolltape import ConfigError, MismatchError, StepMissingError, Tape
from rolltape.integrations.trl import instrument
from tests.compacting import folded, plain
from tests.trl.training import build, digits, refuse, run, timeless


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_tape(model, tmp_path):
    """Builds a trainer on the tape of this test; one that replays cannot generate."""

    def make(mode, kind="grpo", options=None, **changes):
        trainer = build(model, tmp_path / mode, kind, **changes)
        if mode == "replay" and trainer.__dict__.get("rollout_func") is None:
            trainer._generate_single_turn = refuse
        tape = Tape(tmp_path / "tape", mode=mode, **options or {})
        return trainer, instrument(trainer, tape)

    return make


CASES = {
    "plain": {},
    "rloo": {"kind": "rloo"},
    "reference model": {"beta": 0.1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "two iterations": {"num_iterations": 2},
    "several generations a step": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    "one generation for several steps": {"steps_per_generation": 4, "num_iterations": 2},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_the_replay_is_the_run(on_tape, case) -> None:
    recorded = run(on_tape("record", **CASES[case])[0])
    replayed = run(on_tape("replay", **CASES[case])[0])
    assert len([entry for entry in recorded.logs if "grad_norm" in entry]) == 8
    assert {entry["grad_norm"] for entry in recorded.logs if "grad_norm" in entry} != {0.0}
    assert replayed.weights == recorded.weights
    assert replayed.logs == recorded.logs


def test_the_replay_of_a_tape_of_segments_is_the_run(on_tape, tmp_path) -> None:
    recorded = run(on_tape("record")[0])
    assert folded(tmp_path / "tape").recordings
    assert not plain(tmp_path / "tape"), "all of it is in segments"
    replayed = run(on_tape("replay")[0])
    assert replayed.weights == recorded.weights
    assert replayed.logs == recorded.logs


def test_without_the_random_state_it_would_be_another_run(on_tape) -> None:
    """What the other tests assert can fail."""
    options = {"gradient_accumulation_steps": 2}
    recorded = run(on_tape("record", **options)[0])
    replayed = run(on_tape("replay", options={"random_state": False}, **options)[0])
    assert replayed.weights != recorded.weights


def test_calls_and_steps_are_those_of_the_trainer(on_tape) -> None:
    options = {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 2}
    trainer, tape = on_tape("record", **options, eval_strategy="steps", eval_steps=1)
    trainer.train()
    found = [(r.key.split, r.key.step, r.key.call) for r in tape.recordings(stage="rollout")]
    train = [("train", 0, 0), ("train", 0, 1), ("train", 1, 0), ("train", 1, 1)]
    calls = len(trainer.get_eval_dataloader())
    val = [("val", step, call) for step in (1, 2) for call in range(calls)]
    assert found == train + val
    prompts = tape.recording(0).batch(["prompt_text"]).columns["prompt_text"]
    assert all(text.startswith("Count to ") for text in prompts)


def test_a_rollout_function(on_tape) -> None:
    calls = []

    def rollout(prompts, trainer):
        calls.append(len(prompts))
        ids = trainer.processing_class(prompts)["input_ids"]
        made = [torch.randint(3, 200, (torch.randint(2, 9, ()),)).tolist() for _ in ids]
        return {"prompt_ids": ids, "completion_ids": made, "logprobs": [[-1.5] * len(m) for m in made],
                "luck": torch.rand(len(ids)).tolist()}  # fmt: skip

    recorded = run(on_tape("record", rollout_func=rollout)[0])
    generated = len(calls)
    replayed = run(on_tape("replay", rollout_func=rollout)[0])
    assert generated == 8
    assert len(calls) == generated
    assert replayed.same_as(recorded)


class _Stop(Exception):
    pass


def stopping_at(step):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **others):
            if state.global_step == step:
                raise _Stop

    return Stop()


def interrupted(on_tape, mode):
    """Killed after step 4, where it left a checkpoint; then another trainer goes on from there."""
    options = {"save_strategy": "steps", "save_steps": 4, "gradient_accumulation_steps": 2}
    trainer, tape = on_tape(mode, callbacks=[stopping_at(4)], **options)
    with pytest.raises(_Stop):
        trainer.train()
    tape.close()
    trainer, tape = on_tape(mode, **options)
    found = run(trainer, resume_from_checkpoint=True)
    tape.close()
    return found


def test_a_run_that_was_interrupted_and_resumed(on_tape) -> None:
    recorded = interrupted(on_tape, "record")
    replayed = interrupted(on_tape, "replay")
    assert replayed.same_as(recorded)
    in_one_go = run(on_tape("replay", gradient_accumulation_steps=2)[0])
    assert in_one_go.weights == recorded.weights


def test_what_trl_logs_is_on_the_tape_exactly(on_tape) -> None:
    trainer, tape = on_tape("record", eval_strategy="steps", eval_steps=4, max_steps=4)
    trainer.train()
    logged = {e["step"] - 1: e for e in trainer.state.log_history if "loss" in e}
    for step, metrics in tape.metrics().items():
        for name in ("loss", "grad_norm", "reward", "learning_rate", "completions/mean_length", "entropy"):
            assert metrics[name].hex() == logged[step][name].hex(), name
    assert list(tape.metrics()) == [0, 1, 2, 3]
    [(step, val)] = tape.metrics("val").items()
    assert step == 4
    assert math.isfinite(val["eval_reward"])


def test_a_replay_computes_rewards_and_metrics_anew_for_the_second_tape(on_tape, tmp_path) -> None:
    recorded = run(on_tape("record", max_steps=3)[0])
    trainer, tape = on_tape("replay", max_steps=3, options={"out": tmp_path / "out"})
    trainer.reward_funcs = [lambda **given: [2 * r for r in digits(**given)]]
    replayed = run(trainer)
    assert replayed.weights != recorded.weights
    again = {step: timeless(metrics) for step, metrics in tape.out.metrics().items()}
    assert [again[step]["reward"] for step in range(3)] == [e["reward"] for e in replayed.logs[:3]]
    for step in range(3):
        was, now = (t.recording(step, "reward").value()["rewards"] for t in (tape, tape.out))
        assert torch.equal(now, 2 * was)


def test_other_prompts_are_refused(on_tape) -> None:
    on_tape("record", max_steps=1)[0].train()
    with pytest.raises(MismatchError, match="prompt_ids"):
        on_tape("replay", max_steps=1, seed=6)[0].train()


def test_another_temperature_is_refused(on_tape) -> None:
    on_tape("record", max_steps=1)[0].train()
    with pytest.raises(MismatchError, match="temperature"):
        on_tape("replay", max_steps=1, temperature=0.5)[0].train()


def test_another_model_is_refused(model, tmp_path, monkeypatch) -> None:
    """A tape that the environment names is told what model and seed the trainer has."""
    monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
    monkeypatch.setenv("ROLLTAPE_MODE", "record")
    instrument(build(model, tmp_path / "a")).close()
    (tmp_path / "other-model").symlink_to(model)
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    with pytest.raises(MismatchError, match=r"model: .*other-model"):
        instrument(build(str(tmp_path / "other-model"), tmp_path / "b"))


def test_without_a_tape_in_the_environment_nothing_is_touched(model, tmp_path) -> None:
    trainer = build(model, tmp_path / "a")
    assert instrument(trainer).is_off
    assert "_generate_single_turn" not in vars(trainer)


def test_a_step_that_was_not_recorded_is_an_error(on_tape) -> None:
    on_tape("record", max_steps=2)[0].train()
    with pytest.raises(StepMissingError, match="step 2"):
        on_tape("replay", max_steps=3)[0].train()


def test_a_trainer_is_on_one_tape(on_tape, tmp_path) -> None:
    trainer, tape = on_tape("record")
    assert instrument(trainer) is tape
    with pytest.raises(ConfigError, match="already on a tape"):
        instrument(trainer, Tape(tmp_path / "other", mode="record"))


def test_a_trainer_that_does_not_generate_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        instrument(object(), Tape())
