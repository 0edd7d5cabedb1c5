"""SGLangEngine against answers that a real server gave (`sglang_tape.py`): it has no stock build for CPU.

The answers were sampled from the tiny model, so that the log-probs in them can be judged by transformers.
"""

import contextlib

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from rolltape.engines import Prompt, SamplingParams, SGLangEngine, mismatch, score
from rolltape.errors import ConfigError, EngineError, GenerationError, PromptError, WeightsError
from tests.engines.sglang_tape import PROMPTS, SCENES, repeated

TOLERANCE = 5e-5


@contextlib.contextmanager
def engine_of(scene, tiny_path, folder, spoil=lambda entries: None):
    """An engine on the recording of a scene."""
    server, left = repeated(scene)
    spoil(left)
    with SGLangEngine(server.url, weights_dir=folder, checkpoint=tiny_path, retries=0) as engine:
        yield engine, left
    server.close()


@pytest.fixture
def trainer(tiny_path):
    return AutoModelForCausalLM.from_pretrained(tiny_path)


@pytest.fixture
def played(tiny_path, tmp_path, trainer):
    """The result of a scene; everything that was recorded must have been asked for again, word for word."""

    def play(scene):
        with engine_of(scene, tiny_path, tmp_path) as (engine, left):
            found = SCENES[scene](engine, trainer)
            assert not left
            return found

    return play


def test_greedy_tokens_and_log_probs_are_those_of_transformers(played, tiny):
    rollout = played("greedy")
    wanted = tiny.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, top_logprobs=2))
    assert (rollout.engine, rollout.engine_version) == ("sglang", "0.5.23")
    assert [ids.tolist() for ids in rollout.prompt_ids] == [ids.tolist() for ids in wanted.prompt_ids]
    assert [ids.tolist() for ids in rollout.response_ids] == [ids.tolist() for ids in wanted.response_ids]
    assert rollout.texts == wanted.texts
    np.testing.assert_allclose(
        np.concatenate(rollout.logprobs), np.concatenate(wanted.logprobs), atol=TOLERANCE
    )
    assert [top.tolist() for top in rollout.top_ids] == [top.tolist() for top in wanted.top_ids]


def test_sampled_log_probs_are_the_models(played, trainer):
    rollout = played("sampled")
    assert len(rollout) == 12
    assert len({tuple(ids) for ids in rollout.response_ids}) == 12
    assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE


def test_log_probs_after_temperature_are_told_from_raw_ones(played, trainer):
    rollout = played("scaled")
    assert rollout.logprob_kind == "processed"
    scored = score(trainer, rollout, temperature=0.7)
    assert mismatch(rollout, scored, temperature=0.7).max_abs < TOLERANCE


@pytest.mark.parametrize(
    "asked", [{"temperature": 0.7}, {"temperature": 0.7, "top_p": 0.5, "logprobs": "processed"}]
)
def test_a_kind_that_the_server_does_not_give_is_refused(tiny_path, tmp_path, asked):
    with engine_of("scaled", tiny_path, tmp_path) as (engine, _), pytest.raises(EngineError) as caught:
        engine.generate(PROMPTS, SamplingParams(**asked))
    assert caught.value.where == "SamplingParams.logprobs"
    assert "after temperature and before top_p" in str(caught.value)


def test_a_stop_text_ends_the_text_and_keeps_the_tokens(played, tiny):
    rollout = played("stopped")
    stopped = [row for row in rollout if row.finish_reason == "stop"]
    assert stopped
    for row in stopped:
        assert "a" not in row.text
        assert len(row.logprobs) == len(row.response_ids)
        assert row.text in tiny.tokenizer.decode(row.response_ids)


def test_after_each_of_five_updates_the_server_has_the_trainers_log_probs(played):
    for version, (rollout, wanted) in enumerate(played("updated"), 1):
        assert set(rollout.weights_versions) == {version}
        assert mismatch(rollout, wanted).max_abs < TOLERANCE


@pytest.mark.parametrize(
    "spoil",
    [
        lambda w: w.update({"model.norm.weight": w["model.norm.weight"][:7]}),
        lambda w: w.update({"model.norm.weight": w["model.norm.weight"].half()}),
        lambda w: w.pop("model.norm.weight"),
    ],
    ids=["shape", "dtype", "missing"],
)
def test_weights_that_do_not_fit_never_leave(tiny_path, tmp_path, trainer, spoil):
    weights = dict(trainer.state_dict())
    spoil(weights)
    with engine_of("updated", tiny_path, tmp_path) as (engine, left):
        before = len(left)
        with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
            engine.update_weights(weights)
        assert before - len(left) == 1, "the server was asked what it is, and nothing else"


