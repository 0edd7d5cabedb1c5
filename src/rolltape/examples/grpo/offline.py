"""GRPO on recorded samples alone: no engine generates; importance weights make up for old policies.

    python -m rolltape.examples.grpo --dir runs/base --steps 30 --mode record
    python -m rolltape.examples.grpo.offline runs/base --where "step < 30"

The samples were drawn by other weights than those being trained. Each token counts by how much likelier it is
now than when it was drawn, which its recorded log-prob tells. The ratio is clipped as in ``loss.py``: a
token that the policy has moved away from does not pull it further.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import rolltape
from rolltape.engines import Prompt, SamplingParams, TransformersEngine
from rolltape.examples.grpo import loss as objective
from rolltape.examples.grpo import task
from rolltape.examples.grpo.layouts import Sample, micro_batches
from rolltape.examples.grpo.loss import Clip
from rolltape.examples.grpo.model import make_model, make_tokenizer
from rolltape.pooling import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What people change."""

    epochs: int = 2
    batch: int = 128
    """Samples of an update; groups are never torn apart."""
    seed: int = 0
    learning_rate: float = 5e-3
    clip_range: float = 0.2
    weights: bool = True
    """Importance weights; without, every sample counts as if the current policy had drawn it."""
    micro_batch_size: int = 32


@dataclass(frozen=True, slots=True)
class Update:
    """The numbers to show for one update."""

    update: int
    loss: float
    reward: float
    """The mean reward of the samples of the batch, as it was recorded."""
    weight: float
    """The mean importance weight of their tokens."""


def train(
    options: Options,
    pool: rolltape.Pool,
    on_update: Callable[[Update, Any], None] = lambda update, model: None,
) -> Any:
    """Train from random weights on the samples of a pool; the model."""
    model = make_model(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    done = 0
    for epoch in range(options.epochs):
        for batch in pool.batches(options.batch, seed=options.seed + epoch, together="group"):
            loss, weight, reward = _gradients(model, batch.training().with_rewards(), options)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            on_update(Update(done, loss, reward, weight), model)
    return model


def _gradients(model: Any, batch: Training, options: Options) -> tuple[float, float, float]:
    """Forward and backward over one batch: its loss, its mean importance weight and its mean reward."""
    assert batch.logprobs is not None, "without recorded log-probs there are no importance weights"
    advantage = objective.advantages(batch.reward, [str(group) for group in batch.group])
    samples = [
        Sample(np.concatenate([asked, said]).astype(np.int64), len(asked))
        for asked, said in zip(batch.prompt_ids, batch.response_ids, strict=True)
    ]
    tokens = sum(map(len, batch.response_ids))
    clip = Clip(options.clip_range, 0.0)
    loss = weight = 0.0
    for micro in micro_batches(samples, "padded", options.micro_batch_size, 0):
        total = torch.zeros(())
        for row, new in zip(micro.rows, objective.log_probs(model, micro, samples), strict=True):
            drawn = torch.tensor(batch.logprobs[row], dtype=torch.float32)
            old = drawn if options.weights else new.detach()
            total = total + objective.token_losses(new, old, new.detach(), float(advantage[row]), clip).sum()
            weight += float((new.detach() - drawn).exp().sum())
        (total / tokens).backward()
        loss += float(total.detach()) / tokens
    return loss, weight / tokens, float(batch.reward.mean())


def evaluate(model: Any, seed: int = 1, prompts: int = 16, n: int = 8) -> float:
    """The mean reward of what the model generates now."""
    engine = TransformersEngine(model, make_tokenizer())
    texts = task.prompts(0, prompts, seed)
    asked = [Prompt(text=text, uid=str(at)) for at, text in enumerate(texts)]
    rollout = engine.generate(asked, SamplingParams(n=n, max_tokens=8, seed=seed))
    given = [rollout.prompts[at].text or "" for at in rollout.group]
    return float(np.mean([task.reward(a, b) for a, b in zip(given, rollout.texts, strict=True)]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rolltape.examples.grpo.offline", description="GRPO on recorded samples, no engine."
    )
    parser.add_argument("tapes", nargs="+", help="the tapes")
    parser.add_argument("--where", help="which samples: reward is not None and step < 30")
    parser.add_argument("--epochs", type=int, default=Options().epochs)
    parser.add_argument("--no-weights", action="store_true", help="leave out importance weights")
    given = parser.parse_args(arguments)
    pool = rolltape.pool(given.tapes, given.where)
    recorded = pool.facts["reward"].to_numpy(zero_copy_only=False).mean()
    print(f"{len(pool)} samples, mean reward {recorded:.3f}")

    def show(update: Update, model: Any) -> None:
        print(
            f"update {update.update:3d}  loss {update.loss:+.5f}  batch reward {update.reward:.3f}  "
            f"weight {update.weight:.2f}",
            flush=True,
        )

    print(f"before: reward {evaluate(make_model(Options().seed)):.3f}")
    model = train(Options(epochs=given.epochs, weights=not given.no_weights), pool, show)
    print(f"after:  reward {evaluate(model):.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
