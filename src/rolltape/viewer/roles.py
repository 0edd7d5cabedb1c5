"""Which columns say what: rewards, log-probs, advantages, by the names that trainers give them. Pure.

Prompts and responses are found by ``rolltape.cli.sample``, for ``show`` and for the viewer alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.cli.sample import choose_fields
from rolltape.cli.tokens import PROMPT_IDS, RESPONSE_IDS, columns_named

REWARDS = (
    "reward", "rewards", "score", "scores", "seq_reward", "token_level_scores", "token_level_rewards",
    "rm_scores", "response_level_rewards", "acc", "correct",
)  # fmt: skip
ADVANTAGES = ("advantage", "advantages")
ROLLOUT_LOGPROBS = (
    "rollout_log_probs", "rollout_logprobs", "sampling_per_token_logps", "sampling_logprobs",
    "infer_logprobs", "response_logprobs", "logprobs",
)  # fmt: skip
TRAINER_LOGPROBS = (
    "log_probs", "old_log_probs", "logprobs", "old_logprobs", "per_token_logps", "old_per_token_logps",
    "new_logprobs", "train_logprobs",
)  # fmt: skip
ENTROPIES = ("entropy", "entropys", "entropies", "token_entropy")
FINISHES = ("finish_reason", "finish_reasons", "stop_reason")


@dataclass(frozen=True, slots=True)
class Place:
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
    reward: Place | None
    advantage: Place | None
    rollout_logprobs: Place | None
    """As the engine saw them when it sampled."""
    trainer_logprobs: Place | None
    """As the trainer computes them: what they differ by is the mismatch of training and inference."""
    entropy: Place | None
    finish: str | None


def find_roles(main: str, stages: Mapping[str, Mapping[str, Any]]) -> Roles:
    """The roles of all columns of a step, where ``main`` is the stage that has the samples."""
    entries = stages[main]
    texts = {field.label: field.column for field in choose_fields(entries) if field.kind == "text"}
    rollout = _numeric(stages, ROLLOUT_LOGPROBS, [main])
    return Roles(
        prompt=texts.get("prompt"),
        response=texts.get("response"),
        prompt_ids=_ids(entries, PROMPT_IDS),
        response_ids=_ids(entries, RESPONSE_IDS),
        reward=_numeric(stages, REWARDS, ["reward", main, *stages]),
        advantage=_numeric(stages, ADVANTAGES, ["advantage", main, *stages]),
        rollout_logprobs=rollout,
        trainer_logprobs=_numeric(stages, TRAINER_LOGPROBS, ["loss", *stages], unlike=rollout),
        entropy=_numeric(stages, ENTROPIES, [main, *stages]),
        finish=next(iter(columns_named(entries, FINISHES)), None),
    )


def main_stage(stages: Sequence[str]) -> str:
    """The stage whose samples are shown unless somebody asks for another."""
    return "rollout" if "rollout" in stages else stages[0]


def is_number(entry: Any) -> bool:
    """Whether a column holds numbers."""
    if entry["kind"] == "objects":
        return entry["as"] in ("float", "int", "bool")
    return not str(entry["dtype"]).startswith(("numpy:", "complex"))


def _numeric(
    stages: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    order: Sequence[str],
    unlike: Place | None = None,
) -> Place | None:
    for stage in dict.fromkeys(order):
        if stage not in stages or (unlike is not None and stage.startswith("ref")):
            continue
        for column in columns_named(stages[stage], tuple(names)):
            place = Place(stage, column)
            if place != unlike and is_number(stages[stage][column]):
                return place
    return None


def _ids(entries: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    found = [name for name in columns_named(entries, names) if entries[name]["kind"] != "objects"]
    return found[0] if found else None
