"""What the two dialects of OpenAI's completions have in common: what an engine needs to know and to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rolltape.engines.completion import Completion
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.serving import Server
from rolltape.errors import EngineError


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says about itself."""

    version: str
    model: str
    context: int | None = None
    vocab_size: int | None = None
    root: str | None = None
    """Where the server has the model from."""


class Dialect(Protocol):
    """How one kind of server is asked, and how its answers are read."""

    name: str

    def describe(self, server: Server, model: str | None) -> Served:
        """The server's version and model; ``model`` is the one asked for, if any."""

    def check(self, server: Server, served: Served, params: SamplingParams) -> None:
        """Refuse, with ``EngineError``, what this kind of server cannot do."""

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int]:
        """The token ids of a prompt, by the server's own tokenizer and chat template."""

    def bodies(
        self, served: Served, prompt: Prompt, ids: Sequence[int], params: SamplingParams
    ) -> list[dict[str, Any]]:
        """The requests that together give ``params.n`` completions."""

    def read(
        self, answer: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        """The completions in one answer. What is missing in it is an ``EngineError`` naming the field."""


def field(container: Any, name: str, position: int, at: str) -> Any:
    """A part of an answer that must be there."""
    value = container.get(name) if isinstance(container, dict) else None
    if value is None:
        raise EngineError(
            f"the answer to prompt {position} has no {at}{name}",
            where=f"prompts[{position}], {at}{name}",
            causes=["the server gives no token ids or log-probs", "another dialect than the server's"],
        )
    return value


def numbers(values: Sequence[Any], tokens: int, position: int, at: str) -> np.ndarray:
    """Log-probs that are there, are numbers, and are one per token."""
    found = np.array([np.nan if value is None else value for value in values], np.float32)
    if len(found) != tokens or np.isnan(found).any():
        missing = int(np.isnan(found).argmax()) if len(found) == tokens else min(len(found), tokens)
        raise EngineError(
            f"the answer to prompt {position} has {tokens} tokens and no log-prob for token {missing}",
            where=f"prompts[{position}], {at}",
        )
    return found
