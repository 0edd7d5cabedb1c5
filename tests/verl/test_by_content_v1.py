"""verl's V1 trainer asked by its prompts: its own methods and replay buffer, a real TransferQueue."""

import logging

import pytest
import transfer_queue as tq
from verl.utils.skip import SkipManager

import rolltape
from rolltape.integrations.verl import install
from tests.verl.v1 import Generator, consume, make_trainer

pytestmark = pytest.mark.usefixtures("empty_queue")


@pytest.fixture
def training(trainer_config, tmp_path, monkeypatch):
    def start(generator, options, first_prompt=0, **changes):
        monkeypatch.setenv("ROLLTAPE_DIR", str(tmp_path / "tape"))
        for name in ("MODE", "BY", "VERSION"):
            monkeypatch.setenv(f"ROLLTAPE_{name}", options.get(name, ""))
        config = trainer_config(**changes)
        trainer = make_trainer(config, generator, first_prompt)
        SkipManager.init(config)
        return trainer

    return start


def groups(seen):
    """The responses and scores of each prompt, in the order of its sessions."""
    found = {}
    for keys, _, _, responses, scores, _, prompts in seen:
        for key, response, score, prompt in zip(keys, responses, scores, prompts, strict=True):
            session = int(key.split("_")[1])
            found.setdefault(prompt[0]["content"], {})[session] = (response, score)
    return {text: [one[at] for at in sorted(one)] for text, one in found.items()}


ANY = {"MODE": "auto", "BY": "prompt", "VERSION": "any"}


@pytest.mark.parametrize("recorded_by", ["step", "prompt"])
def test_other_batches_with_what_is_missing_only(training, caplog, recorded_by):
    """Prompts 0 to 3 are recorded with two trajectories each; 1 to 3 and 4 to 6 are asked for, with three."""
    trainer = training(Generator(), {"MODE": "record", "BY": recorded_by})
    tape = {}
    for step in (1, 2):
        tape |= groups(consume(trainer, step))
    install.stop()
    caplog.set_level(logging.INFO, "rolltape")
    generator = Generator(n=3)
    larger = {"data__train_batch_size": 3, "actor_rollout_ref__rollout__n": 3, "data__seed": 4}
    trainer = training(generator, ANY, first_prompt=1, **larger)
    first = consume(trainer, 1)
    assert generator.trajectories == 3, "one more of each"
    assert generator.prompts == 3
    now = groups(first)
    assert list(now) == ["question 1", "question 2", "question 3"]
    for text, found in now.items():
        old = sorted(tape[text]) if recorded_by == "step" else tape[text]
        assert sorted(found[:2]) == sorted(old)
        assert len(found) == 3
    second = groups(consume(trainer, 2))
    assert generator.trajectories == 3 + 9
    install.stop()
    replaying = {"MODE": "replay", "BY": "prompt", "VERSION": "any"}
    forbidden = Generator(n=3, forbidden=True)
    trainer = training(forbidden, replaying, first_prompt=2, **larger)
    again = groups(consume(trainer, 1))
    assert again["question 3"] == now["question 3"]
    assert again["question 4"] == second["question 4"]
    assert "samples answered by content" in caplog.text
    keys, tags, *_ = first[0]
    assert {tag["global_steps"] for tag in tags} == {1}
    assert len({key.split("_")[0] for key in keys}) == 3
    assert not (tq.kv_list() or {}).get("train")


def test_what_is_not_there_is_said_and_what_cannot_be_asked_so_is_refused(training):
    consume(training(Generator(), {"MODE": "record"}), 1)
    install.stop()
    trainer = training(Generator(forbidden=True), {"MODE": "replay", "BY": "prompt"}, first_prompt=1)
    with pytest.raises(rolltape.StepMissingError, match="2 of 4 samples asked for at step 1"):
        consume(trainer, 1)
    install.stop()
    with pytest.raises(rolltape.ConfigError, match="trainer_mode is colocate_async"):
        training(Generator(), ANY, trainer__v1__trainer_mode="colocate_async")