def test_an_update_that_the_server_refuses(tiny_path, tmp_path, trainer):
    def refuse(entries):
        entry = next(entry for entry in entries if entry["path"] == "/update_weights_from_disk")
        entry["status"], entry["answer"] = 400, {"success": False, "message": "Failed to update: no space"}

    trainer.model.norm.weight.data.add_(0.1)  # what is sent is not compared, only that it fits
    with (
        engine_of("updated", tiny_path, tmp_path, refuse) as (engine, _),
        pytest.raises(EngineError, match="no space"),
    ):
        engine.update_weights(trainer.state_dict(), version=1)
    assert engine.weights_version == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda answer: answer["meta_info"].pop("output_token_logprobs"), "output_token_logprobs"),
        (
            lambda answer: answer["meta_info"]["output_token_logprobs"].pop(),
            "meta_info.output_token_logprobs",
        ),
        (
            lambda answer: answer["meta_info"]["output_token_logprobs"][0].__setitem__(0, None),
            "output_token_logprobs",
        ),
        (lambda answer: answer["meta_info"].pop("output_top_logprobs"), "output_top_logprobs"),
        (lambda answer: answer["meta_info"].pop("finish_reason"), "finish_reason"),
        (lambda answer: answer.pop("meta_info"), "meta_info"),
    ],
    ids=["none", "too few", "null", "no top ones", "no reason", "nothing"],
)
def test_an_answer_that_lacks_something_names_prompt_and_field(tiny_path, tmp_path, trainer, change, field):
    def spoil(entries):
        change(
            next(
                e["answer"]
                for e in entries
                if e["path"] == "/generate" and e["body"]["input_ids"] == PROMPTS[2]
            )
        )

    with (
        engine_of("greedy", tiny_path, tmp_path, spoil) as (engine, _),
        pytest.raises(GenerationError) as caught,
    ):
        SCENES["greedy"](engine, trainer)
    assert list(caught.value.failures) == [2]
    assert caught.value.failures[2].where.startswith("prompts[2], ")
    assert caught.value.failures[2].where.endswith(field)
    assert len(caught.value.rollout) == 2


def test_answers_with_other_weights_than_were_sent_are_refused(tiny_path, tmp_path, trainer):
    def spoil(entries):
        for entry in entries:
            if entry["path"] == "/generate":
                entry["answer"]["meta_info"]["weight_versions"] = [
                    {"version": "default", "start": 0, "end": 6}
                ]

    with (
        engine_of("updated", tiny_path, tmp_path, spoil) as (engine, _),
        pytest.raises(GenerationError) as caught,
    ):
        SCENES["updated"](engine, trainer)
    assert "weights default instead of version 1" in str(caught.value.failures[0])


def test_a_server_that_fails_loses_one_prompt(tiny_path, tmp_path, trainer):
    def fail(entries):
        entry = next(e for e in entries if e["path"] == "/generate" and e["body"]["input_ids"] == PROMPTS[2])
        entry["status"], entry["answer"] = 500, {"error": {"message": "no memory"}}

    with (
        engine_of("greedy", tiny_path, tmp_path, fail) as (engine, _),
        pytest.raises(GenerationError, match="500: no memory") as caught,
    ):
        SCENES["greedy"](engine, trainer)
    assert list(caught.value.failures) == [2]
    assert len(caught.value.rollout) == 2


@pytest.mark.parametrize(
    ("prompts", "params", "error", "where"),
    [
        ([[5] * 600], {}, PromptError, "prompts[0]"),
        ([[5], [5, 900]], {}, PromptError, "prompts[1].token_ids"),
        ([[5]], {"seed": 3}, EngineError, "SamplingParams.seed"),
        ([[5]], {"stop_token_ids": [512]}, ConfigError, "SamplingParams.stop_token_ids"),
        ([[5], Prompt(text="x", videos=[[]])], {}, PromptError, "prompts[1].videos"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tiny_path, tmp_path, prompts, params, error, where):
    with engine_of("greedy", tiny_path, tmp_path) as (engine, left), pytest.raises(error) as caught:
        engine.generate(prompts, SamplingParams(max_tokens=2, **params))
    assert caught.value.where == where
    assert any(entry["path"] == "/generate" for entry in left)


def test_an_update_needs_a_folder_that_both_see(tiny_path, trainer):
    with (
        engine_of("updated", tiny_path, None) as (engine, _),
        pytest.raises(ConfigError, match="weights_dir="),
    ):
        engine.update_weights(trainer.state_dict())
