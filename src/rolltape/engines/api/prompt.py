"""``Prompt``: text, chat messages or token ids, with their images or videos."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from rolltape.batch import register_adapter
from rolltape.codec.cells import cell_parts
from rolltape.errors import PromptError


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of a group of completions: exactly one of ``text``, ``messages``, ``token_ids``.

    >>> Prompt.of("2+2=").text, Prompt.of([1, 2]).token_ids
    ('2+2=', [1, 2])
    """

    text: str | None = None
    """Goes to the tokenizer as it is."""
    messages: list[dict[str, Any]] | None = None
    """A chat, for the model's chat template; the reply is generated."""
    token_ids: list[int] | None = None
    """Used as they are."""
    images: list[Any] = field(default_factory=list)
    """PIL images, in the order in which the text or the messages mention them."""
    videos: list[Any] = field(default_factory=list)
    """Arrays of frames, ``(frames, height, width, 3)`` in uint8."""
    uid: str | None = None
    """The id of the group. The default is a hash of the rest: the same in every run and every batch."""
    first: int = 0
    """The number of its first completion, where others of the group are there already: seeds follow it."""

    NOT_CONTENT: ClassVar = ("uid", "first")
    """Whose prompt it is, and which of its completions are meant: not what is asked."""

    @classmethod
    def of(cls, value: PromptLike, position: int = 0) -> Prompt:
        """A prompt from any accepted form; ``position`` is for error messages."""
        if isinstance(value, Prompt):
            return value
        if isinstance(value, str):
            return cls(text=value)
        tolist = getattr(value, "tolist", None)  # an array or a tensor
        items: Any = tolist() if tolist is not None else value
        if isinstance(items, Sequence) and items:
            if all(isinstance(item, Mapping) for item in items):
                return cls(messages=[dict(item) for item in items])
            if all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in items):
                return cls(token_ids=[int(item) for item in items])
        if isinstance(items, Sequence) and not len(items):
            raise empty(position, "prompt")
        raise PromptError(
            f"prompt {position} must be text, chat messages or token ids, not {type(value).__name__}",
            where=f"prompts[{position}]",
            hint="pass str, a list of {'role': …, 'content': …}, a list of ints, or rolltape.engines.Prompt",
        )

    @property
    def kind(self) -> str:
        """Which form it has: ``text``, ``messages`` or ``token_ids``."""
        return next(name for name in _KINDS if getattr(self, name) is not None)


PromptLike: TypeAlias = "Prompt | str | Sequence[Mapping[str, Any]] | Sequence[int] | np.ndarray"
_KINDS = ("text", "messages", "token_ids")


def prepare(prompts: Sequence[PromptLike]) -> list[Prompt]:
    """Check prompts and give each its uid; equal prompts without one get ``…#1``, ``…#2`` in their order."""
    if isinstance(prompts, (str, Prompt)):
        raise PromptError("prompts must be a list of prompts, not a single one", hint="pass [prompt]")
    found = [Prompt.of(value, position) for position, value in enumerate(prompts)]
    seen: Counter[str] = Counter()
    ready = []
    for position, prompt in enumerate(found):
        _check(prompt, position)
        uid = prompt.uid
        if uid is None:
            digest = _digest(prompt)
            uid = f"{digest}#{seen[digest]}" if seen[digest] else digest
            seen[digest] += 1
        ready.append(dataclasses.replace(prompt, uid=uid))
    times = Counter((prompt.uid, prompt.first) for prompt in ready)
    twice = [uid for (uid, _), count in times.items() if count > 1]
    if twice:
        at = [position for position, prompt in enumerate(ready) if prompt.uid == twice[0]]
        raise PromptError(
            f"prompts {at[0]} and {at[1]} have the same uid {twice[0]!r}", where="prompts[…].uid"
        )
    return ready


def empty(position: int, what: str) -> PromptError:
    """The error for an empty prompt."""
    return PromptError(f"prompt {position} is empty", where=f"prompts[{position}].{what}")


def is_place(part: Any, kind: str) -> bool:
    """Whether a part of a message is a placeholder for an image or a video, depending on ``kind``.

    >>> is_place({"type": "image"}, "image"), is_place({"type": "text", "text": "image"}, "image")
    (True, False)
    """
    if not isinstance(part, Mapping):
        return False
    return part.get("type", kind if kind in part else None) in (kind, f"{kind}_url")


def places(messages: Sequence[Mapping[str, Any]], kind: str) -> int:
    """How many placeholders for images or videos the messages have."""
    contents = [message.get("content") for message in messages]
    return sum(
        is_place(part, kind) for content in contents if isinstance(content, (list, tuple)) for part in content
    )


def _check(prompt: Prompt, position: int) -> None:
    given = [name for name in _KINDS if getattr(prompt, name) is not None]
    if len(given) != 1:
        raise PromptError(
            f"prompt {position} has {' and '.join(given) or 'nothing'}; it needs one of {', '.join(_KINDS)}",
            where=f"prompts[{position}]",
        )
    if not len(getattr(prompt, given[0])):
        raise empty(position, given[0])
    for number, message in enumerate(prompt.messages or ()):
        if "role" not in message or not (message.get("content") or message.get("tool_calls")):
            raise PromptError(
                f"message {number} of prompt {position} has no role or no content",
                where=f"prompts[{position}].messages[{number}]",
            )
    if not isinstance(prompt.first, int) or prompt.first < 0:
        raise PromptError(
            f"first of prompt {position} must be a whole number of at least 0, not {prompt.first!r}",
            where=f"prompts[{position}].first",
        )
    for kind in ("image", "video"):
        _check_places(prompt, kind, position)


def _check_places(prompt: Prompt, kind: str, position: int) -> None:
    """If no part is a placeholder, a mark in the text may be one: only the engine knows the mark."""
    given, found = len(getattr(prompt, f"{kind}s")), places(prompt.messages or (), kind)
    if found and found != given:
        raise PromptError(
            f"prompt {position} has {given} {kind}s, but its messages have placeholders for {found}",
            where=f"prompts[{position}].{kind}s",
            causes=[f"the {kind} is in the message itself, as an object or a URL"],
            hint=f"pass Prompt(messages=…, {kind}s=[…]), one for each part {{'type': '{kind}'}}",
        )


def _digest(prompt: Prompt) -> str:
    """A hash of everything but the uid: equal for equal prompts only."""
    state = hashlib.blake2b(digest_size=8)
    parts = [prompt.text, prompt.messages, prompt.token_ids, prompt.images, prompt.videos]
    for piece in cell_parts(parts, ()):
        state.update(piece)
    return state.hexdigest()


register_adapter(Prompt, name="engines.prompt")
