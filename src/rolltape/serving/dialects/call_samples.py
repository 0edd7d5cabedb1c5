"""A request as the samples that it asks for, and an answer as those that it gives: JSON in, JSON out.

Some APIs ask for several samples in one call: ``n`` of a prompt, or of each prompt of a list. Such a call can
be asked for in parts, and its answer put together of the choices of others. All else is one sample, whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolltape.serving.dialects.dialect import Dialect
from rolltape.serving.dialects.openai_api import Choices, ordered_choices

_TOGETHER = ("best_of", "use_beam_search")
"""Settings with which the samples of a call are chosen among others, and depend on how many are asked for."""
_OF_A_CALL = ("id", "created", "object", "model")
"""Fields that every answer has to have: those of one of them will do."""


class Parts(NamedTuple):
    """What a request asks for, prompt by prompt."""

    prompts: tuple[Any, ...]
    n: int
    """How many samples each gets: those of the first come first."""
    seed: int | None
    """That of the first sample of a prompt; it counts on, as in vLLM."""
    rest: dict[str, Any]
    """Everything else that it says."""


def take_apart(dialect: Dialect | None, body: Any) -> Parts | None:
    """The samples that a body asks for; None where it can only be asked for as a whole.

    >>> from rolltape.serving.dialects import find
    >>> body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 8}
    >>> take_apart(find("POST", "/v1/completions"), body)
    Parts(prompts=('a', 'b'), n=2, seed=None, rest={'max_tokens': 8})
    """
    if not isinstance(dialect, Choices) or not isinstance(body, dict) or body.get("stream"):
        return None
    settings = body.get(dialect.settings_in) if dialect.settings_in else body
    prompts = dialect.listed_prompts(body)
    if not prompts or not isinstance(settings, dict) or any(settings.get(name) for name in _TOGETHER):
        return None
    n, seed = settings.get("n"), settings.get("seed")
    n = 1 if n is None else n
    if type(n) is not int or n < 1 or (seed is not None and (type(seed) is not int or len(prompts) > 1)):
        return None
    rest = {name: value for name, value in body.items() if name not in (dialect.prompts_in, "n", "seed")}
    if dialect.settings_in:
        rest = {name: value for name, value in body.items() if name != dialect.prompts_in}
        rest[dialect.settings_in] = {k: v for k, v in settings.items() if k not in ("n", "seed")}
    return Parts(tuple(prompts), n, seed, rest)


def asking_for(
    dialect: Dialect, body: Mapping[str, Any], prompts: Sequence[Any], n: int, seed: int | None
) -> Any:
    """The body with other prompts, count and seed."""
    assert isinstance(dialect, Choices)
    changed = {"n": n} if seed is None else {"n": n, "seed": seed}
    if dialect.settings_in:
        return {**body, dialect.settings_in: {**body[dialect.settings_in], **changed}}
    if dialect.listed_prompts(body) == list(prompts):
        return {**body, **changed}
    return {**body, **changed, dialect.prompts_in: list(prompts)}


def choices_of(answer: Any, count: int) -> list[Mapping[str, Any]] | None:
    """The samples of an answer, in their order; None where they are not as many as were asked for."""
    found = ordered_choices(answer)
    return (
        found if len(found) == count and [one.get("index") for one in found] == list(range(count)) else None
    )


def stands_alone(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says something of its samples beside them, so that none can be taken out of it."""
    return answer.get("sglext") is not None


def put_together(
    answers: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """An answer with these choices, which are of all these ``answers``: the first of them otherwise.

    What they do not agree upon is left out, and so is ``usage``: how many tokens it would be nobody knows.
    """
    first, *others = answers
    agreed = {
        name: value
        for name, value in first.items()
        if name in _OF_A_CALL or all(one.get(name) == value for one in others)
    }
    numbered = [{**choice, "index": at} for at, choice in enumerate(choices)]
    return {name: value for name, value in agreed.items() if name != "usage"} | {"choices": numbered}
