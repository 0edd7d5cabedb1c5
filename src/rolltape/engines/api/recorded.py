"""Recorded tokens as a rollout that any engine can score: what is on a tape, under whatever names."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.batch.roles import columns_with
from rolltape.engines.api.completion import Completion, FinishReason
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import LogprobKind, SamplingParams
from rolltape.errors import ConfigError
from rolltape.reader.run import Run
from rolltape.reader.samples import Samples


def recorded_rollout(run: Run, step: int, split: str = "train") -> Rollout:
    """The prompts and responses of a recorded step, each sample with a prompt of its own.

    Only tokens count: prompts with images are refused, because their pixels are not read back.
    """
    samples = run.samples(step, "rollout", split)
    if columns_with(samples.stored, "images"):
        raise ConfigError("recorded prompts with images cannot be scored", where=run.location)
    asked, said = (_tokens(run, samples, role) for role in ("prompt_ids", "response_ids"))
    groups = [
        [Completion(prompt, response, "", np.zeros(len(response)), FinishReason.STOP, 0)]
        for prompt, response in zip(asked, said, strict=True)
    ]
    prompts = [Prompt(token_ids=prompt.tolist(), uid=str(at)) for at, prompt in enumerate(asked)]
    return Rollout.of(
        prompts, groups, logprob_kind=LogprobKind.RAW, sampling=SamplingParams(), engine="tape",
        engine_version="",
    )  # fmt: skip


def _tokens(run: Run, samples: Samples, role: str) -> list[Any]:
    names = [name for name in columns_with(samples.stored, role) if samples.stored[name].kind != "objects"]
    if not names:
        raise ConfigError(
            f"the rollout has no token ids of its {role.split('_')[0]}s",
            where=run.location,
            hint=f"there are: {', '.join(samples.stored)}",
        )
    rows = [np.asarray(row).astype(np.int64) for row in samples.cells(names[0])]
    kept = samples.kept(names[0])
    return rows if kept is None else [row[part] for row, part in zip(rows, kept.parts, strict=True)]
