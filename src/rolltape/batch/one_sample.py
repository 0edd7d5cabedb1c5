"""Whether what a call returned is one sample, or a batch of them: the only place that guesses.

A call that was named, one per prompt say, returns one sample where it returns one object. What shows that the
object is a batch all the same: texts or ids for several samples in a field whose name is known.
"""

from __future__ import annotations

from typing import Any

from rolltape.batch.json_values import is_array
from rolltape.batch.nested import is_nested
from rolltape.batch.registry import adapter_for
from rolltape.batch.roles import has_role
from rolltape.batch.tree import fields_node
from rolltape.choices import NamedOption

TOKENS = ("prompt_ids", "response_ids", "token_ids", "prompt_mask", "response_mask", "attention_mask")
TEXTS = ("uid", "prompt_text", "prompt_wording", "response_text")
COMPLETIONS = ("response_ids", "response_text")


class SampleChoice(NamedOption):
    """What is a sample of a stage."""

    AUTO = "auto"
    """One object that a named call returned is one; everything else has one per row."""
    ONE = "one"
    """What a call returns."""
    ROWS = "rows"
    """A row of what a call returns."""


def is_one(value: Any, choice: SampleChoice, *, named: bool) -> bool:
    """Whether the result of a call is one sample; ``named`` where the caller named the call."""
    if choice is not SampleChoice.AUTO:
        return choice is SampleChoice.ONE
    return named and not _is_batch(value)


def _is_batch(value: Any) -> bool:
    if is_array(value):
        return is_nested(value) or value.ndim > 1
    if type(value) is list:
        return not _is_flat(value) and not _is_chat(value)
    if adapter_for(value) is not None:  # a TensorDict, a DataProto, a Rollout
        return True
    fields: dict[str, Any] = {}
    fields_node(value, lambda child, name: fields.setdefault(name, child))
    return any(_has_several(name, child) for name, child in fields.items())


def _has_several(name: str, value: Any) -> bool:
    """Whether a field has an entry for each of several samples."""
    if isinstance(value, dict):  # {"batch": {…}, "meta": {…}}
        return any(_has_several(inner, child) for inner, child in value.items() if isinstance(inner, str))
    if is_array(value):
        if is_nested(value) or value.ndim > 1:
            return has_role(name, *TOKENS)
        return value.ndim == 1 and has_role(name, "uid")
    if type(value) is not list or not value:
        return False
    if has_role(name, *TOKENS) and any(type(row) is list or is_array(row) for row in value):
        return True
    if has_role(name, *TEXTS) and all(type(row) is str for row in value):
        return True
    if has_role(name, "uid"):
        return True
    return has_role(name, *COMPLETIONS) and not _is_flat(value) and not _is_chat(value)


def _is_flat(value: list[Any]) -> bool:
    """Whether a list holds numbers: token ids, log-probs."""
    return all(isinstance(item, (int, float)) for item in value)


def _is_chat(value: list[Any]) -> bool:
    """Whether a list holds the messages of one conversation."""
    return all(isinstance(item, dict) and "role" in item for item in value)
