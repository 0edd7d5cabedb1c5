"""Completions one by one, as an engine finishes them: for who keeps them before the whole rollout is there.

An engine asks for the ``listener`` when it begins to sample, and tells it each completion that is done, from
whatever thread. One that finishes everything at once need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from rolltape.engines.api.completion import Completion

Listener: TypeAlias = Callable[[int, int, Sequence[Completion]], None]
"""Told the position of the prompt, the number of the first of its completions, and these."""

_listener: ContextVar[Listener | None] = ContextVar("rolltape_listener", default=None)


def listener() -> Listener | None:
    """Who is told of completions in this call; None for nobody."""
    return _listener.get()


@contextmanager
def listening(told: Listener | None) -> Iterator[None]:
    """Have ``told`` called for completions that finish inside."""
    token = _listener.set(told)
    try:
        yield
    finally:
        _listener.reset(token)
