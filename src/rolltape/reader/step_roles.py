"""Which columns say what: rewards, log-probs, advantages, by the names that trainers give them. Pure.

Prompts and responses are found by ``rolltape.reader.sample_fields``, for ``show`` and for the viewer alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolltape.batch.roles import columns_with
from rolltape.codec.header import StoredColumn
from rolltape.reader.sample_fields import choose_fields

TRUNCATED = ("length", "max_tokens", "truncated")
"""Finish reasons, in lower case, of responses that were cut at their longest."""


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """One column of one stage."""

    stage: str
    column: str

    def __str__(self) -> str:
        return f"{self.stage} / {self.column}"


@dataclass(frozen=True, slots=True)
class Roles:
    """What the columns of a step mean; None where no column says it."""

    prompt: str | None
    """Text of the main stage."""
    response: str | None
    prompt_ids: str | None
    """Token ids of the main stage."""
    response_ids: str | None
    reward: ColumnOf | None
    advantage: ColumnOf | None
    rollout_logprobs: ColumnOf | None
    """As the engine saw them when it sampled."""
    trainer_logprobs: ColumnOf | None
    """As the trainer computes them: what they differ by is the mismatch of training and inference."""
    reference_logprobs: ColumnOf | None
    """As the model sees them from which training must not drift."""
    entropy: ColumnOf | None
    finish: str | None


def find_roles(main: str, stages: Mapping[str, Mapping[str, StoredColumn]]) -> Roles:
    """The roles of all columns of a step, where ``main`` is the stage that has the samples."""
    stored = stages[main]
    texts = {field.label: field.column for field in choose_fields(stored) if field.kind == "text"}
    rollout = _numeric(stages, ("rollout_logprobs", "logprobs"), [main])
    trainer = ("new_logprobs", "old_logprobs", "logprobs")
    return Roles(
        prompt=texts.get("prompt"),
        response=texts.get("response"),
        prompt_ids=_ids(stored, "prompt_ids", "token_ids"),
        response_ids=_ids(stored, "response_ids"),
        reward=_numeric(stages, ("reward",), ["reward", main, *stages]),
        advantage=_numeric(stages, ("advantage",), ["advantage", main, *stages]),
        rollout_logprobs=rollout,
        trainer_logprobs=_numeric(stages, trainer, ["loss", *stages], unlike=rollout),
        reference_logprobs=_numeric(stages, ("ref_logprobs",), list(stages)),
        entropy=_numeric(stages, ("entropy",), [main, *stages]),
        finish=next(iter(columns_with(stored, "finish")), None),
    )


def main_stage(stages: Sequence[str]) -> str:
    """The stage whose samples are shown unless somebody asks for another."""
    return "rollout" if "rollout" in stages else stages[0]


def _numeric(
    stages: Mapping[str, Mapping[str, StoredColumn]],
    roles: Sequence[str],
    order: Sequence[str],
    unlike: ColumnOf | None = None,
) -> ColumnOf | None:
    for stage in dict.fromkeys(order):
        if stage not in stages or (unlike is not None and stage.startswith("ref")):
            continue
        for column in columns_with(stages[stage], *roles):
            place = ColumnOf(stage, column)
            if place != unlike and stages[stage][column].is_number:
                return place
    return None


def _ids(stored: Mapping[str, StoredColumn], *roles: str) -> str | None:
    found = [name for name in columns_with(stored, *roles) if stored[name].kind != "objects"]
    return found[0] if found else None
