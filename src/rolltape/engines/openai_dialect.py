"""What the two dialects of OpenAI's completions have in common: what an engine needs to know and to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolltape.engines.completion import Completion
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.serving import Server


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says about itself."""

    version: str
    model: str
    context: int | None = None
    vocab_size: int | None = None
    root: str | None = None
    """Where the server has the model from."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent for a prompt, and where."""

    path: str
    body: dict[str, Any]
    who: str
    """What the errors name: ``prompts[3]``, or a field of it."""


class Dialect(Protocol):
    """How one kind of server is asked, and how its answers are read."""

    name: str

    def describe(self, server: Server, model: str | None) -> Served:
        """The server's version and model; ``model`` is the one asked for, if any."""

    def check(
        self, server: Server, served: Served, prompts: Sequence[Prompt], params: SamplingParams
    ) -> None:
        """Refuse, with ``EngineError``, what this kind of server cannot do."""

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int] | None:
        """The token ids of a prompt, by the server's own tokenizer and chat template. None for one with
        images, whose ids come with the answer; ``PromptError`` where this kind of server takes none."""

    def requests(
        self, served: Served, prompt: Prompt, ids: Sequence[int] | None, params: SamplingParams, position: int
    ) -> list[Request]:
        """The requests that together give ``params.n`` completions."""

    def read(
        self, answer: Any, ids: Sequence[int] | None, params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        """The completions in one answer. What is missing in it is an ``EngineError`` naming the field."""
