"""Turns prompts into token ids with the model's tokenizer; refuses prompts that the model cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolltape.engines.api.prompt import Prompt, empty
from rolltape.engines.api.sampling import SamplingParams
from rolltape.errors import ConfigError, PromptError


def encode(prompt: Prompt, tokenizer: Any, position: int = 0) -> list[int]:
    """The token ids of a prompt without images. ``position`` is for error messages."""
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if tokenizer is None:
        raise PromptError(
            f"prompt {position} is {prompt.kind}, but the engine has no tokenizer",
            where=f"prompts[{position}].{prompt.kind}",
            hint="pass tokenizer= to the engine, or token ids as prompts",
        )
    text = render(prompt, tokenizer, position)
    ids = list(tokenizer(text, add_special_tokens=prompt.messages is None)["input_ids"])
    if not ids:
        raise empty(position, prompt.kind)
    return ids


def render(prompt: Prompt, tokenizer: Any, position: int = 0) -> str:
    """The text of a prompt as the model reads it; ``tokenizer`` may be a processor."""
    if prompt.messages is None:
        return str(prompt.text)
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            f"prompt {position} is a chat, but the model has no chat template",
            where=f"prompts[{position}].messages",
            causes=["it is a base model, or its tokenizer was saved without the template"],
            hint="set tokenizer.chat_template, or pass text or token ids",
        )
    text = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def check_text_only(prompts: Sequence[Prompt], model: str, *, first: int = 0) -> None:
    """Refuse images and videos, for a model that cannot see them. ``first`` is the position of the first."""
    for position, prompt in enumerate(prompts, first):
        for field in ("images", "videos"):
            if getattr(prompt, field):
                raise PromptError(
                    f"prompt {position} has {field}, but {model} takes text only",
                    where=f"prompts[{position}].{field}",
                    hint="use a vision-language model and pass its processor to the engine",
                )


def check_no_videos(prompt: Prompt, position: int, what: str) -> None:
    """Refuse videos, for engines that take only images."""
    if prompt.videos:
        raise PromptError(
            f"prompt {position} has videos, but {what} takes text and images only",
            where=f"prompts[{position}].videos",
            hint="send frames as images, or use an engine in this process",
        )


def beside_ids(position: int) -> PromptError:
    """The error for images or videos with a prompt of token ids, which have no placeholders for them."""
    return PromptError(
        f"prompt {position} has images or videos with token ids",
        where=f"prompts[{position}].token_ids",
        hint="pass text or messages: the processor decides how many tokens an image takes",
    )


def render_with_media(prompt: Prompt, processor: Any, position: int = 0) -> str:
    """The text of a prompt with images or videos, with a placeholder for each of them."""
    if prompt.token_ids is not None:
        raise beside_ids(position)
    text = render(prompt, processor, position)
    for name, mark in (("images", "image_token"), ("videos", "video_token")):
        token = getattr(processor, mark, None)
        given = len(getattr(prompt, name))
        if isinstance(token, str) and text.count(token) != given:
            raise PromptError(
                f"prompt {position} has {given} {name}, but its text has {text.count(token)} placeholders",
                where=f"prompts[{position}].{name}",
                hint=f"for each, put {token!r} into the text, or a part of that type into the messages",
            )
    return text


def check_ids(ids: Sequence[int], position: int, *, vocab_size: int | None, context: int | None) -> None:
    """Refuse ids that the model does not have, and prompts that leave no room for a response."""
    if vocab_size is not None:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise PromptError(
                    f"prompt {position} has token id {token}, but the model has only {vocab_size} tokens",
                    where=f"prompts[{position}].token_ids",
                    causes=["the ids come from the tokenizer of another model"],
                )
    if context is not None and len(ids) >= context:
        raise PromptError(
            f"prompt {position} has {len(ids)} tokens, but the model's context is {context}",
            where=f"prompts[{position}]",
            hint=f"shorten it to fewer than {context} tokens, to leave room for the response",
        )


def check_stops(params: SamplingParams, vocab_size: int | None) -> None:
    """Refuse stop tokens that the model cannot produce."""
    for token in params.stop_token_ids:
        if vocab_size is not None and token >= vocab_size:
            raise ConfigError(
                f"stop_token_ids has {token}, but the model has only {vocab_size} tokens",
                where="SamplingParams.stop_token_ids",
            )


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop text in it, and whether there is one.

    >>> cut_at_stop("4. Next", [". ", "!"])
    ('4', True)
    """
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)
