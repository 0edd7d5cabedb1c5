"""How work on many things is done: here, one after the other, or by whoever can spread it over machines.

Work is a function of a sequence of items that gives one result for each, in their order. What it makes of an
item depends on that item and on the tapes alone, so that it does not matter which machine does it, how often,
and which other items it is given at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Spread(Protocol):
    """Where work is done."""

    def over(
        self, work: Callable[[Sequence[Item]], Iterator[Result]], items: Sequence[Item], tapes: Sequence[str]
    ) -> Iterator[Result]:
        """What ``work`` makes of each item, in their order; raises what it raises at the first that fails.

        It may be given the items in pieces, elsewhere, and again where a machine was lost. ``tapes`` are the
        places of the tapes that it reads.
        """


class _Here:
    def over(
        self, work: Callable[[Sequence[Item]], Iterator[Result]], items: Sequence[Item], tapes: Sequence[str]
    ) -> Iterator[Result]:
        return work(items)


HERE: Spread = _Here()
"""In this process, all items in one go.

>>> list(HERE.over(lambda items: (2 * item for item in items), [1, 2, 3], []))
[2, 4, 6]
"""
