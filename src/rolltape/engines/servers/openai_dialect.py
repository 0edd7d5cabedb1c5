"""What the two dialects of OpenAI's completions have in common: what an engine must know and request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import SamplingParams
from rolltape.engines.servers.http_client import Server


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says about itself."""

    version: str
    model: str
    context: int | None = None
    vocab_size: int | None = None
    root: str | None = None
    """Where the server loaded the model from."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent for a prompt, and to which path."""

    path: str
    body: dict[str, Any]
    who: str
    """What errors name: ``prompts[3]``, or a field of it."""


class Dialect(Protocol):
    """How to send requests to one kind of server, and how to read its answers."""

    name: str

    def describe(self, server: Server, model: str | None) -> Served:
        """The server's version and model; ``model`` is the requested one, if any."""

    def check(
        self, server: Server, served: Served, prompts: Sequence[Prompt], params: SamplingParams
    ) -> None:
        """Refuse, with ``EngineError``, what this kind of server cannot do."""

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int] | None:
        """The token ids of a prompt, from the server's own tokenizer and chat template. None for one with
        images: its ids come with the answer. ``PromptError`` if this kind of server takes no images."""

    def requests(
        self, served: Served, prompt: Prompt, ids: Sequence[int] | None, params: SamplingParams, position: int
    ) -> list[Request]:
        """The requests that together return ``params.n`` completions."""

    def read(
        self, answer: Any, ids: Sequence[int] | None, params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        """The completions in one answer. A missing field raises ``EngineError``, which names it."""
