"""Which replica gets which prompts: groups whole, work even. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import SamplingParams
from rolltape.errors import RolltapeError

E = TypeVar("E", bound=Exception)


def share_out(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Positions for each share, in order, so that the most expensive share is as cheap as can simply be had.

    The longest goes first, each to the share that has least: never more than a third above the best there is.

    >>> share_out([9, 1, 1, 1, 5, 1], 2)
    [[0], [1, 2, 3, 4, 5]]
    """
    found: list[list[int]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for position in sorted(range(len(costs)), key=lambda at: -costs[at]):
        least = min(range(shares), key=loads.__getitem__)
        found[least].append(position)
        loads[least] += costs[position]
    return [sorted(share) for share in found if share]


def cost(prompt: Prompt, params: SamplingParams) -> float:
    """What a prompt takes, in tokens: it is read once, and each completion may be as long as allowed.

    Characters are taken for tokens where a prompt is text: what is compared is one prompt with another.
    """
    if prompt.token_ids is not None:
        length = len(prompt.token_ids)
    elif prompt.messages is not None:
        length = sum(len(str(message.get("content") or "")) for message in prompt.messages)
    else:
        length = len(prompt.text or "")
    return length + params.n * params.max_tokens


_NAMED = re.compile(r"(?<=\bprompt )\d+|(?<=\bprompts\[)\d+")


def renumbered(error: E, positions: Sequence[int]) -> E:
    """An error of a share, with the numbers that its prompts have in the whole batch."""

    def there(text: str) -> str:
        return _NAMED.sub(lambda found: str(positions[int(found[0])]), text)

    if isinstance(error, RolltapeError):
        error.what = there(error.what)
        error.where = error.where and there(error.where)
        error.args = (error.what,)
    return error


def named(error: Exception) -> int | None:
    """Which prompt of its share an error is about."""
    found = _NAMED.search(str(getattr(error, "where", None) or ""))
    return int(found[0]) if found else None
