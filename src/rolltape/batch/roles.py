"""What columns mean, by the names that trainers give them: the one table of column names in Rolltape.

A role has names, most telling first; what stands behind the last ``/`` of a column's name counts. A name may
be a pattern (``*reward*``), which fits where none of the names before it does.

Yours can be added, at run time or by a package's entry points (group ``rolltape.roles``, each the name of a
role and an object that is a list of names):

>>> register_role("reward", "grade")
>>> columns_with(["batch/grade", "uid"], "reward")
['batch/grade']
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import metadata

from rolltape.errors import ConfigError

GROUP = "rolltape.roles"
"""The entry points of packages that add names."""

ROLES: dict[str, str] = {
    # who a sample is
    "uid": "uid uids sample_uid prompt_uid group_uid group_id prompt_id group_index",
    "index": "index_in_group sample_index completion_index index",
    # token ids
    "prompt_ids": "prompts prompt_ids raw_prompt_ids prompt_token_ids",
    "response_ids": "responses response_ids response_token_ids completion_ids completion_token_ids "
    "output_ids output_token_ids",
    "token_ids": "input_ids tokens token_ids sequences",
    # which places of a row count
    "prompt_mask": "prompt_mask prompt_attention_mask",
    "response_mask": "response_mask completion_mask action_mask loss_mask",
    "attention_mask": "attention_mask",
    # how many tokens there are, where a column says so
    "prompt_length": "prompt_length prompt_lengths prompt_len",
    "response_length": "response_length response_lengths response_len completion_length completion_lengths",
    # text
    "prompt_text": "prompt raw_prompt messages query queries question questions",
    "prompt_wording": "prompt_text prompt_texts full_prompts problem conversation text_prompt",
    "response_text": "response_text response_texts completion_text response responses completion completions "
    "output_text output outputs generated_text generation answer texts text",
    "response_message": "response_message",
    "token_texts": "response_tokens token_texts completion_tokens output_tokens",
    # log-probs
    "rollout_logprobs": "rollout_log_probs rollout_logprobs sampling_per_token_logps sampling_logprobs "
    "infer_logprobs response_logprobs",
    "new_logprobs": "log_probs log_prob new_log_probs new_logprobs per_token_logps train_logprobs",
    "old_logprobs": "old_log_probs old_log_prob old_logprobs old_per_token_logps",
    "ref_logprobs": "ref_log_probs ref_log_prob ref_logprobs ref_per_token_logps",
    "logprobs": "logprobs",
    # what a sample is worth
    "reward": "reward rewards score scores seq_reward token_level_scores token_level_rewards rm_scores "
    "response_level_rewards acc correct *reward* *score*",
    "token_reward": "token_rewards token_level_rewards",
    "advantage": "advantage advantages *advantage*",
    "return": "returns return *return*",
    "value": "values value",
    "loss": "token_losses token_loss pg_losses",
    "entropy": "entropy entropys entropies token_entropy",
    "per_token": "losses loss per_token_loss per_token_losses kl kls token_kl per_token_kl kl_penalty ratio "
    "ratios logp logps old_logps ref_logps policy_logps logratio log_ratio",
    "finish": "finish_reason finish_reasons stop_reason",
    # how a sample was made
    "weights_version": "weights_version weights_versions weight_version weight_versions output_versions "
    "policy_version policy_versions model_version",
    "images": "images image multi_modal_data multi_modal_inputs pixel_values image_grid_thw videos "
    "pixel_values_videos",
    "routes": "routes routed_experts rollout_routed_experts rollout_expert_indices",
    "kept_mass": "kept_mass surviving_mass",
    # names whose first axis is the samples beyond doubt
    "sample_axis": "uid responses response response_ids completions completion completion_ids input_ids "
    "prompts prompt prompt_ids tokens",
}
"""Role -> the names of its columns, most telling first."""

PROMPTS = ("prompt_ids", "prompt_text", "token_ids")
"""Roles that hold the prompt of a sample: what a hash of them tells apart are prompts."""

_added: dict[str, list[str]] = {}


def register_role(role: str, *names: str) -> None:
    """Add names of columns to a role, after those it has; a role that is new is begun."""
    for name in (role, *names):
        if not isinstance(name, str) or not name.strip() or " " in name:
            raise ConfigError(
                f"{name!r} is not the name of a role or a column", hint='register_role("reward", "grade")'
            )
    known = _added.setdefault(role, [])
    known += [name for name in names if name not in known]
    names_of.cache_clear()


@lru_cache(maxsize=256)
def names_of(*roles: str) -> tuple[str, ...]:
    """The names of these roles, in order; patterns come after all plain names."""
    for role in roles:
        if role not in ROLES and role not in _added and role not in _installed():
            raise ConfigError(f"there is no role {role!r}", hint=f"roles: {', '.join(ROLES)}")
    found = [
        name
        for role in roles
        for name in (*ROLES.get(role, "").split(), *_installed().get(role, ()), *_added.get(role, ()))
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda name: "*" in name))


def columns_with(columns: Iterable[str], *roles: str) -> list[str]:
    """The columns that have one of these roles, most telling first; folders in their names do not matter."""
    by_last: dict[str, str] = {}
    for column in columns:
        by_last.setdefault(column.rsplit("/", 1)[-1], column)
    found: dict[str, None] = {}
    for name in names_of(*roles):
        if "*" in name:
            found |= dict.fromkeys(by_last[last] for last in by_last if _fits(last, name))
        elif name in by_last:
            found[by_last[name]] = None
    return list(found)


def has_role(column: str, *roles: str) -> bool:
    """Whether a column has one of these roles."""
    return bool(columns_with([column], *roles))


def _fits(last: str, pattern: str) -> bool:
    return "mask" not in last.lower() and fnmatchcase(last.lower(), pattern)


@lru_cache(maxsize=1)
def _installed() -> dict[str, tuple[str, ...]]:
    """What installed packages add."""
    return {point.name: tuple(map(str, point.load())) for point in metadata.entry_points(group=GROUP)}
