"""``use_vllm=True``: a replay neither starts vLLM nor looks for its server.

vLLM is not installed here, and no server runs: what records stands in for it, what replays is TRL's own.
"""

from __future__ import annotations

import pytest
import torch
import trl.trainer.grpo_trainer as grpo
import trl.trainer.rloo_trainer as rloo

from rolltape import Tape
from rolltape.integrations.trl import install, uninstall
from tests.trl.training import build, run


class SampledHere:
    """What TRL asks of vLLM, from the trainer's own model."""

    synced = 0

    def __init__(self, model, max_completion_length, temperature, **others) -> None:
        self.model, self.length, self.temperature = model, max_completion_length, temperature

    def sync_weights(self) -> None:
        type(self).synced += 1

    @torch.no_grad()
    def generate(self, prompts, images, num_generations, profiler):
        completions, logprobs = [], []
        for prompt in prompts:
            tokens, scores = [], []
            for _ in range(self.length // 2):
                ids = torch.tensor([[*prompt, *tokens]])
                logits = self.model.base_model(ids).last_hidden_state[0, -1] @ self.model.lm_head.weight.T
                found = torch.log_softmax(logits / self.temperature, -1)
                tokens.append(int(torch.multinomial(found.exp(), 1)))
                scores.append([float(found[tokens[-1]])])
            completions.append(tokens)
            logprobs.append(scores)
        return prompts, completions, logprobs, None


@pytest.fixture
def installed():
    yield install
    uninstall()


@pytest.mark.parametrize(("module", "kind"), [(grpo, "grpo"), (rloo, "rloo")])
@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_a_replay_needs_no_vllm(model, tmp_path, monkeypatch, installed, module, kind, mode) -> None:
    options = {"use_vllm": True, "vllm_mode": mode, "vllm_server_port": 9, "max_steps": 2}
    real = module.VLLMGeneration
    if kind == "grpo":
        options["vllm_importance_sampling_correction"] = True
    with monkeypatch.context() as patched:
        patched.setattr(module, "VLLMGeneration", SampledHere)
        patched.setattr(SampledHere, "vllm_client", Answers(), raising=False)
        installed(Tape(tmp_path / "tape", mode="record"))
        recorded = run(build(model, tmp_path / "a", kind, **options))
    uninstall()
    before = SampledHere.synced
    assert before == 2
    SampledHere.synced = 0
    installed(Tape(tmp_path / "tape", mode="replay"))
    trainer = build(model, tmp_path / "b", kind, **options)
    assert module.VLLMGeneration is real
    assert run(trainer).same_as(recorded)


class Answers:
    """The client of a server that runs as TRL wants it."""

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def test_a_step_that_is_not_on_the_tape_starts_it(model, tmp_path, monkeypatch, installed) -> None:
    monkeypatch.setattr(grpo, "VLLMGeneration", SampledHere)
    monkeypatch.setattr(SampledHere, "vllm_client", Answers(), raising=False)
    monkeypatch.setattr(SampledHere, "synced", 0)
    options = {"use_vllm": True, "vllm_mode": "server"}
    installed(Tape(tmp_path / "tape", mode="record"))
    build(model, tmp_path / "a", max_steps=1, **options).train()
    uninstall()
    installed(Tape(tmp_path / "tape", mode="auto"))
    trainer = build(model, tmp_path / "b", max_steps=2, **options)
    monkeypatch.setattr(SampledHere, "synced", 0)
    trainer.train()
    assert SampledHere.synced == 1


def test_after_uninstall_trainers_are_trls_own(model, tmp_path, installed) -> None:
    before = grpo.GRPOTrainer.__init__
    installed(Tape(tmp_path / "tape", mode="record"))
    assert grpo.GRPOTrainer.__init__ is not before
    uninstall()
    assert grpo.GRPOTrainer.__init__ is before
