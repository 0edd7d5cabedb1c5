"""An engine on a tape records what it generates; a replay gives it back and never starts the engine."""

import os
import subprocess
import sys

import pytest
import torch

import rolltape
from rolltape.engines import Engine, Prompt, SamplingParams, TransformersEngine
from tests.engines.test_rollout import same

PARAMS = SamplingParams(n=3, max_tokens=8, seed=1)


def never():
    pytest.fail("the engine was started")


def recorded(path, engine, steps=2):
    made = []
    with rolltape.Tape(path, mode="record") as tape:
        taped = tape.engine(engine)
        for step in range(steps):
            with tape.step(step):
                made.append(taped.generate(["A", f"step {step}"], PARAMS))
    return made


def test_a_full_replay_starts_nothing(tmp_path, tiny):
    made = recorded(tmp_path / "tape", lambda: tiny)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        taped = tape.engine(never)
        assert isinstance(taped, Engine)
        for step in range(2):
            with tape.step(step):
                same(made[step], taped.generate(["A", f"step {step}"], PARAMS))
            taped.update_weights(tiny.model.named_parameters())
        assert taped.weights_version == 2
        assert not taped.is_started
        taped.close()
        assert len(list(tape.recordings())) == 2, "update_weights records nothing"


def test_other_prompts_or_sampling_are_refused(tmp_path, tiny):
    recorded(tmp_path / "tape", tiny)
    for prompts, params, says in [
        (["A", "another"], PARAMS, r"prompts/text\[1\] = 'step 0', now .*'another'"),
        (["A", "step 0"], SamplingParams(n=3, max_tokens=8, seed=2), "seed = 1"),
        ([Prompt(text="A", uid="mine"), "step 0"], PARAMS, "uid"),
    ]:
        with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
            taped = tape.engine(never)
            with tape.step(0), pytest.raises(rolltape.MismatchError, match=says):
                taped.generate(prompts, params)


def test_an_engine_that_starts_late_gets_the_last_weights(tmp_path, tiny_path, tiny):
    recorded(tmp_path / "tape", tiny)
    trainer = TransformersEngine(tiny_path).model
    with torch.no_grad():
        trainer.model.norm.weight.mul_(1.5)
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(lambda: TransformersEngine(tiny_path))
        for step in range(3):
            with tape.step(step):
                made = taped.generate(["A", f"step {step}"], PARAMS, trainer_version=step)
            assert made.weights_versions.tolist() == [0 if step < 2 else 2] * 6
            assert taped.is_started == (step == 2)
            taped.update_weights(trainer.named_parameters(), version=step + 1)
    expected = TransformersEngine(trainer, tiny.tokenizer).generate(["A", "step 2"], PARAMS)
    assert made.texts == expected.texts


def test_weights_that_changed_since_they_were_sent_are_not_passed_off_as_those(tmp_path, tiny_path, tiny):
    recorded(tmp_path / "tape", tiny, steps=1)
    trainer = TransformersEngine(tiny_path).model
    with rolltape.Tape(tmp_path / "tape", mode="auto") as tape:
        taped = tape.engine(lambda: TransformersEngine(tiny_path))
        with tape.step(0):
            taped.generate(["A", "step 0"], PARAMS)
        taped.update_weights(trainer.named_parameters(), version=1)
        with torch.no_grad():
            trainer.model.norm.weight.mul_(2)
        with (
            tape.step(1),
            pytest.raises(rolltape.StaleWeightsError, match=r"model\.norm\.weight was changed"),
        ):
            taped.generate(["A", "step 1"], PARAMS)


def test_a_failure_is_not_recorded(tmp_path, tiny_path):
    engine = TransformersEngine(tiny_path)
    with torch.no_grad():
        engine.model.model.norm.weight.fill_(float("nan"))
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        taped = tape.engine(engine)
        with tape.step(0), pytest.raises(rolltape.GenerationError):
            taped.generate(["A"], PARAMS)
        assert list(tape.recordings()) == []


def test_a_tape_that_is_off_just_generates(tiny):
    tape = rolltape.Tape(mode="off")
    with tape.step(0):
        assert len(tape.engine(tiny).generate(["A"], PARAMS)) == 3


def test_what_is_no_engine_is_refused(tmp_path):
    with (
        rolltape.Tape(tmp_path / "tape", mode="record") as tape,
        pytest.raises(rolltape.ConfigError, match="pass an engine, or a function that makes one"),
    ):
        tape.engine("vllm")


def test_a_replay_imports_no_engine(tmp_path, tiny):
    """A process that replays loads neither torch nor transformers."""
    made = recorded(tmp_path / "tape", tiny, steps=1)
    program = """if True:
        import sys, rolltape
        from rolltape.engines import SamplingParams
        with rolltape.Tape(sys.argv[1], mode="replay") as tape:
            engine = tape.engine(lambda: 1 / 0)
            with tape.step(0):
                rollout = engine.generate(["A", "step 0"], SamplingParams(n=3, max_tokens=8, seed=1))
        loaded = {"torch", "transformers"} & set(sys.modules)
        print(sum(map(len, rollout.response_ids)), rollout.engine, loaded)
    """
    command = [sys.executable, "-c", program, str(tmp_path / "tape")]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=True)
    assert done.stdout.split("\n")[0] == f"{sum(map(len, made[0].response_ids))} transformers set()"
