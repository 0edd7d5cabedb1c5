"""The two runs of the pictures in docs/viewer.md: SmolLM2-135M answers questions, and is trained by reward.

    python tools/viewer_runs.py FOLDER        in the environment of the stack `engines`, a few minutes

`FOLDER/base` is recorded: a few steps of GRPO on eight questions of general knowledge, with the stages of
the reference trainer. `FOLDER/bug` replays its rollouts with the mask of the response off by one. Beside them
is the model's tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import rolltape  # noqa: E402
from rolltape.demo.runs import no_engine, shifted_mask  # noqa: E402
from rolltape.engines import Prompt, Rollout, SamplingParams, TransformersEngine  # noqa: E402
from rolltape.examples.grpo.train import Options, Stages  # noqa: E402
from rolltape.examples.grpo.world import World  # noqa: E402
from tests.engines.models import smollm2  # noqa: E402

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "Which planet is known as the red planet?": "Mars",
    "What do bees make?": "honey",
    "How many days are in a week?": "seven",
    "What is the opposite of hot?": "cold",
    "Which animal says meow?": "cat",
    "What is frozen water called?": "ice",
    "Who wrote the play Hamlet?": "Shakespeare",
}
"""Each with the word that a right answer has."""
OPTIONS = Options(steps=8, prompts=4, n=4, max_tokens=24, learning_rate=1e-4, micro_batch_size=16)
TRAINED = 3
"""How many of the last layers are trained: enough to learn this, and a backward pass that is soon over."""


class Answers(Stages):
    """The stages of the reference trainer, with another reward."""

    def reward(self, rollout: Rollout) -> dict[str, Any]:
        """1 for an answer that has the word and ends, half of that where it was cut off."""
        asked = [questions(rollout.prompts[at])[0] for at in rollout.group]
        values = [
            (QUESTIONS[question].lower() in text.lower()) * (1.0 if ended == "stop" else 0.5)
            for question, text, ended in zip(asked, rollout.texts, rollout.finish_reasons, strict=True)
        ]
        return {"uid": rollout.uid, "index": rollout.index, "reward": np.array(values, np.float32)}


def questions(prompt: Prompt) -> list[str]:
    """Which of the questions a prompt asks."""
    return [question for question in QUESTIONS if question in (prompt.text or "")]


def train(tape: rolltape.Tape, path: str, *, replayed: bool = False) -> None:
    """The steps; every stage goes through the tape."""
    torch.manual_seed(0)
    words = AutoTokenizer.from_pretrained(path)
    model, reference = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for _ in range(2))
    for one in (model, reference):
        one.config._attn_implementation = "eager"  # takes any mask
    model.requires_grad_(False)
    model.model.layers[-TRAINED:].requires_grad_(True)
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=OPTIONS.learning_rate, weight_decay=0.0)
    stages = Answers(tape, OPTIONS, model, reference, World())
    engine = tape.engine(no_engine if replayed else lambda: TransformersEngine(path, dtype=torch.float32))
    for step in range(OPTIONS.steps):
        with tape.step(step):
            asked = list(QUESTIONS)[:: 1 if step % 2 else -1][: OPTIONS.prompts]
            prompts = [Prompt(text=chat(words, one), uid=f"{step}.{at}") for at, one in enumerate(asked)]
            sampling = SamplingParams(n=OPTIONS.n, max_tokens=OPTIONS.max_tokens, temperature=0.7, seed=0)
            rollout = engine.generate(prompts, sampling)
            reward = stages.reward(rollout)["reward"]
            advantage = stages.advantage(rollout, reward)["advantage"]
            before = stages.ref_logprob(rollout)["ref_logprobs"]
            optimizer.zero_grad()
            losses = stages.loss(rollout, advantage, before)
            norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            engine.update_weights(model.state_dict(), version=step + 1)
            tape.log(
                {"reward": float(reward.mean()), "loss": float(losses["total"]), "grad_norm": float(norm)}
            )
        print(f"step {step}: reward {reward.mean():.3f}", *rollout.texts[:2], sep="\n  ", flush=True)


def chat(words: Any, question: str) -> str:
    """A question in the model's own form of a conversation."""
    said = [{"role": "user", "content": f"{question} Answer in one short sentence."}]
    return str(words.apply_chat_template(said, tokenize=False, add_generation_prompt=True))


def main(folder: Path) -> None:
    path = smollm2()
    settings = {"questions": len(QUESTIONS), "learning_rate": OPTIONS.learning_rate, "n": OPTIONS.n}
    with rolltape.Tape(folder / "base", mode="record", fingerprint=settings) as tape:
        train(tape, path)
    with rolltape.Tape(folder / "base", mode="replay", out=folder / "bug") as tape, shifted_mask():
        train(tape, path, replayed=True)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder / "tokenizer")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
